"""A decoder with caches: nothing is copied, and a token costs the same whatever the room."""

from __future__ import annotations

import numpy as np
import pytest

from semel import Graph, Tensor, Variable
from semel.ir.expr import evaluate
from semel.plan.plan import ExecutionPlan

LAYERS, HEADS, DEPTH = 2, 4, 16
WIDTH = HEADS * DEPTH
RNG = np.random.default_rng(3)
WEIGHTS = {
    f"{part}{layer}": (RNG.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 8)
    for part in "qkvo"
    for layer in range(LAYERS)
}
DIMS = {"t": (1, 8)}


def decoder(capacity: int, layout: str) -> Graph:
    """Two layers of attention, causal, with rotations by position; `layout` is that of caches."""
    g = Graph("decoder")
    x = g.input("x", ("t", WIDTH))
    shape = (HEADS, capacity, DEPTH) if layout == "heads" else (capacity, HEADS, DEPTH)
    position = g.cursor("cursor", capacity).variable
    for layer in range(LAYERS):
        q, k, v = (heads(x.rms_norm() @ Tensor(WEIGHTS[f"{p}{layer}"])) for p in "qkv")
        q, k = turned(q, position), turned(k, position)
        keys, values = (
            appended(g, f"{name}{layer}", new, shape, layout) for name, new in (("k", k), ("v", v))
        )
        mixed = q.scaled_dot_product_attention(keys, values, is_causal=True)
        x = x + mixed.permute(1, 0, 2).reshape(x.shape[0], WIDTH) @ Tensor(WEIGHTS[f"o{layer}"])
    g.output("y", x)
    return g


def heads(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], HEADS, DEPTH).permute(1, 0, 2)


def turned(x: Tensor, position: Variable) -> Tensor:
    angles = (Tensor.arange(x.shape[1]) + position).cast("float32").unsqueeze(1) * 0.1
    first, second = x.split(2, -1)
    return Tensor.concat(
        [
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ],
        -1,
    )


def appended(g: Graph, name: str, new: Tensor, shape: tuple[int, ...], layout: str) -> Tensor:
    cache = g.state(name, shape)
    if layout == "heads":
        return cache.append(new, axis=1)
    return cache.append(new.permute(1, 0, 2)).permute(1, 0, 2)


def by_hand(x: np.ndarray) -> np.ndarray:
    """All tokens at once, without caches."""
    count = len(x)
    angles = np.arange(count, dtype=np.float32)[:, None] * np.float32(0.1)
    seen = np.tril(np.ones((count, count), bool))
    for layer in range(LAYERS):
        normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        q, k, v = (
            (normed @ WEIGHTS[f"{p}{layer}"]).reshape(count, HEADS, DEPTH).transpose(1, 0, 2)
            for p in "qkv"
        )
        q, k = (
            np.concatenate(
                [
                    a[..., :8] * np.cos(angles) - a[..., 8:] * np.sin(angles),
                    a[..., 8:] * np.cos(angles) + a[..., :8] * np.sin(angles),
                ],
                -1,
            )
            for a in (q, k)
        )
        scores = np.where(seen, q @ k.transpose(0, 2, 1) / 4, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + mixed.transpose(1, 0, 2).reshape(count, WIDTH) @ WEIGHTS[f"o{layer}"]
    return x


@pytest.mark.parametrize("layout", ["heads", "rows"])
@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_one_by_one_are_tokens_all_at_once(layout: str, threads: int) -> None:
    plan = decoder(32, layout).prepare(dims=DIMS, threads=threads)
    x = RNG.standard_normal((20, WIDTH), dtype=np.float32)
    found, done = [], 0
    for count in (7, 1, 1, 8, 1, 2):
        found.append(plan(x=x[done : done + count]))
        done += count
    np.testing.assert_allclose(np.concatenate(found), by_hand(x), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("layout", ["heads", "rows"])
def test_no_cache_is_copied_and_attention_is_one_kernel(layout: str) -> None:
    plan = decoder(64, layout).prepare(dims=DIMS)
    names = [op.name for op in plan.prepared_kernels]
    assert names.count("attention") == LAYERS
    # Nothing that a run makes is as large as what is valid of a cache.
    kinds = [v.type for v in plan.program.values if v.place == "arena"]
    assert not [kind for kind in kinds if "cursor" in str(kind)]
    assert all(info.how == "in place" for info in plan.states.values())
    assert {info.why for info in plan.states.values()} == {
        "new rows lie behind all that anybody reads of the old value."
    }


@pytest.mark.parametrize("layout", ["heads", "rows"])
def test_a_token_costs_what_is_valid_and_not_what_there_is_room_for(layout: str) -> None:
    costs = [amounts(decoder(room, layout).prepare(dims=DIMS), 40) for room in (64, 4096)]
    assert costs[0] == costs[1]
    longer = amounts(decoder(4096, layout).prepare(dims=DIMS), 400)
    assert sum(b for _, b, _ in longer) > sum(b for _, b, _ in costs[1])


def amounts(plan: ExecutionPlan, valid: int) -> list[tuple[int, int, int]]:
    """Tiles, bytes and operations of every kernel, for one token behind so many valid rows."""
    parts = plan.engine.parts
    values = {"cursor": valid, "t": 1}
    bound = [parts.scope.bind(op) for op in plan.prepared_kernels]
    return [
        tuple(evaluate(amount, values) for amount in (b.tiles, b.bytes, b.flops))  # type: ignore[misc]
        for b in bound
    ]
