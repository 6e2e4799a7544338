"""The bodies of loops: constants move in, and then every pass goes over them.

    before                                      after
    %0 = constant @0 : f32[8,32]                body 0: %1 = constant @0 : f32[8,32]
    %1 = permute %0 : f32[32,8]                         %2 = permute %1 : f32[32,8]
    %2 = loop %h %x %1 {body=0}                         %3 = matmul %0 %2
    body 0: %3 = matmul "0" "2"                 %0 = loop %h %x {body=0}

A captured value that is a constant seen through movement is the same in every iteration,
and inside the body it can be folded, packed and read in whatever order suits. Operands that
no body reads any more are dropped, and so is a loop of no iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ops.attrs import LoopAttrs
from semel.ops.loop import loop_operand, replace_operands
from semel.passes.patterns import full


def improve_bodies(graph: Graph, improve: Callable[[Graph], Graph]) -> Graph:
    """Apply `improve` to the body of every loop, with the constants that it captures inside."""
    done: dict[Graph, Graph] = {}

    def rule(node: Node) -> Node | None:
        if node.op.name != "loop":
            return None
        if node.attrs.trip == 0:
            return _without_iterations(node)
        body, operands = _with_constants(node)
        if body not in done:
            done[body] = improve(body)
        body, operands = _without_unread(done[body], operands, node.attrs.num_states)
        attrs: LoopAttrs = replace(node.attrs, body=body)
        return make_node("loop", operands, attrs)

    return rewrite(graph, rule)


def _without_iterations(node: Node) -> Node:
    """The initial state, or no rows at all."""
    attrs: LoopAttrs = node.attrs
    if attrs.output < attrs.num_states:
        return node.inputs[attrs.output]
    return full(0, node.type.dtype, node.type.shape)


def _with_constants(node: Node) -> tuple[Graph, tuple[Node, ...]]:
    """The body with captured constants inside; the operands stay where they are."""
    states = node.attrs.num_states
    inside = {
        str(i): operand
        for i, operand in enumerate(node.inputs)
        if i >= states and _is_constant(operand)
    }
    return replace_operands(node.attrs.body, inside), node.inputs


def _is_constant(node: Node) -> bool:
    """Whether a node is sealed data, seen through movement."""
    while node.op.kind == "movement" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op.name in ("constant", "scalar")


def _without_unread(
    body: Graph, operands: tuple[Node, ...], states: int
) -> tuple[Graph, tuple[Node, ...]]:
    read = {int(n.attrs.name) for n in body.inputs}
    kept = [i for i in range(len(operands)) if i < states or i in read]
    if len(kept) == len(operands):
        return body, operands
    renamed = {str(old): loop_operand(new, operands[old].type) for new, old in enumerate(kept)}
    return replace_operands(body, renamed), tuple(operands[i] for i in kept)
