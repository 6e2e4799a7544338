"""A decoder in the manner of GPT-2 that keeps its caches and draws its tokens in the plan.

    weights by GPT-2's names  --build_gpt2-->  Graph: ids int64[t] -> next, logits

One plan reads a prompt (t tokens) and takes steps (one): keys and values of what was seen are
states, to which each run appends. Which token comes next is drawn with a random key that is a
state too, so that the same seed gives the same text.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.graph.builder import Graph
from semel.models.weights import Array, Weights, draw
from semel.tensor.random import rand
from semel.tensor.tensor import Tensor

#: Logits are divided by it before one is drawn: the larger, the more surprising.
TEMPERATURE = 0.8
_SMALLEST = 1e-9


@dataclass(frozen=True, slots=True)
class Gpt2Size:
    """Layers and widths; `room` for so many tokens."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    vocabulary: int = 2048
    room: int = 512

    @property
    def depth(self) -> int:
        """The width of one head."""
        return self.width // self.heads


def gpt2_weights(size: Gpt2Size, seed: int = 0) -> dict[str, Array]:
    """Arrays from a seed, under the names that checkpoints use: matrices have a row per input."""
    wide = size.width
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (size.vocabulary, wide),
        "wpe.weight": (size.room, wide),
        **_norm("ln_f", wide),
    }
    for h in (f"h.{layer}" for layer in range(size.layers)):
        shapes |= _norm(f"{h}.ln_1", wide) | _norm(f"{h}.ln_2", wide)
        shapes |= _linear(f"{h}.attn.c_attn", wide, 3 * wide)
        shapes |= _linear(f"{h}.attn.c_proj", wide, wide)
        shapes |= _linear(f"{h}.mlp.c_fc", wide, 4 * wide)
        shapes |= _linear(f"{h}.mlp.c_proj", 4 * wide, wide)
    return draw(shapes, seed)


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def build_gpt2(weights: Weights, size: Gpt2Size, seed: int = 0) -> Graph:
    """The graph; `seed` is that of the tokens which it draws."""
    g = Graph("gpt2")
    step = _Layers(g, weights, size)
    ids, position = g.input("ids", ("t",), "int64"), g.cursor("cursor", size.room).variable
    t = ids.shape[0]
    table = step.param("wte.weight")
    x = ids.embedding(table) + step.param("wpe.weight")[position : position + t]
    for layer in range(size.layers):
        x = x + step.attention(step.norm(x, f"h.{layer}.ln_1"), f"h.{layer}")
        inner = step.linear(step.norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc").gelu("tanh")
        x = x + step.linear(inner, f"h.{layer}.mlp.c_proj")
    logits = (step.norm(x[t - 1 : t], "ln_f") @ table.T).reshape(size.vocabulary)
    # The largest of logits and Gumbel noise is a token drawn by their softmax.
    noise = -(-(rand(size.vocabulary, key=g.random_key("key", seed)) + _SMALLEST).log()).log()
    g.output("next", (logits / TEMPERATURE + noise).argmax())
    g.output("logits", logits)
    return g


@dataclass(frozen=True, slots=True)
class _Layers:
    graph: Graph
    weights: Weights
    size: Gpt2Size

    def param(self, name: str) -> Tensor:
        return self.graph.param(name, self.weights[name])

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.param(f"{name}.weight") + self.param(f"{name}.bias")

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x.layer_norm(self.param(f"{name}.weight"), self.param(f"{name}.bias"))

    def attention(self, x: Tensor, name: str) -> Tensor:
        """Over everything that was seen; [t, width]."""
        size = self.size
        joined = self.linear(x, f"{name}.attn.c_attn")
        parts = joined.reshape(x.shape[0], 3, size.heads, size.depth)
        query, key, value = parts.permute(1, 2, 0, 3).unbind(0)
        seen = [
            self.graph.state(f"{name}.{part}", (size.heads, size.room, size.depth)).append(new, 1)
            for part, new in (("keys", key), ("values", value))
        ]
        mixed = query.scaled_dot_product_attention(*seen, is_causal=True)
        mixed = mixed.permute(1, 0, 2).reshape(x.shape[0], size.width)
        return self.linear(mixed, f"{name}.attn.c_proj")
