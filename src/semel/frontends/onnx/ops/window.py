"""Operators whose windows slide over space: convolutions and pools."""

from __future__ import annotations

from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.ops.loose import is_loose, loose_conv, loose_conv_transpose
from semel.ir.expr import Dim, maximum
from semel.ir.types import FLOAT32, INT32
from semel.tensor.movement import of_shape
from semel.tensor.nn import over_neighbours
from semel.tensor.tensor import Tensor

_AUTO = {"SAME_UPPER": "same_upper", "SAME_LOWER": "same_lower", "VALID": "valid"}


def padding_of(node: Node, axes: int) -> Any:
    """`pads` or `auto_pad`, as our windows take them."""
    auto = node.attr("auto_pad", "NOTSET")
    if auto != "NOTSET":
        return _AUTO[auto]
    pads = node.attr("pads") or [0] * (2 * axes)
    return list(zip(pads[:axes], pads[axes:], strict=True))


def _steps(node: Node, x: Tensor) -> dict[str, Any]:
    axes = x.ndim - 2
    return {
        "stride": node.attr("strides") or [1] * axes,
        "padding": padding_of(node, axes),
        "dilation": node.attr("dilations") or [1] * axes,
    }


# ---------------------------------------------------------------- convolutions


def _weight(node: Node, position: int) -> Tensor:
    """The weight of a convolution; its window has the size that the node says, if it does."""
    weight, kernel = node.tensor(position), node.attr("kernel_shape")
    if not kernel:
        return weight
    return of_shape(weight, (*weight.shape[:2], *kernel), repr(node), "W")


def _conv(node: Node) -> Tensor:
    x, weight, bias = node.tensor(0), _weight(node, 1), node.optional(2)
    groups, steps = node.attr("group", 1), _steps(node, x)
    if not is_loose(weight):
        return x.conv(weight, bias, groups=groups, **steps)
    return _with_bias(loose_conv(node, x, weight, steps, groups), bias)


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + _over_channels(bias, x.ndim)


def _sums(node: Node, x: Tensor, weight: Tensor, x_zero: Any, w_zero: Tensor | None) -> Tensor:
    """The convolution of bytes, less their zero points, in 32 bits."""
    groups, steps = node.attr("group", 1), _steps(node, x)
    if not is_loose(weight):
        return x.conv_integer(weight, x_zero, w_zero, groups=groups, **steps)
    numbers, filters = x.cast(INT32), weight.cast(INT32)
    if x_zero is not None:
        numbers = numbers - x_zero.reshape(()).cast(INT32)
    if w_zero is not None:
        filters = filters - _over_channels(w_zero.cast(INT32), x.ndim + 1)
    return loose_conv(node, numbers, filters, steps, groups)


def _conv_integer(node: Node) -> Tensor:
    return _sums(node, node.tensor(), _weight(node, 1), node.optional(2), node.optional(3))


def _qlinear_conv(node: Node) -> Tensor:
    """Sums in 32 bits, then scaled, rounded and moved by the zero point."""
    x, x_scale, x_zero = node.tensor(0), node.tensor(1), node.tensor(2)
    w_scale, w_zero = node.tensor(4), node.tensor(5)
    y_scale, y_zero = node.tensor(6), node.tensor(7)
    total = _with_bias(_sums(node, x, _weight(node, 3), x_zero, w_zero), node.optional(8))
    factor = _over_channels(x_scale.cast(FLOAT32) * w_scale / y_scale, x.ndim)
    whole = (total.cast(FLOAT32) * factor).round()
    return (whole + y_zero.reshape(()).cast(FLOAT32)).cast(y_zero.dtype)


def _over_channels(x: Tensor, rank: int) -> Tensor:
    """One number for all or for each channel, shaped to broadcast along axis 1."""
    return x.reshape(()) if x.ndim == 0 or x.shape == (1,) else x.reshape(-1, *[1] * (rank - 2))


