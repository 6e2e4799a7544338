"""The bodies of loops and branches: constants move in, and then every pass goes over them.

    before                                      after
    %0 = constant @0 : f32[8,32]                body 0: %1 = constant @0 : f32[8,32]
    %1 = permute %0 : f32[32,8]                         %2 = permute %1 : f32[32,8]
    %2 = loop %h %x %1 {body=0}                         %3 = matmul %0 %2
    body 0: %3 = matmul "0" "2"                 %0 = loop %h %x {body=0}

A captured value that is a constant seen through movement is the same whenever the body runs,
and inside it can be folded, packed and read in whatever order suits. A state that no iteration
changes is a captured value. Operands that no body reads any more are dropped, and so is a loop
that never runs. A branch that is decided is no branch: what its body demands and finds out is
demanded and found out by the graph around it. Nothing else ever leaves a body.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from semel.ir.expr import Dim, LateVariable, substitute
from semel.ir.graph import Graph, Node, attr_bodies, make_node, rewrite
from semel.ir.late import in_order, substitute_graph
from semel.ops.attrs import CondAttrs, LoopAttrs
from semel.ops.bodies import body_operand, replace_operands, some_outputs, with_bodies
from semel.ops.filled import filled
from semel.ops.narrow_weights import is_widened
from semel.ops.stored import KNOWN
from semel.passes.patterns import is_uniform, uniform

Improve = Callable[[Graph], Graph]


def improve_bodies(graph: Graph, improve: Improve) -> Graph:
    """Apply `improve` to every body, with the constants that it captures inside."""
    if not graph.has_bodies:
        return graph
    done: dict[Graph, Graph] = {}
    around = _Around(graph)

    def once(body: Graph) -> Graph:
        if body not in done:
            done[body] = improve(body)
        return done[body]

    def rule(node: Node) -> Node | None:
        match node.op.name:
            case "loop":
                return _improve_loop(node, once)
            case "cond":
                return _improve_cond(node, once, around)
        return None

    return around.with_insides(rewrite(graph, rule))


class _Around:
    """A graph, and what it takes over from the bodies that are run right in it."""

    def __init__(self, graph: Graph) -> None:
        self._names = {v.name for v in graph.late} | _names_inside(graph)
        self._counts: dict[LateVariable, Node] = {}
        self._guards: dict[Dim, str] = {}
        self._known: dict[Graph, Graph] = {}

    def run(self, body: Graph, operands: Sequence[Node]) -> tuple[Node, ...]:
        """The values of a body, run once, right here."""
        placed = _in_place(self._renamed(body), operands)
        self._counts |= dict(zip(placed.late, placed.outputs, strict=False))
        self._guards |= dict(placed.guards)
        return placed.values

    def _renamed(self, body: Graph) -> Graph:
        """The body with names for its late variables that nothing here has."""
        if not body.late:
            return body
        if body not in self._known:
            by: dict[Any, LateVariable] = {}
            for v in body.late:
                fresh = (f"{v.name}_{i}" for i in itertools.count())
                name = next(each for each in fresh if each not in self._names)
                self._names.add(name)
                by[v] = LateVariable(name, v.min, v.max, substitute(v.limit, by))
            self._known[body] = substitute_graph(body, by)
        return self._known[body]

    def with_insides(self, graph: Graph) -> Graph:
        """The graph with what was taken over, each count behind those that it needs."""
        if not self._counts and not self._guards:
            return graph
        own = dict(zip(graph.late, graph.outputs, strict=False))
        counts = in_order({**own, **self._counts})
        first = len(graph.late)
        return replace(
            graph,
            outputs=(*counts.values(), *graph.outputs[first:]),
            names=(*(v.name for v in counts), *graph.names[first:]),
            late=tuple(counts),
            guards=tuple({**dict(graph.guards), **self._guards}.items()),
        )


def _names_inside(graph: Graph) -> set[str]:
    """The names of all variables, of those too that bodies have for themselves."""
    names = {v.name for v in graph.variables}
    for body in (body for node in graph.nodes for body in attr_bodies(node.attrs)):
        names |= _names_inside(body) | {v.name for v in body.late}
    return names


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
    return filled(0, node.type.dtype, node.type.shape)


def _improve_cond(node: Node, improve: Improve, around: _Around) -> Node:
    attrs: CondAttrs = node.attrs
    known = uniform(node.inputs[0])
    if known is not None:
        body = attrs.then if known.value else attrs.orelse
        return around.run(body, node.inputs)[attrs.output]
    node = with_bodies(node, lambda body: improve(_with_constants(body, node)))
    return _without_unread(node)


def _in_place(body: Graph, operands: Sequence[Node]) -> Graph:
    """The body over these nodes."""
    return replace_operands(body, {str(i): operand for i, operand in enumerate(operands)})


# ---------------------------------------------------------------- operands


def _capture_unchanged(node: Node) -> Node:
    """The loop with the states that no iteration changes as captured values; their initial value,
    if that is the result."""
    attrs: LoopAttrs = node.attrs
    same = [
        k
        for k, output in enumerate(attrs.body.values[: attrs.num_states])
        if output.op.name == "input" and output.attrs.name == str(k)
    ]
    if attrs.output in same:
        return node.inputs[attrs.output]
    if not same:
        return node
    order = [k for k in range(len(node.inputs)) if k not in same] + same
    new = {str(old): body_operand(k, node.inputs[old].type) for k, old in enumerate(order)}
    kept = [k for k in range(len(attrs.body.values)) if k not in same]
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
    moved = (i for i in fixed if _is_constant(node.inputs[i]) or _is_narrow(node.inputs[i]))
    return replace_operands(body, {str(i): node.inputs[i] for i in moved})


def _is_constant(node: Node) -> bool:
    """Whether a node is known before any run, seen through movement."""
    while node.op.kind == "movement" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op.name in KNOWN


def _is_narrow(node: Node) -> bool:
    """Whether a matrix is stored narrower than it is: products in the body widen what they read."""
    return node.type.rank >= 2 and is_widened(node)


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
