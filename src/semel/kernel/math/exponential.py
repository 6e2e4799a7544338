"""exp and its relatives: decay, exp2, expm1, sigmoid, sinh, cosh, tanh.

    exp(x) = 2**n * p(r),  n = round(x / ln 2),  |r| <= ln(2) / 2

n is found by adding a magic constant, whose low bits then hold it (with twice the
exponent bias, for those who make a power of two of them). `ldexp` scales by 2**n with
gradual underflow and overflow to infinity. Where x is not positive one product does: the
polynomial is 2**24 (2**53) times too small, so that 2**(n + 24) is a normal number for every n
whose result is not 0, and for the next one has an exponent of 0, which makes it 0. Results that
underflow to 0 cost machines a hundred cycles, a product with 0 nothing: the weights of hidden
elements are some. Coefficients are minimax fits made for this file.
"""

from __future__ import annotations

from semel.ir.types import FLOAT32
from semel.kernel.ir import Value, bitcast, fma, op, select
from semel.kernel.math.common import (
    Format,
    absolute,
    at_least,
    at_most,
    bits,
    clamp,
    format_of,
    horner,
    minus,
    power_of_two,
    sign_bits,
    with_sign_bits,
)

_LN2 = "0.693147180559945309417232121458176568075500134360255"
_LOG2_E = 1.4426950408889634

#: exp(r) = 1 + r + r*r*q(r) on |r| <= ln(2)/2.
_EXP = {
    24: (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368715643882751,
         0.0013814599951729178),
    53: (0.5, 0.16666666666666685, 0.0416666666666658, 0.00833333333331565,
         0.0013888888889222871, 0.0001984126989979905, 2.48015867707079e-05,
         2.7557231517530656e-06, 2.7557681213026495e-07, 2.511316881663738e-08,
         2.0803568402750024e-09),
}  # fmt: skip
#: 2**r = 1 + r*q(r) on |r| <= 1/2.
EXP2 = {
    24: (0.6931472420692444, 0.24022652208805084, 0.055503103882074356, 0.009617692790925503,
         0.0013406644575297832, 0.00015594683645758778),
    53: (0.6931471805599453, 0.2402265069591013, 0.05550410866482007, 0.00961812910759403,
         0.0013333558146776663, 0.00015403530457230475, 1.5252733491601733e-05,
         1.3215435222237466e-06, 1.017820004436116e-07, 7.073793607191734e-09,
         4.4347217293384825e-10),
}  # fmt: skip
#: expm1(r) = r + r*r*q(r) on |r| <= ln(2)/2, relative to expm1.
_EXPM1 = {
    24: (0.4999999701976776, 0.1666654348373413, 0.04166720062494278, 0.008366518653929234,
         0.0013882520142942667),
    53: (0.5000000000000006, 0.1666666666666659, 0.04166666666657673, 0.00833333333338936,
         0.0013888888931570557, 0.00019841269719515583, 2.4801505269094154e-05,
         2.7557407024146093e-06, 2.762603906691685e-07, 2.505395476009796e-08),
}  # fmt: skip
#: float32: tanh(x) = x + x**3 * p(x*x) on |x| < _TANH_NEAR.
_TANH = (-0.33333316445350647, 0.13332584500312805, -0.05385211855173111, 0.021070905029773712,
         -0.006273163948208094)  # fmt: skip
_TANH_NEAR = 0.55
#: float32: 2**r = 1 + r*q(r) on |r| <= 1/2 where three ulp suffice.
_EXP2_COARSE = (0.6931470036506653, 0.24022242426872253, 0.05550733581185341,
                0.009671512991189957, 0.0013264724984765053)  # fmt: skip


def _precision(form: Format) -> int:
    return form.mantissa + 1


def round_biased(x: Value, scale: float, form: Format) -> tuple[Value, Value]:
    """n = round(x * scale) as a float, and an integer whose low bits are n + 2*bias."""
    magic = form.magic + 2 * form.bias
    shifted = x + magic if scale == 1.0 else fma(x, scale, magic)
    n = shifted - magic
    return n, bits(shifted)


def _reduce(x: Value, n: Value, form: Format) -> Value:
    high, low = form.split(_LN2)
    return fma(n, -low, fma(n, -high, x))


def _exp_of_clamped(x: Value, extra: int = 0) -> Value:
    """e**x * 2**extra, for x in the limits of exp."""
    form = format_of(x)
    n, _ = round_biased(x, _LOG2_E, form)
    p = horner(_reduce(x, n, form), (1.0, 1.0, *_EXP[_precision(form)]))
    return op("ldexp", p, n + float(extra) if extra else n)


def _decay_of_clamped(x: Value) -> Value:
    """e**x for x between `_decay_limit` and 43 (float64: 664), to the bit as exp has it."""
    form = format_of(x)
    shift = form.mantissa + 1
    magic = form.magic + form.bias + shift
    shifted = fma(x, _LOG2_E, magic)
    coefficients = (c * 2.0**-shift for c in (1.0, 1.0, *_EXP[_precision(form)]))
    p = horner(_reduce(x, shifted - magic, form), tuple(coefficients))
    return op("scale", p, shifted)


