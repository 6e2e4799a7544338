"""Values that nothing is computed for: elements that are put elsewhere, without a program.

    Outline of movement  --move-->  array, by the references of the ops

A slice, a mask that is an array, a roll or a pad of a new size is another form, and a kernel for it
would be compiled to run once. NumPy moves the same elements in the time that such a program takes,
and there is nothing that could come out as other bits. So this is no compile, and none is counted.
What is larger than `MAX_MOVED_BYTES` is worth kernels, which use all cores.
"""

from __future__ import annotations

import numpy as np

from semel.ir.graph import Array, Node
from semel.ir.outline import Outline
from semel.ops.evaluate import evaluate_node

MAX_MOVED_BYTES = 1 << 20


def is_moved(outline: Outline) -> bool:
    """Whether the value is small, and made of elements and of their places alone."""
    if outline.late:
        return False
    is_place = [True] * len(outline.nodes)
    is_place[-1] = False
    for place in reversed(range(len(outline.nodes))):
        node = outline.nodes[place]
        if not _is_moved(node, is_place[place]):
            return False
        for number, operand in enumerate(outline.wires[place]):
            is_place[operand] &= number == 1 if node.op.gathers else is_place[place]
    return True


def move(outline: Outline) -> Array:
    """The value of the outline's last node, an array of its own."""
    values: list[Array] = []
    for node, wires in zip(outline.nodes, outline.wires, strict=True):
        values.append(evaluate_node(node, tuple([values[k] for k in wires]), {}))
    return np.array(values[-1], order="C")


def _is_moved(node: Node, is_place: bool) -> bool:
    """The same of one node; arithmetic on integers is part of it where they are places."""
    op = node.op
    if op.name in ("constant", "param"):
        return True  # of any size: it is there
    size_bytes = node.type.max_bytes
    if size_bytes is None or size_bytes > MAX_MOVED_BYTES:
        return False
    # Elements as they are, checked indices, and what counts places and has no operands.
    is_choice = op.kind == "elementwise" and (op.carries or op.may_fail or not node.inputs)
    is_whole = not any(each.type.dtype.is_float for each in (node, *node.inputs))
    is_index = is_place and is_whole and op.is_pointwise
    return op.is_literal or op.kind == "movement" or is_choice or is_index
