"""What a sample is like, along axes.

    median quantile percentile   nansum nanmean nanmax ...   average ptp cov corrcoef   nancumsum

Quantiles are read from the sorted axis, by index arithmetic: its size may be symbolic. NaN stands
last there. The plain functions give NaN for a row that has one, those that begin with `nan` leave
them out, and of what is nothing but NaN they give NaN (sums 0, products 1, positions 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, floordiv, is_positive, maximum, product
from semel.ir.types import FLOAT64, INT64
from semel.ops.attrs import GatherAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    TensorLike,
    apply,
    convert,
    dim_value,
    known_value,
    lift,
    normalize_axes,
    normalize_axis,
    promote,
)
from semel.tensor.indexing import certain_rows
from semel.tensor.movement import concat, of_shape, reach
from semel.tensor.order import cumprod, cumsum
from semel.tensor.reduce import Axis, as_float, rounded_to
from semel.tensor.spelling import AXIS, KEEPDIMS, same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

# ------------------------------------------------------------ by rank


def _rows(x: Tensor, axis: Axis, where: str) -> tuple[Tensor, tuple[int, ...]]:
    """What is asked of, as floats: the axes as one in front; and which they were."""
    axes = normalize_axes(axis, x.ndim, where)
    rest = [i for i in range(x.ndim) if i not in axes]
    moved = as_float(x).permute([*sorted(axes), *rest])
    count = product(moved.shape[: len(axes)])
    rows = moved.reshape(count, *moved.shape[len(axes) :])
    if not is_positive(count):  # where there is nothing, NaN is what is found
        rows = concat([rows, _nan_row(rows)], 0)
    return rows, axes


def _nan_row(rows: Tensor) -> Tensor:
    row: Tensor = lift(math.nan).cast(rows.dtype).broadcast_to((1, *rows.shape[1:]))
    return row


def _count(x: Tensor, axes: Sequence[int]) -> Dim:
    return product(x.shape[i] for i in axes)


def _finished(
    result: Tensor, given: Tensor, axes: Sequence[int], keepdims: bool, lead: int
) -> Tensor:
    """In the dtype of what was given; the axes back in their places, behind `lead` others."""
    result = rounded_to(result, given.dtype)
    return result.unsqueeze([lead + i for i in sorted(axes)]) if keepdims and axes else result


@spelled(dim="axis", keepdim="keepdims")
def median(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The middle element in order, or the mean of the two in the middle; NaN if there is one.

    >>> semel.median([3.0, 1.0, 2.0, 10.0]).item()
    2.5
    """
    given = lift(x)
    rows, axes = _rows(given, axis, "median")
    count = _count(given, axes)
    ordered = rows.sort(0)
    last = maximum(count - 1, 0)
    low = ordered.narrow(0, floordiv(last, 2), 1)
    high = ordered.narrow(0, floordiv(count, 2), 1)
    middle = choose(low.eq(high), low, (low + high) * 0.5)
    result = choose(ordered.narrow(0, last, 1).isnan(), math.nan, middle)
    return _finished(result.squeeze(0), given, axes, keepdims, 0)


