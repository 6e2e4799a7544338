"""softmax(scores) @ values in one op, so that the scores never need memory.

    scores [*batch, S, T], values [*batch, T, N] (, lengths int64 [*batch]) --> [*batch, S, N]

What makes the scores (q @ k.T, scale, masks, caps) stays ordinary ops in front of it,
so that any score function is fused the same way. `passes.attention` finds the pattern.
Which keys a query sees may also be said by the attributes: a band around the diagonal
(causal, sliding window) and, with the third operand, only the first `lengths[b]` keys of
every batch entry. What is said this way is never computed: scores and values outside
are not read. A query that sees no key gives NaN, as its softmax does, or 0 if the
attributes say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, evaluate
from semel.ir.graph import Node
from semel.ir.opdef import Contraction, Indices, OpDef, register
from semel.ir.types import INT64, TensorType
from semel.ops.attrs import AttentionAttrs
from semel.ops.contract import infer_product, require_product
from semel.ops.index_maps import Fresh
from semel.ops.numerics import Array
from semel.ops.shapes import Requirement, check, equal

Env = Mapping[str, int]


def _require(attrs: AttentionAttrs, *types: TensorType) -> Iterator[Requirement]:
    scores, values, *rest = types
    yield from require_product(None, scores, values)
    for lengths in rest:
        for axis, (m, n) in enumerate(zip(scores.shape[:-2], lengths.shape, strict=True)):
            yield equal(
                m, n, f"batch dims {axis} must agree, got {m} in {scores} and {n} in {lengths}."
            )


def _infer(attrs: AttentionAttrs, *types: TensorType) -> TensorType:
    result = infer_product("softmax_matmul", None, *types[:2])
    if not result.dtype.is_float:
        raise GraphError("softmax_matmul", f"operands must be floats, got {types[0]}.")
    if len(types) > 2:
        lengths = types[2]
        if len(types) > 3 or lengths.dtype != INT64 or lengths.rank != result.rank - 2:
            raise GraphError(
                "softmax_matmul",
                f"lengths must be int64, one per batch entry of {types[0]}, got {lengths}.",
            )
        check("softmax_matmul", attrs, *types)
    elif attrs.from_length:
        raise GraphError("softmax_matmul", "from_length needs lengths, got none.")
    return result


def _reference(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    scores, values = (a.astype(np.float64) for a in arrays[:2])
    dtype, attrs = node.type.dtype, node.attrs
    lengths = arrays[2][..., None, None] if len(arrays) > 2 else None
    keys = np.arange(scores.shape[-1])
    if lengths is not None:
        values = np.where(keys[:, None] < lengths, values, 0)
    seen = _seen(attrs, env, np.arange(scores.shape[-2])[:, None], keys, lengths)
    with np.errstate(all="ignore"):
        scores = np.where(seen, scores, -np.inf)
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        if attrs.zero_if_none:
            top = np.where(top == -np.inf, 0, top)
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        if attrs.zero_if_none:
            total = np.where(total == 0, 1, total)
        result: Array = (weights @ values) / total
        if attrs.zero_if_nan:
            result = np.where((total == 0) | np.isnan(total), 0, result)
    return result.astype(dtype.compute.numpy).astype(dtype.numpy)


def _seen(
    attrs: AttentionAttrs, env: Env, rows: Array, keys: Array, lengths: Array | None
) -> Array:
    """Which keys each query may see."""
    shift = lengths if attrs.from_length and lengths is not None else 0
    seen = np.ones(np.broadcast_shapes(rows.shape, keys.shape), bool)
    if attrs.left is not None:
        seen = seen & (keys >= rows + evaluate(attrs.left, env) + shift)
    if attrs.right is not None:
        seen = seen & (keys <= rows + evaluate(attrs.right, env) + shift)
    return seen if lengths is None else seen & (keys < lengths)


def _wanted(node: Node, at: Indices, fresh: Fresh) -> tuple[Dim, tuple[Indices, ...]]:
    """The scores and the values of one key, and the length of the batch entry."""
    key = fresh(node.inputs[0].type.shape[-1])
    lengths = (at[:-2],) * (len(node.inputs) - 2)
    return key, ((*at[:-1], key), (*at[:-2], key, at[-1]), *lengths)


register(
    OpDef(
        "softmax_matmul",
        "contract",
        AttentionAttrs,
        _infer,
        _reference,
        cost=20,
        require=_require,
        contraction=Contraction(_wanted, is_attention=True),
        kernel_name="attention",
    )
)
