"""Resizing: one axis after the other, with places computed from the index.

    axis --place--> where each output lies on the input: a whole part and a fraction
         --taps-->  the elements around it and their weights  -->  weighted sum

Scales are ratios of dims, so that places are exact: p / q with whole numbers, whatever sizes runs
bind. Only a region has coordinates that are floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.dims import ceildiv, floordiv, less, less_equal, maximum
from semel.ir.expr import Dim
from semel.ir.types import FLOAT32, FLOAT64, INT64, DType, as_shape
from semel.tensor.handle import (
    SYMBOLIC,
    Dims,
    TensorLike,
    dim_value,
    lift,
    normalize_axes,
)
from semel.tensor.indexing import certain_rows, iota
from semel.tensor.movement import along

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: Fractions with smaller denominators are what people write.
_SIMPLE = 4096


@dataclass(frozen=True)
class How:
    """How places and weights are found; the words are ONNX's."""

    mode: str  #: nearest, linear or cubic
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    excludes_outside: bool = False
    antialias: bool = False
    beyond: float = 0.0  #: what a region has outside of the input


@dataclass(frozen=True)
class ResizedAxis:
    """One axis: its length, the size to reach, the scale top / bottom, and the part that is taken.

    The scale is the size over the length where nothing else is said.
    """

    axis: int
    length: Dim
    size: Dim
    top: Dim
    bottom: Dim
    region: tuple[Any, Any] | None = None

    @property
    def is_same(self) -> bool:
        ends = (0.0, 1.0) if self.region is None else self.region
        whole = all(isinstance(end, float) for end in ends) and ends == (0.0, 1.0)
        return whole and self.size == self.length and self.top == self.bottom


def resampled(x: Tensor, axes: Sequence[ResizedAxis], how: How) -> Tensor:
    """x with these axes resized, rounded to its own dtype at the end."""
    found = x
    for axis in axes:
        if not axis.is_same:
            found = _along(found, axis, how)
    return _rounded(found, x.dtype)


def _rounded(x: Tensor, dtype: DType) -> Tensor:
    if x.dtype == dtype or dtype.is_float:
        return x.cast(dtype)
    return x.round().cast(dtype)


# ------------------------------------------------------------ what users call

_INTERPOLATE: dict[str, tuple[How, int | None]] = {  #: and how many axes of space the name means
    "nearest": (How("nearest", "asymmetric", "floor"), None),
    "nearest-exact": (How("nearest", "half_pixel", "round_prefer_ceil"), None),
    "linear": (How("linear"), 1),
    "bilinear": (How("linear"), 2),
    "trilinear": (How("linear"), 3),
    "bicubic": (How("cubic"), 2),
}


