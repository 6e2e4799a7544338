"""Reduction of huge float64 arguments of sin, cos and tan, with integers.

    |x| = m * 2**e  -->  (n, r): |x| = n * pi/2 + r,  n modulo 4

Of the product m * 2**e * 2/pi only the bits below 4 matter, so the bits of 2/pi above a
place given by e drop out: m is multiplied by the 192 bits that follow. Those are three words
cut from a table of 20, which a barrel shifter of selects does without memory. Multiples
of 2**64 fall away by themselves. About 100 integer operations, which every float64 sine
pays, as vector code has no branches.
"""

from __future__ import annotations

from semel.ir.types import FLOAT64, INT64, UINT64
from semel.kernel.ir import Value, bitcast, cast, const, fma, op, select
from semel.kernel.math.common import absolute
from semel.kernel.math.pi import TWO_OVER_PI, TWO_OVER_PI_BITS, half_pi_parts

_WORDS = 20
_MASK = (1 << 64) - 1


def _table() -> list[Value]:
    """A word of zeros, then the bits of 2/pi after the binary point."""
    words = [(TWO_OVER_PI >> (TWO_OVER_PI_BITS - 64 * (i + 1))) & _MASK for i in range(_WORDS - 1)]
    return [const(UINT64, word) for word in (0, *words)]


def reduce_huge(x: Value) -> tuple[Value, Value]:
    """(r, n) for |x| >= 2**50; n is an int64 value modulo 4. Anything for smaller x."""
    b = bitcast(absolute(x), UINT64)
    mantissa = (b & ((1 << 52) - 1)) | (1 << 52)
    # The first bit of 2/pi that matters has weight 2 in the product; 62 = 64 of zeros - 2.
    place = (b >> 52) - (1075 - 62)
    top, next_word = _top_of_product(mantissa, _window(place))
    n = (top + (1 << 61)) >> 62
    rest = bitcast(top - (n << 62), INT64)
    return _times_half_pi(rest, next_word), bitcast(n, INT64)


def _times_half_pi(rest: Value, next_word: Value) -> Value:
    """(rest + next_word * 2**-64) * 2**-62 * pi/2, rounded little more than once."""
    low_bits = rest & 2047
    high = cast(rest - low_bits, FLOAT64) * 2.0**-62  # exact
    low = fma(cast(next_word, FLOAT64), 2.0**-126, cast(low_bits, FLOAT64) * 2.0**-62)
    half_pi, half_pi_low = half_pi_parts(2)
    product = high * half_pi
    error = fma(high, half_pi_low, fma(high, half_pi, op("neg", product)))
    return product + fma(low, half_pi, error)


def _window(place: Value) -> list[Value]:
    """Three words of the table from bit `place` on."""
    words = _table()
    for bit in (4, 3, 2, 1, 0):
        step = 1 << bit
        chosen = ((place >> (6 + bit)) & 1).ne(0)
        kept = min(step + 3, len(words))
        words = [
            select(chosen, words[i + step], words[i]) if i + step < len(words) else words[i]
            for i in range(kept)
        ]
    left = place & 63
    right = const(UINT64, 63) - left
    return [(words[i] << left) | op("shr", words[i + 1] >> 1, right) for i in range(3)]


def _top_of_product(m: Value, words: list[Value]) -> tuple[Value, Value]:
    """The upper two words of m * (words as a 192-bit number), modulo 2**192."""
    high, low = _multiply_wide(m, words[1])
    below = _multiply_wide(m, words[2])[0]
    next_word = low + below
    carry = cast(op("lt", next_word, below), UINT64)
    return m * words[0] + high + carry, next_word


def _multiply_wide(a: Value, b: Value) -> tuple[Value, Value]:
    """The high and low words of a 64 x 64 bit product, from 32-bit halves."""
    half = (1 << 32) - 1
    a_low, a_high, b_low, b_high = a & half, a >> 32, b & half, b >> 32
    low = a_low * b_low
    middle = a_high * b_low + (low >> 32)
    other = a_low * b_high + (middle & half)
    high = a_high * b_high + (middle >> 32) + (other >> 32)
    return high, a * b
