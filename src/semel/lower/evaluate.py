"""Nodes to scalar values: what one element of a node is, at one index.

    (Node, index) --Evaluator--> Value (+ Bind and Check statements it relies on)

Elementwise ops become arithmetic, movement ops change the index, leaves and
materialised nodes become loads. Reductions and contractions are not evaluated
here: the loop that computes them tells the evaluator which local holds the
result (`known`). An evaluator serves one loop body; statements it needs stand in
`prelude`, in order. Where an element may not exist (padding, concatenation) a
guard travels down, and loads below it do not touch memory unless it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.errors import InternalError
from semel.ir.expr import Dim, Index, atoms, is_nonnegative, is_positive
from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.ir.types import BOOL, INT64, UINT32, UINT64, DType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Statement, Value, walk_values
from semel.ops.elementwise import index_check
from semel.ops.index_maps import Indices, concat_offsets, flat_index, operand_index

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)


#: How many nodes deep one Python call stack goes; each takes about three frames.
MAX_DEPTH = 64

_Key: TypeAlias = "tuple[Node, Indices, Value | None]"


class _TooDeepError(Exception):
    """Asks the outermost call to evaluate `key` first."""

    def __init__(self, key: _Key) -> None:
        self.key = key


@dataclass
class Evaluator:
    """Values of nodes inside one loop body. `buffers` are what can be loaded.

    `known` holds nodes whose value is at hand (accumulators); `checks` is shared by
    the whole kernel; `shared_bound` names indices bound outside this body.
    """

    buffers: Mapping[Node, Buffer]
    known: Mapping[Node, Value]
    checks: list[CheckInfo]
    names: Callable[[str], str]
    kept: Callable[[Node, Indices], Value | None] = lambda node, at: None
    prelude: list[Statement] = field(default_factory=list)
    _memo: dict[_Key, Value] = field(default_factory=dict)
    _bound: dict[_Key, Index] = field(default_factory=dict)
    _depth: int = 0

    def __call__(self, node: Node, at: Indices, guard: Value | None = None) -> Value:
        key = (node, at, guard)
        found = self._memo.get(key)
        if found is not None:
            return found
        if self._depth == 0:
            return self._evaluate_all(key)
        if self._depth >= MAX_DEPTH:
            raise _TooDeepError(key)
        return self._evaluate_key(key)

    def _evaluate_all(self, key: _Key) -> Value:
        """Evaluate a chain of any length: what lies too deep is evaluated first, by itself.

        A rule may be entered again after that. It is safe because rules leave statements,
        checks and names behind only after all the values they need are there.
        """
        waiting = [key]
        while waiting:
            try:
                self._evaluate_key(waiting[-1])
                waiting.pop()
            except _TooDeepError as deep:
                waiting.append(deep.key)
        return self._memo[key]

    def _evaluate_key(self, key: _Key) -> Value:
        self._depth += 1
        try:
            found = self._memo[key] = self._evaluate(*key)
        finally:
            self._depth -= 1
        return found

    def _evaluate(self, node: Node, at: Indices, guard: Value | None) -> Value:
        if node in self.known:
            return self.known[node]
        kept = self.kept(node, at)
        if kept is not None:
            return kept
        if node in self.buffers:
            return self._load(node, at, guard)
        if node.op.name == "scalar":
            return ir.const(node.type.dtype, node.attrs.value)
        if node.op.name in _SPECIAL:
            return _SPECIAL[node.op.name](self, node, at, guard)
        if node.op.kind == "movement":
            index = operand_index(node, 0, at, lambda n, i: self._gathered(n, i, guard))
            return self(node.inputs[0], index, guard)
        if node.op.kind == "elementwise":
            return elementwise(node, [self(x, at, guard) for x in node.inputs])
        if node.op.kind == "update":
            return self(node.inputs[1], at, guard)
        raise InternalError("lower", f"{node!r} is neither computed here nor in memory.")

    def _load(self, node: Node, at: Indices, guard: Value | None) -> Value:
        where = flat_index(at, node.type.shape)
        buffer = self.buffers[node]
        if guard is None:
            return ir.load(buffer, where)
        return ir.load(buffer, where, guard, ir.const(buffer.dtype, 0))

    # ------------------------------------------------------------ indices from memory

    def _gathered(self, node: Node, at: Indices, guard: Value | None) -> Index:
        """The index atom for an index tensor's element, bound before it is used."""
        key = (node, at, guard)
        if key not in self._bound:
            value = self(node.inputs[1], at, guard)
            extent = node.inputs[0].type.shape[node.attrs.axis]
            atom = Index(self.names("g"), extent)
            self.prelude.append(ir.Bind(atom, ir.cast(value, INT64)))
            self._bound[key] = atom
        return self._bound[key]

    def _check_index(self, node: Node, at: Indices, guard: Value | None) -> Value:
        value = ir.cast(self(node.inputs[0], at, guard), INT64)
        size = ir.index(node.attrs.size)
        zero = ir.const(INT64, 0)
        wrapped = value
        if node.inputs[0].type.dtype.kind == "i" and node.attrs.what == "index":
            # Of unsigned integers only the largest uint64 look negative here: out of range.
            wrapped = ir.select(value < zero, value + size, value)
        ok = (wrapped >= zero) & (wrapped < size)
        self.checks.append(index_check(node))
        must = ok if guard is None else ok | ir.op("not", guard)
        self.prelude.append(ir.Check(must, len(self.checks), value))
        return ir.select(ok, wrapped, zero)

    # ------------------------------------------------------------ choices by index

    def _pad(self, node: Node, at: Indices, guard: Value | None) -> Value:
        inside: Value | None = None
        source = node.inputs[0]
        for i, before, after, size in zip(
            at, node.attrs.before, node.attrs.after, source.type.shape, strict=True
        ):
            tests = []
            if before != 0:
                tests.append(ir.index(i) >= ir.index(before))
            if after != 0:
                tests.append(ir.index(i) < ir.index(before + size))
            for test in tests:
                inside = test if inside is None else inside & test
        index = operand_index(node, 0, at, lambda n, i: self._gathered(n, i, guard))
        if inside is None:
            return self(source, index, guard)
        value = self(source, index, _both(guard, inside))
        return ir.select(inside, value, self(node.inputs[1], (), guard))

    def _concat(self, node: Node, at: Indices, guard: Value | None) -> Value:
        axis = node.attrs.axis
        position = ir.index(at[axis])
        offsets = concat_offsets(node)
        result: Value | None = None
        for k, (operand, offset) in enumerate(zip(node.inputs, offsets, strict=True)):
            end = offset + operand.type.shape[axis]
            if is_nonnegative(at[axis] - end) or is_positive(offset - at[axis]):
                continue
            if is_nonnegative(at[axis] - offset) and is_positive(end - at[axis]):
                index = operand_index(node, k, at, lambda n, i: self._gathered(n, i, guard))
                return self(operand, index, guard)
            starts = position >= ir.index(offset)
            inside = starts & (position < ir.index(end))
            index = operand_index(node, k, at, lambda n, i: self._gathered(n, i, guard))
            value = self(operand, index, _both(guard, inside))
            result = value if result is None else ir.select(starts, value, result)
        if result is None:  # nothing of the concatenation can be asked for here
            return ir.const(node.type.dtype, 0)
        return result

    def _iota(self, node: Node, at: Indices, guard: Value | None) -> Value:
        return ir.cast(ir.index(node.attrs.start + at[node.attrs.axis]), node.type.dtype)

    def _random_bits(self, node: Node, at: Indices, guard: Value | None) -> Value:
        key = [self(node.inputs[0], (k,), guard) for k in (0, 1)]
        position = ir.cast(ir.index(flat_index(at, node.type.shape)), UINT64)
        return philox(position, key[0], key[1])


