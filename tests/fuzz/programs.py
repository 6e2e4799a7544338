"""Random programs over the Tensor API, replayable with other sizes.

    Random --make_program--> Program --build--> tensors (symbolic, or at fixed sizes)

A program is a list of steps, each a function of earlier values. Steps take sizes from the
shapes of their operands only, so that the same steps build the graph with Variables and
the graph at fixed sizes. A value is *exact* if every executor must give the same bits:
inputs, integers, correctly rounded ops, and what selects from them. Ops that turn a tiny
difference into a large one (comparisons, floor, sort, float to integer) get exact operands
only. An inexact value remembers the coarsest dtype that took part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import numpy as np
from tests.fuzz.masks import random_mask

from semel import Tensor, Variable
from semel.errors import GraphError
from semel.ir.expr import Dim, evaluate, lower_bound, upper_bound, variables
from semel.ir.graph import Graph
from semel.ir.types import DType, as_dtype
from semel.ops.guards import guards

Build: TypeAlias = Callable[..., Tensor]

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = ("float32",) * 8 + FLOATS + INTEGERS + ("int32", "int64", "bool", "bool")
VARIABLES = (Variable("n", 0, 40), Variable("m", 1, 19), Variable("k", 3, 70))


@dataclass(frozen=True)
class Scale:
    """Which sizes dims have, and how large a value may get."""

    sizes: tuple[Dim, ...]
    max_elements: int
    slack: float = 1.0


SMALL = Scale((0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, *VARIABLES, *VARIABLES), 4096)
#: Several tiles per kernel, long rows, reductions that threads share.
LARGE = Scale(
    (1, 3, 17, 64, 129, 300, 1000, 5000, 70_000, 300_000, Variable("p", 0, 500),
     Variable("q", 1, 90_000)),
    400_000,
    slack=10.0,
)  # fmt: skip

#: Relative to the largest element of the result.
TOLERANCE = {"float64": 1e-9, "float32": 3e-4, "float16": 6e-2, "bfloat16": 3e-1}


@dataclass(frozen=True)
class Step:
    """`build` applied to earlier values; `label` is for people."""

    label: str
    operands: tuple[int, ...]
    build: Build


@dataclass
class Program:
    """Inputs, then steps; `noise` gives each value's coarsest inexact dtype, or None: exact."""

    inputs: list[tuple[str, tuple[Dim, ...], str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    noise: list[str | None] = field(default_factory=list)
    seed: int = 0
    slack: float = 1.0  # how much more rounding errors add up than in small programs

    @property
    def variables(self) -> list[Variable]:
        found = {d for _, shape, _ in self.inputs for d in shape if isinstance(d, Variable)}
        return sorted(found, key=lambda v: v.name)

    def build(
        self, values: Mapping[str, int] | None = None, known: Mapping[str, Tensor] | None = None
    ) -> list[Tensor]:
        """The outputs, over Variables or at fixed sizes; `known` stand in for inputs."""
        tensors: list[Tensor] = []
        for name, shape, dtype in self.inputs:
            dims = shape if values is None else [evaluate(d, values) for d in shape]
            given = Tensor.input(name, tuple(dims), dtype)
            tensors.append((known or {}).get(name, given))
        for step in self.steps:
            tensors.append(step.build(*(tensors[i] for i in step.operands)))
        return [tensors[i] for i in self.outputs]

    def data(self, values: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Arrays for the inputs at these sizes, the same at every call."""
        result = {}
        for i, (name, shape, dtype) in enumerate(self.inputs):
            sizes = tuple(evaluate(d, values) for d in shape)
            result[name] = _array(np.random.default_rng(self.seed + i), sizes, as_dtype(dtype))
        return result

    def bindings(self, rng: Random) -> list[dict[str, int]]:
        """Values to run at: all minima, all maxima, and something between."""
        bounds = [(v.name, v.min, v.max or 50) for v in self.variables]
        middle = {name: rng.randint(low, high) for name, low, high in bounds}
        return [
            {name: high for name, _, high in bounds},
            {name: low for name, low, _ in bounds},
            middle,
        ]

    def __str__(self) -> str:
        lines = [f"%{i} = input {n}: {d}{list(s)}" for i, (n, s, d) in enumerate(self.inputs)]
        for i, step in enumerate(self.steps, len(self.inputs)):
            lines.append(f"%{i} = {step.label} {', '.join(f'%{k}' for k in step.operands)}")
        return "\n".join([*lines, f"outputs {self.outputs}, seed {self.seed}"])


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype.name == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        low = 0 if dtype.kind == "u" else -9
        array = rng.integers(low, 10, shape).astype(dtype.numpy)
        if array.size and rng.random() < 0.3:
            extreme = dtype.lowest if rng.random() < 0.5 else dtype.highest
            array.reshape(-1)[rng.integers(array.size)] = extreme
        return array
    # Few distinct values, so that ties and zeros happen.
    array = np.asarray(rng.integers(-12, 13, shape) / 4.0 + rng.choice([0.0, 0.1])).astype(
        dtype.numpy
    )
    if array.size and rng.random() < 0.15:
        special = rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40]))
        array.reshape(-1)[rng.integers(array.size)] = special
    return array


# ---------------------------------------------------------------- choosing steps


class Maker:
    """A program under construction: the values so far, and steps that fit them."""

    def __init__(self, rng: Random, scale: Scale) -> None:
        self.rng, self.scale = rng, scale
        # Few sizes per program, so that values fit each other, transposed ones too.
        self.sizes = tuple(rng.choices(scale.sizes, k=rng.choice((1, 2, 2, 3))))
        self.program = Program(seed=rng.randrange(1 << 30), slack=scale.slack)
        self.tensors: list[Tensor] = []

    def input(self, shape: Sequence[Dim], dtype: str) -> int:
        name = f"x{len(self.program.inputs)}"
        assert len(self.tensors) == len(self.program.inputs), "inputs come first"
        self.program.inputs.append((name, tuple(shape), dtype))
        self.program.noise.append(None)
        self.tensors.append(Tensor.input(name, tuple(shape), dtype))
        return len(self.tensors) - 1

    def random_shape(self) -> tuple[Dim, ...]:
        most = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 3, 4))
        for rank in range(most, -1, -1):
            shape = tuple(self.rng.choice((1, *self.sizes * 3)) for _ in range(rank))
            if _high(shape) <= self.scale.max_elements:
                return shape
        return ()

    def add(
        self, label: str, operands: Sequence[int], build: Build, *, noisy: bool | str = False
    ) -> bool:
        """Append a step if it makes sense; `noisy` says it is not bit-exact."""
        try:
            tensor = build(*(self.tensors[i] for i in operands))
        except GraphError:
            return False  # the shapes do not fit: another choice will
        if _high(tensor.shape) > self.scale.max_elements or _is_refused(tensor):
            return False
        noises = [n for i in operands if (n := self.program.noise[i]) is not None]
        if noisy:
            noises.append(noisy if isinstance(noisy, str) else tensor.dtype.name)
            noises += [t.dtype.name for i in operands if (t := self.tensors[i]).dtype.is_half]
        noises = [n for n in noises if n in TOLERANCE]
        if noises and tensor.dtype.name in TOLERANCE:
            noises.append(tensor.dtype.name)
        worst = max(noises, key=lambda n: TOLERANCE[n], default=None)
        self.program.steps.append(Step(label, tuple(operands), build))
        self.program.noise.append(worst if tensor.dtype.is_float else None)
        self.tensors.append(tensor)
        return True

    # -------------------------------------------------------- picking operands

    def pick(
        self, want: Callable[[Tensor], bool] = lambda t: True, *, exact: bool = False
    ) -> int | None:
        """A value, later ones more often."""
        fits = [
            i
            for i, t in enumerate(self.tensors)
            if want(t) and not (exact and self.program.noise[i] is not None)
        ]
        if not fits:
            return None
        used = {i for step in self.program.steps for i in step.operands}
        fresh = [i for i in fits if i not in used]
        return self.rng.choice(fresh if fresh and self.rng.random() < 0.6 else fits)

    def axis(self, tensor: Tensor) -> int:
        return self.rng.randrange(-tensor.ndim, tensor.ndim)


def _is_refused(tensor: Tensor) -> bool:
    """Whether a guard fails where the variables are largest, as that of 2 == n does."""
    for dim, _ in guards(Graph((tensor.node,))):
        if evaluate(dim, {v.name: v.max or 50 for v in variables(dim)}):
            return True
    return False


def _high(shape: Sequence[Any]) -> int:
    total = 1
    for dim in shape:
        total *= max(upper_bound(dim) or 50, 1)
    return total


def _low(dim: Dim) -> int:
    return lower_bound(dim) or 0


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype.is_float


def _is_number(tensor: Tensor) -> bool:
    return tensor.dtype.name != "bool"


UNARY_EXACT: dict[str, Build] = {
    "neg": lambda x: -x, "abs": lambda x: x.abs(), "square": lambda x: x * x,
    "relu": lambda x: x.relu(), "half": lambda x: x * 0.5, "plus_one": lambda x: x + 1,
    "clip": lambda x: x.clip(-2, 3) if x.dtype.kind != "u" else x.clip(1, 3),
    "isnan": lambda x: x.isnan(), "sign": lambda x: x.sign(), "one_minus": lambda x: 1 - x,
    "reciprocal": lambda x: 1 / (x.abs() + 1), "sqrt": lambda x: x.abs().sqrt(),
}  # fmt: skip
DISCONTINUOUS: dict[str, Build] = {
    "floor": lambda x: x.floor(), "ceil": lambda x: x.ceil(), "trunc": lambda x: x.trunc(),
    "round": lambda x: x.round(), "positive": lambda x: x > 0, "is_one": lambda x: x == 1,
    "logical_not": lambda x: x.logical_not(), "isinf": lambda x: x.isinf(),
}  # fmt: skip
#: Bounded, or made so: a small difference stays small.
UNARY_SMOOTH: dict[str, Build] = {
    "exp": lambda x: x.clip(-4, 4).exp(), "tanh": lambda x: x.tanh(), "erf": lambda x: x.erf(),
    "sigmoid": lambda x: x.sigmoid(), "sin": lambda x: x.clip(-9, 9).sin(),
    "cos": lambda x: x.clip(-9, 9).cos(), "log": lambda x: (x.abs() + 1).log(),
    "gelu": lambda x: x.clip(-9, 9).gelu(), "silu": lambda x: x.clip(-9, 9).silu(),
    "atan": lambda x: x.atan(), "log1p": lambda x: x.abs().clip(0, 99).log1p(),
    "softplus": lambda x: x.clip(-9, 9).softplus(), "exp2": lambda x: x.clip(-4, 4).exp2(),
}  # fmt: skip
BINARY: dict[str, Build] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "maximum": lambda x, y: x.maximum(y), "minimum": lambda x, y: x.minimum(y),
    "div": lambda x, y: x / (y.abs() + 1),
    "lerp": lambda x, y: x + (y - x) * 0.25,
}  # fmt: skip
BINARY_EXACT: dict[str, Build] = {
    "lt": lambda x, y: x < y, "eq": lambda x, y: x == y, "ge": lambda x, y: x >= y,
    "floordiv": lambda x, y: x // y, "mod": lambda x, y: x % y,
}  # fmt: skip
BITS: dict[str, Build] = {
    "and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << y, "shr": lambda x, y: x >> y, "not": lambda x, y: ~x,
}  # fmt: skip
REDUCE: dict[str, tuple[Build, bool]] = {  # name -> (build, whether floats are inexact)
    "sum": (lambda x, axis, keep: x.sum(axis, keepdims=keep), True),
    "mean": (lambda x, axis, keep: x.mean(axis, keepdims=keep), True),
    "max": (lambda x, axis, keep: x.max(axis, keepdims=keep), False),
    "min": (lambda x, axis, keep: x.min(axis, keepdims=keep), False),
    "prod": (lambda x, axis, keep: x.clip(0, 2).prod(axis, keepdims=keep), True),
    "var": (lambda x, axis, keep: x.clip(-9, 9).var(axis, keepdims=keep, correction=0), True),
    "logsumexp": (lambda x, axis, keep: x.clip(-9, 9).logsumexp(axis, keepdims=keep), True),
    "norm": (lambda x, axis, keep: (x.clip(-9, 9).square().sum(axis, keepdims=keep)), True),
}  # fmt: skip
REDUCE_EXACT: dict[str, Build] = {
    "any": lambda x, axis, keep: (x > 0).any(axis, keepdims=keep),
    "all": lambda x, axis, keep: (x > 0).all(axis, keepdims=keep),
    "count": lambda x, axis, keep: x.count_nonzero(axis, keepdims=keep),
}  # fmt: skip


def unary(m: Maker) -> bool:
    x = m.pick(_is_number)
    if x is None:
        return False
    name = m.rng.choice(list(UNARY_EXACT))
    return m.add(name, [x], UNARY_EXACT[name])


def discontinuous(m: Maker) -> bool:
    x = m.pick(_is_number, exact=True)
    if x is None:
        return False
    name = m.rng.choice(list(DISCONTINUOUS))
    return m.add(name, [x], DISCONTINUOUS[name])


def smooth(m: Maker) -> bool:
    x = m.pick(_is_float)
    if x is None:
        return False
    name = m.rng.choice(list(UNARY_SMOOTH))
    return m.add(name, [x], UNARY_SMOOTH[name], noisy=True)


def _pair(m: Maker, want: Callable[[Tensor], bool], *, exact: bool) -> tuple[int, int] | None:
    x = m.pick(want, exact=exact)
    if x is None:
        return None
    y = m.pick(lambda t: want(t) and _broadcasts(m.tensors[x], t), exact=exact)
    return None if y is None else (x, y)


def _broadcasts(a: Tensor, b: Tensor) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(p == q or p == 1 or q == 1 for p, q in pairs)


def binary(m: Maker) -> bool:
    pair = _pair(m, _is_number, exact=False)
    if pair is None:
        return False
    name = m.rng.choice(list(BINARY))
    return m.add(name, pair, BINARY[name])


def rearranged(m: Maker) -> bool:
    """One value with another whose axes are brought into its order."""
    x = m.pick(lambda t: _is_number(t) and t.ndim >= 2)
    if x is None:
        return False
    axes = m.rng.sample(range(m.tensors[x].ndim), m.tensors[x].ndim)
    wanted = [m.tensors[x].shape[a] for a in axes]
    y = m.pick(
        lambda t: (
            _is_number(t)
            and t.ndim == len(wanted)
            and all(p in (q, 1) for p, q in zip(t.shape, wanted, strict=True))
        )
    )
    if y is None:
        return False
    back = [axes.index(a) for a in range(len(axes))]
    name = m.rng.choice(list(BINARY))
    build = BINARY[name]
    return m.add(f"{name}, second permuted {back}", [x, y], lambda t, u: build(t, u.permute(*back)))


def binary_exact(m: Maker) -> bool:
    pair = _pair(m, _is_number, exact=True)
    if pair is None:
        return False
    name = m.rng.choice(list(BINARY_EXACT))
    return m.add(name, pair, BINARY_EXACT[name])


def bits(m: Maker) -> bool:
    pair = _pair(m, lambda t: t.dtype.is_integer, exact=True)
    if pair is None:
        return False
    name = m.rng.choice(list(BITS))
    return m.add(name, pair, BITS[name])


def where(m: Maker) -> bool:
    pair = _pair(m, _is_number, exact=False)
    if pair is None:
        return False
    c = m.pick(
        lambda t: (
            t.dtype.name == "bool"
            and _broadcasts(m.tensors[pair[0]], t)
            and _broadcasts(m.tensors[pair[1]], t)
        )
    )
    if c is None:
        return False
    return m.add("where", [c, *pair], lambda c, x, y: c.where(x, y))


def cast(m: Maker) -> bool:
    dtype = m.rng.choice(DTYPES)
    x = m.pick(lambda t: t.dtype.name != dtype, exact=as_dtype(dtype).name not in TOLERANCE)
    if x is None:
        return False
    source = m.tensors[x].dtype
    # An integer near the largest float16 may become infinite: that is exact, too.
    narrows = source.bits > 16 and as_dtype(dtype).is_half and m.program.noise[x] is not None
    noisy = dtype if narrows else False
    return m.add(f"cast to {dtype}", [x], lambda t: t.cast(dtype), noisy=noisy)


def reduce(m: Maker) -> bool:
    x = m.pick(_is_number)
    if x is None:
        return False
    t = m.tensors[x]
    axes: Any = None
    if t.ndim:
        axes = tuple(sorted(m.rng.sample(range(t.ndim), m.rng.randint(1, t.ndim))))
    keep = m.rng.random() < 0.5
    if any(_low(t.shape[a]) == 0 for a in (range(t.ndim) if axes is None else axes)):
        name = "sum"
    else:
        name = m.rng.choice(list(REDUCE))
    build, noisy = REDUCE[name]
    inexact = noisy and (t.dtype.is_float or name in ("mean", "var", "logsumexp"))
    return m.add(f"{name} {axes} {keep}", [x], lambda t: build(t, axes, keep), noisy=inexact)


def reduce_exact(m: Maker) -> bool:
    x = m.pick(lambda t: _is_number(t) and t.ndim > 0, exact=True)
    if x is None:
        return False
    t = m.tensors[x]
    axis, keep = m.axis(t), m.rng.random() < 0.5
    if m.rng.random() < 0.4 and _low(t.shape[axis]) > 0:
        largest = m.rng.random() < 0.5
        return m.add(
            f"arg {largest} {axis} {keep}",
            [x],
            lambda t: (t.argmax if largest else t.argmin)(axis, keepdims=keep),
        )
    name = m.rng.choice(list(REDUCE_EXACT))
    build = REDUCE_EXACT[name]
    return m.add(f"{name} {axis} {keep}", [x], lambda t: build(t, axis, keep))


# ---------------------------------------------------------------- movement


def movement(m: Maker) -> bool:
    x = m.pick()
    if x is None:
        return False
    t = m.tensors[x]
    if t.ndim == 0:
        return m.add("unsqueeze", [x], lambda t: t.unsqueeze(0))
    kind = m.rng.choice(list(_MOVES))
    made = _MOVES[kind](m, t)
    if made is None:
        return False
    label, build = made
    return m.add(label, [x], build)


def _permute(m: Maker, t: Tensor) -> tuple[str, Build]:
    axes = m.rng.sample(range(t.ndim), t.ndim)
    return f"permute {axes}", lambda t: t.permute(*axes)


def _slice(m: Maker, t: Tensor) -> tuple[str, Build]:
    axis = m.axis(t)
    low = _low(t.shape[axis])
    step = m.rng.choice((1, 1, 2, 3, -1, -2, -3))
    if m.rng.random() < 0.4 or low == 0:
        key: Any = slice(None, None, step)
    else:
        a, b = sorted(m.rng.randint(0, low) for _ in range(2))
        key = slice(a, b, step) if step > 0 else slice(b - 1 if b else 0, a, step)
    place = (slice(None),) * (axis % t.ndim)
    return f"slice axis {axis} {key}", lambda t: t[(*place, key)]


def _select(m: Maker, t: Tensor) -> tuple[str, Build] | None:
    axis = m.rng.randrange(t.ndim)
    low = _low(t.shape[axis])
    if low == 0:
        return None
    i = m.rng.randrange(-low, low)
    place = (slice(None),) * axis
    return f"select axis {axis} {i}", lambda t: t[(*place, i)]


def _pad(m: Maker, t: Tensor) -> tuple[str, Build]:
    widths = [(m.rng.choice((0, 0, 1, 3)), m.rng.choice((0, 0, 1, 2))) for _ in range(t.ndim)]
    fill = m.rng.choice((0, 1)) if t.dtype.name == "bool" else m.rng.choice((0, 1, 3))
    return f"pad {widths} with {fill}", lambda t: t.pad(widths, fill)


def _merge(m: Maker, t: Tensor) -> tuple[str, Build]:
    a = m.rng.randrange(t.ndim)
    b = m.rng.randrange(a, t.ndim)
    return f"flatten {a} {b}", lambda t: t.flatten(a, b)


def _split(m: Maker, t: Tensor) -> tuple[str, Build] | None:
    axes = [(a, f) for a, d in enumerate(t.shape) if isinstance(d, int) for f in (2, 3, 8)
            if d and d % f == 0]  # fmt: skip
    if not axes:
        return None
    a, f = m.rng.choice(axes)
    outer = m.rng.random() < 0.5
    return f"unflatten {a} by {f}", lambda t: t.unflatten(
        a, (f, t.shape[a] // f) if outer else (t.shape[a] // f, f)
    )


def _mask(m: Maker, t: Tensor) -> tuple[str, Build] | None:
    if t.ndim < 2:
        return None
    offset = m.rng.randint(-2, 2)
    lower = m.rng.random() < 0.5
    return f"tri {lower} {offset}", lambda t: (t.tril if lower else t.triu)(offset)


def _diagonal(m: Maker, t: Tensor) -> tuple[str, Build] | None:
    return None if t.ndim < 2 or t.shape[0] != t.shape[1] else ("diag", lambda t: t.diagonal())


def _with_axis(name: str, build: Build) -> Callable[[Maker, Tensor], tuple[str, Build]]:
    def make(m: Maker, t: Tensor) -> tuple[str, Build]:
        axis = m.axis(t)
        return f"{name} axis {axis}", lambda t: build(t, axis)

    return make


_MOVES: dict[str, Callable[[Maker, Tensor], tuple[str, Build] | None]] = {
    "permute": _permute, "slice": _slice, "slice_again": _slice, "select": _select, "pad": _pad,
    "merge": _merge, "split": _split, "mask": _mask, "diagonal": _diagonal,
    "flip": _with_axis("flip", lambda t, a: t.flip(a)),
    "roll": _with_axis("roll", lambda t, a: t.roll(2, a)),
    "repeat": _with_axis("repeat", lambda t, a: t.repeat(2, a)),
    "stack": _with_axis("stack", lambda t, a: Tensor.stack([t, t, t], a)),
    "unsqueeze": _with_axis("unsqueeze", lambda t, a: t.unsqueeze(a)),
    "tile": lambda m, t: ("tile", lambda t: t.tile(2)),
    "stretch": lambda m, t: ("stretch", lambda t: t.unsqueeze(0).expand(3, *t.shape)),
}  # fmt: skip


def concat(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0)
    if x is None:
        return False
    t = m.tensors[x]
    axis = m.rng.randrange(t.ndim)

    def fits(u: Tensor) -> bool:
        return u.ndim == t.ndim and all(
            p == q for d, (p, q) in enumerate(zip(t.shape, u.shape, strict=True)) if d != axis
        )

    others = [i for _ in range(m.rng.randint(1, 2)) if (i := m.pick(fits)) is not None]
    parts = [x, *others]
    m.rng.shuffle(parts)
    return m.add(f"concat axis {axis}", parts, lambda *ts: Tensor.concat(list(ts), axis))


# ---------------------------------------------------------------- indices


def take(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0)
    if x is None:
        return False
    t = m.tensors[x]
    axis = m.rng.randrange(t.ndim)
    low = _low(t.shape[axis])
    if low == 0:
        return False
    shape = m.rng.choice([(1,), (4,), (2, 3), (17,), (0,)])
    index = np.array(
        [m.rng.randrange(-low, low) for _ in range(int(np.prod(shape)))], np.int64
    ).reshape(shape)
    dtype = m.rng.choice(("int64", "int32", "int8"))
    place = (slice(None),) * axis
    if m.rng.random() < 0.5:
        return m.add(f"take axis {axis}", [x], lambda t: t.take(index.astype(dtype), axis))
    return m.add(f"x[..., {shape}] axis {axis}", [x], lambda t: t[(*place, index)])


def take_computed(m: Maker) -> bool:
    """Indices that are themselves computed, wrapped into range by a modulo."""
    x = m.pick(lambda t: t.ndim > 0)
    i = m.pick(lambda t: t.dtype.is_integer and t.dtype.bits >= 16 and t.ndim <= 2, exact=True)
    if x is None or i is None:
        return False
    t = m.tensors[x]
    axis = m.rng.randrange(t.ndim)
    low = _low(t.shape[axis])
    if low == 0:
        return False
    return m.add(f"take axis {axis} at % {low}", [x, i], lambda t, i: t.take(i % low, axis))


def take_along(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0 and _is_number(t) and all(_low(d) for d in t.shape), exact=True)
    if x is None:
        return False
    axis = m.axis(m.tensors[x])
    return m.add(
        f"take_along own argsort {axis}", [x], lambda t: t.take_along_axis(t.argsort(axis), axis)
    )


def scatter(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0 and _is_number(t))
    if x is None:
        return False
    t = m.tensors[x]
    low = _low(t.shape[0])
    if low == 0:
        return False
    index = np.array([m.rng.randrange(low) for _ in range(m.rng.randint(1, 5))])
    if m.rng.random() < 0.5:
        return m.add(
            f"index_add {index.tolist()}",
            [x],
            lambda t: t.index_add(0, index, (t[0:1] * 0 + 1).expand(len(index), *t.shape[1:])),
            noisy=t.dtype.is_half,
        )

    def assign(t: Tensor) -> Tensor:
        result = t + 0
        result[index] = t[0] * 2
        return result

    return m.add(f"setitem {index.tolist()}", [x], assign)


def set_slice(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0 and _is_number(t))
    if x is None or _low(m.tensors[x].shape[0]) < 2:
        return False
    low = _low(m.tensors[x].shape[0])
    start = m.rng.randrange(low - 1)
    step = m.rng.choice((1, 2, -1))
    key = slice(start, low, step) if step > 0 else slice(low - 1, start, step)

    def assign(t: Tensor) -> Tensor:
        result = t + 0
        result[key] = t[start] * 3
        return result

    return m.add(f"set slice {key}", [x], assign)


# ---------------------------------------------------------------- the heavier ones


def matmul(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim >= 2 and t.dtype.is_float)
    if x is None:
        return False
    small = lambda t: t.clip(-3, 3)  # noqa: E731
    if m.rng.random() < 0.5:
        return m.add("x @ x.mT", [x], lambda t: small(t) @ small(t).mT, noisy=True)
    t = m.tensors[x]
    y = m.pick(lambda u: u.ndim in (1, 2) and u.dtype == t.dtype and u.shape[0] == t.shape[-1])
    if y is None:
        return False
    return m.add("x @ y", [x, y], lambda t, u: small(t) @ small(u), noisy=True)


def linear(m: Maker) -> bool:
    """A product with constant weights, which the compiler may rearrange beforehand."""
    x = m.pick(lambda t: t.ndim >= 1 and t.dtype.is_float and isinstance(t.shape[-1], int))
    if x is None:
        return False
    depth = int(m.tensors[x].shape[-1])  # type: ignore[arg-type]
    width = m.rng.choice((1, 3, 16, 33, 70))
    rng = np.random.default_rng(m.rng.randrange(1 << 30))
    dtype = m.tensors[x].dtype.numpy
    weight = np.asarray(rng.integers(-4, 5, (depth, width)) / 8).astype(dtype)
    bias = np.asarray(rng.integers(-4, 5, width) / 8).astype(dtype)
    kind = m.rng.choice(("plain", "bias", "transposed", "relu"))
    builds: dict[str, Build] = {
        "plain": lambda t: t.clip(-3, 3) @ Tensor(weight),
        "bias": lambda t: t.clip(-3, 3) @ Tensor(weight) + Tensor(bias),
        "transposed": lambda t: t.clip(-3, 3) @ Tensor(np.ascontiguousarray(weight.T)).T,
        "relu": lambda t: (t.clip(-3, 3) @ Tensor(weight) + Tensor(bias)).relu(),
    }
    return m.add(f"linear {kind} to {width}", [x], builds[kind], noisy=True)


def experts(m: Maker) -> bool:
    """Each row times the matrix that a computed id names; matrices constant or computed."""
    x = m.pick(lambda t: t.ndim == 2 and t.dtype.is_float and isinstance(t.shape[-1], int))
    if x is None:
        return False
    depth = int(m.tensors[x].shape[-1])  # type: ignore[arg-type]
    width, count, repeat = m.rng.choice((1, 3, 33, 70)), m.rng.randint(1, 5), m.rng.randint(1, 3)
    rng = np.random.default_rng(m.rng.randrange(1 << 30))
    dtype = m.tensors[x].dtype.numpy
    weight = np.asarray(rng.integers(-4, 5, (count, depth, width)) / 8).astype(dtype)
    stride = m.rng.choice((1, 3, 7))
    computed = m.rng.random() < 0.5 and _low(m.tensors[x].shape[0]) > 0

    def build(t: Tensor) -> Tensor:
        rows = t.shape[0]
        ids = (Tensor.arange(rows * repeat) * stride // 2 % count).reshape(rows, repeat)
        matrices = Tensor(weight) + t[:1, :1] * 0 if computed else Tensor(weight)
        picked = ids if repeat > 1 else ids.reshape(rows)
        return (t.clip(-3, 3).grouped_matmul(matrices, picked) + 1).relu()

    return m.add(f"{count} experts to {width}, {repeat} each", [x], build, noisy=True)


#: How an operand of a contraction is seen; the axes that are contracted stay.
VIEWS: dict[str, Build] = {
    "as it is": lambda t: t, "turned twice": lambda t: t.mT.flip(-1).mT,
    "flipped rows": lambda t: t.flip(-2), "flipped columns": lambda t: t.flip(-1),
    "shifted": lambda t: t.roll(1, -1), "stored turned": lambda t: (t.mT + 0).mT,
    "in a batch": lambda t: t.unsqueeze(0).expand(2, *t.shape),
    "padded and cut": lambda t: t.pad([(0, 0)] * (t.ndim - 1) + [(2, 1)])[..., 2:-1],
}  # fmt: skip
EPILOGUES: dict[str, Build] = {
    "nothing": lambda y: y, "relu": lambda y: y.relu(), "gelu": lambda y: y.clip(-9, 9).gelu(),
    "scaled": lambda y: y * 0.25 + 1, "row sums": lambda y: y - y.mean(-1, keepdims=True),
    "turned": lambda y: y.mT, "squared": lambda y: y.clip(-30, 30) * y.clip(-30, 30),
    "residual": lambda y: y + y.flip(-1) * 0.5, "softmax": lambda y: y.clip(-9, 9).softmax(-1),
    "half": lambda y: y.clip(-999, 999).cast("float16").cast(y.dtype),
}  # fmt: skip


def contraction(m: Maker) -> bool:
    """A matmul of views, halves among them, with something behind it."""
    x = m.pick(lambda t: t.ndim >= 2 and t.dtype.is_float)
    if x is None:
        return False
    t = m.tensors[x]
    turned = m.rng.random() < 0.5
    y = m.pick(
        lambda u: u.ndim >= 2 and u.dtype.is_float and u.shape[-1 if turned else -2] == t.shape[-1]
    )
    if y is None:
        return False
    left, right, behind = (m.rng.choice(list(table)) for table in (VIEWS, VIEWS, EPILOGUES))
    if _low(t.shape[-2]) == 0 or any(_low(d) == 0 for d in m.tensors[y].shape):
        behind = "relu"

    def build(t: Tensor, u: Tensor) -> Tensor:
        a, b = VIEWS[left](t.clip(-3, 3)), VIEWS[right](u.clip(-3, 3))
        return EPILOGUES[behind](a @ (b.mT if turned else b))

    halves = "float16" if behind == "half" else True
    return m.add(f"{left} @ {right} {turned}, {behind}", [x, y], build, noisy=halves)


def _spatial(m: Maker) -> tuple[int, Build, list[Dim]] | None:
    """A value as [N, C, space...]: which, how, and its shape then."""
    x = m.pick(lambda t: t.dtype.is_float and 2 <= t.ndim <= 5)
    if x is None:
        return None
    t = m.tensors[x]
    if t.ndim == 2 or (t.ndim < 5 and m.rng.random() < 0.3):
        return x, lambda t: t.clip(-3, 3).unsqueeze(0), [1, *t.shape]
    if m.rng.random() < 0.3:
        return x, lambda t: t.clip(-3, 3).swapaxes(1, -1), list(t.swapaxes(1, -1).shape)
    return x, lambda t: t.clip(-3, 3), list(t.shape)


def _sliding(m: Maker, space: Sequence[Dim], kernels: Sequence[int]) -> dict[str, Any] | None:
    """A window that fits at every size."""
    count = len(space)
    kernel = [m.rng.choice(kernels) for _ in range(count)]
    dilation = [m.rng.choice((1, 1, 1, 2)) for _ in range(count)]
    padding: Any = [(m.rng.randrange(k), m.rng.randrange(k)) for k in kernel]
    for size, k, d, pads in zip(space, kernel, dilation, padding, strict=True):
        if _low(size) + sum(pads) < (k - 1) * d + 1:
            return None
    # "same" pads for ceil(size / stride) windows: none on an empty axis, where not even one fits.
    if m.rng.random() < 0.25 and all(_low(size) > 0 for size in space):
        padding = m.rng.choice(("same", "same_lower"))
    stride = [m.rng.choice((1, 1, 2, 3)) for _ in range(count)]
    return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}


def _leaves_something(space: Sequence[Dim], kernel: Sequence[int], window: dict[str, Any]) -> bool:
    """Whether the padding of a transposed convolution takes away less than all."""
    if isinstance(window["padding"], str):
        return False
    rows = zip(space, kernel, window["stride"], window["dilation"], window["padding"], strict=True)
    return all((_low(n) - 1) * s + (k - 1) * d + 1 > sum(p) for n, k, s, d, p in rows)


def convolution(m: Maker) -> bool:
    """Any groups, strides, dilations and pads, with bias and activation, plain or transposed."""
    found = _spatial(m)
    if found is None:
        return False
    x, view, (_, channels, *space) = found
    window = _sliding(m, space, (1, 2, 3, 3, 5))
    if window is None or not isinstance(channels, int) or channels == 0:
        return False
    groups = m.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    wide = groups * m.rng.choice((1, 1, 2, 5, 16))
    rng = np.random.default_rng(m.rng.randrange(1 << 30))
    dtype = m.tensors[x].dtype.numpy
    kernel = window.pop("kernel")
    transposed = m.rng.random() < 0.25 and _leaves_something(space, kernel, window)
    shape = (channels, wide // groups) if transposed else (wide, channels // groups)
    weight = np.asarray(rng.integers(-4, 5, (*shape, *kernel)) / 8).astype(dtype)
    bias = np.asarray(rng.integers(-4, 5, wide) / 8).astype(dtype) if m.rng.random() < 0.5 else None
    behind = m.rng.choice(("nothing", "relu", "gelu", "scaled"))

    def build(t: Tensor) -> Tensor:
        seen = view(t)
        call = seen.conv_transpose if transposed else seen.conv
        return EPILOGUES[behind](call(weight, bias, groups=groups, **window))

    label = f"conv{'_transpose' * transposed} {weight.shape} groups {groups} {window} {behind}"
    return m.add(label, [x], build, noisy=True)


def pool(m: Maker) -> bool:
    found = _spatial(m)
    if found is None:
        return False
    x, view, (_, _, *space) = found
    window = _sliding(m, space, (1, 2, 3, 3, 7))
    if window is None:
        return False
    how = m.rng.choice(("max", "avg", "avg", "lp"))
    window["ceil_mode"] = m.rng.random() < 0.3
    if how == "avg":
        window["count_include_pad"] = m.rng.random() < 0.5
    if how != "max" and any(_low(d) == 0 for d in space):
        return False

    def build(t: Tensor) -> Tensor:
        result: Tensor = getattr(view(t), f"{how}_pool")(**window)
        return result

    return m.add(f"{how}_pool {window}", [x], build, noisy=how != "max")


def attention(m: Maker) -> bool:
    def fits(t: Tensor) -> bool:
        # Without fusion the scores are stored: rows times rows.
        rows = upper_bound(t.shape[-2]) if t.ndim >= 2 else None
        return rows is not None and rows <= 1024 and all(_low(d) for d in t.shape)

    x = m.pick(lambda t: t.dtype.is_float and fits(t))
    if x is None:
        return False
    causal = m.rng.random() < 0.5
    kind = m.rng.choice(("function", "by hand", "permuted", "masked", "masked"))
    label, mask = random_mask(m.rng)
    added = m.rng.random() < 0.5

    def build(t: Tensor) -> Tensor:
        q = t.clip(-3, 3)
        if kind == "function":
            return q.scaled_dot_product_attention(q, q.flip(-2), is_causal=causal)
        scores = (q @ q.mT) * 0.25
        if kind == "masked":
            shown = mask(t.shape[-2], t.shape[-2])
            hidden = scores + Tensor.where(shown, 0.0, -np.inf)
            # Rows that see nothing are NaN, which would hide the rest of the program.
            weights = (hidden if added else Tensor.where(shown, scores, -np.inf)).softmax(-1)
            return Tensor.where(weights.isnan(), 0.0, weights) @ q
        if kind == "permuted":
            return scores.softmax(-1) @ q.flip(-1) + q
        return (scores + 0.5).softmax(-1) @ q

    shown_as = f"{label}{' added' * added}" if kind == "masked" else causal
    return m.add(f"attention {kind} {shown_as}", [x], build, noisy=True)


def integer_matmul(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim == 2 and t.dtype.is_integer, exact=True)
    return x is not None and m.add("int x @ x.T", [x], lambda t: t @ t.T)


def scan(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0 and _is_number(t))
    if x is None:
        return False
    t = m.tensors[x]
    axis = m.axis(t)
    kind = m.rng.choice(("cumsum", "exclusive", "cummax", "cummin", "cumprod"))
    builds: dict[str, Build] = {
        "cumsum": lambda t: t.cumsum(axis),
        "exclusive": lambda t: t.cumsum(axis, exclusive=True),
        "cummax": lambda t: t.cummax(axis),
        "cummin": lambda t: t.cummin(axis),
        "cumprod": lambda t: t.clip(0, 2).cumprod(axis),
    }
    noisy = t.dtype.is_float and kind in ("cumsum", "exclusive", "cumprod")
    return m.add(f"{kind} {axis}", [x], builds[kind], noisy=noisy)


#: Two states, the row of this step and that of the mirrored one --> next states, a value.
BODIES: dict[str, Callable[[Any, Any, Any, Any], tuple[Any, Any, Any]]] = {
    "decay": lambda a, b, x, y: (a * 0.5 + x, b * 0.25 - y, a + b),
    "swap": lambda a, b, x, y: (b, a, a.maximum(x)),
    "extremes": lambda a, b, x, y: (a.maximum(x), b.minimum(y), x),
    "squash": lambda a, b, x, y: ((a + x).tanh(), (b * x.clip(-2, 2)).sin() + a, b),
    "rows": lambda a, b, x, y: (x - a.mean() * 0.5, b.maximum(a.sum() * 0.01), b + x),
    "turned": lambda a, b, x, y: (a.flip(-1) * 0.5 + x, b + a.flip(0) * 0.1, a),
    "unused": lambda a, b, x, y: (y, b + 1, x.cumsum(-1).clip(-9, 9)),
}  # fmt: skip
#: These give the same bits everywhere, if their operand does.
EXACT_BODIES = ("swap", "extremes")


def recurrence(m: Maker) -> bool:
    """Two results of one loop over the first axis; its reference is slow, so it is short."""
    x = m.pick(lambda t: t.ndim > 1 and t.dtype.is_float and (upper_bound(t.shape[0]) or 99) < 50)
    if x is None:
        return False
    name, turned = m.rng.choice(list(BODIES)), m.rng.random() < 0.5

    def results(t: Tensor) -> list[Tensor]:
        trip = t.shape[0]

        def body(step: Any, states: tuple[Tensor, ...]) -> Any:
            a, b, value = BODIES[name](states[0], states[1], t[step], t[trip - 1 - step])
            return [a, b], [value]

        start = [
            Tensor.zeros(*t.shape[1:], dtype=t.dtype),
            Tensor.ones(*t.shape[1:], dtype=t.dtype),
        ]
        finals, stacked = Tensor.loop(trip, start, body, backward=[turned])
        return [*finals, *stacked]

    noisy = name not in EXACT_BODIES
    first, second = m.rng.sample(range(3), 2)
    label = f"loop {name}{' backward' if turned else ''} result"
    added = m.add(f"{label} {first}", [x], lambda t: results(t)[first], noisy=noisy)
    return added and m.add(f"{label} {second}", [x], lambda t: results(t)[second], noisy=noisy)


def order(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0 and _is_number(t), exact=True)
    if x is None:
        return False
    t = m.tensors[x]
    axis, down = m.axis(t), m.rng.random() < 0.5
    low = _low(t.shape[axis])
    kind = m.rng.choice(("sort", "argsort", "topk_values", "topk_indices"))
    if kind == "sort":
        return m.add(f"sort {axis} {down}", [x], lambda t: t.sort(axis, descending=down))
    if kind == "argsort":
        return m.add(f"argsort {axis} {down}", [x], lambda t: t.argsort(axis, descending=down))
    if low == 0:
        return False
    k, which = m.rng.randint(1, low), int(kind == "topk_indices")
    return m.add(f"{kind} {k} {axis} {down}", [x], lambda t: t.topk(k, axis, largest=down)[which])


def network(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0 and t.dtype.is_float)
    if x is None:
        return False
    t = m.tensors[x]
    axis = m.axis(t)
    if _low(t.shape[axis]) == 0:
        return False
    builds: dict[str, Build] = {
        "softmax": lambda t: t.clip(-9, 9).softmax(axis),
        "log_softmax": lambda t: t.clip(-9, 9).log_softmax(axis),
        # A large eps, so that a constant row does not blow up the last bits.
        "norm": lambda t: t.clip(-9, 9).layer_norm(axis, eps=0.1),
        "rms": lambda t: t.clip(-9, 9).rms_norm(axis, eps=0.1),
    }
    name = m.rng.choice(list(builds))
    return m.add(f"{name} {axis}", [x], builds[name], noisy=True)


def random_numbers(m: Maker) -> bool:
    x = m.pick(lambda t: t.dtype.is_float)
    if x is None:
        return False
    key = m.rng.randrange(1 << 40)
    if m.rng.random() < 0.5:
        return m.add("plus rand", [x], lambda t: t + Tensor.rand(t.shape, key=Tensor.key(key)))
    return m.add("dropout", [x], lambda t: t.dropout(0.5, key=Tensor.key(key)))


def from_nothing(m: Maker) -> bool:
    x = m.pick(lambda t: t.ndim > 0)
    if x is None:
        return False
    axis = m.rng.randrange(m.tensors[x].ndim)
    if m.rng.random() < 0.5:
        return m.add(f"arange axis {axis}", [x], lambda t: Tensor.arange(t.shape[axis]))
    return m.add(f"size axis {axis}", [x], lambda t: Tensor.zeros(()) + t.shape[axis])


#: Step -> how often it is tried.
STEPS: dict[Callable[[Maker], bool], int] = {
    unary: 5, discontinuous: 1, smooth: 5, binary: 14, rearranged: 8, binary_exact: 2, bits: 2,
    where: 2, cast: 2, reduce: 12, reduce_exact: 2, movement: 14, concat: 3, take: 2,
    take_computed: 2, take_along: 1, scatter: 1, set_slice: 1, matmul: 4, linear: 3,
    experts: 2, contraction: 4, convolution: 5, pool: 3, attention: 3, integer_matmul: 1,
    scan: 2, order: 2, network: 4, random_numbers: 1, from_nothing: 1, recurrence: 2,
}  # fmt: skip


def make_program(rng: Random, max_steps: int = 12, scale: Scale = SMALL) -> Program:
    """A program of some inputs and up to `max_steps` steps, with several outputs."""
    m = Maker(rng, scale)
    base = m.random_shape()
    main = rng.choice(DTYPES)
    for _ in range(rng.randint(1, 3)):
        shape = base if rng.random() < 0.6 else m.random_shape()
        m.input(shape, main if rng.random() < 0.7 else rng.choice(DTYPES))
    steps, weights = list(STEPS), list(STEPS.values())
    wanted = rng.randint(2, max_steps)
    for _ in range(6 * max_steps):
        if len(m.program.steps) >= wanted:
            break
        rng.choices(steps, weights)[0](m)
    m.program.outputs = _choose_outputs(m)
    return m.program


def _choose_outputs(m: Maker) -> list[int]:
    """What nobody uses, and sometimes what somebody uses, too."""
    first, count = len(m.program.inputs), len(m.tensors)
    used = {i for step in m.program.steps for i in step.operands}
    free = [i for i in range(first, count) if i not in used][-4:]
    shared = [i for i in range(first, count) if i in used and m.rng.random() < 0.15][:2]
    outputs = [*free, *shared] or [count - 1]
    m.rng.shuffle(outputs)
    return outputs
