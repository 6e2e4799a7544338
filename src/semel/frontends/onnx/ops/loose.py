"""Convolutions whose weight has sizes that only runs know.

What a window holds is gathered, and the rest is a product of matrices: slower than a convolution
of fixed sizes, which reads windows in place, but right for all of them.
"""

from __future__ import annotations

from typing import Any

from semel.frontends.onnx.node import Node
from semel.ir.expr import Dim, product
from semel.tensor.convolution import spaced
from semel.tensor.tensor import Tensor
from semel.tensor.window import slid, windows


def is_loose(weight: Tensor) -> bool:
    """Whether some of its sizes are not known."""
    return not all(isinstance(dim, int) for dim in weight.shape)


def loose_conv(node: Node, x: Tensor, weight: Tensor, steps: dict[str, Any], groups: int) -> Tensor:
    """x [N, C, space...] with weight [O, C / groups, kernel...]."""
    padded = x.pad([(0, 0), (0, 0), *_padding(node, x, weight, steps)])
    return _convolved(padded, weight, steps["stride"], steps["dilation"], groups)


def _padding(node: Node, x: Tensor, weight: Tensor, steps: dict[str, Any]) -> list[tuple[Dim, Dim]]:
    sizes = [size for size in weight.shape[2:] if isinstance(size, int)]
    if len(sizes) == x.ndim - 2:
        found = windows(repr(node), x.shape[2:], sizes, **steps)
        return list(zip(found.before, found.after, strict=True))
    padding = steps["padding"]
    if isinstance(padding, list):
        return padding
    if padding == "valid":
        return [(0, 0)] * (x.ndim - 2)
    raise node.refuse("auto_pad needs a kernel of fixed size.", "Give the node a kernel_shape.")


def _convolved(
    x: Tensor, weight: Tensor, strides: list[int], dilations: list[int], groups: int
) -> Tensor:
    axes = x.ndim - 2
    view = x
    for axis in range(axes):
        view = slid(view, 2 + axis, weight.shape[2 + axis], strides[axis], dilations[axis])
    places = view.shape[2 : 2 + axes]  # view is [N, C, places..., kernel...]
    last = view.permute(0, *range(2, 2 + axes), 1, *range(2 + axes, view.ndim))
    inner, outputs = product(weight.shape[1:]), weight.shape[0]
    rows = last.reshape(x.shape[0], product(places), groups, inner).swapaxes(1, 2)
    found = rows @ weight.reshape(groups, outputs // groups, inner).mT
    return found.swapaxes(2, 3).reshape(x.shape[0], outputs, *places)


def loose_conv_transpose(
    x: Tensor, weight: Tensor, steps: dict[str, Any], more: list[int], groups: int
) -> Tensor:
    """x [N, C, space...], weight [C, O / groups, kernel...]; nothing is cut from the edges."""
    spread, dilations = x, steps["dilation"]
    for axis, stride in enumerate(steps["stride"], 2):
        spread = spaced(spread, axis, stride)
    reach = [(size - 1) * step for size, step in zip(weight.shape[2:], dilations, strict=True)]
    edges = [(0, 0), (0, 0), *((n, n + extra) for n, extra in zip(reach, more, strict=True))]
    inputs, outputs, *sizes = weight.shape
    turned = weight.flip(range(2, weight.ndim)).unflatten(0, (groups, inputs // groups))
    kernel = turned.swapaxes(1, 2).reshape(groups * outputs, inputs // groups, *sizes)
    return _convolved(spread.pad(edges), kernel, [1] * len(sizes), dilations, groups)
