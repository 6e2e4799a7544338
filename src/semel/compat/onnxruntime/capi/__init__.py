"""The module that programs import ONNX Runtime's exceptions from."""

from semel.compat.onnxruntime.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
