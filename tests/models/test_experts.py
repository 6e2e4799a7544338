"""A mixture-of-experts block: router, top k, two grouped products, weighted sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel import Tensor, Variable

Array = np.ndarray[Any, Any]
WIDTH, HIDDEN, EXPERTS, CHOSEN = 40, 72, 6, 2
RNG = np.random.default_rng(23)
ROUTER = RNG.standard_normal((WIDTH, EXPERTS)).astype(np.float32)
UP = (RNG.standard_normal((EXPERTS, WIDTH, 2 * HIDDEN)) / 6).astype(np.float32)
DOWN = (RNG.standard_normal((EXPERTS, HIDDEN, WIDTH)) / 8).astype(np.float32)
SHIFT = RNG.standard_normal((EXPERTS, WIDTH)).astype(np.float32)


def block(x: Tensor) -> Tensor:
    """Each token through its best experts, weighted by the router's softmax over them."""
    tokens = x.shape[0]
    scores, experts = (x @ Tensor(ROUTER)).topk(CHOSEN)
    weights = scores.softmax(-1)
    wide = x.grouped_matmul(UP, experts)
    hidden = wide[..., :HIDDEN].silu() * wide[..., HIDDEN:]
    ids = experts.reshape(tokens * CHOSEN)
    narrow = hidden.reshape(tokens * CHOSEN, HIDDEN).grouped_matmul(DOWN, ids)
    shifted = (narrow + Tensor(SHIFT)[ids]) * weights.reshape(tokens * CHOSEN, 1)
    return shifted.reshape(tokens, CHOSEN, WIDTH).sum(1)


def reference(x: Array) -> Array:
    x = x.astype(np.float64)
    result = np.zeros((len(x), WIDTH))
    for i, row in enumerate(x):
        scores = row @ ROUTER
        best = np.argsort(-scores, kind="stable")[:CHOSEN]
        weights = np.exp(scores[best] - scores[best].max())
        for weight, e in zip(weights / weights.sum(), best, strict=True):
            gate, value = np.split(row @ UP[e], 2)
            hidden = gate / (1 + np.exp(-gate)) * value
            result[i] += weight * (hidden @ DOWN[e] + SHIFT[e])
    return result


@pytest.mark.parametrize("fusion", [True, False])
def test_a_mixture_of_experts_agrees_with_numpy(fusion: bool) -> None:
    n = Variable("n", 0, 200)
    plan = block(Tensor.input("x", (n, WIDTH))).prepare(fusion=fusion)
    for tokens in (1, 0, 3, 64, 200):
        x = RNG.standard_normal((tokens, WIDTH)).astype(np.float32)
        np.testing.assert_allclose(plan(x=x), reference(x), rtol=1e-4, atol=1e-4)
    assert plan.compile_count == 1


def test_a_token_has_the_same_bits_in_any_company() -> None:
    n = Variable("n", 0, 200)
    plans = [block(Tensor.input("x", (n, WIDTH))).prepare(threads=t) for t in (1, 2)]
    x = RNG.standard_normal((90, WIDTH)).astype(np.float32)
    whole = plans[0](x=x)
    assert plans[1](x=x).tobytes() == whole.tobytes()
    for some in (slice(0, 1), slice(7, 20), slice(40, 90)):
        assert plans[1](x=x[some]).tobytes() == whole[some].tobytes()


def test_products_of_all_experts_are_two_kernels() -> None:
    plan = block(Tensor.input("x", (64, WIDTH))).prepare()
    computed = [{n.split()[1] for n in op.notes.nodes} for op in plan.prepared_kernels]
    assert sum("grouped_matmul" in ops for ops in computed) == 2
