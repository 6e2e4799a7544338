"""ONNX Runtime with IO binding: inputs and outputs stay in its memory between runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.decode import DECODES, ROOMY
from benchmarks.peers import onnx_decode, onnx_models
from benchmarks.peers.onnx_models import OnnxGraph
from benchmarks.peers.onnx_quantised import QUANTISED_GRAPHS
from benchmarks.peers.onnx_slow import SLOW_GRAPHS
from benchmarks.permuted import EPSILON, FIRST, LAST, SPACE
from benchmarks.rows import PASSES, Inputs
from semel.cli.onnx_file import OnnxNode, model

VERSION = ort.__version__
Pair = tuple[Callable[[], Any], Callable[[], Any]]
_options = ort.SessionOptions()


def setup(threads: int) -> None:
    """One pool of this size per session."""
    _options.intra_op_num_threads = threads
    _options.inter_op_num_threads = 1
    _options.log_severity_level = 3


def _session(
    nodes: Sequence[OnnxNode],
    arrays: Inputs,
    shape: Sequence[int],
    constants: Mapping[str, Any] | None = None,
) -> Any:
    shapes = {name: array.shape for name, array in arrays.items()}
    data = model(nodes, shapes, {nodes[-1].output: shape}, constants or {})
    return ort.InferenceSession(data, _options, providers=["CPUExecutionProvider"])


def _bound(session: Any, arrays: Inputs) -> Pair:
    binding = session.io_binding()
    output = session.get_outputs()[0]
    dtype = output.type[len("tensor(") : -1].replace("float", "float32")
    held = ort.OrtValue.ortvalue_from_numpy(np.zeros(output.shape, dtype))
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    binding.bind_ortvalue_output(output.name, held)
    run = session.run_with_iobinding

    def result() -> Any:
        run(binding)
        return held.numpy()

    return (lambda: run(binding)), result


def _row(*nodes: OnnxNode, shape: Sequence[int] | None = None) -> Callable[[Inputs], Pair]:
    def build(arrays: Inputs) -> Pair:
        first = next(iter(arrays.values()))
        return _bound(_session(nodes, arrays, first.shape if shape is None else shape), arrays)

    return build


def _call_add(arrays: Inputs) -> Pair:
    session = _session([OnnxNode("Add", ("x", "y"), "out")], arrays, (4,))

    def run() -> Any:
        return session.run(None, arrays)[0]

    return run, run


def _chain(arrays: Inputs) -> Pair:
    nodes, constants, last = [], {}, "x"
    for i, weight in enumerate(arrays["weights"]):
        constants[f"w{i}"] = weight
        nodes.append(OnnxNode("MatMul", (last, f"w{i}"), f"m{i}"))
        last = f"r{i}"
        nodes.append(OnnxNode("Relu", (f"m{i}",), last))
    inputs = {"x": arrays["x"]}
    return _bound(_session(nodes, inputs, arrays["x"].shape, constants), inputs)


def _means(arrays: Inputs) -> Pair:
    constants = {
        "axis0": np.array([0]),
        "axis1": np.array([1]),
        "half": np.array(0.5, np.float32),
    }
    nodes, last = [], "x"
    for i in range(PASSES):
        nodes.append(OnnxNode("ReduceMean", (last, f"axis{i % 2}"), f"m{i}", {"keepdims": 1}))
        nodes.append(OnnxNode("Add", (last, f"m{i}"), f"s{i}"))
        last = f"h{i}"
        nodes.append(OnnxNode("Mul", (f"s{i}", "half"), last))
    return _bound(_session(nodes, arrays, arrays["x"].shape, constants), arrays)


def _max_pool(arrays: Inputs) -> Pair:
    options = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    n, c, h, w = arrays["x"].shape
    nodes = [OnnxNode("MaxPool", ("x",), "out", options)]
    return _bound(_session(nodes, arrays, (n, c, h // 2, w // 2)), arrays)


def _upsample_add(arrays: Inputs) -> Pair:
    options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    nodes = [
        OnnxNode("Resize", ("x", "", "scales"), "large", {**options, "nearest_mode": "floor"}),
        OnnxNode("Add", ("large", "y"), "out"),
    ]
    scales = {"scales": np.array((1, 1, 2, 2), np.float32)}
    return _bound(_session(nodes, arrays, arrays["y"].shape, scales), arrays)


def _permuted_mean(arrays: Inputs) -> Pair:
    nodes = [
        OnnxNode("Transpose", ("x",), "t", {"perm": FIRST}),
        OnnxNode("ReduceMean", ("t", "axes"), "out", {"keepdims": 0}),
    ]
    n, _, _, c = arrays["x"].shape
    return _bound(_session(nodes, arrays, (n, c), {"axes": np.array(SPACE)}), arrays)


def _permuted_layer_norm(arrays: Inputs) -> Pair:
    n, c, h, w = arrays["x"].shape
    nodes = [
        OnnxNode("Transpose", ("x",), "t", {"perm": LAST}),
        OnnxNode(
            "LayerNormalization", ("t", "scale"), "out", {"axis": -1, "epsilon": EPSILON}
        ),
    ]  # fmt: skip
    scale = {"scale": np.ones(c, np.float32)}
    return _bound(_session(nodes, arrays, (n, h, w, c), scale), arrays)


def _instance_norm(arrays: Inputs) -> Pair:
    n, h, w, c = arrays["x"].shape
    nodes = [
        OnnxNode("Transpose", ("x",), "t", {"perm": FIRST}),
        OnnxNode("InstanceNormalization", ("t", "scale", "shift"), "out", {"epsilon": EPSILON}),
    ]
    numbers = {"scale": np.ones(c, np.float32), "shift": np.zeros(c, np.float32)}
    return _bound(_session(nodes, arrays, (n, c, h, w), numbers), arrays)


def _graph(make: Callable[[Inputs], OnnxGraph]) -> Callable[[Inputs], Pair]:
    def build(arrays: Inputs) -> Pair:
        data = make(arrays).bytes()
        session = ort.InferenceSession(data, _options, providers=["CPUExecutionProvider"])
        return _bound(session, arrays)

    return build


def _decode(name: str) -> Callable[[Inputs], Pair]:
    """Caches in memory that is bound as what comes in and as what goes out: rows are appended."""

    def build(arrays: Inputs) -> Pair:
        graph, caches = onnx_decode.decode_graph(name, arrays)
        session = ort.InferenceSession(graph, _options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        held = {key: ort.OrtValue.ortvalue_from_numpy(array) for key, array in caches.items()}
        for key, value in held.items():
            binding.bind_ortvalue_input(key, value)
            if key.startswith(onnx_decode.PAST):
                binding.bind_ortvalue_output(key.replace(onnx_decode.PAST, "present"), value)
        results = [
            ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype))
            for shape, dtype in (((1,), np.int64), (session.get_outputs()[1].shape, np.float32))
        ]
        for output, value in zip(session.get_outputs(), results, strict=False):
            binding.bind_ortvalue_output(output.name, value)
        chosen, logits = results

        def run() -> int:
            session.run_with_iobinding(binding)
            return int(chosen.numpy()[0])

        return run, lambda: logits.numpy()[0]

    return build


def _decoder(arrays: Inputs) -> Pair:
    run, result = _graph(onnx_models.decoder_graph)(onnx_models.decoder_inputs(arrays))
    return run, lambda: result()[0]


BUILD: dict[str, Callable[[Inputs], Pair]] = {
    **{name: _graph(make) for name, make in onnx_models.GRAPHS.items()},
    **{name: _graph(make) for name, make in (QUANTISED_GRAPHS | SLOW_GRAPHS).items()},
    "decoder": _decoder,
    **{name: _decode(name) for name in DECODES if name not in ROOMY},
    "tiny_add": _row(OnnxNode("Add", ("x", "y"), "out")),
    "call_add": _call_add,
    "chain": _chain,
    "unfusable": _means,
    "turned": _row(OnnxNode("Transpose", ("x",), "out", {"perm": (1, 0)}), shape=(12, 100_000)),
    "turned_add": _row(
        OnnxNode("Transpose", ("x",), "t", {"perm": (1, 0)}), OnnxNode("Add", ("x", "t"), "out")
    ),
    "max_pool": _max_pool,
    "upsample_add": _upsample_add,
    "permuted_mean": _permuted_mean,
    "permuted_layer_norm": _permuted_layer_norm,
    "instance_norm": _instance_norm,
    "softmax": _row(OnnxNode("Softmax", ("x",), "out", {"axis": -1})),
    "layer_norm": _row(
        OnnxNode(
            "LayerNormalization", ("x", "weight", "bias"), "out", {"axis": -1, "epsilon": 1e-5}
        )
    ),
    "gelu": _row(OnnxNode("Gelu", ("x",), "out")),
    "sum": _row(OnnxNode("ReduceSum", ("x",), "out", {"keepdims": 0}), shape=()),
    "tanh": _row(
        OnnxNode("Mul", ("a", "b"), "ab"),
        OnnxNode("Add", ("ab", "c"), "abc"),
        OnnxNode("Tanh", ("abc",), "t"),
        OnnxNode("Mul", ("t", "d"), "out"),
    ),
}
