"""Layers of experts in ONNX models: found, captured, and their experts moved."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.onnx.test_microsoft import f, make, u8
from tests.session.moves import check_memory, check_moves, stats

import semel
from semel import ExpertResidency, UnsupportedError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

E, W, INNER, K = 4, 128, 256, 2
DIMS = {"tokens": (1, 8)}
FEEDS = [{"x0": f(tokens, W), "x1": f(tokens, E)} for tokens in (1, 6, 3)]


def expected(model: Any, feed: Mapping[str, Any]) -> np.ndarray:
    """What ONNX Runtime computes."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, dict(feed))
    return np.asarray(y)


def check_layer(
    model: Any, feeds: list[dict[str, Any]], logits: str | None, *, has_weights: bool = True
) -> None:
    """What it computes, what is captured, and that experts move; `logits` is an input, if any."""
    c = semel.load(model, dims=DIMS, threads=1)
    (router,) = c.routers
    assert (router.num_experts, router.k) == (E, K)
    c.enable_moe_topk_capture()
    for feed in feeds:
        (y,) = c.run(feed).values()
        want = expected(model, feed)
        np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
        captured = c.take_moe_topk_capture()
        assert captured is not None
        found = captured[0]
        logits_of = feed[logits] if logits else feed["x"] @ ROUTER
        best = np.argsort(-logits_of, axis=-1, kind="stable")[:, :K]
        np.testing.assert_array_equal(found.ids, best)
        np.testing.assert_array_equal(found.counts, np.bincount(best.ravel(), minlength=E))
        assert (found.weights is not None) == has_weights
        if found.weights is not None:
            chosen = np.exp(np.take_along_axis(logits_of, best, -1))
            shares = chosen / chosen.sum(-1, keepdims=True)
            np.testing.assert_allclose(found.weights, shares, rtol=1e-4)
    check_moves(lambda asked: semel.load(model, dims=DIMS, experts=asked), feeds, 2)


def node(op: str, experts: list[Any], **attrs: Any) -> Any:
    given = [np.zeros((2, W), np.float32), np.zeros((2, E), np.float32)]
    model = make(op, [*given, *experts], 1, {"k": 2, **attrs}, len(experts))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "tokens"
    return model


