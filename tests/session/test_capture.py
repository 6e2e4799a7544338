"""What routers decide, taken from a compiled graph."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.session.entries import ENTRIES

from semel import (
    CompiledGraph,
    ExecutableGraph,
    Graph,
    GraphError,
    InputError,
    Session,
    UnsupportedError,
    load,
    nonzero,
    take,
)
from semel.session.capture import Capture

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(13)
EXPERTS, WIDE, INNER, TOKENS, K = 5, 8, 6, 7, 2


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


X, W = normal(TOKENS, WIDE), normal(WIDE, EXPERTS)
UP, DOWN = normal(EXPERTS, WIDE, INNER), normal(EXPERTS, INNER, WIDE)


def model() -> Graph:
    """A layer that says what its weights are, and one of plain tensors; an output after each."""
    g = Graph("model")
    x = g.input("x", ("tokens", WIDE))
    first = g.output("first", x + g.moe(x, UP, DOWN, logits=x @ W, k=K))
    _, ids = (first @ W).topk(1)
    g.output("second", first.grouped_matmul(UP, ids).sum(-2))
    return g


def compiled(**options: Any) -> CompiledGraph:
    return Session().compile(model(), dims={"tokens": (1, 16)}, **options)


def expected_ids(x: Array, k: int = K) -> Array:
    return np.argsort(-(x @ W), axis=-1)[:, :k]


def taken(c: CompiledGraph) -> dict[int, Capture]:
    found = c.take_moe_topk_capture()
    assert found is not None
    return found


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_way_to_run_captures(entry: str) -> None:
    c = compiled()
    assert c.enable_moe_topk_capture() is True
    for x in (X, X[:3] * -1):  # the first run and one of another shape
        for _ in range(2):  # the long way and the short one
            first = ENTRIES[entry](c, {"x": x})["first"]
            found = taken(c)
            assert list(found) == [0, 1]
            np.testing.assert_array_equal(found[0].ids, expected_ids(x))
            np.testing.assert_array_equal(found[1].ids, expected_ids(first, 1))
            np.testing.assert_array_equal(
                found[0].counts, np.bincount(expected_ids(x).ravel(), minlength=EXPERTS)
            )
            assert c.take_moe_topk_capture() is None


def test_weights_are_those_that_count() -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    c.run(X)
    found = taken(c)
    chosen = np.exp(np.take_along_axis(X @ W, expected_ids(X), -1))
    weights = chosen / chosen.sum(-1, keepdims=True)
    assert found[0].weights is not None
    np.testing.assert_allclose(found[0].weights, weights, rtol=1e-4)
    assert found[1].weights is None


@pytest.mark.parametrize("is_gated", [False, True])
def test_weights_of_plain_ops_are_found(is_gated: bool) -> None:
    """A layer as an importer writes it: topk, softmax, products, and a sum of what is weighted."""
    g = Graph("imported")
    x = g.input("x", ("tokens", WIDE))
    chosen, ids = (x @ W).topk(K)
    weights = chosen.softmax(-1)
    hidden = x.grouped_matmul(UP, ids)
    hidden = hidden * x.grouped_matmul(UP * 2, ids).sigmoid() if is_gated else hidden.relu()
    made = hidden.grouped_matmul(DOWN, ids)
    g.output("y", (made * weights.unsqueeze(-1)).sum(1))
    c = Session().compile(g, dims={"tokens": (1, 16)})
    c.enable_moe_topk_capture()
    c.run(X)
    found = taken(c)[0]
    exact = np.exp(np.take_along_axis(X @ W, expected_ids(X), -1))
    assert found.weights is not None
    np.testing.assert_allclose(found.weights, exact / exact.sum(-1, keepdims=True), rtol=1e-4)
    np.testing.assert_array_equal(found.ids, expected_ids(X))


def test_nothing_is_captured_unless_asked_for() -> None:
    c = compiled()
    c.run(X)
    assert c.take_moe_topk_capture() is None
    c.enable_moe_topk_capture()
    assert c.take_moe_topk_capture() is None
    c.run(X)
    c.disable_moe_topk_capture()
    c.run(X)
    assert c.take_moe_topk_capture() is None


def test_results_are_the_same_with_and_without() -> None:
    plan = model().prepare(dims={"tokens": (1, 16)})
    c = compiled()
    for _ in range(2):
        for ours, theirs in zip(c.run(X), plan(x=X), strict=True):
            assert ours.tobytes() == theirs.tobytes()
        c.enable_moe_topk_capture()


def test_only_every_third_run_is_captured() -> None:
    c = compiled()
    c.enable_moe_topk_capture(every=3)
    seen = []
    for i in range(7):
        c.run(X)
        if c.take_moe_topk_capture() is not None:
            seen.append(i)
    assert seen == [0, 3, 6]


def test_the_last_run_is_what_is_taken() -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    c.run(X)
    c.run(-X[:4])
    np.testing.assert_array_equal(taken(c)[0].ids, expected_ids(-X[:4]))


def test_what_was_taken_stays_as_it_is() -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    c.run(X)
    found = taken(c)[0].ids
    c.run(-X)
    np.testing.assert_array_equal(found, expected_ids(X))


def test_a_run_that_fails_is_none() -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    with pytest.raises(InputError, match="dtype must be float32"):
        c.run(X.astype(np.float64))
    assert c.take_moe_topk_capture() is None


def test_layers_that_are_not_fetched_are_captured_too() -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    (first,) = c.run(X, fetch=["first"])
    np.testing.assert_array_equal(taken(c)[1].ids, expected_ids(first, 1))


def test_pending_runs_are_over_when_it_is_taken() -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    for sign in (1, -1):
        c.commit_no_wait(sign * X)
    np.testing.assert_array_equal(taken(c)[0].ids, expected_ids(-X))


def test_rows_that_are_not_active_are_not_captured() -> None:
    c = compiled(extent="tokens")
    c.enable_moe_topk_capture()
    x = normal(16, WIDE)
    with c.active_extent(3):
        c.run(x)
        np.testing.assert_array_equal(taken(c)[0].ids, expected_ids(x[:3]))
    c.run(x)
    np.testing.assert_array_equal(taken(c)[0].ids, expected_ids(x))


def test_clones_have_their_own() -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    c.run(X)
    other = c.clone()
    assert other.take_moe_topk_capture() is None
    other.run(-X)
    np.testing.assert_array_equal(taken(c)[0].ids, expected_ids(X))
    other.disable_moe_topk_capture()
    c.run(X)
    assert taken(c)


def test_files_and_pickles_know_their_routers(tmp_path: Path) -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    c.save(tmp_path / "model.plan")
    for other in (load(tmp_path / "model.plan"), pickle.loads(pickle.dumps(c))):
        other.run(X)
        assert other.take_moe_topk_capture() is None  # whether it captures belongs to the first
        other.enable_moe_topk_capture(EXPERTS)
        other.run(X)
        np.testing.assert_array_equal(taken(other)[0].ids, expected_ids(X))


def test_ids_may_be_given_and_count_from_the_end() -> None:
    g = Graph("given")
    x, ids = g.input("x", (4, WIDE)), g.input("ids", (4, K), "int32")
    g.output("y", x.grouped_matmul(UP, ids, layer=2))
    c = Session().compile(g)
    c.enable_moe_topk_capture()
    c.run(X[:4], np.array([[0, -1], [1, 1], [-5, 2], [3, 4]], np.int32))
    assert taken(c)[2].ids.tolist() == [[0, 4], [1, 1], [0, 2], [3, 4]]


def test_ids_may_be_constants() -> None:
    g = Graph("fixed")
    x = g.input("x", (4, WIDE))
    g.output("y", x.grouped_matmul(UP, np.array([3, 1, 1, 0])))
    c = Session().compile(g)
    c.enable_moe_topk_capture()
    c.run(X[:4])
    assert taken(c)[0].ids.tolist() == [[3], [1], [1], [0]]


def test_only_layers_with_so_many_experts() -> None:
    g = Graph("two kinds")
    x = g.input("x", (TOKENS, WIDE))
    y = g.moe(x, UP, DOWN, logits=x @ W, k=K)
    g.output("y", g.moe(y, UP[:3], DOWN[:3], logits=y @ W[:, :3], k=1))
    c = Session().compile(g)
    c.enable_moe_topk_capture(3)
    c.run(X)
    assert list(taken(c)) == [1]


def test_a_graph_without_routers_refuses() -> None:
    g = Graph("plain")
    g.output("y", g.input("x", (3,)) * 2)
    c = Session().compile(g)
    with pytest.raises(UnsupportedError, match="needs a graph with a layer of experts"):
        c.enable_moe_topk_capture()
    assert c.take_moe_topk_capture() is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"num_experts": 6}, r"num_experts must be that of a layer \(5\), got 6"),
        ({"every": 0}, "every must be at least 1, got 0"),
    ],
)
def test_what_fits_no_layer_changes_nothing(args: dict[str, int], message: str) -> None:
    c = compiled()
    c.enable_moe_topk_capture()
    c.run(X)
    with pytest.raises(InputError, match=message):
        c.enable_moe_topk_capture(**args)
    assert taken(c)


def test_names_of_what_routers_decide_are_taken() -> None:
    g = model()
    with pytest.raises(GraphError, match="'moe layer 0 ids' is what a router decides"):
        Session().compile(g, keep={"moe layer 0 ids": g.outputs["first"]})


def test_it_is_part_of_the_protocol() -> None:
    assert isinstance(compiled(), ExecutableGraph)


def test_each_run_says_how_many_tokens_there_were() -> None:
    g = Graph("late")
    x, mask = g.input("x", (TOKENS, WIDE)), g.input("mask", (TOKENS,), "bool")
    some = take(x, nonzero(mask)[0], axis=0)
    g.output("y", g.moe(some, UP, DOWN, logits=some @ W, k=K))
    c = Session().compile(g)
    c.enable_moe_topk_capture()
    for count in (3, 5, 2):
        chosen = np.arange(TOKENS) < count
        c.run(X, chosen)
        np.testing.assert_array_equal(taken(c)[0].ids, expected_ids(X[chosen]))
