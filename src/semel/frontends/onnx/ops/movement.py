"""Operators that move elements about."""

from __future__ import annotations

from semel.frontends.onnx.node import Converter, Node
from semel.ir.expr import product
from semel.tensor.tensor import Tensor


def _reshape(node: Node) -> Tensor:
    x = node.tensor()
    dims = node.dims(1) if node.has(1) else list(node.attr("shape"))
    if not node.flag("allowzero"):
        dims = [x.shape[i] if dim == 0 else dim for i, dim in enumerate(dims)]
    return x.reshape(tuple(dims))


def _flatten(node: Node) -> Tensor:
    x = node.tensor()
    axis = node.attr("axis", 1) % (x.ndim + 1) if x.ndim else 0
    return x.reshape(product(x.shape[:axis]), product(x.shape[axis:]))


def _transpose(node: Node) -> Tensor:
    x = node.tensor()
    perm = node.attr("perm")
    return x.permute(*(perm if perm is not None else reversed(range(x.ndim))))


def _squeeze(node: Node) -> Tensor:
    axes = node.axes(1)
    return node.tensor().squeeze() if axes is None else node.tensor().squeeze(tuple(axes))


CONVERTERS: dict[str, Converter] = {
    "Concat": lambda node: Tensor.concat(node.tensors(), node.attr("axis", 1)),
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": lambda node: node.tensor().unsqueeze(tuple(node.axes(1) or ())),
}
