"""Shapes of imported models: symbolic where they can be, decided by content where they must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel

onnx = pytest.importorskip("onnx")


def model(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], **weights: Any) -> Any:
    """A model of these nodes; inputs are (dtype, shape)."""
    helper = onnx.helper
    code = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}
    given = [helper.make_tensor_value_info(n, code[d], shape) for n, (d, shape) in inputs.items()]
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    tensors = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", given, made, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def test_a_program_about_shapes_is_evaluated_at_each_size() -> None:
    node = onnx.helper.make_node
    compiled = semel.load(
        model(
            [
                node("Shape", ["x"], ["s"]),
                node("Gather", ["s", "zero"], ["n"]),
                node("Unsqueeze", ["n", "axes"], ["n1"]),
                node("Concat", ["n1", "rest"], ["wanted"], axis=0),
                node("Reshape", ["x", "wanted"], ["y"]),
                node("Add", ["y", "w"], ["z"]),
            ],
            {"x": ("float32", ["batch", 2, 3])},
            ["z"],
            zero=np.int64(0),
            axes=np.array([0]),
            rest=np.array([-1]),
            w=np.arange(6, dtype=np.float32),
        )
    )
    assert list(compiled.params) == ["w"]
    for n in (1, 4):
        x = np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3)
        np.testing.assert_array_equal(compiled.run(x)["z"], x.reshape(n, 6) + np.arange(6))


def test_sizes_in_an_input_are_bound_and_forms_are_compiled() -> None:
    compiled: Any = semel.load(
        model(
            [onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])],
            {"x": ("float32", [2, 6]), "shape": ("int64", [2])},
            ["y"],
        )
    )
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    for wanted in ([3, 4], [4, 3], [1, 12]):
        np.testing.assert_array_equal(compiled.run(x, np.array(wanted))["y"], x.reshape(wanted))
    assert compiled.compile_count == 1
    np.testing.assert_array_equal(compiled.run(x, np.array([-1, 3]))["y"], x.reshape(-1, 3))
    assert compiled.compile_count == 2
