"""sin, cos, tan and their inverses.

    x = (n + f) * pi/2,  |f| <= 1/2,  then polynomials in r = f * pi/2

float32 reduces in float64: the product of x with 2/pi, in two parts, is exact enough up to
2**50. Above, x is y * 2**s for one of three s, and multiples of 4 in 2**s * 2/pi do not
matter, so another two-part constant takes the place of 2/pi: all of float32 is covered
without integer multiplication or a table in memory. float64 subtracts n * pi/2 in three
parts, which is exact enough up to 2**50 (1e15); beyond, it multiplies the mantissa by the
bits of 2/pi that matter (`semel.kernel.math.payne_hanek`).

The inverses reduce with symmetries to one odd polynomial on [0, 1/2] (asin) or [0, 1]
(atan). Coefficients are minimax fits made for this file.
"""

from __future__ import annotations

from semel.ir.types import FLOAT32, FLOAT64, INT32, INT64
from semel.kernel.ir import Value, bitcast, cast, const, fma, op, select
from semel.kernel.math.common import (
    FORMATS,
    Format,
    absolute,
    format_of,
    horner,
    is_zero,
    minus,
    sign_bits,
    with_sign_bits,
)
from semel.kernel.math.payne_hanek import reduce_huge
from semel.kernel.math.pi import HALF_PI, half_pi_parts, two_over_pi_mod_4

#: sin(r) = r + r**3 * p(r*r) and cos(r) = 1 - r*r/2 + r**4 * p(r*r) on |r| <= pi/4
#: (float32: 0.985, as n is found from the larger part of 2/pi alone).
_SIN = {
    24: (-0.1666666716337204, 0.008333317935466766, -0.00019836414139717817,
         2.696594265216845e-06),
    53: (-0.1666666666666663, 0.00833333333332199, -0.0001984126982948264,
         2.755731358330283e-06, -2.5050741657255732e-08, 1.5895868484433435e-10),
}  # fmt: skip
_COS = {
    24: (0.04166663438081741, -0.0013886010274291039, 2.4272463633678854e-05),
    53: (0.04166666666666659, -0.001388888888887275, 2.480158728865983e-05,
         -2.755731412393658e-07, 2.087569333065205e-09, -1.135814830305496e-11),
}  # fmt: skip
#: asin(z) = z + z**3 * p(z*z) on |z| <= 1/2.
_ASIN = {
    24: (0.16666752099990845, 0.07495282590389252, 0.04547236114740372, 0.024169227108359337,
         0.0421844981610775),
    53: (0.16666666666666763, 0.07499999999970473, 0.04464285717492609, 0.030381942692646907,
         0.022372215415947385, 0.01735160427059441, 0.013980914217059206, 0.011398136822798362,
         0.010784659629723487, 0.0036895009818261335, 0.02174928563792445,
         -0.02105932972784947, 0.032667006749219234),
}  # fmt: skip
#: atan(z) = z + z**3 * p(z*z) on |z| <= 1.
_ATAN = {
    24: (-0.33333298563957214, 0.19998560845851898, -0.14264371991157532, 0.10952822118997574,
         -0.08405184745788574, 0.05798529088497162, -0.031203648075461388,
         0.010927588678896427, -0.0017963493010029197),
    53: (-0.33333333333333287, 0.19999999999990395, -0.14285714285035, 0.11111111086431077,
         -0.09090908547412632, 0.07692299717988123, -0.06666583805588158, 0.058817168290008305,
         -0.05259437621324366, 0.047449421535256296, -0.04286441892196245,
         0.038211316225811004, -0.0327878279710493, 0.02615526058390829, -0.018618391638374473,
         0.011321418579021693, -0.005614944251214096, 0.002152854467640165,
         -0.0005933250970774508, 0.0001039624973709443, -8.6630190521381e-06),
}  # fmt: skip
#: Above each limit, x is scaled down by 2**-s: (limit, s).
_WINDOWS = ((2.0**50, 26), (2.0**76, 52), (2.0**102, 78))


def _reduce_float32(x: Value) -> tuple[Value, Value]:
    """(r, n): x = n * pi/2 + r, n an int32 value modulo 2**32."""
    form = FORMATS[FLOAT64]
    scale = const(FLOAT32, 1.0)
    high, low = (form.const(part) for part in two_over_pi_mod_4(0))
    for limit, shift in _WINDOWS:
        above = absolute(x) >= limit
        scale = select(above, const(FLOAT32, 2.0**-shift), scale)
        high_here, low_here = two_over_pi_mod_4(shift)
        high = select(above, form.const(high_here), high)
        low = select(above, form.const(low_here), low)
    y = cast(x * scale, FLOAT64)
    shifted = fma(y, high, form.magic)
    f = fma(y, low, fma(y, high, minus(shifted - form.magic)))
    return cast(f * HALF_PI, FLOAT32), cast(bitcast(shifted, INT64), INT32)


