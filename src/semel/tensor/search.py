"""Where numbers lie among others, and how many lie where.

    searchsorted digitize isin   histogram bincount   interp   unravel_index ravel_multi_index

`searchsorted` halves the sorted axis as often as its largest size asks for: no loop, a gather for
each step. What is counted is added up by `scatter`, in order. NaN lies behind all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, is_positive, maximum, product, upper_bound
from semel.ir.types import FLOAT64, INT64, as_shape
from semel.ops.attrs import ScatterAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    TensorLike,
    apply,
    convert,
    dim_value,
    lift,
    promote,
    scalar,
    whole_number,
)
from semel.tensor.indexing import certain_rows, check_index, iota
from semel.tensor.late import item_dim, nonzero
from semel.tensor.movement import agreeing, broadcast, concat
from semel.tensor.reduce import accumulator, as_float

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: Of tests of membership: up to so many elements are compared with each, others are sorted first.
_COMPARED = 16
#: The largest number that `bincount` counts up to, if nothing says another.
BIN_LIMIT = 1 << 20
_SIDES = ("left", "right")


# ------------------------------------------------------------ among sorted numbers


def searchsorted(
    x: TensorLike,
    v: TensorLike,
    side: str = "left",
    sorter: TensorLike | None = None,
    *,
    right: bool = False,
) -> Tensor:
    """Where each element of v would go into x, which has one axis in ascending order (int64).

    On the `side` "left" before those that are equal, on the "right" (`right=True`) behind them.
    `sorter` are indices that bring x in order.

    >>> semel.searchsorted([1.0, 2.0, 2.0, 5.0], [2.0, 9.0], side="right").tolist()
    [3, 4]
    """
    if side not in _SIDES:
        raise GraphError("searchsorted", f"side must be 'left' or 'right', got {side!r}.")
    x = lift(x)
    if x.ndim != 1:
        raise GraphError("searchsorted", f"the sorted tensor must have one axis, got {x.type}.")
    if sorter is not None:
        x = x.take(sorter)
    return _places(x, v, right or side == "right")


def _places(x: Tensor, v: TensorLike, right: bool) -> Tensor:
    """How many elements of x come before each of v."""
    ordered, sought = promote((x, v))
    count = ordered.shape[0]
    found = scalar(0, INT64).broadcast_to(sought.shape)
    if count == 0:
        return found
    line = ordered if is_positive(count) else ordered.pad(((0, 1),))  # there is one to read
    size, last = dim_value(count), dim_value(maximum(count - 1, 0))
    for bit in reversed(range(_bits(count))):
        further = found + (1 << bit)
        there = certain_rows(line, (further - 1).minimum(last), 0)
        before = ~_less(sought, there) if right else _less(there, sought)
        found = choose((further <= size) & before, further, found)
    return found


def _bits(count: Dim) -> int:
    """How many steps find a place among so many elements."""
    most = upper_bound(count)
    return 48 if most is None else most.bit_length()


def _less(a: Tensor, b: Tensor) -> Tensor:
    """a < b in the order of sorting."""
    if not a.dtype.is_float:
        return a < b
    return (a < b) | (b.isnan() & ~a.isnan())


def digitize(x: TensorLike, bins: TensorLike, right: bool = False) -> Tensor:
    """In which bin each element lies; the edges of bins ascend, or descend.

    The i-th bin is edges[i-1] <= x < edges[i], or with `right` open on the other side.
    """
    x, edges = lift(x), lift(bins)
    if edges.ndim != 1:
        raise GraphError("digitize", f"bins must have one axis, got {edges.type}.")
    up = _places(edges, x, not right)
    if edges.shape[0] in (0, 1):
        return up
    falls = edges[0] > edges[-1]
    down = dim_value(edges.shape[0]) - _places(edges.flip(0), x, not right)
    return choose(falls, down, up)


def bucketize(x: TensorLike, boundaries: TensorLike, right: bool = False) -> Tensor:
    """`searchsorted(boundaries, x)`: where each element would go among ascending boundaries."""
    return searchsorted(boundaries, x, right=right)


def isin(
    x: TensorLike, test_elements: TensorLike, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Which elements are among `test_elements`; with `invert`, which are not. NaN never is."""
    x, tests = promote((lift(x), test_elements))
    tests = tests.flatten()
    count = tests.shape[0]
    if isinstance(count, int) and count <= _COMPARED:
        found = x.unsqueeze(-1).eq(tests).any(-1)
    else:
        ordered = tests.sort()
        place = _places(ordered, x, False)
        last = dim_value(maximum(count - 1, 0))
        padded = ordered if is_positive(count) else ordered.pad(((0, 1),))
        there = certain_rows(padded, place.minimum(last), 0)
        found = there.eq(x) & (place < dim_value(count))
    return ~found if invert else found


