"""The oracle: executes kernel IR with NumPy, one element at a time.

    Kernel + flat arrays + variable values  -->  arrays written, list of failed checks
    Value + arrays for its leaves           -->  array (`evaluate_value`)

This is the definition of what each op means on every target: integers wrap, division
by zero and shifts past the width have results, casts saturate, float16 and bfloat16
compute in float32 and round once per op, `fma` rounds once. Tiles and loops run in order; the
lanes of a vector loop share its sums as `kernel.shared_lanes` says: they have the machine's bits.
Whatever a correct kernel never does (an index outside its buffer, a read of scratch that
no store filled in this tile) raises `InternalError`.

Math functions and narrow casts are evaluated with NumPy here; `kernel.math` replaces them by
arithmetic, which this module then executes exactly as written.

One idea: the meaning of the kernel IR, a case for each of its ops; it is long because the IR is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from typing import Any

import numpy as np

from semel.errors import InternalError
from semel.ir.expr import Dim, Index, evaluate
from semel.ir.half import round_to_half
from semel.ir.narrow import from_narrow, to_narrow
from semel.ir.types import BOOL, DType
from semel.kernel.ir import (
    COMBINES,
    COMPARISONS,
    MATH,
    Assign,
    Bind,
    Block,
    BlockDot,
    Buffer,
    Check,
    Declare,
    If,
    Kernel,
    Local,
    Loop,
    Prefetch,
    Reduce,
    Statement,
    Store,
    Value,
    statement_values,
    walk_values,
)
from semel.kernel.shared_lanes import joining, ordered_totals, rest_lanes, widest_total
from semel.kernel.values import larger, smaller, word_elements

Array = np.ndarray[Any, np.dtype[Any]]
Leaf = Callable[[Value], Any]


# ---------------------------------------------------------------- values


def evaluate_value(value: Value, leaves: Mapping[Value, Any]) -> Array:
    """The value for whole arrays: `leaves` gives one for each load, local or index in it."""

    def leaf(value: Value) -> Any:
        return np.asarray(leaves[value], value.dtype.numpy)

    with np.errstate(all="ignore"):
        return np.asarray(_evaluate(list(walk_values([value])), leaf, stop=leaves)[value])


def _evaluate(
    order: Sequence[Value],
    leaf: Leaf,
    stop: Mapping[Value, Any] | None = None,
    load: Callable[[Value, Any, Any], Any] | None = None,
) -> dict[Value, Any]:
    """Results of all values in `order`, which lists operands first."""
    results: dict[Value, Any] = {}
    for value in order:
        if stop is not None and value in stop:
            results[value] = leaf(value)
        elif value.op == "load" and value.args and load is not None:
            results[value] = load(value, *(results[a] for a in value.args))
        elif value.op in ("load", "word", "local", "index"):
            results[value] = leaf(value)
        else:
            results[value] = apply_op(value, [results[a] for a in value.args])
    return results


def apply_op(value: Value, args: Sequence[Any]) -> Any:
    """One op on arrays of its operands' dtypes."""
    match value.op:
        case "const":
            return np.asarray(value.data, value.dtype.numpy)
        case "select":
            return np.where(args[0], args[1], args[2])
        case "cast":
            return cast_array(args[0], value.args[0].dtype, value.dtype)
        case "bitcast":
            return np.asarray(args[0]).view(value.dtype.numpy)
    dtype = value.args[0].dtype
    if value.op in COMPARISONS:
        return _COMPARE[value.op](*args)
    if dtype == BOOL:
        return _lookup(_BOOLEAN, value.op, dtype)(*args)
    if dtype.is_integer:
        return _lookup(_INTEGER, value.op, dtype)(*args)
    if dtype.is_half:
        wide = [np.asarray(a).astype(np.float32) for a in args]
        return _lookup(_FLOAT, value.op, dtype)(*wide).astype(dtype.numpy)
    return _lookup(_FLOAT, value.op, dtype)(*args)


