"""pi as constants of the precision that argument reduction needs.

    bits of pi/2 and 2/pi  -->  tuples of float64 that add up to them

Each part is the float64 nearest to what the parts before it leave.
"""

from __future__ import annotations

from fractions import Fraction

#: floor(pi/2 * 2**256).
_HALF_PI = 0x1921FB54442D18469898CC51701B839A252049C1114CF98E804177D4C76273644
#: floor(2/pi * 2**1280).
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921CFE1DEB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980FEF2F118B5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D0856033046FC7B6BABF0CFBC209AF4361D  # noqa: E501
TWO_OVER_PI_BITS = 1280
HALF_PI = _HALF_PI / 2**256


def half_pi_parts(count: int) -> tuple[float, ...]:
    """pi/2 as a sum of `count` float64, largest first."""
    return _parts(Fraction(_HALF_PI, 2**256), count)


def two_over_pi_mod_4(shift: int) -> tuple[float, float]:
    """2**shift * 2/pi, less the multiple of 4 nearest to it, as a sum of two float64."""
    number = Fraction(TWO_OVER_PI, 2 ** (TWO_OVER_PI_BITS - shift)) % 4
    high, low = _parts(number if number < 2 else number - 4, 2)
    return high, low


def _parts(number: Fraction, count: int) -> tuple[float, ...]:
    parts = []
    for _ in range(count):
        parts.append(float(number))
        number -= Fraction(parts[-1])
    return tuple(parts)
