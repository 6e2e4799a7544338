"""Concatenations, one loop nest per part.

    root over [0, n + m)  -->  a nest over [0, n), a nest over [n, n + m)

Where a group's loop runs along the axis of a concatenation, asking at every element
which operand it comes from would read and compute all of them. Cut at the boundaries,
each nest knows its operand, and the test disappears in index arithmetic.
"""

from __future__ import annotations

from semel.ir.expr import Dim, Index
from semel.ir.graph import Node
from semel.ops.index_maps import Indices, operand_index
from semel.ops.movement import MAX_PARTS
from semel.schedule.group import Group

Span = tuple[Dim, Dim]


def find_parts(group: Group, loops: Indices) -> tuple[int, list[Span]] | None:
    """The root's axis to cut, and (start, size) of every part; None if nothing is to cut."""
    inside = set(group.inside)
    stack: list[tuple[Node, Indices]] = [(n, loops) for n in group.outputs]
    seen: set[tuple[Node, Indices]] = set()
    while stack:
        node, at = stack.pop()
        if (node, at) in seen or node not in inside:
            continue
        seen.add((node, at))
        if node.op.parts is not None and len(node.inputs) <= MAX_PARTS:
            axis, _ = node.op.parts(node)
            along = at[axis]
            # Under a pad or a slice the loop is longer or shorter than the parts together.
            whole = isinstance(along, Index) and along.extent == node.type.shape[axis]
            if whole and along in loops:
                return loops.index(along), spans_of(node)
        if node.op.parts is not None or node.op.gathers:
            continue
        for k, operand in enumerate(node.inputs):
            stack.append((operand, operand_index(node, k, at, _never)))
    return None


def spans_of(node: Node) -> list[Span]:
    """Start and size of each part of a concatenation that has elements."""
    assert node.op.parts is not None
    axis, starts = node.op.parts(node)
    sizes = [n.type.shape[axis] for n in node.inputs]
    return [(start, size) for start, size in zip(starts, sizes, strict=True) if size != 0]


def _never(node: Node, at: Indices) -> Dim:
    raise AssertionError(f"{node!r} does not read indices from memory")