_SPECIAL: dict[str, Callable[[Evaluator, Node, Indices, Value | None], Value]] = {
    "check_index": Evaluator._check_index,
    "pad": Evaluator._pad,
    "concat": Evaluator._concat,
    "iota": Evaluator._iota,
    "random_bits": Evaluator._random_bits,
}


def _both(a: Value | None, b: Value) -> Value:
    return b if a is None else a & b


def philox(position: Value, key0: Value, key1: Value) -> Value:
    """Word 0 of Philox4x32-10 with counter (low, high, 0, 0): one uint32 per element."""
    mask = ir.const(UINT64, 0xFFFFFFFF)
    wide = [position & mask, position >> 32, ir.const(UINT64, 0), ir.const(UINT64, 0)]
    keys = [ir.cast(key0, UINT64), ir.cast(key1, UINT64)]
    for _ in range(10):
        first = wide[0] * _PHILOX_MULTIPLIERS[0]
        second = wide[2] * _PHILOX_MULTIPLIERS[1]
        wide = [
            (second >> 32) ^ wide[1] ^ keys[0],
            second & mask,
            (first >> 32) ^ wide[3] ^ keys[1],
            first & mask,
        ]
        keys = [(k + w) & mask for k, w in zip(keys, _PHILOX_WEYL, strict=True)]
    return ir.cast(wide[0], UINT32)


def wanted_at(
    node: Node, outputs: Sequence[Node], buffers: Mapping[Node, Buffer], loops: Indices
) -> Indices:
    """The index at which `outputs`, evaluated at `loops`, ask for `node`."""
    seen: list[Indices] = []

    def look(asked: Node, at: Indices) -> Value | None:
        if asked is not node:
            return None
        seen.append(at)
        return ir.const(node.type.dtype, 0)

    evaluate = Evaluator(buffers, {}, [], lambda prefix: prefix, look)
    for output in outputs:
        evaluate(output, loops)
    return seen[0]


# ---------------------------------------------------------------- elementwise rules


def elementwise(node: Node, args: list[Value]) -> Value:
    """The value of an elementwise op; most have a kernel op of the same name."""
    name = node.op.name
    match name:
        case "where":
            return ir.select(*args)
        case "cast":
            return ir.cast(args[0], node.type.dtype)
        case "bitcast":
            return ir.bitcast(args[0], node.type.dtype)
        case _ if name in _RULES:
            return _RULES[name](*args)
        case _:
            return ir.op(name, *args)