def _lookup(table: Mapping[str, Callable[..., Any]], name: str, dtype: DType) -> Callable[..., Any]:
    try:
        return table[name]
    except KeyError:
        raise InternalError("interpret", f"op '{name}' is not defined for {dtype}.") from None


def cast_array(array: Any, source: DType, target: DType) -> Array:
    """Numeric conversion as the kernel IR defines it."""
    array = np.asarray(array)
    if source.is_narrow:
        array, source = from_narrow(array, source), source.compute
    if target.is_narrow:
        return to_narrow(array, target)
    if target == BOOL:
        return np.asarray(array != 0)
    if source.is_float and target.is_integer:
        return _saturate(array.astype(np.float32) if source.is_half else array, target)
    if target.is_half and source.bits > 16:
        return round_to_half(array, target)
    return np.asarray(array.astype(target.numpy))


def _saturate(array: Array, target: DType) -> Array:
    low, high = int(target.lowest), int(target.highest)
    inside = (array >= float(low)) & (array < float(high + 1))
    numbers = np.where(inside, array, 0).astype(target.numpy)
    # Limits with the dtype: a Python int that no C long holds is no operand of every NumPy.
    least, most = np.array(low, target.numpy), np.array(high, target.numpy)
    outside = np.where(array > 0, most, np.where(array < 0, least, np.zeros_like(least)))
    return np.asarray(np.where(inside, numbers, outside))


# ---------------------------------------------------------------- integers


