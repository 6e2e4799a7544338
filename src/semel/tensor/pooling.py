"""Pooling, as reductions over windows.

    x [N, C, space...], kernel  --max, mean, norm-->  [N, C, space...]

Inside, channels come last, so that one vector holds neighbouring channels of one place. The
sums of half floats are taken in float32. Averages divide by how many elements of the
window lie inside what counts: the data, or with `count_include_pad` the padding too, but
never what `ceil_mode` adds for a last window that is only partly there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, ceildiv, product
from semel.ir.types import FLOAT32, INT64, Shape, as_shape
from semel.ops.attrs import WindowAttrs
from semel.tensor.convolution import (
    channels_first,
    channels_last,
    of_rank,
    pad_space,
    slide,
)
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    SYMBOLIC,
    Dims,
    TensorLike,
    apply,
    convert,
    lift,
    scalar,
)
from semel.tensor.indexing import certain_rows, iota
from semel.tensor.movement import stretch
from semel.tensor.reduce import as_float, drop_axes, reduce_axes, rounded_to
from semel.tensor.spelling import same_as, spelled
from semel.tensor.window import Padding, PerAxis, Windows, check_fits, per_axis, rounded_up, windows

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def max_pool(
    x: TensorLike,
    kernel: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of every window; padding never wins. NaN does."""
    x = lift(x)
    found = _pooled(x, "max_pool", kernel, stride, padding, dilation)
    view = _max_windows(x, found, ceil_mode, "max_pool")
    return channels_first(reduce_axes(view, "reduce_max", found_axes(found), False))


def max_pool_with_indices(
    x: TensorLike,
    kernel: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    *,
    column_major: bool = False,
) -> tuple[Tensor, Tensor]:
    """`max_pool`, and where each maximum stands in the flat input (int64), as ONNX counts.

    Of equal elements the first of the window counts, and a place in the padding never
    does. `column_major` counts space with its first axis running fastest.
    """
    x = lift(x)
    where = "max_pool_with_indices"
    found = _pooled(x, where, kernel, stride, padding, dilation)
    _check_reaches_data(where, found)
    view = _max_windows(x, found, ceil_mode, where)
    axes = found_axes(found)
    top = reduce_axes(view, "reduce_max", axes, True)
    lead, places = view.shape[: axes[0]], view.shape[1 : axes[0]]
    merged = view.reshape(*lead, product(found.sizes), view.shape[-1])
    chosen = merged.argmax(axes[0])
    # Data may be as low as padding is: then the first element inside is meant.
    inside = _first_inside(x, found, places)
    low = drop_axes(top, axes).eq(scalar(_lowest(x), x.dtype))
    chosen = choose(low, inside, chosen)
    flat = _flat_places(x, found, chosen, column_major)
    return channels_first(drop_axes(top, axes)), channels_first(flat)


def _max_windows(x: Tensor, found: Windows, ceil_mode: bool, where: str) -> Tensor:
    """[N, places..., window..., C], padded with what never wins."""
    return _pool_windows(channels_last(x), found, ceil_mode, where, _lowest(x))


def _first_inside(x: Tensor, found: Windows, places: Shape) -> Tensor:
    """Of each window the number of its first element that is not padding: [places..., 1]."""
    result = scalar(0, INT64)
    for axis, inner in enumerate(_inner(found.sizes)):
        # before - place*stride elements are missing in front: that many steps, rounded up.
        start = iota(places, axis) * found.strides[axis]
        missing = (-(start - found.before[axis])).maximum(0)
        skipped = (missing + (found.dilations[axis] - 1)) // found.dilations[axis]
        result = result + skipped * inner
    return result.reshape(*places, 1)


def _flat_places(x: Tensor, found: Windows, chosen: Tensor, column_major: bool) -> Tensor:
    """The flat index in [N, C, space...] of element `chosen` of every window."""
    shape, space = chosen.shape, x.shape[2:]
    inner = _inner(found.sizes)
    flat = iota(shape, 0) * x.shape[1] + iota(shape, len(shape) - 1)
    flat = flat * product(space)
    strides = _inner(space[::-1])[::-1] if column_major else _inner(space)
    for axis, size in enumerate(found.sizes):
        step = chosen // inner[axis] % size * found.dilations[axis]
        start = iota(shape, axis + 1) * found.strides[axis] - found.before[axis]
        flat = flat + (start + step) * strides[axis]
    return flat


