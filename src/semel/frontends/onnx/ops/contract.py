"""Products of matrices: of floats, of integers, of quantised numbers."""

from __future__ import annotations

from semel.frontends.onnx.node import Converter, Node
from semel.tensor.tensor import Tensor


def _gemm(node: Node) -> Tensor:
    a, b, c = node.tensor(0), node.tensor(1), node.optional(2)
    left = a.mT if node.flag("transA") else a
    right = b.mT if node.flag("transB") else b
    result = _times(left @ right, node.number("alpha", 1.0))
    if c is not None:
        result = result + _times(c, node.number("beta", 1.0))
    return result.cast(a.dtype)


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _einsum(node: Node) -> Tensor:
    found = Tensor.einsum(node.attr("equation"), *node.tensors())
    return found.cast(node.value().dtype)


def _matmul_integer(node: Node) -> Tensor:
    return node.tensor(0).matmul_integer(node.tensor(1), node.optional(2), node.optional(3))


def _qlinear_matmul(node: Node) -> Tensor:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.tensor(i) for i in range(8))
    return a.qlinear_matmul(a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)


CONVERTERS: dict[str, Converter] = {
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": lambda node: node.tensor(0) @ node.tensor(1),
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
}
