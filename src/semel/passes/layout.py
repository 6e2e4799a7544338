"""Views of computed tensors move behind the arithmetic that follows.

    before                                     after
    %2 = matmul %0 %1 : f32[6,8]               %2 = matmul %0 %1 : f32[6,8]
    %3 = reshape %2 : f32[2,3,8]               %4 = relu %2 : f32[6,8]
    %4 = relu %3 : f32[2,3,8]                  %5 = reshape %4 : f32[2,3,8]
    output %4                                  output %5

A frontend that keeps channels first writes every convolution as permute(matmul(permute)).
The permute behind one convolution sinks past bias, activation, residual and pool until it
meets the permute before the next one and both are gone: the chain stays channels-last. What
it passes stands right behind the contraction then, in its shape, and is computed on its
registers.

A view passes an elementwise op if every other operand can be seen through the inverse view
for free: a broadcast, data from outside, or the same view of another tensor. Permutes also pass
pads, slices, concats, rows that are picked or repeated (an image that is enlarged), reshapes of
axes that are neighbours below as well, and reductions, the latter only if the reduced axes keep
their order, so that sums add up as they did. No number changes by a bit.
"""

from __future__ import annotations

from typing import Any

from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ops.attrs import (
    ConcatAttrs,
    GatherAttrs,
    PadAttrs,
    PermuteAttrs,
    ReduceAttrs,
    SliceAttrs,
)
from semel.ops.filled import filled
from semel.ops.index_maps import reshape_runs
from semel.passes.patterns import expand_to, reshape_to
from semel.passes.unmerge import narrow_shape

#: Two axes swapped are a transposed matrix, which contractions read as it lies.
_LEAST_RANK = 3
_KINDS = {"contract": 2, "reduce": 1}


def sink_views(graph: Graph) -> Graph:
    """Move permutes and reshapes of contractions, permutes of reductions, as far as they go."""
    if "permute" not in graph.ops and all(n.op.kind != "contract" for n in graph.nodes):
        return graph
    return rewrite(graph, _Sinking().rule)


class _Sinking:
    def __init__(self) -> None:
        # What a node is made of: 2 where a contraction's result, 1 where a reduction's.
        self.origin: dict[Node, int] = {}

    def rule(self, node: Node) -> Node | None:
        sunk = self._sink(node)
        if sunk is not None and sunk.type == node.type:
            node = sunk
        self._origin(node)
        return node

    def _origin(self, node: Node) -> int:
        if node not in self.origin:
            known = _KINDS.get(node.op.kind, 0)
            if node.op.kind in ("elementwise", "movement"):
                known = max((self.origin.get(n, 0) for n in node.inputs), default=0)
            if node.op.name == "expand":
                known = min(known, _KINDS["reduce"])  # what stands behind has another shape
            self.origin[node] = known
        return self.origin[node]

    def _sink(self, node: Node) -> Node | None:
        for view in node.inputs:
            if not self._may_move(view):
                continue
            if node.op.name == "reshape" and view.op.name == "permute":
                return self._below_reshape(node, view)
            inner = _below(node, view)
            if inner is not None:
                # What lies below may be a view as well: a permute of a reshape.
                return make_node(view.op.name, (self.rule(inner) or inner,), view.attrs)
        return None

    def _below_reshape(self, node: Node, view: Node) -> Node | None:
        """A reshape of whole axes, or of axes that are neighbours below the permute as well."""
        source, axes = view.inputs[0], view.attrs.axes
        blocks: list[tuple[int, int, int]] = []
        begin = 0  # new axes of 1 go with the one before them, the first ones with that behind
        for i, end_i, j, end_j in reshape_runs(view.type.shape, node.type.shape):
            if i < end_i:
                if axes[i:end_i] != tuple(range(axes[i], axes[i] + end_i - i)):
                    return None
                blocks.append((axes[i], min(j, begin), end_j))
            elif blocks:
                blocks[-1] = (*blocks[-1][:2], end_j)
            begin = end_j if blocks else begin
        order = [axis for _, j, end_j in sorted(blocks) for axis in range(j, end_j)]
        inner = reshape_to(source, tuple(node.type.shape[axis] for axis in order))
        undone = tuple(order.index(axis) for axis in range(len(order)))
        return make_node("permute", (self.rule(inner) or inner,), PermuteAttrs(undone))

    def _may_move(self, view: Node) -> bool:
        if view.op.name == "permute":
            # Windows come last from their op and are put where reductions want them.
            if view.inputs[0].op.slides:
                return False
            return view.type.rank >= _LEAST_RANK and self._origin(view.inputs[0]) > 0
        return view.op.name == "reshape" and self._origin(view.inputs[0]) == _KINDS["contract"]


