"""Functions of one or two tensors, element by element, that are made of others.

    cbrt erfc erfinv lgamma digamma logit sinc   hypot logaddexp fmax heaviside gcd nextafter ...
    frac modf frexp bitwise_count   logcumsumexp

Where a formula would lose digits it is computed in float64 and rounded once, whatever float it is
asked of: float32 results are then rounded nearly always as the true ones are. The errors below are
the largest that were measured against references of higher precision.

| function | float64 | of what |
|---|---|---|
| cbrt, logit | 1 ulp | |
| hypot | 2 ulp | |
| erfc | 4 ulp | down to 1e-300 |
| erfinv | 4 ulp | |
| lgamma | 1e-14 | of max(1, the result) |
| digamma | 2e-15 | of max(1, the result) |

Fits are made for this file: Chebyshev expansions in 40 digits, written as polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes

from semel.errors import GraphError
from semel.ir.expr import upper_bound
from semel.ir.types import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
    DType,
)
from semel.tensor.control import while_loop
from semel.tensor.elementwise import choose, pair
from semel.tensor.handle import (
    TensorLike,
    bitcast,
    convert,
    lift,
    normalize_axis,
    promote,
    scalar,
)
from semel.tensor.movement import broadcast
from semel.tensor.spelling import AXIS, spelled
from semel.tensor.unary import full_bool

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

_INF = math.inf
#: The smallest normal float64, and by how much smaller ones are lifted up to be normal.
_TINY, _LIFT = 2.0**-1022, 54
#: Axes that are not bounded are no longer than this.
_LONGEST = 1 << 31
#: Powers of two beyond which every float64 is 0 or infinite.
_FAR = 2200
_SQRT_PI = math.sqrt(math.pi)
_LOG_2 = math.log(2)

#: exp(x^2) erfc(x) (1 + 2x) for x >= 0, as a polynomial of (x - 3.75) / (x + 3.75).
_ERFC_MIDDLE = 3.75
_ERFC = (
    1.2375126308378275, -0.14024059858554525, 0.0035854154854790257, 0.08227673848999506,
    -0.1088039301424446, 0.09230432116428125, -0.05869339857664943, 0.02836227737211118,
    -0.00974657968326455, 0.001755626165196906, 0.00029371437804167694, -0.0002901553524605228,
    5.1646529751104996e-05, 2.238756571501728e-05, -1.1438048050184882e-05,
    -9.792625717759054e-07, 1.7419821778870208e-06, -5.084465215988818e-08,
    -2.485712759657067e-07, 1.8790822115000693e-08, 3.197927196085333e-08,
    -1.9551355966890514e-09, -2.6231082098356948e-09,
)  # fmt: skip
#: erfinv(y) / y to 4 digits, of sqrt(-log(1 - y^2)) / 3.05 - 1.
_ERFINV_HALF = 3.05
_ERFINV = (
    2.883079748096088, 3.0570540300869076, 0.07874458616857188, -0.15578678476687713,
    0.39228051144218185, -1.1931693810826511, 1.4947134880143496, 1.2865256133812664,
    -3.7461649359124616, -0.31107940338353157, 3.985976746424706, -0.3077694651924171,
    -2.13333997482795, 0.1615720725520981, 0.46826307013394713,
)  # fmt: skip
#: B(2k) / (2k (2k - 1)) and B(2k) / 2k: the tails of Stirling's series, which is good from 10 on.
_LGAMMA_TAIL = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA_TAIL = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SERIES_FROM = 10


def _in_float64(x: TensorLike, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """The rule on float64, and its result in the float the user gave; of integers, float32."""
    x = lift(x)
    return convert(rule(convert(x, FLOAT64)), x.dtype if x.dtype.is_float else FLOAT32)


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """By Horner's rule, the constant first."""
    result: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = x * result + coefficient
    made: Tensor = result
    return made


