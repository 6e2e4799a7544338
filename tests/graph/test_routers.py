"""Layers of experts: what they compute, and which routers are found in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel import Graph, GraphError, Tensor, relu
from semel.graph.routers import FoundRouter, find_routers

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(12)
EXPERTS, WIDE, INNER, TOKENS, K = 5, 8, 6, 7, 2


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


X, W = normal(TOKENS, WIDE), normal(WIDE, EXPERTS)
UP, GATE, DOWN = (
    normal(EXPERTS, WIDE, INNER),
    normal(EXPERTS, WIDE, INNER),
    normal(EXPERTS, INNER, WIDE),
)


def made_by(ids: Array, weights: Array, gate: Array | None) -> Array:
    """Token by token."""

    def silu(a: Array) -> Array:
        return a / (1 + np.exp(-a))

    result = np.zeros_like(X)
    for t, e in np.ndindex(ids.shape):
        expert, x = ids[t, e], X[t]
        wide = x @ UP[expert]
        hidden = silu(wide) if gate is None else silu(x @ gate[expert]) * wide
        result[t] += weights[t, e] * (hidden @ DOWN[expert])
    return result


def graph_of(build: Any) -> tuple[Graph, Tensor]:
    g = Graph("experts")
    x = g.input("x", (TOKENS, WIDE))
    return g, g.output("y", build(g, x))


def routers(g: Graph) -> tuple[FoundRouter, ...]:
    return find_routers(g.build(), {})


@pytest.mark.parametrize("gate", [None, GATE], ids=["plain", "gated"])
def test_a_layer_routes_by_logits(gate: Array | None) -> None:
    g, _ = graph_of(lambda g, x: g.moe(x, UP, DOWN, gate=gate, logits=x @ W, k=K))
    logits = X @ W
    ids = np.argsort(-logits, axis=-1)[:, :K]
    chosen = np.exp(np.take_along_axis(logits, ids, -1))
    expected = made_by(ids, chosen / chosen.sum(-1, keepdims=True), gate)
    np.testing.assert_allclose(g.prepare()(x=X), expected, rtol=2e-4, atol=2e-4)


def test_a_layer_takes_ids_and_weights_of_others() -> None:
    ids, weights = RNG.integers(0, EXPERTS, (TOKENS, K)), normal(TOKENS, K)
    g, _ = graph_of(lambda g, x: g.moe(x, UP, DOWN, ids=ids, weights=weights))
    np.testing.assert_allclose(g.prepare()(x=X), made_by(ids, weights, None), rtol=2e-4, atol=2e-4)


def test_without_weights_all_count_the_same() -> None:
    ids = RNG.integers(0, EXPERTS, (TOKENS, K))
    g, _ = graph_of(lambda g, x: g.moe(x, UP, DOWN, ids=ids))
    expected = made_by(ids, np.ones((TOKENS, K), np.float32), None)
    np.testing.assert_allclose(g.prepare()(x=X), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs either logits of the router and k, or ids"),
        ({"logits": X @ W, "ids": [[0]] * TOKENS}, "needs either logits"),
        ({"logits": X @ W}, "needs k, how many experts"),
        ({"logits": X @ W, "k": 9}, "k must lie in"),
        ({"logits": X @ W, "k": 1, "weights": X}, "weights follow from logits"),
        ({"ids": [[0]] * TOKENS, "k": 1}, "k is the last dim of ids"),
        ({"ids": [[0]] * TOKENS, "weights": X}, "one weight for each id"),
        ({"ids": [0] * TOKENS}, "k ids in the last axis"),
        ({"ids": [[0]] * TOKENS, "layer": -1}, "layer must be at least 0, got -1"),
        ({"ids": [[0]] * TOKENS, "layer": "a"}, "layer must be an int, got 'a'"),
    ],
)
def test_what_is_no_layer_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph_of(lambda g, x: g.moe(x, UP, DOWN, **options))


# ------------------------------------------------------------ which routers there are


def test_products_with_the_same_ids_are_one_layer() -> None:
    g, _ = graph_of(lambda g, x: g.moe(x, UP, DOWN, gate=GATE, logits=x @ W, k=K))
    (found,) = routers(g)
    assert (found.layer, found.num_experts, found.k) == (0, EXPERTS, K)


def test_routers_are_found_in_what_was_written_with_plain_tensors() -> None:
    def build(g: Graph, x: Tensor) -> Tensor:
        for _ in range(2):
            ids = (x @ W).topk(K)[1]
            hidden = relu(x.grouped_matmul(UP, ids))
            x = x + hidden.grouped_matmul(DOWN, ids).sum(-2)
        return x

    g, _ = graph_of(build)
    assert [(r.layer, r.num_experts, r.k, r.weights) for r in routers(g)] == [
        (0, EXPERTS, K, None),
        (1, EXPERTS, K, None),
    ]


@pytest.mark.parametrize("is_bias", [True, False])
def test_a_bias_of_each_expert_stands_between_results_and_their_weights(is_bias: bool) -> None:
    """Another sum does not: what is multiplied behind it need not be weights."""

    def build(g: Graph, x: Tensor) -> Tensor:
        values, ids = (x @ W).topk(1)
        own = g.param("b", normal(EXPERTS, WIDE)).take(ids, 0) if is_bias else x.unsqueeze(1)
        return ((x.grouped_matmul(UP @ DOWN, ids) + own) * values.unsqueeze(-1)).sum(1)

    g, _ = graph_of(build)
    (found,) = routers(g)
    assert (found.weights is not None) == is_bias


def test_another_topk_is_no_router() -> None:
    g, _ = graph_of(lambda g, x: (x @ W).topk(K)[0])
    assert routers(g) == ()


def numbered(*layers: int | None) -> list[int]:
    def build(g: Graph, x: Tensor) -> Tensor:
        for layer in layers:
            x = g.moe(x, UP, DOWN, logits=x @ W, k=K, layer=layer)
        return x

    g, _ = graph_of(build)
    order = {r.ids: r.layer for r in routers(g)}
    return [order[node] for node in g.build().nodes if node in order]


@pytest.mark.parametrize(
    ("given", "expected"),
    [((None, None), [0, 1]), ((7, 3), [7, 3]), ((None, 0, None), [1, 0, 2])],
)
def test_layers_without_a_number_get_the_next_one(
    given: tuple[int | None, ...], expected: list[int]
) -> None:
    assert numbered(*given) == expected


def test_two_routers_cannot_be_one_layer() -> None:
    with pytest.raises(GraphError, match="got layer 3 for several"):
        numbered(3, 3)


def test_one_router_cannot_be_two_layers() -> None:
    def build(g: Graph, x: Tensor) -> Tensor:
        ids = (x @ W).topk(K)[1]
        return x.grouped_matmul(UP, ids, layer=1).grouped_matmul(DOWN, ids, layer=2)

    g, _ = graph_of(build)
    with pytest.raises(GraphError, match="of one layer, got layers 1 and 2"):
        routers(g)
