"""A model behind ONNX Runtime's interface.

    InferenceSession.run(names, feed)  -->  a run of the compiled model  -->  arrays in that order

An initializer that is an input too may be another one for a run. If it is a param of the compiled
model it is set, and set back: nobody else runs meanwhile. If it decides what is computed (the shape
of a reshape), it is an input of a model of its own, compiled when it is first given.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from semel.compat.onnxruntime import errors
from semel.compat.onnxruntime.errors import InvalidArgument
from semel.compat.onnxruntime.session_options import RunOptions, SessionOptions
from semel.compat.onnxruntime.values import (
    ModelMetadata,
    NodeArg,
    OrtValue,
    at_address,
    check_device,
    node_arg,
)
from semel.errors import InputError, ModelError, SemelError, UnsupportedError
from semel.frontends.onnx.build import dim_name, initializers
from semel.frontends.onnx.dims import dim_names
from semel.frontends.onnx.file import Model, read_model, without_initializers
from semel.frontends.onnx.model import load_onnx
from semel.locks import make_lock
from semel.runtime.free import HOST_DEVICE
from semel.session.compiled import CompiledGraph

PROVIDER = "CPUExecutionProvider"


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
        check_device(device_type)
        self.bind_cpu_input(name, at_address(buffer_ptr, shape, element_type))

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
        check_device(device_type)
        self._session._check_outputs([name])
        given = buffer_ptr is not None and shape is not None
        self._outputs[name] = at_address(buffer_ptr, shape, element_type) if given else None

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
        with _as_loading():
            self._model = self._initialised(read_model(path_or_bytes))
            self._compiled: Any = self._load(self._model)
        self._graph = self._model.proto.graph
        self._own = initializers(self._model)
        self._required = [v for v in self._graph.input if v.name not in self._own]
        self._overridable = [
            v for v in self._graph.input if v.name in self._own and v.name in self._model.listed
        ]
        #: By the initializers that are inputs of it: models where these decide what is computed.
        self._opened: dict[frozenset[str], Any] = {}
        #: Held during runs if some of them may change what others would see.
        self._running = make_lock() if self._overridable else nullcontext()
        self._profile: list[tuple[float, float]] = []

    def _initialised(self, model: Model) -> Model:
        """With the numbers that the options give initializers."""
        given = {name: np.asarray(value) for name, value in self._options._initializers.items()}
        known = initializers(model) if given else {}
        for name, value in given.items():
            if name not in known:
                raise InvalidArgument("InferenceSession", f"'{name}' must be an initializer of it.")
            own = known[name]
            if (own.shape, own.dtype) != (value.shape, value.dtype):
                raise InvalidArgument(
                    "InferenceSession",
                    f"initializer '{name}' must be {own.dtype}{list(own.shape)}, "
                    f"got {value.dtype}{list(value.shape)}.",
                )
        return replace(model, weights=model.weights | given)

    def _load(self, model: Model) -> Any:
        threads = self._options.intra_op_num_threads or None
        return load_onnx(model, dims=self._fixed_dims(), threads=threads)

    def _fixed_dims(self) -> dict[str, int]:
        denoted = self._options._denoted
        names = dim_names(self._model)  # options may be for several models, as theirs
        found = {name: size for name, size in self._options._dims.items() if name in names}
        for given in self._model.proto.graph.input:
            for axis, dim in enumerate(given.type.tensor_type.shape.dim):
                if dim.denotation in denoted and not dim.HasField("dim_value"):
                    found[dim_name(dim.dim_param, given.name, axis)] = denoted[dim.denotation]
        return found

    # ------------------------------------------------------------ what it is

    def get_inputs(self) -> list[NodeArg]:
        """What must be given."""
        return [node_arg(v) for v in self._required]

    def get_outputs(self) -> list[NodeArg]:
        """What comes back."""
        return [node_arg(v) for v in self._graph.output]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that are inputs too."""
        return [node_arg(v) for v in self._overridable]

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
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """It has none."""
        return {PROVIDER: {}}

    def enable_fallback(self) -> None:
        """Taken, and of no effect: there is one provider."""

    def disable_fallback(self) -> None:
        """Taken, and of no effect: there is one provider."""

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
            with self._running:
                found = self._run_with(self._typed(feed))
        except InputError as error:
            raise InvalidArgument("run", str(error)) from error
        self._profile.append((begin, time.perf_counter()))
        return [_as_objects(found[name]) for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Any, Any, str], Any],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """`run` on a thread of its own, which calls `callback(outputs, user_data, error)`."""

        def work() -> None:
            try:
                found, error = self.run(output_names, input_feed, run_options), ""
            except SemelError as caught:
                found, error = [], str(caught)
            callback(found, user_data, error)

        threading.Thread(target=work, name="semel-run-async").start()

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

    def _run_with(self, feed: dict[str, Any]) -> Any:
        """Run with initializers that are others for this once."""
        given = {v.name: feed[v.name] for v in self._overridable if v.name in feed}
        params = self._compiled.params if isinstance(self._compiled, CompiledGraph) else ()
        if not given.keys() <= set(params):
            return self._opened_at(frozenset(given)).run(feed)
        arrays = {name: value for name, value in feed.items() if name not in given}
        before = {name: self._own[name] for name in given}
        try:
            self._compiled.set_params(given)
            return self._compiled.run(arrays)
        finally:
            self._compiled.set_params(before)

    def _opened_at(self, names: frozenset[str]) -> Any:
        """The model with these initializers as inputs."""
        if names not in self._opened:
            model = without_initializers(self._model, names)
            self._opened[names] = self._load(model)
        return self._opened[names]

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


@contextmanager
def _as_loading() -> Iterator[None]:
    """Errors of a model under the names that ONNX Runtime has for them."""
    try:
        yield
    except UnsupportedError as error:
        raise errors.NotImplemented("InferenceSession", str(error)) from error
    except ModelError as error:
        cause = error.__cause__
        kind: type[ModelError] = errors.Fail
        if isinstance(cause, FileNotFoundError):
            kind = errors.NoSuchFile
        elif isinstance(cause, DecodeError):
            kind = errors.InvalidProtobuf
        raise kind("InferenceSession", str(error)) from error


def _as_objects(value: Any) -> Any:
    """Text as ONNX Runtime gives it."""
    is_text = isinstance(value, np.ndarray) and value.dtype.kind == "U"
    return value.astype(object) if is_text else value


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, OrtValue) else value
