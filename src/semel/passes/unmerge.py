"""Reductions of a reshaped tensor reduce the axes that the reshape merges, if a permute is below.

    before                                               after
    %1 = permute %0 {axes=(0, 3, 1, 2)} : f32[1,64,9,9]  %1 = permute %0 {...} : f32[1,64,9,9]
    %2 = reshape %1 : f32[1,32,162]                      %2 = reshape %1 : f32[1,32,2,9,9]
    %3 = reduce_sum %2 {axes=(2,)} : f32[1,32,1]         %3 = reduce_sum %2 {axes=(2, 3, 4)} : ...
                                                         %4 = reshape %3 : f32[1,32,1]

A group norm is written as rows of a reshape. Of those nobody can say in which order the image lies;
of the axes that image and rows are both made of, `reduce_order` can. What is computed element by
element in between is computed in these axes, a second time if others want it, and what goes back to
the axes of the image is computed in those.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.ir.expr import Dim, floordiv
from semel.ir.graph import Node, make_node
from semel.ir.types import Shape
from semel.ops.attrs import ReduceAttrs
from semel.ops.filled import filled
from semel.ops.index_maps import reshape_runs
from semel.passes.patterns import expand_to, reshape_to

#: Nodes between a reshape and a reduction, up to which they are made a second time.
MAX_BETWEEN = 32


def unmerged(node: Node, turns: Callable[[Node], bool]) -> Node | None:
    """The reduction over axes that a reshape merges; None if none does above what `turns`."""
    operand = node.inputs[0]
    shape = operand.type.shape
    for merge in between(operand):
        if merge.op.name != "reshape" or merge.type.shape != shape:
            continue
        source = merge.inputs[0]
        if split_axes(source.type.shape, shape) is None and any(map(turns, between(source))):
            found = _reduced(node, source.type.shape)
            if found is not None:
                return found
    return None


def _reduced(node: Node, shape: Shape) -> Node | None:
    """The reduction over the axes of a tensor of `shape`, from which it was merged."""
    rows, nan = node.inputs[0].type.shape, node.attrs.propagate_nan
    axes = _axes_of_both(shape, rows)
    groups = None if axes is None else split_axes(rows, axes)
    parts = None if axes is None else split_axes(shape, axes)
    if axes is None or groups is None or parts is None:
        return None
    reduced = [a for k in node.attrs.axes for a in groups[k] if axes[a] != 1]
    named = [[a for a in part if axes[a] != 1] for part in parts]
    whole = [k for k, part in enumerate(named) if part and all(a in reduced for a in part)]
    joins = node.op.combiner is not None and node.op.combiner(node.attrs).splits
    if whole and joins and not node.type.dtype.is_half:
        # Whole axes first, in the tensor's own: what is left of them is little.
        below = _Reshaped(shape)(node.inputs[0])
        below = make_node(node.op.name, (below,), ReduceAttrs(tuple(whole), nan))
        done = {a for k in whole for a in named[k]}
        below = reshape_to(below, tuple(1 if a in done else dim for a, dim in enumerate(axes)))
        reduced = [a for a in reduced if a not in done]
    else:
        below = _Reshaped(axes)(node.inputs[0])
    if reduced:
        below = make_node(node.op.name, (below,), ReduceAttrs(tuple(reduced), nan))
    return reshape_to(below, node.type.shape)


def merged_back(node: Node, turns: Callable[[Node], bool]) -> Node | None:
    """A reshape to the axes of what it is computed of, with the arithmetic in these axes.

    None if no operand is the inverse reshape of what `turns`: rows that lie straight stay rows.
    """
    if node.op.name != "reshape" or not is_pointwise(node.inputs[0]):
        return None
    operand, shape = node.inputs[0], node.type.shape
    for merge in between(operand):
        is_inverse = merge.op.name == "reshape" and merge.inputs[0].type.shape == shape
        if is_inverse and any(map(turns, between(merge.inputs[0]))):
            return _Reshaped(shape)(operand)
    return None


class _Reshaped:
    """Tensors in another shape, with reshapes below what is computed element by element."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._made: dict[Node, Node] = {}

    def __call__(self, node: Node) -> Node:
        if node not in self._made:
            self._made[node] = self._reshaped(node)
        return self._made[node]

    def _reshaped(self, node: Node) -> Node:
        shape = self._shape
        if node.op.is_literal:
            return filled(node.attrs.value, node.attrs.dtype, shape)
        if is_pointwise(node):
            return make_node(node.op.name, [self(n) for n in node.inputs], node.attrs)
        if node.op.name == "reshape":
            source = node.inputs[0]
            is_split = split_axes(source.type.shape, shape) is not None
            return self(source) if is_split else reshape_to(source, shape)
        if node.op.name == "expand":
            return _stretched(node.inputs[0], node.type.shape, shape) or reshape_to(node, shape)
        return reshape_to(node, shape)


