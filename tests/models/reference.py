"""The models in plain NumPy, float64, one line after another: the truth for small sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tests.ops.windows_reference import np_conv, np_pool

from semel.models.decoder import DecoderSize
from semel.models.minilm import EncoderSize
from semel.models.mixture import MixtureSize
from semel.models.resnet import ResNetSize

erf = np.vectorize(math.erf)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layer_norm(x: np.ndarray, w: dict[str, Any], name: str) -> np.ndarray:
    d = x - x.mean(-1, keepdims=True)
    scaled = d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-12)
    return np.asarray(scaled * w[f"{name}.weight"] + w[f"{name}.bias"])


def resnet(x: np.ndarray, w: dict[str, Any], size: ResNetSize) -> np.ndarray:
    def conv(x: np.ndarray, name: str, norm: str, stride: int = 1, padding: int = 0) -> np.ndarray:
        y = np_conv(x, w[f"{name}.weight"], None, stride, padding)
        mean, var, scale, shift = (
            w[f"{norm}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return np.asarray((y - mean) / np.sqrt(var + 1e-5) * scale + shift)

    def relu(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)

    x = np_pool("max", relu(conv(x, "conv1", "bn1", 2, 3)), 3, 2, 1)
    for stage, blocks in enumerate(size.stages):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y = relu(conv(x, f"{name}.conv1", f"{name}.bn1"))
            y = relu(conv(y, f"{name}.conv2", f"{name}.bn2", stride, 1))
            y = conv(y, f"{name}.conv3", f"{name}.bn3")
            if not block:
                x = conv(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
            x = relu(x + y)
    return np.asarray(x.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"])


def minilm(
    ids: np.ndarray, mask: np.ndarray, types: np.ndarray, w: dict[str, Any], size: EncoderSize
) -> np.ndarray:
    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(*ids.shape, size.heads, -1).transpose(0, 2, 1, 3)

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = layer_norm(x, w, "embeddings.LayerNorm")
    for layer in range(size.layers):
        name = f"encoder.layer.{layer}"
        q, k, v = (
            heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(size.width / size.heads)
        scores = np.where(mask[:, None, None, :] > 0, scores, -np.inf)
        mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + linear(mixed, f"{name}.attention.output.dense")
        x = layer_norm(x, w, f"{name}.attention.output.LayerNorm")
        y = linear(x, f"{name}.intermediate.dense")
        y = linear(y * 0.5 * (1 + erf(y / math.sqrt(2))), f"{name}.output.dense")
        x = layer_norm(x + y, w, f"{name}.output.LayerNorm")
    return x


def decoder(tokens: list[int], w: dict[str, Any], size: DecoderSize) -> np.ndarray:
    """The logits behind the last of `tokens`, all positions at once, with a causal mask."""
    length = len(tokens)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return np.asarray(x * scale * w[f"{name}.weight"])

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(length, size.heads, size.depth).transpose(1, 0, 2)

    def rotate(x: np.ndarray) -> np.ndarray:
        """Pairs (i, i + depth/2) turn by position * base**(-2i/depth), as complex numbers."""
        half = size.depth // 2
        rate = size.base ** (-2 * np.arange(half) / size.depth)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(
            1j * np.arange(length)[:, None] * rate
        )
        return np.concatenate([turned.real, turned.imag], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(size.layers):
        name = f"model.layers.{layer}"
        y = norm(x, f"{name}.input_layernorm")
        q, k, v = (heads(y @ w[f"{name}.self_attn.{part}_proj.weight"].T) for part in "qkv")
        scores = rotate(q) @ rotate(k).swapaxes(-1, -2) / math.sqrt(size.depth)
        scores = np.where(np.tri(length), scores, -np.inf)
        mixed = (softmax(scores) @ v).transpose(1, 0, 2).reshape(length, -1)
        x = x + mixed @ w[f"{name}.self_attn.o_proj.weight"].T
        y = norm(x, f"{name}.post_attention_layernorm")
        gate, up = (y @ w[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{name}.mlp.down_proj.weight"].T
    return np.asarray(norm(x[-1:], "model.norm") @ w["lm_head.weight"].T)[0]


def decoder_step(
    token: int, keys: np.ndarray, values: np.ndarray, w: dict[str, Any], size: DecoderSize
) -> np.ndarray:
    """The logits behind one token, with the cache of those before it."""
    past, half = keys.shape[2], size.depth // 2
    angle = past * size.base ** (-2 * np.arange(half) / size.depth)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x / np.sqrt((x**2).mean() + 1e-5) * w[f"{name}.weight"])

    def rotate(x: np.ndarray) -> np.ndarray:
        turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
        return np.concatenate([turned.real, turned.imag], -1)

    x = w["model.embed_tokens.weight"][token]
    for layer in range(size.layers):
        name = f"model.layers.{layer}"
        y = norm(x, f"{name}.input_layernorm")
        q, k, v = (
            (w[f"{name}.self_attn.{part}_proj.weight"] @ y).reshape(size.heads, size.depth)
            for part in "qkv"
        )
        all_keys = np.concatenate([keys[layer], rotate(k)[:, None]], 1)
        all_values = np.concatenate([values[layer], v[:, None]], 1)
        scores = (all_keys @ rotate(q)[:, :, None])[..., 0] / math.sqrt(size.depth)
        mixed = (softmax(scores)[:, None] @ all_values).reshape(-1)
        x = x + w[f"{name}.self_attn.o_proj.weight"] @ mixed
        y = norm(x, f"{name}.post_attention_layernorm")
        gate, up = (w[f"{name}.mlp.{part}_proj.weight"] @ y for part in ("gate", "up"))
        x = x + w[f"{name}.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    return np.asarray(w["lm_head.weight"] @ norm(x, "model.norm"))


def gpt2_step(
    token: int, keys: np.ndarray, values: np.ndarray, w: dict[str, Any], heads: int
) -> np.ndarray:
    """The logits behind one token, with the caches [layers, heads, past, depth] of those before."""
    return gpt2_step_with_caches(token, keys, values, w, heads)[0]


def gpt2_step_with_caches(
    token: int, keys: np.ndarray, values: np.ndarray, w: dict[str, Any], heads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The logits, and the token's own keys and values [layers, heads, depth]."""
    layers, _, past, depth = keys.shape
    new: list[np.ndarray] = []

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ w[f"{name}.weight"] + w[f"{name}.bias"])

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        d = x - x.mean()
        scaled = d / np.sqrt((d**2).mean() + 1e-5)
        return np.asarray(scaled * w[f"{name}.weight"] + w[f"{name}.bias"])

    x = w["wte.weight"][token] + w["wpe.weight"][past]
    for layer in range(layers):
        h = f"h.{layer}"
        new.append(linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").reshape(3, heads, depth))
        q, k, v = new[-1]
        all_keys = np.concatenate([keys[layer], k[:, None]], 1)
        all_values = np.concatenate([values[layer], v[:, None]], 1)
        weights = softmax((all_keys @ q[:, :, None])[..., 0] / math.sqrt(depth))
        x = x + linear((weights[:, None] @ all_values).reshape(-1), f"{h}.attn.c_proj")
        y = linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, f"{h}.mlp.c_proj")
    _, new_keys, new_values = np.stack(new, 1)
    return np.asarray(w["wte.weight"] @ norm(x, "ln_f")), new_keys, new_values