def few_bits(bits: int, block: int = 0) -> list[Any]:
    each = 8 // bits
    return [
        u8(E, INNER, W // each),
        np.abs(f(E, INNER, *([W // block] if block else []), scale=0.1)),
        None,
        u8(E, W, INNER // each),
        np.abs(f(E, W, *([INNER // block] if block else []), scale=0.1)),
        None,
    ]


QUANTISED = {
    "4 bits": node("QMoE", few_bits(4), activation_type="silu", expert_weight_bits=4),
    "8 bits": node("QMoE", few_bits(8), activation_type="silu", expert_weight_bits=8),
    "4 bits in blocks": node(
        "QMoE", few_bits(4, 32), activation_type="silu", expert_weight_bits=4, block_size=32
    ),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_experts_move(name: str) -> None:
    """Their words or bytes, and their scales."""
    check_moves(lambda asked: semel.load(QUANTISED[name], dims=DIMS, experts=asked), FEEDS, 4)


FLOAT = {
    "relu": node("MoE", [f(E, INNER, W), None, f(E, W, INNER)], normalize_routing_weights=1),
    "silu with biases": node(
        "MoE",
        [f(E, INNER, W), f(E, INNER), f(E, W, INNER), f(E, W)],
        activation_type="silu",
        normalize_routing_weights=1,
    ),
    "swiglu with biases": node(
        "MoE",
        [f(E, 2 * INNER, W), f(E, 2 * INNER), f(E, W, INNER), f(E, W)],
        activation_type="swiglu",
        swiglu_fusion=1,
        normalize_routing_weights=1,
    ),
}


@pytest.mark.parametrize("name", FLOAT)
def test_layers_that_are_one_node(name: str) -> None:
    check_layer(FLOAT[name], FEEDS, "x1")


# ------------------------------------------------------------ layers of several nodes

ROUTER, UP, DOWN = f(W, E), f(E, W, INNER, scale=0.1), f(E, INNER, W, scale=0.1)
TOKENS = [{"x": f(tokens, W)} for tokens in (1, 6, 3)]


def nodes(*lines: str, **weights: np.ndarray) -> Any:
    """A layer: `Op input input > output; attribute=value`, behind a router that gives ids and w."""
    helper = onnx.helper
    head = (
        "MatMul x router > logits",
        "TopK logits k > best ids; axis=-1",
        "Softmax best > w; axis=-1",
    )
    made = []
    for line in head + lines:
        call, _, attrs = line.partition(";")
        (op, *inputs), outputs = (side.split() for side in call.split(">"))
        given = {
            name.strip(): ast.literal_eval(text.strip())
            for name, _, text in (each.partition("=") for each in attrs.split(";") if each.strip())
        }
        made.append(helper.make_node(op, inputs, outputs, **given))
    data = {"router": ROUTER, "k": np.array([K]), **weights}
    graph = helper.make_graph(
        made,
        "layer",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["tokens", W])],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(array, name) for name, array in data.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


WEIGHTED = (
    "Unsqueeze w both2 > shares",
    "Mul o shares > parts",
    "ReduceSum parts both > y; keepdims=0",
)
LAYERS = {
    "gathered": nodes(
        "Gather up ids > ups; axis=0",
        "Gather down ids > downs; axis=0",
        "Unsqueeze x both > rows",
        "MatMul rows ups > h",
        "Relu h > r",
        "MatMul r downs > o",
        *WEIGHTED,
        up=UP, down=DOWN, both=np.array([1, 2]), both2=np.array([2, 3]),
    ),
    "gathered and transposed, with biases": nodes(
        "Gather up ids > ups; axis=0",
        "Transpose ups > tups; perm=[0, 1, 3, 2]",
        "Gather down ids > downs; axis=0",
        "Transpose downs > tdowns; perm=[0, 1, 3, 2]",
        "Unsqueeze x both > rows",
        "MatMul rows tups > h",
        "Relu h > r",
        "MatMul r tdowns > o1",
        "Gather bias ids > b; axis=0",
        "Unsqueeze b two > bu",
        "Add o1 bu > o",
        *WEIGHTED,
        up=UP.transpose(0, 2, 1).copy(), down=DOWN.transpose(0, 2, 1).copy(), bias=f(E, W),
        two=np.array([2]), both=np.array([1, 2]), both2=np.array([2, 3]),
    ),
    "matrices on the left, rows repeated": nodes(
        "Gather up ids > ups; axis=0",
        "Gather down ids > downs; axis=0",
        "Unsqueeze x one > rows1",
        "Expand rows1 times > rows2",
        "Unsqueeze rows2 last > rows",
        "MatMul ups rows > h",
        "Relu h > r",
        "MatMul downs r > o1",
        "Squeeze o1 last > o",
        "Unsqueeze w last2 > shares",
        "Mul o shares > parts",
        "ReduceSum parts one > y; keepdims=0",
        up=UP.transpose(0, 2, 1).copy(), down=DOWN.transpose(0, 2, 1).copy(),
        one=np.array([1]), times=np.array([1, K, 1]), last=np.array([3]), last2=np.array([2]),
    ),
    "einsum": nodes(
        "Gather up ids > ups; axis=0",
        "Gather down ids > downs; axis=0",
        "Einsum x ups > h; equation='tw,tkwi->tki'",
        "Relu h > r",
        "Einsum r downs > o; equation='tki,tkiw->tkw'",
        "Unsqueeze w two > shares",
        "Mul o shares > parts",
        "ReduceSum parts one > y; keepdims=0",
        up=UP, down=DOWN, one=np.array([1]), two=np.array([2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_several_nodes(name: str) -> None:
    """A matrix is gathered for each id, as exporters write it."""
    check_layer(LAYERS[name], TOKENS, None)


def test_weights_that_einsum_sums_with_are_not_told() -> None:
    model = nodes(
        "Gather up ids > ups; axis=0",
        "Gather down ids > downs; axis=0",
        "Einsum x ups > h; equation='tw,tkwi->tki'",
        "Relu h > r",
        "Einsum r downs w > y; equation='tki,tkiw,tk->tw'",
        up=UP,
        down=DOWN,
    )
    check_layer(model, TOKENS, None, has_weights=False)


def test_each_form_of_a_model_has_a_store_of_its_own(tmp_path: Any) -> None:
    """A budget is that of a form, a file is for all that store the same; members are a form's."""
    model = nodes(
        "Gather up ids > ups; axis=0",
        "Unsqueeze x both > rows",
        "MatMul rows ups > h",
        "Squeeze h two > o",
        "Mul o scale > scaled",
        "ReduceSum scaled axes > y; keepdims=0",
        up=UP,
        both=np.array([1, 2]),
        two=np.array([2]),
        scale=np.array(2, np.float32),
    )
    axes = onnx.helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, [1])
    model.graph.input.append(axes)
    asked = ExpertResidency(budget=1, path=tmp_path / "experts")
    moving: Any = semel.load(model, dims=DIMS, experts=asked)
    with pytest.raises(UnsupportedError, match=r"form_of\(inputs\)\[0\]"):
        moving.take_moe_residency_stats()
    for axis in (1, 2):
        feed = {"x": TOKENS[1]["x"], "axes": np.array([axis])}
        y, want = moving.run(feed)["y"], expected(model, feed)
        np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
        form, _ = moving.form_of(feed)
        assert stats(form)[0].misses > 0
        assert [int(mask.sum()) for mask in form.moe_resident_experts().values()] == [1]
        assert check_memory(form) == form._residency().store.layers[0].room
    assert [each.name for each in tmp_path.iterdir()] == ["experts"]
