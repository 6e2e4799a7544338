"""One step of a decoder in the manner of Llama: a token in, logits and cache entries out.

    token int64[1], keys, values float32[layers, heads, past, depth], weights by Llama's names
    -->  logits [vocabulary], new keys and values [layers, heads, depth]

RMS norm, rotary positions, SwiGLU, no biases. `past` may be a Variable: it is the token's
position, and one plan serves every length. The caller keeps the cache and writes the new
entries behind the old ones. Attention reads the cache and the new token's key and value as
one sequence, each where it lies: the cache is never copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semel.ir.expr import Dim
from semel.models.weights import Array, Weights, draw
from semel.tensor.tensor import Tensor

EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class DecoderSize:
    """Layers and widths; `base` is that of the rotary positions."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    hidden: int = 2048
    vocabulary: int = 32000
    base: float = 10000.0

    @property
    def depth(self) -> int:
        """The width of one head."""
        return self.width // self.heads


DECODER = DecoderSize()


def decoder_weights(size: DecoderSize = DECODER, seed: int = 0) -> dict[str, Array]:
    """Arrays from a seed, under the names that checkpoints use."""
    width, hidden = size.width, size.hidden
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size.vocabulary, width)}
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (width,)
        for part in "qkvo":
            shapes[f"{prefix}.self_attn.{part}_proj.weight"] = (width, width)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (width,)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (hidden, width)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (hidden, width)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (width, hidden)
    shapes["model.norm.weight"] = (width,)
    shapes["lm_head.weight"] = (size.vocabulary, width)
    return draw(shapes, seed)


def build_decoder_step(
    token: Tensor, keys: Tensor, values: Tensor, weights: Weights, size: DecoderSize = DECODER
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, and the key and value of the token for every layer."""
    step = _Step(weights, size, keys.shape[2])
    x = token.embedding(weights["model.embed_tokens.weight"])
    new_keys: list[Tensor] = []
    new_values: list[Tensor] = []
    for layer in range(size.layers):
        name = f"model.layers.{layer}"
        normed = step.norm(x, f"{name}.input_layernorm")
        query, key, value = step.projections(normed, f"{name}.self_attn")
        mixed = step.attention(query, key, value, keys[layer], values[layer])
        x = x + step.linear(mixed, f"{name}.self_attn.o_proj")
        normed = step.norm(x, f"{name}.post_attention_layernorm")
        x = x + step.feed_forward(normed, f"{name}.mlp")
        new_keys.append(key)
        new_values.append(value)
    logits = step.linear(step.norm(x, "model.norm"), "lm_head")
    return logits.reshape(size.vocabulary), Tensor.stack(new_keys), Tensor.stack(new_values)


@dataclass(frozen=True, slots=True)
class _Step:
    weights: Weights
    size: DecoderSize
    position: Dim

    def linear(self, x: Tensor, *names: str) -> Tensor:
        """x times the matrices of these names, side by side."""
        matrices = [self.weights[f"{name}.weight"] for name in names]
        return x.linear(matrices[0] if len(names) == 1 else np.concatenate(matrices))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x.rms_norm(self.weights[f"{name}.weight"], eps=EPSILON)

    def projections(self, x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value [heads, depth], the first two turned to the position."""
        joined = self.linear(x, *(f"{name}.{part}_proj" for part in "qkv"))
        query, key, value = joined.reshape(3, self.size.heads, self.size.depth).unbind(0)
        return self.rotated(query), self.rotated(key), value

    def rotated(self, x: Tensor) -> Tensor:
        half = self.size.depth // 2
        rates = self.size.base ** (-np.arange(half, dtype=np.float64) / half)
        angles = Tensor(np.concatenate([rates, rates]).astype(np.float32)) * self.position
        first, second = x.split(2, -1)
        turned = Tensor.concat([-second, first], -1)
        return x * angles.cos() + turned * angles.sin()

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Over the cached keys [heads, past, depth] and the token's own; [1, width]."""
        every = [
            Tensor.concat([old, new.unsqueeze(1)], 1) for old, new in ((keys, key), (values, value))
        ]
        mixed = query.unsqueeze(1).scaled_dot_product_attention(*every)
        return mixed.reshape(1, self.size.width)

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        gate, up = self.linear(x, f"{name}.gate_proj", f"{name}.up_proj").chunk(2, -1)
        return self.linear(gate.silu() * up, f"{name}.down_proj")
