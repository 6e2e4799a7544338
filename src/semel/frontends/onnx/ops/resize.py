"""Resize and Upsample: what the attributes and inputs say of each axis.

The scales are ratios of dims, so that places are exact (tensor/resample.py).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.ratio import Ratio, as_ratio, floor
from semel.ir.dims import floordiv, less, maximum, minimum, select
from semel.ir.expr import Dim
from semel.ir.types import FLOAT64
from semel.tensor.resample import How, ResizedAxis, resampled
from semel.tensor.tensor import Tensor


def _resize(node: Node) -> Tensor:
    x, how = node.tensor(), _how(node)
    return resampled(x, _axes(node, x, how), how)


def _how(node: Node) -> How:
    if node.version < 11:
        return How(node.attr("mode", "nearest"), "asymmetric", "floor", -0.75, False, False, 0.0)
    mode = node.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise node.refuse(f"mode '{mode}' is unknown.")
    return How(
        mode,
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("nearest_mode", "round_prefer_floor"),
        node.number("cubic_coeff_a", -0.75),
        node.flag("exclude_outside"),
        node.flag("antialias"),
        node.number("extrapolation_value", 0.0),
    )


# ---------------------------------------------------------------- sizes


def _axes(node: Node, x: Tensor, how: How) -> list[ResizedAxis]:
    axes = node.distinct(node.attr("axes") or range(x.ndim), x.ndim)
    lengths = [x.shape[axis] for axis in axes]
    sizes, scales = _sizes(node, lengths)
    regions = _regions(node, how, len(axes))
    rows = zip(axes, lengths, sizes, scales, regions, strict=True)
    return [ResizedAxis(i, n, to, s.top, s.bottom, part) for i, n, to, s, part in rows]


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


def _regions(node: Node, how: How, count: int) -> list[tuple[Any, Any] | None]:
    if how.coordinates != "tf_crop_and_resize":
        return [None] * count
    known = node.value(1).known
    given: Any = known.astype(float).tolist() if known is not None else node.tensor(1).cast(FLOAT64)
    return [(given[k], given[count + k]) for k in range(count)]


CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _resize}
