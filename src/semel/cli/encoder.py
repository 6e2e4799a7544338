"""The model of the demo: a transformer encoder whose sequence length is a variable.

    EncoderSize  --build_encoder-->  Graph: x float32[seq, width] -> y float32[seq, width]

Pre-norm, multi-head attention, gelu; weights come from a seed and are laid out so that
`x @ w` reads them as they lie. Everything is written with plain Tensor operations, the
attention too: what the demo shows is what any user's code gets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semel.ir.expr import Variable
from semel.ir.graph import Graph
from semel.tensor.realize import build_graph
from semel.tensor.tensor import Tensor

SEED = 20


@dataclass(frozen=True, slots=True)
class EncoderSize:
    """Layers, widths and the longest sequence."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    hidden: int = 1024
    max_length: int = 128

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, width {self.width}, {self.heads} heads, "
            f"feed-forward {self.hidden}, float32"
        )


QUICK = EncoderSize(layers=2, width=128, hidden=512)


def build_encoder(size: EncoderSize) -> Graph:
    """The encoder's graph; the same size gives the same weights."""
    length = Variable("seq", 1, size.max_length)
    weights = _Weights()
    x = Tensor.input("x", (length, size.width))
    for _ in range(size.layers):
        x = x + _attention(weights.norm(x), size, weights)
        x = x + _feed_forward(weights.norm(x), size, weights)
    return build_graph({"y": weights.norm(x)})


def example_input(size: EncoderSize, length: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A sequence of `length` vectors, the same at every call."""
    rng = np.random.default_rng((SEED, length))
    return rng.standard_normal((length, size.width), dtype=np.float32)


def _attention(x: Tensor, size: EncoderSize, weights: _Weights) -> Tensor:
    length, depth = x.shape[0], size.width // size.heads

    def heads(projected: Tensor) -> Tensor:
        return projected.reshape(length, size.heads, depth).permute(1, 0, 2)

    queries, keys, values = (heads(weights.linear(x, size.width)) for _ in range(3))
    scores = queries @ keys.permute(0, 2, 1) * depth**-0.5
    mixed = scores.softmax(-1) @ values
    return weights.linear(mixed.permute(1, 0, 2).reshape(length, size.width), size.width)


def _feed_forward(x: Tensor, size: EncoderSize, weights: _Weights) -> Tensor:
    return weights.linear(weights.linear(x, size.hidden).gelu(), size.width)


@dataclass(slots=True)
class _Weights:
    """Layers with weights drawn one after another from one seeded stream."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))

    def linear(self, x: Tensor, outputs: int) -> Tensor:
        """x @ w + b."""
        inputs = x.shape[-1]
        assert isinstance(inputs, int)
        return x @ self._normal((inputs, outputs), inputs**-0.5) + self._normal((outputs,), 0.02)

    def norm(self, x: Tensor) -> Tensor:
        """Layer norm with a scale near 1 and a shift near 0."""
        width = x.shape[-1]
        return x.layer_norm(1.0 + self._normal((width,), 0.02), self._normal((width,), 0.02))

    def _normal(self, shape: tuple[Any, ...], scale: float) -> Tensor:
        return Tensor(self.rng.standard_normal(shape, dtype=np.float32) * np.float32(scale))
