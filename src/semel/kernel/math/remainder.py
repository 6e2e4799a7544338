"""fmod, exact for all operands.

    |x| mod |y|: subtract multiples of y * 2**(50*j), j from the largest down to 0

Each step takes some 50 bits off the quotient: q = trunc(r / y_j) is the true quotient or
one more, r - q*y_j is exact in one fma, and one addition repairs a q that was too large.
The number of steps covers the widest ratio of two finite floats: 6 for float32, computed in
float64, and 42 for float64; there is no loop to leave early in vector code, so float64
fmod is slow.
"""

from __future__ import annotations

import math

from semel.ir.types import FLOAT32, FLOAT64
from semel.kernel.ir import Value, cast, fma, op, select
from semel.kernel.math.common import absolute, format_of, minus, sign_bits, with_sign_bits

_STEP = 50
_WIDEST = {FLOAT32: 277, FLOAT64: 2098}


def fmod(x: Value, y: Value) -> Value:
    """x - trunc(x / y) * y, exactly; the sign of x; NaN for infinite x or y = 0."""
    form = format_of(x)
    rest = cast(absolute(x), FLOAT64)
    divisors = [cast(absolute(y), FLOAT64)]
    while _STEP * len(divisors) < _WIDEST[x.dtype]:
        divisors.append(divisors[-1] * 2.0**_STEP)
    for divisor in reversed(divisors):
        rest = _subtract_multiple(rest, divisor)
    legal = op("and", absolute(x) < math.inf, absolute(y) > 0.0)
    result = with_sign_bits(cast(rest, x.dtype), sign_bits(x))
    return select(legal, result, form.const(math.nan))


def _subtract_multiple(rest: Value, divisor: Value) -> Value:
    quotient = op("trunc", rest / divisor)
    reduced = fma(minus(quotient), divisor, rest)
    reduced = select(reduced < 0.0, reduced + divisor, reduced)
    # A divisor that overflowed is larger than any rest, and 0 * infinity is NaN.
    return select(quotient > 0.0, reduced, rest)
