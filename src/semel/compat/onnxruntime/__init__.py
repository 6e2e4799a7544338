"""ONNX Runtime's Python interface, over Semel.

    import semel.compat.onnxruntime as ort          # was: import onnxruntime as ort
    session = ort.InferenceSession("model.onnx")
    session.run(None, {"x": x})

What programs call is here and means the same. Options that steer ONNX Runtime's own machinery are
taken and have no effect; what would change a result and is not supported is refused.
"""

from __future__ import annotations

from semel.compat.onnxruntime import capi
from semel.compat.onnxruntime.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
)
from semel.compat.onnxruntime.inference import PROVIDER, InferenceSession, IOBinding
from semel.compat.onnxruntime.session_options import (
    ExecutionMode,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from semel.compat.onnxruntime.values import ModelMetadata, NodeArg, OrtDevice, OrtValue
from semel.version import VERSION

__version__ = VERSION

__all__ = [
    "ExecutionMode",
    "Fail",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelMetadata",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "capi",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def get_available_providers() -> list[str]:
    """There is one."""
    return [PROVIDER]


def get_all_providers() -> list[str]:
    """There is one."""
    return [PROVIDER]


def get_device() -> str:
    """Where sessions run."""
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Taken, and of no effect."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Taken, and of no effect."""


def get_build_info() -> str:
    """Whose interface this is, and over what."""
    return f"ONNX Runtime's interface, by Semel {VERSION}"


def set_seed(seed: int) -> None:
    """Taken, and of no effect: models draw from keys of their own."""


def get_version_string() -> str:
    """Semel's version."""
    return VERSION
