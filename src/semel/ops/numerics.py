"""Arithmetic in NumPy, with every corner defined: the truth that kernels must match.

    arrays of one dtype --> array

Integers wrap. `idiv` rounds down and `imod` takes the sign of the divisor; x idiv 0 and
x imod 0 are 0, and INT_MIN idiv -1 wraps to INT_MIN. A shift amount is taken as a number
of its dtype: below 0 or past the width, `shl` gives 0 and `shr` gives what an endless
shift gives, 0 or -1 by the sign. A float becomes an integer by truncation, then
saturates; NaN becomes 0. An integer becomes a narrower one by wrapping. Anything becomes
bool by `!= 0`. What casts to narrow dtypes give is defined in `semel.ir.narrow`.

float16 and bfloat16 compute in float32 and round once per op; conversions to them round
once, too, from float64. Functions with no exact answer (exp, erf, pow, ...) are computed in
float64 and rounded once, which is closer to the truth than NumPy's own float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from semel.ir.half import round_to_half
from semel.ir.narrow import from_narrow, to_narrow
from semel.ir.types import BOOL, FLOAT64, DType

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def widen(x: Array, dtype: DType) -> Array:
    """The operand as arithmetic sees it: half types in float32."""
    return x.astype(dtype.compute.numpy) if dtype.is_half else x


def exact(function: Function) -> Function:
    """An op whose result is rounded correctly: computed in the compute dtype."""

    def apply(dtype: DType, *operands: Array) -> Array:
        result = function(*(widen(x, dtype) for x in operands))
        return np.asarray(result)

    return apply


def approximate(function: Function) -> Function:
    """A function computed in float64 and rounded to the compute dtype."""

    def apply(dtype: DType, *operands: Array) -> Array:
        result = function(*(x.astype(np.float64) for x in operands))
        return np.asarray(result).astype(dtype.compute.numpy)

    return apply


def convert(x: Array, source: DType, target: DType) -> Array:
    """The `cast` op: numeric conversion with the rules on top of this file."""
    if source == target:
        return x
    if source.is_narrow:
        x, source = from_narrow(x, source), source.compute
    if target.is_narrow:
        return to_narrow(x, target)
    if target == BOOL:
        return np.asarray(x != 0)
    if source.is_float and target.is_integer:
        return _saturate(x.astype(np.float64), target)
    if target.is_half and source.bits > 16:
        return round_to_half(x, target)
    return widen(x, source).astype(target.numpy)


def _saturate(x: Array, target: DType) -> Array:
    low, high = int(target.lowest), int(target.highest)
    # high + 1 is a power of two, so it is a float64 where high itself may not be.
    too_high, too_low = x >= float(high + 1), x <= float(low)
    inside = np.where(too_high | too_low | np.isnan(x), 0.0, np.trunc(x))
    result = inside.astype(target.numpy)
    result = np.where(too_high, np.asarray(high, target.numpy), result)
    return np.where(too_low, np.asarray(low, target.numpy), result)


def floor_divide(a: Array, b: Array) -> Array:
    """`idiv`: floats as NumPy, integers with the rules on top of this file."""
    if a.dtype.kind == "f":
        return np.asarray(np.floor_divide(a, b))
    safe = np.where(b == 0, np.asarray(1, b.dtype), b)
    return np.where(b == 0, np.asarray(0, a.dtype), np.floor_divide(a, safe))


def floor_mod(a: Array, b: Array) -> Array:
    """`imod`: floats as NumPy, integers with the rules on top of this file."""
    if a.dtype.kind == "f":
        return np.asarray(np.remainder(a, b))
    safe = np.where(b == 0, np.asarray(1, b.dtype), b)
    return np.where(b == 0, np.asarray(0, a.dtype), np.remainder(a, safe))


def shift_left(a: Array, b: Array) -> Array:
    """a << b; 0 where b is negative or not less than the width."""
    width = a.dtype.itemsize * 8
    legal = (b >= 0) & (b < width)
    amount = np.where(legal, b, np.asarray(0, b.dtype))
    return np.where(legal, np.left_shift(a, amount), np.asarray(0, a.dtype))


def shift_right(a: Array, b: Array) -> Array:
    """a >> b with the sign shifted in; 0 or -1 where b is negative or not less than the width."""
    width = a.dtype.itemsize * 8
    legal = (b >= 0) & (b < width)
    amount = np.where(legal, b, np.asarray(0, b.dtype))
    fill = np.right_shift(a, np.asarray(width - 1, a.dtype)) if a.dtype.kind == "i" else a * 0
    return np.where(legal, np.right_shift(a, amount), fill)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


_erf = np.frompyfunc(math.erf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def erf(x: Array) -> Array:
    """The error function; NumPy has none, so the C library's is applied per element."""
    return np.asarray(_erf(x)).astype(FLOAT64.numpy)


def gelu(x: Array) -> Array:
    """x * Phi(x), with erfc on the negative side, where 1 + erf would cancel."""
    half_tail = 0.5 * np.asarray(_erfc(-x * math.sqrt(0.5))).astype(FLOAT64.numpy)
    return np.asarray(x * half_tail)
