"""What rewrite rules share: seeing a number through movement, and making one.

    node --uniform--> the scalar all its elements equal, or None

A frontend writes `x * 2` as `mul(x, scalar 2)`, and as `mul(x, expand(reshape(scalar 2)))` where a
size is a variable; rules look at the 2.
"""

from __future__ import annotations

from typing import Any

from semel.ir.graph import Node, make_node
from semel.ir.types import Shape
from semel.ops.attrs import ExpandAttrs, ReshapeAttrs, ScalarAttrs


def uniform(node: Node) -> ScalarAttrs | None:
    """The scalar that `node` repeats, seen through movement; None if it is not one."""
    while node.op.is_view:  # every element is one of the operand's
        node = node.inputs[0]
    if not node.op.is_literal:
        return None
    attrs: ScalarAttrs = node.attrs
    return attrs


def is_uniform(node: Node, value: Any) -> bool:
    """Whether every element is `value`, with the sign of zero taken seriously."""
    found = uniform(node)
    return found is not None and found.key == ScalarAttrs(value, found.dtype).key


def reshape_to(node: Node, shape: Shape) -> Node:
    """`node` in another shape; itself if it has that shape."""
    return node if node.type.shape == shape else make_node("reshape", (node,), ReshapeAttrs(shape))


def expand_to(node: Node, shape: Shape) -> Node:
    """`node` stretched to `shape`; itself if it has that shape."""
    return node if node.type.shape == shape else make_node("expand", (node,), ExpandAttrs(shape))
