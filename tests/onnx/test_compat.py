"""`semel.compat.onnxruntime` beside the real one, call for call."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from semel.errors import SemelError

onnx = pytest.importorskip("onnx")
real = pytest.importorskip("onnxruntime")
ours = pytest.importorskip("semel.compat.onnxruntime")

BOTH = pytest.mark.parametrize("ort", [real, ours], ids=["onnxruntime", "semel"])


@pytest.fixture(scope="module")
def model() -> bytes:
    """y = x @ w + b, z = 2 * k; w may be overridden."""
    helper = onnx.helper
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
        helper.make_node("Add", ["k", "k"], ["z"]),
    ]
    given = [
        helper.make_tensor_value_info("x", 1, ["batch", 3]),
        helper.make_tensor_value_info("k", 7, []),
        helper.make_tensor_value_info("w", 1, [3, 2]),
    ]
    made = [
        helper.make_tensor_value_info("y", 1, ["batch", 2]),
        helper.make_tensor_value_info("z", 7, []),
    ]
    w = onnx.numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    b = onnx.numpy_helper.from_array(np.array([10, 20], np.float32), "b")
    graph = helper.make_graph(nodes, "small", given, made, [w, b], doc_string="of a graph")
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="tests"
    )
    helper.set_model_props(proto, {"author": "us"})
    return bytes(proto.SerializeToString())


X = np.array([[1, 2, 3], [0, 1, 0]], np.float32)


@BOTH
def test_what_a_session_tells(ort: Any, model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), session.get_outputs()
    assert [(v.name, v.type, v.shape) for v in inputs] == [
        ("x", "tensor(float)", ["batch", 3]),
        ("k", "tensor(int64)", []),
    ]
    assert [(v.name, v.type, v.shape) for v in outputs] == [
        ("y", "tensor(float)", ["batch", 2]),
        ("z", "tensor(int64)", []),
    ]
    assert [v.name for v in session.get_overridable_initializers()] == ["w"]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.graph_description) == (
        *("tests", "small", "of a graph"),
    )
    assert meta.custom_metadata_map == {"author": "us"}
    assert session.get_providers() == ["CPUExecutionProvider"]


@BOTH
def test_runs(ort: Any, model: bytes) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(model, options)
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    y, z = session.run(None, {"x": X, "k": np.array(4)})
    np.testing.assert_allclose(y, X @ w + [10, 20])
    assert z == 8 and z.dtype == np.int64
    (z,) = session.run(["z"], {"x": X[:1], "k": np.array(5)})
    assert z == 10
    (y,) = session.run(["y"], {"x": X, "k": np.array(5), "w": w * 2})
    np.testing.assert_allclose(y, X @ w * 2 + [10, 20])
    (y,) = session.run(["y"], {"x": X, "k": np.array(5)})  # as it was
    np.testing.assert_allclose(y, X @ w + [10, 20])


@BOTH
def test_bindings(ort: Any, model: bytes) -> None:
    session = ort.InferenceSession(model)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_input("k", ort.OrtValue.ortvalue_from_numpy(np.array(3)))
    binding.bind_output("z")
    into = ort.OrtValue.ortvalue_from_shape_and_type([2, 2], np.float32)
    binding.bind_ortvalue_output("y", into)
    session.run_with_iobinding(binding)
    z, y = binding.copy_outputs_to_cpu()
    assert z == 6 and into.shape() == [2, 2] and into.data_type() == "tensor(float)"
    np.testing.assert_array_equal(y, into.numpy())


@BOTH
@pytest.mark.parametrize(
    ("names", "feed"),
    [
        (None, {"x": X}),
        (["nothing"], {"x": X, "k": np.array(1)}),
        (None, {"x": X, "k": np.array(1), "other": X}),
        (None, {"x": X.astype(np.float64), "k": np.array(1)}),
        (None, {"x": X[:, :2], "k": np.array(1)}),
    ],
    ids=["missing", "output", "unknown", "dtype", "shape"],
)
def test_wrong_calls_are_refused(ort: Any, model: bytes, names: Any, feed: Any) -> None:
    session = ort.InferenceSession(model)
    kinds = (SemelError,) if ort is ours else (Exception,)
    with pytest.raises(kinds, match=r"(?i)input|output|other|invalid"):
        session.run(names, feed)


@BOTH
def test_dims_can_be_fixed(ort: Any, model: bytes) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    session = ort.InferenceSession(model, options)
    assert session.run(["y"], {"x": X, "k": np.array(1)})[0].shape == (2, 2)


@BOTH
def test_classifiers_give_text_and_dictionaries(ort: Any) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[n, 2] x) => (string[n] label, seq(map(string, float)) chances) {
            label, p = ai.onnx.ml.LinearClassifier <classlabels_strings = ["no", "yes"],
                coefficients = [1.0, -1.0, -1.0, 1.0], intercepts = [0.0, 0.0]> (x)
            chances = ai.onnx.ml.ZipMap <classlabels_strings = ["no", "yes"]> (p)
        }"""
    session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    kinds = [output.type for output in session.get_outputs()]
    assert kinds == ["tensor(string)", "seq(map(string,tensor(float)))"]
    label, chances = session.run(None, {"x": np.array([[1, 2], [3, 1]], np.float32)})
    assert label.dtype == object and label.tolist() == ["yes", "no"]
    assert chances == [{"no": -1.0, "yes": 1.0}, {"no": 2.0, "yes": -2.0}]