def interp(
    x: TensorLike,
    xp: TensorLike,
    fp: TensorLike,
    left: TensorLike | None = None,
    right: TensorLike | None = None,
    period: float | None = None,
) -> Tensor:
    """The values at x of the lines through the points (xp, fp), whose xp ascend.

    Before the first point it is `left`, or fp[0]; behind the last `right`, or fp[-1]. With a
    `period` all of it goes round: points may stand in any order, and there is nothing outside.
    """
    if period is not None:
        x, xp, fp = _periodic(x, xp, fp, period)
    x, points, values = promote((x, lift(xp), lift(fp)), to_float=True)
    if points.ndim != 1 or values.ndim != 1:
        raise GraphError("interp", f"xp and fp must have one axis, got {lift(xp).type} and "
                         f"{lift(fp).type}.")  # fmt: skip
    points = agreeing(points, values.shape)
    last = points.shape[0] - 1
    if not is_positive(points.shape[0]):
        raise GraphError("interp", f"needs a point at least, got {points.type}.")
    place = (_places(points, x, True) - 1).clip(0, maximum(last - 1, 0))
    after = (place + 1).minimum(last)
    x0, x1 = certain_rows(points, place, 0), certain_rows(points, after, 0)
    y0, y1 = certain_rows(values, place, 0), certain_rows(values, after, 0)
    width = x1 - x0
    slope = (y1 - y0) / choose(width.eq(0), 1, width)
    result = choose(x.eq(x1), y1, slope * (x - x0) + y0)
    first_x, last_x = points[0], points[-1]
    result = choose(x < first_x, values[0] if left is None else left, result)
    result = choose(x > last_x, values[-1] if right is None else right, result)
    return choose(x.isnan(), x, result)