@spelled(dim="axis", keepdim="keepdims")
def nanmedian(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`median` of the elements that are numbers."""
    return nanquantile(x, 0.5, axis, keepdims)


#: method -> (a, b): the quantile q lies at q * (n + 1 - a - b) + a - 1 of n sorted elements. The
#: first five have rules of their own for what is between two elements, the others interpolate.
_METHODS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("linear", "lower", "higher", "nearest", "midpoint"), (1, 1)),
    "hazen": (0.5, 0.5),
    "weibull": (0, 0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
    "interpolated_inverted_cdf": (0, 1),
}


@spelled(dim="axis", keepdim="keepdims", interpolation="method")
def quantile(
    x: TensorLike,
    q: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    method: str = "linear",
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
    interpolation: str = same_as("method"),
) -> Tensor:
    """The number that a share q of the elements does not exceed; the axes of q come first.

    Between two elements goes what `method` says: "linear", "lower", "higher", "nearest" or
    "midpoint", or one of NumPy's "hazen", "weibull", "median_unbiased", "normal_unbiased" and
    "interpolated_inverted_cdf". A row with a NaN gives NaN, and so does a q beyond [0, 1] that
    only a run knows.

    >>> semel.quantile([1.0, 2.0, 3.0, 4.0], [0.25, 0.5]).tolist()
    [1.75, 2.5]
    """
    return _quantile(lift(x), q, axis, keepdims, method, 1, "quantile", skip=False)


@spelled(dim="axis", keepdim="keepdims", interpolation="method")
def percentile(
    x: TensorLike,
    q: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    method: str = "linear",
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
    interpolation: str = same_as("method"),
) -> Tensor:
    """`quantile` of q in [0, 100]."""
    return _quantile(lift(x), q, axis, keepdims, method, 100, "percentile", skip=False)


@spelled(dim="axis", keepdim="keepdims", interpolation="method")
def nanquantile(
    x: TensorLike,
    q: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    method: str = "linear",
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
    interpolation: str = same_as("method"),
) -> Tensor:
    """`quantile` of the elements that are numbers."""
    return _quantile(lift(x), q, axis, keepdims, method, 1, "nanquantile", skip=True)


@spelled(dim="axis", keepdim="keepdims", interpolation="method")
def nanpercentile(
    x: TensorLike,
    q: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    method: str = "linear",
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
    interpolation: str = same_as("method"),
) -> Tensor:
    """`percentile` of the elements that are numbers."""
    return _quantile(lift(x), q, axis, keepdims, method, 100, "nanpercentile", skip=True)


def _quantile(
    given: Tensor,
    q: TensorLike,
    axis: Axis,
    keepdims: bool,
    method: str,
    whole: int,
    where: str,
    *,
    skip: bool,
) -> Tensor:
    if method not in _METHODS:
        methods = ", ".join(_METHODS)
        raise GraphError(where, f"method must be one of {methods}, got {method!r}.")
    shares = _shares(q, whole, where)
    rows, axes = _rows(given, axis, where)
    rest = rows.shape[1:]
    ordered = rows.sort(0)
    is_nan = rows.isnan()
    wide = (shares.size, *(1,) * len(rest))
    share = shares.reshape(wide)
    count: Tensor = dim_value(_count(given, axes), FLOAT64)
    if skip:
        count = count - convert(is_nan.sum(0), FLOAT64) + _added_rows(given, axes)
    a, b = _METHODS[method]
    place = share * (count + (1 - a - b)) + (a - 1)
    place = place.clip(0, (count - 1).maximum(0))
    low, high, part = _neighbours(place, count, method)
    pick = _picked_by_row if skip else _picked
    below, above = pick(ordered, low, rest), pick(ordered, high, rest)
    result = _between(below, above, convert(part, rows.dtype))
    fits = (share >= 0) & (share <= 1)
    # Where nothing is a number the first in order is NaN itself.
    spoilt = ~fits if skip else ~fits | is_nan.narrow(0, 0, _count(given, axes)).any(0)
    result = choose(spoilt, math.nan, result)
    result = result.reshape((*shares.shape, *rest))
    return _finished(result, given, axes, keepdims, shares.ndim)


def _added_rows(x: Tensor, axes: Sequence[int]) -> int:
    """How many rows of NaN stand behind those given."""
    return 0 if is_positive(_count(x, axes)) else 1


def _shares(q: TensorLike, whole: int, where: str) -> Tensor:
    shares = lift(q)
    known = known_value(shares)
    if known is not None:
        values = known.array.astype(np.float64)
        if not ((values >= 0) & (values <= whole)).all():
            raise GraphError(where, f"q must lie in [0, {whole}], got {values.tolist()}.")
    return _as_written(q, shares) / whole if whole != 1 else _as_written(q, shares)


def _as_written(q: TensorLike, lifted: Tensor) -> Tensor:
    """Python's numbers in all their digits, which a tensor of float32 does not keep."""
    if isinstance(q, (int, float, list, tuple)):
        return lift(np.asarray(q, np.float64))
    return convert(lifted, FLOAT64)


def _neighbours(place: Tensor, count: Tensor, method: str) -> tuple[Tensor, Tensor, Tensor]:
    """The elements on either side, as int64, and how far it is from the first to the second."""
    low = place.floor()
    part = place - low
    match method:
        case "lower":
            part = part * 0
        case "higher":
            part = part.ceil()
        case "nearest":  # half way to the even one
            part = place.round() - low
        case "midpoint":
            part = part.ceil() * 0.5
    first = convert(low, INT64)
    return first, convert((low + 1).minimum((count - 1).maximum(0)), INT64), part


def _picked(ordered: Tensor, index: Tensor, rest: Sequence[Dim]) -> Tensor:
    """One row for all: the same element of each."""
    return certain_rows(ordered, index.flatten(), 0)


def _picked_by_row(ordered: Tensor, index: Tensor, rest: Sequence[Dim]) -> Tensor:
    wide = reach(index, (index.shape[0], *rest), "nanquantile")
    return apply("take_along", ordered, wide, attrs=GatherAttrs(0))


def _between(a: Tensor, b: Tensor, part: Tensor) -> Tensor:
    """From a, `part` of the way to b, and both ends exactly."""
    way = b - a
    from_a, from_b = a + way * part, b - way * (1 - part)
    # Of equal infinities there is no way.
    exact = choose(a.eq(b) | part.eq(0), a, choose(part.eq(1), b, from_b))
    return choose((part < 0.5) & part.ne(0) & a.ne(b), from_a, exact)


# ------------------------------------------------------------ without NaN


def _numbers(x: Tensor, instead: float) -> Tensor:
    return choose(x.isnan(), instead, x) if x.dtype.is_float else x


@spelled(dim="axis", keepdim="keepdims")
def nansum(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`sum` of the elements that are numbers."""
    return _numbers(lift(x), 0).sum(axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def nanprod(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`prod` of the elements that are numbers."""
    return _numbers(lift(x), 1).prod(axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def nanmax(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`max` of the elements that are numbers."""
    x = lift(x)
    return _if_any(x, _numbers(x, -math.inf).max(axis, keepdims), axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def nanmin(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`min` of the elements that are numbers."""
    x = lift(x)
    return _if_any(x, _numbers(x, math.inf).min(axis, keepdims), axis, keepdims)


def _if_any(x: Tensor, result: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    """The result where there was a number, else NaN."""
    if not x.dtype.is_float:
        return result
    return choose(x.isnan().all(axis, keepdims), math.nan, result)


@spelled(dim="axis", keepdim="keepdims")
def nanargmax(
    x: TensorLike,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    dim: int | None = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`argmax` of the elements that are numbers; 0 where none is."""
    return _numbers(lift(x), -math.inf).argmax(axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def nanargmin(
    x: TensorLike,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    dim: int | None = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`argmin` of the elements that are numbers; 0 where none is."""
    return _numbers(lift(x), math.inf).argmin(axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def nanmean(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`mean` of the elements that are numbers."""
    given = lift(x)
    return rounded_to(_nanmean(as_float(given), axis, keepdims), given.dtype)


def _nanmean(x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    return nansum(x, axis, keepdims) / convert(_number_count(x, axis, keepdims), x.dtype)


def _number_count(x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    return (~x.isnan()).sum(axis, keepdims)


@spelled(dim="axis", keepdim="keepdims", ddof="correction")
def nanvar(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    correction: float = 0,
    ddof: float = same_as("correction"),
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`var` of the elements that are numbers."""
    given = lift(x)
    return rounded_to(_nanvar(as_float(given), axis, keepdims, correction), given.dtype)


@spelled(dim="axis", keepdim="keepdims", ddof="correction")
def nanstd(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    correction: float = 0,
    ddof: float = same_as("correction"),
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """`std` of the elements that are numbers."""
    given = lift(x)
    return rounded_to(_nanvar(as_float(given), axis, keepdims, correction).sqrt(), given.dtype)


def _nanvar(x: Tensor, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    distance = choose(x.isnan(), 0, x - _nanmean(x, axis, True))  # NaN of infinities stays
    total = (distance * distance).sum(axis, keepdims)
    count = convert(_number_count(x, axis, keepdims), x.dtype) - correction
    return choose(count > 0, total / count, math.nan)


@spelled(dim="axis")
def nancumsum(x: TensorLike, axis: int | None = None, *, dim: int | None = AXIS) -> Tensor:
    """`cumsum`, where NaN adds nothing."""
    return cumsum(_numbers(lift(x), 0), axis)


@spelled(dim="axis")
def nancumprod(x: TensorLike, axis: int | None = None, *, dim: int | None = AXIS) -> Tensor:
    """`cumprod`, where NaN is no factor."""
    return cumprod(_numbers(lift(x), 1), axis)


# ------------------------------------------------------------ means, spreads and relations


@spelled(dim="axis", keepdim="keepdims")
def ptp(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """From peak to peak: the largest less the smallest element."""
    x = lift(x)
    return x.max(axis, keepdims) - x.min(axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def average(
    x: TensorLike,
    axis: Axis = None,
    weights: TensorLike | None = None,
    returned: bool = False,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Any:
    """The mean, or that of elements which count as much as their weights say.

    The weights have the shape of x, or one axis, which is that of `axis`. With `returned`, also the
    sum of the weights.
    """
    given = lift(x)
    if weights is None:
        result = given.mean(axis, keepdims)
        total = dim_value(_count(given, normalize_axes(axis, given.ndim, "average")), result.dtype)
        return (result, total.broadcast_to(result.shape)) if returned else result
    values, weight = promote((given, lift(weights)), to_float=True)
    if weight.ndim != given.ndim or weight.shape != given.shape:
        weight = _along_axis(weight, values, axis)
    total = weight.sum(axis, keepdims)
    result = (values * weight).sum(axis, keepdims) / total
    return (result, total) if returned else result


def _along_axis(weight: Tensor, x: Tensor, axis: Axis) -> Tensor:
    """Weights of one axis, of the shape of x."""
    if not isinstance(axis, (int, np.integer)) or weight.ndim != 1:
        raise GraphError(
            "average",
            f"weights must have the shape of {x.type}, or one axis and `axis` say which, "
            f"got {weight.type} and axis={axis}.",
        )
    i = normalize_axis(axis, x.ndim, "average")
    column = weight.reshape(weight.shape[0], *(1,) * (x.ndim - i - 1))
    return reach(column, x.shape, "average")


@spelled(correction="ddof")
def cov(
    x: TensorLike,
    y: TensorLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: float | None = None,
    fweights: TensorLike | None = None,
    aweights: TensorLike | None = None,
    *,
    correction: float | None = same_as("ddof"),
) -> Tensor:
    """The covariances of the rows of x (of its columns, if not `rowvar`), and of those of y.

    `fweights` say how often each column was observed, `aweights` how much it counts.
    """
    rows = _variables(lift(x), rowvar)
    if y is not None:
        rows = concat([rows, _variables(lift(y), rowvar)], 0)
    rows = as_float(rows)
    less = ddof if ddof is not None else 0 if bias else 1
    weights = _observations(rows, fweights, aweights)
    if weights is None:
        distance = rows - rows.mean(1, keepdims=True)
        count = dim_value(rows.shape[1], rows.dtype) - less
        result = (distance @ distance.mT) / count.maximum(0)
    else:
        total = weights.sum()
        lost = less if aweights is None else (weights * lift(aweights)).sum() / total * less
        distance = rows - (rows * weights).sum(1, keepdims=True) / total
        result = ((distance * weights) @ distance.mT) / (total - lost).maximum(0)
    return result.reshape(()) if y is None and rows.shape[0] == 1 else result


def _observations(rows: Tensor, *given: TensorLike | None) -> Tensor | None:
    """One weight for each column, the product of those that are given."""
    weights: Tensor | None = None
    for each in given:
        if each is not None:
            known = of_shape(convert(lift(each), rows.dtype), (rows.shape[1],), "cov", "weights")
            weights = known if weights is None else weights * known
    return weights


def corrcoef(x: TensorLike, y: TensorLike | None = None, rowvar: bool = True) -> Tensor:
    """The coefficients of correlation of the rows of x, and of those of y: in [-1, 1]."""
    both = cov(x, y, rowvar)
    if both.ndim == 0:
        return both / both
    deviation = both.diagonal().sqrt()
    ratio = both / deviation.unsqueeze(1) / deviation.unsqueeze(0)
    return ratio.clip(-1, 1)


def _variables(x: Tensor, rowvar: bool) -> Tensor:
    """One row for each variable."""
    if x.ndim > 2:
        raise GraphError("cov", f"needs at most 2 axes, got {x.type}.")
    if x.ndim < 2:
        return x.reshape(1, -1)
    return x if rowvar else x.mT
