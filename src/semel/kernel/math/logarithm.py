"""log and its relatives: log2, log10, log1p, asinh, acosh, atanh.

    log(x) = e * ln 2 + log(1 + f),  x = 2**e * (1 + f),  1 + f in [sqrt(1/2), sqrt(2))

All bases share one approximation of log(1 + f) - f, which is small against f, so that its
rounding hardly counts; f times the base's factor is added last, with one rounding.
Denormals are scaled up first. Coefficients are minimax fits made for this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from semel.ir.types import FLOAT32
from semel.kernel.ir import Value, const, fma, op, select
from semel.kernel.math.common import (
    Format,
    absolute,
    bits,
    format_of,
    from_bits,
    horner,
    is_zero,
    power_of_two,
    sign_bits,
    to_float,
    with_sign_bits,
)

_LN2 = "0.693147180559945309417232121458176568075500134360255"

#: log(1+f) = f + f*f*q(f), float32.
_LOG = (-0.4999998834639031, 0.3333332569187494, -0.25001582962832963, 0.20001973938092457,
        -0.16609082519317175, 0.14181825003172324, -0.13242988263060224, 0.12904434354947814,
        -0.07621777956279711)  # fmt: skip
#: log((1+s)/(1-s)) = 2*s + s**3 * r(s*s), float64.
_LOG_R = (0.6666666666666735, 0.39999999999413005, 0.2857142874279491, 0.2222219852804302,
          0.18183566835061893, 0.1531398241292193, 0.14796669189431322)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Base:
    """1 / ln(base) and log of 2 in that base, as decimals; None for exactly 1."""

    factor: str | None
    two: str | None


_E = _Base(None, _LN2)
_TWO = _Base("1.442695040888963407359924681001892137426645954152986", None)
_TEN = _Base(
    "0.434294481903251827651128918916605082294397005803667",
    "0.301029995663981195213738894724493026768189881462109",
)


def split_exponent(x: Value) -> tuple[Value, Value]:
    """x = 2**e * m for positive normal x; m in [sqrt(1/2), sqrt(2)), e an integer value."""
    form = format_of(x)
    b = bits(x)
    e = (b - _float_bits(math.sqrt(0.5), form)) >> form.mantissa
    return from_bits(b - (e << form.mantissa), x), e


def _float_bits(value: float, form: Format) -> int:
    mantissa, exponent = math.frexp(float(form.const(value).data))
    fraction = int((mantissa * 2 - 1) * 2**form.mantissa)
    return ((exponent - 1 + form.bias) << form.mantissa) + fraction


def _log1p_minus_f(f: Value) -> Value:
    """log(1 + f) - f."""
    if f.dtype == FLOAT32:
        return (f * f) * horner(f, _LOG)
    s = f / (f + 2.0)
    w = s * s
    half_square = (f * f) * 0.5
    return fma(s, fma(w, horner(w, _LOG_R), half_square), op("neg", half_square))


def _combine(e: Value, f: Value, base: _Base, form: Format) -> Value:
    """The logarithm of 2**e * (1 + f) in a base; e as a float."""
    rest = _log1p_minus_f(f)
    if base.factor is None:
        fraction = rest
        last = f
    else:
        high, low = form.split(base.factor)
        fraction = fma(f, low, rest * high)
        last = fma(f, high, fraction)
    if base.two is None:
        return e + last
    two_high, two_low = form.split(base.two)
    if base.factor is None:
        return fma(e, two_high, f + fma(e, two_low, fraction))
    return fma(e, two_high, fma(e, two_low, last))


def _positive_log(x: Value, base: _Base) -> Value:
    """The logarithm of a positive finite x; anything for other x."""
    form = format_of(x)
    tiny = x < form.min_normal
    shift = form.mantissa + 2
    m, e = split_exponent(select(tiny, x * 2.0**shift, x))
    exponent = to_float(e, form) - select(tiny, form.const(float(shift)), form.const(0.0))
    return _combine(exponent, m - 1.0, base, form)


def _with_special_values(x: Value, result: Value) -> Value:
    """log(0) = -inf, log(inf) = inf, log(negative or NaN) = NaN."""
    form = format_of(x)
    infinity = form.const(math.inf)
    beyond = select(is_zero(x), form.const(-math.inf), form.const(math.nan))
    return select(x > 0.0, select(op("lt", x, infinity), result, infinity), beyond)


def log(x: Value) -> Value:
    """Natural logarithm."""
    return _with_special_values(x, _positive_log(x, _E))


def log2(x: Value) -> Value:
    """Logarithm to base 2; exact for powers of two."""
    return _with_special_values(x, _positive_log(x, _TWO))


def log10(x: Value) -> Value:
    """Logarithm to base 10."""
    return _with_special_values(x, _positive_log(x, _TEN))


def log1p(x: Value) -> Value:
    """log(1 + x), exact near 0."""
    return _log1p_plus(x, None)


def _log1p_plus(x: Value, more: Value | None) -> Value:
    """log(1 + x) + more; f is formed from x itself, so that no bit of it is lost in 1 + x."""
    form = format_of(x)
    total = x + 1.0
    m, e = split_exponent(total)
    scale = power_of_two(op("neg", e), form)
    # Beyond 2**60 adding 1 changes nothing, and 2**-e may be denormal.
    f = select(x > 2.0**60, m - 1.0, fma(x, scale, scale - 1.0))
    result = _combine(to_float(e, form), f, _E, form)
    if more is not None:
        result = result + more
    return select(is_zero(x), x, _with_special_values(total, result))


def asinh(x: Value) -> Value:
    """Inverse of sinh: log1p(a + a*a / (1 + sqrt(a*a + 1))) with a = |x|."""
    a = absolute(x)
    huge = a > 2.0**60
    square = a * a
    argument = a + square / (op("sqrt", square + 1.0) + 1.0)
    magnitude = _log1p_plus(select(huge, a, argument), _ln2_where(huge, x))
    return with_sign_bits(magnitude, sign_bits(x))


def acosh(x: Value) -> Value:
    """Inverse of cosh: log1p(t + sqrt(2*t + t*t)) with t = x - 1; NaN below 1."""
    t = x - 1.0
    huge = x > 2.0**60
    argument = t + op("sqrt", fma(t, t, t + t))
    result = _log1p_plus(select(huge, x, argument), _ln2_where(huge, x))
    return select(x >= 1.0, result, const(x.dtype, math.nan))


def _ln2_where(condition: Value, like: Value) -> Value:
    return select(condition, const(like.dtype, math.log(2.0)), const(like.dtype, 0.0))


def atanh(x: Value) -> Value:
    """Inverse of tanh: log1p(2*a / (1 - a)) / 2 with a = |x|."""
    a = absolute(x)
    magnitude = log1p((a + a) / (format_of(x).const(1.0) - a)) * 0.5
    return with_sign_bits(magnitude, sign_bits(x))
