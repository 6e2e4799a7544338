"""The models at small sizes: what NumPy says, at every length, by one plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.models import reference

import semel
from semel import Tensor, Variable
from semel.models.decoder import DecoderSize, build_decoder_step, decoder_weights
from semel.models.minilm import EncoderSize, build_minilm, minilm_weights, sentence_embedding
from semel.models.resnet import RESNET50, ResNetSize, build_resnet, resnet_weights

RESNET = ResNetSize(stages=(2, 1, 1), width=16, classes=10)
MINILM = EncoderSize(layers=2, width=48, heads=4, hidden=96, vocabulary=50, positions=32)
DECODER = DecoderSize(layers=2, width=32, heads=4, hidden=48, vocabulary=40)


def wide(weights: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: array.astype(np.float64) for name, array in weights.items()}


@pytest.mark.parametrize("fold", [True, False], ids=["folded", "unfolded"])
def test_resnet_at_any_batch_and_size(fold: bool) -> None:
    weights = resnet_weights(RESNET, seed=1)
    n, side = Variable("n", 1, 3), Variable("side", 32, 64)
    images = Tensor.input("images", (n, 3, side, side))
    plan = build_resnet(images, weights, RESNET, fold=fold).prepare()
    for shape in ((1, 3, 32, 32), (2, 3, 45, 45)):
        data = np.random.default_rng(2).standard_normal(shape, dtype=np.float32)
        want = reference.resnet(data.astype(np.float64), wide(weights), RESNET)
        np.testing.assert_allclose(plan(images=data), want, rtol=1e-4, atol=1e-5)
    assert plan.compile_count == 1


def test_resnet_50_has_its_number_of_weights() -> None:
    weights = resnet_weights(ResNetSize(RESNET50.stages, 8))
    assert len(weights) == 53 * 5 + 2
    assert weights["layer4.2.conv3.weight"].shape == (256, 64, 1, 1)


def test_minilm_at_any_batch_and_length() -> None:
    weights = minilm_weights(MINILM, seed=3)
    batch, length = Variable("batch", 1, 4), Variable("length", 1, 32)
    ids, mask, types = (
        Tensor.input(name, (batch, length), "int64") for name in ("ids", "mask", "types")
    )
    plan = build_minilm(ids, mask, weights, MINILM, types).prepare()
    rng = np.random.default_rng(4)
    for shape in ((1, 1), (2, 7), (3, 32)):
        tokens, kinds = rng.integers(0, 50, shape), rng.integers(0, 2, shape)
        kept = (np.arange(shape[1]) < rng.integers(1, shape[1] + 1, (shape[0], 1))).astype(np.int64)
        want = reference.minilm(tokens, kept, kinds, wide(weights), MINILM)
        got = plan(ids=tokens, mask=kept, types=kinds)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
    assert plan.compile_count == 1


def test_padding_does_not_change_a_sentence() -> None:
    weights = minilm_weights(MINILM)
    length = Variable("length", 1, 32)
    ids, mask = (Tensor.input(name, (1, length), "int64") for name in ("ids", "mask"))
    plan = sentence_embedding(build_minilm(ids, mask, weights, MINILM), mask).prepare()
    short = np.array([[5, 9, 2]])
    padded = np.array([[5, 9, 2, 0, 0]])
    alone = plan(ids=short, mask=np.ones_like(short))
    beside = plan(ids=padded, mask=(np.arange(5) < 3).astype(np.int64)[None])
    np.testing.assert_allclose(beside, alone, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(alone), 1, rtol=1e-6)


def test_a_decoder_step_by_step_is_the_decoder_at_once() -> None:
    weights = decoder_weights(DECODER, seed=5)
    past = Variable("past", 0, 16)
    shape = (DECODER.layers, DECODER.heads, past, DECODER.depth)
    token = Tensor.input("token", (1,), "int64")
    keys, values = Tensor.input("keys", shape), Tensor.input("values", shape)
    plan = semel.prepare(list(build_decoder_step(token, keys, values, weights, DECODER)))
    cache = [np.zeros((*shape[:2], 0, shape[3]), np.float32) for _ in range(2)]
    tokens = [7, 0, 39, 7, 21]
    for i, one in enumerate(tokens):
        logits, *new = plan(token=np.array([one]), keys=cache[0], values=cache[1])
        want = reference.decoder(tokens[: i + 1], wide(weights), DECODER)
        np.testing.assert_allclose(logits, want, rtol=1e-4, atol=2e-5)
        cache = [np.concatenate([c, n[:, :, None]], 2) for c, n in zip(cache, new, strict=True)]
    assert plan.compile_count == 1
