"""The bytes that a kernel must move: of a tensor that it looks at through slices, only these.

    Lowered  --with_moved_bytes-->  Kernel that says how many

Caches and outputs of the largest shape are read and written in part. How many participants a
call is worth, and what reports say of it, follows from what is really moved.
"""

from __future__ import annotations

from dataclasses import replace

from semel.ir.expr import Dim, minimum, product, variables
from semel.ir.graph import Node
from semel.kernel.ir import Kernel
from semel.lower.lowered import Lowered, nodes_of
from semel.ops.state import stored_shape
from semel.schedule.group import Group


def with_moved_bytes(lowered: Lowered) -> Kernel:
    """The kernel of a group, that says what it reads and writes, each element once."""
    kernel = lowered.kernel
    moved, readers = kernel.bytes, _readers(lowered.group)
    for node in nodes_of(lowered):
        spared = node.type.num_elements - _used(lowered.group, node, readers.get(node, []))
        moved = moved - spared * node.type.dtype.size_bytes
    if moved == kernel.bytes:
        return kernel
    known = sorted({*kernel.variables, *variables(moved)}, key=lambda v: v.name)
    return replace(kernel, bytes=moved, variables=tuple(known))


def _readers(group: Group) -> dict[Node, list[Node]]:
    """What reads each tensor, once each; an update writes its first operand."""
    found: dict[Node, list[Node]] = {}
    for node in group.inside:
        for operand in dict.fromkeys(node.inputs[node.op.kind == "update" :]):
            found.setdefault(operand, []).append(node)
    return found


def _used(group: Group, node: Node, views: list[Node]) -> Dim:
    """How many elements of a tensor the kernel of a group reads, or writes if it stores it."""
    whole = node.type.num_elements
    if node in group.outputs:
        return product(stored_shape(node)) if node.op.kind == "update" else whole
    if not views or any(view.op.name != "slice" for view in views):
        return whole
    if len(views) == 1:
        return views[0].type.num_elements
    used: Dim = 0
    for view in views:
        used = used + view.type.num_elements
    return minimum(used, whole)
