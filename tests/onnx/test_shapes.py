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


_LAST, _FIRST = 2**63 - 1, -(2**63)
CUTS = [(1, 3), (2, 5), (1, _LAST), (-3, _LAST), (_FIRST, 3), (_FIRST, _LAST), (2**31, _LAST)]
CUTS += [(1, 2**31 - 1), (1, 2**31), (2, 100), (5, 2), (0, _FIRST), (_LAST, _LAST)]


def test_slices_of_a_run_end_behind_the_last_row() -> None:
    """The largest integer is how exporters write "to the end"; it is no size, nor is the least."""
    compiled: Any = semel.load(
        model(
            [onnx.helper.make_node("Slice", ["x", "a", "b"], ["y"])],
            {"x": ("float32", ["t", 2]), "a": ("int64", [1]), "b": ("int64", [1])},
            ["y"],
        )
    )
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    for start, end in CUTS:
        found = compiled.run(x, np.array([start]), np.array([end]))["y"]
        np.testing.assert_array_equal(found, x[start:end], strict=True)
        again = compiled.run(x[:4], np.array([start]), np.array([end]))["y"]
        np.testing.assert_array_equal(again, x[:4][start:end], strict=True)
    count = compiled.compile_count
    compiled.run(x, np.array([3]), np.array([_LAST]))  # another start: a size, as the first one was
    assert compiled.compile_count == count


def test_slices_of_a_run_go_backward_to_the_first_row() -> None:
    compiled: Any = semel.load(
        model(
            [onnx.helper.make_node("Slice", ["x", "a", "b", "axis", "step"], ["y"])],
            {"x": ("float32", ["t"]), "a": ("int64", [1]), "b": ("int64", [1])},
            ["y"],
            axis=np.array([0]),
            step=np.array([-2]),
        )
    )
    x = np.arange(7, dtype=np.float32)
    for start, end in ((5, 1), (_LAST, _FIRST), (5, _FIRST), (-1, _FIRST), (2**31 - 1, -(2**31))):
        found = compiled.run(x, np.array([start]), np.array([end]))["y"]
        np.testing.assert_array_equal(found, x[start:end:-2], strict=True)