def _floats(x: TensorLike) -> Tensor:
    """Integers and bool as float32."""
    x = lift(x)
    return x if x.dtype.is_float else convert(x, FLOAT32)


# ------------------------------------------------------------ of one tensor


def deg2rad(x: TensorLike) -> Tensor:
    """Degrees as radians."""
    return _floats(x) * (math.pi / 180)


def rad2deg(x: TensorLike) -> Tensor:
    """Radians as degrees."""
    return _floats(x) * (180 / math.pi)


def cbrt(x: TensorLike) -> Tensor:
    """The cube root, of negative numbers too."""

    def rule(x: Tensor) -> Tensor:
        size = x.abs()
        root = size ** (1 / 3)
        # One step of Newton's; of 0 and infinity the power is exact.
        better = root - (root * root * root - size) / (root * root * 3)
        root = choose((size > 0) & size.ne(_INF), better, root)
        return choose(x < 0, -root, choose(x.eq(0), x, root))

    return _in_float64(x, rule)


def sinc(x: TensorLike) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0; exactly 0 at other whole numbers."""
    x = _floats(x)
    quotient = _sin_pi(x) / (x * math.pi)
    return choose(x.eq(0), 1, quotient)


def _sin_pi(x: Tensor) -> Tensor:
    """sin(pi x), from the distance to the next even number, which is exact."""
    rest = x - (x * 0.5).round() * 2
    turned = choose(rest > 0.5, 1 - rest, choose(rest < -0.5, -1 - rest, rest))
    return (turned * math.pi).sin()


def logit(x: TensorLike, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of `sigmoid`; with `eps`, x is brought into [eps, 1 - eps]."""
    x = _floats(x)
    if eps is not None:
        x = x.clip(eps, 1 - eps)
    # Near 1/2, where the two logarithms cancel, 2x - 1 is exact.
    near = (x > 0.25) & (x < 0.75)
    return choose(near, (x * 2 - 1).atanh() * 2, x.log() - (-x).log1p())


def erfc(x: TensorLike) -> Tensor:
    """1 - erf(x), exact where that would cancel."""
    return _in_float64(x, _erfc)


def _erfc(x: Tensor) -> Tensor:
    size = x.abs()
    tail = _erfc_tail(size)
    return choose(size < 0.5, 1 - x.erf(), choose(x < 0, 2 - tail, tail))


def _erfc_tail(x: Tensor) -> Tensor:
    """erfc of float64 numbers that are not negative."""
    x = x.minimum(28)  # from here on it is 0
    high = convert(convert(x, FLOAT32), FLOAT64)  # its square is exact
    scale = (-(high * high)).exp() * ((high - x) * (high + x)).exp()
    place = (x - _ERFC_MIDDLE) / (x + _ERFC_MIDDLE)
    return scale * _polynomial(place, _ERFC) / (x * 2 + 1)


def erfinv(x: TensorLike) -> Tensor:
    """The number whose erf this is; infinite at -1 and 1, NaN beyond."""

    def rule(y: Tensor) -> Tensor:
        size = y.abs()
        rest = 1 - size
        width = (-((1 - size) * (1 + size)).log()).sqrt()
        found = size * _polynomial(width * (1 / _ERFINV_HALF) - 1, _ERFINV)
        for _ in range(2):  # steps of Halley's, which triple the digits
            miss = choose(size < 0.5, found.erf() - size, rest - _erfc_tail(found))
            step = miss * (found * found).exp() * (_SQRT_PI / 2)
            found = found - step / (found * step + 1)
        found = choose(size < 1, found, choose(size.eq(1), _INF, math.nan))
        return found.copysign(y)

    return _in_float64(x, rule)


