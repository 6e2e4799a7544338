"""What a plan was compiled from, for whoever wants it for another machine too.

    Graph, options  --GraphSource-->  GraphSource  --target's name-->  Program

A plan holds its source as long as it lives, and must not hold weights twice: of constants and
params the source knows where they are and does not keep them. While somebody else has them, a
model or a mapped file, the graph can be put together again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from semel.errors import PlanError
from semel.ir.form import graph_form
from semel.ir.graph import Graph, Node, Storage, make_node, rewrite
from semel.ops.attrs import InputAttrs
from semel.plan.program import Program

#: Stands in front of names that no caller's input can have.
_MARK = "\0"
#: Where leaves have data.
_DATA = {"constant": "storage", "param": "storage", "input": "default", "state": "init"}


@dataclass(frozen=True, slots=True)
class _Weight:
    """A leaf without its data."""

    op: str
    make: Callable[[Storage], Any]
    storage: weakref.ref[Storage]
    label: str


class GraphSource:
    """Compiles the graph of a plan for a target by its name, with `compile_for`.

    `keep` are nodes of it that go by name.
    """

    def __init__(
        self, graph: Graph, keep: Mapping[str, Node], compile_for: Callable[[Graph, str], Program]
    ) -> None:
        self._weights: dict[Node, _Weight] = {}
        self._graph: Graph | None = None
        leaves = {data for node in graph.nodes if (data := _data(node)) is not None}
        # Nodes that go by name would hold all below them; data in the body of a loop is no leaf.
        if not keep and set(graph_form(graph).storages) == leaves:
            self._compile_for = compile_for
            self._graph = rewrite(graph, self._hollow)

    def __call__(self, target: str) -> Program:
        """The program for a target; PlanError if a weight is gone."""
        if self._graph is None:
            raise PlanError(
                "save",
                "a plan with `keep`, or with constants in the body of a loop, must be saved for "
                "the machine it was prepared for.",
            )
        graph = rewrite(self._graph, self._fill) if self._weights else self._graph
        return self._compile_for(graph, target)

    def _hollow(self, node: Node) -> Node | None:
        storage = _data(node)
        if storage is None:
            return None
        kind, where = type(node.attrs), _DATA[node.op.name]
        rest = {f.name: getattr(node.attrs, f.name) for f in fields(kind) if f.name != where}
        if where == "storage":  # nothing without its data: an input keeps its place
            attrs: Any = InputAttrs(f"{_MARK}{len(self._weights)}", node.type)
            hollow = make_node("input", (), attrs)
        else:
            hollow = make_node(node.op.name, (), kind(**rest))
        self._weights[hollow] = _Weight(
            node.op.name,
            lambda data: kind(**{where: data}, **rest),
            weakref.ref(storage),
            rest.get("name") or f"a constant {node.type}",
        )
        return hollow

    def _fill(self, node: Node) -> Node | None:
        weight = self._weights.get(node)
        if weight is None:
            return None
        storage = weight.storage()
        if storage is None:
            raise PlanError(
                "save",
                f"weights must be there to be laid out for other targets; {weight.label} is gone.",
                hint="Hold the tensors that the plan was made from until it is saved.",
            )
        return make_node(weight.op, (), weight.make(storage))


def _data(node: Node) -> Storage | None:
    """What a leaf was given."""
    found: Storage | None = getattr(node.attrs, _DATA.get(node.op.name, ""), None)
    return found
