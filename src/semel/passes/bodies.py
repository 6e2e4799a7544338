"""The bodies of loops and branches: constants move in, and then every pass goes over them.

    before                                      after
    %0 = constant @0 : f32[8,32]                body 0: %1 = constant @0 : f32[8,32]
    %1 = permute %0 : f32[32,8]                         %2 = permute %1 : f32[32,8]
    %2 = loop %h %x %1 {body=0}                         %3 = matmul %0 %2
    body 0: %3 = matmul "0" "2"                 %0 = loop %h %x {body=0}

A captured value that is a constant seen through movement is the same whenever the body runs,
and inside it can be folded, packed and read in whatever order suits. A state that no iteration
changes is a captured value. Operands that no body reads any more are dropped, and so is a loop
that never runs, and a branch that is decided. Nothing ever leaves a body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ops.attrs import CondAttrs, LoopAttrs
from semel.ops.bodies import body_operand, replace_operands, some_outputs, with_bodies
from semel.passes.patterns import full, is_uniform, uniform

Improve = Callable[[Graph], Graph]


def improve_bodies(graph: Graph, improve: Improve) -> Graph:
    """Apply `improve` to every body, with the constants that it captures inside."""
    done: dict[Graph, Graph] = {}

    def once(body: Graph) -> Graph:
        if body not in done:
            done[body] = improve(body)
        return done[body]

    def rule(node: Node) -> Node | None:
        match node.op.name:
            case "loop":
                return _improve_loop(node, once)
            case "cond":
                return _improve_cond(node, once)
        return None

    return rewrite(graph, rule)


def _improve_loop(node: Node, improve: Improve) -> Node:
    if _never_runs(node):
        return _without_iterations(node)
    node = _capture_unchanged(node)
    if node.op.name == "loop":
        node = with_bodies(node, lambda body: improve(_with_constants(body, node)))
        node = _capture_unchanged(node)  # an iteration may have added 0
    return _without_unread(node) if node.op.name == "loop" else node


def _never_runs(node: Node) -> bool:
    attrs: LoopAttrs = node.attrs
    first = node.inputs[attrs.num_states] if attrs.has_condition else None
    return attrs.trip == 0 or (first is not None and is_uniform(first, False))


def _without_iterations(node: Node) -> Node:
    """The initial state, or nothing but zeros: no iterations and no rows of any."""
    attrs: LoopAttrs = node.attrs
    if attrs.output < attrs.num_states:
        return node.inputs[attrs.output]
    return full(0, node.type.dtype, node.type.shape)


def _improve_cond(node: Node, improve: Improve) -> Node:
    attrs: CondAttrs = node.attrs
    known = uniform(node.inputs[0])
    if known is not None:
        body = attrs.then if known.value else attrs.orelse
        return _in_place(body, node.inputs).outputs[attrs.output]
    node = with_bodies(node, lambda body: improve(_with_constants(body, node)))
    return _without_unread(node)


def _in_place(body: Graph, operands: Sequence[Node]) -> Graph:
    """The body, run once, right here."""
    return replace_operands(body, {str(i): operand for i, operand in enumerate(operands)})


# ---------------------------------------------------------------- operands


def _capture_unchanged(node: Node) -> Node:
    """The loop with the states that no iteration changes as captured values; their initial value,
    if that is the result."""
    attrs: LoopAttrs = node.attrs
    same = [
        k
        for k, output in enumerate(attrs.body.outputs[: attrs.num_states])
        if output.op.name == "input" and output.attrs.name == str(k)
    ]
    if attrs.output in same:
        return node.inputs[attrs.output]
    if not same:
        return node
    order = [k for k in range(len(node.inputs)) if k not in same] + same
    new = {str(old): body_operand(k, node.inputs[old].type) for k, old in enumerate(order)}
    kept = [k for k in range(len(attrs.body.outputs)) if k not in same]
    changed = replace(
        attrs,
        body=replace_operands(some_outputs(attrs.body, kept), new),
        num_states=attrs.num_states - len(same),
        output=kept.index(attrs.output),
    )
    return make_node("loop", [node.inputs[k] for k in order], changed)


def _with_constants(body: Graph, node: Node) -> Graph:
    """The body with the constants among its operands inside, but for states that change."""
    attrs = node.attrs
    fixed = range(1, len(node.inputs))
    if isinstance(attrs, LoopAttrs):
        fixed = range(attrs.first_captured, len(node.inputs))
    return replace_operands(
        body, {str(i): node.inputs[i] for i in fixed if _is_constant(node.inputs[i])}
    )


def _is_constant(node: Node) -> bool:
    """Whether a node is sealed data, seen through movement."""
    while node.op.kind == "movement" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op.name in ("constant", "scalar")


def _without_unread(node: Node) -> Node:
    """The node without the operands that no body reads."""
    attrs = node.attrs
    bodies = (attrs.then, attrs.orelse) if isinstance(attrs, CondAttrs) else (attrs.body,)
    read = {int(n.attrs.name) for body in bodies for n in body.inputs}
    always = attrs.first_captured if isinstance(attrs, LoopAttrs) else 1
    kept = [i for i in range(len(node.inputs)) if i < always or i in read]
    if len(kept) == len(node.inputs):
        return node
    operands = tuple(node.inputs[i] for i in kept)
    new = {str(old): body_operand(k, node.inputs[old].type) for k, old in enumerate(kept)}
    changed = {
        name: replace_operands(body, new) for name, body in zip(_names(attrs), bodies, strict=True)
    }
    return make_node(node.op.name, operands, replace(attrs, **changed))


def _names(attrs: CondAttrs | LoopAttrs) -> tuple[str, ...]:
    return ("then", "orelse") if isinstance(attrs, CondAttrs) else ("body",)
