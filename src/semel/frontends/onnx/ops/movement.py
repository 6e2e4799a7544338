"""Operators that move elements about."""

from __future__ import annotations

from typing import Any

from semel.errors import UnsupportedError
from semel.frontends.onnx.node import Converter, Node
from semel.ir.dims import ceildiv, equal, floordiv, maximum, minimum
from semel.ir.expr import Dim, product
from semel.ir.types import INT64
from semel.tensor.movement import along, broadcast_shapes
from semel.tensor.padding import continued
from semel.tensor.subscript import MAX_AXIS
from semel.tensor.tensor import Tensor

#: Exporters write "to the end" as the largest number of 32 or 64 bits.
_FAR = 10**9  # exporters write such ends for "all of it"


# ---------------------------------------------------------------- shapes


def _reshape(node: Node) -> Tensor:
    x = node.tensor()
    dims = node.dims(1) if node.has(1) else list(node.attr("shape"))
    if not node.flag("allowzero"):
        for i, dim in enumerate(dims):
            if dim == 0 and i >= x.ndim:
                raise node.refuse(f"size {i} of the shape is 0, and there is no dim {i} to take.")
        dims = [x.shape[i] if dim == 0 else dim for i, dim in enumerate(dims)]
    if 0 in dims and -1 in dims:
        dims = [0 if dim == -1 else dim for dim in dims]
    return x.reshape(tuple(dims))


def _flatten(node: Node) -> Tensor:
    x = node.tensor()
    axis = node.attr("axis", 1)
    split = axis + x.ndim if axis < 0 else axis
    return x.reshape(product(x.shape[:split]), product(x.shape[split:]))


def _transpose(node: Node) -> Tensor:
    x = node.tensor()
    perm = node.attr("perm")
    return x.permute(*(perm if perm is not None else reversed(range(x.ndim))))


def _squeeze(node: Node) -> Tensor:
    x, axes = node.tensor(), node.axes(1)
    if axes is None:  # all of size 1: how many there are decides the rank of what follows
        axes, asked = [], list(x.shape)
        for i, size in enumerate(x.shape):
            try:
                axes += [i] * node.holds(equal(size, 1))
            except UnsupportedError:  # data decides it
                asked[i] = size + equal(size, 1)
        # What has one element more if the size is 1 is refused by a run that finds 1.
        x = x.reshape(tuple(asked)).reshape(x.shape)
    return x.squeeze(tuple(axes)) if axes else x


def _expand(node: Node) -> Tensor:
    x, wanted = node.tensor(), tuple(node.dims(1))
    return x.broadcast_to(broadcast_shapes([x.shape, wanted], "Expand"))


def _depth_to_space(node: Node) -> Tensor:
    x, block = node.tensor(), node.attr("blocksize")
    n, c, h, w = x.shape
    depth = floordiv(c, block * block)
    if node.attr("mode", "DCR") == "DCR":
        parts = x.reshape(n, block, block, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, depth, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, depth, h * block, w * block)


def _space_to_depth(node: Node) -> Tensor:
    x, block = node.tensor(), node.attr("blocksize")
    n, c, height, width = x.shape
    h, w = floordiv(height, block), floordiv(width, block)
    parts = x.reshape(n, c, h, block, w, block)
    order = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(order).reshape(n, c * block * block, h, w)


# ---------------------------------------------------------------- parts


def _split(node: Node) -> list[Tensor]:
    x = node.tensor()
    axis = node.axis(x.ndim, 0)
    starts: list[Dim] = [0]
    for size in _split_sizes(node, x.shape[axis]):
        starts.append(starts[-1] + size)
    ends = starts[1:]
    return [x.narrow(axis, at, end - at) for at, end in zip(starts, ends, strict=False)]


def _split_sizes(node: Node, length: Dim) -> list[Dim]:
    """As they are given; else equal parts, of which the last may be shorter."""
    if node.has(1):
        return node.dims(1)
    if node.attr("split") is not None:
        return list(node.attr("split"))
    count = node.attr("num_outputs", node.num_outputs)
    part = ceildiv(length, count)
    return [minimum(part, maximum(length - part * k, 0)) for k in range(count)]


def _slice(node: Node) -> Tensor:
    x = node.tensor()
    key: list[Any] = [slice(None)] * x.ndim
    for start, end, axis, step in _cuts(node):
        key[axis] = slice(_bound(start), _bound(end), step)
    return x[tuple(key)]


