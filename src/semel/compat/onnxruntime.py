"""ONNX Runtime's Python interface, over Semel.

    import semel.compat.onnxruntime as ort          # was: import onnxruntime as ort
    session = ort.InferenceSession("model.onnx")
    session.run(None, {"x": x})

What programs call is here and means the same. Options that steer ONNX Runtime's own machinery are
taken and have no effect; what would change a result and is not supported is refused.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from semel.errors import InputError, SemelError
from semel.frontends.onnx.build import dim_name
from semel.frontends.onnx.dims import dim_names
from semel.frontends.onnx.file import read_model
from semel.frontends.onnx.model import load_onnx
from semel.runtime.free import HOST_DEVICE
from semel.version import VERSION

_PROVIDER = "CPUExecutionProvider"
_TYPES = {
    "FLOAT": "float", "DOUBLE": "double", "FLOAT16": "float16", "BFLOAT16": "bfloat16",
    "BOOL": "bool", "STRING": "string",
}  # fmt: skip


class InvalidArgument(InputError):  # noqa: N818  (the name that programs catch)
    """A run was given names, types or shapes that the model does not have."""


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


@dataclass(frozen=True)
class NodeArg:
    """An input or an output: its name, `tensor(float)`, and a shape of numbers, names and None."""

    name: str
    type: str
    shape: list[Any]


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class OrtValue:
    """An array under the name that ONNX Runtime has for one."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(
        array: Any, device_type: str = HOST_DEVICE, device_id: int = 0
    ) -> OrtValue:
        """An array as a value; on the CPU there is nothing to copy."""
        _check_device(device_type)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = HOST_DEVICE, device_id: int = 0
    ) -> OrtValue:
        """A new array."""
        _check_device(device_type)
        return OrtValue(np.zeros(shape, element_type))

    def numpy(self) -> Any:
        """The array."""
        return self._value

    def shape(self) -> list[int]:
        """Its shape."""
        return list(self._value.shape)

    def data_type(self) -> str:
        """`tensor(float)` and the like."""
        return _type_name(onnx.helper.np_dtype_to_tensor_dtype(self._value.dtype))

    def element_type(self) -> int:
        """The ONNX number of its dtype."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(self._value.dtype))

    def device_name(self) -> str:
        """Where it lies."""
        return HOST_DEVICE

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self._value, np.ndarray)

    def has_value(self) -> bool:
        """Whether there is one."""
        return self._value is not None

    def data_ptr(self) -> int:
        """Its address."""
        return int(self._value.ctypes.data)

    def update_inplace(self, array: Any) -> None:
        """Copy an array into this one."""
        np.copyto(self._value, array)


class IOBinding:
    """Inputs and outputs that are bound once and used by `run_with_iobinding`."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._found: list[Any] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """Let an input be this array."""
        self._session._check_inputs([name])
        self._inputs[name] = np.asarray(array)

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """Let an input be this value."""
        self.bind_cpu_input(name, value.numpy())

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Let an input be what lies at an address of this process."""
        _check_device(device_type)
        self.bind_cpu_input(name, _at_address(buffer_ptr, shape, element_type))

    def bind_output(
        self,
        name: str,
        device_type: str = HOST_DEVICE,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output; with an address, it is written there."""
        _check_device(device_type)
        self._session._check_outputs([name])
        given = buffer_ptr is not None and shape is not None
        self._outputs[name] = _at_address(buffer_ptr, shape, element_type) if given else None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Let an output be written to this value."""
        self._session._check_outputs([name])
        self._outputs[name] = value.numpy()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for."""

    def get_outputs(self) -> list[OrtValue]:
        """What the last run gave, in the order in which outputs were bound."""
        return [OrtValue(found) for found in self._found]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The same as arrays."""
        return list(self._found)

    def clear_binding_inputs(self) -> None:
        """Bind no inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Bind no outputs."""
        self._outputs.clear()

    def _run(self) -> None:
        self._found = []
        names = list(self._outputs)
        for name, found in zip(names, self._session.run(names, self._inputs), strict=True):
            into = self._outputs[name]
            if into is not None:
                np.copyto(into, found)
            self._found.append(found if into is None else into)


class InferenceSession:
    """A model, compiled, behind ONNX Runtime's interface."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **_: Any,
    ) -> None:
        self._options = sess_options or SessionOptions()
        self._model = read_model(path_or_bytes)
        self._graph = self._model.proto.graph
        self._initialised = {t.name for t in self._graph.initializer} | self._model.weights.keys()
        own = _overridable(path_or_bytes, self._initialised)
        self._overridable = [v for v in self._graph.input if v.name in own]
        threads = self._options.intra_op_num_threads or None
        made = load_onnx(path_or_bytes, dims=self._fixed_dims(), threads=threads)
        self._compiled: Any = made
        for name, value in self._options._initializers.items():
            self._compiled.set_param(name, value)
        self._profile: list[tuple[float, float]] = []

    def _fixed_dims(self) -> dict[str, int]:
        denoted = self._options._denoted
        names = dim_names(self._model)  # options may be for several models, as theirs
        found = {name: size for name, size in self._options._dims.items() if name in names}
        for given in self._graph.input:
            for axis, dim in enumerate(given.type.tensor_type.shape.dim):
                if dim.denotation in denoted and not dim.HasField("dim_value"):
                    found[dim_name(dim.dim_param, given.name, axis)] = denoted[dim.denotation]
        return found

    # ------------------------------------------------------------ what it is

    def get_inputs(self) -> list[NodeArg]:
        """What must be given."""
        return [_node_arg(v) for v in self._graph.input if v.name not in self._initialised]

    def get_outputs(self) -> list[NodeArg]:
        """What comes back."""
        return [_node_arg(v) for v in self._graph.output]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that are inputs too."""
        return [_node_arg(v) for v in self._overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        proto = self._model.proto
        return ModelMetadata(
            proto.producer_name,
            proto.graph.name,
            proto.domain,
            proto.doc_string,
            proto.graph.doc_string,
            proto.model_version,
            {p.key: p.value for p in proto.metadata_props},
        )

    def get_providers(self) -> list[str]:
        """There is one."""
        return [_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """It has none."""
        return {_PROVIDER: {}}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Taken, and of no effect."""

    def get_session_options(self) -> SessionOptions:
        """The options it was made with."""
        return self._options

    # ------------------------------------------------------------ runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs, in the order of their names; None means all of them."""
        names = [v.name for v in self._graph.output] if not output_names else list(output_names)
        self._check_outputs(names)
        feed = {name: _plain(value) for name, value in input_feed.items()}
        self._check_inputs(list(feed))
        missing = [v.name for v in self.get_inputs() if v.name not in feed]
        if missing:
            raise InvalidArgument("run", f"required inputs {missing} must be in the feed.")
        begin = time.perf_counter()
        try:
            with self._overridden(feed):
                found = self._compiled.run(self._typed(feed))
        except InputError as error:
            raise InvalidArgument("run", str(error)) from error
        self._profile.append((begin, time.perf_counter()))
        return [_as_objects(found[name]) for name in names]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run`, with values."""
        feed = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue(found) for found in self.run(output_names, feed, run_options)]

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """`run`, with what is bound."""
        iobinding._run()

    def io_binding(self) -> IOBinding:
        """Inputs and outputs that can be bound."""
        return IOBinding(self)

    def end_profiling(self) -> str:
        """The file with the times of all runs, if `enable_profiling` was set."""
        if not self._options.enable_profiling:
            return ""
        folder = Path(self._options.profile_file_prefix).parent
        file, name = tempfile.mkstemp(
            ".json", Path(self._options.profile_file_prefix).name + "_", folder
        )
        events = [
            {"cat": "Session", "name": "model_run", "ph": "X", "pid": 0, "tid": 0,
             "ts": int(begin * 1e6), "dur": int((end - begin) * 1e6)}
            for begin, end in self._profile
        ]  # fmt: skip
        with os.fdopen(file, "w") as out:
            json.dump(events, out)
        return name

    def _typed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays; lists and numbers take the dtype of their input."""
        kinds = {v.name: v.type.tensor_type.elem_type for v in self._graph.input}
        made: dict[str, Any] = {}
        for name, value in feed.items():
            code = kinds.get(name, 0)
            if isinstance(value, (np.ndarray, np.generic)) or not code or value is None:
                made[name] = np.asarray(value) if isinstance(value, np.generic) else value
            else:
                made[name] = np.asarray(value, onnx.helper.tensor_dtype_to_np_dtype(code))
        return made

    def _overridden(self, feed: dict[str, Any]) -> _Override:
        names = {v.name for v in self._overridable}
        given = {n: feed.pop(n) for n in list(feed) if n in names}
        fixed = {t.name: t for t in self._graph.initializer if t.name in given}
        before = {n: self._model.weights[n] for n in given if n not in fixed}
        before |= {n: onnx.numpy_helper.to_array(t) for n, t in fixed.items()}
        return _Override(self._compiled, given, before)

    def _check_inputs(self, names: Sequence[str]) -> None:
        known = {v.name for v in (*self.get_inputs(), *self.get_overridable_initializers())}
        for name in names:
            if name not in known:
                raise InvalidArgument("run", f"invalid input name: {name}, it has {sorted(known)}.")

    def _check_outputs(self, names: Sequence[str]) -> None:
        known = [v.name for v in self._graph.output]
        for name in names:
            if name not in known:
                raise InvalidArgument("run", f"invalid output name: {name}, it has {known}.")


class _Override:
    """Initializers that are others for one run."""

    def __init__(self, compiled: Any, given: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        self._compiled, self._given, self._before = compiled, given, before

    def __enter__(self) -> None:
        for name, value in self._given.items():
            self._compiled.set_param(name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            self._compiled.set_param(name, value)


# ---------------------------------------------------------------- names and types


def _overridable(source: Any, initialised: set[str]) -> set[str]:
    """Initializers that the model itself lists as inputs."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        proto = onnx.ModelProto.FromString(bytes(source))
    else:
        proto = onnx.load(os.fspath(source), load_external_data=False)
    return {v.name for v in proto.graph.input if v.name in initialised}


def _as_objects(value: Any) -> Any:
    """Text as ONNX Runtime gives it."""
    is_text = isinstance(value, np.ndarray) and value.dtype.kind == "U"
    return value.astype(object) if is_text else value


def _node_arg(value: Any) -> NodeArg:
    kind = value.type
    if kind.HasField("sequence_type") and kind.sequence_type.elem_type.HasField("map_type"):
        rows = kind.sequence_type.elem_type.map_type
        key = _type_name(rows.key_type)[len("tensor(") : -1]
        item = _type_name(rows.value_type.tensor_type.elem_type)
        return NodeArg(value.name, f"seq(map({key},{item}))", [])
    if kind.HasField("sequence_type"):
        inner = _type_name(kind.sequence_type.elem_type.tensor_type.elem_type)
        return NodeArg(value.name, f"seq({inner})", [])
    if kind.HasField("optional_type"):
        inner = _type_name(kind.optional_type.elem_type.tensor_type.elem_type)
        return NodeArg(value.name, f"optional({inner})", [])
    dims = kind.tensor_type.shape.dim
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]
    return NodeArg(value.name, _type_name(kind.tensor_type.elem_type), shape)


def _type_name(code: int) -> str:
    name = onnx.TensorProto.DataType.Name(code)
    return f"tensor({_TYPES.get(name, name.lower())})"


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, OrtValue) else value


def _check_device(name: str) -> None:
    if name.lower() != HOST_DEVICE:
        raise InvalidArgument("device", f"must be '{HOST_DEVICE}', got {name!r}.")


def _at_address(address: Any, shape: Any, element_type: Any) -> Any:
    import ctypes

    dtype = np.dtype(element_type)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = (ctypes.c_ubyte * count).from_address(address)
    return np.frombuffer(raw, dtype).reshape(shape)


def get_available_providers() -> list[str]:
    """There is one."""
    return [_PROVIDER]


def get_all_providers() -> list[str]:
    """There is one."""
    return [_PROVIDER]


def get_device() -> str:
    """Where sessions run."""
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Taken, and of no effect."""


def set_seed(seed: int) -> None:
    """Taken, and of no effect: models draw from keys of their own."""


def get_version_string() -> str:
    """Semel's version."""
    return VERSION
