"""A decoder with layers of experts: a token in, the next one out, its caches as state.

    weights by name  --build_mixture-->  Graph: ids int64[t], noise float32[vocabulary]
                                         -->  next int64, logits float32[vocabulary]

RMS norm, attention over a cache, and in each layer a router that sends every token to a few of many
gated experts. `noise` is added to the logits before the largest is chosen: zeros for the likeliest
token, Gumbel noise (`gumbel`) to draw one.

The weights come from a seed and look trained where that matters for experts. Tokens belong to
subjects, and a text stays with its subject for some dozens of tokens; each expert is good at some
subjects, and some experts are popular with all of them. So routing is skewed, and drifts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semel.graph.builder import Graph
from semel.models.weights import Array, Weights
from semel.tensor.tensor import Tensor

EPSILON = 1e-5
#: How much larger the logit of the likeliest token is than that of one from another subject.
_SHARPNESS = 13.0
#: How much of a router's decision is the subject, the token, and the expert's popularity.
_SUBJECT, _TOKEN, _POPULAR = 2.0, 0.5, 0.8


@dataclass(frozen=True, slots=True)
class MixtureSize:
    """Layers and widths; `chosen` of `experts` for each token; `room` for so many tokens."""

    layers: int = 4
    width: int = 192
    heads: int = 4
    experts: int = 32
    chosen: int = 2
    hidden: int = 384
    subjects: int = 16
    vocabulary: int = 512
    room: int = 512

    @property
    def depth(self) -> int:
        """The width of one head."""
        return self.width // self.heads

    @property
    def expert_shapes(self) -> dict[str, tuple[int, int]]:
        """The matrices of one expert by name: rows come in, columns go out."""
        wide, hidden = self.width, self.hidden
        return {"gate_proj": (wide, hidden), "up_proj": (wide, hidden), "down_proj": (hidden, wide)}


MIXTURE = MixtureSize()
#: For tests and demonstrations: the same shape of a model, prepared in no time.
SMALL_MIXTURE = MixtureSize(
    layers=2, width=32, heads=2, experts=8, hidden=48, subjects=4, vocabulary=64, room=96
)


def mixture_weights(size: MixtureSize = MIXTURE, seed: int = 0) -> dict[str, Array]:
    """Arrays from a seed by name; `vocabulary` is a multiple of `subjects`."""
    rng = np.random.default_rng(seed)
    wide = size.width

    def normal(*shape: int, scale: float) -> Array:
        return rng.standard_normal(shape, np.float32) * np.float32(scale)

    subjects = normal(size.subjects, wide, scale=1)
    of_token = np.arange(size.vocabulary) % size.subjects
    table = (subjects[of_token] + normal(size.vocabulary, wide, scale=1)) / np.float32(2**0.5)
    weights = {
        "model.embed_tokens.weight": table,
        "model.embed_positions.weight": normal(size.room, wide, scale=0.1),
        "model.norm.weight": 1 + normal(wide, scale=0.05),
        # What follows a token is the next one of its subject, more likely than any other.
        "lm_head.weight": np.roll(table, size.subjects, 0) * np.float32(_SHARPNESS / wide),
    }
    for layer in range(size.layers):
        name = f"model.layers.{layer}"
        weights[f"{name}.input_layernorm.weight"] = 1 + normal(wide, scale=0.05)
        weights[f"{name}.self_attn.qkv_proj.weight"] = normal(wide, 3 * wide, scale=wide**-0.5)
        weights[f"{name}.self_attn.o_proj.weight"] = normal(wide, wide, scale=0.3 * wide**-0.5)
        weights[f"{name}.post_attention_layernorm.weight"] = 1 + normal(wide, scale=0.05)
        affinity = normal(size.subjects, size.experts, scale=_SUBJECT * 2**0.5 / wide)
        own = normal(wide, size.experts, scale=_TOKEN * wide**-0.5)
        weights[f"{name}.mlp.router.weight"] = subjects.T @ affinity + own
        ranks = 1 + rng.permutation(size.experts)
        weights[f"{name}.mlp.router.bias"] = (-_POPULAR * np.log(ranks)).astype(np.float32)
        for part, (rows, columns) in size.expert_shapes.items():
            stack = normal(size.experts, rows, columns, scale=rows**-0.5)
            weights[f"{name}.mlp.experts.{part}"] = stack
    return weights


def gumbel(steps: int, size: MixtureSize = MIXTURE, seed: int = 0) -> Array:
    """Noise for so many steps [steps, vocabulary]: with it, the largest logit is a draw."""
    rng = np.random.default_rng(seed)
    return rng.gumbel(size=(steps, size.vocabulary)).astype(np.float32)


def build_mixture(weights: Weights, size: MixtureSize = MIXTURE) -> Graph:
    """One graph for prompts (t tokens) and steps (one): what was seen before is its state."""
    g = Graph("mixture")
    ids = g.input("ids", ("t",), "int64")
    noise = g.input("noise", (size.vocabulary,))
    position = g.cursor("cursor", size.room).variable
    t = ids.shape[0]

    def param(name: str) -> Tensor:
        return g.param(name, weights[name])

    def norm(x: Tensor, name: str) -> Tensor:
        return x.rms_norm(param(f"{name}.weight"), eps=EPSILON)

    def seen(name: str, new: Tensor) -> Tensor:
        return g.state(name, (size.heads, size.room, size.depth)).append(new, axis=1)

    def attention(x: Tensor, name: str) -> Tensor:
        parts = x @ param(f"{name}.qkv_proj.weight")
        q, k, v = parts.reshape(t, 3, size.heads, size.depth).permute(1, 2, 0, 3).unbind(0)
        keys, values = seen(f"{name}.keys", k), seen(f"{name}.values", v)
        mixed = q.scaled_dot_product_attention(keys, values, is_causal=True)
        return mixed.permute(1, 0, 2).reshape(t, size.width) @ param(f"{name}.o_proj.weight")

    def experts(x: Tensor, name: str) -> Tensor:
        logits = x @ param(f"{name}.router.weight") + param(f"{name}.router.bias")
        gate, up, down = (param(f"{name}.experts.{part}") for part in size.expert_shapes)
        return g.moe(x, up, down, gate=gate, logits=logits, k=size.chosen)

    tokens = ids.embedding(param("model.embed_tokens.weight"))
    x = tokens + param("model.embed_positions.weight")[position : position + t]
    for name in (f"model.layers.{layer}" for layer in range(size.layers)):
        x = x + attention(norm(x, f"{name}.input_layernorm"), f"{name}.self_attn")
        x = x + experts(norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp")
    logits = norm(x[t - 1 : t], "model.norm").linear(param("lm_head.weight"))
    logits = logits.reshape(size.vocabulary)
    g.output("next", (logits + noise).argmax())
    g.output("logits", logits)
    return g
