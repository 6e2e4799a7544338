"""What the math functions share: float formats, polynomials, bit tricks.

    Value --> Value

Each helper builds arithmetic on scalar values and knows nothing of the machine. Constants
stand first in clamps (`C > x ? C : x`): that form is one instruction on vector units and
lets a NaN in `x` through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from semel.ir.types import FLOAT32, FLOAT64, INT32, INT64, DType
from semel.kernel.ir import Value, bitcast, cast, const, fma, op, select


@dataclass(frozen=True, slots=True)
class Format:
    """A binary float format and the integer dtype of its width."""

    dtype: DType
    integer: DType
    mantissa: int  # explicit bits
    bias: int

    @property
    def magic(self) -> float:
        """Added to x, it leaves round(x) in the low bits of the sum."""
        return 1.5 * 2.0**self.mantissa

    @property
    def sign_bit(self) -> int:
        return 1 << (self.integer.bits - 1)

    @property
    def min_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    def const(self, value: float) -> Value:
        return const(self.dtype, value)

    def split(self, number: str) -> tuple[float, float]:
        """A decimal number as the nearest float and what is left of it."""
        high, low = split_decimal(number)
        if self.dtype == FLOAT64:
            return high, low
        nearest = float(const(FLOAT32, high).data)
        return nearest, (high - nearest) + low


FORMATS = {
    FLOAT32: Format(FLOAT32, INT32, 23, 127),
    FLOAT64: Format(FLOAT64, INT64, 52, 1023),
}


def split_decimal(number: str) -> tuple[float, float]:
    """A decimal string as two float64 whose sum has twice the precision."""
    digits = number.replace(".", "")
    scale = 10 ** (len(number) - number.index(".") - 1)
    high = int(digits) / scale  # Python rounds this quotient correctly
    numerator, denominator = high.as_integer_ratio()
    rest = int(digits) * denominator - numerator * scale
    return high, rest / (scale * denominator)


def format_of(value: Value) -> Format:
    """The format of a float32 or float64 value."""
    return FORMATS[value.dtype]


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial with the given coefficients, constant term first."""
    result = const(x.dtype, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def at_least(x: Value, low: float) -> Value:
    """max(low, x) where NaN stays NaN."""
    bound = const(x.dtype, low)
    return select(op("gt", bound, x), bound, x)


def at_most(x: Value, high: float) -> Value:
    """min(high, x) where NaN stays NaN."""
    bound = const(x.dtype, high)
    return select(op("lt", bound, x), bound, x)


def clamp(x: Value, low: float, high: float) -> Value:
    """x moved into [low, high]; NaN stays NaN."""
    return at_most(at_least(x, low), high)


def bits(x: Value) -> Value:
    """The bits of a float as a signed integer."""
    return bitcast(x, format_of(x).integer)


def from_bits(b: Value, like: Value) -> Value:
    """The float of `like`'s dtype with these bits."""
    return bitcast(b, like.dtype)


def power_of_two(exponent: Value, form: Format) -> Value:
    """2**exponent for an integer exponent in the normal range."""
    return bitcast((exponent + form.bias) << form.mantissa, form.dtype)


def sign_bits(x: Value) -> Value:
    """The sign bit alone, as an integer."""
    return bits(x) & format_of(x).sign_bit


def with_sign_bits(magnitude: Value, sign: Value) -> Value:
    """A float with `sign` xor-ed into its bits: a non-negative magnitude takes that sign."""
    return from_bits(bits(magnitude) ^ sign, magnitude)


def absolute(x: Value) -> Value:
    """|x|."""
    return op("abs", x)


def is_zero(x: Value) -> Value:
    """Whether x is +0 or -0."""
    return x.eq(0.0)


def to_float(exponent: Value, form: Format) -> Value:
    """A small integer as a float."""
    if form.dtype == FLOAT32:
        return cast(exponent, FLOAT32)
    # AVX2 has no conversion from 64-bit integers; the magic constant has.
    magic = form.const(form.magic)
    return bitcast(exponent + _float64_bits(form.magic), FLOAT64) - magic


def _float64_bits(value: float) -> int:
    mantissa, exponent = math.frexp(value)
    return ((exponent + 1022) << 52) + int((mantissa * 2 - 1) * 2**52)


def minus(x: Value) -> Value:
    """-x."""
    return op("neg", x)
