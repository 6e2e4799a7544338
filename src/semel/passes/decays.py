"""Exponentials of what is never positive: `decay` gives the bits of `exp` in fewer instructions.

    before                                  after
    %1 = reduce_max %0 {axes=(1,)} ...      %1 = reduce_max %0 {axes=(1,)} ...
    %2 = expand %1 {shape=(4, 8)} ...       %2 = expand %1 {shape=(4, 8)} ...
    %3 = sub %0 %2 : f32[4,8]               %3 = sub %0 %2 : f32[4,8]
    %4 = exp %3 : f32[4,8]                  %4 = decay %3 : f32[4,8]

A softmax takes the largest element off first, others an absolute value or a square. It is asked
while the graph stands as it was written: later the maximum may be one of maxima.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.passes.patterns import uniform

#: Nodes that are looked through, one below the other.
MAX_DEPTH = 6


@dataclass(frozen=True, slots=True)
class _Signs:
    """Which elements there may be besides zeros of either sign and NaN."""

    negative: bool = True
    positive: bool = True


_ANY, _SIZE, _DISTANCE_DOWN = _Signs(), _Signs(negative=False), _Signs(positive=False)


def find_decays(graph: Graph) -> Graph:
    """Replace every `exp` of what is 0 or less, whatever the inputs are."""
    return rewrite(graph, _rule) if "exp" in graph.ops else graph


def _rule(node: Node) -> Node | None:
    if node.op.name != "exp" or _signs(node.inputs[0], MAX_DEPTH).positive:
        return None
    return make_node("decay", node.inputs)


def _signs(node: Node, depth: int) -> _Signs:
    """The signs of a node's elements, as far as that many nodes below it tell."""
    number = uniform(node)
    if number is not None:
        return _Signs(number.value < 0, number.value > 0)
    if node.op.name == "abs" or _is_square(node):
        return _SIZE
    if _is_below_largest(node):
        return _DISTANCE_DOWN
    if depth == 0 or not (node.op.is_view or node.op.name in _PASSED):
        return _ANY
    operands = node.inputs[1:] if node.op.name == "where" else node.inputs
    return _combined(node, [_signs(operand, depth - 1) for operand in operands])


#: What `_combined` knows besides views.
_PASSED = ("neg", "add", "mul", "div", "min", "max", "where")


def _combined(node: Node, signs: list[_Signs]) -> _Signs:
    """The signs of a result by those of its operands."""
    a, b = signs[0], signs[-1]
    match node.op.name:
        case "neg":
            return _Signs(a.positive, a.negative)
        case "div" if not (uniform(node.inputs[1]) and (b.negative or b.positive)):
            return _ANY  # a zero has a sign that tells that of infinity
        case "mul" | "div":
            return _Signs(
                (a.negative and b.positive) or (a.positive and b.negative),
                (a.positive and b.positive) or (a.negative and b.negative),
            )
        case "min":
            return _Signs(a.negative or b.negative, a.positive and b.positive)
        case "max":
            return _Signs(a.negative and b.negative, a.positive or b.positive)
    return _Signs(a.negative or b.negative, a.positive or b.positive)


def _is_square(node: Node) -> bool:
    return node.op.name == "mul" and node.inputs[0] is node.inputs[1]


def _is_below_largest(node: Node) -> bool:
    """Whether it is x - max(x), along axes or with another operand."""
    if node.op.name != "sub":
        return False
    x, top = node.inputs
    top = top.inputs[0] if top.op.name == "expand" else top
    return top.op.name in ("reduce_max", "max") and any(each is x for each in top.inputs)
