"""Reading images between their pixels.

    coordinates --taps--> pixels around each point and their weights  -->  weighted sum

A point is a coordinate for each axis of the image, as a tensor of its own; what lies outside is
zero, the border, or the image reflected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product as combinations
from typing import TYPE_CHECKING, TypeAlias

from semel.errors import GraphError
from semel.ir.expr import Dim, product
from semel.ir.types import FLOAT32, FLOAT64, INT64, as_shape
from semel.tensor.elementwise import choose
from semel.tensor.handle import Dims, TensorLike, dim_value, lift
from semel.tensor.indexing import iota
from semel.tensor.movement import along, may_agree, stack

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: For each tap along one axis: the pixel's index, and its weight.
Taps: TypeAlias = "list[tuple[Tensor, Tensor]]"
#: Places as they are, to the indices of pixels; and which of them are outside, if that counts.
Outside: TypeAlias = "Callable[[Tensor, Dim], tuple[Tensor, Tensor | None]]"


# ------------------------------------------------------------ what users call


def grid_sample(
    x: TensorLike,
    grid: TensorLike,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """x [N, C, space...] at the points of grid [N, places..., axes], as torch has it.

    A point counts the last axis of space first, and -1 and 1 are the image's outer edges, or the
    centres of its corner pixels with `align_corners`. `mode` is bilinear, nearest or
    bicubic, `padding_mode` what lies outside: zeros, border or reflection.
    """
    modes = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    if mode not in modes:
        raise GraphError("grid_sample", f"mode must be one of {', '.join(modes)}, got {mode!r}.")
    x, grid = lift(x), lift(grid)
    if x.ndim < 3 or grid.ndim != x.ndim or not may_agree(grid.shape[-1:], (x.ndim - 2,)):
        raise GraphError(
            "grid_sample",
            f"needs x [N, C, space...] and grid [N, places..., {max(x.ndim - 2, 1)}], "
            f"got {x.type} and {grid.type}.",
        )
    if mode == "bicubic" and x.ndim != 4:
        raise GraphError("grid_sample", f"bicubic needs x [N, C, H, W], got {x.type}.")
    is_cubic = mode == "bicubic"
    return sampled(x, grid, modes[mode], padding_mode, align_corners, holds_points=not is_cubic)


def sampled(
    x: Tensor,
    grid: Tensor,
    mode: str,
    padding: str,
    is_aligned: bool,
    *,
    holds_points: bool,
    where: str = "grid_sample",
) -> Tensor:
    """`grid_sample` by one of the modes linear, nearest and cubic.

    `holds_points`: a point outside is brought inside first, and not only the pixels around it.
    """
    outside = _outside(padding, is_aligned, where)
    lengths, axes = x.shape[2:], x.ndim - 2
    work = x.cast(FLOAT64 if FLOAT64 in (x.dtype, grid.dtype) else FLOAT32)
    places = [
        _on_image(grid[..., axes - 1 - k].cast(work.dtype), length, is_aligned)
        for k, length in enumerate(lengths)
    ]
    if mode == "nearest":
        places = [at.round() for at in places]
    if holds_points and padding == "border":
        places = [_held(at, n, is_aligned) for at, n in zip(places, lengths, strict=True)]
    elif holds_points and padding == "reflection":
        places = [_reflected(at, n, is_aligned) for at, n in zip(places, lengths, strict=True)]
    if mode == "nearest":
        found = pixels(work, [at.trunc().cast(INT64) for at in places], outside)
    else:
        taps = linear_taps if mode == "linear" else _cubic_taps
        found = sample(work, [taps(at) for at in places], outside)
    return found.cast(x.dtype)


def affine_grid(x: TensorLike, size: Dims, align_corners: bool = False) -> Tensor:
    """The grid [N, space..., axes] of an image of this size [N, C, space...] under affine maps.

    x [N, axes, axes + 1] has the map of each image, as torch has it.
    """
    x, dims = lift(x), as_shape(size, "affine_grid")
    sizes, dtype = dims[2:], x.dtype
    count = len(sizes)
    if len(dims) < 3 or not may_agree(x.shape, (dims[0], count, count + 1)):
        raise GraphError(
            "affine_grid",
            f"needs a size (N, C, space...) and x [N, axes, axes + 1], "
            f"got {tuple(dims)} and {x.type}.",
        )
    lines = [_line(n, align_corners) for n in sizes]
    grids = [along(line, k, count).broadcast_to(tuple(sizes)) for k, line in enumerate(lines)]
    grids = [*reversed(grids), lift(1.0).cast(FLOAT64).broadcast_to(tuple(sizes))]
    points = stack(grids, -1).reshape(product(sizes), count + 1)
    found = points.cast(dtype) @ x.mT
    return found.reshape(dims[0], *sizes, count)


def _line(size: Dim, is_aligned: bool) -> Tensor:
    step = iota((size,), 0).cast(FLOAT64)
    if is_aligned:
        # One pixel lies in the middle.
        span = dim_value(size - 1, FLOAT64)
        return choose(span.eq(0), 0.0, step * 2.0 / span.maximum(1.0) - 1.0)
    return (step * 2.0 + 1.0) / dim_value(size, FLOAT64) - 1.0


# ------------------------------------------------------------ sampling


def sample(x: Tensor, taps: Sequence[Taps], outside: Outside) -> Tensor:
    """x [N, C, *S] at points [N, *P], by the taps of each axis of S: [N, C, *P]."""
    found: Tensor | None = None
    for chosen in combinations(*taps):
        weight = reduce(lambda a, b: a * b, (w for _, w in chosen))
        term = pixels(x, [index for index, _ in chosen], outside) * weight.unsqueeze(1)
        found = term if found is None else found + term
    assert found is not None
    return found


def pixels(x: Tensor, indices: Sequence[Tensor], outside: Outside) -> Tensor:
    """x [N, C, *S] at whole coordinates, one [N, *P] for each axis of S."""
    lengths = x.shape[2:]
    brought = [outside(i, n) for i, n in zip(indices, lengths, strict=True)]
    flat = brought[0][0]
    for (index, _), length in zip(brought[1:], lengths[1:], strict=True):
        flat = flat * length + index
    points = flat.shape[1:]
    rows = x.reshape(*x.shape[:2], product(lengths))
    picked = rows.take_along_axis(flat.reshape(flat.shape[0], 1, product(points)), 2)
    found = picked.reshape(*x.shape[:2], *points)
    beyond = [mask for _, mask in brought if mask is not None]
    return reduce(lambda a, b: a | b, beyond).unsqueeze(1).where(0, found) if beyond else found


def zeros_outside(index: Tensor, length: Dim) -> tuple[Tensor, Tensor | None]:
    """What is outside counts nothing."""
    return index.clip(0, length - 1), (index < 0) | (index >= length)


def border_outside(index: Tensor, length: Dim) -> tuple[Tensor, Tensor | None]:
    """What is outside is the pixel at the border."""
    return index.clip(0, length - 1), None


def _reflection(is_aligned: bool) -> Outside:
    def brought(index: Tensor, length: Dim) -> tuple[Tensor, Tensor | None]:
        found = _reflected(index.cast(FLOAT64), length, is_aligned).trunc().cast(INT64)
        return found.clip(0, length - 1), None

    return brought


def _reflected(at: Tensor, length: Dim, is_aligned: bool) -> Tensor:
    """Coordinates mirrored at the ends, as often as it takes; those between stay as they are."""
    low = 0.0 if is_aligned else -0.5
    span = dim_value(length - 1 if is_aligned else length, at.dtype)
    high = span + low
    beyond = (at < low).where(low - at, at - high)
    times = (beyond / span.maximum(1e-30)).trunc()
    rest = beyond - times * span
    is_low = (at < low).eq((times % 2).eq(0))
    mirrored = is_low.where(rest + low, high - rest)
    return ((at < low) | (at > high)).where(mirrored, at)


def linear_taps(at: Tensor) -> Taps:
    """The two pixels beside a place."""
    first = at.floor()
    part, index = at - first, first.cast(INT64)
    return [(index, 1.0 - part), (index + 1, part)]


def _cubic_taps(at: Tensor) -> Taps:
    first = at.floor()
    part, index = at - first, first.cast(INT64)
    near, far = _near, _far
    weights = [far(part + 1.0), near(part), near(1.0 - part), far(2.0 - part)]
    return [(index + k - 1, weight) for k, weight in enumerate(weights)]


def _near(t: Tensor) -> Tensor:
    return (1.25 * t - 2.25) * t * t + 1.0


def _far(t: Tensor) -> Tensor:
    return ((-0.75 * t + 3.75) * t - 6.0) * t + 3.0


# ------------------------------------------------------------ grids


def _outside(padding: str, is_aligned: bool, where: str) -> Outside:
    known = {
        "zeros": zeros_outside,
        "border": border_outside,
        "reflection": _reflection(is_aligned),
    }
    if padding not in known:
        names = ", ".join(known)
        raise GraphError(where, f"padding_mode must be one of {names}, got {padding!r}.")
    return known[padding]


def _on_image(at: Tensor, length: Dim, is_aligned: bool) -> Tensor:
    """From [-1, 1] to pixels: the ends are centres of pixels, or their outer edges."""
    found: Tensor = (
        (at + 1.0) / 2.0 * (length - 1) if is_aligned else ((at + 1.0) * length - 1) / 2.0
    )
    return found


def _held(at: Tensor, length: Dim, is_aligned: bool) -> Tensor:
    """Beyond the edges, the centre of the last pixel."""
    low = 0.0 if is_aligned else -0.5
    beyond = (at < low) | (at > dim_value(length - 1, at.dtype) - low)
    return beyond.where(at.clip(0, length - 1), at)
