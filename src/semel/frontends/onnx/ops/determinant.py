"""Det."""

from __future__ import annotations

from semel.frontends.onnx.node import Converter
from semel.tensor.matrices.elimination import det

CONVERTERS: dict[str, Converter] = {"Det": lambda node: det(node.tensor())}
