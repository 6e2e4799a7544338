"""MiniLM: a BERT encoder of six narrow layers, and the sentence embedding made of it.

    ids, mask int64[batch, seq], weights by BERT's names  -->  hidden float32[batch, seq, width]

Post-norm, gelu by erf, learned positions. Tokens are one tall matrix from the embeddings on:
batch and sequence matter only inside the attention. The three projections of a layer
are one product, whose weights are joined while building.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.models.weights import Array, Weights, draw, joined
from semel.tensor.tensor import Tensor

EPSILON = 1e-12
#: Added to the scores of padding: far below any score, and finite, so that rows of nothing
#: but padding have a mean and no NaN.
MASKED = -1e30


@dataclass(frozen=True, slots=True)
class EncoderSize:
    """Layers, widths, and the longest sequence."""

    layers: int = 6
    width: int = 384
    heads: int = 12
    hidden: int = 1536
    vocabulary: int = 30522
    positions: int = 512


MINILM = EncoderSize()


def minilm_weights(size: EncoderSize = MINILM, seed: int = 0) -> dict[str, Array]:
    """Arrays from a seed, under the names that checkpoints use."""
    width, hidden = size.width, size.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (size.vocabulary, width),
        "embeddings.position_embeddings.weight": (size.positions, width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    norm("embeddings.LayerNorm")
    for layer in range(size.layers):
        prefix = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{prefix}.attention.self.{part}", width, width)
        linear(f"{prefix}.attention.output.dense", width, width)
        norm(f"{prefix}.attention.output.LayerNorm")
        linear(f"{prefix}.intermediate.dense", hidden, width)
        linear(f"{prefix}.output.dense", width, hidden)
        norm(f"{prefix}.output.LayerNorm")
    return draw(shapes, seed)


def build_minilm(
    ids: Tensor,
    mask: Tensor,
    weights: Weights,
    size: EncoderSize = MINILM,
    types: Tensor | None = None,
) -> Tensor:
    """The hidden states of the last layer; `types` are 0 where not given."""
    net = _Encoder(weights, size)
    batch, length = ids.shape
    x = net.embeddings(ids, types).reshape(batch * length, size.width)
    # One row per sentence, added to the scores of all heads and queries.
    bias = ((1 - mask.cast("float32")) * MASKED).reshape(batch, 1, 1, length)
    for layer in range(size.layers):
        x = net.layer(x, bias, f"encoder.layer.{layer}")
    return x.reshape(batch, length, size.width)


def sentence_embedding(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean of the tokens that the mask keeps, with length 1: [batch, width]."""
    kept = mask.cast(hidden.dtype).unsqueeze(-1)
    mean = (hidden * kept).sum(1) / kept.sum(1).maximum(1e-9)
    return mean / mean.norm(2, -1, keepdims=True).maximum(1e-12)


@dataclass(frozen=True, slots=True)
class _Encoder:
    weights: Weights
    size: EncoderSize

    def embeddings(self, ids: Tensor, types: Tensor | None) -> Tensor:
        words, positions, kinds = (
            self.weights[f"embeddings.{part}_embeddings.weight"]
            for part in ("word", "position", "token_type")
        )
        length = ids.shape[1]
        kind = Tensor(kinds[0]) if types is None else types.embedding(kinds)
        x = ids.embedding(words) + kind + Tensor(positions).narrow(0, 0, length)
        return self.norm(x, "embeddings.LayerNorm")

    def layer(self, x: Tensor, bias: Tensor, name: str) -> Tensor:
        mixed = self.linear(self.attention(x, bias, name), f"{name}.attention.output.dense")
        x = self.norm(mixed + x, f"{name}.attention.output.LayerNorm")
        wide = self.linear(x, f"{name}.intermediate.dense").gelu()
        return self.norm(self.linear(wide, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")

    def attention(self, x: Tensor, bias: Tensor, name: str) -> Tensor:
        heads, width = self.size.heads, self.size.width
        batch, length = bias.shape[0], bias.shape[-1]
        names = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        weight = joined([self.weights[f"{n}.weight"] for n in names])
        shift = joined([self.weights[f"{n}.bias"] for n in names])
        every = x.linear(weight, shift).reshape(batch, length, 3, heads, width // heads)
        query, key, value = every.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = query.scaled_dot_product_attention(key, value, bias)
        return mixed.permute(0, 2, 1, 3).reshape(batch * length, width)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x.linear(self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale, shift = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
        return x.layer_norm(scale, shift, eps=EPSILON)