def _reduce_float64(x: Value) -> tuple[Value, Value]:
    """(r, n) for float64, n an int64 value modulo 4."""
    r, n = _reduce_moderate(x)
    huge = absolute(x) >= 2.0**50
    huge_r, huge_n = reduce_huge(x)
    sign = sign_bits(x)
    huge_n = select(sign.eq(0), huge_n, minus(huge_n))
    # Infinity has the bits of a number to `reduce_huge`; inf - inf makes it NaN.
    huge_r = with_sign_bits(huge_r, sign) + (x - x)
    return select(huge, huge_r, r), select(huge, huge_n, n)


def _reduce_moderate(x: Value) -> tuple[Value, Value]:
    """(r, n) for |x| < 2**50."""
    form = FORMATS[FLOAT64]
    shifted = fma(x, two_over_pi_mod_4(0)[0], form.magic)
    n = shifted - form.magic
    r = x
    for part in half_pi_parts(3):
        r = fma(n, -part, r)
    return r, bitcast(shifted, INT64)


def _reduce(x: Value) -> tuple[Value, Value]:
    return _reduce_float32(x) if x.dtype == FLOAT32 else _reduce_float64(x)


def _sin_and_cos(r: Value) -> tuple[Value, Value]:
    """Both for |r| <= pi/4."""
    precision = format_of(r).mantissa + 1
    s = r * r
    sine = fma(r * s, horner(s, _SIN[precision]), r)
    cosine = fma(s * s, horner(s, _COS[precision]), fma(s, -0.5, 1.0))
    return sine, cosine


def _quadrant(x: Value, turn: int) -> Value:
    """sin(x + turn * pi/2)."""
    form = format_of(x)
    r, n = _reduce(x)
    if turn:
        n = n + turn
    sine, cosine = _sin_and_cos(r)
    magnitude = select((n & 1).eq(0), sine, cosine)
    return with_sign_bits(magnitude, (n & 2) << (form.integer.bits - 2))


def sin(x: Value) -> Value:
    """Sine."""
    return select(is_zero(x), x, _quadrant(x, 0))


def cos(x: Value) -> Value:
    """Cosine."""
    return _quadrant(x, 1)


def tan(x: Value) -> Value:
    """Tangent: sin/cos, or -cos/sin in odd quadrants."""
    r, n = _reduce(x)
    sine, cosine = _sin_and_cos(r)
    even = (n & 1).eq(0)
    quotient = select(even, sine, cosine) / select(even, cosine, sine)
    result = with_sign_bits(quotient, n << (format_of(x).integer.bits - 1))
    return select(is_zero(x), x, result)


def _odd(z: Value, square: Value, coefficients: tuple[float, ...]) -> Value:
    return fma(z * square, horner(square, coefficients), z)


def _multiple_of_half_pi_minus(count: int, value: Value) -> Value:
    """count * pi/2 - value, with pi/2 in two parts."""
    form = format_of(value)
    high, low = _half_pi(form)
    return form.const(count * high) - (value - count * low)


def _half_pi(form: Format) -> tuple[float, float]:
    high, low = half_pi_parts(2)
    nearest = float(form.const(high).data)
    return nearest, (high - nearest) + low


def _asin_parts(x: Value) -> tuple[Value, Value]:
    """Whether |x| > 1/2, and asin(|x|), or asin(sqrt((1-|x|)/2)) there."""
    form = format_of(x)
    a = absolute(x)
    large = a > 0.5
    complement = (form.const(1.0) - a) * 0.5
    square = select(large, complement, a * a)
    z = select(large, op("sqrt", complement), a)
    return large, _odd(z, square, _ASIN[form.mantissa + 1])


def asin(x: Value) -> Value:
    """Inverse sine; NaN outside [-1, 1]."""
    large, p = _asin_parts(x)
    magnitude = select(large, _multiple_of_half_pi_minus(1, p + p), p)
    return with_sign_bits(magnitude, sign_bits(x))


def acos(x: Value) -> Value:
    """Inverse cosine; NaN outside [-1, 1]."""
    large, p = _asin_parts(x)
    twice = p + p
    outer = select(x < 0.0, _multiple_of_half_pi_minus(2, twice), twice)
    inner = _multiple_of_half_pi_minus(1, with_sign_bits(p, sign_bits(x)))
    return select(large, outer, inner)


def _atan_of_quotient(y: Value, x: Value) -> Value:
    """atan(y / x) in [0, pi/2] for y, x >= 0, with one division; atan(0/0) = 0."""
    form = format_of(x)
    steep = op("gt", y, x)
    least, most = select(steep, x, y), select(steep, y, x)
    # Equal operands give 1 without dividing (inf by inf), or 0 (0 by 0).
    level = select(is_zero(most), form.const(0.0), form.const(1.0))
    z = select(least.eq(most), level, least / most)
    p = _odd(z, z * z, _ATAN[form.mantissa + 1])
    return select(steep, _multiple_of_half_pi_minus(1, p), p)


def atan(x: Value) -> Value:
    """Inverse tangent."""
    magnitude = _atan_of_quotient(absolute(x), format_of(x).const(1.0))
    return with_sign_bits(magnitude, sign_bits(x))


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y); signed zeros choose the side as in C."""
    angle = _atan_of_quotient(absolute(y), absolute(x))
    left = sign_bits(x).ne(0)
    return with_sign_bits(select(left, _multiple_of_half_pi_minus(2, angle), angle), sign_bits(y))
