"""Find attention written out as matmul, softmax, matmul.

Before:  %m = reduce_max %s;  %e = exp(%s - %m);  %p = %e * (1 / reduce_sum %e);  matmul %p, %v
After:   softmax_matmul %s, %v

The scores %s may be anything; if they come from a matmul, scheduling takes that into
the same kernel, with the scale and the masks between. The weights %p must have no
other user. Only float32 and float64: half types round the weights in between.
"""

from __future__ import annotations

from semel.ir.graph import Graph, Node, make_node, rewrite, users
from semel.ops.attrs import AttentionAttrs
from semel.passes.patterns import is_uniform


def fuse_attention(graph: Graph) -> Graph:
    """Replace softmax followed by matmul wherever the weights are used only there."""
    counts = {node: len(found) for node, found in users(graph.nodes).items()}

    def rule(node: Node) -> Node | None:
        if node.op.name != "matmul" or node.type.dtype.is_half:
            return None
        weights, values = node.inputs
        if counts.get(weights, 1) > 1 or weights in graph.outputs:
            return None
        scores = _softmax_operand(weights)
        return (
            None
            if scores is None
            else make_node("softmax_matmul", (scores, values), AttentionAttrs())
        )

    return rewrite(graph, rule)


def _softmax_operand(node: Node) -> Node | None:
    """The scores whose softmax over the last axis `node` is, or None."""
    if node.op.name != "mul":
        return None
    for exponentials, factor in (node.inputs, node.inputs[::-1]):
        total = _reciprocal_operand(_below_expand(factor))
        if total is None or not _reduces_last(total, "reduce_sum", exponentials):
            continue
        if exponentials.op.name != "exp" or exponentials.inputs[0].op.name != "sub":
            continue
        scores, top = exponentials.inputs[0].inputs
        if _reduces_last(_below_expand(top), "reduce_max", scores):
            return scores
    return None


def _below_expand(node: Node) -> Node:
    return node.inputs[0] if node.op.name == "expand" else node


def _reciprocal_operand(node: Node) -> Node | None:
    if node.op.name != "div" or not is_uniform(node.inputs[0], 1.0):
        return None
    return node.inputs[1]


def _reduces_last(node: Node, name: str, operand: Node) -> bool:
    """Whether `node` reduces exactly the last axis of `operand`."""
    if node.op.name != name or node.inputs[0] is not operand:
        return False
    return bool(node.attrs.axes == (operand.type.rank - 1,))
