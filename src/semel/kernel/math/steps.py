"""Numbers counted in steps: floats that are rounded, shifted and saturated to small integers.

    cast(rint(x / scale) + zero)  -->  the low bits of clamp(x / scale) + magic, + zero

The bits of a sum with the magic constant end with the nearest whole number, to even between two,
so that clamping and one addition do what rounding, shifting, clamping and converting did.
A division by a constant becomes a product and an fma if that finds every step at the same x:
both grow with x, so that they agree everywhere if they do beside each place where a step begins.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from semel.ir.types import FLOAT32, INT32, DType
from semel.kernel.math.common import FORMATS
from semel.kernel.values import Value, bitcast, cast, const, fma, op, select

#: Integers whose steps are few enough to look at each.
_FEW_BITS = 8
#: Whole numbers below this are exact beside the magic constant, also with a zero point.
_MOST_BITS = 16
#: Divisors between this and its inverse have inverses in two parts that are normal numbers.
_LEAST_DIVISOR = 2.0**-60
#: Floats on both sides of the place where a step begins that are looked at.
_BESIDE = 4


def is_step_cast(value: Value) -> bool:
    """Whether a value is a rounded float32 as a small integer."""
    return value.op == "cast" and _parts(value.args[0], value.dtype) is not None


def step_cast(value: Value, dtype: DType) -> Value:
    """The float, which is rounded and maybe shifted, as a small integer: saturated, NaN as 0."""
    found = _parts(value, dtype)
    assert found is not None
    number, zero = found
    low, high = int(dtype.lowest) - zero, int(dtype.highest) - zero
    number = _quotient(number, low, high)
    if low != -zero:  # else NaN becomes `low`, which stands for 0
        number = select(op("eq", number, number), number, const(FLOAT32, -zero))
    # -0.0: of a choice between a number and 0.0 LLVM makes a mask, and no maximum.
    least, most = const(FLOAT32, float(low or -0.0)), const(FLOAT32, float(high))
    number = select(op("gt", number, least), number, least)
    number = select(op("lt", number, most), number, most)
    whole = bitcast(number + FORMATS[FLOAT32].magic, INT32)
    return cast(whole, dtype) + _wrapped(zero, dtype) if zero else cast(whole, dtype)


def _parts(value: Value, dtype: DType) -> tuple[Value, int] | None:
    """What is rounded, and the whole number that is added, if that is all."""
    if dtype.is_float or dtype.is_narrow or dtype.bits > _MOST_BITS or dtype.kind not in "iu":
        return None
    zero = 0.0
    if value.op == "add":
        a, b = value.args
        value, added = (b, a) if a.op == "const" else (a, b)
        if added.op != "const":
            return None
        zero = float(added.data)
    if value.op != "rint" or value.dtype != FLOAT32:
        return None
    if not zero.is_integer() or abs(zero) >= 1 << _MOST_BITS:
        return None
    return value.args[0], int(zero)


def _wrapped(number: int, dtype: DType) -> Value:
    """A number modulo what the dtype can hold."""
    low = int(dtype.lowest)
    return const(dtype, (number - low) % (1 << dtype.bits) + low)


def _quotient(value: Value, low: int, high: int) -> Value:
    """The value, without a division that is not needed to round it to one of these numbers."""
    if value.op != "div" or value.args[1].op != "const" or high - low >= 1 << _FEW_BITS:
        return value
    dividend, divisor = value.args
    inverse = _inverse(float(divisor.data), low, high)
    if inverse is None:
        return value
    near, rest = (const(FLOAT32, part) for part in inverse)
    return fma(dividend, near, dividend * rest) if inverse[1] else dividend * near


@lru_cache(maxsize=256)
def _inverse(divisor: float, low: int, high: int) -> tuple[float, float] | None:
    """Two floats whose sum is nearly 1 / divisor: x * near + x * rest, rounded as an fma is, leads
    to the same whole number as x / divisor for all x, if that lies in [low, high] or saturates.

    Neither is negative, so that infinities stay what they are.
    """
    if not _LEAST_DIVISOR < divisor < 1 / _LEAST_DIVISOR:
        return None
    near = np.float32(1 / divisor)
    if float(near) * divisor > 1:
        near = np.nextafter(near, np.float32(0))
    rest = np.float32((1 - float(near) * divisor) / divisor)
    inverse = float(near), float(rest)
    return inverse if finds_every_step(divisor, *inverse, low, high) else None


def finds_every_step(divisor: float, near: float, rest: float, low: int, high: int) -> bool:
    """Whether fma(x, near, x * rest) rounds up to each of (low, high] from the x on from which
    x / divisor does."""
    begins = np.arange(low, high) + 0.5
    x = (begins * divisor).astype(np.float32).view(np.int32)[:, None]
    beside = np.arange(-_BESIDE, _BESIDE + 1, dtype=np.int32)
    x = np.where(begins[:, None] > 0, x + beside, x - beside).astype(np.int32).view(np.float32)
    wanted = np.rint(x / np.float32(divisor))
    exact = x.astype(np.float64) * near + (x * np.float32(rest)).astype(np.float64)
    found = exact.astype(np.float32)
    # Rounded to float64 first: beside the middle of two floats it may be the other one.
    other = np.nextafter(found, np.where(exact > found, np.inf, -np.inf).astype(np.float32))
    is_sure = np.abs(exact - found) < np.abs(exact - other) - 2.0**-50 * np.abs(exact)
    agrees = (np.rint(found) == wanted) & (is_sure | (np.rint(other) == wanted))
    brackets = (wanted[:, 0] == begins - 0.5) & (wanted[:, -1] == begins + 0.5)
    return bool(np.all(agrees) and np.all(brackets))
