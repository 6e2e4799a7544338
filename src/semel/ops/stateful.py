"""Run a graph with states again and again by the NumPy references: the oracle of state.

    StateReference(graph)  --run(inputs)-->  outputs, and the states of the next run

A run computes everything from the states as they are, and only when all of it is there takes the
next ones over, and moves held variables on. A run that is refused or fails leaves all as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from semel.ir import expr
from semel.ir.graph import Graph
from semel.ir.late import with_counts
from semel.ops.evaluate import Array, evaluate_nodes
from semel.ops.guard_places import with_guards


class StateReference:
    """A graph, what its states hold, and the held variables by name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = with_guards(with_counts(graph)[0])
        self.states: dict[str, Array] = {}
        self.held: dict[str, int] = {}
        self.reset()

    def reset(self) -> None:
        """Go back to the first values."""
        for leaf in self.graph.states:
            shape = tuple(expr.evaluate(dim, {}) for dim in leaf.type.shape)
            first = np.zeros(shape, leaf.type.dtype.numpy)
            self.states[leaf.attrs.name] = (
                first if leaf.attrs.init is None else leaf.attrs.init.array.copy()
            )
        self.held = {each.variable.name: 0 for each in self.graph.held}

    def run(
        self, inputs: Mapping[str, Any], variables: Mapping[str, int] | None = None
    ) -> list[Array]:
        """The outputs in order; the states are those of the next run from then on."""
        graph = self.graph
        given = {**(variables or {}), **self.held}
        values, env = evaluate_nodes(graph, inputs, given, self.states)
        self.states |= {
            name: np.array(values[chain[-1]], order="C") for name, chain in graph.versions.items()
        }
        self.held = {each.variable.name: expr.evaluate(each.next, env) for each in graph.held}
        return [np.array(values[node], order="C") for _, node in graph.results]
