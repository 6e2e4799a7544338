"""Norms, recurrent cells, attention, signals and optimisers of imported models.

What the official suite does not ask: one compile at several sizes, old versions, odd attributes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import UnsupportedError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.onnx.nodes import expected, one_node, runtime  # noqa: E402
from tests.onnx.test_windows import agree, numbers  # noqa: E402


def agree_with_reference(model: Any, feeds: list[dict[str, Any]], tolerance: float = 2e-5) -> None:
    """One compile, and the results of the standard's evaluator at each of these inputs."""
    compiled: Any = semel.load(model, threads=1)
    for feed in feeds:
        found = compiled.run(feed)
        for (name, ours), theirs in zip(found.items(), expected(model, feed), strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- norms

NORMS: dict[str, tuple[str, int, int, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "softmax_of_all_that_follows": ("Softmax", 1, 11, {"axis": 1}, {}),
    "groups_with_one_scale_each": (
        "GroupNormalization", 1, 18, {"num_groups": 2}, {"s": (2,), "b": (2,)}
    ),
    "layer": ("LayerNormalization", 3, 17, {"axis": 1}, {"s": (4, 3), "b": (4, 3)}),
    "mean_variance": ("MeanVarianceNormalization", 1, 13, {"axes": [0, 2]}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_all_versions(name: str) -> None:
    op, outputs, opset, attributes, weights = NORMS[name]
    feeds = [{"x": numbers(n, 4, 3, seed=n)} for n in (2, 5)]
    arrays = {key: numbers(*shape, seed=7) for key, shape in weights.items()}
    model = one_node(op, feeds[0], outputs, opset=opset, weights=arrays, **attributes)
    agree_with_reference(model, feeds, 1e-4) if opset == 18 else agree(model, feeds, 1e-4)


def test_a_batch_norm_of_every_place_and_one_in_training() -> None:
    x = numbers(3, 2, 4)
    statistics = {name: np.abs(numbers(2, 4, seed=i)) for i, name in enumerate("sbmv")}
    model = one_node("BatchNormalization", {"x": x}, opset=7, weights=statistics, spatial=0)
    s, b, m, v = statistics.values()
    found = semel.load(model).run(x)["out0"]
    np.testing.assert_allclose(found, (x - m) / np.sqrt(v + 1e-5) * s + b, rtol=1e-4, atol=1e-5)
    kept = {name: array[:, 0].copy() for name, array in statistics.items()}
    training = one_node(
        "BatchNormalization", {"x": x}, 3, opset=15, weights=kept, training_mode=1, momentum=0.7
    )
    agree_with_reference(training, [{"x": x}, {"x": numbers(5, 2, 6)}], 1e-4)


# ---------------------------------------------------------------- recurrent cells

CELLS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "lstm": ("LSTM", 4, {"direction": "reverse", "clip": 0.7, "input_forget": 1}),
    "activations": ("GRU", 3, {
        "activations": ["hardsigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.2],
        "activation_beta": [0.4],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_cells_with_a_batch_and_a_length_that_runs_bind(name: str) -> None:
    op, gates, attributes = CELLS[name]
    hidden, size = 3, 2
    count = 2 if attributes.get("direction") == "bidirectional" else 1
    weights = {
        "w": numbers(count, gates * hidden, size, seed=1),
        "r": numbers(count, gates * hidden, hidden, seed=2),
        "b": numbers(count, 2 * gates * hidden, seed=3),
    }
    feeds = []
    for steps, batch in ((4, 2), (6, 3)):
        feeds.append({"x": numbers(steps, batch, size)})
    model = one_node(op, feeds[0], 2, opset=14, weights=weights, hidden_size=hidden, **attributes)
    agree(model, feeds, 1e-4)


def test_an_activation_that_is_none_is_refused() -> None:
    weights = {"w": numbers(1, 3, 2), "r": numbers(1, 3, 3)}
    model = one_node(
        "RNN", {"x": numbers(4, 2, 2)}, weights=weights, hidden_size=3, activations=["Cosine"]
    )
    with pytest.raises(UnsupportedError, match=r"RNN 'it'.*activation Cosine is not one of"):
        semel.load(model)


# ---------------------------------------------------------------- attention


def test_attention_over_a_past_of_any_length() -> None:
    attributes: dict[str, Any] = {"is_causal": 1, "softcap": 2.0}
    feeds = []
    for batch, queries, past in ((1, 3, 4), (2, 1, 6)):
        new, old = (batch, 2, queries, 8), (batch, 2, past, 8)
        feeds.append({
            "q": numbers(batch, 4, queries, 8),
            "k": numbers(*new, seed=1), "v": numbers(*new, seed=2),
            "pk": numbers(*old, seed=3), "pv": numbers(*old, seed=4),
        })  # fmt: skip
    inputs = {**dict.fromkeys("qkv"), "mask": None, "pk": None, "pv": None} | feeds[0]
    agree_with_reference(one_node("Attention", inputs, 3, **attributes), feeds, 1e-4)


def test_attention_makes_no_matrix_of_scores() -> None:
    shape = (1, 4, 64, 16)
    feed = {name: numbers(*shape, seed=i) for i, name in enumerate("qkv")}
    model = one_node("Attention", feed, is_causal=1)
    compiled: Any = semel.load(model, threads=1)
    np.testing.assert_allclose(compiled.run(feed)["out0"], expected(model, feed)[0], atol=1e-5)
    fixed: Any = semel.load(one_node("Attention", feed, symbolic=False, is_causal=1), threads=1)
    assert fixed.plan.memory.arena_bytes < 4 * 64 * 64 * 4


def test_linear_attention_of_any_length() -> None:
    feeds = []
    for batch, length in ((1, 3), (2, 5)):
        lead = (batch, length)
        feeds.append({
            "q": numbers(*lead, 8), "k": numbers(*lead, 4, seed=1), "v": numbers(*lead, 6, seed=2),
            "state": numbers(batch, 2, 2, 3, seed=3), "decay": -np.abs(numbers(*lead, 4, seed=4)),
            "beta": np.abs(numbers(*lead, 2, seed=5)),
        })  # fmt: skip
    model = one_node(
        "LinearAttention",
        feeds[0],
        2,
        opset=27,
        update_rule="gated_delta",
        q_num_heads=4,
        kv_num_heads=2,
    )
    agree_with_reference(model, feeds, 1e-4)


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize(("inverse", "onesided"), [(0, 1), (1, 0), (1, 1)])
def test_transforms_of_any_length(inverse: int, onesided: int) -> None:
    parts = 1 if onesided and not inverse else 2
    feeds = [{"x": numbers(2, n, parts, seed=n)} for n in (6, 9)]
    model = one_node("DFT", feeds[0], opset=20, inverse=inverse, onesided=onesided)
    agree_with_reference(model, feeds, 1e-5)


def test_a_transform_cuts_or_fills_up_to_its_length() -> None:
    feeds = [{"x": numbers(2, 6, 2), "length": np.int64(n)} for n in (4, 9)]
    inputs = {name: np.asarray(array) for name, array in feeds[0].items()}
    model = one_node("DFT", inputs, opset=20)
    compiled: Any = semel.load(model, threads=1)
    for feed in feeds:
        x, n = feed["x"], int(feed["length"])
        found = compiled.run(x, np.asarray(n))["out0"]
        theirs = np.fft.fft(x[..., 0] + 1j * x[..., 1], n=n, axis=1)
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], theirs, atol=1e-5)
    assert compiled.compile_count == 1


def test_frames_of_a_signal_of_any_length() -> None:
    weights = {"step": np.asarray(3), "window": np.hanning(8).astype(np.float32)}
    feeds = [{"x": numbers(2, n, 1)} for n in (20, 33)]
    agree_with_reference(one_node("STFT", feeds[0], opset=17, weights=weights), feeds, 1e-5)


def test_windows_of_a_size_that_an_input_holds() -> None:
    model = one_node("BlackmanWindow", {"n": np.asarray(10)}, opset=17, periodic=0)
    compiled: Any = semel.load(model, threads=1)
    for n in (10, 17):
        theirs = expected(model, {"n": np.asarray(n)})[0]
        np.testing.assert_allclose(compiled.run(np.asarray(n))["out0"], theirs, atol=1e-6)
    assert compiled.compile_count == 1


# ---------------------------------------------------------------- others


def test_a_gradient_is_refused() -> None:
    node = onnx.helper.make_node(
        "Gradient", ["x"], ["d"], "it", domain="ai.onnx.preview.training", xs=["x"], y="x"
    )
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name="d")])
    opsets = [onnx.helper.make_opsetid("ai.onnx.preview.training", 1)]
    opsets.append(onnx.helper.make_opsetid("", 21))
    with pytest.raises(UnsupportedError, match="gradients are not computed"):
        semel.load(onnx.helper.make_model(graph, opset_imports=opsets))


def test_integer_products_with_zero_points() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "b": rng.integers(-60, 60, (6, 4)).astype(np.int8),
        "az": np.asarray(np.uint8(7)),
        "bz": rng.integers(-3, 3, 4).astype(np.int8),
    }
    feeds = [{"a": rng.integers(0, 255, (n, 6)).astype(np.uint8)} for n in (2, 5)]
    model = one_node("MatMulInteger", feeds[0], opset=10, weights=weights)
    agree(model, feeds, 0)
    assert runtime(model, feeds[0])[0].dtype == np.int32


def test_values_with_many_dims_that_have_no_bounds() -> None:
    x = numbers(2, 3, 2, 3, 2, 3, 2)
    model = one_node("Softmax", {"x": x}, axis=1)
    agree(model, [{"x": x}, {"x": numbers(3, 2, 2, 2, 1, 2, 5)}])
