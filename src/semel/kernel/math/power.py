"""pow, with the sign and the special values of C99.

    x ** y = +-2**(y * log2|x|)

float32 does it in float64, where rounding to float32 at the end also makes overflow and
gradual underflow. float64 carries log2|x| and its product with y as pairs of floats, as
the product may be near 1000 and all of its error ends up in the result. Coefficients are
minimax fits made for this file.
"""

from __future__ import annotations

import math

from semel.ir.types import FLOAT32, FLOAT64
from semel.kernel.ir import Value, bitcast, cast, const, fma, op, select
from semel.kernel.math.common import (
    absolute,
    bits,
    clamp,
    format_of,
    horner,
    minus,
    sign_bits,
    to_float,
    with_sign_bits,
)
from semel.kernel.math.exponential import EXP2, round_biased
from semel.kernel.math.logarithm import split_exponent

_LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)
#: log2((1+s)/(1-s)) = s * p(s*s), for a float32 result.
_LOG2 = (2.885390081790074, 0.9617966733263734, 0.5770835898529572, 0.4116723631998739,
         0.34073746256973947)  # fmt: skip
#: 2**r = 1 + r*q(r), for a float32 result.
_EXP2_SHORT = (0.6931471807044428, 0.24022651066591358, 0.0555041036609922, 0.009618038127983978,
               0.0013333935009137454, 0.00015466757524290853, 1.5196163991742315e-05)  # fmt: skip
#: log((1+s)/(1-s)) = 2*s * (1 + w/3 + w*w * p(w)), w = s*s.
_LOG_TAIL = (0.2000000000000113, 0.14285714285048157, 0.1111111126026225, 0.09090892156482493,
             0.07693379945143895, 0.06628378384278018, 0.06598453356227597)  # fmt: skip


def power(x: Value, y: Value) -> Value:
    """x ** y; NaN for a negative x unless y is an integer. x ** 1 is x, and x ** 2 is x*x."""
    if y.op == "const":
        return {1.0: x, 2.0: x * x}.get(y.data) or _power(x, y)
    return select(y.eq(1.0), x, select(y.eq(2.0), x * x, _power(x, y)))


def _power(x: Value, y: Value) -> Value:
    magnitude = _power_float32(x, y) if x.dtype == FLOAT32 else _power_float64(x, y)
    infinity = format_of(x).const(math.inf)
    is_integer = op("trunc", y).eq(y)
    half = y * 0.5
    is_odd = op("and", is_integer, op("trunc", half).ne(half))
    signed = with_sign_bits(magnitude, select(is_odd, sign_bits(x), bits(format_of(x).const(0.0))))
    fails = op("and", op("and", x < 0.0, op("lt", minus(infinity), x)), op("not", is_integer))
    return select(fails, format_of(x).const(math.nan), signed)


def _exponent_is_zero(x: Value, y: Value) -> Value:
    """Where the result is 1 whatever the logarithm says: 1**y, x**0, (-1)**inf."""
    either = op("or", x.eq(1.0), y.eq(0.0))
    turning = op("and", absolute(x).eq(1.0), absolute(y).eq(math.inf))
    return op("or", either, turning)


def _at_the_ends(a: Value, logarithm: Value) -> Value:
    """log2 of 0, infinity and NaN, which have no exponent to split off."""
    infinity = const(a.dtype, math.inf)
    beyond = select(a.eq(0.0), minus(infinity), a)
    inside = op("and", a > 0.0, op("lt", a, infinity))
    return select(inside, logarithm, beyond)


def _power_float32(x: Value, y: Value) -> Value:
    form = format_of(const(FLOAT64, 0.0))
    a = cast(absolute(x), FLOAT64)
    m, e = split_exponent(a)
    s = (m - 1.0) / (m + 1.0)
    logarithm = _at_the_ends(a, fma(s, horner(s * s, _LOG2), to_float(e, form)))
    product = logarithm * cast(y, FLOAT64)
    product = select(_exponent_is_zero(x, y), form.const(0.0), clamp(product, -200.0, 200.0))
    magic = form.magic + form.bias
    shifted = product + magic
    fraction = product - (shifted - magic)
    scale = bitcast(bits(shifted) << form.mantissa, FLOAT64)
    return cast(horner(fraction, (1.0, *_EXP2_SHORT)) * scale, FLOAT32)


def _fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and its error, for |a| >= |b|."""
    total = a + b
    return total, b - (total - a)


def _multiply_pairs(a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    product = a[0] * b[0]
    error = fma(a[0], b[0], minus(product))
    return product, fma(a[0], b[1], fma(a[1], b[0], error))


def _log2_pair(a: Value) -> tuple[Value, Value]:
    """log2(a) for positive finite a, as a pair with about 10 bits beyond float64."""
    form = format_of(a)
    tiny = a < form.min_normal
    m, e = split_exponent(select(tiny, a * 2.0**54, a))
    exponent = to_float(e, form) - select(tiny, form.const(54.0), form.const(0.0))
    f = m - 1.0
    d = m + 1.0
    d_low = m - (d - 1.0)
    s = f / d
    s_low = fma(minus(s), d_low, fma(minus(s), d, f)) / d
    w = s * s
    w_low = fma(s, s, minus(w)) + (s + s) * s_low
    third = form.const(1.0 / 3.0)
    q = w * third
    q_low = fma(w, third, minus(q)) + fma(w, 1.850371707708594e-17, w_low * third)
    g, g_low = _fast_two_sum(q, fma(w * w, horner(w, _LOG_TAIL), q_low))
    h, h_low = _fast_two_sum(form.const(1.0), g)
    series = _multiply_pairs((s, s_low), (h, h_low + g_low))
    factor = (form.const(2 * _LOG2_E[0]), form.const(2 * _LOG2_E[1]))
    high, low = _multiply_pairs(series, factor)
    # The exponent is 0, or larger than the logarithm of the mantissa (at most 1/2).
    total, error = _fast_two_sum(exponent, high)
    return total, error + low


def _power_float64(x: Value, y: Value) -> Value:
    form = format_of(x)
    a = absolute(x)
    high, low = _log2_pair(a)
    high = _at_the_ends(a, high)
    product = high * y
    usable = absolute(product) < 1100.0
    low = select(usable, fma(high, y, minus(product)) + low * y, form.const(0.0))
    product = select(_exponent_is_zero(x, y), form.const(0.0), clamp(product, -1100.0, 1100.0))
    n, _ = round_biased(product, 1.0, form)
    fraction = (product - n) + select(product.eq(0.0), form.const(0.0), low)
    return op("ldexp", horner(fraction, (1.0, *EXP2[53])), n)