def _cuts(node: Node) -> list[tuple[Dim, Dim, int, int]]:
    """Start, end, axis and step of each axis that is cut."""
    if node.version < 10:
        starts, ends = list(node.attr("starts")), list(node.attr("ends"))
    else:
        starts, ends = node.dims(1), node.dims(2)
    axes = node.distinct(node.axes(3) or range(len(starts)), node.value().ndim)
    steps = node.ints(4) if node.has(4) else [1] * len(starts)
    return list(zip(starts, ends, axes, steps, strict=True))


def _bound(value: Dim) -> Dim:
    if not isinstance(value, int) or abs(value) < _FAR:
        return value
    return MAX_AXIS if value > 0 else -MAX_AXIS


def _center_crop_pad(node: Node) -> Tensor:
    x, wanted = node.tensor(), node.dims(1)
    axes = node.distinct(node.attr("axes") or range(x.ndim), x.ndim)
    for axis, size in zip(axes, wanted, strict=True):
        length = x.shape[axis]
        cut, added = maximum(length - size, 0), maximum(size - length, 0)
        x = x.narrow(axis, floordiv(cut, 2), minimum(size, length))
        x = _padded(x, axis % x.ndim, floordiv(added, 2), added - floordiv(added, 2))
    return x


def _padded(x: Tensor, axis: int, before: Dim, after: Dim, value: Any = 0) -> Tensor:
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * x.ndim
    widths[axis] = before, after
    return x.pad(widths, value)


# ---------------------------------------------------------------- padding


def _pad(node: Node) -> Tensor:
    """Negative pads cut; the others add a number, or what the cut tensor has inside."""
    x, mode = node.tensor(), node.attr("mode", "constant")
    pads, fill, axes = _pads(node, x.ndim)
    for axis, first, last in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        low, high = maximum(-first, 0), maximum(-last, 0)
        if low != 0 or high != 0:
            x = x.narrow(axis, low, x.shape[axis] - low - high)
        before, after = maximum(first, 0), maximum(last, 0)
        if before == 0 and after == 0:
            continue
        if mode == "constant":
            x = _padded(x, axis, before, after, fill)
        elif mode in ("edge", "reflect", "wrap"):
            x = continued(x, axis, before, after, mode, repr(node))
        else:
            raise node.refuse(f"mode '{mode}' is unknown.")
    return x


def _pads(node: Node, ndim: int) -> tuple[list[Dim], Any, list[int]]:
    """The widths (before each axis, then after each), what to add, and the axes."""
    if node.version < 11:
        return (
            list(node.attr("pads", node.attr("paddings"))),
            node.attr("value", 0.0),
            [*range(ndim)],
        )
    fill = node.tensor(2).reshape(()) if node.has(2) else 0
    axes = node.distinct(node.ints(3), ndim) if node.has(3) else [*range(ndim)]
    return node.dims(1), fill, axes


# ---------------------------------------------------------------- repeating and turning


def _tile(node: Node) -> Tensor:
    x = node.tensor()
    if node.version >= 6:
        return x.tile(tuple(node.dims(1)))
    axis = node.ints(2)[0]
    return x.tile(tuple(node.dim(1) if k == axis else 1 for k in range(x.ndim)))


def _reverse_sequence(node: Node) -> Tensor:
    x = node.tensor()
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    step = along(Tensor.arange(x.shape[time]), time, x.ndim)
    length = along(node.tensor(1).cast(INT64), batch, x.ndim)
    return x.take_along_axis((step < length).where(length - 1 - step, step), time)


def _trilu(node: Node) -> Tensor:
    x = node.tensor()
    offset = node.tensor(1).reshape(()) if node.has(1) else 0
    row = Tensor.arange(x.shape[-2]).unsqueeze(1)
    distance = Tensor.arange(x.shape[-1]) - row
    kept = distance >= offset if node.flag("upper", True) else distance <= offset
    return kept.where(x, x.zeros_like())


CONVERTERS: dict[str, Converter] = {
    "CenterCropPad": _center_crop_pad,
    "Concat": lambda node: Tensor.concat(node.tensors(), node.attr("axis", 1)),
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": lambda node: node.tensor().unsqueeze(tuple(node.axes(1) or ())),
}
