"""Casts to and from narrow dtypes, in values of the kernel IR.

    byte  --widened-->  float32 | int8 | uint8          any number  --narrowed-->  byte

A kernel loads, selects and stores narrow elements as the bytes they are; these expressions are all
that computes with them. They follow the table in `semel.ir.narrow`, which says what they mean.
There is no look-up: a vector of bytes becomes a vector of floats in a dozen instructions.
"""

from __future__ import annotations

from semel.ir.narrow import FLOATS, SMALLEST_POWER, FloatForm
from semel.ir.types import (
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    UINT8,
    UINT16,
    UINT32,
    DType,
)
from semel.kernel.values import Value, bitcast, cast, const, op, select

_INFINITY = 0x7F800000
_NAN = 0x7FC00000


def is_narrow_cast(value: Value) -> bool:
    """Whether a value is a cast that is written out here."""
    return value.op == "cast" and (value.dtype.is_narrow or value.args[0].dtype.is_narrow)


def narrow_cast(value: Value, dtype: DType) -> Value:
    """The value in another dtype, where one of the two is narrow."""
    if value.dtype.is_narrow:
        value = widened(value)
    return narrowed(value, dtype) if dtype.is_narrow else cast(value, dtype)


# ---------------------------------------------------------------- out of the byte


def widened(value: Value) -> Value:
    """The number, exactly: a float32, or an integer of one byte."""
    dtype, byte = value.dtype, bitcast(value, UINT8)
    if dtype == FLOAT8_E8M0FNU:
        return _power_of_two(byte)
    if dtype.is_float:
        form = FLOATS[dtype]
        return _widened_half(byte, form) if form.fits_half else _widened_float(byte, form)
    low = byte & ((1 << dtype.bits) - 1)
    if dtype.kind == "u":
        return low
    sign = 1 << (dtype.bits - 1)
    return bitcast(low ^ sign, INT8) - sign


def _widened_half(byte: Value, form: FloatForm) -> Value:
    """By way of a float16 of the same exponent and mantissa, which machines widen at once."""
    word = cast(byte, UINT16)
    shift = 10 - form.mantissa
    half = (word & form.mask) << shift
    half = half | ((word & form.sign) << (16 - form.sign.bit_length()))
    number = cast(bitcast(half, FLOAT16), FLOAT32)
    if form.bias != 15:
        number = number * 2.0 ** (15 - form.bias)
    if form.nan is None or form.past < form.nan:  # none, or those of float16
        return number
    if form.signed_zero:
        is_nan = op("abs", number) > form.highest
    else:
        is_nan = bitcast(number, UINT32).eq(1 << 31)
    return select(is_nan, bitcast(bitcast(number, UINT32) | _NAN, FLOAT32), number)


def _widened_float(byte: Value, form: FloatForm) -> Value:
    """By its bits: the exponent with another bias, or a multiple of the smallest number."""
    word = cast(byte, UINT32)
    size = word & form.mask
    shift = 23 - form.mantissa
    usual = (size << shift) + ((127 - form.bias) << 23)
    # Below the normal numbers the code counts the smallest one.
    smallest = 2.0 ** (1 - form.bias - form.mantissa)
    small = bitcast(cast(bitcast(size, INT32), FLOAT32) * smallest, UINT32)
    bits = select(size < (1 << form.mantissa), small, usual)
    bits = bits | ((word & form.sign) << (32 - form.sign.bit_length()))
    return bitcast(select(word.eq(form.nan), bits | _NAN, bits), FLOAT32)


def _power_of_two(byte: Value) -> Value:
    word = cast(byte, UINT32)
    bits = select(word.eq(0), const(UINT32, SMALLEST_POWER), word << 23)
    return bitcast(select(word.eq(255), const(UINT32, _NAN), bits), FLOAT32)


# ---------------------------------------------------------------- into the byte


def narrowed(value: Value, dtype: DType) -> Value:
    """The nearest of the dtype, saturated; an integer's low bits."""
    if not dtype.is_float:
        return bitcast(_low_bits(value, 1 << dtype.bits), dtype)
    if dtype == FLOAT8_E8M0FNU:
        return bitcast(_exponent_above(cast(value, FLOAT32)), dtype)
    return bitcast(_narrowed_float(cast(value, FLOAT32), FLOATS[dtype]), dtype)


def _low_bits(value: Value, count: int) -> Value:
    """A whole number modulo a power of two: exact in every step, and NaN for infinities."""
    if not value.dtype.is_float:
        return cast(value, UINT8) & (count - 1)
    whole = op("trunc", value if value.dtype == FLOAT64 else cast(value, FLOAT32))
    return cast(whole - op("floor", whole * (1.0 / count)) * float(count), UINT8)


def _narrowed_float(value: Value, form: FloatForm) -> Value:
    bits = bitcast(value, UINT32)
    size = bits & 0x7FFFFFFF
    shift = 23 - form.mantissa
    odd = (size >> shift) & 1
    # Half of the last place, to nearest even, and the other bias: in one addition that may wrap.
    usual = (size + odd + ((1 << (shift - 1)) - 1 - ((127 - form.bias) << 23))) >> shift
    # Beside a number whose last place is the smallest one, adding rounds.
    exponent = 24 - form.bias - form.mantissa
    small = bitcast(bitcast(size, FLOAT32) + 2.0**exponent, UINT32) - ((127 + exponent) << 23)
    is_small = size < ((128 - form.bias) << 23)
    code = op("min", select(is_small, small, usual), const(UINT32, form.largest))
    sign = (bits >> (32 - form.sign.bit_length())) & form.sign
    is_nan = size > _INFINITY
    if form.nan is None:  # as ml_dtypes has it, a zero of the other sign
        code = select(is_nan, const(UINT32, 0), code)
        sign = select(is_nan, sign ^ form.sign, sign)
    else:
        code = select(is_nan, const(UINT32, form.nan), code)
    if not form.signed_zero:
        sign = select(code.eq(0), const(UINT32, 0), sign)
    return cast(code | sign, UINT8)


def _exponent_above(value: Value) -> Value:
    """The biased exponent of the next power of two, at most 254; 255 is NaN, also for inf."""
    size = bitcast(value, UINT32) & 0x7FFFFFFF
    exponent = op("min", (size + 0x7FFFFF) >> 23, const(UINT32, 254))
    exponent = select(size > SMALLEST_POWER, exponent, const(UINT32, 0))
    return cast(select(size >= _INFINITY, const(UINT32, 255), exponent), UINT8)
