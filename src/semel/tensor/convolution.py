"""Convolutions, as products of matrices over windows.

    x [N, C, space...], weight [O, C / groups, kernel...]  -->  [N, O, space...]

Arguments are laid out as PyTorch's; inside, channels come last, where all the channels of
one place are one run of memory: a convolution is then a matmul whose left operand is a view
of the padded input, with no copy of the windows. The orders of axes on both sides cancel
between convolutions (`semel.passes.layout`). Depthwise convolutions are elementwise products
summed over the window, with vectors along the channels. A transposed convolution whose
windows do not overlap is one matmul; with a stride it is one for each phase of the result, all of
them in one; the others convolve the input with the kernel turned around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim, ceildiv, floordiv, product
from semel.ir.types import BOOL
from semel.ops.attrs import WindowAttrs
from semel.tensor.handle import TensorLike, apply, convert, lift, promote
from semel.tensor.movement import of_shape, slice_axes, stretch
from semel.tensor.nn import over_channels
from semel.tensor.reduce import as_float, reduce_axes
from semel.tensor.window import Padding, PerAxis, Windows, check_fits, per_axis, windows

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


# ------------------------------------------------------------ what users call


def conv(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of x [N, C, space...] with weight [O, C / groups, kernel...].

    `padding` is a number, one per axis, (before, after) per axis, "same" or "valid".

    >>> image, kernel = semel.ones(1, 3, 8, 8), semel.ones(4, 3, 3, 3)
    >>> image.conv(kernel, padding=1).shape
    (1, 4, 8, 8)
    """
    x, w = promote((lift(x), weight))
    kernel = _check_conv("conv", x, w, groups)
    if isinstance(x.shape[1], int) and x.shape[1] != w.shape[1] * groups:
        raise GraphError(
            "conv",
            f"weight must have {x.shape[1]} / {groups} input channels for x: {x.type}, "
            f"got {w.type}.",
        )
    if w.shape[0] % groups:
        raise GraphError("conv", f"{w.shape[0]} outputs do not form {groups} equal groups.")
    x = _with_channels(x, w.shape[1] * groups, "conv")
    found = windows("conv", x.shape[2:], kernel, stride, padding, dilation)
    result = _convolved(channels_last(x), w, found, groups)
    return _with_bias(channels_first(result), bias, "conv")


