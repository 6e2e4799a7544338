"""`python -m benchmarks.quantised_files`: whole ONNX files, quantised here, against ONNX Runtime.

    model  --onnxruntime.quantization-->  static: QDQ of uint8 x int8 per channel
                                          dynamic: DynamicQuantizeLinear and MatMulInteger
    file, threads  -->  a rotation of both runtimes and of both on the float file, p10 of each

Models are OCR networks of public packages and a network of inverted residuals and a sentence
encoder that are made here, with random weights. The difference is that of the results, in parts
of the largest: of single steps of some layer, which each runtime rounds in its own way, on top of
what quantisation itself changes ("lost": ONNX Runtime's quantised results against its float ones).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper

from benchmarks.onnx_models import CASES, model_path, rotation
from benchmarks.peers.onnx_models import minilm_graph
from benchmarks.report import align
from semel.models.minilm import MINILM

Feed = dict[str, Any]
_OPSET = 17
_OCR = ("OCR cls 48x192", "OCR v4 rec 48x320")
#: Channels, how often they are widened, and the stride of each inverted residual.
_RESIDUALS = ((16, 1, 1), (24, 6, 2), (24, 6, 1), (40, 6, 2), (40, 6, 1), (80, 6, 2), (80, 6, 1))


def mobile(rng: np.random.Generator) -> tuple[onnx.ModelProto, Feed]:
    """A MobileNet of seven inverted residuals, as exporters write it."""
    nodes: list[Any] = []
    weights: list[Any] = []

    def conv(x: str, wide: int, narrow: int, size: int, stride: int, groups: int = 1) -> str:
        number = len(nodes)
        shape = (wide, narrow // groups, size, size)
        scale = (2 / (narrow // groups * size * size)) ** 0.5
        weight = (rng.standard_normal(shape) * scale).astype(np.float32)
        bias = (rng.standard_normal(wide) * 0.1).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        weights.append(numpy_helper.from_array(bias, f"b{number}"))
        nodes.append(
            helper.make_node(
                "Conv", [x, f"w{number}", f"b{number}"], [f"v{number}"], group=groups,
                strides=[stride] * 2, pads=[size // 2] * 4, kernel_shape=[size] * 2,
            )
        )  # fmt: skip
        return f"v{number}"

    def then(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    x, channels = then("Relu", conv("x", 16, 3, 3, 2)), 16
    for wide, times, stride in _RESIDUALS:
        y = then("Relu", conv(x, channels * times, channels, 1, 1)) if times > 1 else x
        inner = channels * times
        y = then("Relu", conv(y, inner, inner, 3, stride, inner))
        y = conv(y, wide, inner, 1, 1)
        x = then("Add", y, x) if stride == 1 and wide == channels else y
        channels = wide
    x = then("Relu", conv(x, 320, channels, 1, 1))
    x = then("Flatten", then("GlobalAveragePool", x))
    last = (rng.standard_normal((320, 100)) * 0.05).astype(np.float32)
    weights.append(numpy_helper.from_array(last, "last"))
    then("MatMul", x, "last")
    graph = helper.make_graph(
        nodes, "mobile",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 160, 160])],
        [helper.make_tensor_value_info(f"v{len(nodes) - 1}", TensorProto.FLOAT, [1, 100])],
        weights,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made, {"x": rng.standard_normal((1, 3, 160, 160)).astype(np.float32)}


def encoder(rng: np.random.Generator) -> tuple[onnx.ModelProto, Feed]:
    """A sentence encoder, MiniLM, with 128 tokens."""
    ids = rng.integers(0, MINILM.vocabulary, (1, 128))
    feed = {"ids": ids, "mask": np.ones_like(ids)}
    return onnx.load_from_string(minilm_graph(feed).bytes()), feed


def _files() -> dict[str, Callable[[], tuple[onnx.ModelProto, Feed]]]:
    rng = np.random.default_rng(5)
    found: dict[str, Callable[[], tuple[onnx.ModelProto, Feed]]] = {}
    for case in CASES:
        path = model_path(case)
        if case.name in _OCR and path is not None:
            found[case.name] = lambda case=case, path=path: (onnx.load(path), case.feed(rng))
    found["inverted residuals 160x160"] = lambda: mobile(rng)
    found["MiniLM 1x128"] = lambda: encoder(rng)
    return found


class _Samples:
    """What a static quantiser looks at: the feed, and others like it."""

    def __init__(self, feed: Feed) -> None:
        rng = np.random.default_rng(6)
        self._left = iter([feed, *(self._scaled(feed, rng.uniform(0.5, 1)) for _ in range(2))])

    def _scaled(self, feed: Feed, by: float) -> Feed:
        return {n: a * np.float32(by) if a.dtype.kind == "f" else a for n, a in feed.items()}

    def get_next(self) -> Feed | None:
        return next(self._left, None)


def as_quantisers_want(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with weights that are no nodes, and of an opset that has scales per channel."""
    if model.opset_import[0].version < _OPSET:
        model = onnx.version_converter.convert_version(model, _OPSET)
    graph = model.graph
    for node in [n for n in graph.node if n.op_type == "Constant"]:
        tensor = next((a.t for a in node.attribute if a.name == "value"), None)
        if tensor is not None:
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
            graph.node.remove(node)
    return model


def quantised(model: onnx.ModelProto, feed: Feed, kind: str, folder: Path) -> Path:
    """The file, quantised: `static` or `dynamic`."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    source, made = folder / "float.onnx", folder / f"{kind}.onnx"
    onnx.save(as_quantisers_want(model), source)
    if kind == "dynamic":
        quantize_dynamic(source, made, weight_type=QuantType.QInt8)
    else:
        quantize_static(
            source, made, _Samples(feed), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    return made


def _ort(path: Path, feed: Feed, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(path, options)
    return lambda: session.run(None, feed)


def _semel(path: Path, feed: Feed, threads: int) -> Callable[[], Any]:
    import semel

    compiled = semel.load(path, threads=threads)
    return lambda: compiled.run(feed)


def measure(name: str, kind: str, path: Path, feed: Feed, threads: int) -> list[str]:
    """One line of the table."""
    source = path.with_name("float.onnx")
    runs = {"semel": _semel(path, feed, threads), "ort": _ort(path, feed, threads)}
    plain = _ort(source, feed, threads)
    ours = next(iter(runs["semel"]().values()))
    theirs, exact = runs["ort"]()[0], plain()[0]
    size = np.abs(exact).max()
    found = rotation({**runs, "ort, float": plain})
    return [
        name, kind, str(threads), *(f"{seconds * 1e6:.0f}" for seconds in found.values()),
        f"{found['semel'] / found['ort']:.2f}",
        *(f"{np.abs(a - b).max() / size:.0e}" for a, b in ((ours, theirs), (theirs, exact))),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all files that can be made here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--only", default="")
    given = parser.parse_args(argv)
    if find_spec("onnxruntime") is None:
        parser.error("needs onnxruntime, which quantises the files.")
    rows: list[list[str]] = []
    for name, make in _files().items():
        if given.only not in name:
            continue
        model, feed = make()
        for kind in ("static", "dynamic"):
            with tempfile.TemporaryDirectory() as folder:
                path = quantised(model, feed, kind, Path(folder))
                for threads in map(int, given.threads.split(",")):
                    rows.append(measure(name, kind, path, feed, threads))
                    print(f"... {rows[-1]}", file=sys.stderr, flush=True)
    head = ["file", "kind", "thr", "semel", "ort", "ort, float", "ratio", "difference", "lost"]
    print(align([head, *rows]))
    print("Times in us, p10.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