def _conv_transpose(node: Node) -> Tensor:
    x, weight = node.tensor(0), _weight(node, 1)
    axes, steps = x.ndim - 2, _steps(node, x)
    padding = steps.pop("padding")
    more = list(node.attr("output_padding") or [0] * axes)
    wanted = _transposed_sizes(node, x, steps["stride"])
    bias = node.optional(2)
    if wanted is None:
        sides = [(0, 0)] * axes if padding == "valid" else padding
        return _transposed(node, weight, bias, steps, sides, more)
    lost = _lost(x, weight, steps, more, wanted)
    front = [n // 2 if padding == "same_upper" else n - n // 2 for n in lost]
    fixed = [n for n in lost if isinstance(n, int)]
    if len(fixed) == axes:
        sides = [(a, n - a) if n > 0 else (0, 0) for a, n in zip(front, fixed, strict=True)]
        grown = [extra + max(-n, 0) for extra, n in zip(more, fixed, strict=True)]
        return _transposed(node, weight, bias, steps, sides, grown)
    whole = _transposed(node, weight, None, steps, [(0, 0)] * axes, more)
    for axis, (n, start, size) in enumerate(zip(lost, front, wanted, strict=True), 2):
        edges = [(0, maximum(-n, 0) if i == axis else 0) for i in range(whole.ndim)]
        whole = whole.pad(edges).narrow(axis, maximum(start, 0), size)
    return _with_bias(whole, bias)


def _lost(
    x: Tensor, weight: Tensor, steps: dict[str, Any], more: list[int], wanted: list[Dim]
) -> list[Dim]:
    """How much longer the result is than it is to be, for every axis."""
    whole = (
        stride * (size - 1) + extra + (kernel - 1) * dilation + 1
        for size, kernel, stride, dilation, extra in zip(
            x.shape[2:], weight.shape[2:], steps["stride"], steps["dilation"], more, strict=True
        )
    )
    return [length - size for length, size in zip(whole, wanted, strict=True)]


def _transposed_sizes(node: Node, x: Tensor, strides: list[int]) -> list[Dim] | None:
    """The sizes that a transposed convolution is told to have; None if pads say it."""
    given = node.attr("output_shape")
    if given:
        return list(given[-(x.ndim - 2) :])
    if str(node.attr("auto_pad", "NOTSET")).startswith("SAME"):
        return [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    return None


def _transposed(
    node: Node,
    weight: Tensor,
    bias: Tensor | None,
    steps: dict[str, Any],
    padding: list[tuple[int, int]],
    more: list[int],
) -> Tensor:
    x, groups = node.tensor(), node.attr("group", 1)
    if not is_loose(weight):
        return x.conv_transpose(
            weight, bias, padding=padding, output_padding=more, groups=groups, **steps
        )
    found = loose_conv_transpose(x, weight, steps, more, groups)
    for axis, (before, after) in enumerate(padding, 2):
        found = found.narrow(axis, before, found.shape[axis] - before - after)
    return _with_bias(found, bias)


# ---------------------------------------------------------------- pools


def _pool_steps(node: Node, x: Tensor) -> dict[str, Any]:
    return {
        **_steps(node, x),
        "kernel": node.attr("kernel_shape"),
        "ceil_mode": node.flag("ceil_mode"),
    }


def _max_pool(node: Node) -> Any:
    x = node.tensor()
    steps = _pool_steps(node, x)
    if not node.wants(1):
        return x.max_pool(**steps)
    return x.max_pool_with_indices(**steps, column_major=node.flag("storage_order"))


def _average_pool(node: Node) -> Tensor:
    x = node.tensor()
    return x.avg_pool(**_pool_steps(node, x), count_include_pad=node.flag("count_include_pad"))


def _lp_pool(node: Node) -> Tensor:
    x = node.tensor()
    return x.lp_pool(**_pool_steps(node, x), p=node.number("p", 2))


def _lrn(node: Node) -> Tensor:
    """Of an even size, one more channel behind than before."""
    size = node.attr("size")
    alpha, beta = node.number("alpha", 1e-4), node.number("beta", 0.75)
    before = (size - 1) // 2
    return over_neighbours(node.tensor(), size, alpha, beta, node.number("bias", 1.0), before)


CONVERTERS: dict[str, Converter] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": lambda node: node.tensor().global_avg_pool(),
    "GlobalLpPool": lambda node: node.tensor().global_lp_pool(node.number("p", 2)),
    "GlobalMaxPool": lambda node: node.tensor().global_max_pool(),
    "LRN": _lrn,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "QLinearConv": _qlinear_conv,
}