def conv1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """`conv` of x [N, C, L]."""
    x = of_rank(lift(x), 3, "conv1d")
    return conv(x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """`conv` of x [N, C, H, W]."""
    x = of_rank(lift(x), 4, "conv2d")
    return conv(x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """`conv` of x [N, C, D, H, W]."""
    x = of_rank(lift(x), 5, "conv3d")
    return conv(x, weight, bias, stride, padding, dilation, groups)


def conv_transpose(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """The transpose of a convolution: x [N, C, space...], weight [C, O / groups, kernel...].

    `padding` takes away from the result's edges, `output_padding` adds behind it.
    """
    x, w = promote((lift(x), weight))
    kernel = _check_conv("conv_transpose", x, w, groups)
    if w.shape[0] % groups or (isinstance(x.shape[1], int) and x.shape[1] != w.shape[0]):
        raise GraphError(
            "conv_transpose",
            f"weight must have {x.shape[1]} input channels in {groups} equal groups "
            f"for x: {x.type}, got {w.type}.",
        )
    if isinstance(padding, str):
        raise GraphError("conv_transpose", f"padding must be numbers, got {padding!r}.")
    x = _with_channels(x, w.shape[0], "conv_transpose")
    found = windows("conv_transpose", x.shape[2:], kernel, stride, padding, dilation)
    more = per_axis("conv_transpose", "output_padding", output_padding, len(kernel), 0)
    last = channels_last(x)
    is_dense = max(found.dilations) == 1
    is_apart = found.sizes == found.strides and not found.is_padded and not any(more)
    if groups == 1 and is_apart and is_dense:
        result = _scattered(last, w, found)
    elif max(found.strides) > 1 and is_dense:
        result = _in_phases(last, w, found, more, groups)
    else:
        result = _transposed(last, w, found, more, groups)
    return _with_bias(channels_first(result), bias, "conv_transpose")


def conv_transpose1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """`conv_transpose` of x [N, C, L]."""
    x = of_rank(lift(x), 3, "conv_transpose1d")
    return conv_transpose(x, weight, bias, stride, padding, output_padding, dilation, groups)


def conv_transpose2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """`conv_transpose` of x [N, C, H, W]."""
    x = of_rank(lift(x), 4, "conv_transpose2d")
    return conv_transpose(x, weight, bias, stride, padding, output_padding, dilation, groups)


def conv_transpose3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """`conv_transpose` of x [N, C, D, H, W]."""
    x = of_rank(lift(x), 5, "conv_transpose3d")
    return conv_transpose(x, weight, bias, stride, padding, output_padding, dilation, groups)


# ------------------------------------------------------------ layout


def of_rank(x: Tensor, rank: int, where: str) -> Tensor:
    """x, which must have this many axes, batch and channels among them."""
    if x.ndim != rank:
        raise GraphError(where, f"needs {rank} axes, batch and channels first, got {x.type}.")
    return x


def channels_last(x: Tensor) -> Tensor:
    """[N, C, space...] as [N, space..., C]."""
    return x.moveaxis(1, -1)


def channels_first(x: Tensor) -> Tensor:
    """[N, space..., C] as [N, C, space...]."""
    return x.moveaxis(-1, 1)


def _with_channels(x: Tensor, channels: Dim, where: str) -> Tensor:
    """x, whose number of channels is what the weight says, where only a run knows it."""
    return of_shape(x, (x.shape[0], channels, *x.shape[2:]), where, "x")


def _with_bias(x: Tensor, bias: TensorLike | None, where: str) -> Tensor:
    if bias is None:
        return x
    lifted = of_shape(lift(bias), (x.shape[1],), where, "bias")
    return x + over_channels(x, convert(lifted, x.dtype))


# ------------------------------------------------------------ windows


def pad_space(x: Tensor, before: tuple[Dim, ...], after: tuple[Dim, ...], fill: Any = 0) -> Tensor:
    """Channels-last x with its spatial axes padded."""
    return x.pad([(0, 0), *zip(before, after, strict=True), (0, 0)], fill)


def _windows(x: Tensor, found: Windows, where: str) -> Tensor:
    """[N, space..., C] as [N, places..., window..., C], a view of the padded tensor."""
    check_fits(where, x.shape[1:-1], found)
    return slide(pad_space(x, found.before, found.after), found)


def slide(x: Tensor, found: Windows) -> Tensor:
    """Windows over the spatial axes of [N, space..., C], as a view."""
    rank = x.ndim
    axes = tuple(range(1, rank - 1))
    attrs = WindowAttrs(axes, found.sizes, found.strides, found.dilations)
    view = apply("window", x, attrs=attrs)
    return view.permute(0, *axes, *range(rank, view.ndim), rank - 1)


# ------------------------------------------------------------ convolutions, channels last


def _convolved(x: Tensor, weight: Tensor, found: Windows, groups: int) -> Tensor:
    """x [N, space..., C] with weight [O, C / groups, kernel...] is [N, places..., O]."""
    outputs, depth = weight.shape[:2]
    if depth == 1 and groups > 1:
        return _depthwise(x, weight, found, groups)
    matrix = weight.moveaxis(1, -1)  # [O, kernel..., C / groups]
    if groups > 1:
        return _grouped(x, matrix, found, groups)
    matrix = matrix.reshape(outputs, product(matrix.shape[1:])).mT
    if found.is_pointwise:
        return _every(x, found.strides) @ matrix
    rows = _rows(x, found)
    batch = rows.shape[:-2]
    return apply("matmul", rows, stretch(matrix, (*batch, *matrix.shape)))


def _every(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Every so many elements along each spatial axis."""
    steps = (1, *strides, 1)
    sizes = [ceildiv(size, step) for size, step in zip(x.shape, steps, strict=True)]
    return slice_axes(x, (0,) * x.ndim, sizes, steps)


def _rows(x: Tensor, found: Windows) -> Tensor:
    """[N, places..., kernel * C]: what each place multiplies with the weights."""
    is_fixed = all(isinstance(d, int) for d in x.shape[-2:])
    if found.dilations[-1] == 1 and is_fixed:
        return _merged_rows(x, found)
    view = _windows(x, found, "conv")
    places = x.ndim - 1
    return view.reshape(*view.shape[:places], product(view.shape[places:]))


def _merged_rows(x: Tensor, found: Windows) -> Tensor:
    """The same, with the last spatial axis and the channels as one axis.

    A window along the last axis is one run of memory, whose loop is then not cut at
    every place: with few channels (an image) this is most of the time.
    """
    check_fits("conv", x.shape[1:-1], found)
    padded = pad_space(x, found.before, found.after)
    channels = int(padded.shape[-1])  # type: ignore[arg-type]
    flat = padded.flatten(-2, -1)
    axes = tuple(range(1, flat.ndim))
    sizes = (*found.sizes[:-1], found.sizes[-1] * channels)
    strides = (*found.strides[:-1], found.strides[-1] * channels)
    attrs = WindowAttrs(axes, sizes, strides, found.dilations)
    view = apply("window", flat, attrs=attrs)
    return view.reshape(*view.shape[: flat.ndim], product(sizes))


def _grouped(x: Tensor, matrix: Tensor, found: Windows, groups: int) -> Tensor:
    """Each group of channels has weights of its own; matrix is [O, kernel..., C / groups]."""
    outputs, depth = matrix.shape[0], matrix.shape[-1]
    inner = product(matrix.shape[1:])
    right = matrix.reshape(groups, outputs // groups, inner).mT
    split = _windows(x, found, "conv").unflatten(-1, (groups, depth))
    # [N, places..., kernel..., G, C / G] to [N, places but the last..., G, last, K]
    places, last = x.ndim - 1, split.ndim - 1
    lead = tuple(range(places - 1))
    order = (*lead, last - 1, places - 1, *range(places, last - 1), last)
    left = split.permute(order)
    left = left.reshape(*left.shape[: places + 1], inner)
    result = apply("matmul", left, stretch(right, (*left.shape[:-2], *right.shape[1:])))
    back = result.permute(*lead, places, places - 1, places + 1)
    return back.flatten(-2, -1)


def _depthwise(x: Tensor, weight: Tensor, found: Windows, groups: int) -> Tensor:
    """One filter (or several) per channel; the sum of half floats is taken in float32."""
    spatial = len(found.sizes)
    outputs = weight.shape[0]
    factors = _summable(weight).reshape(groups, outputs // groups, *found.sizes)
    factors = factors.moveaxis((0, 1), (-2, -1))  # [kernel..., C, outputs per channel]
    view = _summable(_windows(x, found, "conv"))
    axes = tuple(range(spatial + 1, 2 * spatial + 1))
    if outputs == groups:
        products = view * factors.reshape(factors.shape[:-1])
    else:
        products = view.unsqueeze(-1) * factors
    total = convert(reduce_axes(products, "reduce_sum", axes, False), x.dtype)
    return total if outputs == groups else total.flatten(-2, -1)


def _summable(x: Tensor) -> Tensor:
    return as_float(x) if x.dtype.is_float else x


# ------------------------------------------------------------ transposed, channels last


def _scattered(x: Tensor, weight: Tensor, found: Windows) -> Tensor:
    """Windows side by side: every place makes a window of its own, by one matmul."""
    inputs, outputs = weight.shape[:2]
    matrix = weight.moveaxis(1, -1).reshape(inputs, product(found.sizes) * outputs)
    space = x.shape[1:-1]
    tiles = (x @ matrix).reshape(x.shape[0], *space, *found.sizes, outputs)
    count = len(space)
    pairs = [axis for i in range(count) for axis in (1 + i, 1 + count + i)]
    sizes = [size * n for size, n in zip(space, found.sizes, strict=True)]
    return tiles.permute(0, *pairs, tiles.ndim - 1).reshape(x.shape[0], *sizes, outputs)


def _in_phases(
    x: Tensor, weight: Tensor, found: Windows, more: tuple[int, ...], groups: int
) -> Tensor:
    """Every element of the result from the taps that meet something, and not from zeros in between.

    Along an axis with stride s, the elements s * q + r of one phase r are a convolution of x with
    the taps r, r + s, r + 2 s, ... All phases are outputs of one convolution over q, side by side.
    """
    inputs, outputs = weight.shape[:2]
    count = len(found.sizes)
    taps = [-(-size // step) for size, step in zip(found.sizes, found.strides, strict=True)]
    kernel = weight.pad(
        [(0, 0), (0, 0)]
        + [
            (0, n * step - size)
            for n, size, step in zip(taps, found.sizes, found.strides, strict=True)
        ]
    )
    for axis in reversed(range(count)):
        kernel = kernel.unflatten(2 + axis, (taps[axis], found.strides[axis]))
    # [groups, C / groups, O / groups, (taps, phases) ...] to [groups, phases..., O, C, taps...]
    kernel = kernel.unflatten(0, (groups, inputs // groups))
    pairs = range(3, 3 + 2 * count, 2)
    kernel = kernel.flip(pairs).permute(0, *(p + 1 for p in pairs), 2, 1, *pairs)
    kernel = kernel.reshape(groups * product(found.strides) * outputs, inputs // groups, *taps)
    before: list[Dim] = []
    after: list[Dim] = []
    first: list[Dim] = []
    last: list[Dim] = []
    for axis, (n, step) in enumerate(zip(taps, found.strides, strict=True)):
        lost, size = found.before[axis], x.shape[1 + axis]
        # The result is what is behind `lost` and before `end`, if it began with the first tap.
        begin = floordiv(lost, step)
        end = (size - 1) * step + found.sizes[axis] - found.after[axis] + more[axis]
        places = ceildiv(end, step)
        before.append(n - 1 - begin)
        after.append(places - size)
        first.append(lost - begin * step)
        last.append(places * step - end)
    spread = _resized(x, before, after)
    plain = windows("conv_transpose", spread.shape[1:-1], taps)
    phases = _convolved(spread, kernel, plain, groups)
    phases = phases.unflatten(-1, (groups, *found.strides, outputs))
    # [N, places..., groups, phases..., O] to [N, (place, phase) ..., groups, O]
    order = [axis for i in range(count) for axis in (1 + i, 2 + count + i)]
    joined = phases.permute(0, *order, 1 + count, 2 + 2 * count)
    for axis in range(count):
        joined = joined.flatten(1 + axis, 2 + axis)
    joined = joined.flatten(-2, -1)
    return _resized(joined, [-n for n in first], [-n for n in last])


def _transposed(
    x: Tensor, weight: Tensor, found: Windows, more: tuple[int, ...], groups: int
) -> Tensor:
    """A convolution of the spread input with the kernel turned around."""
    spread = x
    for axis, stride in enumerate(found.strides):
        spread = spaced(spread, axis + 1, stride)
    edges = zip(found.spans, found.before, found.after, more, strict=True)
    before: list[Dim] = []
    after: list[Dim] = []
    for span, lost_before, lost_after, added in edges:
        before.append(span - 1 - lost_before)
        after.append(span - 1 - lost_after + added)
    spread = _resized(spread, before, after)
    kernel = weight.flip(range(2, weight.ndim))
    inputs, outputs = weight.shape[:2]
    kernel = kernel.unflatten(0, (groups, inputs // groups)).swapaxes(1, 2)
    kernel = kernel.reshape(groups * outputs, inputs // groups, *found.sizes)
    plain = windows("conv_transpose", spread.shape[1:-1], found.sizes, 1, 0, found.dilations)
    return _convolved(spread, kernel, plain, groups)


def spaced(x: Tensor, axis: int, stride: int) -> Tensor:
    """stride - 1 zeros between neighbours along an axis."""
    if stride == 1:
        return x
    widths = [(0, 0)] * (x.ndim + 1)
    widths[axis + 1] = (0, stride - 1)
    wide = x.unsqueeze(axis + 1).pad(widths).flatten(axis, axis + 1)
    return wide.narrow(axis, 0, (x.shape[axis] - 1) * stride + 1)


def _resized(x: Tensor, before: list[Dim], after: list[Dim]) -> Tensor:
    """Spatial axes padded where the amount is positive, cut where it is negative."""
    for axis, (lead, trail) in enumerate(zip(before, after, strict=True), 1):
        cut_lead, cut_trail = (-min(int(n), 0) for n in (lead, trail))  # type: ignore[arg-type]
        if cut_lead or cut_trail:
            x = x.narrow(axis, cut_lead, x.shape[axis] - cut_lead - cut_trail)
    grown = [tuple(max(int(n), 0) for n in side) for side in (before, after)]  # type: ignore[arg-type]
    return pad_space(x, grown[0], grown[1])


def _check_conv(where: str, x: Tensor, weight: Tensor, groups: int) -> tuple[int, ...]:
    """The kernel's size; ranks, dtype and groups are checked."""
    if not 3 <= x.ndim <= 5 or weight.ndim != x.ndim:
        raise GraphError(
            where,
            "x must be [N, C, space...] with 1 to 3 spatial axes and weight of the same rank, "
            f"got {x.type} and {weight.type}.",
        )
    if x.dtype == BOOL:
        raise GraphError(where, f"needs numbers, got {x.type}.", hint="Cast x first.")
    if not all(isinstance(d, int) and d > 0 for d in weight.shape):
        raise GraphError(where, f"weight must have fixed sizes > 0, got {weight.type}.")
    if isinstance(groups, bool) or groups < 1:
        raise GraphError(where, f"groups must be >= 1, got {groups}.")
    return tuple(int(d) for d in weight.shape[2:])  # type: ignore[arg-type]
