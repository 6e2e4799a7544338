"""OpenVINO with the ONNX graphs of ONNX Runtime: one request, tensors set once, float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.decode import DECODES, ROOMY
from benchmarks.peers import onnx_models
from benchmarks.peers.onnx_models import OnnxGraph
from benchmarks.peers.onnx_slow import SLOW_GRAPHS
from benchmarks.peers.openvino_decode import cache_name, decode_model
from benchmarks.rows import Inputs

VERSION = ov.__version__.partition("-")[0]
Pair = tuple[Callable[[], Any], Callable[[], Any]]
Triple = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]
#: Steps that a cache may grow by before it is put back, which copies all of it.
_STEPS = 16
_core = ov.Core()
_options: dict[str, Any] = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
}


def setup(threads: int) -> None:
    """One stream with so many threads; without hints it rounds to bfloat16, caches to bytes."""
    _options["INFERENCE_NUM_THREADS"] = threads


def _graph(make: Callable[[Inputs], OnnxGraph]) -> Callable[[Inputs], Pair]:
    def build(arrays: Inputs) -> Pair:
        model = _core.read_model(make(arrays).bytes())
        request = _core.compile_model(model, "CPU", _options).create_infer_request()
        for name, array in arrays.items():
            # A copy in its own memory: its kernels read past the end of an array of ours.
            request.set_tensor(name, ov.Tensor(array))
        request.infer()
        return request.infer, lambda: request.get_output_tensor(0).data

    return build


def _decoder(arrays: Inputs) -> Pair:
    run, result = _graph(onnx_models.decoder_graph)(onnx_models.decoder_inputs(arrays))
    return run, lambda: result()[0]


def _decode(name: str) -> Callable[[Inputs], Triple]:
    """A stateful model: its caches grow by a row a step, and are put back now and then."""
    step = DECODES[name]

    def build(arrays: Inputs) -> Triple:
        request = _core.compile_model(decode_model(name), "CPU", _options).create_infer_request()
        given = {"ids": arrays["token"], "position": np.array([step.past])}
        for key, array in {**given, "beam": np.zeros(1, np.int32)}.items():
            request.set_tensor(key, ov.Tensor(array))
        caches = {
            cache_name(part, layer): ov.Tensor(np.ascontiguousarray(entry[None]))
            for part in ("keys", "values")
            for layer, entry in enumerate(arrays[part])
        }
        steps = _STEPS

        def ready() -> None:
            nonlocal steps
            if steps < _STEPS:
                return
            for state in request.query_state():
                state.state = caches[state.name]
            steps = 0

        def run() -> int:
            nonlocal steps
            steps += 1
            request.infer()
            return int(request.get_output_tensor(0).data[0, 0])

        return run, lambda: request.get_output_tensor(1).data[0], ready

    return build


BUILD: dict[str, Callable[[Inputs], Pair]] = {
    **{name: _graph(make) for name, make in (onnx_models.GRAPHS | SLOW_GRAPHS).items()},
    "decoder": _decoder,
    **{name: _decode(name) for name in DECODES if name not in ROOMY},
}
