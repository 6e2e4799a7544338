"""GPT-2 with its caches in the plan: python examples/decoder.py [--full] (its 124M weights)."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from semel import Graph, Session, Tensor

SMALL = {"layers": 2, "wide": 64, "heads": 4, "vocabulary": 500, "room": 128}
GPT2 = {"layers": 12, "wide": 768, "heads": 12, "vocabulary": 50257, "room": 1024}
SCALES = ("ln_1.weight", "ln_2.weight", "ln_f.weight")
Weights = Callable[[str, Any], np.ndarray]


def gpt2(weight: Weights, layers: int, wide: int, heads: int, vocabulary: int, room: int) -> Graph:
    """One graph for prompts (t tokens) and steps (one): what was seen before is its state."""
    g = Graph("gpt2")
    ids, position = g.input("ids", ("t",), "int64"), g.cursor("cursor", room).variable
    t = ids.shape[0]

    def param(name: str, *shape: Any) -> Tensor:
        return g.param(name, weight(name, shape))

    def linear(x: Tensor, name: str, n: int) -> Tensor:
        return x @ param(f"{name}.weight", x.shape[-1], n) + param(f"{name}.bias", n)

    def norm(x: Tensor, name: str) -> Tensor:
        return x.layer_norm(param(f"{name}.weight", wide), param(f"{name}.bias", wide))

    def seen(name: str, new: Tensor) -> Tensor:  # all valid rows; only the new ones are written
        return g.state(name, (heads, room, wide // heads)).append(new, axis=1)

    table = param("wte.weight", vocabulary, wide)
    x = ids.embedding(table) + param("wpe.weight", room, wide)[position : position + t]
    for h in (f"h.{layer}" for layer in range(layers)):
        parts = linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn", 3 * wide)
        q, k, v = parts.reshape(t, 3, heads, -1).permute(1, 2, 0, 3).unbind(0)
        keys, values = seen(f"{h}.keys", k), seen(f"{h}.values", v)
        mixed = q.scaled_dot_product_attention(keys, values, is_causal=True)
        x = x + linear(mixed.permute(1, 0, 2).reshape(t, wide), f"{h}.attn.c_proj", wide)
        inner = linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc", 4 * wide).gelu("tanh")
        x = x + linear(inner, f"{h}.mlp.c_proj", wide)
    logits = norm(x[t - 1 : t], "ln_f") @ table.T
    g.output("next", logits.argmax())
    g.output("logits", logits.reshape(vocabulary))
    return g


def drawn(seed: int = 0) -> Weights:
    """Weights from a seed: small numbers, and scales near 1."""
    rng = np.random.default_rng(seed)
    return lambda name, shape: np.asarray(
        rng.standard_normal(shape, np.float32) * np.float32(0.05) + name.endswith(SCALES)
    )


if __name__ == "__main__":
    size = GPT2 if "--full" in sys.argv else SMALL
    decoder = Session("cpu").compile(gpt2(drawn(), **size), dims={"t": (1, 64)})
    ids = np.arange(12)  # the prompt, then one token at a time
    for _ in range(20):
        (token,) = decoder.run(ids=ids, fetch=["next"])  # fetch=["logits"] for these
        ids = token.reshape(1)
        print(int(token), end=" ")
    print(decoder.plan.states.cursors, decoder.plan.memory, sep="\n")
