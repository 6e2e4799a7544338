"""Grouped matmul: every row is multiplied by the matrix of its own group (its expert).

    ids int64 [T] --group_rows--> rows int64 [B, R+2]
    x [S, K], w [E, K, N], rows --grouped_matmul--> [S*repeat, N]

`group_rows` lists the positions 0..T-1 by their group: a line is a group, how many of the
positions are in this line, and the positions, ascending, at most R of them. Places past
the count repeat the last position; lines past the last one in use hold zeros. There are
as many lines as the worst distribution over the groups needs. `grouped_matmul` makes
result row i from row i // repeat of x and the matrix of i's group, which it reads
from these lines. Arithmetic is that of `matmul`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, evaluate, minimum
from semel.ir.graph import Node
from semel.ir.opdef import Contraction, Indices, OpDef, register
from semel.ir.types import INT64, TensorType
from semel.ops.attrs import GroupedMatmulAttrs, GroupRowsAttrs
from semel.ops.index_maps import Fresh, flat_index
from semel.ops.narrow_weights import block_sizes
from semel.ops.numerics import Array
from semel.ops.shapes import (
    Requirement,
    check,
    check_count,
    check_same_dtype,
    equal,
)

Env = Mapping[str, int]
#: Columns of a line in front of its positions: the group and the count.
HEADER = 2


#: What ids pass through unchanged on their way to `group_rows`.
_SAME_IDS = frozenset({"check_index", "reshape", "cast"})


def source_of(ids: Node) -> Node:
    """Where ids come from, before they were reshaped, checked or widened."""
    while ids.op.name in _SAME_IDS:
        ids = ids.inputs[0]
    return ids


def max_lines(positions: Dim, groups: Dim, block: int) -> Dim:
    """The most lines that `positions` in `groups` can fill: all groups but one end with a 1."""
    return (positions + minimum(groups, positions) * (block - 1)) // block


def _infer_rows(attrs: GroupRowsAttrs, *types: TensorType) -> TensorType:
    check_count("group_rows", types, 1)
    ids = types[0]
    if ids.rank != 1 or ids.dtype != INT64:
        raise GraphError("group_rows", f"ids must be int64 of one axis, got {ids}.")
    if attrs.block < 1:
        raise GraphError("group_rows", f"block must be >= 1, got {attrs.block}.")
    lines = max_lines(ids.shape[0], attrs.groups, attrs.block)
    return TensorType((lines, attrs.block + HEADER), INT64)


def _reference_rows(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    (ids,), block = arrays, node.attrs.block
    shape = tuple(evaluate(d, env) for d in node.type.shape)
    result = np.zeros(shape, np.int64)
    line = 0
    for group in np.unique(ids):
        places = np.flatnonzero(ids == group)
        for start in range(0, len(places), block):
            here = places[start : start + block]
            result[line, :HEADER] = group, len(here)
            result[line, HEADER:] = np.pad(here, (0, block - len(here)), mode="edge")
            line += 1
    return result


def _require_product(
    attrs: GroupedMatmulAttrs, x: TensorType, w: TensorType, rows: TensorType
) -> Iterator[Requirement]:
    yield equal(
        x.shape[1], w.shape[1],
        f"inner dims must agree, got {x.shape[1]}, the last of {x}, and {w.shape[1]}, the last "
        f"but one of {w}.",
    )  # fmt: skip
    count = x.shape[0] * attrs.repeat
    yield equal(
        count, attrs.count, f"needs one group per row, got {attrs.count} for {count} rows of {x}."
    )


def _infer_product(attrs: GroupedMatmulAttrs, *types: TensorType) -> TensorType:
    check_count("grouped_matmul", types, 3)
    x, w, rows = types
    check_same_dtype("grouped_matmul", (x, w))
    if (x.rank, w.rank, rows.rank) != (2, 3, 2) or rows.dtype != INT64:
        raise GraphError(
            "grouped_matmul",
            f"needs x [S, K], w [E, K, N] and int64 rows [B, R+2], got {x}, {w} and {rows}.",
        )
    if not isinstance(rows.shape[1], int) or rows.shape[1] <= HEADER:
        raise GraphError("grouped_matmul", f"rows must come from group_rows, got {rows}.")
    if attrs.repeat < 1:
        raise GraphError("grouped_matmul", f"repeat must be >= 1, got {attrs.repeat}.")
    check("grouped_matmul", attrs, *types)
    return TensorType((x.shape[0] * attrs.repeat, w.shape[2]), x.dtype)


def depth_index(node: Node, fresh: Fresh) -> Dim:
    """The index along which a grouped matmul contracts: a loop per block of k that shares a scale.

    Of the loops of `fresh` the last one is the innermost.
    """
    depth = node.inputs[0].type.shape[1]
    blocks = block_sizes(node.inputs[1], depth)
    return fresh(depth) if blocks is None else flat_index(tuple(map(fresh, blocks)), blocks)


def _wanted_product(
    node: Node, at: Indices, fresh: Fresh
) -> tuple[Dim, tuple[Indices | None, ...]]:
    """Rows and matrices are chosen by what the lines of the last operand say."""
    x, w, _ = node.inputs
    inner = depth_index(node, fresh)
    row, matrix = fresh(x.type.shape[0]), fresh(w.type.shape[0])
    return inner, ((row, inner), (matrix, inner, at[-1]), None)


def _reference_product(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    x, w, rows = arrays
    dtype = node.type.dtype
    wide = np.float64 if dtype.is_float else dtype.numpy
    result = np.zeros((x.shape[0] * node.attrs.repeat, w.shape[2]), dtype.numpy)
    for group, count, *places in rows:
        here = np.array(places[:count], np.int64)
        if count == 0:
            continue
        product = np.matmul(x[here // node.attrs.repeat].astype(wide), w[group].astype(wide))
        result[here] = product.astype(dtype.compute.numpy).astype(dtype.numpy)
    return result


register(OpDef("group_rows", "opaque", GroupRowsAttrs, _infer_rows, _reference_rows, cost=4))
register(
    OpDef(
        "grouped_matmul",
        "contract",
        GroupedMatmulAttrs,
        _infer_product,
        _reference_product,
        cost=2,
        require=_require_product,
        contraction=Contraction(_wanted_product, widens=True),
    )
)