def avg_pool(
    x: TensorLike,
    kernel: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:
    """The mean of every window; `divisor` stands in for the count."""
    given = lift(x)
    found = _pooled(given, "avg_pool", kernel, stride, padding, dilation)
    x = as_float(channels_last(given))
    total = _pool_windows(x, found, ceil_mode, "avg_pool").sum(found_axes(found))
    if divisor is not None:
        (count,) = per_axis("avg_pool", "divisor", divisor, 1)
        return rounded_to(channels_first(total * (1 / count)), given.dtype)
    scale = _reciprocal_counts(x, found, ceil_mode, count_include_pad)
    return rounded_to(channels_first(total * scale), given.dtype)


def lp_pool(
    x: TensorLike,
    kernel: PerAxis,
    p: float = 2.0,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The p-norm of every window."""
    given = lift(x)
    if p <= 0:
        raise GraphError("lp_pool", f"p must be > 0, got {p}.")
    found = _pooled(given, "lp_pool", kernel, stride, padding, dilation)
    x = as_float(channels_last(given))
    view = _pool_windows(x, found, ceil_mode, "lp_pool")
    return rounded_to(channels_first(view.norm(p, found_axes(found))), given.dtype)


# ------------------------------------------------------------ by the number of axes


def max_pool1d(
    x: TensorLike,
    kernel: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """`max_pool` of x [N, C, L]."""
    x = of_rank(lift(x), 3, "max_pool1d")
    return max_pool(x, kernel, stride, padding, dilation, ceil_mode)


def max_pool2d(
    x: TensorLike,
    kernel: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """`max_pool` of x [N, C, H, W]."""
    x = of_rank(lift(x), 4, "max_pool2d")
    return max_pool(x, kernel, stride, padding, dilation, ceil_mode)


def avg_pool1d(
    x: TensorLike,
    kernel: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """`avg_pool` of x [N, C, L]."""
    x = of_rank(lift(x), 3, "avg_pool1d")
    return avg_pool(x, kernel, stride, padding, 1, ceil_mode, count_include_pad)


def avg_pool2d(
    x: TensorLike,
    kernel: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:
    """`avg_pool` of x [N, C, H, W]."""
    x = of_rank(lift(x), 4, "avg_pool2d")
    return avg_pool(x, kernel, stride, padding, 1, ceil_mode, count_include_pad, divisor)


# ------------------------------------------------------------ over all of space


def global_max_pool(x: TensorLike) -> Tensor:
    """The largest element of every channel; space stays with size 1."""
    x = lift(x)
    return x.max(_space(x, "global_max_pool"), keepdims=True)


def global_avg_pool(x: TensorLike) -> Tensor:
    """The mean of every channel; space stays with size 1."""
    x = lift(x)
    return x.mean(_space(x, "global_avg_pool"), keepdims=True)


def global_lp_pool(x: TensorLike, p: float = 2.0) -> Tensor:
    """The p-norm of every channel; space stays with size 1."""
    x = lift(x)
    return x.norm(p, _space(x, "global_lp_pool"), keepdims=True)


@spelled(output_size="output")
def adaptive_avg_pool(
    x: TensorLike, output: Dims = 1, *, output_size: Dims = same_as("output")
) -> Tensor:
    """Means over parts of space that are as equal as can be, `output` of them along each axis."""
    given, where = lift(x), "adaptive_avg_pool"
    parts = _parts(given, output, where)
    if all(n == 1 for n in parts):
        return given.global_avg_pool()
    even = _even_parts(given, parts)
    if even is not None:
        return given.avg_pool(even)
    found = as_float(given)
    for axis, count in enumerate(parts, 2):
        elements, inside = _in_parts(found, axis, count)
        total = choose(inside, elements, scalar(0, found.dtype)).sum(axis + 1)
        size = convert(inside.sum(1), found.dtype)
        found = total / size
    return rounded_to(found, given.dtype)


@spelled(output_size="output")
def adaptive_max_pool(
    x: TensorLike, output: Dims = 1, *, output_size: Dims = same_as("output")
) -> Tensor:
    """The largest element of parts of space that are as equal as can be, `output` along each."""
    x = lift(x)
    parts = _parts(x, output, "adaptive_max_pool")
    if all(n == 1 for n in parts):
        return x.global_max_pool()
    even = _even_parts(x, parts)
    if even is not None:
        return x.max_pool(even)
    found = x
    for axis, count in enumerate(parts, 2):
        elements, inside = _in_parts(found, axis, count)
        found = choose(inside, elements, scalar(_lowest(x), x.dtype)).max(axis + 1)
    return found


def _parts(x: Tensor, output: Dims, where: str) -> Shape:
    count = len(_space(x, where))
    is_one = isinstance(output, (int, np.integer, *SYMBOLIC))
    parts = as_shape((output,) * count if is_one else output, where)
    if len(parts) != count or any(n == 0 for n in parts):
        raise GraphError(where, f"output must be > 0 for each of {count} axes, got {output!r}.")
    return parts


def _even_parts(x: Tensor, parts: Shape) -> list[int] | None:
    """The sizes of the parts, if they are equal."""
    sizes: list[int] = []
    for length, count in zip(x.shape[2:], parts, strict=True):
        if not isinstance(length, int) or not isinstance(count, int) or length % count:
            return None
        sizes.append(length // count)
    return sizes if all(sizes) else None


def _in_parts(x: Tensor, axis: int, count: Dim) -> tuple[Tensor, Tensor]:
    """An axis as (parts, room for the largest one), and which places of the room are used.

    Part i is from floor(i * length / count) to ceil((i + 1) * length / count).
    """
    length = x.shape[axis]
    part = iota((count,), 0)
    start, end = part * length // count, ((part + 1) * length + (count - 1)) // count
    index = start.unsqueeze(1) + iota((ceildiv(length, count) + 1,), 0)
    inside = index < end.unsqueeze(1)
    elements = certain_rows(x, index.minimum(length - 1), axis)
    return elements, inside.reshape(*inside.shape, *(1,) * (x.ndim - axis - 1))


def _space(x: Tensor, where: str) -> tuple[int, ...]:
    if x.ndim < 3:
        raise GraphError(where, f"needs (batch, channels, space...), got {x.type}.")
    return tuple(range(2, x.ndim))


# ------------------------------------------------------------ windows


def _pooled(
    x: Tensor,
    where: str,
    kernel: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    dilation: PerAxis,
) -> Windows:
    _space(x, where)
    step = kernel if stride is None else stride
    return windows(where, x.shape[2:], kernel, step, padding, dilation)


def _pool_windows(x: Tensor, found: Windows, ceil_mode: bool, where: str, fill: Any = 0) -> Tensor:
    """[N, space..., C] as [N, places..., window..., C]."""
    space = x.shape[1:-1]
    check_fits(where, space, found)
    after = _behind(found, rounded_up(space, found)) if ceil_mode else found.after
    return slide(pad_space(x, found.before, after, fill), found)


def _reciprocal_counts(x: Tensor, found: Windows, ceil_mode: bool, include_pad: bool) -> Tensor:
    """1 / elements that count, for every place of channels-last x, shaped to broadcast."""
    space = x.shape[1:-1]
    extra = rounded_up(space, found) if ceil_mode else (0,) * len(space)
    is_whole = all(e == 0 for e in extra) and (include_pad or not found.is_padded)
    if is_whole:
        return convert(lift(1 / product(found.sizes)), x.dtype)  # type: ignore[operator]
    result: Tensor | None = None
    for axis in range(len(space)):
        counts = _axis_counts(x, axis, found, extra[axis], include_pad)
        counts = counts.reshape(-1, *(1,) * (len(space) - axis))
        result = counts if result is None else result * counts
    assert result is not None
    return convert(result.reciprocal(), x.dtype)


def _axis_counts(x: Tensor, axis: int, found: Windows, extra: Dim, include_pad: bool) -> Tensor:
    """How many elements of each window along one axis count."""
    before, after, size = found.before[axis], found.after[axis], x.shape[axis + 1]
    counted = before + size + after if include_pad else size
    one = scalar(1.0, FLOAT32).reshape(1)
    line = stretch(one, (counted,))
    line = line.pad([(0, extra)] if include_pad else [(before, after + extra)])
    attrs = WindowAttrs(
        (0,), (found.sizes[axis],), (found.strides[axis],), (found.dilations[axis],)
    )
    return apply("window", line, attrs=attrs).sum(1)


def found_axes(found: Windows) -> tuple[int, ...]:
    """Where the window's axes stand in [N, places..., window..., C]."""
    count = len(found.sizes)
    return tuple(range(count + 1, 2 * count + 1))


def _check_reaches_data(where: str, found: Windows) -> None:
    """A window of nothing but padding would have no place in the input."""
    for before, after, span in zip(found.before, found.after, found.spans, strict=True):
        for pad in (before, after):
            if isinstance(pad, int) and pad >= span:
                raise GraphError(
                    where, f"padding must be smaller than the window of {span} elements, got {pad}."
                )


def _lowest(x: Tensor) -> Any:
    """What no element of the dtype is below."""
    return -float("inf") if x.dtype.is_float else x.dtype.lowest


def _inner(sizes: Sequence[Any]) -> list[Any]:
    """How many elements one step along each axis passes, the last axis running fastest."""
    return [product(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _behind(found: Windows, extra: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(a + e for a, e in zip(found.after, extra, strict=True))


# Second names.
adaptive_avg_pool1d = adaptive_avg_pool
adaptive_avg_pool2d = adaptive_avg_pool
adaptive_max_pool1d = adaptive_max_pool
adaptive_max_pool2d = adaptive_max_pool