def mixture(
    tokens: list[int], w: dict[str, Any], size: MixtureSize
) -> tuple[np.ndarray, np.ndarray]:
    """The logits behind the last of `tokens`, and the experts of all [layers, tokens, chosen]."""
    length = len(tokens)
    routed = []

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return np.asarray(x * scale * w[f"{name}.weight"])

    def experts(row: np.ndarray, chosen: np.ndarray, weights: np.ndarray, name: str) -> np.ndarray:
        gate, up, down = (w[f"{name}.experts.{part}_proj"] for part in ("gate", "up", "down"))
        gates = [row @ gate[e] for e in chosen]
        parts = [
            (g / (1 + np.exp(-g)) * (row @ up[e])) @ down[e]
            for e, g in zip(chosen, gates, strict=True)
        ]
        return np.asarray(weights @ np.stack(parts))

    x = w["model.embed_tokens.weight"][tokens] + w["model.embed_positions.weight"][:length]
    for name in (f"model.layers.{layer}" for layer in range(size.layers)):
        y = norm(x, f"{name}.input_layernorm") @ w[f"{name}.self_attn.qkv_proj.weight"]
        q, k, v = y.reshape(length, 3, size.heads, -1).transpose(1, 2, 0, 3)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(size.depth)
        mixed = softmax(np.where(np.tri(length), scores, -np.inf)) @ v
        mixed = mixed.transpose(1, 0, 2).reshape(length, -1)
        x = x + mixed @ w[f"{name}.self_attn.o_proj.weight"]
        y = norm(x, f"{name}.post_attention_layernorm")
        logits = y @ w[f"{name}.mlp.router.weight"] + w[f"{name}.mlp.router.bias"]
        routed.append(np.argsort(-logits, -1, kind="stable")[:, : size.chosen])
        weights = softmax(np.take_along_axis(logits, routed[-1], -1))
        x = x + np.stack(
            [experts(*each, f"{name}.mlp") for each in zip(y, routed[-1], weights, strict=True)]
        )
    return np.asarray(w["lm_head.weight"] @ norm(x[-1], "model.norm")), np.stack(routed)