def lgamma(x: TensorLike) -> Tensor:
    """log |gamma(x)|: infinite at 0 and negative whole numbers."""

    def rule(x: Tensor) -> Tensor:
        is_low = x < 0.5
        z = choose(is_low, 1 - x, x)
        upper = _lgamma_upper(z)
        # gamma(x) gamma(1 - x) = pi / sin(pi x)
        lower = math.log(math.pi) - _sin_pi(x).abs().log() - upper
        pole = (x <= 0) & x.eq(x.floor())
        result = choose(x.eq(1) | x.eq(2), 0, choose(is_low, lower, upper))
        return choose(pole | x.isinf(), _INF, result)

    return _in_float64(x, rule)


def _lgamma_upper(z: Tensor) -> Tensor:
    """From 0.5 on: Stirling's series, further up, less the logarithm of what is between."""
    low = z < _SERIES_FROM
    base = choose(low, z, 1)
    between = base
    for k in range(1, _SERIES_FROM):
        between = between * (base + k)
    w = choose(low, z + _SERIES_FROM, z)
    inverse = 1 / w
    tail = _polynomial(inverse * inverse, _LGAMMA_TAIL) * inverse
    series = (w - 0.5) * w.log() - w + 0.5 * math.log(2 * math.pi) + tail
    return choose(low, series - between.log(), series)


def digamma(x: TensorLike) -> Tensor:
    """The derivative of `lgamma`; NaN at negative whole numbers, -inf at 0."""

    def rule(x: Tensor) -> Tensor:
        is_low = x < 0.5
        z = choose(is_low, 1 - x, x)
        low = z < _SERIES_FROM
        base = choose(low, z, 1)
        between = base.reciprocal()
        for k in range(1, _SERIES_FROM):
            between = between + (base + k).reciprocal()
        w = choose(low, z + _SERIES_FROM, z)
        inverse = 1 / w
        square = inverse * inverse
        series = w.log() - inverse * 0.5 - square * _polynomial(square, _DIGAMMA_TAIL)
        upper = choose(low, series - between, series)
        upper = choose(w.eq(_INF), w, upper)
        turned = (x - x.round()) * math.pi
        lower = upper - turned.cos() / turned.sin() * math.pi
        result = choose(is_low, lower, upper)
        whole = (x <= 0) & x.eq(x.floor())
        return choose(whole, choose(x.eq(0), -_INF, math.nan), result)

    return _in_float64(x, rule)


def signbit(x: TensorLike) -> Tensor:
    """Where the sign is minus: of -0.0 and NaN too."""
    x = lift(x)
    if x.dtype.is_float:
        return _sign_of(x) < 0
    return full_bool(x, False) if x.dtype.kind in "bu" else x < 0


def _sign_of(x: Tensor) -> Tensor:
    """1 or -1: the sign of floats, zeros and NaN included."""
    return scalar(1, x.dtype).broadcast_to(x.shape).copysign(x)


def isposinf(x: TensorLike) -> Tensor:
    """Where the elements are +infinity."""
    x = lift(x)
    return x.eq(_INF) if x.dtype.is_float else full_bool(x, False)


def isneginf(x: TensorLike) -> Tensor:
    """Where the elements are -infinity."""
    x = lift(x)
    return x.eq(-_INF) if x.dtype.is_float else full_bool(x, False)


