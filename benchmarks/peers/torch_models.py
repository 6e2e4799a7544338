"""The matrix rows and models in PyTorch: functions over tensors, weights by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (everybody's name for it)

from benchmarks.checkpoints import bench_minilm_weights
from benchmarks.decode import DECODES, ROOMY, decode_weights
from benchmarks.models import (
    CONVS,
    GEMMS,
    GEMV,
    LSTMS,
    PAST,
    SENTENCES,
    conv_weight,
    gemm_name,
    gemm_weights,
    lstm_weights,
)
from benchmarks.row import Inputs
from semel.models.decoder import DECODER, decoder_weights
from semel.models.minilm import MINILM
from semel.models.resnet import RESNET50, resnet_weights

Pair = tuple[Callable[[], Any], Callable[[], Any]]
_LAST = torch.channels_last


def _timed(run: Callable[[], Any]) -> Pair:
    return run, lambda: run().numpy()


def _gemm(size: tuple[int, int, int], gelu: bool) -> Callable[[Inputs], Pair]:
    def build(arrays: Inputs) -> Pair:
        x = torch.from_numpy(arrays["x"])
        matrix, bias = (torch.from_numpy(a) for a in gemm_weights(size))
        if not gelu:
            return _timed(lambda: x @ matrix)
        return _timed(lambda: F.gelu(torch.addmm(bias, x, matrix)))

    return build


def _conv(name: str) -> Callable[[Inputs], Pair]:
    _, _, _, kernel, groups = CONVS[name]

    order = torch.contiguous_format if name.endswith("first") else _LAST

    def build(arrays: Inputs) -> Pair:
        x, w = (
            torch.from_numpy(a).contiguous(memory_format=order)
            for a in (arrays["x"], conv_weight(name))
        )
        return _timed(lambda: F.conv2d(x, w, padding=kernel // 2, groups=groups))

    return build


def _lstm(name: str) -> Callable[[Inputs], Pair]:
    _, _, size, hidden = LSTMS[name]

    def build(arrays: Inputs) -> Pair:
        x = torch.from_numpy(arrays["x"])
        # ONNX orders the gates i, o, f, c; torch i, f, c, o.
        order = np.concatenate([np.arange(hidden) + k * hidden for k in (0, 2, 3, 1)])
        w, r, b = (a[0] for a in lstm_weights(name))
        cell = torch.nn.LSTM(size, hidden).requires_grad_(False)
        parts = (w[order], r[order], b[: 4 * hidden][order], b[4 * hidden :][order])
        for own, array in zip(cell.parameters(), parts, strict=True):
            own.copy_(torch.from_numpy(array))
        return _timed(lambda: cell(x)[0].unsqueeze(1))

    return build


def _tensors(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in weights.items()}


def _resnet(arrays: Inputs) -> Pair:
    w = _tensors(resnet_weights())
    image = torch.from_numpy(arrays["x"]).contiguous(memory_format=_LAST)
    folded = {}
    for name in [n.removesuffix(".running_var") for n in w if n.endswith("running_var")]:
        layer = name.replace("bn", "conv") if "downsample" not in name else name[:-1] + "0"
        scale = w[f"{name}.weight"] / torch.sqrt(w[f"{name}.running_var"] + 1e-5)
        kernel = (w[f"{layer}.weight"] * scale[:, None, None, None]).contiguous(memory_format=_LAST)
        folded[layer] = kernel, w[f"{name}.bias"] - w[f"{name}.running_mean"] * scale

    def conv(x: Any, name: str, stride: int = 1, padding: int = 0) -> Any:
        return F.conv2d(x, *folded[name], stride=stride, padding=padding)

    def run() -> Any:
        x = F.max_pool2d(conv(image, "conv1", 2, 3).relu_(), 3, 2, 1)
        for stage, blocks in enumerate(RESNET50.stages):
            for block in range(blocks):
                name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
                y = conv(x, f"{name}.conv1").relu_()
                y = conv(y, f"{name}.conv2", stride, 1).relu_()
                y = conv(y, f"{name}.conv3")
                x = y.add_(x if block else conv(x, f"{name}.downsample.0", stride)).relu_()
        return F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])

    return _timed(run)


def _minilm(arrays: Inputs) -> Pair:
    w = _tensors(bench_minilm_weights())
    ids, mask = (torch.from_numpy(arrays[name]) for name in ("ids", "mask"))
    (batch, length), width, heads = ids.shape, MINILM.width, MINILM.heads

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (width,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def run() -> Any:
        x = F.embedding(ids, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][:length]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        keep = (mask > 0)[:, None, None, :]
        for layer in range(MINILM.layers):
            name = f"encoder.layer.{layer}"
            q, k, v = (
                linear(x, f"{name}.attention.self.{part}")
                .view(batch, length, heads, width // heads)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v, keep)
            mixed = mixed.transpose(1, 2).reshape(batch, length, width)
            mixed = linear(mixed, f"{name}.attention.output.dense")
            x = norm(x + mixed, f"{name}.attention.output.LayerNorm")
            y = linear(F.gelu(linear(x, f"{name}.intermediate.dense")), f"{name}.output.dense")
            x = norm(x + y, f"{name}.output.LayerNorm")
        return x

    return _timed(run)


def _decoder(arrays: Inputs) -> Pair:
    w = _tensors(decoder_weights())
    token, keys, values = (torch.from_numpy(arrays[n]) for n in ("token", "keys", "values"))
    width, heads, depth = DECODER.width, DECODER.heads, DECODER.depth
    half = depth // 2
    angle = PAST * DECODER.base ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = (torch.cat([f(angle)] * 2).float() for f in (torch.cos, torch.sin))

    def turn(x: Any) -> Any:
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def norm(x: Any, name: str) -> Any:
        return F.rms_norm(x, (width,), w[f"{name}.weight"], 1e-5)

    def run() -> Any:
        x = F.embedding(token, w["model.embed_tokens.weight"])
        for layer in range(DECODER.layers):
            name = f"model.layers.{layer}"
            y = norm(x, f"{name}.input_layernorm")
            q, k, v = (
                F.linear(y, w[f"{name}.self_attn.{part}_proj.weight"]).view(heads, 1, depth)
                for part in "qkv"
            )
            all_keys = torch.cat([keys[layer], turn(k)], 1)
            all_values = torch.cat([values[layer], v], 1)
            mixed = F.scaled_dot_product_attention(turn(q)[None], all_keys[None], all_values[None])
            x = x + F.linear(mixed.reshape(1, width), w[f"{name}.self_attn.o_proj.weight"])
            y = norm(x, f"{name}.post_attention_layernorm")
            gate, up = (F.linear(y, w[f"{name}.mlp.{part}_proj.weight"]) for part in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, w[f"{name}.mlp.down_proj.weight"])
        return F.linear(norm(x, "model.norm"), w["lm_head.weight"])[0]

    return _timed(run)


def _decode(name: str) -> Callable[[Inputs], Pair]:
    """Static caches: a step writes its row, and attends to a slice that ends there."""
    step = DECODES[name]
    layers, wide, heads = (step.size[key] for key in ("layers", "wide", "heads"))

    def build(arrays: Inputs) -> Pair:
        # As torch's own layers have them: a row for each output.
        w = {
            key: torch.from_numpy(array.T.copy() if ".c_" in key else array)
            for key, array in decode_weights(name).items()
        }
        token, past = torch.from_numpy(arrays["token"]), step.past
        keys, values = (
            torch.zeros(layers, 1, heads, step.size["room"], step.depth) for _ in range(2)
        )
        for held, part in ((keys, "keys"), (values, "values")):
            held[:, 0, :, :past] = torch.from_numpy(arrays[part])

        def linear(x: Any, name: str) -> Any:
            return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

        def norm(x: Any, name: str) -> Any:
            return F.layer_norm(x, (wide,), w[f"{name}.weight"], w[f"{name}.bias"])

        def logits() -> Any:
            x = F.embedding(token, w["wte.weight"]) + w["wpe.weight"][past]
            for layer in range(layers):
                h = f"h.{layer}"
                joined = linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn")
                q, k, v = joined.view(3, 1, heads, 1, step.depth).unbind(0)
                for held, new in ((keys, k), (values, v)):
                    held[layer, :, :, past : past + 1] = new
                seen = (held[layer, :, :, : past + 1] for held in (keys, values))
                mixed = F.scaled_dot_product_attention(q, *seen)
                x = x + linear(mixed.reshape(1, wide), f"{h}.attn.c_proj")
                inner = F.gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc"), approximate="tanh")
                x = x + linear(inner, f"{h}.mlp.c_proj")
            return F.linear(norm(x, "ln_f"), w["wte.weight"])[0]

        return (lambda: logits().argmax().item()), (lambda: logits().numpy())

    return build


BUILD: dict[str, Callable[[Inputs], Pair]] = {
    **{gemm_name(size, g): _gemm(size, g) for size in (*GEMMS, GEMV) for g in (False, True)},
    **{name: _conv(name) for name in CONVS},
    **{name: _lstm(name) for name in LSTMS},
    **dict.fromkeys(SENTENCES, _minilm),
    "resnet50": _resnet,
    "decoder": _decoder,
    **{name: _decode(name) for name in DECODES if name not in ROOMY},
}
