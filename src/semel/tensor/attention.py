"""Attention.

    scaled_dot_product_attention

Scale, cap and masks are ordinary ops on the scores; what is said by position (causal, window,
lengths) becomes attributes of the op, so that keys outside are neither read nor computed.
Half floats are taken through float32 and rounded once at the end: neither the
scores nor the weights are rounded in between.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.expr import Dim, maximum, minimum
from semel.ir.types import BOOL, INT64
from semel.ops.attrs import AttentionAttrs, GatherAttrs
from semel.tensor.contract import batched
from semel.tensor.elementwise import choose
from semel.tensor.handle import TensorLike, apply, convert, dim_value, lift, promote
from semel.tensor.indexing import check_index, iota
from semel.tensor.movement import broadcast_shapes, may_stretch, reach, stretch
from semel.tensor.reduce import as_float

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

_WHERE = "scaled_dot_product_attention"

Window = tuple["Dim | None", "Dim | None"]


def scaled_dot_product_attention(
    x: TensorLike,
    key: TensorLike,
    value: TensorLike,
    mask: TensorLike | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    key_lengths: TensorLike | None = None,
    block_table: TensorLike | None = None,
    align: str | Dim = "end",
) -> Tensor:
    """softmax(q @ k.T * scale + mask) @ v over the last two axes.

    Queries are (..., heads, S, depth), keys and values (..., key heads, T, depth): leading
    axes broadcast, and every key head serves heads / key heads neighbouring heads. No
    score matrix and no copy of keys or values is made.

    `mask` broadcasts against (..., heads, S, T): a bool mask keeps where it is true, any
    other is added. `scale` is 1/sqrt(depth) unless given; `softcap=c` makes the scaled
    scores c * tanh(score / c).

    Query i stands at position i + (T - S): the last query at the last key, as in a
    decoder that has seen T - S tokens before. `align="start"` puts query i at position i,
    as PyTorch's `is_causal` does; the two differ if S != T. A size puts query i at position
    i + that. `is_causal` hides the keys behind a query's position, `window=(left, right)`
    those further than `left` before or `right` behind it (None: no limit).

    `key_lengths`, an integer for every entry of the leading axes, says how many keys
    there are: only those are read, and T in the above is that number. A plan made for
    the longest T pays for the actual lengths. With `block_table` int (batch, blocks),
    keys and values are (all blocks, block size, key heads, depth), and key t of batch
    entry b is row t % block size of block block_table[b, t // block size]; entries past
    the length are not looked at. Lengths and blocks out of range are an IndexRangeError.

    A query that sees no key gives 0.

    >>> q, kv = semel.ones(2, 8, 5, 16), semel.ones(2, 2, 9, 16)  # 8 heads, 2 of keys
    >>> semel.scaled_dot_product_attention(q, kv, kv, is_causal=True).shape
    (2, 8, 5, 16)
    """
    x = lift(x)
    query, keys, values = promote((x, key, value), to_float=True)
    lengths = None if key_lengths is None else lift(key_lengths)
    if block_table is not None:
        keys, values = _paged(query, keys, values, lift(block_table), lengths)
    for name, each in (("query", query), ("key", keys), ("value", values)):
        if each.ndim < 2:
            raise GraphError(_WHERE, f"{name} needs at least 2 axes, got {each.type}.")
    keys, values = _for_heads_of(keys, query), _for_heads_of(values, query)
    scores = _under(_scores(query, keys, scale, softcap), mask)
    band = _band(scores.shape[-2], keys.shape[-2], is_causal, window, align, lengths is None)
    batch = broadcast_shapes([scores.shape[:-2], values.shape[:-2]], _WHERE)
    operands = [batched(scores, batch), batched(as_float(values), batch)]
    if lengths is not None:
        operands.append(_lengths(lengths, keys.shape[-2], batch))
    return convert(apply("softmax_matmul", *operands, attrs=band), query.dtype)


def _for_heads_of(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values with every head repeated for its queries; a view."""
    if min(x.ndim, query.ndim) < 3:
        return x
    heads, shared = query.shape[-3], x.shape[-3]
    if shared in (heads, 1):
        return x
    if shared == 0 or (isinstance(heads, int) and isinstance(shared, int) and heads % shared):
        raise GraphError(
            _WHERE,
            f"the heads of the query must be a multiple of those of keys and values, "
            f"got {query.type} and {x.type}.",
        )
    *batch, _, length, depth = x.shape
    repeated = stretch(x.unsqueeze(-3), (*batch, shared, heads // shared, length, depth))
    return repeated.reshape(*batch, heads, length, depth)


def _scores(x: Tensor, keys: Tensor, scale: float | None, softcap: float | None) -> Tensor:
    query = as_float(x)
    factor = _inverse_root(x.shape[-1], query) if scale is None else scale
    lead = broadcast_shapes([query.shape[:-2], keys.shape[:-2]], _WHERE)
    # Not `matmul`: it would merge the batch of queries into rows where keys have none.
    scores = apply(
        "matmul", batched(query, lead), batched(as_float(keys).mT, lead)
    ) * factor  # fmt: skip
    return scores if softcap is None else scores.softcap(softcap)


def _inverse_root(width: Dim, x: Tensor) -> float | Tensor:
    if isinstance(width, int):
        return 1 / math.sqrt(max(width, 1))
    return dim_value(maximum(width, 1), x.dtype).rsqrt()


def _under(x: Tensor, mask: TensorLike | None) -> Tensor:
    if mask is None:
        return x
    lifted = lift(mask)
    own, wanted = lifted.shape[-2:], x.shape[-2:][-lifted.ndim :] if lifted.ndim else ()
    if not all(may_stretch(d, w) for d, w in zip(own, wanted, strict=True)):
        raise GraphError(_WHERE, f"mask must broadcast against scores {x.type}, got {lifted.type}.")
    if any(d not in (1, w) for d, w in zip(own, wanted, strict=True)):
        lifted = reach(lifted, (*lifted.shape[:-2], *wanted), _WHERE)
    seen = stretch(lifted, broadcast_shapes([x.shape, lifted.shape], _WHERE))
    result = choose(seen, x, -math.inf) if seen.dtype == BOOL else x + seen
    return convert(result, x.dtype)


def _lengths(x: Tensor, keys: Dim, batch: tuple[Dim, ...]) -> Tensor:
    """Checked lengths, one for every entry of the batch."""
    checked = check_index(x, keys + 1, _WHERE, "key length")
    if x.ndim > len(batch):
        raise GraphError(_WHERE, f"key_lengths must have at most {len(batch)} axes, got {x.type}.")
    return stretch(checked.reshape(*x.shape, *(1,) * (len(batch) - x.ndim)), batch)


def _paged(
    x: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Keys and values (batch, heads, T, depth), seen through the table of their blocks."""
    if lengths is None or lengths.ndim != 1:
        raise GraphError(_WHERE, "block_table needs key_lengths (batch,).")
    if (x.ndim, keys.ndim, values.ndim, table.ndim) != (4, 4, 4, 2):
        raise GraphError(
            _WHERE,
            "block_table (batch, blocks) needs queries (batch, heads, S, depth), keys and "
            f"values (blocks, block size, heads, depth), got {table.type}, {x.type}, "
            f"{keys.type} and {values.type}.",
        )
    batch, blocks = table.shape
    size = keys.shape[1]
    first = iota((batch, blocks), 1) * size
    used = first < convert(lengths, INT64).reshape(-1, 1)
    numbers = choose(used, convert(table, INT64) if table.dtype.is_integer else table, 0)
    places = check_index(numbers, minimum(keys.shape[0], values.shape[0]), _WHERE, "block number")

    def seen(pages: Tensor) -> Tensor:
        picked = apply("gather", pages, places, attrs=GatherAttrs(0))
        return picked.reshape(batch, blocks * size, *pages.shape[2:]).permute(0, 2, 1, 3)

    return seen(keys), seen(values)


def _band(
    queries: Dim,
    keys: Dim,
    is_causal: bool,
    window: Window | None,
    align: str | Dim,
    is_whole: bool,
) -> AttentionAttrs:
    """The keys that a query sees, in terms of its number."""
    if isinstance(align, str) and align not in ("start", "end"):
        raise GraphError(_WHERE, f"align must be start, end or a size, got {align!r}.")
    left, right = _window(window)
    if is_causal:
        right = 0
    if left is None and right is None:
        return AttentionAttrs(zero_if_none=True)
    shift: Dim = 0 if isinstance(align, str) else align
    from_length = align == "end" and not is_whole
    if align == "end":
        shift = keys - queries if is_whole else -queries
    return AttentionAttrs(
        None if left is None else shift - left,
        None if right is None else shift + right,
        from_length,
        zero_if_none=True,
    )


def _window(window: Window | None) -> Window:
    if window is None:
        return None, None
    pair = tuple(window)
    if len(pair) != 2 or any(isinstance(n, int) and n < 0 for n in pair):
        raise GraphError(
            _WHERE, f"window must be (left, right), each None or >= 0, got {window!r}."
        )
    return pair[0], pair[1]