def nan_to_num(
    x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Numbers instead of NaN and infinities: 0, and the largest and the lowest of the dtype."""
    x = lift(x)
    if not x.dtype.is_float:
        return x
    limits = _float_limits(x.dtype)
    high = limits if posinf is None else posinf
    low = -limits if neginf is None else neginf
    finite = choose(x.eq(_INF), high, choose(x.eq(-_INF), low, x))
    return choose(x.isnan(), nan, finite)


def _float_limits(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]


# ------------------------------------------------------------ of two


def _two_floats(x: TensorLike, other: TensorLike) -> list[Tensor]:
    return promote((x, other), to_float=True)


def fmax(x: TensorLike, other: TensorLike) -> Tensor:
    """The larger element; a number if either is one, where `maximum` gives NaN."""
    return _but_nan(pair(x, "max", other), x, other)


def fmin(x: TensorLike, other: TensorLike) -> Tensor:
    """The smaller element; a number if either is one, where `minimum` gives NaN."""
    return _but_nan(pair(x, "min", other), x, other)


def _but_nan(chosen: Tensor, x: TensorLike, other: TensorLike) -> Tensor:
    if not chosen.dtype.is_float:
        return chosen
    x, y = promote((x, other))
    return choose(x.isnan(), y, choose(y.isnan(), x, chosen))


def hypot(x: TensorLike, other: TensorLike) -> Tensor:
    """sqrt(x^2 + y^2), which neither overflows nor vanishes on the way."""
    a, b = (t.abs() for t in _two_floats(x, other))
    large, small = a.maximum(b), a.minimum(b)
    ratio = small / choose(large.eq(0), 1, large)
    result = large * (ratio * ratio + 1).sqrt()
    return choose(a.eq(_INF) | b.eq(_INF), _INF, result)


def logaddexp(x: TensorLike, other: TensorLike) -> Tensor:
    """log(exp(x) + exp(y)), without overflow."""
    a, b = _two_floats(x, other)
    rest = choose(a.eq(b), 0, -(a - b).abs())  # infinities too
    return a.maximum(b) + rest.exp().log1p()


def logaddexp2(x: TensorLike, other: TensorLike) -> Tensor:
    """log2(2^x + 2^y), without overflow."""
    a, b = _two_floats(x, other)
    rest = choose(a.eq(b), 0, -(a - b).abs())
    return a.maximum(b) + rest.exp2().log1p() * (1 / _LOG_2)


def heaviside(x: TensorLike, other: TensorLike) -> Tensor:
    """0 below 0, 1 above, and `other` at 0; NaN stays."""
    x, at_zero = _two_floats(x, other)
    return choose(x.eq(0), at_zero, choose(x.isnan(), x, convert(x > 0, x.dtype)))


def float_power(x: TensorLike, other: TensorLike) -> Tensor:
    """x ** other in float64."""
    return convert(lift(x), FLOAT64) ** convert(lift(other), FLOAT64)


def ldexp(x: TensorLike, other: TensorLike) -> Tensor:
    """x * 2 ** other, rounded once, also where no float holds the power of two."""
    x, exponent = _two_floats(x, other)
    wide, rest = convert(x, FLOAT64), convert(exponent, FLOAT64).clip(-_FAR, _FAR)
    steps = 2 if x.dtype == FLOAT64 else 0  # of narrower floats one product is always exact
    for _ in range(steps):
        step = choose(rest < -1022, -969, rest.minimum(1023))
        wide, rest = wide * step.exp2(), rest - step
    return convert(wide * rest.clip(-1022, 1023).exp2(), x.dtype)


def xlogy(x: TensorLike, other: TensorLike) -> Tensor:
    """x * log(y), and 0 where x is 0, unless y is NaN."""
    x, y = _two_floats(x, other)
    return choose(x.eq(0) & ~y.isnan(), 0, x * y.log())


def nextafter(x: TensorLike, other: TensorLike) -> Tensor:
    """The next float of this dtype from x towards y."""
    x, y = _two_floats(x, other)
    if x.dtype.is_narrow:
        raise GraphError("nextafter", f"needs floats of 16 bits or more, got {x.type}.")
    x, y = broadcast([x, y], "nextafter")
    word = f"int{x.dtype.bits}"
    bits = bitcast(x, word)
    away = convert((x < y).eq(x > 0), bits.dtype) * 2 - 1
    moved = bitcast(bits + away, x.dtype)
    least = bitcast(scalar(1, bits.dtype), x.dtype).broadcast_to(x.shape).copysign(y)
    moved = choose(x.eq(0), least, moved)
    return choose(x.isnan() | y.isnan(), math.nan, choose(x.eq(y), y, moved))


def gcd(x: TensorLike, other: TensorLike) -> Tensor:
    """The greatest common divisor of integers, not negative; that of 0 and 0 is 0."""
    a, b = broadcast(_two_integers(x, other, "gcd"), "gcd")
    # Euclid's, of all elements until the last of them is done.
    done, _ = while_loop(
        lambda state: state[1].ne(0).any(),
        lambda state: (
            choose(state[1].ne(0), state[1], state[0]),
            choose(state[1].ne(0), state[0] % state[1], 0),
        ),
        (a.abs(), b.abs()),
    )
    result: Tensor = done
    return result


def lcm(x: TensorLike, other: TensorLike) -> Tensor:
    """The least common multiple of integers, not negative; 0 if either is 0."""
    a, b = _two_integers(x, other, "lcm")
    divisor = gcd(a, b)
    result = a // choose(divisor.eq(0), 1, divisor) * b
    return result.abs()


def _two_integers(x: TensorLike, other: TensorLike, where: str) -> list[Tensor]:
    pair_of = promote((x, other))
    if pair_of[0].dtype == BOOL or not pair_of[0].dtype.is_integer:
        raise GraphError(where, f"needs integers, got {pair_of[0].type} and {pair_of[1].type}.")
    return pair_of


# Second names.
degrees = rad2deg
radians = deg2rad
gammaln = lgamma


# ------------------------------------------------------------ parts of a number


def frac(x: TensorLike) -> Tensor:
    """What is behind the point, with the sign of x: x - trunc(x)."""
    x = lift(x)
    return x - x.trunc()


def modf(x: TensorLike) -> tuple[Tensor, Tensor]:
    """What is behind the point, and what is before it; both have the sign of x."""
    x = _floats(x)
    whole = x.trunc()
    return choose(x.isinf(), 0, x - whole).copysign(x), whole


def frexp(x: TensorLike) -> tuple[Tensor, Tensor]:
    """A mantissa of size in [1/2, 1) and an exponent (int32) with x = mantissa * 2 ** exponent.

    >>> [part.item() for part in semel.frexp(12.0)]
    [0.75, 4]
    """
    x = _floats(x)
    wide = convert(x, FLOAT64)
    is_small = wide.abs() < _TINY  # there the bits of the exponent are 0
    bits = bitcast(choose(is_small, wide * 2.0**_LIFT, wide), INT64)
    found = ((bits >> 52) & 2047) - 1022 - choose(is_small, _LIFT, 0)
    exponent = choose(wide.eq(0) | ~wide.isfinite(), 0, found)
    return convert(ldexp(wide, -exponent), x.dtype), convert(exponent, INT32)


def bitwise_count(x: TensorLike) -> Tensor:
    """How many bits of |x| are 1 (uint8)."""
    x = lift(x)
    if x.dtype.is_float:
        raise GraphError("bitwise_count", f"needs integers, got {x.type}.")
    if x.dtype.kind == "i":
        x = bitcast(x.abs(), f"uint{x.dtype.bits}")
    wide = UINT64 if x.dtype.bits == 64 else UINT32
    whole = (1 << wide.bits) - 1
    pairs, fours, bytes_, ones = (whole // n for n in (3, 5, 17, 255))
    x = convert(x, wide)
    x = x - ((x >> 1) & pairs)
    x = (x & fours) + ((x >> 2) & fours)
    x = (x + (x >> 4)) & bytes_
    return convert((x * ones) >> (wide.bits - 8), UINT8)


@spelled(dim="axis")
def logcumsumexp(x: TensorLike, axis: int = -1, *, dim: int = AXIS) -> Tensor:
    """log(cumsum(exp(x))) along the axis, without overflow: sums of twice as many at each step."""
    x = _floats(x)
    i = normalize_axis(axis, x.ndim, "logcumsumexp")
    length, shift = x.shape[i], 1
    while shift < min(upper_bound(length) or _LONGEST, _LONGEST):
        widths = [(shift if k == i else 0, 0) for k in range(x.ndim)]
        x = logaddexp(x, x.pad(widths, -_INF).narrow(i, 0, length))
        shift *= 2
    return x