def _decay_limit(form: Format) -> float:
    """Where n is the first one whose results are all 0, and the factor for it is."""
    return -(form.bias + form.mantissa + 1.1) / _LOG2_E


def _exp_limits(x: Value) -> tuple[float, float]:
    """Where exp is surely 0 and infinity."""
    return (-104.0, 89.0) if x.dtype == FLOAT32 else (-746.0, 710.0)


def exp(x: Value) -> Value:
    """e**x."""
    return _exp_of_clamped(clamp(x, *_exp_limits(x)))


def decay(x: Value) -> Value:
    """e**x for x that is 0 or less, or NaN: the bits of exp in fewer instructions."""
    return _decay_of_clamped(at_least(x, _decay_limit(format_of(x))))


def exp2(x: Value) -> Value:
    """2**x."""
    form = format_of(x)
    x = clamp(x, -151.0, 129.0) if x.dtype == FLOAT32 else clamp(x, -1076.0, 1025.0)
    n, _ = round_biased(x, 1.0, form)
    return op("ldexp", horner(x - n, (1.0, *EXP2[_precision(form)])), n)


def exp_at_most_one(x: Value) -> Value:
    """e**x for x that is 0 or less, and 0 where it would be no normal number.

    Machines take a hundred cycles for a result that underflows; the weight of a hidden key
    is one, and nothing beside a weight of 1.
    """
    low = format_of(x).const(-87.0 if x.dtype == FLOAT32 else -708.0)
    power = _decay_of_clamped(at_least(x, low.data))
    return select(x < low, format_of(x).const(0.0), power)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)), as exp(x) / (1 + exp(x)) for negative x so that it underflows late."""
    small = decay(minus(absolute(x)))
    numerator = select(op("lt", x, format_of(x).const(0.0)), small, format_of(x).const(1.0))
    return numerator / (small + 1.0)


def _quarter_expm1(x: Value) -> Value:
    """expm1(x) / 4, for x no larger than 1.01 * ln(4 * the largest float)."""
    form = format_of(x)
    n, biased = round_biased(x, _LOG2_E, form)
    r = _reduce(x, n, form)
    p = fma(r * r, horner(r, _EXPM1[_precision(form)]), r)
    quarter = power_of_two(biased - (2 * form.bias + 2), form)
    return fma(quarter, p, quarter - 0.25)


def _unless_tiny(x: Value, result: Value) -> Value:
    """x itself where a quarter of it would lose bits, and for -0."""
    return select(absolute(x) < 8.0 * format_of(x).min_normal, x, result)


def expm1(x: Value) -> Value:
    """exp(x) - 1, exact near 0."""
    low, high = (-18.0, 89.0) if x.dtype == FLOAT32 else (-38.0, 710.0)
    return _unless_tiny(x, _quarter_expm1(clamp(x, low, high)) * 4.0)


def _largest_hyperbolic(x: Value) -> float:
    """Where sinh and cosh are surely infinite."""
    return 89.6 if x.dtype == FLOAT32 else 710.7


def sinh(x: Value) -> Value:
    """(exp(x) - exp(-x)) / 2, from expm1."""
    quarter = _quarter_expm1(at_most(absolute(x), _largest_hyperbolic(x)))
    half = quarter + quarter
    magnitude = half + half / fma(half, 2.0, 1.0)
    # Infinity divided by infinity is NaN: a half that overflowed is the result.
    magnitude = select(half.eq(float("inf")), half, magnitude)
    return _unless_tiny(x, with_sign_bits(magnitude, sign_bits(x)))


def cosh(x: Value) -> Value:
    """(exp(x) + exp(-x)) / 2."""
    half = _exp_of_clamped(at_most(absolute(x), _largest_hyperbolic(x)), extra=-1)
    return half + format_of(x).const(0.25) / half


def coarse_exp2(x: Value, scale: float = 1.0) -> Value:
    """2**(x * scale) in float32 to about 3 ulp, for results in the normal range."""
    form = format_of(x)
    magic = form.magic + form.bias
    shifted = x + magic if scale == 1.0 else fma(x, scale, magic)
    n = shifted - magic
    r = x - n if scale == 1.0 else fma(x, scale, minus(n))
    p = horner(r, (1.0, *_EXP2_COARSE))
    return p * bitcast(bits(shifted) << form.mantissa, form.dtype)


def tanh(x: Value) -> Value:
    """tanh: an odd polynomial near 0, 1 - 2 / (exp(2|x|) + 1) beyond it."""
    return _tanh_float32(x) if x.dtype == FLOAT32 else _tanh_float64(x)


def _tanh_float32(x: Value) -> Value:
    form = format_of(x)
    a = absolute(x)
    s = x * x
    near = x * horner(s, (1.0, *_TANH))  # this form keeps -0
    growth = coarse_exp2(at_most(a, 10.0), 2 * _LOG2_E)
    far = form.const(1.0) - form.const(2.0) / (growth + 1.0)
    return select(a >= _TANH_NEAR, with_sign_bits(far, sign_bits(x)), near)


def _tanh_float64(x: Value) -> Value:
    e = _quarter_expm1(at_least(absolute(x) * -2.0, -80.0))
    magnitude = minus(e) / (e + 0.5)
    return _unless_tiny(x, with_sign_bits(magnitude, sign_bits(x)))
