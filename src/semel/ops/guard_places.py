"""Where guards are checked: with the graph that they are of, or when a body of it is entered.

    Graph  --with_guards-->  the same graph; it and the bodies in it say what must hold there

What an arm of a branch demands of the variables is nobody's business while the other runs, and a
loop that has no iteration demands nothing. So the guards of a body are its own, and are checked
before anything of it runs. Those of a loop without a condition are checked once, before it: they
hold for every iteration, and if there is none they are multiplied by 0.
"""

from __future__ import annotations

from dataclasses import replace

from semel.ir.expr import Dim, Index, atoms, is_positive, minimum, variables
from semel.ir.graph import Graph, Node, make_node, map_bodies, rewrite
from semel.ops.attrs import LoopAttrs
from semel.ops.guards import guards


def with_guards(graph: Graph) -> Graph:
    """The graph with its guards, and its bodies with theirs. Take them before any pass runs."""

    def rule(node: Node) -> Node | None:
        attrs = map_bodies(node.attrs, lambda body: _in_body(node.attrs, body))
        return None if attrs == node.attrs else make_node(node.op.name, node.inputs, attrs)

    found = {**dict(graph.guards), **dict(guards(graph))}
    return _with(rewrite(graph, rule) if graph.has_bodies else graph, found)


def _in_body(attrs: object, body: Graph) -> Graph:
    made = with_guards(body)
    if not isinstance(attrs, LoopAttrs):
        return made
    return _with(made, {a: text for a, text in made.guards if checked_before(attrs, a) is None})


def _with(graph: Graph, found: dict[Dim, str]) -> Graph:
    given = tuple(found.items())
    if given == graph.guards:
        return graph
    return replace(graph, guards=given)


def checked_before(attrs: LoopAttrs, amount: Dim) -> Dim | None:
    """What must be zero before a loop so that a guard of its body is, if that can be said there."""
    is_own = any(v in attrs.body.late for v in variables(amount))
    if attrs.has_condition or is_own:
        return None
    if is_positive(attrs.trip):
        return amount
    if any(isinstance(atom, Index) for atom in atoms(attrs.trip)):
        return None  # an iteration around it says whether it runs
    return amount * minimum(attrs.trip, 1)
