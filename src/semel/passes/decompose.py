"""Reductions in the form the scheduler likes: one axis, and long ones in runs.

`merge_reduced_axes`: adjacent reduced axes are one axis.

    before                                          after
    %1 = reduce_max %0 {axes=(1, 2)} : f32[n,1,1]   %1 = reshape %0 {shape=(n, 24)} : f32[n,24]
                                                    %2 = reduce_max %1 {axes=(1,)} : f32[n,1]
                                                    %3 = reshape %2 {shape=(n, 1, 1)} : f32[n,1,1]

`split_large_reductions`: a reduction of many elements to very few is one long chain for one
core. It becomes runs of RUN elements, which any core may take, and a short reduction of
their results, in order. A kernel that takes all runs itself adds in the same order
(`kernel.shared_lanes`), so that neither the number of threads nor what is known of sizes changes
a bit.

    before                                          after
    %1 = reduce_sum %0 {axes=(0,)} : f32[1]         %1 = reshape %0 {shape=(1, 1000000)} : ...
                                                    %2 = reduce_partial %1 {...} : f32[1,62]
                                                    %3 = reduce_sum %2 {axes=(1,)} : f32[1,1]
                                                    %4 = reshape %3 {shape=(1,)} : f32[1]

Half types are summed in float32 from the first run to the last, and rounded once.
"""

from __future__ import annotations

from semel.ir.expr import Dim, product, upper_bound
from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ir.opdef import Combiner
from semel.ir.types import FLOAT32
from semel.kernel.shared_lanes import RUN
from semel.ops.attrs import CastAttrs, ReduceAttrs, ReducePartialAttrs
from semel.passes.patterns import reshape_to

#: With this many results or more, the results themselves are enough parallel work.
MIN_KEPT = 8


def _combiner(node: Node) -> Combiner | None:
    """That of a reduction of whole axes whose parts combine the same way; else None."""
    if node.op.combiner is None or not isinstance(node.attrs, ReduceAttrs):
        return None
    combiner = node.op.combiner(node.attrs)
    return combiner if combiner.splits else None


def merge_reduced_axes(graph: Graph) -> Graph:
    """Make every run of adjacent reduced axes one axis."""
    return rewrite(graph, _merge) if any(map(_may_merge, graph.nodes)) else graph


def _may_merge(node: Node) -> bool:
    return node.op.kind == "reduce" and _combiner(node) is not None and len(node.attrs.axes) >= 2


def _merge(node: Node) -> Node | None:
    if not _may_merge(node):
        return None
    x, axes = node.inputs[0], node.attrs.axes
    if _slides(x):
        return None
    shape: list[Dim] = []
    merged: list[int] = []
    for axis, dim in enumerate(x.type.shape):
        if axis in axes and axis - 1 in axes:
            shape[-1] = shape[-1] * dim
            continue
        if axis in axes:
            merged.append(len(shape))
        shape.append(dim)
    if len(merged) == len(axes):
        return None
    attrs = ReduceAttrs(tuple(merged), node.attrs.propagate_nan)
    reduced = make_node(node.op.name, (reshape_to(x, tuple(shape)),), attrs)
    return reshape_to(reduced, node.type.shape)


def _slides(node: Node) -> bool:
    """Whether a window is reduced: its axes merge only at the price of divisions."""
    while node.inputs and (node.op.kind == "elementwise" or node.op.name == "permute"):
        node = node.inputs[0]
    return node.op.slides


def split_large_reductions(graph: Graph) -> Graph:
    """Cut reductions of many elements to few into runs that several cores can take."""
    return rewrite(graph, _split) if any(map(_may_split, graph.nodes)) else graph


def _may_split(node: Node) -> bool:
    return node.op.kind == "reduce" and _combiner(node) is not None and _is_large(node)


def _split(node: Node) -> Node | None:
    combiner = _combiner(node) if _may_split(node) else None
    if combiner is None:
        return None
    rows, axes = _rows(node)
    is_rounded = rows.type.dtype.is_half and combiner.rounds
    if is_rounded:
        rows = make_node("cast", (rows,), CastAttrs(FLOAT32))
    nan = node.attrs.propagate_nan
    runs = ReducePartialAttrs(axes[-1], RUN, combiner.name, nan)
    partial = make_node("reduce_partial", (rows,), runs)
    total = make_node(node.op.name, (partial,), ReduceAttrs(axes, nan))
    if is_rounded:
        total = make_node("cast", (total,), CastAttrs(node.type.dtype))
    return reshape_to(total, node.type.shape)


def _is_large(node: Node) -> bool:
    """Whether few results are made of more than a run each, along an axis that has runs."""
    shape, axes = node.inputs[0].type.shape, node.attrs.axes
    kept = upper_bound(node.type.num_elements)
    if kept is None or kept >= MIN_KEPT or adds_runs(node):
        return False
    if len(axes) > 1 and any(dim != 1 for dim in shape[axes[-1] + 1 :]):
        return False  # columns of several axes are added as one
    return is_longer_than_a_run(shape[axes[-1]])


def adds_runs(node: Node) -> bool:
    """Whether a reduction joins the results of runs: in order, as a kernel of all runs would."""
    operand = node.inputs[0]
    return operand.op.kind == "reduce" and operand.attrs.chunk is not None


def is_longer_than_a_run(extent: Dim) -> bool:
    """Whether an axis may have more elements than a run, whatever it has now."""
    most = upper_bound(extent)
    return most is None or most > RUN


def _rows(node: Node) -> tuple[Node, tuple[int, ...]]:
    """The operand with what is kept before and after a reduced axis as one axis each."""
    x, axes = node.inputs[0], node.attrs.axes
    if len(axes) > 1:
        return x, axes
    shape, axis = x.type.shape, axes[0]
    before, after = product(shape[:axis]), product(shape[axis + 1 :])
    ends = (after,) if after != 1 else ()
    return reshape_to(x, (before, shape[axis], *ends)), (1,)
