"""Images and what they are made of: patches, and channels that hold neighbouring pixels.

unfold  [N, C, space...] -> [N, C * patch, places]      fold  adds the patches up again
pixel_shuffle  [.., C * r * r, H, W] -> [.., C, H * r, W * r]     pixel_unshuffle  back
channel_shuffle  channels of several groups, in turns
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.expr import Dim, floordiv, mod, product
from semel.ir.types import Shape, as_shape
from semel.ops.attrs import WindowAttrs
from semel.tensor.handle import Dims, TensorLike, apply, lift, scalar, whole_number
from semel.tensor.indexing import iota
from semel.tensor.movement import along, may_agree, of_shape, stretch
from semel.tensor.window import Padding, PerAxis, Windows, check_fits, windows

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


# ------------------------------------------------------------ pixels and channels


def pixel_shuffle(x: TensorLike, upscale: int) -> Tensor:
    """Channels as the pixels of finer images: [.., C * r * r, H, W] to [.., C, H * r, W * r]."""
    x, r = lift(x), _factor(upscale, "upscale", "pixel_shuffle")
    _check_image(x, "pixel_shuffle")
    lead, (channels, height, width) = x.shape[:-3], x.shape[-3:]
    _check_divides(channels, r * r, x, "channels", "pixel_shuffle")
    fine = x.reshape(*lead, floordiv(channels, r * r), r, r, height, width)
    n = len(lead)
    turned = fine.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return turned.reshape(*lead, floordiv(channels, r * r), height * r, width * r)


def pixel_unshuffle(x: TensorLike, downscale: int) -> Tensor:
    """The inverse of `pixel_shuffle`: [.., C, H * r, W * r] to [.., C * r * r, H, W]."""
    x, r = lift(x), _factor(downscale, "downscale", "pixel_unshuffle")
    _check_image(x, "pixel_unshuffle")
    lead, (channels, height, width) = x.shape[:-3], x.shape[-3:]
    _check_divides(height, r, x, "rows", "pixel_unshuffle")
    _check_divides(width, r, x, "columns", "pixel_unshuffle")
    h, w = floordiv(height, r), floordiv(width, r)
    n = len(lead)
    split = x.reshape(*lead, channels, h, r, w, r)
    turned = split.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return turned.reshape(*lead, channels * (r * r), h, w)


def channel_shuffle(x: TensorLike, groups: int) -> Tensor:
    """Channels (axis 1) in groups, taken from each group in turn."""
    x, count = lift(x), _factor(groups, "groups", "channel_shuffle")
    if x.ndim < 3:
        raise GraphError("channel_shuffle", f"needs (batch, channels, space...), got {x.type}.")
    _check_divides(x.shape[1], count, x, "channels", "channel_shuffle")
    grouped = x.reshape(x.shape[0], count, floordiv(x.shape[1], count), *x.shape[2:])
    return grouped.swapaxes(1, 2).reshape(x.shape)


def _factor(value: int, name: str, where: str) -> int:
    if whole_number(value, name, where) < 1:
        raise GraphError(where, f"{name} must be > 0, got {value}.")
    return int(value)


def _check_image(x: Tensor, where: str) -> None:
    if x.ndim < 3:
        raise GraphError(where, f"needs (..., channels, height, width), got {x.type}.")


def _check_divides(dim: Dim, by: int, x: Tensor, what: str, where: str) -> None:
    if isinstance(rest := mod(dim, by), int) and rest:
        raise GraphError(where, f"the number of {what} must be a multiple of {by}, got {x.type}.")


# ------------------------------------------------------------ patches


def unfold(
    x: TensorLike,
    kernel: PerAxis,
    *,
    dilation: PerAxis = 1,
    padding: Padding = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """The patches of x [N, C, space...] as columns [N, C * product(kernel), places].

    torch.nn.functional.unfold, for any number of axes.
    """
    x = lift(x)
    if x.ndim < 3:
        raise GraphError("unfold", f"needs (batch, channels, space...), got {x.type}.")
    found = windows("unfold", x.shape[2:], kernel, stride, padding, dilation)
    check_fits("unfold", x.shape[2:], found)
    padded = x.pad([(0, 0), (0, 0), *zip(found.before, found.after, strict=True)])
    axes = tuple(range(2, x.ndim))
    attrs = WindowAttrs(axes, found.sizes, found.strides, found.dilations)
    view = apply("window", padded, attrs=attrs)  # [N, C, places..., kernel...]
    places = view.shape[2 : x.ndim]
    turned = view.permute(0, 1, *range(x.ndim, view.ndim), *axes)
    return turned.reshape(x.shape[0], x.shape[1] * product(found.sizes), product(places))


def fold(
    x: TensorLike,
    size: Dims,
    kernel: PerAxis,
    *,
    dilation: PerAxis = 1,
    padding: Padding = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Patches [N, C * product(kernel), places] added up to images [N, C, size...].

    The transpose of `unfold`: where patches overlap, they add.
    """
    x, sizes = lift(x), as_shape(size, "fold")
    if x.ndim != 3:
        raise GraphError("fold", f"needs (batch, channels * patch, places), got {x.type}.")
    found = windows("fold", sizes, kernel, stride, padding, dilation)
    check_fits("fold", sizes, found)
    _check_divides(x.shape[1], product(found.sizes), x, "channels", "fold")  # type: ignore[arg-type]
    edges = zip(found.before, sizes, found.after, strict=True)
    padded = tuple(before + n + after for before, n, after in edges)
    index = _targets(found, padded)
    if not may_agree(x.shape[2:], (product(index.shape[len(sizes) :]),)):
        places = product(index.shape[len(sizes) :])
        raise GraphError("fold", f"a size of {tuple(sizes)} has {places} places, got {x.type}.")
    x = of_shape(x, (*x.shape[:2], product(index.shape[len(sizes) :])), "fold", "x")
    channels = floordiv(x.shape[1], product(found.sizes))
    planes = x.shape[0] * channels
    update = x.reshape(planes, index.size).T
    empty = stretch(scalar(0, x.dtype), (product(padded), planes))
    image = empty.index_add(0, index.flatten(), update).T
    image = image.reshape(x.shape[0], channels, *padded)
    for k, n in enumerate(sizes):
        image = image.narrow(2 + k, found.before[k], n)
    return image


def _targets(found: Windows, padded: Shape) -> Tensor:
    """[kernel..., places...]: the flat element of the padded image that each one is added to."""
    axes = len(padded)
    index: Tensor | None = None
    for k, (size, span, stride, dilation) in enumerate(
        zip(found.sizes, found.spans, found.strides, found.dilations, strict=True)
    ):
        count = floordiv(padded[k] - span, stride) + 1
        tap = along(iota((size,), 0) * dilation, k, 2 * axes)
        here = tap + along(iota((count,), 0) * stride, axes + k, 2 * axes)
        index = here if index is None else index * padded[k] + here
    assert index is not None
    return index
