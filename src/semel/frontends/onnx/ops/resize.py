"""Resize and Upsample: one axis after the other, with places computed from the index.

    axis --place--> where each output lies on the input: a whole part and a fraction
         --taps-->  the elements around it and their weights  -->  weighted sum

Scales are ratios of dims, so that places are exact: p / q with whole numbers, whatever sizes runs
bind. Only a region (`roi`) has coordinates that are floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.ops.movement import along
from semel.frontends.onnx.ratio import Ratio, as_ratio, floor
from semel.ir.dims import ceildiv, floordiv, less, less_equal, maximum, minimum, select
from semel.ir.expr import Dim
from semel.ir.types import FLOAT32, FLOAT64, INT64, DType
from semel.tensor.handle import dim_value
from semel.tensor.indexing import certain_rows
from semel.tensor.tensor import Tensor


@dataclass(frozen=True)
class _How:
    """What the attributes say."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    excludes_outside: bool
    antialias: bool
    beyond: float


@dataclass(frozen=True)
class _Axis:
    """One axis of the result: its size, the scale, and the part of the input that is taken."""

    axis: int
    length: Dim
    size: Dim
    scale: Ratio
    region: tuple[Any, Any] | None = None

    @property
    def is_same(self) -> bool:
        ends = (0.0, 1.0) if self.region is None else self.region
        whole = all(isinstance(end, float) for end in ends) and ends == (0.0, 1.0)
        return whole and self.size == self.length and self.scale.top == self.scale.bottom


def _resize(node: Node) -> Tensor:
    x, how = node.tensor(), _how(node)
    found = x
    for axis in _axes(node, x, how):
        if not axis.is_same:
            found = _along(found, axis, how)
    return _rounded(found, x.dtype)


def _rounded(x: Tensor, dtype: DType) -> Tensor:
    if x.dtype == dtype or dtype.is_float:
        return x.cast(dtype)
    return x.round().cast(dtype)


def _how(node: Node) -> _How:
    if node.version < 11:
        return _How(node.attr("mode", "nearest"), "asymmetric", "floor", -0.75, False, False, 0.0)
    mode = node.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise node.refuse(f"mode '{mode}' is unknown.")
    return _How(
        mode,
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("nearest_mode", "round_prefer_floor"),
        node.number("cubic_coeff_a", -0.75),
        node.flag("exclude_outside"),
        node.flag("antialias"),
        node.number("extrapolation_value", 0.0),
    )


# ---------------------------------------------------------------- sizes


def _axes(node: Node, x: Tensor, how: _How) -> list[_Axis]:
    axes = [node.as_axis(axis, x.ndim) for axis in node.attr("axes") or range(x.ndim)]
    lengths = [x.shape[axis] for axis in axes]
    sizes, scales = _sizes(node, lengths)
    regions = _regions(node, how, len(axes))
    return [_Axis(*each) for each in zip(axes, lengths, sizes, scales, regions, strict=True)]


def _sizes(node: Node, lengths: list[Dim]) -> tuple[list[Dim], list[Ratio]]:
    if node.version >= 11 and node.has(3):
        return _given_sizes(node, node.dims(3), lengths)
    scales = _scales(node)
    sizes = [floor(Ratio(n * s.top, s.bottom)) for n, s in zip(lengths, scales, strict=True)]
    return sizes, scales


def _scales(node: Node) -> list[Ratio]:
    if node.version < 9 and node.attr("scales") is not None:
        return [as_ratio(scale) for scale in node.attr("scales")]
    position = 1 if node.version < 11 else 2
    value = node.value(position)
    known = value.known if value.is_symbolic else node.numbers(position)
    assert known is not None
    return [as_ratio(scale) for scale in known.reshape(-1).tolist()]


def _given_sizes(node: Node, sizes: list[Dim], lengths: list[Dim]) -> tuple[list[Dim], list[Ratio]]:
    """Sizes and scales; of a policy that keeps proportions, one scale for all axes."""
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    scales = [Ratio(size, length) for size, length in zip(sizes, lengths, strict=True)]
    if policy == "stretch":
        return sizes, scales
    is_larger = policy == "not_smaller"
    one = scales[0]
    for other in scales[1:]:
        here, there = one.top * other.bottom, other.top * one.bottom
        is_other = less(here, there) if is_larger else less(there, here)
        top = select(is_other, other.top, one.top)
        one = Ratio(top, select(is_other, other.bottom, one.bottom))
    choose = maximum if is_larger else minimum
    rounded = [reduce(choose, (_rounded_up(n, s) for s in scales)) for n in lengths]
    return rounded, [one] * len(sizes)