def _parsed(text: str) -> bytes:
    return bytes(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> {text}'
        ).SerializeToString()
    )


@BOTH
def test_runs_with_other_initializers_see_their_own(ort: Any) -> None:
    """Four threads, each with a number of its own, and one with the model's."""
    session = ort.InferenceSession(
        _parsed(
            """g (float[n, 4] x, float[4] b) => (float[n, 4] y)
            <float[4] b = {1, 2, 3, 4}> { y = Add(x, b) }"""
        )
    )
    wrong: list[Any] = []

    def runs(number: int) -> None:
        x, b = np.zeros((number + 1, 4), np.float32), np.full(4, number, np.float32)
        feed = {"x": x} | ({"b": b} if number else {})
        expected = b if number else np.arange(1, 5)
        for _ in range(100):
            (y,) = session.run(["y"], feed)
            if y.shape != x.shape or not (y == expected).all():
                wrong.append((number, y))

    threads = [Thread(target=runs, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@BOTH
def test_initializers_that_decide_shapes_may_be_others(ort: Any) -> None:
    session = ort.InferenceSession(
        _parsed(
            """g (float[n, 4] x, int64[2] shape) => (y)
            <int64[2] shape = {-1, 2}> { y = Reshape(x, shape) }"""
        )
    )
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for shape in ([3, -1], [-1, 6], [12, 1]):
        (y,) = session.run(None, {"x": x, "shape": np.array(shape)})
        np.testing.assert_array_equal(y, x.reshape(shape))
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, x.reshape(-1, 2))


@BOTH
def test_initializers_of_options(ort: Any, model: bytes) -> None:
    options = ort.SessionOptions()
    b = ort.OrtValue.ortvalue_from_numpy(np.array([1, 2], np.float32))
    options.add_initializer("b", b)
    session = ort.InferenceSession(model, options)
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    for factor in (1, 2, 1):
        feed = {"x": X, "k": np.array(1)} | ({} if factor == 1 else {"w": w * factor})
        (y,) = session.run(["y"], feed)
        np.testing.assert_allclose(y, X @ w * factor + [1, 2])


def test_initializers_of_options_are_checked(model: bytes) -> None:
    for name, value, match in (
        ("none", np.ones(2, np.float32), "'none' must be an initializer"),
        ("b", np.ones(3, np.float32), r"must be float32\[2\], got float32\[3\]"),
    ):
        options = ours.SessionOptions()
        options.add_initializer(name, value)
        with pytest.raises(ours.InvalidArgument, match=match):
            ours.InferenceSession(model, options)


@BOTH
def test_a_run_that_calls_back(ort: Any, model: bytes) -> None:
    session = ort.InferenceSession(model)
    found: list[Any] = []
    over = Event()

    def call(outputs: Any, data: Any, error: str) -> None:
        found.extend((outputs, data, error))
        over.set()

    session.run_async(["z"], {"x": X, "k": np.array(4)}, call, "mine")
    assert over.wait(60)
    ((z,), data, error) = found
    assert (z, data, error) == (8, "mine", "")


@BOTH
def test_errors_have_their_names(ort: Any, model: bytes, tmp_path: Path) -> None:
    state = ort.capi.onnxruntime_pybind11_state
    with pytest.raises(state.NoSuchFile, match=r"none\.onnx"):
        ort.InferenceSession(str(tmp_path / "none.onnx"))
    with pytest.raises(state.InvalidProtobuf):
        ort.InferenceSession(b"no model")
    with pytest.raises((state.Fail, state.NotImplemented, state.InvalidGraph), match="Bar"):
        text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
            g (float[n] x) => (float[n] y) { y = own.Bar(x) }"""
        ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(state.InvalidArgument, match="other"):
        ort.InferenceSession(model).run(None, {"x": X, "k": np.array(1), "other": X})


@BOTH
def test_what_a_module_tells(ort: Any) -> None:
    assert isinstance(ort.__version__, str) and isinstance(ort.get_build_info(), str)
    ort.set_default_logger_severity(3)
    ort.set_default_logger_verbosity(0)
    assert ort.OrtDevice.make("cpu", 0).device_id() == 0
    assert "CPUExecutionProvider" in ort.get_available_providers()
