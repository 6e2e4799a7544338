"""Attention and what stands around it in transformers.

Attention is the core's own, which makes no matrix of scores; only a node whose fourth output is
read, the scores themselves, gets them written out.
"""

from __future__ import annotations

import math
from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.ir.expr import Dim
from semel.ir.types import BOOL, FLOAT32
from semel.tensor.handle import dim_value
from semel.tensor.movement import of_shape
from semel.tensor.rope import rotated
from semel.tensor.tensor import Tensor
from semel.tensor.window import slid


def split_heads(x: Tensor, heads: Dim) -> Tensor:
    """[batch, length, heads * depth] as [batch, heads, length, depth]."""
    return x.unflatten(2, (heads, x.shape[2] // heads)).permute(0, 2, 1, 3)


def merge_heads(x: Tensor) -> Tensor:
    """[batch, heads, length, depth] as [batch, length, heads * depth]."""
    return x.permute(0, 2, 1, 3).flatten(2, 3)


def wide(x: Tensor) -> Tensor:
    """Half floats as float32."""
    return x.cast(FLOAT32) if x.dtype.is_half else x


def inverse_root(size: Dim) -> float | Tensor:
    """1 / sqrt(size)."""
    if isinstance(size, int):
        return 1 / math.sqrt(size) if size else 1.0
    return dim_value(size).cast(FLOAT32).rsqrt()


# ---------------------------------------------------------------- Attention


def _attention(node: Node) -> list[Tensor]:
    query, key, value = (node.tensor(i) for i in range(3))
    is_packed = query.ndim == 3
    if is_packed:
        heads = node.attr("kv_num_heads")
        query = split_heads(query, node.attr("q_num_heads"))
        key, value = split_heads(key, heads), split_heads(value, heads)
    past: Dim = 0
    if node.has(4):
        past = node.value(4).shape[2]
        key = Tensor.concat([node.tensor(4), key], 2)
        value = Tensor.concat([node.tensor(5), value], 2)
    mask = _mask(node, key.shape[2])
    scores: list[Tensor] = []
    if node.wants(3):
        found, scores = _written_out(node, query, key, value, mask, past)
    else:
        found = _fused(node, query, key, value, mask, past)
    return [merge_heads(found) if is_packed else found, key, value, *scores]


def _mask(node: Node, keys: Dim) -> Tensor | None:
    """The mask in at least two axes; what it does not reach of the keys is hidden."""
    mask = node.optional(3)
    if mask is None:
        return None
    length = mask.shape[-1]
    if length != keys:
        fill = False if mask.dtype == BOOL else -math.inf
        mask = mask.pad([(0, 0)] * (mask.ndim - 1) + [(0, keys - length)], fill)
    return mask.unsqueeze(0) if mask.ndim == 1 else mask


def _window(node: Node) -> tuple[int | None, int | None]:
    """How far a query sees to either side of its position."""
    left, right = node.attr("left_window_size", -1), node.attr("right_window_size", -1)
    limits = [None if size < 0 else size for size in (left, right)]
    return limits[0], 0 if node.flag("is_causal") else limits[1]


def _fused(
    node: Node, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, past: Dim
) -> Tensor:
    lengths = node.optional(6)
    return query.scaled_dot_product_attention(
        key,
        value,
        mask,
        scale=node.attr("scale") or None,
        window=_window(node),
        softcap=node.attr("softcap") or None,
        key_lengths=lengths,
        align=past if lengths is None else "end",
    )


def _written_out(
    node: Node, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, past: Dim
) -> tuple[Tensor, list[Tensor]]:
    """The result, and the scores as `qk_matmul_output_mode` wants them."""
    dtype, heads = query.dtype, query.shape[1]
    key, value = repeat_heads(wide(key), heads), repeat_heads(wide(value), heads)
    scale = node.attr("scale") or inverse_root(query.shape[-1])
    raw = (wide(query) @ key.mT) * scale
    cap = node.attr("softcap")
    capped = raw.softcap(cap) if cap else raw
    biased = capped
    for hidden in _hidden(node, query.shape[2], key.shape[2], past):
        biased = hidden.where(-math.inf, biased)
    if mask is not None:
        biased = mask.where(biased, -math.inf) if mask.dtype == BOOL else biased + wide(mask)
    weights = biased.softmax(-1)
    weights = weights.isnan().where(0.0, weights)  # a query that sees no key
    mode = node.attr("qk_matmul_output_mode", 0)
    if mode not in range(4):
        raise node.refuse(f"qk_matmul_output_mode must lie in [0, 3], got {mode}.")
    shown = (raw, capped, biased, weights)[mode]
    return (weights @ value).cast(dtype), [shown.cast(dtype)]


def repeat_heads(x: Tensor, heads: Dim) -> Tensor:
    """[batch, shared heads, length, depth], each head repeated for its queries."""
    shared = x.shape[1]
    return x if shared == heads else x.repeat_interleave(heads // shared, 1)


def _hidden(node: Node, queries: Dim, keys: Dim, past: Dim) -> list[Tensor]:
    """Masks [.., queries, keys] of what a query does not see by its position."""
    place = Tensor.arange(keys)
    at = Tensor.arange(queries).unsqueeze(1)
    found = []
    if node.has(6):
        lengths = node.tensor(6).reshape(-1, 1, 1, 1)
        found.append(place >= lengths)
        at = at + lengths - dim_value(queries)
    else:
        at = at + dim_value(past)
    left, right = _window(node)
    if left is not None:
        found.append(place < at - left)
    if right is not None:
        found.append(place > at + right)
    return found


def flex_attention(node: Node) -> Tensor:
    """Attention whose scores and weights sub-graphs change."""
    query, key, value = (node.tensor(i) for i in range(3))
    heads = query.shape[1]
    precision = node.dtype_attr("softmax_precision", wide(query).dtype)
    scale = node.attr("scale") or inverse_root(query.shape[-1])
    scores = (wide(query) @ repeat_heads(wide(key), heads).mT) * scale
    scores = _changed(node, "score_mod", scores.cast(precision))
    weights = _changed(node, "prob_mod", scores.softmax(-1))
    values = repeat_heads(wide(value), heads)
    return (weights.cast(values.dtype) @ values).cast(query.dtype)


def _changed(node: Node, name: str, x: Tensor) -> Tensor:
    if node.attr(name) is None:
        return x
    (found,) = node.walk.graph(node.graph(name), [x])
    return found.tensor  # type: ignore[union-attr]


# ---------------------------------------------------------------- positions


def _rotary_embedding(node: Node) -> Tensor:
    x, cos, sin, positions = node.tensor(0), node.tensor(1), node.tensor(2), node.optional(3)
    is_packed = x.ndim == 3
    split = split_heads(x, node.attr("num_heads")) if is_packed else x
    size = node.attr("rotary_embedding_dim") or split.shape[-1]
    if positions is not None:
        cos, sin = cos.take(positions, 0), sin.take(positions, 0)
    shape = (split.shape[0], split.shape[2], size // 2)
    cos, sin = (of_shape(t, shape, repr(node), "cache").unsqueeze(1) for t in (cos, sin))
    found = rotated(split, cos, sin, size, node.flag("interleaved")).cast(x.dtype)
    return merge_heads(found) if is_packed else found


# ---------------------------------------------------------------- states instead of keys


def _linear_attention(node: Node) -> list[Tensor]:
    """A state [batch, heads, key depth, value depth] that every token reads and writes."""
    dtype, (batch, length, width) = node.value().dtype, node.value().shape
    heads = node.attr("kv_num_heads")
    group = node.attr("q_num_heads") // heads
    depth = width // (heads * group)
    queries = _tokens(node, 0).reshape(batch, length, heads, group, depth)
    keys = _tokens(node, 1).reshape(batch, length, heads, depth)
    values = _tokens(node, 2)
    values = values.unflatten(2, (heads, values.shape[2] // heads))
    decay = beta = None
    if node.has(4):  # one for each head, or for each number of a key
        decay = _tokens(node, 4)
        decay = decay.unflatten(2, (heads, decay.shape[2] // heads)).exp()
        decay = decay.broadcast_to(keys.shape)
    if node.has(5):  # one for each head, or one
        beta = _tokens(node, 5).broadcast_to(batch, length, heads).unsqueeze(-1)
    shape = (batch, heads, depth, values.shape[-1])
    given = node.optional(3)
    state = Tensor.zeros(*shape) if given is None else of_shape(given, shape, repr(node), "state")

    def token(step: Any, states: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        (now,) = states
        k, v = _at(keys, step), _at(values, step)
        if decay is not None:
            now = now * _at(decay, step).unsqueeze(-1)
        if beta is not None:
            v = _at(beta, step) * (v - (k.unsqueeze(-2) @ now).squeeze(-2))
        now = now + k.unsqueeze(-1) * v.unsqueeze(-2)
        return [now], [_at(queries, step) @ now]

    (after,), (stacked,) = Tensor.loop(length, [state.cast(FLOAT32)], token)
    scale = node.attr("scale") or inverse_root(depth)
    # [length, batch, heads, group, depth]
    found = (stacked * scale).moveaxis(0, 1).flatten(2, 4)
    return [found.cast(dtype), after.cast(dtype if given is None else given.dtype)]


def _tokens(node: Node, position: int) -> Tensor:
    """An input [batch, length, ...] in float32, with the batch and the length of the first."""
    x = node.tensor(position)
    shape = (*node.value().shape[:2], *x.shape[2:])
    return of_shape(x, shape, repr(node), f"input {position}").cast(FLOAT32)


def _at(x: Tensor, step: Any) -> Tensor:
    """What [batch, length, ...] holds for one token."""
    return x.narrow(1, step, 1).squeeze(1)


def _causal_conv(node: Node) -> list[Tensor]:
    """A convolution of each channel with what came before; the last inputs are the state."""
    x, weight, bias, past = node.tensor(0), node.tensor(1), node.optional(2), node.optional(3)
    (batch, channels, length), size = x.shape, weight.shape[2]
    before = Tensor.zeros(batch, channels, size - 1, dtype=x.dtype) if past is None else past
    whole = Tensor.concat(
        [of_shape(before, (batch, channels, size - 1), repr(node), "state"), x], 2
    )
    taps = of_shape(weight, (channels, 1, size), repr(node), "weight")
    total = (slid(wide(whole), 2, size) * wide(taps)).sum(-1)
    if bias is not None:
        total = total + wide(bias).unsqueeze(1)
    if node.attr("activation", "none") in ("silu", "swish"):
        total = total.silu()
    return [total.cast(x.dtype), whole.narrow(2, length, size - 1)]


def _swiglu(node: Node) -> Tensor:
    gate = wide(node.tensor(0))
    found = gate * (gate * node.number("alpha", 1.0)).sigmoid() * wide(node.tensor(1))
    return found.cast(node.value().dtype)


CONVERTERS: dict[str, Converter] = {
    "Attention": _attention,
    "CausalConvWithState": _causal_conv,
    "LinearAttention": _linear_attention,
    "RotaryEmbedding": _rotary_embedding,
    "SwiGLU": _swiglu,
}
