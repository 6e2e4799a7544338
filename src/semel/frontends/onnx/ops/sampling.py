"""Operators that read images between their pixels, and put pixels back.

Points and the pixels around them are those of tensor/grid.py; what is here reads regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.ir.dims import floordiv
from semel.ir.expr import Dim, product
from semel.ir.types import FLOAT32, FLOAT64, INT64
from semel.tensor.grid import (
    Taps,
    border_outside,
    linear_taps,
    pixels,
    sample,
    sampled,
    zeros_outside,
)
from semel.tensor.movement import along
from semel.tensor.tensor import Tensor

# ---------------------------------------------------------------- grids


def _grid_sample(node: Node) -> Tensor:
    mode = node.attr("mode", "linear")
    return sampled(
        node.tensor(0),
        node.tensor(1),
        {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
        node.attr("padding_mode", "zeros"),
        node.flag("align_corners"),
        holds_points=True,
        where=repr(node),
    )


def _affine_grid(node: Node) -> Tensor:
    return node.tensor(0).affine_grid(node.dims(1), node.flag("align_corners"))


# ---------------------------------------------------------------- regions


def _roi_align(node: Node) -> Tensor:
    """Pooled samples of regions; how many samples a bin has may follow from the region."""
    x, rois, batch = node.tensor(0), node.tensor(1), node.tensor(2)
    height, width = node.attr("output_height", 1), node.attr("output_width", 1)
    ratio, is_half = node.attr("sampling_ratio", 0), _is_half_pixel(node)
    work = x.cast(FLOAT64 if x.dtype == FLOAT64 else FLOAT32)
    edges = rois.cast(work.dtype) * node.number("spatial_scale", 1.0) - (0.5 if is_half else 0.0)
    left, top, right, bottom = (edges[:, k] for k in range(4))
    spans = [right - left, bottom - top]
    if not is_half:
        spans = [span.maximum(1.0) for span in spans]
    columns = _bins(node, left, spans[0], width, ratio)
    rows = _bins(node, top, spans[1], height, ratio)
    return _pooled(node, work.take(batch, 0), rows, columns).cast(x.dtype)


def _is_half_pixel(node: Node) -> bool:
    usual = "half_pixel" if node.version >= 16 else "output_half_pixel"
    return bool(node.attr("coordinate_transformation_mode", usual) == "half_pixel")


class _Bins:
    """The samples along one axis of regions: `at` [regions, bins, samples], which `count`."""

    def __init__(self, at: Tensor, count: Tensor | int) -> None:
        self.at, self.count = at, count
        self.samples = at.shape[2]

    @property
    def is_used(self) -> Tensor | None:
        """Which samples count, if regions have different numbers of them."""
        if isinstance(self.count, int):
            return None
        return Tensor.arange(self.samples) < self.count.unsqueeze(1)


def _bins(node: Node, start: Tensor, span: Tensor, bins: int, ratio: int) -> _Bins:
    size = (span / float(bins)).reshape(-1, 1, 1)
    first = start.reshape(-1, 1, 1) + Tensor.arange(bins).reshape(bins, 1).cast(start.dtype) * size
    if ratio > 0:
        step = (Tensor.arange(ratio).cast(start.dtype) + 0.5) / float(ratio)
        return _Bins(first + step * size, ratio)
    count = (span / float(bins)).ceil().cast(INT64)
    most = node.walk.size_of(count.max().maximum(1))
    step = Tensor.arange(most).cast(start.dtype) + 0.5
    steps = step / count.maximum(1).cast(start.dtype).unsqueeze(1)
    return _Bins(first + steps.unsqueeze(1) * size, count)


def _pooled(node: Node, x: Tensor, rows: _Bins, columns: _Bins) -> Tensor:
    """x [regions, C, H, W] at all samples; their mean, or the largest of their terms."""
    count = x.shape[0]
    height, width = rows.at.shape[1], columns.at.shape[1]
    shape = (count, height, rows.samples, width, columns.samples)
    y = rows.at.reshape(count, height, rows.samples, 1, 1).broadcast_to(shape)
    z = columns.at.reshape(count, 1, 1, width, columns.samples).broadcast_to(shape)
    h, w = x.shape[2:]
    beyond = (y < -1.0) | (y > h) | (z < -1.0) | (z > w)
    taps = [linear_taps(at.clip(0, n - 1)) for at, n in ((y, h), (z, w))]
    used = [bins.is_used for bins in (rows, columns)]
    if used[0] is not None and used[1] is not None:
        both = used[0].reshape(count, 1, rows.samples, 1, 1) & used[1].reshape(
            count, 1, 1, 1, columns.samples
        )
        unused: Tensor | None = ~both.unsqueeze(1)
    else:
        unused = None
    if node.attr("mode", "avg") == "avg":
        found = beyond.unsqueeze(1).where(0.0, sample(x, taps, border_outside))
        total = (found if unused is None else unused.where(0.0, found)).sum((3, 5))
        mean: Tensor = total / _number_of(rows, columns, x)
        return mean
    terms = [
        pixels(x, [i, j], border_outside) * (a * b).unsqueeze(1) for i, a, j, b in _pairs(taps)
    ]
    found = beyond.unsqueeze(1).where(0.0, reduce(Tensor.maximum, terms))
    return (found if unused is None else unused.where(float("-inf"), found)).max((3, 5))


def _pairs(taps: Sequence[Taps]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    return [(i, a, j, b) for i, a in taps[0] for j, b in taps[1]]


def _number_of(rows: _Bins, columns: _Bins, x: Tensor) -> Any:
    if isinstance(rows.count, int) and isinstance(columns.count, int):
        return float(rows.count * columns.count)
    assert isinstance(rows.count, Tensor) and isinstance(columns.count, Tensor)
    return (rows.count * columns.count).maximum(1).cast(x.dtype).reshape(-1, 1, 1, 1)


def _max_roi_pool(node: Node) -> Tensor:
    """The largest pixel of each bin; regions are [image, left, top, right, bottom], whole."""
    x, rois = node.tensor(0), node.tensor(1)
    height, width = node.attr("pooled_shape")
    edges = (rois[:, 1:] * node.number("spatial_scale", 1.0) + 0.5).floor().cast(INT64)
    rows = _in_bins(edges[:, 1], edges[:, 3], height, x.shape[2], rois)
    columns = _in_bins(edges[:, 0], edges[:, 2], width, x.shape[3], rois)
    images = x.take(rois[:, 0].cast(INT64), 0)
    low = float("-inf")
    wide = rows.unsqueeze(1).unsqueeze(-1).where(images.unsqueeze(2), low).max(3)
    found = columns.unsqueeze(1).unsqueeze(1).where(wide.unsqueeze(3), low).max(4)
    return found.eq(low).where(0.0, found).cast(x.dtype)


def _in_bins(start: Tensor, end: Tensor, bins: int, length: Dim, like: Tensor) -> Tensor:
    """[regions, bins, length]: which pixels of an axis a bin has."""
    span = (end - start + 1).maximum(1).cast(like.dtype).unsqueeze(1) / float(bins)
    step = Tensor.arange(bins)
    first = (step.cast(like.dtype) * span).floor().cast(INT64) + start.unsqueeze(1)
    last = ((step + 1).cast(like.dtype) * span).ceil().cast(INT64) + start.unsqueeze(1)
    place = Tensor.arange(length)
    return (place >= first.unsqueeze(2)) & (place < last.unsqueeze(2))


# ---------------------------------------------------------------- convolution at offsets


def _deform_conv(node: Node) -> Tensor:
    """Convolution whose taps are moved by offsets, which are data."""
    x, weight, offset = (node.tensor(i) for i in range(3))
    axes = x.ndim - 2
    kernel = weight.shape[2:]
    strides = node.attr("strides") or [1] * axes
    dilations = node.attr("dilations") or [1] * axes
    pads = node.attr("pads") or [0] * (2 * axes)
    groups, moved = node.attr("group", 1), node.attr("offset_group", 1)
    n, c = x.shape[:2]
    out = offset.shape[2:]
    offset = offset.reshape(n * moved, *kernel, axes, *out)
    places = []
    for k in range(axes):
        tap = along(Tensor.arange(kernel[k]) * dilations[k], k, 2 * axes)
        start = along(Tensor.arange(out[k]) * strides[k] - pads[k], axes + k, 2 * axes)
        own = offset[(slice(None),) * (axes + 1) + (k,)]
        places.append(own + (tap + start).cast(x.dtype))
    images = x.reshape(n * moved, floordiv(c, moved), *x.shape[2:])
    found = sample(images, [linear_taps(at) for at in places], zeros_outside)
    if node.has(4):
        found = found * node.tensor(4).reshape(n * moved, 1, *kernel, *out)
    depth = floordiv(c, groups) * product(kernel)
    columns = found.reshape(n, groups, depth, product(out))
    count = weight.shape[0]
    result = weight.reshape(groups, floordiv(count, groups), depth) @ columns
    result = result.reshape(n, count, *out)
    bias = node.optional(3)
    return result if bias is None else result + along(bias, 0, axes + 1)


# ---------------------------------------------------------------- back to images


def _col2im(node: Node) -> Tensor:
    """Blocks added up where they overlap."""
    image, block = node.dims(1), node.ints(2)
    axes = len(image)
    pads = node.attr("pads") or [0] * (2 * axes)
    return node.tensor().fold(
        image,
        block,
        dilation=node.attr("dilations") or 1,
        padding=list(zip(pads[:axes], pads[axes:], strict=True)),
        stride=node.attr("strides") or 1,
    )


def _max_unpool(node: Node) -> Tensor:
    """Values at their flat indices, which count in the smallest image that could have been."""
    x, index = node.tensor(0), node.tensor(1)
    kernel = node.attr("kernel_shape")
    axes = len(kernel)
    strides, pads = node.attr("strides") or [1] * axes, node.attr("pads") or [0] * (2 * axes)
    sizes = [
        (x.shape[2 + k] - 1) * strides[k] + kernel[k] - pads[k] - pads[axes + k]
        for k in range(axes)
    ]
    shape = (*x.shape[:2], *sizes)
    flat = Tensor.zeros(product(shape), dtype=x.dtype)
    found = flat.scatter(0, index.flatten(), x.flatten()).reshape(shape)
    if not node.has(2):
        return found
    wanted = node.dims(2)
    return found.pad([(0, want - have) for want, have in zip(wanted, shape, strict=True)])


CONVERTERS: dict[str, Converter] = {
    "AffineGrid": _affine_grid,
    "Col2Im": _col2im,
    "DeformConv": _deform_conv,
    "GridSample": _grid_sample,
    "MaxRoiPool": _max_roi_pool,
    "MaxUnpool": _max_unpool,
    "RoiAlign": _roi_align,
}