def _stretched(source: Node, wide: Shape, shape: Shape) -> Node | None:
    """`source`, which stretches to `wide`, in `shape`, stretched no earlier than it must be."""
    axes = _axes_of_both(wide, shape)
    before = None if axes is None else split_axes(wide, axes)
    after = None if axes is None else split_axes(shape, axes)
    if axes is None or before is None or after is None:
        return None
    narrow: list[Dim] = [1] * len(axes)
    for dim, size, group in zip(source.type.shape, wide, before, strict=True):
        if dim == size:
            narrow[group.start : group.stop] = axes[group.start : group.stop]
    mixed = list(narrow)
    joined: list[Dim] = [1] * len(shape)
    for k, group in enumerate(after):
        if any(narrow[a] != 1 for a in group):
            mixed[group.start : group.stop] = axes[group.start : group.stop]
            joined[k] = shape[k]
    some = expand_to(reshape_to(source, tuple(narrow)), tuple(mixed))
    return expand_to(reshape_to(some, tuple(joined)), shape)


def between(node: Node) -> list[Node]:
    """The node, and what it is computed of element by element, users first; empty if too many."""
    found: dict[Node, None] = {}
    stack = [node]
    while stack:
        current = stack.pop()
        if current in found:
            continue
        if len(found) == MAX_BETWEEN:
            return []
        found[current] = None
        if is_pointwise(current):
            stack.extend(current.inputs)
    return sorted(found, key=lambda n: n.id, reverse=True)


def is_pointwise(node: Node) -> bool:
    """Whether an element is computed of those at its own index."""
    return node.op.kind == "elementwise" and node.op.index is None and bool(node.inputs)


def split_axes(shape: Shape, into: Shape) -> list[range] | None:
    """For each axis the axes that it is split into; None if some are merged.

    Axes of 1 come and go: one that has no counterpart is split into none.
    """
    found: list[range] = []
    start = 0
    for dim in shape:
        if dim == 1 and (start == len(into) or into[start] != 1):
            found.append(range(start, start))
            continue
        stop = start
        size: Dim | None = None
        while stop < len(into) and size != dim:
            size = into[stop] if size is None else size * into[stop]
            stop += 1
        if size != dim:
            return None
        found.append(range(start, stop))
        start = stop
    if any(dim != 1 for dim in into[start:]) or (start < len(into) and not found):
        return None
    if found:
        found[-1] = range(found[-1].start, len(into))
    return found


def narrow_shape(inner: Shape, wide: Shape, target: Shape) -> Shape | None:
    """The shape that `inner`, which stretches to `wide`, has where `wide` becomes `target`.

    Axes that merge or split must stretch together or not at all.
    """
    result: list[Dim] = []
    for i, end_i, j, end_j in reshape_runs(wide, target):
        if inner[i:end_i] == wide[i:end_i]:
            result += target[j:end_j]
        elif all(d == 1 for d in inner[i:end_i]):
            result += [1] * (end_j - j)
        else:
            return None
    return tuple(result)


def _axes_of_both(a: Shape, b: Shape) -> Shape | None:
    """The fewest axes of which both shapes are made by merging; None if there are none."""
    found: list[Dim] = []
    for i, end_i, j, end_j in reshape_runs(a, b):
        left, right = [d for d in a[i:end_i] if d != 1], list(b[j:end_j])
        if not left:
            found += right
            continue
        while left and right:
            x, y = left.pop(0), right.pop(0)
            if x == y or y == 1:
                found.append(y)
                left[:0] = [x] if y == 1 else []
                continue
            for large, small, rest in ((x, y, left), (y, x, right)):
                times = floordiv(large, small)
                if times * small == large:
                    found.append(small)
                    rest.insert(0, times)
                    break
            else:
                return None
        if left or any(d != 1 for d in right):
            return None
        found += right
    return tuple(found)
