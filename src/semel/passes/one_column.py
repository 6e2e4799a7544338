"""A matmul with one column is a sum of products along rows.

    before                                      after
    %2 = matmul %0 %1 : f32[1024,1]             %2 = reshape %1 {shape=(1, 1024)} : f32[1,1024]
                                                %3 = expand %2 {shape=(1024, 1024)} : ...
                                                %4 = mul %0 %3 : f32[1024,1024]
                                                %5 = reduce_sum %4 {axes=(1,)} : f32[1024,1]

Vectors of a contraction run along columns: of one column a single lane is used, and rows are
read a few bytes at a time. Vectors of a sum run along the row, or across rows that lie the other
way round. Short rows and windows stay contractions: those would be all ends, these have places to
share.

This comes before constants fold, so that a known operand and one that is not give the same bits.
"""

from __future__ import annotations

from semel.ir.expr import Dim, upper_bound
from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ir.types import FLOAT32, DType, Shape
from semel.ops.attrs import CastAttrs, ReduceAttrs
from semel.passes.patterns import expand_to, reshape_to
from semel.passes.reduce_order import straightened

#: Elements that a row has at least.
SHORT_ROW = 32


def sum_single_columns(graph: Graph) -> Graph:
    """Replace matmuls whose right operand is one column."""
    return rewrite(graph, _rule) if "matmul" in graph.ops else graph


def _rule(node: Node) -> Node | None:
    if node.op.name != "matmul" or node.type.shape[-1] != 1:
        return None
    left, right = node.inputs
    *batch, rows, depth = left.type.shape
    if not _adds(node.type.dtype) or _is_short(depth) or 0 in left.type.shape or _slides(left):
        return None
    kept = tuple(d for d in (*batch, rows) if d != 1)
    beside = tuple(d for d in batch if d != 1) + ((1,) if rows != 1 else ())
    a = _seen_as(left, (*kept, depth))
    b = expand_to(_seen_as(right, (*beside, depth)), (*kept, depth))
    wide = FLOAT32 if node.type.dtype.is_half else node.type.dtype
    product = make_node("mul", (_cast(a, wide), _cast(b, wide)))
    total = make_node("reduce_sum", (product,), ReduceAttrs((len(kept),)))
    result = _cast(straightened(total) or total, node.type.dtype)
    return reshape_to(result, node.type.shape)


def _adds(dtype: DType) -> bool:
    """Whether products of the dtype are added up in the dtype, or in float32."""
    return dtype.is_float or (dtype.kind in "iu" and dtype.bits >= 32)


def _is_short(depth: Dim) -> bool:
    most = upper_bound(depth)
    return most is not None and most < SHORT_ROW


def _slides(node: Node) -> bool:
    while node.op.kind == "movement":
        if node.op.slides:
            return True
        node = node.inputs[0]
    return False


def _seen_as(node: Node, shape: Shape) -> Node:
    """`node` in another shape, without shapes in between."""
    while node.op.name == "reshape":
        node = node.inputs[0]
    return reshape_to(node, shape)


def _cast(node: Node, dtype: DType) -> Node:
    return node if node.type.dtype == dtype else make_node("cast", (node,), CastAttrs(dtype))
