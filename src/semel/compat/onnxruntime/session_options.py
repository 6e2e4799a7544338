"""How sessions and runs are made; what steers ONNX Runtime's own machinery has no effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from semel.compat.onnxruntime.values import OrtValue
from semel.errors import SemelError


class GraphOptimizationLevel(IntEnum):
    """Taken, and of no effect: a plan is always optimised."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Taken, and of no effect."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass
class SessionOptions:
    """How a session is made; `intra_op_num_threads` of 0 means all cores."""

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    enable_profiling: bool = False
    profile_file_prefix: str = "semel_profile"
    enable_mem_pattern: bool = True
    enable_cpu_mem_arena: bool = True
    enable_mem_reuse: bool = True
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False
    _dims: dict[str, int] = field(default_factory=dict)
    _denoted: dict[str, int] = field(default_factory=dict)
    _initializers: dict[str, Any] = field(default_factory=dict)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix a dim by the name that it has in the model."""
        self._dims[name] = value

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Fix the dims that the model denotes so."""
        self._denoted[denotation] = value

    def add_initializer(self, name: str, value: Any) -> None:
        """Give an initializer its value."""
        self._initializers[name] = value.numpy() if isinstance(value, OrtValue) else value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Give initializers their values."""
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Taken, and of no effect."""

    def register_custom_ops_library(self, path: str) -> None:
        """Not supported: libraries of operators are compiled for ONNX Runtime."""
        raise SemelError("SessionOptions", f"operators of {path} are compiled for ONNX Runtime.")


@dataclass
class RunOptions:
    """Taken, and of no effect, but for `terminate`."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Taken, and of no effect."""