def _rounded_up(length: Dim, scale: Ratio) -> Dim:
    """The nearest whole number, upwards if there are two."""
    return floordiv(2 * length * scale.top + scale.bottom, 2 * scale.bottom)


def _regions(node: Node, how: _How, count: int) -> list[tuple[Any, Any] | None]:
    if how.coordinates != "tf_crop_and_resize":
        return [None] * count
    known = node.value(1).known
    given: Any = known.astype(float).tolist() if known is not None else node.tensor(1).cast(FLOAT64)
    return [(given[k], given[count + k]) for k in range(count)]


# ---------------------------------------------------------------- places


@dataclass(frozen=True)
class _Place:
    """Where outputs lie: `whole` + `part`, with the part in [0, 1), float64."""

    whole: Tensor
    part: Tensor


def _place(axis: _Axis, how: _How) -> _Place:
    if axis.region is not None:
        at = _in_region(axis, axis.region)
        return _Place(at.floor().cast(INT64), at - at.floor())
    top, bottom = _exact(axis, how)
    whole = top // bottom
    return _Place(whole, (top - whole * bottom).cast(FLOAT64) / dim_value(bottom, FLOAT64))


def _exact(axis: _Axis, how: _How) -> tuple[Tensor, Dim]:
    """Coordinates as whole numbers over one."""
    index, n = Tensor.arange(axis.size), axis.length
    top, bottom = axis.scale.top, axis.scale.bottom
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


def _in_region(axis: _Axis, region: tuple[Any, Any]) -> Tensor:
    start, end = region
    reach = dim_value(axis.length - 1, FLOAT64)
    # The size as the scale has it, which need not be whole.
    steps = maximum(axis.length * axis.scale.top - axis.scale.bottom, 0)
    step = dim_value(axis.scale.bottom, FLOAT64) / dim_value(maximum(steps, 1), FLOAT64)
    index = Tensor.arange(axis.size).cast(FLOAT64)
    middle = dim_value(less_equal(steps, 0), FLOAT64) * 0.5
    found: Tensor = reach * ((index * step + middle) * (end - start) + start)
    return found


# ---------------------------------------------------------------- taps


def _along(x: Tensor, axis: _Axis, how: _How) -> Tensor:
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


def _times(axis: _Axis, how: _How) -> int:
    """How often each element is repeated, if that is all; 0 if it is not."""
    top, is_whole = axis.scale.top, axis.scale.bottom == 1
    if how.mode != "nearest" or not is_whole or not isinstance(top, int) or top < 1:
        return 0
    centred = how.coordinates == "half_pixel" and how.nearest.startswith("round")
    return top if centred or (how.coordinates, how.nearest) == ("asymmetric", "floor") else 0


def _nearest(x: Tensor, axis: _Axis, how: _How, place: _Place) -> Tensor:
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


def _mixed(x: Tensor, axis: _Axis, how: _How, place: _Place) -> Tensor:
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


def _spread(x: Tensor, axis: _Axis, how: _How, place: _Place) -> Tensor:
    """With antialias: as many elements as one of the result stands for."""
    top, bottom = axis.scale.top, axis.scale.bottom
    shape, reach = (_linear, 1) if how.mode == "linear" else (_cubic(how.cubic), 2)
    side = maximum(ceildiv(reach * bottom, top), reach)
    taps = Tensor.arange(2 * side) - (side - 1)
    scale = (dim_value(top, FLOAT64) / dim_value(bottom, FLOAT64)).minimum(1.0)
    index = place.whole.unsqueeze(1) + taps
    weight = shape(((place.part.unsqueeze(1) - taps.cast(FLOAT64)) * scale).abs())
    if how.excludes_outside:
        weight = _inside(index, axis).where(weight, 0.0)
    weight = (weight / weight.sum(1, True)).cast(x.dtype)
    elements = certain_rows(x, index.clip(0, axis.length - 1), axis.axis)
    wide = weight.reshape(*weight.shape, *(1,) * (x.ndim - axis.axis - 1))
    return (elements * wide).sum(axis.axis + 1)


def _inside(index: Tensor, axis: _Axis) -> Tensor:
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


CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _resize}