def interpolate(
    x: TensorLike,
    size: Dims | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """x [N, C, space...] in another size, as torch.nn.functional.interpolate.

    `mode` is nearest, nearest-exact, linear, bilinear, bicubic, trilinear or area. `size` is one
    for each axis of space, or one for all; a `scale_factor` gives it rounded down, and is the
    scale of places itself unless `recompute_scale_factor`.
    """
    x, where = lift(x), "interpolate"
    if not 3 <= x.ndim <= 5:
        raise GraphError(where, f"needs (batch, channels, 1 to 3 of space), got {x.type}.")
    space = x.shape[2:]
    if mode != "area" and mode not in _INTERPOLATE:
        known = ", ".join(_INTERPOLATE)
        raise GraphError(where, f"mode must be one of {known}, area, got {mode!r}.")
    if (size is None) == (scale_factor is None):
        raise GraphError(where, "needs either size or scale_factor.")
    sizes, scales = _wanted(space, size, scale_factor)
    if recompute_scale_factor or align_corners:
        scales = [(n, length) for n, length in zip(sizes, space, strict=True)]
    is_smooth = mode in ("linear", "bilinear", "bicubic", "trilinear")
    if align_corners is not None and not is_smooth:
        raise GraphError(where, f"align_corners goes with the linear and cubic modes, not {mode}.")
    if antialias and (mode not in ("bilinear", "bicubic") or align_corners):
        raise GraphError(
            where, "antialias goes with bilinear and bicubic, and not with align_corners."
        )
    if mode == "area":
        return x.adaptive_avg_pool(sizes)
    how, axes = _INTERPOLATE[mode]
    if axes not in (None, len(space)):
        raise GraphError(where, f"mode {mode!r} needs {axes} axes of space, got {x.type}.")
    how = _refined(how, bool(align_corners), antialias)
    rows = zip(range(2, x.ndim), space, sizes, scales, strict=True)
    return resampled(x, [ResizedAxis(i, n, to, *scale) for i, n, to, scale in rows], how)


def resize(
    x: TensorLike,
    size: Dims,
    axis: int | Sequence[int] | None = None,
    *,
    mode: str = "linear",
    align_corners: bool = False,
    antialias: bool = True,
) -> Tensor:
    """An image in another size: the last axes of x, or those that `axis` names, interpolated.

    This is no np.resize, which repeats elements: that is `x.flatten().tile(k)`, cut and reshaped.

    `mode` is nearest, linear or cubic. With `antialias`, which nearest ignores, what is made
    smaller is blurred by as much, so that no detail turns into noise.
    """
    x, where = lift(x), "resize"
    modes = {"nearest": "nearest-exact", "linear": "linear", "cubic": "bicubic"}
    if mode not in modes:
        raise GraphError(where, f"mode must be nearest, linear or cubic, got {mode!r}.")
    sizes = as_shape(size, where)
    axes = range(x.ndim - len(sizes), x.ndim) if axis is None else axis
    places = normalize_axes(axes, x.ndim, where)
    if len(places) != len(sizes):
        raise GraphError(where, f"needs one size for each axis, got {sizes} for axes {places}.")
    smooth = mode != "nearest" and antialias and not align_corners
    how = _refined(_INTERPOLATE[modes[mode]][0], align_corners and mode != "nearest", smooth)
    lengths = [x.shape[i] for i in places]
    rows = zip(places, lengths, sizes, strict=True)
    return resampled(x, [ResizedAxis(i, n, to, to, n) for i, n, to in rows], how)


def _refined(how: How, align_corners: bool, antialias: bool) -> How:
    coordinates = "align_corners" if align_corners else how.coordinates
    if not antialias:
        return How(how.mode, coordinates, how.nearest, how.cubic)
    return How(how.mode, coordinates, how.nearest, -0.5, True, True)


def _wanted(
    space: Sequence[Dim], size: Dims | None, factor: float | Sequence[float] | None
) -> tuple[list[Dim], list[tuple[Dim, Dim]]]:
    """The sizes, and the scales as top and bottom."""
    count = len(space)
    if size is not None:
        is_one = isinstance(size, (int, np.integer, *SYMBOLIC))
        sizes = list(as_shape((size,) * count if is_one else size, "interpolate"))
        if len(sizes) != count:
            raise GraphError("interpolate", f"needs {count} sizes, got {sizes}.")
        return sizes, [(to, n) for to, n in zip(sizes, space, strict=True)]
    factors = [*factor] if isinstance(factor, (list, tuple)) else [factor] * count
    if len(factors) != count or not all(_is_factor(f) for f in factors):
        raise GraphError(
            "interpolate", f"scale_factor must be {count} numbers > 0 or one, got {factor!r}."
        )
    exact = [_fraction(f) for f in factors]  # type: ignore[arg-type]
    pairs = zip(space, exact, strict=True)
    return [floordiv(n * top, bottom) for n, (top, bottom) in pairs], list(exact)


def _is_factor(value: Any) -> bool:
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return is_number and 0 < value < float("inf")


def _fraction(value: float) -> tuple[int, int]:
    """A number as the simple fraction that is meant by it: 1.1 is 11 / 10."""
    number = float(value)
    for bottom in range(1, _SIMPLE):
        top = round(number * bottom)
        if top / bottom == number:
            return top, bottom
    return number.as_integer_ratio()


# ------------------------------------------------------------ places


@dataclass(frozen=True)
class _Place:
    """Where outputs lie: `whole` + `part`, with the part in [0, 1), float64."""

    whole: Tensor
    part: Tensor


def _place(axis: ResizedAxis, how: How) -> _Place:
    if axis.region is not None:
        at = _in_region(axis, axis.region)
        return _Place(at.floor().cast(INT64), at - at.floor())
    top, bottom = _exact(axis, how)
    whole = top // bottom
    return _Place(whole, (top - whole * bottom).cast(FLOAT64) / dim_value(bottom, FLOAT64))


def _exact(axis: ResizedAxis, how: How) -> tuple[Tensor, Dim]:
    """Coordinates as whole numbers over one."""
    index, n = iota((axis.size,), 0), axis.length
    top, bottom = axis.top, axis.bottom
    match how.coordinates:
        case "asymmetric":
            return index * bottom, top
        case "align_corners":
            return index * ((n - 1) * bottom), maximum(n * top - bottom, 1)
        case "tf_half_pixel_for_nn":
            return (index * 2 + 1) * bottom, 2 * top
        case "half_pixel_symmetric":
            return (index * 2 + 1) * bottom + (n * top - axis.size * bottom - top), 2 * top
        case "pytorch_half_pixel":
            return ((index * 2 + 1) * bottom - top) * less(1, axis.size), 2 * top
        case _:
            return (index * 2 + 1) * bottom - top, 2 * top


def _in_region(axis: ResizedAxis, region: tuple[Any, Any]) -> Tensor:
    start, end = region
    reach = dim_value(axis.length - 1, FLOAT64)
    # The size as the scale has it, which need not be whole.
    steps = maximum(axis.length * axis.top - axis.bottom, 0)
    step = dim_value(axis.bottom, FLOAT64) / dim_value(maximum(steps, 1), FLOAT64)
    index = iota((axis.size,), 0).cast(FLOAT64)
    middle = dim_value(less_equal(steps, 0), FLOAT64) * 0.5
    found: Tensor = reach * ((index * step + middle) * (end - start) + start)
    return found


# ------------------------------------------------------------ taps


def _along(x: Tensor, axis: ResizedAxis, how: How) -> Tensor:
    times = _times(axis, how)
    if times:
        return x.repeat(times, axis.axis)
    place = _place(axis, how)
    found = _nearest(x, axis, how, place) if how.mode == "nearest" else _mixed(x, axis, how, place)
    if axis.region is None:
        return found
    at = _in_region(axis, axis.region)
    outside = (at < 0) | (at > axis.length - 1)
    return along(outside, axis.axis, x.ndim).where(how.beyond, found)


def _times(axis: ResizedAxis, how: How) -> int:
    """How often each element is repeated, if that is all; 0 if it is not."""
    top, is_whole = axis.top, axis.bottom == 1
    if isinstance(top, int) and isinstance(axis.bottom, int) and axis.bottom > 0:
        top, is_whole = top // axis.bottom, top % axis.bottom == 0
    if how.mode != "nearest" or not is_whole or not isinstance(top, int) or top < 1:
        return 0
    centred = how.coordinates == "half_pixel" and how.nearest.startswith("round")
    return top if centred or (how.coordinates, how.nearest) == ("asymmetric", "floor") else 0


def _nearest(x: Tensor, axis: ResizedAxis, how: How, place: _Place) -> Tensor:
    match how.nearest:
        case "floor":
            index = place.whole
        case "ceil":
            index = place.whole + (place.part > 0).cast(INT64)
        case "round_prefer_ceil":
            index = place.whole + (place.part >= 0.5).cast(INT64)
        case _:
            index = place.whole + (place.part > 0.5).cast(INT64)
    return certain_rows(x, index.clip(0, axis.length - 1), axis.axis)


def _mixed(x: Tensor, axis: ResizedAxis, how: How, place: _Place) -> Tensor:
    """The weighted sum of the elements around each place."""
    work = x.cast(FLOAT64 if x.dtype == FLOAT64 else FLOAT32)
    if how.antialias:
        return _spread(work, axis, how, place)
    taps = range(2) if how.mode == "linear" else range(-1, 3)
    shape = _linear if how.mode == "linear" else _cubic(how.cubic)
    part = place.part.cast(work.dtype)
    indices = [place.whole + tap for tap in taps]
    weights = [shape((part - tap).abs()) for tap in taps]
    if how.excludes_outside:
        weights = [_inside(i, axis).where(w, 0.0) for i, w in zip(indices, weights, strict=True)]
        total = sum(weights[1:], weights[0])
        weights = [w / total for w in weights]
    found: Tensor | None = None
    for index, weight in zip(indices, weights, strict=True):
        element = certain_rows(work, index.clip(0, axis.length - 1), axis.axis)
        term = element * along(weight, axis.axis, x.ndim)
        found = term if found is None else found + term
    assert found is not None
    return found


def _spread(x: Tensor, axis: ResizedAxis, how: How, place: _Place) -> Tensor:
    """With antialias: as many elements as one of the result stands for."""
    top, bottom = axis.top, axis.bottom
    shape, reach = (_linear, 1) if how.mode == "linear" else (_cubic(how.cubic), 2)
    side = maximum(ceildiv(reach * bottom, top), reach)
    taps = iota((2 * side,), 0) - (side - 1)
    scale = (dim_value(top, FLOAT64) / dim_value(bottom, FLOAT64)).minimum(1.0)
    index = place.whole.unsqueeze(1) + taps
    weight = shape(((place.part.unsqueeze(1) - taps.cast(FLOAT64)) * scale).abs())
    if how.excludes_outside:
        weight = _inside(index, axis).where(weight, 0.0)
    weight = (weight / weight.sum(1, True)).cast(x.dtype)
    elements = certain_rows(x, index.clip(0, axis.length - 1), axis.axis)
    wide = weight.reshape(*weight.shape, *(1,) * (x.ndim - axis.axis - 1))
    return (elements * wide).sum(axis.axis + 1)


def _inside(index: Tensor, axis: ResizedAxis) -> Tensor:
    return (index >= 0) & (index < axis.length)


def _linear(distance: Tensor) -> Tensor:
    return (1.0 - distance).maximum(0.0)


def _cubic(a: float) -> Callable[[Tensor], Tensor]:
    """Cubic convolution; `a` is its slope at 1."""

    def weight(t: Tensor) -> Tensor:
        near = ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0
        far = ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a
        return (t <= 1.0).where(near, (t < 2.0).where(far, 0.0))

    return weight


# Second names.
upsample = interpolate
