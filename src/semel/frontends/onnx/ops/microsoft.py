"""Operators of `com.microsoft` that fuse others: what the optimiser of ONNX Runtime writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.ir.types import FLOAT32, INT32, INT64
from semel.tensor.rope import rotated
from semel.tensor.tensor import Tensor

DOMAIN = "com.microsoft"
_EPSILON = 1e-12  # where others have 1e-5


def activation(
    name: str, alpha: float | None = None, beta: float | None = None
) -> Callable[[Tensor], Tensor]:
    """An activation by the name that attributes have for it."""
    slope = 0.01 if alpha is None else alpha
    found: dict[str, Callable[[Tensor], Tensor]] = {
        "": lambda x: x,
        "identity": lambda x: x,
        "relu": lambda x: x.relu(),
        "gelu": lambda x: x.gelu(),
        "silu": lambda x: x.silu(),
        "tanh": lambda x: x.tanh(),
        "sigmoid": lambda x: x.sigmoid(),
        "leakyrelu": lambda x: x.leaky_relu(slope),
        "clip": lambda x: x.clip(alpha, beta),
        "hardsigmoid": lambda x: (
            x * (0.2 if alpha is None else alpha) + (0.5 if beta is None else beta)
        ).clip(0.0, 1.0),
    }
    return found[name.lower()]


def _activated(node: Node, x: Tensor) -> Tensor:
    name = node.attr("activation", "")
    params = list(node.attr("activation_params", []))
    alpha = params[0] if params else node.attr("activation_alpha")
    beta = params[1] if len(params) > 1 else node.attr("activation_beta")
    try:
        return activation(name, alpha, beta)(x)
    except KeyError:
        raise node.refuse(f"activation '{name}' is not supported.") from None


# ---------------------------------------------------------------- activations


def _fast_gelu(node: Node) -> Tensor:
    x, bias = node.tensor(), node.optional(1)
    return (x if bias is None else x + bias).gelu("tanh")


def _quick_gelu(node: Node) -> Tensor:
    x = node.tensor()
    return x * (x * node.number("alpha", 1.702)).sigmoid()


# ---------------------------------------------------------------- norms


def _skip_norm(node: Node) -> list[Tensor | None]:
    """layer_norm(x + skip + bias); the sum is an output too."""
    x, skip, gamma = (node.tensor(i) for i in range(3))
    is_simple = node.op == "SkipSimplifiedLayerNormalization"
    beta, bias = (None, node.optional(3)) if is_simple else (node.optional(3), node.optional(4))
    total = x + skip if bias is None else x + skip + bias
    eps = node.number("epsilon", _EPSILON)
    y = total.rms_norm(gamma, eps=eps) if is_simple else total.layer_norm(gamma, beta, eps=eps)
    return [y, *_statistics(node, total, eps, is_simple), total]


def _statistics(node: Node, x: Tensor, eps: float, is_simple: bool) -> list[Tensor | None]:
    """The mean and the inverse deviation of rows, where somebody asks."""
    if not node.wants(1) and not node.wants(2):
        return [None, None]
    wide = x.cast(FLOAT32)
    if is_simple:
        return [None, ((wide * wide).mean(-1, keepdims=True) + eps).rsqrt()]
    return [wide.mean(-1, keepdims=True), (wide.var(-1, keepdims=True) + eps).rsqrt()]


def simplified_layer_norm(node: Node) -> list[Tensor]:
    """RMS norm, in the standard's own domain though no standard has it."""
    x = node.tensor()
    eps = node.number("epsilon", 1e-5)
    axes = tuple(range(node.axis(x.ndim, -1), x.ndim))
    made = [x.rms_norm(node.tensor(1), axis=axes, eps=eps)]
    if node.wants(1):
        wide = x.cast(FLOAT32)
        made.append(((wide * wide).mean(axes, keepdims=True) + eps).rsqrt())
    return made


def _embed_layer_norm(node: Node) -> list[Tensor | None]:
    ids, segments = node.tensor(0), node.optional(1)
    words, places, kinds = node.tensor(2), node.tensor(3), node.optional(4)
    where = node.optional(8)
    if where is None:
        where = Tensor.arange(ids.shape[1])
    total = words.take(ids, 0) + places.take(where, 0)
    if segments is not None and kinds is not None:
        total = total + kinds.take(segments, 0)
    y = total.layer_norm(node.tensor(5), node.tensor(6), eps=node.number("epsilon", _EPSILON))
    mask = node.optional(7)
    counts = None
    if node.wants(1):
        zeros = Tensor.zeros(ids.shape[0], dtype=INT32)
        counts = zeros if mask is None else mask.cast(INT32).sum(1).cast(INT32)
    return [y, counts, total if node.wants(2) else None]


def _rotary(node: Node) -> Tensor:
    """Pairs of elements turned by angles of their position; (B, S, H) or (B, heads, S, D)."""
    x, places = node.tensor(0), node.tensor(1).cast(INT64)
    cos, sin = node.tensor(2), node.tensor(3)
    if x.ndim == 3:
        heads = node.attr("num_heads", 0)
        depth: Any = cos.shape[-1] * 2 if not heads else x.shape[2] // heads
        heads = heads or x.shape[2] // depth
        by_head = x.reshape(x.shape[0], x.shape[1], heads, depth)
    else:
        by_head = x.permute(0, 2, 1, 3)
    if places.ndim == 1:  # where the first one stands
        places = (places + Tensor.arange(by_head.shape[1])).unsqueeze(0)
    width, is_interleaved = cos.shape[-1] * 2, node.flag("interleaved")
    cos, sin = (table.take(places, 0).unsqueeze(2) for table in (cos, sin))
    turned = rotated(by_head, cos, sin, width, is_interleaved)
    return turned.reshape(x.shape) if x.ndim == 3 else turned.permute(0, 2, 1, 3)


# ---------------------------------------------------------------- products


def _fused_matmul(node: Node) -> Tensor:
    a, b = node.tensor(0), node.tensor(1)
    if node.flag("transBatchA"):
        a = a.moveaxis(0, -2)
    if node.flag("transBatchB"):
        b = b.moveaxis(0, -2)
    a = a.mT if node.flag("transA") and a.ndim > 1 else a
    b = b.mT if node.flag("transB") and b.ndim > 1 else b
    alpha, product = node.number("alpha", 1.0), a @ b
    return _activated(node, product if alpha == 1 else product * alpha)


def _fused_gemm(node: Node) -> Tensor:
    return _activated(node, node.walk.convert("Gemm", node))


def _fused_conv(node: Node) -> Tensor:
    made = node.walk.convert("Conv", node)
    return _activated(node, made + node.tensor(3) if node.has(3) else made)


def _bias_split_gelu(node: Node) -> Tensor:
    x = node.tensor(0) + node.tensor(1)
    half = x.shape[-1] // 2
    return x.narrow(-1, 0, half) * x.narrow(-1, half, half).gelu()


CONVERTERS: dict[str, Converter] = {
    "BiasAdd": lambda node: node.tensor(0) + node.tensor(1) + node.tensor(2),
    "BiasGelu": lambda node: (node.tensor(0) + node.tensor(1)).gelu(),
    "BiasSplitGelu": _bias_split_gelu,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": lambda node: node.tensor().gelu(),
    "QuickGelu": _quick_gelu,
    "RotaryEmbedding": _rotary,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "TransposeMatMul": _fused_matmul,
}
#: What ONNX Runtime has in the standard's own domain.
STANDARD_CONVERTERS: dict[str, Converter] = {
    "SimplifiedLayerNormalization": simplified_layer_norm,
}
