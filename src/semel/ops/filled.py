"""One number for all elements of a shape.

    value, dtype, shape  --filled-->  scalar 2.0 : f32[4,8], or views of scalar 2.0 : f32[]

A number is one node where its shape is numbers, which nearly all are: half of the nodes of small
graphs were views of numbers once. Where a size is a variable, views of the number say so: these
have sizes among their attributes, where all stages look for variables. Kernels that read memory
see numbers through views, too (`spread_numbers`), since what may be read where it lies, and what
must be stored first, is a matter of views.
"""

from __future__ import annotations

from typing import Any

from semel.ir.graph import Graph, Node, make_node, rewrite, stands_for
from semel.ir.types import DType, Shape
from semel.ops.attrs import ExpandAttrs, ReshapeAttrs, ScalarAttrs

#: What computes its elements from its operands' elements, one by one: there a number is code.
_BY_ELEMENTS = ("leaf", "elementwise", "reduce")


def filled(value: Any, dtype: DType, shape: Shape) -> Node:
    """A tensor of one repeated number."""
    if all(type(dim) is int for dim in shape):
        return make_node("scalar", (), ScalarAttrs(value, dtype, shape))
    return repeated(make_node("scalar", (), ScalarAttrs(value, dtype)), shape)


def repeated(number: Node, shape: Shape) -> Node:
    """A node of shape (), for all elements of a shape, by views of it."""
    ones = (1,) * len(shape)
    if ones:
        number = make_node("reshape", (number,), ReshapeAttrs(ones))
    return number if shape == ones else make_node("expand", (number,), ExpandAttrs(shape))


def spread_numbers(graph: Graph) -> Graph:
    """The graph with numbers as views wherever they are not read element by element."""
    readers = [n for n in graph.nodes if n.op.kind not in _BY_ELEMENTS]
    if any(_is_filled(n) for reader in readers for n in reader.inputs):
        return rewrite(graph, _spread)
    return graph


def _spread(node: Node) -> Node | None:
    if node.op.kind in _BY_ELEMENTS or not any(_is_filled(n) for n in node.inputs):
        return None
    inputs = [_as_views(n) if _is_filled(n) else n for n in node.inputs]
    return make_node(node.op.name, inputs, node.attrs)


def _is_filled(node: Node) -> bool:
    return node.op.is_literal and bool(node.type.shape)


def _as_views(node: Node) -> Node:
    attrs: ScalarAttrs = node.attrs
    made = repeated(make_node("scalar", (), ScalarAttrs(attrs.value, attrs.dtype)), attrs.shape)
    stands_for(made, node)
    return made
