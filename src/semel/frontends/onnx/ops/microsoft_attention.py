"""Attention of `com.microsoft`, as ONNX Runtime fuses and exports it.

All of them come to one call of fused attention; what differs is how queries, keys and values
arrive, what is kept for the next step, and how masks are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.ir.types import FLOAT32, INT64
from semel.tensor.rope import rotated
from semel.tensor.tensor import Tensor

DOMAIN = "com.microsoft"
_HIDDEN = -10000.0  # what a mask adds to scores that do not count


def _heads(x: Tensor, count: int) -> Tensor:
    """(B, S, heads * depth) as (B, heads, S, depth)."""
    return x.reshape(x.shape[0], x.shape[1], count, x.shape[2] // count).permute(0, 2, 1, 3)


def _merged(x: Tensor) -> Tensor:
    """(B, heads, S, depth) as (B, S, heads * depth)."""
    batch, heads, length, depth = x.shape
    return x.permute(0, 2, 1, 3).reshape(batch, length, heads * depth)


@dataclass(frozen=True)
class _Masking:
    """What queries may see, beside what is added to their scores."""

    mask: Tensor | None = None
    key_lengths: Tensor | None = None


def _masking(node: Node, at: int, query: Tensor, total: Any) -> _Masking:
    """A mask: how many keys count, where they begin and end, or which ones, for each query."""
    if not node.has(at):
        return _Masking()
    value = node.number("mask_filter_value", _HIDDEN)
    given, batch, length = node.tensor(at), query.shape[0], query.shape[2]
    if given.ndim == 1:
        if given.shape[0] != batch * 2:
            return _Masking(key_lengths=given.cast(INT64).reshape(batch))
        ends, starts = given.narrow(0, 0, batch), given.narrow(0, batch, batch)
        keys = Tensor.arange(total)
        inside = (keys < ends.unsqueeze(1)) & (keys >= starts.unsqueeze(1))
        return _Masking(inside.where(0.0, value).reshape(batch, 1, 1, total))
    if given.ndim == 2:
        seen = given.ne(0).reshape(given.shape[0], 1, 1, given.shape[1])
    elif given.ndim == 3:
        seen = given.ne(0).unsqueeze(1)
    else:
        seen = given.narrow(2, total - length, length).narrow(3, 0, total).ne(0)
    return _Masking(seen.where(0.0, value))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _attended(node: Node, q: Tensor, k: Tensor, v: Tensor, mask: int, bias: int) -> Tensor:
    """Attention (B, S, hidden) with the mask and the bias that are these inputs."""
    masking = _masking(node, mask, q, k.shape[2])
    y = q.scaled_dot_product_attention(
        k,
        v,
        _sum(masking.mask, node.optional(bias)),
        is_causal=node.flag("unidirectional"),
        scale=node.attr("scale") or None,
        key_lengths=masking.key_lengths,
    )
    return _merged(y)


# ---------------------------------------------------------------- self-attention


def _attention(node: Node) -> list[Tensor | None]:
    """One product for queries, keys and values, then attention over the past and the present."""
    projected = node.tensor(0) @ node.tensor(1)
    bias = node.optional(2)
    return _projected(node, projected if bias is None else projected + bias, 3, 4, 5)


def _quantised_attention(node: Node) -> list[Tensor | None]:
    """The same with 8-bit inputs and weights, whose product is exact."""
    total = node.tensor(0).matmul_integer(node.tensor(1), node.optional(6), node.optional(7))
    projected = total.cast(FLOAT32) * (node.tensor(3) * node.tensor(4)) + node.tensor(2)
    return _projected(node, projected, 5, 8, 9)


def _projected(node: Node, x: Tensor, mask: int, past: int, bias: int) -> list[Tensor | None]:
    if node.flag("past_present_share_buffer"):
        raise node.refuse("past and present in one buffer are not supported.")
    if node.flag("do_rotary"):
        raise node.refuse("rotary embedding inside of Attention is not supported.")
    heads = node.attr("num_heads")
    sizes = node.attr("qkv_hidden_sizes") or [x.shape[-1] // 3] * 3
    parts, begin = [], 0
    for size in sizes:
        parts.append(_heads(x.narrow(-1, begin, size), heads))
        begin = begin + size
    q, k, v = parts
    if node.has(past):
        before = node.tensor(past)
        k, v = Tensor.concat([before[0], k], 2), Tensor.concat([before[1], v], 2)
    y = _attended(node, q, k, v, mask, bias)
    return [y, Tensor.stack([k, v], 0) if node.wants(1) else None]


# ---------------------------------------------------------------- queries, keys and values


def _multi_head(node: Node) -> list[Tensor | None]:
    """Queries with keys and values of their own: packed, in rows, or by head."""
    q, k, v = _queries_keys_values(node, node.attr("num_heads"))
    if node.has(6):
        k, v = Tensor.concat([node.tensor(6), k], 2), Tensor.concat([node.tensor(7), v], 2)
    y = _attended(node, q, k, v, 4, 5)
    return [y, k if node.wants(1) else None, v if node.wants(2) else None]


def _queries_keys_values(node: Node, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q, bias = node.tensor(0), node.optional(3)
    if q.ndim == 5:  # (B, S, heads, 3, depth)
        packed = [q[:, :, :, i].permute(0, 2, 1, 3) for i in range(3)]
        return packed[0], packed[1], packed[2]
    k = node.tensor(1)
    if k.ndim == 5:  # keys and values (B, S, heads, 2, depth)
        pair = [k[:, :, :, i].permute(0, 2, 1, 3) for i in range(2)]
        return _heads(q, heads), pair[0], pair[1]
    v = node.tensor(2)
    if bias is not None:
        width = q.shape[-1]
        q = q + bias.narrow(0, 0, width)
        if k.ndim == 3:
            k = k + bias.narrow(0, width, width)
            v = v + bias.narrow(0, width * 2, v.shape[-1])
    by_head = [x if x.ndim == 4 else _heads(x, heads) for x in (k, v)]
    return _heads(q, heads), by_head[0], by_head[1]


def _grouped(node: Node) -> list[Tensor | None]:
    """Few heads of keys and values for many of queries, with a cache that grows.

    `seqlens_k` is how many keys there are in all, less one, for each sequence.
    """
    if node.has(11):
        raise node.refuse("head sinks are not supported.")
    if node.flag("smooth_softmax"):
        raise node.refuse("smooth_softmax is not supported.")
    shared = node.attr("kv_num_heads")
    q, k, v = _split_groups(node, node.attr("num_heads"), shared)
    lengths = node.tensor(5).cast(INT64).reshape(-1) + 1
    begins = lengths - q.shape[2]  # where the new keys of each sequence stand
    if node.flag("do_rotary"):
        q, k = _turned(node, q, begins), _turned(node, k, begins)
    if node.has(3):
        past = [node.tensor(i) for i in (3, 4)]
        past = [x.reshape(x.shape[0], shared, x.shape[2], x.shape[3]) for x in past]
        k, v = _appended(past[0], k, begins), _appended(past[1], v, begins)
    window = node.attr("local_window_size", -1)
    y = q.scaled_dot_product_attention(
        k,
        v,
        node.optional(10),
        is_causal=True,
        scale=node.attr("scale") or None,
        softcap=node.attr("softcap") or None,
        window=(window - 1, None) if window > 0 else None,
        key_lengths=lengths,
    )
    return [_merged(y), k, v]


def _split_groups(node: Node, heads: int, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    q = node.tensor(0)
    if node.has(1):
        k, v = node.tensor(1), node.tensor(2)
    else:
        packed, depth = q, q.shape[-1] // (heads + 2 * shared)
        wide, narrow = depth * heads, depth * shared
        q, k = packed.narrow(-1, 0, wide), packed.narrow(-1, wide, narrow)
        v = packed.narrow(-1, wide + narrow, narrow)
    return _heads(q, heads), _heads(k, shared), _heads(v, shared)


def _turned(node: Node, x: Tensor, begins: Tensor) -> Tensor:
    """Queries or keys (B, heads, S, depth) turned by the angles of where they stand."""
    if node.has(9):
        places = node.tensor(9).cast(INT64)
    else:
        places = begins.unsqueeze(1).maximum(0) + Tensor.arange(x.shape[2])
    cos, sin = (node.tensor(i).take(places, 0).unsqueeze(1) for i in (7, 8))
    return rotated(x, cos, sin, cos.shape[-1] * 2, node.flag("rotary_interleaved"))


def _appended(past: Tensor, new: Tensor, begins: Tensor) -> Tensor:
    """The past with the new rows of each sequence where that ends."""
    room, added = past.shape[2], new.shape[2]
    rows, at = Tensor.concat([past, new], 2), Tensor.arange(room + added).unsqueeze(0)
    place = at - begins.reshape(-1, 1)
    source = ((place >= 0) & (place < added)).where(place + room, at)
    index = source.reshape(-1, 1, room + added, 1).broadcast_to(rows.shape)
    return rows.take_along_axis(index, 2)


CONVERTERS: dict[str, Converter] = {
    "Attention": _attention,
    "GroupQueryAttention": _grouped,
    "MultiHeadAttention": _multi_head,
    "QAttention": _quantised_attention,
}