def _sign(x: Value) -> Value:
    zero, one = ir.const(x.dtype, 0), ir.const(x.dtype, 1)
    if x.dtype == BOOL:
        return x
    if x.dtype.kind == "u":
        return ir.select(x > zero, one, zero)
    # NaN stays NaN; a zero loses its sign.
    rest = ir.select(x.eq(zero), zero, x) if x.dtype.is_float else zero
    down = ir.select(x < zero, ir.const(x.dtype, -1), rest)
    return ir.select(x > zero, one, down)


def _isinf(x: Value) -> Value:
    if not x.dtype.is_float:
        return ir.const(BOOL, False)
    return ir.op("abs", x).eq(ir.const(x.dtype, float("inf")))


def _isnan(x: Value) -> Value:
    return x.ne(x) if x.dtype.is_float else ir.const(BOOL, False)


def _float_modulo(a: Value, b: Value) -> Value:
    """a - floor(a/b)*b with the sign of b, as np.remainder."""
    rest = ir.op("fmod", a, b)
    zero = ir.const(a.dtype, 0)
    differ = ir.op("xor", rest < zero, b < zero) & rest.ne(zero)
    signed_zero = ir.select(_is_negative(b), ir.const(a.dtype, -0.0), zero)
    return ir.select(differ, rest + b, ir.select(rest.eq(zero), signed_zero, rest))


def _float_floordiv(a: Value, b: Value) -> Value:
    """floor(a/b) from the exact remainder, as np.floor_divide; b == 0 gives a/b."""
    rest = ir.op("fmod", a, b)
    zero, one = ir.const(a.dtype, 0), ir.const(a.dtype, 1)
    quotient = (a - rest) / b
    differ = ir.op("xor", rest < zero, b < zero) & rest.ne(zero)
    quotient = ir.select(differ, quotient - one, quotient)
    whole = ir.op("floor", quotient)
    whole = ir.select((quotient - whole) > ir.const(a.dtype, 0.5), whole + one, whole)
    signed_zero = ir.select(_is_negative(a / b), ir.const(a.dtype, -0.0), zero)
    result = ir.select(quotient.eq(zero), signed_zero, whole)
    return ir.select(b.eq(zero), a / b, result)


def _is_negative(x: Value) -> Value:
    """The sign bit, of zeros too."""
    return (x < ir.const(x.dtype, 0)) | (ir.const(x.dtype, 1) / x < ir.const(x.dtype, 0))


def _by_kind(integer: str, floating: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    def rule(a: Value, b: Value) -> Value:
        return floating(a, b) if a.dtype.is_float else ir.op(integer, a, b)

    return rule


def _in_float32(rule: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Half types take part as float32 and round once at the end."""

    def wrapped(a: Value, b: Value) -> Value:
        compute = a.dtype.compute
        return ir.cast(rule(ir.cast(a, compute), ir.cast(b, compute)), a.dtype)

    return wrapped


_RULES: dict[str, Callable[..., Value]] = {
    "sign": _sign,
    "isnan": _isnan,
    "isinf": _isinf,
    "idiv": _by_kind("idiv", _in_float32(_float_floordiv)),
    "imod": _by_kind("imod", _in_float32(_float_modulo)),
}


# ---------------------------------------------------------------- reductions

#: op name -> how its accumulator is combined.
COMBINE = {
    "reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min",
    "reduce_or": "or", "reduce_and": "and", "reduce_argmax": "argmax", "reduce_argmin": "argmin",
    "sum": "add", "prod": "mul", "max": "max", "min": "min", "or": "or", "and": "and",
}  # fmt: skip


def combine_of(node: Node) -> str:
    """The combination of a reduce node; max and min may skip NaN where that was allowed."""
    name = node.attrs.combine if node.op.name == "reduce_partial" else node.op.name
    kind = COMBINE[name]
    may_skip = not node.attrs.propagate_nan or not node.inputs[0].type.dtype.is_float
    return f"fast{kind}" if kind in ("max", "min") and may_skip else kind


def start_value(kind: str, dtype: DType) -> Value:
    """What an accumulator holds before the first element."""
    match kind:
        case "add" | "fma" | "or":
            return ir.const(dtype, 0)
        case "mul":
            return ir.const(dtype, 1)
        case "and":
            return ir.const(dtype, 1 if dtype == BOOL else -1)
        case "max" | "fastmax" | "argmax":
            return ir.const(dtype, dtype.lowest)
        case _:
            return ir.const(dtype, dtype.highest)


def value_atoms(value: Value) -> frozenset[Index]:
    """The loop indices and bound indices that a value depends on."""
    found: set[Index] = set()
    for v in walk_values([value]):
        dims: tuple[Dim, ...] = ()
        if v.op == "index":
            dims = (v.data,)
        elif v.op in ("load", "word"):
            dims = (v.data[1],)
        for dim in dims:
            found.update(a for a in atoms(dim) if isinstance(a, Index))
    return frozenset(found)
