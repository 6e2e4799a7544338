"""Graph to graph: what is computed stays, how it is said improves.

    Graph --pass--> Graph --pass--> ...

A pass is a pure function on graphs; this list is their order. Products of bytes are found
while the bytes are there, before anything folds. Constants fold before the
algebra, so that its rules see numbers, and again after it, for what it uncovered. Views
of contractions sink before that: what stood between two that cancel is then simple.
Reductions take their final form last, when the shapes below them are settled. The bodies of
loops and branches are graphs too and go through the same list, once what they capture is
settled. CSE and DCE hold by construction and have no pass: equal nodes are one node, and a
graph is what its outputs reach. Take a graph's guards before its passes (`semel.ops.guards`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.errors import InternalError
from semel.ir.graph import Graph
from semel.ir.text import format_graph
from semel.ir.verify import verify_graph
from semel.passes.attention import fuse_attention
from semel.passes.bodies import improve_bodies
from semel.passes.decompose import merge_reduced_axes, split_large_reductions
from semel.passes.fold import fold_constants
from semel.passes.layout import sink_views
from semel.passes.quantise import find_integer_products
from semel.passes.simplify import simplify

Pass = Callable[[Graph], Graph]

__all__ = ["Pass", "default_passes", "run_passes"]


def default_passes() -> tuple[Pass, ...]:
    """The passes in order; each may be left out and the result is the same numbers."""
    return (
        find_integer_products,
        fold_constants,
        simplify,
        sink_views,
        simplify,
        fold_constants,
        fuse_attention,
        merge_reduced_axes,
        split_large_reductions,
        simplify,
    )


def run_passes(graph: Graph, passes: Sequence[Pass] | None = None, verify: bool = False) -> Graph:
    """Apply `passes` in order; with `verify`, a pass that breaks the graph is named."""

    def bodies(graph: Graph) -> Graph:
        return improve_bodies(graph, lambda body: run_passes(body, passes, verify))

    # A pass that comes again would do the same with the same graph: nothing.
    settled: dict[Pass, Graph] = {}
    for each in (*(default_passes() if passes is None else passes), bodies):
        before = graph
        if settled.get(each) is not before:
            graph = each(before)
        if graph is before:
            settled[each] = graph
        if verify and graph is not before:
            _check(each, before, graph)
    return graph


def _check(each: Pass, before: Graph, after: Graph) -> None:
    problems = verify_graph(after)
    problems += [
        f"output '{name}' was {old.type} and became {new.type}."
        for (name, old), new in zip(before.results, after.values, strict=True)
        if old.type != new.type
    ]
    if problems:
        name = getattr(each, "__name__", repr(each))
        raise InternalError(name, f"{' '.join(problems)}\n{format_graph(before)}")
