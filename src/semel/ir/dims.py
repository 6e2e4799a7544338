"""What shape computations ask of dims, beyond their operators.

    floordiv mod ceildiv truncdiv truncmod  minimum maximum absolute sign
    equal less less_equal negate select  broadcast_dims is_one_never may_stretch_to

A truth is a dim too, 0 or 1: `select(equal(n, 1), a, b)`. All of it is written with min, max and
products, which the native code of plans and kernels computes already, so that nothing below this
module knows of conditions. What the ranges of the variables decide is decided now.
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.ir.expr import (
    Dim,
    Expr,
    Fn,
    atoms,
    bounds,
    ceildiv,
    floordiv,
    is_nonnegative,
    is_positive,
    maximum,
    minimum,
    mod,
    mul,
    terms,
)

__all__ = [
    "absolute",
    "broadcast_dims",
    "broadcast_parts",
    "ceildiv",
    "equal",
    "floordiv",
    "is_one_never",
    "less",
    "less_equal",
    "maximum",
    "may_stretch_to",
    "minimum",
    "mod",
    "negate",
    "select",
    "sign",
    "truncdiv",
    "truncmod",
]


# ---------------------------------------------------------------- conditions


def equal(a: Dim, b: Dim) -> Dim:
    """1 where a == b, else 0."""
    if a == b:
        return 1
    apart = absolute(a - b)
    low, _ = bounds(apart)
    if low is not None and low > 0:
        return 0
    return 1 - minimum(maximum(apart, 0), 1)


def less(a: Dim, b: Dim) -> Dim:
    """1 where a < b, else 0."""
    return minimum(maximum(b - a, 0), 1)


def less_equal(a: Dim, b: Dim) -> Dim:
    """1 where a <= b, else 0."""
    return less(a, b + 1)


def negate(condition: Dim) -> Dim:
    """1 where the condition is 0, else 0."""
    return 1 - _truth(condition)


def select(condition: Dim, a: Dim, b: Dim) -> Dim:
    """`a` where the condition is not 0, else `b`.

    The sum that says it may seem to reach further than both, as its terms are bounded one by one;
    so it is held between them.
    """
    chosen = _truth(condition)
    if isinstance(chosen, int) or a == b:
        return a if chosen else b
    (low_a, high_a), (low_b, high_b) = bounds(a), bounds(b)
    value = b + chosen * (a - b)
    if low_a is not None and low_b is not None:
        value = maximum(value, min(low_a, low_b))
    if high_a is not None and high_b is not None:
        value = minimum(value, max(high_a, high_b))
    return value


def _truth(condition: Dim) -> Dim:
    """A number as 0 or 1."""
    low, high = bounds(condition)
    is_truth = low is not None and low >= 0 and high is not None and high <= 1
    return condition if is_truth else 1 - equal(condition, 0)


# ---------------------------------------------------------------- division


def absolute(a: Dim) -> Dim:
    """|a|."""
    return maximum(a, mul(-1, a))


def truncdiv(a: Dim, b: Dim) -> Dim:
    """a / b, rounded towards 0, as C and ONNX divide. `b` may have any sign, but is not 0."""
    if is_positive(b):
        # A negative dividend rounds up.
        return floordiv(a + (b - 1) * less(a, 0), b)
    if is_positive(mul(-1, b)):
        return truncdiv(mul(-1, a), mul(-1, b))
    if b == 0:
        return floordiv(a, b)  # which says what is wrong
    size = floordiv(absolute(a), absolute(b))
    return size * sign(a) * sign(b)


def truncmod(a: Dim, b: Dim) -> Dim:
    """What truncating division leaves: it has the dividend's sign."""
    if is_nonnegative(a) and is_positive(b):
        return mod(a, b)
    return a - b * truncdiv(a, b)


def sign(a: Dim) -> Dim:
    """1, 0 or -1."""
    return less(0, a) - less(a, 0)


# ---------------------------------------------------------------- broadcasting


def is_one_never(dim: Dim) -> bool:
    """Whether it is certain that a dim is not 1."""
    low, high = bounds(dim - 1)
    return (low is not None and low > 0) or (high is not None and high < 0)


def broadcast_dims(dims: Iterable[Dim]) -> Dim:
    """The size that dims broadcast to, if each of them is that size or 1.

    One that cannot be 1 decides. Among others the largest does, or 0 if there is one:
    max(a, b) * min(a, b, 1). A dim that came from here counts as those it was made of, so that
    broadcasting again with one of them gives the same dim. Of dims that depend on each other the
    first stands for all: they are meant to be equal (`may_stretch_to`).
    """
    parts: dict[Dim, None] = {}
    for part in (part for dim in dims for part in broadcast_parts(dim)):
        if part != 1 and not any(_are_related(part, other) for other in parts):
            parts[part] = None
    for part in parts:
        if is_one_never(part):
            return part
    return _widest(parts)


def may_stretch_to(dim: Dim, wanted: Dim) -> bool:
    """Whether a dim that differs from the wanted one may be 1 and stretch to it in some run.

    Dims that share variables are two ways to write one size (the rows that were cut out for n
    tokens, and n): they are held to be equal. But what took part in a size that was broadcast
    from several stretches to it.
    """
    if is_one_never(dim):
        return False
    return not _are_related(dim, wanted) or len(broadcast_parts(wanted)) > 1


def _are_related(a: Dim, b: Dim) -> bool:
    return not atoms(a).isdisjoint(atoms(b))


def _widest(parts: Iterable[Dim]) -> Dim:
    """max(a, b) * min(a, b, 1), in one order."""
    largest: Dim | None = None
    least: Dim = 1
    for part in sorted(parts, key=str):
        largest = part if largest is None else maximum(largest, part)
        least = minimum(least, part)
    if largest is None:
        return 1
    return largest if isinstance(largest, int) or len(set(parts)) == 1 else mul(largest, least)


def broadcast_parts(dim: Dim) -> tuple[Dim, ...]:
    """The dims whose broadcast size this is; itself, if it is none."""
    factors = terms(dim)[0][0] if isinstance(dim, Expr) else (dim,)
    for factor in factors:
        parts = _arguments(factor)
        if len(parts) > 1 and _widest(parts) == dim:
            return parts
    return (dim,)


def _arguments(dim: Dim) -> tuple[Dim, ...]:
    """What a nest of `max` is the largest of."""
    if isinstance(dim, Fn) and dim.kind == "max":
        return tuple(part for argument in dim.args for part in _arguments(argument))
    return (dim,)
