"""The decoder with experts: what NumPy says, in logits and routing, token by token or at once."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.models import reference

from semel import CompiledGraph, ExpertPool, Session
from semel.models.mixture import SMALL_MIXTURE, build_mixture, gumbel, mixture_weights

SIZE = SMALL_MIXTURE
DIMS = {"t": (1, 32)}
PROMPT = [0, 4, 8, 13, 21]
WEIGHTS = mixture_weights(SIZE)
EXACT = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
EXAMPLE = importlib.import_module("examples.09_experts")
STEPS = 24
SILENCE = np.zeros(SIZE.vocabulary, np.float32)


@pytest.fixture(scope="module")
def compiled() -> CompiledGraph:
    return Session("cpu").compile(build_mixture(WEIGHTS, SIZE), dims=DIMS)


@pytest.fixture
def decoder(compiled: CompiledGraph) -> CompiledGraph:
    """One that has seen nothing yet, and tells where it routes to."""
    compiled.reset()
    compiled.enable_moe_topk_capture()
    return compiled


def generate(decoder: CompiledGraph, steps: int, seed: int = 3) -> list[int]:
    """The prompt and what is drawn behind it, token by token."""
    tokens, ids = list(PROMPT), np.array(PROMPT)
    for noise in gumbel(steps, SIZE, seed):
        (token,) = decoder.run(ids=ids, noise=noise, fetch=["next"])
        ids = token.reshape(1)
        tokens.append(int(token))
    return tokens


@pytest.mark.parametrize("cuts", [(24,), (9, 1, 1, 13), (1,) * 24], ids=len)
def test_prompts_and_steps_give_what_numpy_says(
    decoder: CompiledGraph, cuts: Sequence[int]
) -> None:
    tokens = np.random.default_rng(5).integers(0, SIZE.vocabulary, sum(cuts))
    routed, done = [], 0
    for count in cuts:
        result = decoder.run(ids=tokens[done : done + count], noise=SILENCE)
        captured = decoder.take_moe_topk_capture()
        assert captured is not None
        routed.append(np.stack([captured[layer].ids for layer in range(SIZE.layers)]))
        done += count
    logits, ids = reference.mixture(tokens.tolist(), EXACT, SIZE)
    np.testing.assert_allclose(result["logits"], logits, rtol=1e-4, atol=1e-4)
    assert result["next"] == logits.argmax()
    assert np.array_equal(np.concatenate(routed, 1), ids)


def test_what_is_drawn_is_the_largest_of_logits_and_noise(decoder: CompiledGraph) -> None:
    tokens = generate(decoder, 12)
    noise = gumbel(12, SIZE, 3)
    for step, token in enumerate(tokens[len(PROMPT) :]):
        logits, _ = reference.mixture(tokens[: len(PROMPT) + step], EXACT, SIZE)
        assert token == (logits + noise[step]).argmax()


def test_the_same_seeds_give_the_same_tokens(decoder: CompiledGraph) -> None:
    first = generate(decoder, 20)
    decoder.reset()
    assert generate(decoder, 20) == first
    decoder.reset()
    assert generate(decoder, 20, seed=4) != first
    again = mixture_weights(SIZE)
    assert all(np.array_equal(again[name], array) for name, array in WEIGHTS.items())


def test_texts_stay_with_a_subject_and_routing_is_skewed(decoder: CompiledGraph) -> None:
    """What policies are measured on: few experts for most tokens, and others now and then."""
    tokens = generate(decoder, 80)
    subjects = np.array(tokens) % SIZE.subjects
    changes = np.count_nonzero(np.diff(subjects[len(PROMPT) :]))
    assert 1 <= changes <= 20
    _, ids = reference.mixture(tokens, EXACT, SIZE)
    counts = np.stack([np.bincount(layer.ravel(), minlength=SIZE.experts) for layer in ids])
    half = np.sort(counts)[:, -SIZE.experts // 2 :].sum()
    assert half / counts.sum() > 0.8
    assert np.all((counts > 0).sum(-1) > SIZE.experts // 2)


# ------------------------------------------------------------ experts that move


@cache
def by_numpy(seed: int) -> tuple[list[int], np.ndarray]:
    """What the example writes with this seed, and the experts [layers, steps, chosen] it needs."""
    tokens = [0]
    for noise in gumbel(STEPS, SIZE, seed):
        logits, ids = reference.mixture(tokens, EXACT, SIZE)
        tokens.append(int((logits + noise).argmax()))
    return tokens[1:], ids


def misses_of(pool: ExpertPool, ids: np.ndarray) -> int:
    """How often an expert is not there: a guest stays if the pool wants him, and none is fetched
    before he is asked for."""
    there, misses = set(pool.resident), 0
    for step, routed in enumerate(ids.tolist()):
        misses += len(set(routed) - there)
        pool.observe([routed])
        if pool.should_refresh(step):
            pool.refresh()
        there = (there | set(routed)) & set(pool.resident)
    return misses


@cache
def rows_of_the_example() -> dict[tuple[int, Any], Any]:
    return {(row.resident, row.policy): row for row in EXAMPLE.measure(SIZE, STEPS)}


def test_the_example_has_all_budgets_and_policies() -> None:
    some = {(n, who) for n in (4, 1) for who in ("static", "lru", "decayed")}
    assert set(rows_of_the_example()) == {(8, "static"), (0, "static")} | some


def test_the_example_writes_what_numpy_does_whoever_is_resident() -> None:
    tokens, _ = by_numpy(2)
    assert len(set(tokens)) > 4
    for row in rows_of_the_example().values():
        assert row.tokens == tokens, row


def test_misses_of_the_example_are_those_of_its_routing_and_explain_its_bytes() -> None:
    _, before = by_numpy(1)
    _, ids = by_numpy(2)
    expert_bytes = 4 * sum(rows * columns for rows, columns in SIZE.expert_shapes.values())
    for (budget, policy), row in rows_of_the_example().items():
        for layer, stats in row.stats.items():
            profile = np.bincount(before[layer].ravel(), minlength=SIZE.experts)
            pool = ExpertPool(SIZE.experts, budget, policy=policy, profile=profile)
            assert stats.misses == misses_of(pool, ids[layer]), (budget, policy, layer)
            assert stats.hits + stats.misses == STEPS * SIZE.chosen
            assert stats.tokens == STEPS
            assert stats.bytes_moved == stats.misses * expert_bytes
    moved = {
        key: sum(s.misses for s in row.stats.values()) for key, row in rows_of_the_example().items()
    }
    assert moved[8, "static"] == 0 < moved[4, "lru"] < moved[1, "lru"]
    assert moved[0, "static"] == 2 * STEPS * SIZE.chosen
