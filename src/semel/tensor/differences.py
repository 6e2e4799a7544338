"""What changes along an axis, and what it adds up to.

    diff ediff1d gradient trapezoid unwrap

Slices of the axis, taken from each other: its size may be symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import is_positive
from semel.ir.types import BOOL
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    TensorLike,
    lift,
    normalize_axes,
    normalize_axis,
    promote,
    weak_kind,
    whole_number,
)
from semel.tensor.movement import concat, reach
from semel.tensor.reduce import as_float, rounded_to
from semel.tensor.spelling import AXIS, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def _cut(x: Tensor, axis: int, first: int, last: int) -> Tensor:
    """The axis from `first` on, without the `last` elements."""
    return x.narrow(axis, first, x.shape[axis] - first - last)


@spelled(dim="axis")
def diff(
    x: TensorLike,
    n: int = 1,
    axis: int = -1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
    *,
    dim: int = AXIS,
) -> Tensor:
    """Each element less the one before it, `n` times over; of bool, where they differ.

    `prepend` and `append` are put before and behind first: tensors, or one number.
    """
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "diff")
    count = whole_number(n, "n", "diff")
    if count < 0:
        raise GraphError("diff", f"n must be >= 0, got {n}.")
    parts = [_beside(part, x, i) for part in (prepend, x, append) if part is not None]
    result = concat(parts, i)
    for _ in range(count):
        if isinstance(result.shape[i], int) and not is_positive(result.shape[i]):
            return result
        after, before = _cut(result, i, 1, 0), _cut(result, i, 0, 1)
        result = after.ne(before) if result.dtype == BOOL else after - before
    return result


def _beside(part: TensorLike, x: Tensor, axis: int) -> Tensor:
    """A number as one element of the axis, in all rows."""
    lifted = promote((part, x))[0] if weak_kind(part) else lift(part)
    if lifted.ndim:
        return lifted
    return lifted.broadcast_to((*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def ediff1d(
    x: TensorLike, to_end: TensorLike | None = None, to_begin: TensorLike | None = None
) -> Tensor:
    """The differences of the flat tensor, between what is given for the begin and the end."""
    steps = diff(lift(x).flatten())
    parts = [steps if part is None else lift(part).flatten() for part in (to_begin, None, to_end)]
    given = (to_begin is not None, True, to_end is not None)
    kept = [part.cast(steps.dtype) for part, is_there in zip(parts, given, strict=True) if is_there]
    return concat(kept)


@spelled(dim="axis")
def unwrap(
    x: TensorLike,
    discont: float | None = None,
    axis: int = -1,
    *,
    period: float = 2 * math.pi,
    dim: int = AXIS,
) -> Tensor:
    """Angles without jumps: whole periods are added, so that neighbours are near each other.

    Where neighbours are no further apart than `discont`, half a period or more, nothing is added.
    """
    given = lift(x)
    x = as_float(given)
    i, half = normalize_axis(axis, x.ndim, "unwrap"), period / 2
    step = x.diff(axis=i)
    near = (step + half) % period - half
    near = choose(near.eq(-half) & (step > 0), half, near)
    change = choose(step.abs() < (half if discont is None else max(discont, half)), 0, near - step)
    moved = x.narrow(i, 1, x.shape[i] - 1) + change.cumsum(i)
    return rounded_to(concat([x.narrow(i, 0, 1), moved], i), given.dtype)


@spelled(dim="axis")
def gradient(
    x: TensorLike,
    *spacing: Any,
    axis: int | Sequence[int] | None = None,
    edge_order: int = 1,
    dim: int | Sequence[int] | None = AXIS,
) -> Any:
    """The slopes along each axis: central differences inside, one-sided ones at the ends.

    `spacing` is one distance, or for each axis a distance or the places of its elements. One tensor
    for one axis, else a list.
    """
    given = lift(x)
    f = as_float(given)
    axes = normalize_axes(axis, f.ndim, "gradient")
    if edge_order not in (1, 2):
        raise GraphError("gradient", f"edge_order must be 1 or 2, got {edge_order!r}.")
    steps = [1.0] * len(axes) if not spacing else list(spacing)
    if len(steps) == 1:
        steps = steps * len(axes)
    if len(steps) != len(axes):
        raise GraphError(
            "gradient", f"needs one spacing, or one for each of {len(axes)} axes, got {len(steps)}."
        )
    pairs = zip(axes, steps, strict=True)
    slopes = [rounded_to(_slope(f, i, step, edge_order), given.dtype) for i, step in pairs]
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(f: Tensor, axis: int, step: TensorLike, edge_order: int) -> Tensor:
    length = f.shape[axis]
    if isinstance(length, int) and length <= edge_order:
        raise GraphError(
            "gradient", f"axis {axis} must have {edge_order + 1} elements or more, got {f.type}."
        )
    places = lift(step)
    if places.ndim > 1:
        raise GraphError("gradient", f"places must have one axis, got {places.type}.")
    widths = _widths(f, axis, step, places)
    before, after = widths(0, 2), widths(1, 1)
    low, middle, high = _cut(f, axis, 0, 2), _cut(f, axis, 1, 1), _cut(f, axis, 2, 0)
    if places.ndim:
        inner = (
            (high - middle) / after * (before / (before + after))
            + (middle - low) / before * (after / (before + after))
        )  # fmt: skip
    else:
        inner = (high - low) / (before * 2)
    first, last = (_end_slope(f, axis, widths, at_end, edge_order) for at_end in (False, True))
    return concat([first, inner, last], axis)


def _widths(f: Tensor, axis: int, step: TensorLike, places: Tensor) -> Any:
    """From each element to the next, cut at both ends, to multiply along the axis."""
    if not places.ndim:
        number = promote((step, f))[0] if weak_kind(step) else places.cast(f.dtype)
        return lambda first, last: number
    shape = (*(1,) * axis, f.shape[axis], *(1,) * (f.ndim - axis - 1))
    line = diff(reach(places.cast(f.dtype), (f.shape[axis],), "gradient").reshape(shape), 1, axis)
    return lambda first, last: _cut(line, axis, first, last - 1)


def _end_slope(f: Tensor, axis: int, widths: Any, at_end: bool, order: int) -> Tensor:
    """The slope at one end, from the two or three elements there."""
    turned = f.flip(axis) if at_end else f
    a, b = turned.narrow(axis, 0, 1), turned.narrow(axis, 1, 1)
    near, next_one = _end_widths(f, axis, widths, at_end)
    sign = -1 if at_end else 1
    if order == 1:
        return (b - a) / near * sign
    c = turned.narrow(axis, 2, 1)
    both = near + next_one
    slope = a * (-(near * 2 + next_one) / (near * both)) + b * (both / (near * next_one))
    return (slope - c * (near / (next_one * both))) * sign


def _end_widths(f: Tensor, axis: int, widths: Any, at_end: bool) -> tuple[Tensor, Tensor]:
    line = widths(0, 1)
    if line.ndim == 0:
        return line, line
    line = line.flip(axis) if at_end else line
    near = line.narrow(axis, 0, 1)
    more = line.shape[axis]
    return near, line.narrow(axis, 1, 1) if not isinstance(more, int) or more > 1 else near


@spelled(dim="axis")
def trapezoid(
    y: TensorLike,
    x: TensorLike | None = None,
    dx: TensorLike = 1.0,
    axis: int = -1,
    *,
    dim: int = AXIS,
) -> Tensor:
    """The integral of y along the axis, by trapezia: at the places x, or in steps of dx."""
    values = lift(y)
    values = values if values.dtype.is_float else as_float(values)
    i = normalize_axis(axis, values.ndim, "trapezoid")
    middles = (_cut(values, i, 1, 0) + _cut(values, i, 0, 1)) * 0.5
    if x is None:
        return (middles * dx).sum(i)
    places = lift(x).cast(values.dtype)
    if places.ndim == 1:
        places = places.reshape(places.shape[0], *(1,) * (values.ndim - i - 1))
        return (middles * diff(places, 1, 0)).sum(i)
    return (middles * diff(places, 1, i)).sum(i)
