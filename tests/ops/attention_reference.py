"""Attention in float64 NumPy, written out: every option as a mask over all scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def np_attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    key_lengths: Array | None = None,
    block_table: Array | None = None,
    align: str = "end",
) -> Array:
    """What `Tensor.scaled_dot_product_attention` promises, a query that sees nothing being 0."""
    if block_table is not None:
        k, v = unpaged(k, block_table), unpaged(v, block_table)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if q.ndim > 2 and k.shape[-3] not in (1, q.shape[-3]):
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        hidden = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
        scores = scores + hidden
    queries, keys = scores.shape[-2:]
    lead = scores.ndim - 2
    lengths = np.full((1,) * (lead + 2), keys)
    if key_lengths is not None:
        lengths = np.asarray(key_lengths)
        lengths = lengths.reshape(*lengths.shape, *(1,) * (lead + 2 - lengths.ndim))
    position = np.arange(queries)[:, None] + (lengths - queries if align == "end" else 0)
    key = np.arange(keys)
    seen = key < lengths
    left, right = window or (None, None)
    right = 0 if is_causal else right
    if left is not None:
        seen = seen & (key >= position - left)
    if right is not None:
        seen = seen & (key <= position + right)
    scores = np.where(seen, scores, -np.inf)
    v = np.where(np.broadcast_to(key[:, None] < lengths, (*scores.shape[:-2], keys, 1)), v, 0)
    with np.errstate(all="ignore"):
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = weights.sum(-1, keepdims=True)
        return (weights @ v) / np.where(total == 0, 1, total)


def unpaged(pages: Array, table: Array) -> Array:
    """(batch, heads, T, depth) of pages (blocks, size, heads, depth); unused entries are 0."""
    picked = pages[np.clip(table, 0, len(pages) - 1)]
    batch, blocks, size, heads, depth = picked.shape
    return picked.reshape(batch, blocks * size, heads, depth).transpose(0, 2, 1, 3)


def bound(q: Array, k: Array, v: Array) -> float:
    """How far float32 may be off: products add over the depth, weights over the keys."""
    depth, largest = q.shape[-1], float(np.abs(v).max(initial=1e-3))
    scores = float(np.abs(q).max(initial=1)) * float(np.abs(k).max(initial=1)) * math.sqrt(depth)
    return 2**-24 * largest * (8 * scores + 2 * math.sqrt(k.shape[-2] + 1) + 16)
