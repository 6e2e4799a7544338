"""Keys of an order: unsigned numbers that grow in the order wanted, and back.

    element  --sort_key-->  key  --key_element-->  element

Signed integers have their sign turned, floats with a sign are inverted, -0 is 0 and NaN the
largest of all; a descending order inverts the key, NaN aside. So a key says which number it was,
but for what compares equal and is not: zeros of both signs, and NaNs. Where a row has such ones
(`is_stray`), they are put back as they stood (`stray_elements`): equal elements keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semel.ir.expr import Dim, Index
from semel.ir.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.lower.lowered import Names

_UNSIGNED = {8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}
_SIGNED = {8: INT8, 16: INT16, 32: INT32, 64: INT64}
#: Bits of a half that are there in the float32 of the same number, from the top.
_USED_BITS = {BFLOAT16: 16, FLOAT16: 24}


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a tile: its length, where its elements lie, and where what is found goes.

    That is the order of the elements (`argsort`), or with `is_values` themselves (`sort`).
    """

    length: Dim
    place: Callable[[Dim], Dim]
    source: Buffer
    out: Buffer
    descending: bool
    is_values: bool

    def element(self, position: Dim) -> Value:
        return ir.load(self.source, self.place(position))

    def sort_key(self, value: Value) -> Value:
        return sort_key(value, key_form(self.source.dtype)[0], self.descending)

    @property
    def has_strays(self) -> bool:
        """Whether elements may be lost in their keys."""
        return self.is_values and self.source.dtype.is_float


def key_form(dtype: DType) -> tuple[DType, int]:
    """The dtype of a key, and the first of its bits that is not always the same."""
    if dtype in _USED_BITS:
        return UINT32, 32 - _USED_BITS[dtype]
    return _UNSIGNED[max(dtype.bits, 8)], 0


def as_signed(key: Value) -> Value:
    """The signed number with as many below it: what vectors compare."""
    return ir.bitcast(key ^ (1 << (key.dtype.bits - 1)), _SIGNED[key.dtype.bits])


def as_unsigned(number: Value) -> Value:
    """The key again."""
    bits = number.dtype.bits
    return ir.bitcast(number, _UNSIGNED[bits]) ^ (1 << (bits - 1))


def sort_key(value: Value, kind: DType, descending: bool) -> Value:
    """An unsigned number that grows in the order wanted; the largest of all for NaN."""
    dtype = value.dtype
    every = ir.const(kind, -1)
    if not dtype.is_float:
        key = ir.cast(value, kind) if dtype == BOOL else ir.bitcast(value, kind)
        if dtype.kind == "i":
            key = key ^ (1 << (dtype.bits - 1))
        return key ^ every if descending else key
    if dtype.is_half:
        value = ir.cast(value, FLOAT32)
    # Zeros are equal, whatever their sign.
    bits = ir.bitcast(value + 0.0, kind)
    sign = ir.const(kind, 1 << (kind.bits - 1))
    key = bits ^ ir.select((bits & sign).ne(0), every, sign)
    key = key ^ every if descending else key
    return ir.select(value.ne(value), every, key)


def key_element(key: Value, dtype: DType, descending: bool) -> Value:
    """The element that a key was made of; 0 and some NaN for strays."""
    kind = key.dtype
    every, sign = ir.const(kind, -1), ir.const(kind, 1 << (kind.bits - 1))
    if descending:
        key = key ^ every
    if dtype == BOOL:
        return ir.cast(key, BOOL)
    if not dtype.is_float:
        return ir.bitcast(key ^ sign if dtype.kind == "i" else key, dtype)
    bits = key ^ ir.select((key & sign).ne(0), sign, every)
    return ir.cast(ir.bitcast(bits, dtype.compute), dtype)


def is_stray(value: Value) -> Value:
    """Whether the element is one that its key does not tell: -0 or NaN."""
    wide = ir.cast(value, value.dtype.compute)
    kind = _SIGNED[wide.dtype.bits]
    return ir.bitcast(wide, kind).eq(ir.const(kind, -1 << (kind.bits - 1))) | wide.ne(wide)


def stray_elements(row: Row, names: Names) -> tuple[Statement, ...]:
    """Store the zeros and NaNs of a sorted row again, each kind in the order of its places."""
    zero, nan = (Local(names("p"), INT64) for _ in range(2))
    one = ir.const(INT64, 1)
    t = Index(names("t"), row.length)
    value = ir.cast(row.element(t), row.source.dtype.compute)
    is_before = value > 0.0 if row.descending else value < 0.0
    count = (
        ir.Assign(zero, ir.local(zero) + ir.cast(is_before, INT64)),
        ir.Assign(nan, ir.local(nan) - ir.cast(value.ne(value), INT64)),
    )
    again = Index(names("t"), row.length)
    value = ir.cast(row.element(again), row.source.dtype.compute)
    put: list[Statement] = []
    for is_one, place in ((value.eq(0.0), zero), (value.ne(value), nan)):
        to = Index(names("x"), row.length)
        put.append(
            ir.If(
                is_one,
                (
                    ir.Bind(to, ir.local(place)),
                    ir.Store(row.out, row.place(to), row.element(again)),
                    ir.Assign(place, ir.local(place) + one),
                ),
            )
        )
    return (
        ir.Declare(zero, ir.const(INT64, 0)),
        ir.Declare(nan, ir.index(row.length)),
        ir.Loop(t, 0, row.length, count),
        ir.Loop(again, 0, row.length, tuple(put)),
    )
