"""Reductions of a permuted tensor reduce it in the order it lies in.

    before                                         after
    %1 = permute %0 {axes=(0, 3, 1, 2)} : ...      %1 = mul %0 %0 : f32[1,56,56,256]
    %2 = mul %1 %1 : f32[1,256,56,56]              %2 = reduce_sum %1 {axes=(1, 2)} : ...
    %3 = reduce_sum %2 {axes=(2, 3)} : ...         %3 = permute %2 {axes=(0, 3, 1, 2)} : ...

Read through a permute that moves the last axis, neighbours lie far apart: every element costs a
cache line. Here the permute passes the reduction, and what is computed element by element in
between, and is left with the results, which are few. The permuted tensor stays for whoever
else wants it.

A reshape between them that merges axes is taken apart first (`unmerge`). One that only splits them
(the channels of a group norm, into groups) passes the permute. Then a few neighbours (the channels
of one group) may be reduced together with what lies far outside: columns are reduced first, and a
second reduction joins the few.

The axes of a float sum say its order, those of the tensor *below* the permute. So this comes
first of all passes, where a tensor that is known and one that is not look the same.
"""

from __future__ import annotations

from itertools import accumulate

from semel.ir.expr import product, upper_bound
from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ops.attrs import PermuteAttrs, ReduceAttrs, ReshapeAttrs
from semel.ops.filled import filled
from semel.passes.patterns import expand_to
from semel.passes.unmerge import between, is_pointwise, merged_back, split_axes, unmerged

#: Neighbours that are fewer than this are joined when columns have been.
FEW = 64


def reduce_as_it_lies(graph: Graph) -> Graph:
    """Let permutes that would be read with a stride pass reductions."""
    if "permute" not in graph.ops:
        return graph
    if "reshape" in graph.ops:
        graph = rewrite(graph, lambda n: merged_back(n, _turns))
        graph = rewrite(graph, lambda n: unmerged(n, _turns) if _is_reduction(n) else None)
    split = {
        n
        for node in graph.nodes
        if _is_reduction(node)
        for n in between(node.inputs[0])
        if n.op.name == "reshape" and _below_split(n) is not None
    }
    if split:
        graph = rewrite(graph, lambda node: _below_split(node) if node in split else None)
    return rewrite(graph, straightened)


def straightened(node: Node) -> Node | None:
    """The reduction with a permute behind it instead of below; None if that gains nothing."""
    if not _is_reduction(node):
        return None
    nodes = between(node.inputs[0])
    view = next((n for n in nodes if n.op.name == "permute"), None)
    if view is None or not _moves_last(view) or view.inputs[0].op.slides:
        return None
    below = _below(nodes, view)
    if below is None:
        return None
    axes: tuple[int, ...] = view.attrs.axes
    reduced = tuple(sorted(axes[a] for a in node.attrs.axes))
    result = _reduced(node, below, reduced)
    return make_node("permute", (straightened(result) or result,), view.attrs)


def _turns(node: Node) -> bool:
    return node.op.name == "permute" and _moves_last(node) and not node.inputs[0].op.slides


def _is_reduction(node: Node) -> bool:
    return node.op.kind == "reduce" and isinstance(node.attrs, ReduceAttrs)


def _reduced(node: Node, below: Node, axes: tuple[int, ...]) -> Node:
    """The reduction of `node` over other axes of another tensor, in two steps if few lie innermost.

    Vectors then run along the columns of the first step instead of along a few elements.
    """
    rule, shape = node.op.combiner, below.type.shape
    named = [a for a, dim in enumerate(shape) if dim != 1]
    inner = next((k for k, a in enumerate(reversed(named)) if a not in axes), 0)
    few, outside = axes[len(axes) - inner :], axes[: len(axes) - inner]
    most = upper_bound(product(shape[a] for a in few))
    parts = rule is not None and rule(node.attrs).splits and not node.type.dtype.is_half
    nan = node.attrs.propagate_nan
    if not (parts and few and outside) or most is None or most >= FEW:
        return make_node(node.op.name, (below,), ReduceAttrs(axes, nan))
    columns = make_node(node.op.name, (below,), ReduceAttrs(outside, nan))
    return make_node(node.op.name, (columns,), ReduceAttrs(few, nan))


def _below_split(node: Node) -> Node | None:
    """A reshape that only splits axes of a permuted tensor, with the permute behind it."""
    view = node.inputs[0] if node.inputs else node
    if node.op.name != "reshape" or view.op.name != "permute" or not _moves_last(view):
        return None
    groups = split_axes(view.type.shape, node.type.shape)
    if groups is None:
        return None
    axes: tuple[int, ...] = view.attrs.axes
    at = [axes.index(a) for a in range(len(axes))]  # where each axis of the source went
    shape = tuple(node.type.shape[d] for a in at for d in groups[a])
    starts = dict(zip(at, accumulate((len(groups[a]) for a in at), initial=0), strict=False))
    order = tuple(starts[k] + i for k, group in enumerate(groups) for i in range(len(group)))
    below = make_node("reshape", (view.inputs[0],), ReshapeAttrs(shape))
    return make_node("permute", (below,), PermuteAttrs(order))


def _moves_last(view: Node) -> bool:
    """Whether another axis is the last one behind the permute, of those with several elements."""
    shape, axes = view.inputs[0].type.shape, view.attrs.axes
    return max((a for a in axes if shape[a] != 1), default=-1) != next(
        (a for a in reversed(axes) if shape[a] != 1), -1
    )


def _below(nodes: list[Node], view: Node) -> Node | None:
    """The first of the nodes as it is computed below the permute; None if that gains nothing."""
    made: dict[Node, Node] = {}
    for node in reversed(nodes):
        if is_pointwise(node):
            if any(n not in made for n in node.inputs):
                return None
            made[node] = make_node(node.op.name, [made[n] for n in node.inputs], node.attrs)
            continue
        found = _unpermuted(node, view)
        if found is None:
            return None
        made[node] = found
    return made[nodes[0]]


def _unpermuted(node: Node, view: Node) -> Node | None:
    """The tensor of which `view`'s permute is `node`, if it is read at least as straight."""
    shape, axes = view.inputs[0].type.shape, view.attrs.axes
    if node.op.is_literal:
        return filled(node.attrs.value, node.attrs.dtype, shape)
    if _is_same(node, view):
        return node.inputs[0] if node.inputs[0].type.shape == shape else None
    if node.op.name != "expand":
        return None
    inner = node.inputs[0]
    if _is_same(inner, view):
        return expand_to(inner.inputs[0], shape)
    order = [axes.index(a) for a in range(len(axes))]
    named = [a for a in order if inner.type.shape[a] != 1]
    if named != sorted(named):
        return None
    return expand_to(make_node("permute", (inner,), PermuteAttrs(tuple(order))), shape)


def _is_same(node: Node, view: Node) -> bool:
    return node.op.name == "permute" and node.attrs == view.attrs
