"""Weights that are stored narrower than they are computed with.

    (cast(q) - zero) * scale  of weights  -->  is_widened: True

A contraction may read the narrow bytes and widen them in registers: memory holds, and every
run reads, a quarter of what the wide weights would take. Constant folding leaves such
weights alone because a fold never makes a program bigger.
"""

from __future__ import annotations

from semel.ir.expr import Dim, product
from semel.ir.graph import Node
from semel.ops.stored import KNOWN

#: Work per element above which widened weights are worth storing.
_MAX_NODES = 12


def is_widened(node: Node) -> bool:
    """Whether a node is cheap arithmetic on weights, with a cast from a narrower dtype."""
    seen: set[Node] = set()
    stack, widens = [node], False
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.op.name in KNOWN:
            continue
        if current.op.kind != "elementwise" and not current.op.is_view:
            return False
        if current.op.cost > 2 or sum(n.op.kind == "elementwise" for n in seen) > _MAX_NODES:
            return False
        if current.op.converts and current.inputs[0].type.dtype.bits < current.type.dtype.bits:
            widens = True
        stack.extend(current.inputs)
    return widens


def block_sizes(right: Node, depth: Dim) -> tuple[Dim, Dim] | None:
    """How widened weights split k into blocks that share a scale, or None."""
    if not isinstance(depth, int) or not is_widened(right):
        return None
    stack = [right]
    while stack:
        node = stack.pop()
        if node.op.name == "reshape" and node.inputs[0].op.name == "expand":
            source, shape = node.inputs[0].type.shape, node.type.shape
            is_split = len(source) == len(shape) + 1 and source[-1] == shape[-1]
            if is_split and shape[-2] == depth == product(source[-3:-1]):
                return source[-3], source[-2]
        elif node.op.kind == "elementwise" or node.op.is_view:
            stack.extend(node.inputs)
    return None