def _idiv(a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "i":
        negate = b == -1  # the one quotient that overflows: wraps
        safe = np.where((b == 0) | negate, b.dtype.type(1), b)
        return np.where(b == 0, a.dtype.type(0), np.where(negate, -a, a // safe))
    return np.where(b == 0, a.dtype.type(0), a // np.where(b == 0, b.dtype.type(1), b))


def _imod(a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    trivial = (b == 0) | ((b == -1) if a.dtype.kind == "i" else (b == 1))
    return np.where(trivial, a.dtype.type(0), a % np.where(trivial, b.dtype.type(1), b))


def _shift(a: Any, amount: Any, *, left: bool) -> Any:
    a, amount = np.asarray(a), np.asarray(amount)
    width = a.dtype.itemsize * 8
    legal = (amount >= 0) & (amount < width)
    safe = np.where(legal, amount, amount.dtype.type(0))
    if left:
        return np.where(legal, a << safe, a.dtype.type(0))
    return np.where(legal, a >> safe, np.where(a < 0, ~a.dtype.type(0), a.dtype.type(0)))


_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_BOOLEAN: dict[str, Callable[..., Any]] = {
    "add": np.logical_or, "or": np.logical_or, "max": np.logical_or,
    "mul": np.logical_and, "and": np.logical_and, "min": np.logical_and,
    "xor": np.logical_xor, "not": np.logical_not,
}  # fmt: skip
_INTEGER: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c, "neg": np.negative, "abs": np.abs,
    "min": np.minimum, "max": np.maximum, "idiv": _idiv, "imod": _imod,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shl": lambda a, b: _shift(a, b, left=True), "shr": lambda a, b: _shift(a, b, left=False),
}  # fmt: skip


# ---------------------------------------------------------------- floats


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b as rounded sum and exact error."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b as rounded product and exact error, by splitting both into halves."""
    product = a * b
    a_high = (a * 134217729.0) - (a * 134217729.0 - a)
    b_high = (b * 134217729.0) - (b * 134217729.0 - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _round_to_odd(total: Any, error: Any) -> Any:
    """The sum total + error, truncated with a sticky last bit.

    A second rounding of it, to a narrower format or together with a larger term, is then the
    rounding of the exact sum.
    """
    bits = np.asarray(total).view(np.int64)
    grows = (error > 0) == (total > 0)
    inexact = (error != 0) & np.isfinite(error) & np.isfinite(total) & ((bits & 1) == 0)
    return np.where(inexact, bits + np.where(grows, 1, -1), bits).view(np.float64)


def _fma(a: Any, b: Any, c: Any) -> Any:
    if np.asarray(a).dtype == np.float32:
        product = np.asarray(a).astype(np.float64) * b  # exact: 48 bits
        return _round_to_odd(*_two_sum(product, np.asarray(c).astype(np.float64))).astype(
            np.float32
        )
    return _fma64(np.asarray(a), np.asarray(b), np.asarray(c))


def _fma64(a: Array, b: Array, c: Array) -> Array:
    high, low = _two_product(a, b)
    middle, rest = _two_sum(c, low)
    top, error = _two_sum(high, middle)
    result = np.asarray(top + _round_to_odd(*_two_sum(error, rest)))
    plain = a * b + c
    ordinary = (_is_moderate(a) & _is_moderate(b) & _is_moderate(c) & _is_moderate(a * b)) | (
        ~np.isfinite(plain) & ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    )
    zero = ((a == 0) | (b == 0)) & np.isfinite(a) & np.isfinite(b)
    result = np.where(zero | ~np.isfinite(a + b + c), plain, result)
    result = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, result)
    extreme = ~ordinary & ~zero
    if extreme.any():
        result = np.array(np.broadcast_to(result, extreme.shape))
        a, b, c = np.broadcast_arrays(a, b, c)
        for at in zip(*np.nonzero(extreme), strict=True) if extreme.ndim else [()]:
            result[at] = _exact_fma(float(a[at]), float(b[at]), float(c[at]))
    return np.asarray(result)


def _is_moderate(array: Array) -> Any:
    """Where no intermediate of the error-free fma can overflow or underflow."""
    size = np.abs(array)
    return (array == 0) | ((size > 1e-200) & (size < 1e200))


def _exact_fma(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if a * b == 0 == c else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _per_element(function: Callable[..., float]) -> Callable[..., Any]:
    universal = np.frompyfunc(function, 1, 1)
    return lambda a: np.asarray(universal(np.asarray(a, np.float64)), np.float64).astype(
        np.asarray(a).dtype
    )


_erf = _per_element(math.erf)


def _ldexp(p: Any, n: Any) -> Any:
    """p * 2**n; where n is NaN so is p, and any n will do."""
    whole = np.nan_to_num(np.asarray(n, np.float64), nan=0.0)
    return np.ldexp(p, whole.astype(np.int32))


def _scale(p: Any, s: Any) -> Any:
    """p * 2**n, where the low bits of s are n + bias, or 0 where they are 0."""
    kind = np.asarray(s).dtype
    word = np.dtype(f"u{kind.itemsize}")
    return p * (np.asarray(s).view(word) << word.type(np.finfo(kind).nmant)).view(kind)


_FLOAT: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": np.divide, "fma": _fma, "neg": np.negative, "abs": np.abs,
    "min": smaller, "max": larger, "ldexp": _ldexp, "scale": _scale, "sqrt": np.sqrt,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "pow": np.power, "fmod": np.fmod, "erf": _erf, "decay": np.exp,
    "sigmoid": lambda a: (1 / (1 + np.exp(-a))).astype(a.dtype),
    "gelu": lambda a: a * ((1 + _erf(a * a.dtype.type(math.sqrt(0.5)))) / 2).astype(a.dtype),
}  # fmt: skip
_FLOAT |= {name: getattr(np, name) for name in MATH if name not in _FLOAT}


# ---------------------------------------------------------------- kernels


@dataclass(slots=True)
class _Memory:
    """One buffer, and which of its elements may be read."""

    data: Array
    defined: Array


def interpret(
    kernel: Kernel, buffers: Sequence[Array], variables: Mapping[str, int]
) -> list[tuple[int, int]]:
    """Run all tiles in order on flat arrays, changed in place; the failed checks, in order."""
    if len(buffers) != len(kernel.buffers):
        raise InternalError(
            kernel.name, f"takes {len(kernel.buffers)} buffers, got {len(buffers)}."
        )
    machine = _Machine(kernel, buffers, dict(variables))
    with np.errstate(all="ignore"):
        for tile in range(evaluate(kernel.tiles, machine.indices)):
            machine.run_tile(tile)
    return machine.failed


class _Machine:
    """The state of one run: memory, locals, and the values of loop indices and variables."""

    def __init__(self, kernel: Kernel, buffers: Sequence[Array], values: dict[Any, int]) -> None:
        self.kernel = kernel
        self.indices: dict[Any, int] = values
        self.locals: dict[Local, Array] = {}
        self.failed: list[tuple[int, int]] = []
        self.orders: dict[int, list[Value]] = {}
        self.bits: dict[int, int | None] = {}
        self.memory = {
            b.name: self._argument(b, a) for b, a in zip(kernel.buffers, buffers, strict=True)
        }

    def _argument(self, buffer: Buffer, array: Array) -> _Memory:
        if array.ndim != 1 or array.dtype != buffer.dtype.numpy:
            found = f"{array.dtype}{list(array.shape)}"
            raise InternalError(
                self.kernel.name, f"'{buffer.name}' must be a flat {buffer.dtype}, got {found}."
            )
        return _Memory(array, np.full(array.size, "r" in buffer.access))

    def run_tile(self, tile: int) -> None:
        self.locals.clear()
        for buffer in self.kernel.scratch:
            size = evaluate(buffer.size, self.indices)
            self.memory[buffer.name] = _Memory(
                np.zeros(size, buffer.dtype.numpy), np.zeros(size, np.bool_)
            )
        self.indices[self.kernel.tile] = tile
        self.run(self.kernel.body)

    def run(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self._execute(statement)

    def _execute(self, statement: Statement) -> None:
        match statement:
            case Loop():
                self._loop(statement)
            case Declare(local=local):
                (init,) = self._values(statement)
                self.locals[local] = np.full(local.copies, init, local.dtype.numpy)
            case Assign(local=local, at=at):
                (value,) = self._values(statement)
                self._register(local)[self._copy(local, at)] = value
            case Reduce():
                self._reduce(statement)
            case Bind(index=index):
                (value,) = self._values(statement)
                self._bind(index, int(value))
            case Store():
                self._store(statement)
            case Prefetch():
                pass
            case BlockDot():
                self._block_dot(statement)
            case Check(code=code):
                ok, value = self._values(statement)
                if not ok:
                    self.failed.append((code, int(value)))
            case If(body=body):
                (condition,) = self._values(statement)
                if condition:
                    self.run(body)

    def _loop(self, loop: Loop) -> None:
        start, stop = (evaluate(d, self.indices) for d in (loop.start, loop.stop))
        bits = self._total_bits(loop) if loop.lanes > 1 else None
        if bits is None:
            self._iterate(loop, range(start, stop), [{}])
        elif start < stop:
            self._share(loop, start, stop, bits)
        self.indices.pop(loop.index, None)

    def _total_bits(self, loop: Loop) -> int | None:
        if id(loop) not in self.bits:
            self.bits[id(loop)] = widest_total(loop)
        return self.bits[id(loop)]

    def _iterate(
        self, loop: Loop, indices: Iterable[int], lanes: Sequence[Mapping[Local, Array]]
    ) -> None:
        """The body for these indices, in order, which take turns with the registers of `lanes`."""
        for i, registers in zip(indices, cycle(lanes), strict=False):
            self.locals.update(registers)
            self.indices[loop.index] = i
            self.run(loop.body)

    def _share(self, loop: Loop, start: int, stop: int, bits: int) -> None:
        """A vector loop whose lanes share sums: each lane has its own, joined by halves."""
        totals = ordered_totals(loop)
        before = {local: self._register(local) for local in totals}
        middle = start + (stop - start) // loop.lanes * loop.lanes
        lanes = [
            {
                t: np.full(t.copies, COMBINES[c].neutral(t.dtype), t.dtype.numpy)
                for t, c in totals.items()
            }
            for _ in range(loop.lanes)
        ]
        self._iterate(loop, range(start, middle), lanes)
        lanes = _join_lanes(totals, lanes, rest_lanes(loop.lanes, bits))
        self._iterate(loop, range(middle, stop), lanes)
        (found,) = _join_lanes(totals, [before, *_join_lanes(totals, lanes, 1)], 1)
        self.locals.update(found)

    def _bind(self, index: Index, value: int) -> None:
        extent = evaluate(index.extent, self.indices)
        if not 0 <= value < extent:
            raise InternalError(
                self.kernel.name, f"'{index}' must be bound in [0, {extent}), got {value}."
            )
        self.indices[index] = value

    def _store(self, store: Store) -> None:
        values = self._values(store)
        if len(values) == 2 and not values[1]:
            return
        memory, at = self._locate(store.buffer, store.at)
        memory.data[at] = values[0]
        memory.defined[at] = True

    def _reduce(self, reduce: Reduce) -> None:
        values = self._values(reduce)
        registers = [self._register(variable) for variable in reduce.locals]
        at = self._copy(reduce.locals[0], reduce.at)
        dtype = reduce.locals[0].dtype
        if reduce.combine in ("argmax", "argmin"):
            best, where = registers
            if _is_better(reduce.combine, values, (best[at], where[at])):
                best[at], where[at] = values
            return
        (register,) = registers
        if reduce.combine in ("dot", "small_dot"):
            signs = [v.dtype.kind for v in reduce.values]
            register[at] += np.int32(_dot_bytes(values, signs))
            return
        if reduce.combine == "pairs":
            register[at] += np.int32(_dot_pairs(values))
            return
        operands = [*values, register[at]] if reduce.combine == "fma" else [register[at], *values]
        register[at] = _combine(reduce.combine, dtype, operands)

    def _block_dot(self, dots: BlockDot) -> None:
        live, words = self._dim(dots.live), self._dim(dots.words)
        if not 0 <= live <= dots.rows:
            raise InternalError(self.kernel.name, f"{live} of {dots.rows} rows cannot be live.")
        left = self._rows(dots.left, live, 4 * words).astype(np.int64)
        packed = self._rows(dots.right, words, dots.columns).astype("<i4")
        right = packed.view(np.int8).reshape(words, dots.columns, 4).transpose(0, 2, 1)
        sums = left @ right.reshape(4 * words, dots.columns).astype(np.int64)
        memory, at, pitch = self._block(dots.into)
        # What the machine leaves in the other rows is for nobody to read.
        for r in range(dots.rows):
            here = slice(at + r * pitch, at + r * pitch + dots.columns)
            memory.defined[here] = r < live
            if r < live:
                memory.data[here] = sums[r].astype(np.int32)

    def _block(self, block: Block) -> tuple[_Memory, int, int]:
        return self.memory[block.buffer.name], self._dim(block.at), self._dim(block.pitch)

    def _rows(self, block: Block, rows: int, columns: int) -> Array:
        memory, at, pitch = self._block(block)
        places = at + np.arange(rows)[:, None] * pitch + np.arange(columns)
        if places.size and not (places.min() >= 0 and places.max() < memory.data.size):
            raise InternalError(self.kernel.name, f"dots leave '{block.buffer.name}'.")
        if not memory.defined[places].all():
            raise InternalError(
                self.kernel.name, f"dots read '{block.buffer.name}' where no store has filled it."
            )
        found: Array = memory.data[places]
        return found

    # ------------------------------------------------------------ operands

    def _values(self, statement: Statement) -> list[Any]:
        roots = statement_values(statement)
        order = self.orders.get(id(statement))
        if order is None:
            order = self.orders[id(statement)] = list(walk_values(roots))
        results = _evaluate(order, self._leaf, load=self._guarded_load)
        return [results[root] for root in roots]

    def _leaf(self, value: Value) -> Any:
        match value.op:
            case "index":
                return np.int64(self._dim(value.data))
            case "local":
                variable, at = value.data
                return self._register(variable)[self._copy(variable, at)]
            case "word":
                buffer, at = value.data
                count = word_elements(buffer.dtype)
                found = [self._read(buffer, at + k) for k in range(count)]
                return np.array(found, buffer.dtype.numpy).view(value.dtype.numpy)[0]
        return self._read(*value.data)

    def _guarded_load(self, value: Value, guard: Any, other: Any) -> Any:
        return self._read(*value.data) if guard else other

    def _read(self, buffer: Buffer, at: Dim) -> Any:
        memory, position = self._locate(buffer, at)
        if not memory.defined[position]:
            raise InternalError(
                self.kernel.name, f"reads '{buffer.name}'[{position}], which no store has filled."
            )
        return memory.data[position]

    def _locate(self, buffer: Buffer, at: Dim) -> tuple[_Memory, int]:
        memory, position = self.memory[buffer.name], self._dim(at)
        if not 0 <= position < memory.data.size:
            raise InternalError(
                self.kernel.name,
                f"'{buffer.name}'[{at}] must lie in [0, {memory.data.size}), got {position}.",
            )
        return memory, position

    def _dim(self, dim: Dim) -> int:
        try:
            return evaluate(dim, self.indices)
        except KeyError as error:
            raise InternalError(self.kernel.name, f"uses {error} before it has a value.") from None

    def _register(self, variable: Local) -> Array:
        try:
            return self.locals[variable]
        except KeyError:
            raise InternalError(
                self.kernel.name, f"uses '{variable.name}' before it is declared."
            ) from None

    def _copy(self, variable: Local, at: tuple[Dim, ...]) -> tuple[int, ...]:
        position = tuple(self._dim(d) for d in at)
        legal = len(position) == len(variable.copies) and all(
            0 <= p < n for p, n in zip(position, variable.copies, strict=True)
        )
        if not legal:
            raise InternalError(
                self.kernel.name, f"'{variable.name}' has copies {variable.copies}, got {position}."
            )
        return position


def _combine(name: str, dtype: DType, operands: list[Any]) -> Any:
    if name in ("fastmax", "fastmin"):
        old, new = operands
        return new if (new > old if name == "fastmax" else new < old) else old  # a NaN never wins
    table = _BOOLEAN if dtype == BOOL else _INTEGER if dtype.is_integer else _FLOAT
    function = _lookup(table, name, dtype)
    if dtype.is_half:
        return function(*(np.asarray(v).astype(np.float32) for v in operands)).astype(dtype.numpy)
    return function(*operands)


def _join_lanes(
    totals: Mapping[Local, str], lanes: list[dict[Local, Array]], to: int
) -> list[dict[Local, Array]]:
    """Lanes joined by halves until `to` are left."""
    while len(lanes) > to:
        half = len(lanes) // 2
        lanes = [
            {
                t: _combine_all(joining(combine), t.dtype, low[t], high[t])
                for t, combine in totals.items()
            }
            for low, high in zip(lanes[:half], lanes[half:], strict=True)
        ]
    return lanes


def _combine_all(name: str, dtype: DType, low: Array, high: Array) -> Array:
    """`_combine` for every copy of a local."""
    pairs = zip(low.reshape(-1), high.reshape(-1), strict=True)
    found = [_combine(name, dtype, [a, b]) for a, b in pairs]
    return np.array(found, dtype.numpy).reshape(low.shape)


def _dot_bytes(words: Sequence[Any], signs: Sequence[str]) -> int:
    """The sum of the products of the four bytes of two words; it fits an int32."""
    first, second = (
        np.frombuffer(np.asarray(word).tobytes(), np.int8 if sign == "i" else np.uint8)
        for word, sign in zip(words, signs, strict=True)
    )
    return int(first.astype(np.int64) @ second.astype(np.int64))


def _dot_pairs(words: Sequence[Any]) -> int:
    """The sum of the products of two words of two int16 each and the signed bytes of a third."""
    *left, right = (np.asarray(word).tobytes() for word in words)
    numbers = np.frombuffer(b"".join(left), np.int16).astype(np.int64)
    return int(numbers @ np.frombuffer(right, np.int8).astype(np.int64))


def _is_better(combine: str, new: Sequence[Any], old: Sequence[Any]) -> bool:
    """A NaN beats every number, as in NumPy; of equals, the one that was there stays."""
    a, b = new[0], old[0]
    if a != a or b != b:
        return bool(a != a and b == b)
    return bool(a > b) if combine == "argmax" else bool(a < b)