def _periodic(
    x: TensorLike, xp: TensorLike, fp: TensorLike, period: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in one period, with the last point before all others and the first behind them."""
    if period == 0:
        raise GraphError("interp", "period must not be 0.")
    x, points, values = promote((lift(x), lift(xp), lift(fp)), to_float=True)
    span = abs(period)
    points = points % span
    order = points.flatten().argsort()
    points, values = points.flatten().take(order), values.flatten().take(order)
    around = concat([points[-1:] - span, points, points[:1] + span])
    return x % span, around, concat([values[-1:], values, values[:1]])


# ------------------------------------------------------------ how many lie where


def _add_up(index: Tensor, weights: Tensor, length: Dim) -> Tensor:
    """The weights of each index in [0, length), added up in order."""
    width = (length, 1)
    empty = scalar(0, weights.dtype).broadcast_to(width)
    rows = weights.reshape(index.shape[0], 1)
    return apply("scatter", empty, index, rows, attrs=ScatterAttrs("add")).reshape(length)


def bincount(
    x: TensorLike,
    weights: TensorLike | None = None,
    minlength: Dim = 0,
    *,
    length: Dim | None = None,
    limit: Dim = BIN_LIMIT,
) -> Tensor:
    """How often each of the numbers 0, 1, ... occurs in x, or what their weights add up to.

    The result ends with the largest number, which a run finds out: it must be less than `limit`,
    for which there is memory. With `length` there are so many, known before; numbers beyond
    are errors of the run.

    >>> semel.bincount([0, 2, 2]).tolist()
    [1, 0, 2]
    """
    x = lift(x)
    if x.ndim != 1 or not x.dtype.is_integer:
        raise GraphError("bincount", f"needs integers along one axis, got {x.type}.")
    index = check_index(x, limit if length is None else length, "bincount", "number")
    if length is None:
        largest = concat([index, scalar(-1, INT64).reshape(1)]).max()
        length = maximum(item_dim(largest + 1, limit, where="bincount"), minlength)
    counted = lift(1).broadcast_to(x.shape) if weights is None else _weights(x, weights)
    return _add_up(index, counted, length)


def _weights(x: Tensor, weights: TensorLike) -> Tensor:
    lifted = lift(weights)
    given = convert(lifted, accumulator(lifted.dtype))
    if given.ndim != x.ndim:
        raise GraphError("bincount", f"weights must have the shape of {x.type}, got {given.type}.")
    return agreeing(given, x.shape)


def histogram(
    x: TensorLike,
    bins: int | TensorLike = 10,
    range: tuple[float, float] | None = None,
    weights: TensorLike | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """How many elements lie in each bin, or what their weights add up to; and the edges.

    `bins` are the ascending edges, or how many bins of one width there are in the `range`, which
    is that of the elements if nothing says another. The last bin has both its edges. With
    `density` the bins' areas add up to 1.
    """
    x = lift(x)
    edges = histogram_bin_edges(x, bins, range)
    flat, line = promote((x.flatten(), edges))
    count = edges.shape[0] - 1
    place = _places(line, flat, True) - 1
    place = choose(flat.eq(line[-1]), dim_value(count) - 1, place)
    inside = (place >= 0) & (place < count)
    counted = (
        lift(1).broadcast_to(flat.shape)
        if weights is None
        else convert(lift(weights), accumulator(lift(weights).dtype)).reshape(flat.shape)
    )
    bucket = choose(inside, place, dim_value(count))  # one more, of those that lie in none
    found = _add_up(bucket, counted, count + 1).narrow(0, 0, count)
    if not density:
        return found, edges
    widths = edges.narrow(0, 1, count) - edges.narrow(0, 0, count)
    return as_float(found) / widths / as_float(found.sum()), edges


def histogram_bin_edges(
    x: TensorLike, bins: int | TensorLike = 10, range: tuple[float, float] | None = None
) -> Tensor:
    """The edges that `histogram` takes; integers have them in float64."""
    x = lift(x)
    if not isinstance(bins, (int, np.integer)):
        edges = lift(bins)
        if edges.ndim != 1 or edges.shape[0] == 0:
            raise GraphError("histogram", f"edges must have one axis, got {edges.type}.")
        return edges
    count = whole_number(bins, "bins", "histogram")
    if count < 1:
        raise GraphError("histogram", f"bins must be > 0, got {count}.")
    work = x.dtype if x.dtype.is_float and x.dtype.bits >= 32 else FLOAT64
    low, high = _range(convert(x, work), range)
    is_flat = low.eq(high)
    low, high = choose(is_flat, low - 0.5, low), choose(is_flat, high + 0.5, high)
    steps = iota((count + 1,), 0)
    values = convert(steps, work) * ((high - low) / count) + low
    return choose(steps.eq(count), high, values)


def _range(x: Tensor, given: tuple[float, float] | None) -> tuple[Tensor, Tensor]:
    if given is None:
        if x.size == 0:
            return scalar(0.0, x.dtype), scalar(1.0, x.dtype)
        return x.min(), x.max()
    low, high = given
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise GraphError("histogram", f"range must be two ascending numbers, got {given}.")
    return scalar(float(low), x.dtype), scalar(float(high), x.dtype)


# ------------------------------------------------------------ flat indices and others


def flatnonzero(x: TensorLike) -> Tensor:
    """The indices in the flat tensor of the elements that are not 0."""
    return nonzero(lift(x).flatten())[0]


def unravel_index(indices: TensorLike, shape: Any) -> tuple[Tensor, ...]:
    """Flat indices as one index for each axis of a shape."""
    dims = as_shape(shape, "unravel_index")
    rest = check_index(lift(indices), product(dims), "unravel_index")
    found: list[Tensor] = []
    for dim in reversed(dims[1:]):
        found.append(rest % dim)
        rest = rest // dim
    return (rest, *reversed(found)) if dims else ()


def ravel_multi_index(
    multi_index: Sequence[TensorLike], dims: Any, mode: str | Sequence[str] = "raise"
) -> Tensor:
    """One index for each axis as flat indices.

    What lies beyond an axis is an error of the run, or by `mode` brought back to its ends ("clip")
    or counted round ("wrap").
    """
    shape = as_shape(dims, "ravel_multi_index")
    modes = [mode] * len(shape) if isinstance(mode, str) else list(mode)
    if len(multi_index) != len(shape) or len(modes) != len(shape):
        raise GraphError(
            "ravel_multi_index",
            f"needs an index and a mode for each of {len(shape)} axes, got {len(multi_index)} "
            f"and {len(modes)}.",
        )
    pairs = zip(multi_index, shape, modes, strict=True)
    within = broadcast([_within(lift(i), dim, how) for i, dim, how in pairs], "ravel_multi_index")
    flat = within[0]
    for index, dim in zip(within[1:], shape[1:], strict=True):
        flat = flat * dim + index
    return flat


def _within(index: Tensor, dim: Dim, mode: str) -> Tensor:
    match mode:
        case "raise":
            return check_index(index, dim, "ravel_multi_index")
        case "clip":
            return convert(index, INT64).clip(0, maximum(dim - 1, 0))
        case "wrap":
            return convert(index, INT64) % dim
    raise GraphError("ravel_multi_index", f"mode must be 'raise', 'clip' or 'wrap', got {mode!r}.")
