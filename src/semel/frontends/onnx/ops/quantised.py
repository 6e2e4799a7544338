"""To quantised numbers and back."""

from __future__ import annotations

from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.tensor.tensor import Tensor


def _granularity(node: Node) -> dict[str, Any]:
    """What one scale serves: all, one element of an axis, or a block of them."""
    return {"axis": node.attr("axis", 1), "block_size": node.attr("block_size", 0)}


def _quantize(node: Node) -> Tensor:
    x, scale, zero = node.tensor(0), node.tensor(1), node.optional(2)
    options = _granularity(node)
    if node.attr("output_dtype"):
        options["dtype"] = node.dtype_attr("output_dtype")
    if node.attr("precision"):
        options["precision"] = node.dtype_attr("precision")
    if not node.flag("saturate", True):
        options["saturate"] = False
    return x.quantize_linear(scale, zero, **options)


def _dequantize(node: Node) -> Tensor:
    x, scale, zero = node.tensor(0), node.tensor(1), node.optional(2)
    options = _granularity(node)
    if node.attr("output_dtype"):
        options["dtype"] = node.dtype_attr("output_dtype")
    return x.dequantize_linear(scale, zero, **options)


CONVERTERS: dict[str, Converter] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": lambda node: node.tensor().dynamic_quantize_linear(),
    "QuantizeLinear": _quantize,
}
