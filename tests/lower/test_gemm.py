"""Products of matrices against float64, with the error that K roundings allow and no more.

An element is a chain of K fused multiply-adds, so its error is at most gamma_K times the sum
of the absolute products, gamma_K = K*u / (1 - K*u) with the unit roundoff u of the
accumulator; halves accumulate in float32 and round once more at the end. Shapes, layouts, epilogues
and threads vary; the bits may not vary with threads, nor with a size being a variable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tests.codegen.lowering import lower_with_weights

import semel
from semel import Tensor, Variable
from semel.ir.expr import Dim
from semel.ir.target import named_target
from semel.ir.types import as_dtype
from semel.kernel import ir
from semel.kernel.ir import statement_values, walk_statements, walk_values
from semel.plan.plan import ExecutionPlan

Array = np.ndarray[Any, Any]
Wide = np.longdouble

LARGEST = 70
#: Half the distance of 1 to the next number, and half the smallest number.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float64": 0.0, "float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}
DTYPES = tuple(UNIT)


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


# --------------------------------------------------------------------------- layouts


@dataclass(frozen=True)
class View:
    """A matrix of `rows` x `columns` as a view of something else, the same in both libraries."""

    source: Callable[[Any, Any], tuple[Any, ...]]
    take: Callable[[Any, Any, Any], Any]


VIEWS = {
    "plain": View(lambda r, c: (r, c), lambda x, r, c: x),
    "transposed": View(lambda r, c: (c, r), lambda x, r, c: x.T),
    "every second row": View(lambda r, c: (2 * r, c), lambda x, r, c: x[::2]),
    "every third column": View(lambda r, c: (r, 3 * c), lambda x, r, c: x[:, ::3]),
    "offset": View(lambda r, c: (r + 3, c + 2), lambda x, r, c: x[3:, 2:]),
    "offset and transposed": View(lambda r, c: (c + 1, r + 5), lambda x, r, c: x[1:, 5:].T),
    "backwards": View(lambda r, c: (r, c), lambda x, r, c: x[::-1]),
    "one row for all": View(lambda r, c: (1, c), lambda x, r, c: broadcast(x, (r, c))),
    "one column for all": View(lambda r, c: (r, 1), lambda x, r, c: broadcast(x, (r, c))),
    "out of three axes": View(lambda r, c: (2, c, r), lambda x, r, c: x[1].T),
}


def broadcast(x: Any, shape: tuple[Any, ...]) -> Any:
    return x.broadcast_to(shape) if isinstance(x, Tensor) else np.broadcast_to(x, shape)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.standard_normal(shape).astype(as_dtype(dtype).numpy)


# ---------------------------------------------------------------------------- bounds


def check(found: Array, left: Array, right: Array, dtype: str) -> None:
    """`found` is left @ right, up to what the accumulator may lose."""
    exact, bound = product_and_bound(left, right, dtype)
    assert found.shape == exact.shape
    error = np.abs(found.astype(Wide) - exact)
    assert np.all(error <= bound), f"{float(np.max(error - bound))} beyond the bound"


def product_and_bound(left: Array, right: Array, dtype: str) -> tuple[Array, Array]:
    a, b = left.astype(Wide), right.astype(Wide)
    exact = np.asarray(a @ b)
    sums = np.asarray(np.abs(a) @ np.abs(b))
    depth = left.shape[-1]
    unit = UNIT["float64" if dtype == "float64" else "float32"]
    chain = depth * unit / (1 - depth * unit) * sums
    # The reference has 64 bits itself, of which a chain of adds loses some.
    chain = chain + depth * float(np.finfo(Wide).eps) * sums
    if as_dtype(dtype).is_half:
        chain = chain + UNIT[dtype] * (np.abs(exact) + chain) + TINY[dtype]
    return exact, chain


def run(plans: Mapping[int, ExecutionPlan], inputs: Mapping[str, Array]) -> Array:
    """The result of one thread, which two threads give too."""
    results = {n: plan(**inputs) for n, plan in plans.items()}
    first, *others = results.values()
    assert all(other.tobytes() == first.tobytes() for other in others)
    return np.asarray(first)


def on_threads(output: Tensor) -> dict[int, ExecutionPlan]:
    return {threads: output.prepare(threads=threads, tune=False) for threads in (1, 2)}


# ------------------------------------------------------------------------- any shape

sizes = st.integers(0, LARGEST)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_has_teeth(dtype: str) -> None:
    """It is some hundred units in the last place, and a product left out is beyond it."""
    rng = np.random.default_rng(1)
    a, b = random(rng, (9, 64), dtype), random(rng, (64, 33), dtype)
    exact, bound = product_and_bound(a, b, dtype)
    assert float(np.median(bound / np.abs(exact))) < 1000 * UNIT[dtype]
    with pytest.raises(AssertionError, match="beyond the bound"):
        check(np.asarray(exact - a[:, :1].astype(Wide) * b[:1].astype(Wide)), a, b, dtype)


@seed(41)
@examples(60)
@given(
    shape=st.tuples(sizes, sizes, sizes),
    left=st.sampled_from(list(VIEWS)),
    right=st.sampled_from(list(VIEWS)),
    dtype=st.sampled_from(DTYPES),
    is_constant=st.booleans(),
)
def test_any_shape_and_layout(
    shape: tuple[int, int, int], left: str, right: str, dtype: str, is_constant: bool
) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * 5041 + k * 71 + n)
    a = random(rng, VIEWS[left].source(m, k), dtype)
    b = random(rng, VIEWS[right].source(k, n), dtype)
    x = VIEWS[left].take(Tensor.input("a", a.shape, dtype), m, k)
    y = Tensor(b) if is_constant else Tensor.input("b", b.shape, dtype)
    y = VIEWS[right].take(y, k, n)
    inputs = {"a": a} if is_constant else {"a": a, "b": b}
    found = run(on_threads(x @ y), inputs)
    check(found, VIEWS[left].take(a, m, k), VIEWS[right].take(b, k, n), dtype)


@pytest.mark.parametrize("columns", [1, 15, 31, 32, 33, 64, 70])
def test_every_number_of_rows(columns: int) -> None:
    """All rests of the row blocks, in one plan; a constant right operand is packed."""
    m = Variable("m", 0, LARGEST)
    rng = np.random.default_rng(columns)
    b = random(rng, (13, columns), "float32")
    plans = on_threads(Tensor.input("a", (m, 13)) @ Tensor(b))
    for rows in range(LARGEST + 1):
        a = random(rng, (rows, 13), "float32")
        check(run(plans, {"a": a}), a, b, "float32")


@pytest.mark.parametrize("is_constant", [True, False], ids=["packed", "as it lies"])
@pytest.mark.parametrize("columns", [5, 33, 48, 64, 70, 130])
def test_a_row_has_the_bits_that_it_has_among_others(columns: int, is_constant: bool) -> None:
    """One row passes several panels at once, a few rows one, many rows another kind of tile."""
    m = Variable("m", 0, 9)
    rng = np.random.default_rng(columns)
    a, b = random(rng, (9, 37), "float32"), random(rng, (37, columns), "float32")
    right = Tensor(b) if is_constant else Tensor.input("b", b.shape)
    given = {} if is_constant else {"b": b}
    plans = on_threads(Tensor.input("a", (m, 37)) @ right)
    every = run(plans, {"a": a, **given})
    for rows in (1, 2, 4, 5):
        assert run(plans, {"a": a[:rows], **given}).tobytes() == every[:rows].tobytes()
    known = on_threads(Tensor.input("a", (1, 37)) @ right)
    assert run(known, {"a": a[:1], **given}).tobytes() == every[:1].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("left", "right"),
    [("plain", "plain"), ("transposed", "offset"), ("every second row", "transposed")],
)
def test_all_sizes_are_variables(dtype: str, left: str, right: str) -> None:
    m, k, n = (Variable(name, 0, LARGEST) for name in "mkn")
    x = VIEWS[left].take(Tensor.input("a", VIEWS[left].source(m, k), dtype), m, k)
    y = VIEWS[right].take(Tensor.input("b", VIEWS[right].source(k, n), dtype), k, n)
    plans = on_threads(x @ y)
    rng = np.random.default_rng(5)
    shapes = [tuple(int(v) for v in rng.integers(0, LARGEST + 1, 3)) for _ in range(25)]
    shapes += [(0, 7, 9), (7, 0, 9), (7, 9, 0), (1, 1, 1), (1, LARGEST, LARGEST)]
    for position, (rows, depth, columns) in enumerate(shapes):
        a = random(rng, VIEWS[left].source(rows, depth), dtype)
        b = random(rng, VIEWS[right].source(depth, columns), dtype)
        found = run(plans, {"a": a, "b": b})
        check(found, VIEWS[left].take(a, rows, depth), VIEWS[right].take(b, depth, columns), dtype)
        if position < 3 and columns != 1:  # fixed at one column it is a sum of products
            p = VIEWS[left].take(Tensor.input("a", a.shape, dtype), rows, depth)
            q = VIEWS[right].take(Tensor.input("b", b.shape, dtype), depth, columns)
            assert (p @ q).prepare(tune=False)(a=a, b=b).tobytes() == found.tobytes()


BATCHES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "equal": ((3,), (3,)),
    "right shared": ((3,), ()),
    "left shared": ((), (3,)),
    "stretched": ((3, 1), (1, 2)),
    "one": ((1,), (4,)),
    "none": ((0,), (0,)),
}


@seed(42)
@examples(40)
@given(
    shape=st.tuples(*[st.integers(0, 40)] * 3),
    batch=st.sampled_from(list(BATCHES)),
    turned=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(DTYPES),
    is_variable=st.booleans(),
)
def test_batches_are_matched_and_stretched(
    shape: tuple[int, int, int],
    batch: str,
    turned: tuple[bool, bool],
    dtype: str,
    is_variable: bool,
) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * 1681 + k * 41 + n)
    first, second = BATCHES[batch]
    a = random(rng, (*first, *((k, m) if turned[0] else (m, k))), dtype)
    b = random(rng, (*second, *((n, k) if turned[1] else (k, n))), dtype)
    count: Dim = Variable("batch", 0, 5) if is_variable and batch == "equal" else 3

    def symbol(name: str, array: Array, lead: tuple[int, ...]) -> Tensor:
        dims = [count if d == 3 and batch == "equal" else d for d in lead]
        return Tensor.input(name, (*dims, *array.shape[-2:]), dtype)

    x, y = symbol("a", a, first), symbol("b", b, second)
    x, y = (x.mT if turned[0] else x), (y.mT if turned[1] else y)
    found = run(on_threads(x @ y), {"a": a, "b": b})
    p, q = (a.swapaxes(-1, -2) if turned[0] else a), (b.swapaxes(-1, -2) if turned[1] else b)
    check(found, p, q, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [1000, 4097])
def test_deep_sums_keep_to_the_bound(dtype: str, depth: int) -> None:
    rng = np.random.default_rng(depth)
    a, b = random(rng, (7, depth), dtype), random(rng, (depth, 37), dtype)
    for y in (Tensor(b), Tensor.input("b", b.shape, dtype)):
        plans = on_threads(Tensor.input("a", a.shape, dtype) @ y)
        inputs = {"a": a, "b": b} if "b" in plans[1].inputs else {"a": a}
        check(run(plans, inputs), a, b, dtype)


def test_heads_that_lie_apart_are_short_loops_over_k() -> None:
    """A loop of few k is no word of narrow weights; hints for what comes next stand around it."""
    n = Variable("n", 1, 4096)
    x = Tensor.input("x", (2, 8, n, 15))
    w = np.random.default_rng(2).standard_normal((120, 360)).astype(np.float32)
    plan = (x.softmax(-1).permute(0, 2, 1, 3).reshape(2, n, 120) @ w).prepare(threads=1)
    data = np.random.default_rng(3).standard_normal((2, 8, 40, 15)).astype(np.float32)
    shares = np.exp(data) / np.exp(data).sum(-1, keepdims=True)
    want = shares.transpose(0, 2, 1, 3).reshape(2, 40, 120) @ w
    np.testing.assert_allclose(plan(x=data), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_integers_are_exact(dtype: str) -> None:
    m, n = Variable("m", 0, 40), Variable("n", 0, 40)
    plans = on_threads(Tensor.input("a", (m, 19), dtype) @ Tensor.input("b", (19, n), dtype))
    rng = np.random.default_rng(9)
    for rows, columns in ((0, 3), (1, 1), (5, 33), (40, 40), (13, 17)):
        a = rng.integers(0, 2 if dtype == "bool" else 100, (rows, 19)).astype(dtype)
        b = rng.integers(0, 2 if dtype == "bool" else 100, (19, columns)).astype(dtype)
        found = run(plans, {"a": a, "b": b})
        assert np.array_equal(found, a @ b)


# ------------------------------------------------------------------------- epilogues

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "none": (lambda t: t, lambda a: a),
    "relu": (lambda t: t.relu(), lambda a: np.maximum(a, 0)),
    "gelu": (lambda t: t.gelu(), lambda a: a * (1 + erf(a / np.sqrt(Wide(2)))) / 2),
    "silu": (lambda t: t.silu(), lambda a: a / (1 + np.exp(-a))),
    "tanh": (lambda t: t.tanh(), np.tanh),
}
#: No slope of these is steeper, and no function is off by more units in the last place.
STEEPEST, FUNCTION_ULPS = 1.2, 4


def erf(a: Array) -> Array:
    return np.vectorize(math.erf, otypes=[float])(a.astype(float)).astype(Wide)


@dataclass(frozen=True)
class Epilogue:
    """What follows a product, in this order."""

    scale: bool
    bias: bool
    activation: str
    residual: bool
    clamp: bool
    cast: bool
    several: bool

    def tensors(self, y: Tensor, bias: Tensor, residual: Tensor) -> list[Tensor]:
        kept = [y] if self.several else []
        y = y * 0.125 if self.scale else y
        y = y + bias if self.bias else y
        y = ACTIVATIONS[self.activation][0](y)
        y = y + residual if self.residual else y
        y = y.clip(-1.5, 2.0) if self.clamp else y
        return [y.cast("float64") if self.cast else y, *kept]

    def arrays(self, y: Array, bias: Array, residual: Array) -> Array:
        y = y * Wide(0.125) if self.scale else y
        y = y + bias if self.bias else y
        y = ACTIVATIONS[self.activation][1](y)
        y = y + residual if self.residual else y
        return np.clip(y, -1.5, 2.0) if self.clamp else y


def all_epilogues() -> list[Epilogue]:
    flags = itertools.product((False, True), repeat=6)
    return [
        Epilogue(scale, bias, activation, residual, clamp, cast, several)
        for scale, bias, residual, clamp, cast, several in flags
        for activation in ACTIVATIONS
    ]


def pairwise(epilogues: list[Epilogue]) -> list[Epilogue]:
    """A few that hold every pair of settings: fusion decides by pairs of neighbours."""
    kinds = [list(pairs_of(e)) for e in epilogues]
    missing = set(itertools.chain(*kinds))
    chosen = []
    while missing:
        best = max(range(len(epilogues)), key=lambda i: len(missing & set(kinds[i])))
        chosen.append(epilogues[best])
        missing -= set(kinds[best])
    return chosen


def pairs_of(epilogue: Epilogue) -> Any:
    values = [(name, getattr(epilogue, name)) for name in Epilogue.__dataclass_fields__]
    return itertools.combinations(values, 2)


def check_epilogue(
    epilogue: Epilogue, dtype: str, m: int, k: int, n: int, *, is_fixed: bool = False
) -> None:
    """Against the bound; unless `is_fixed`, also a variable number of rows on two threads."""
    rng = np.random.default_rng(m + k + n)
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    bias, residual = random(rng, (n,), dtype), random(rng, (m, n), dtype)
    rows = Variable("m", 1, LARGEST)
    inputs = {"a": a, "residual": residual}
    results = []
    for size, threads in ((m, 1),) if is_fixed else ((m, 1), (rows, 1), (rows, 2)):
        y = Tensor.input("a", (size, k), dtype) @ Tensor(b)
        r = Tensor.input("residual", (size, n), dtype)
        outputs = epilogue.tensors(y, Tensor(bias), r)
        plan = semel.prepare(outputs, threads=threads, tune=False)
        found = plan(**{name: inputs[name] for name in plan.inputs})
        results.append(found if isinstance(found, tuple | list) else [found])
    first, *others = ([f.tobytes() for f in found] for found in results)
    assert all(other == first for other in others)
    exact, bound = product_and_bound(a, b, dtype)
    wanted = epilogue.arrays(exact, bias.astype(Wide), residual.astype(Wide))
    largest = np.abs(exact) + np.abs(bias.astype(Wide)) + np.abs(residual.astype(Wide)) + bound
    steps = 5 + FUNCTION_ULPS
    allowed = STEEPEST * bound + steps * UNIT[dtype] * largest + steps * TINY[dtype]
    assert np.all(np.abs(results[0][0].astype(Wide) - wanted) <= allowed)
    if epilogue.several:
        check(results[0][1], a, b, dtype)


@pytest.mark.parametrize("epilogue", pairwise(all_epilogues()), ids=str)
def test_epilogues_in_pairs(epilogue: Epilogue) -> None:
    check_epilogue(epilogue, "float32", 29, 17, 45)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_epilogue(activation: str) -> None:
    for epilogue in all_epilogues():
        if epilogue.activation == activation:
            check_epilogue(epilogue, "float32", 3, 6, 37, is_fixed=True)


@seed(43)
@examples(10)
@given(
    epilogue=st.sampled_from(all_epilogues()),
    dtype=st.sampled_from(DTYPES),
    shape=st.tuples(*[st.integers(1, LARGEST)] * 3),
)
def test_epilogues_of_any_dtype_and_shape(
    epilogue: Epilogue, dtype: str, shape: tuple[int, int, int]
) -> None:
    check_epilogue(epilogue, dtype, *shape)


def test_pairs_are_all_there() -> None:
    few, every = pairwise(all_epilogues()), all_epilogues()
    assert len(every) == 320 and len(few) < 20
    assert {p for e in few for p in pairs_of(e)} == {p for e in every for p in pairs_of(e)}


@pytest.mark.parametrize("columns", [17, 24, 31, 33, 40, 47, 57, 200, 257])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_last_vector_beside_whole_ones_stores_its_columns_only(
    columns: int, is_constant: bool
) -> None:
    """With what follows, which reads other operands at the same columns."""
    rng = np.random.default_rng(columns)
    a, w = (rng.standard_normal(s, dtype=np.float32) for s in ((29, 37), (37, columns)))
    b, c = (rng.standard_normal(s, dtype=np.float32) for s in ((columns,), (29, columns)))
    x, r = Tensor.input("x", a.shape), Tensor.input("r", c.shape)
    right = Tensor(w) if is_constant else Tensor.input("w", w.shape)
    inputs = {"x": a, "r": c} if is_constant else {"x": a, "r": c, "w": w}
    want = np.maximum(a.astype(np.float64) @ w + b, 0) + c
    plan = ((x @ right + Tensor(b)).relu() + r).prepare()
    np.testing.assert_allclose(plan(**inputs), want, rtol=1e-5, atol=1e-5)


def test_some_columns_are_beside_whole_vectors() -> None:
    """24 columns are two vectors of AVX-512, of which the last has half: no loop of its own."""
    x, w = Tensor.input("x", (12, 64)), Tensor(np.ones((64, 24), np.float32))
    target = named_target("x86-64-v4")
    _, (lowered,) = lower_with_weights([x @ w], target)
    (sums,) = {s.local for s in walk_statements(lowered.kernel.body) if isinstance(s, ir.Declare)}
    assert sums.copies == (6, 2)
    stores = [s for s in walk_statements(lowered.kernel.body) if isinstance(s, ir.Store)]
    assert [s.guard is not None for s in stores] == [False, True]
    loads = [v for s in walk_statements(lowered.kernel.body) for v in statement_values(s)]
    assert not any(v.args for v in walk_values(loads) if v.op == "load")
