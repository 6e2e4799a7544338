"""The decoder with experts: what NumPy says, in logits and routing, token by token or at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.models import reference

from semel import CompiledGraph, Session
from semel.models.mixture import SMALL_MIXTURE, build_mixture, gumbel, mixture_weights

SIZE = SMALL_MIXTURE
DIMS = {"t": (1, 32)}
PROMPT = [0, 4, 8, 13, 21]
WEIGHTS = mixture_weights(SIZE)
EXACT = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
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
