"""The model behind the name `demo` of `semel profile` and others is the one it says it is."""

from __future__ import annotations

import numpy as np

from semel.cli.encoder import EncoderSize, build_encoder, example_input
from semel.ops.evaluate import evaluate


def test_the_encoder_is_the_textbook_one() -> None:
    """Independent of our reference: the same weights through plain NumPy, head by head."""
    size = EncoderSize(layers=1, width=8, heads=2, hidden=16, max_length=4)
    x = example_input(size, 3)
    (found,) = evaluate(build_encoder(size), {"x": x})
    np.testing.assert_allclose(found, _textbook(size, x), rtol=1e-4, atol=1e-5)


def _textbook(size: EncoderSize, x: np.ndarray) -> np.ndarray:
    from math import erf

    from semel.cli.encoder import SEED

    rng = np.random.default_rng(SEED)

    def draw(shape: tuple[int, ...], scale: float) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    def norm(v: np.ndarray) -> np.ndarray:
        scale, shift = 1 + draw((size.width,), 0.02), draw((size.width,), 0.02)
        return (v - v.mean(-1, keepdims=True)) / np.sqrt(
            v.var(-1, keepdims=True) + 1e-5
        ) * scale + shift

    def linear(v: np.ndarray, outputs: int) -> np.ndarray:
        weight = draw((v.shape[-1], outputs), v.shape[-1] ** -0.5)
        return v @ weight + draw((outputs,), 0.02)

    depth = size.width // size.heads
    normed = norm(x)
    q, k, v = (linear(normed, size.width) for _ in range(3))
    heads = []
    for h in range(size.heads):
        part = slice(h * depth, (h + 1) * depth)
        scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(depth))
        heads.append(scores / scores.sum(-1, keepdims=True) @ v[:, part])
    x = x + linear(np.concatenate(heads, -1), size.width)
    hidden = linear(norm(x), size.hidden)
    active = hidden * (1 + np.vectorize(erf)(hidden / np.sqrt(2))) / 2
    return norm(x + linear(active.astype(np.float32), size.width))
