"""Outputs that are written in part: what they are made of is stored once, in their memory.

    y : f32[n,4], used twice;  update(frame, y) : f32[8,4]    --read_frames-->
    update(frame, y) : f32[8,4];  slice(update, 0:n) : f32[n,4], used in the place of y

Whoever else needs the elements reads them there: index arithmetic, as with the rows of a state.
What is computed for a tall matrix, batch times rows, is stored from there row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.ir.graph import Graph, Node, make_node, stands_for, users
from semel.ir.lineage import note
from semel.ir.types import Shape
from semel.ops.attrs import ReshapeAttrs, SliceAttrs, UpdateAttrs
from semel.ops.state import fills_frame, written_shape

Users = Mapping[Node, Sequence[Node]]


def read_frames(graph: Graph) -> Graph:
    """The graph in which only the updates of frames read what they store."""
    updates = [node for node in graph.values if fills_frame(node)]
    if not updates:
        return graph
    used_by = users(graph.nodes)
    frames = {_made(node.inputs[1], used_by): node for node in updates}
    new: dict[Node, Node] = {}
    read: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in new:
            continue
        new[node] = _over(node, tuple(read.get(n, new[n]) for n in node.inputs))
        if node in frames and not _is_at_hand(node) and not _is_summed_product(node, used_by):
            update = new[frames[node]] = _stored(frames[node], new[node])
            read[node] = _written(update, node.type.shape)
    note(new)
    return graph.with_outputs([new[n] for n in graph.outputs])


# ---------------------------------------------------------------- what is stored


def _made(node: Node, used_by: Users) -> Node:
    """What computes the elements of an output, if all who need them may read them there."""
    while node.op.name == "reshape" and _may_be_read_there(node, used_by):
        node = node.inputs[0]
    return node


def _may_be_read_there(view: Node, used_by: Users) -> bool:
    """Whether the operand of a reshape is read as well in the shape that the view has.

    Rows of a batch lie apart in the output. Elements are found there all the same; contractions
    and kernels of their own want rows that follow each other.
    """
    base = view.inputs[0]
    if _without_ones(view.type.shape) == _without_ones(base.type.shape):
        return True
    if view.type.shape[-1:] != base.type.shape[-1:]:
        return False
    return not any(_is_streamed(user, used_by) for user in used_by[base] if user is not view)


def _is_streamed(user: Node, used_by: Users) -> bool:
    if user.op.kind == "movement":
        return any(_is_streamed(each, used_by) for each in used_by[user])
    return user.op.kind != "elementwise" and user.op.kind != "reduce"


def _without_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _is_at_hand(node: Node) -> bool:
    """Whether the elements lie in memory anyhow: those of a leaf, in another order perhaps."""
    while node.op.kind == "movement" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op.kind == "leaf"


def _is_summed_product(node: Node, used_by: Users) -> bool:
    """Whether sums may add these elements up as products, which they multiply themselves.

    They round once (docs/decisions/0075-known-and-fused.md), whoever stores the products besides.
    """
    made = node
    while made.op.kind == "movement" and len(made.inputs) == 1:
        made = made.inputs[0]
    return made.op.is_product and _is_reduced(node, used_by)


def _is_reduced(node: Node, used_by: Users) -> bool:
    """Whether a reduction reads a node, or a view of it."""
    return any(
        user.op.kind == "reduce" or (user.op.kind == "movement" and _is_reduced(user, used_by))
        for user in used_by[node]
    )


# ---------------------------------------------------------------- how it is said


def _over(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The node with these operands."""
    if inputs == node.inputs:
        return node
    made = make_node(node.op.name, inputs, node.attrs)
    stands_for(made, node)
    return made


def _stored(update: Node, made: Node) -> Node:
    """The update, of elements that are made by another node: in the shape they are made in."""
    frame, shape = update.inputs[0], written_shape(update)
    while made.op.name == "reshape":
        made = made.inputs[0]
    if made.type.shape[-1:] != shape[-1:]:
        return _over(update, (frame, _shaped(made, shape)))
    attrs = UpdateAttrs(update.attrs.starts, () if made.type.shape == shape else shape)
    stored = make_node("update", (frame, made), attrs)
    stands_for(stored, update)
    return stored


def _written(update: Node, shape: Shape) -> Node:
    """The elements of an output that a run writes, in this shape."""
    sizes, rank = written_shape(update), update.type.rank
    attrs = SliceAttrs(update.attrs.starts, sizes, (1,) * rank)
    return _shaped(make_node("slice", (update,), attrs), shape)


def _shaped(node: Node, shape: Shape) -> Node:
    is_same = node.type.shape == shape
    return node if is_same else make_node("reshape", (node,), ReshapeAttrs(shape))
