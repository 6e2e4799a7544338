"""Small ONNX files for the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_MICROSOFT = "com.microsoft"


def _write(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], *more: Any) -> Path:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, *more)
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 17), ("my.own", 1), (_MICROSOFT, 1))]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def _info(name: str, shape: list[Any], code: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, code, shape)


def product(folder: Path) -> Path:
    """y = relu(x @ w): float32 [batch, seq, 16] -> [batch, seq, 8]."""
    w = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Relu", ["a"], ["y"], "positive"),
    ]
    inputs, outputs = [_info("x", ["batch", "seq", 16])], [_info("y", ["batch", "seq", 8])]
    return _write(
        folder / "product.onnx", nodes, inputs, outputs, [numpy_helper.from_array(w, "w")]
    )


def packed(folder: Path) -> Path:
    """Weights that every machine wants in another order: initializers, a node, and 4 bits."""
    r = np.random.default_rng(1)
    weights = {
        "kernel": r.standard_normal((8, 4, 3, 3)).astype(np.float32),
        "w": r.standard_normal((512, 64)).astype(np.float32),
        "q": r.integers(0, 256, (48, 2, 16)).astype(np.uint8),
        "s": r.standard_normal(96).astype(np.float32),
    }
    last = numpy_helper.from_array(r.standard_normal((48, 40)).astype(np.float32))
    bits = {"K": 64, "N": 48, "bits": 4, "block_size": 32, "domain": _MICROSOFT}
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("MatMulNBits", ["c", "q", "s"], ["d"], **bits),
        helper.make_node("Constant", [], ["last"], value=last),
        helper.make_node("MatMul", ["d", "last"], ["y"]),
    ]
    inputs, outputs = [_info("x", ["n", 4, 8, 8])], [_info("y", ["n", 40])]
    arrays = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return _write(folder / "packed.onnx", nodes, inputs, outputs, arrays)


def reshape(folder: Path) -> Path:
    """y = x in the shape that an input holds."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "view")]
    inputs = [_info("x", ["n"]), _info("shape", [2], TensorProto.INT64)]
    return _write(folder / "reshape.onnx", nodes, inputs, [_info("y", ["a", "b"])])


def unsupported(folder: Path) -> Path:
    """Two nodes that nobody knows."""
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], "first", domain="my.own"),
        helper.make_node("Bar", ["x"], ["y"], "second", domain="my.own"),
    ]
    outputs = [_info("a", ["n"]), _info("y", ["n"])]
    return _write(folder / "unsupported.onnx", nodes, [_info("x", ["n"])], outputs)


def upper(folder: Path) -> Path:
    """Text in capitals, on the host."""
    nodes = [helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER")]
    info = [_info(name, ["n"], TensorProto.STRING) for name in ("x", "y")]
    return _write(folder / "upper.onnx", nodes, info[:1], info[1:])


def colour(folder: Path) -> Path:
    """The mean of each channel of an image."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)]
    inputs, outputs = [_info("x", ["batch", 3, "H", "W"])], [_info("y", ["batch", 3])]
    return _write(folder / "colour.onnx", nodes, inputs, outputs)