def _below(node: Node, view: Node) -> Node | None:
    """The node on `view`'s operand whose result, seen through `view`, is `node`; or None."""
    if node.op.kind == "elementwise" and node.op.index is None:  # operands at the same index
        inputs = [_seen_through(n, view) for n in node.inputs]
        if any(n is None for n in inputs):
            return None
        return make_node(node.op.name, [n for n in inputs if n is not None], node.attrs)
    if view.op.name != "permute":
        return None
    return _below_permute(node, view)


def _below_permute(node: Node, view: Node) -> Node | None:
    """As `_below`, for ops that say something of each axis."""
    axes: tuple[int, ...] = view.attrs.axes
    source, attrs = view.inputs[0], node.attrs
    match node.op.name:
        case "pad":
            moved: Any = PadAttrs(_undo(attrs.before, axes), _undo(attrs.after, axes))
            return make_node("pad", (source, node.inputs[1]), moved)
        case "slice":
            fields = (attrs.starts, attrs.sizes, attrs.steps)
            return make_node("slice", (source,), SliceAttrs(*(_undo(f, axes) for f in fields)))
        case "expand":
            return expand_to(source, _undo(attrs.shape, axes))
        case "gather" if node.inputs[0] is view and node.inputs[1].type.rank == 1:
            return make_node("gather", (source, node.inputs[1]), GatherAttrs(axes[attrs.axis]))
        case "concat":
            inputs = [_same_view(n, view) for n in node.inputs]
            if any(n is None for n in inputs):
                return None
            kept = [n for n in inputs if n is not None]
            return make_node("concat", kept, ConcatAttrs(axes[attrs.axis]))
        case _ if node.op.kind == "reduce" and isinstance(attrs, ReduceAttrs):
            reduced = tuple(axes[a] for a in attrs.axes)
            if list(reduced) != sorted(reduced):
                return None
            return make_node(node.op.name, (source,), ReduceAttrs(reduced, attrs.propagate_nan))
    return None


def _undo(values: tuple[Any, ...], axes: tuple[int, ...]) -> tuple[Any, ...]:
    """Values per axis of a permute's result, in the order of its operand's axes."""
    return tuple(values[axes.index(a)] for a in range(len(axes)))


def _seen_through(node: Node, view: Node) -> Node | None:
    """The tensor whose view is `node`, if that costs nothing."""
    same = _same_view(node, view)
    if same is not None:
        return same
    shape = view.inputs[0].type.shape
    if node.op.is_literal:
        return filled(node.attrs.value, node.attrs.dtype, shape)
    if node.op.name not in ("expand", "constant", "input", "param"):
        return None
    inner = node.inputs[0] if node.op.name == "expand" else node
    if view.op.name == "permute":
        axes = view.attrs.axes
        order = tuple(axes.index(a) for a in range(len(axes)))
        return expand_to(make_node("permute", (inner,), PermuteAttrs(order)), shape)
    narrow = narrow_shape(inner.type.shape, view.type.shape, shape)
    return None if narrow is None else expand_to(reshape_to(inner, narrow), shape)


def _same_view(node: Node, view: Node) -> Node | None:
    """The operand of another view of that kind; sizes of a permute may be equal by a guard only."""
    is_same = node.op is view.op and node.attrs == view.attrs
    is_same = is_same and node.inputs[0].type.rank == view.inputs[0].type.rank
    if is_same and (
        view.op.name == "permute" or node.inputs[0].type.shape == view.inputs[0].type.shape
    ):
        return node.inputs[0]
    return None
