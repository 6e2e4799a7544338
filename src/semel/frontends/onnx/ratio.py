"""Numbers made of sizes that are not whole: `n * 0.5`, `height / width`.

Exporters cast shapes to float, scale them and round them back. A `Ratio` of two dims keeps what
they divide exactly, so that rounding gives a dim again:

    n  --* 0.5-->  Ratio(n, 2)  --Floor-->  n // 2

The fractions of a model are decimal ones in most cases (0.7, 1/3), which float32 holds as another
number nearby. The simple fraction is meant: 10 * 0.7 is 7, as it is in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from semel.ir.dims import ceildiv, equal, floordiv, less, truncdiv
from semel.ir.expr import Dim, Expr, Fn, Index, Variable, is_positive

SYMBOLIC = (Variable, Expr, Fn, Index)
#: Fractions with smaller denominators are what people write.
_SIMPLE = 4096


@dataclass(frozen=True, slots=True)
class Ratio:
    """top / bottom; the bottom is positive."""

    top: Dim
    bottom: Dim


#: What an element of a known value may be.
Element: TypeAlias = "float | Dim | Ratio"
OPEN = (*SYMBOLIC, Ratio)


class NoRatio(Exception):  # noqa: N818  (an answer, no error)
    """It is no ratio of dims."""


def as_ratio(x: Element) -> Ratio:
    """A number or a size as a ratio."""
    if isinstance(x, Ratio):
        return x
    if isinstance(x, (*SYMBOLIC, int)):
        return Ratio(x, 1)
    if not np.isfinite(x):
        raise NoRatio
    simple = Fraction(float(x)).limit_denominator(_SIMPLE)
    found = simple if np.float32(float(simple)) == np.float32(x) else Fraction(float(x))
    return Ratio(found.numerator, found.denominator)


def simplified(x: Ratio) -> Element:
    """A ratio as a number or a dim, if it is one."""
    whole = floordiv(x.top, x.bottom)
    if whole * x.bottom == x.top:
        return whole
    if isinstance(x.top, int) and isinstance(x.bottom, int):
        return x.top / x.bottom
    return x


# ---------------------------------------------------------------- arithmetic


def plus(a: Element, b: Element) -> Element:
    """a + b."""
    p, q = as_ratio(a), as_ratio(b)
    if p.bottom == q.bottom:
        return simplified(Ratio(p.top + q.top, p.bottom))
    return simplified(Ratio(p.top * q.bottom + q.top * p.bottom, p.bottom * q.bottom))


def negative(a: Element) -> Element:
    """-a."""
    p = as_ratio(a)
    return simplified(Ratio(-p.top, p.bottom))


def times(a: Element, b: Element) -> Element:
    """a * b."""
    p, q = as_ratio(a), as_ratio(b)
    return simplified(Ratio(p.top * q.top, p.bottom * q.bottom))


def over(a: Element, b: Element) -> Element:
    """a / b, where the sign of b is certain."""
    p, q = as_ratio(a), as_ratio(b)
    if is_positive(-q.top):
        p, q = Ratio(-p.top, p.bottom), Ratio(-q.top, q.bottom)
    if not is_positive(q.top):
        raise NoRatio
    return simplified(Ratio(p.top * q.bottom, p.bottom * q.top))


# ---------------------------------------------------------------- rounding


def floor(a: Element) -> Dim:
    """The largest whole number that is not above it."""
    p = as_ratio(a)
    return floordiv(p.top, p.bottom)


def ceil(a: Element) -> Dim:
    """The smallest whole number that is not below it."""
    p = as_ratio(a)
    return ceildiv(p.top, p.bottom)


def trunc(a: Element) -> Dim:
    """Toward zero, as a cast does."""
    p = as_ratio(a)
    return truncdiv(p.top, p.bottom)


# ---------------------------------------------------------------- comparisons


def is_less(a: Element, b: Element) -> Dim:
    """1 where a < b, else 0."""
    p, q = as_ratio(a), as_ratio(b)
    return less(p.top * q.bottom, q.top * p.bottom)


def is_equal(a: Element, b: Element) -> Dim:
    """1 where a == b, else 0."""
    p, q = as_ratio(a), as_ratio(b)
    return equal(p.top * q.bottom, q.top * p.bottom)
