"""What rewrite rules share: seeing a number through movement, and making one.

    node --uniform--> the scalar all its elements equal, or None

A frontend writes `x * 2` as `mul(x, scalar 2)`, and as `mul(x, expand(reshape(scalar 2)))` where a
size is a variable; rules look at the 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from semel.ir.graph import Node, make_node
from semel.ir.types import Shape
from semel.ops.attrs import ExpandAttrs, ReshapeAttrs, ScalarAttrs, SliceAttrs

#: Of which nodes a pass is, if not of all.
Where: TypeAlias = Callable[[Node], bool]


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


def below_expand(view: Node, stretched: Node) -> Node | None:
    """A view of what is stretched as what is stretched of a view: it moves few elements there.

    None for a reshape that does more than to add and drop axes of size 1.
    """
    source, shape = stretched.inputs[0], view.type.shape
    before = source.type.shape
    match view.op.name:
        case "permute":
            moved = make_node("permute", (source,), view.attrs)
        case "slice":
            is_one = [a == 1 != b for a, b in zip(before, stretched.type.shape, strict=True)]
            attrs = view.attrs
            moved = make_node(
                "slice",
                (source,),
                SliceAttrs(
                    tuple(0 if one else n for one, n in zip(is_one, attrs.starts, strict=True)),
                    tuple(1 if one else n for one, n in zip(is_one, attrs.sizes, strict=True)),
                    tuple(1 if one else n for one, n in zip(is_one, attrs.steps, strict=True)),
                ),
            )
        case "reshape":
            sides = zip(before, stretched.type.shape, strict=True)
            kept = [(old, size) for old, size in sides if size != 1]
            if [size for _, size in kept] != [size for size in shape if size != 1]:
                return None
            rest = iter(kept)
            moved = reshape_to(source, tuple(1 if d == 1 else next(rest)[0] for d in shape))
        case _:
            return None
    return expand_to(moved, shape)
