"""OpenVINO with the ONNX graphs of ONNX Runtime: one request, tensors set once, float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openvino as ov

from benchmarks.peers import onnx_models
from benchmarks.peers.onnx_models import OnnxGraph
from benchmarks.rows import Inputs

VERSION = ov.__version__.partition("-")[0]
Pair = tuple[Callable[[], Any], Callable[[], Any]]
_core = ov.Core()
_options: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


def setup(threads: int) -> None:
    """One stream with so many threads; without the hint it would round to bfloat16."""
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


BUILD: dict[str, Callable[[Inputs], Pair]] = {
    **{name: _graph(make) for name, make in onnx_models.GRAPHS.items()},
    "decoder": _decoder,
}
