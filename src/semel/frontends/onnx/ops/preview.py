"""Operators that the standard shows before it has them."""

from __future__ import annotations

from semel.frontends.onnx.node import Converter
from semel.frontends.onnx.ops.attention import flex_attention

DOMAIN = "ai.onnx.preview"

CONVERTERS: dict[str, Converter] = {"FlexAttention": flex_attention}
