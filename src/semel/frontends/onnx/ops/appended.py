"""Sequences that a loop builds: what each iteration appends is collected, as rows of one tensor.

    o = []; for i in range(n): o.append(f(i))  -->  a loop without that state, which collects f(i)

Exporters write lists of Python this way, and concatenate or stack them behind the loop. So the
number of iterations may be a size, or data, and nothing is written out. It works for a sequence
that begins empty, and that the body does nothing with but append one item at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import GraphProto, ValueInfoProto

from semel.frontends.onnx.file import walk_nodes
from semel.frontends.onnx.values import AnyValue, Items, Rows, Value

#: Inputs of a body before its states, outputs before them.
_GIVEN, _MADE = 2, 1


@dataclass(frozen=True)
class Appended:
    """A body without the states, by number, that are sequences it appends to."""

    graph: GraphProto
    states: tuple[int, ...]

    def left(self, states: Sequence[AnyValue]) -> list[AnyValue]:
        """The other states."""
        return [state for k, state in enumerate(states) if k not in self.states]

    def together(self, made: Sequence[AnyValue]) -> list[AnyValue]:
        """The outputs of the loop as it was, of those of the loop that it is."""
        count = len(made) - len(self.states)
        found, rows = list(made[:count]), made[count:]
        for k, value in zip(self.states, rows, strict=True):
            assert isinstance(value, Value), "what a loop collects is a tensor"
            found.insert(k, Rows(value.tensor))
        return found


def find_appended(graph: GraphProto, states: Sequence[AnyValue]) -> Appended:
    """The body of a loop, with what it appends to empty sequences as outputs that are collected."""
    reads = Counter(name for node in walk_nodes(graph) for name in node.input)
    bodies = [a.g for node in walk_nodes(graph) for a in node.attribute if a.HasField("g")]
    reads.update(output.name for each in (graph, *bodies) for output in each.output)
    found = {
        k: items
        for k, state in enumerate(states)
        if isinstance(state, Items)
        and not state.items
        and (items := _appended(graph, k, reads)) is not None
    }
    if not found:
        return Appended(graph, ())
    gone = {name for chain, _ in found.values() for name in chain}
    made = GraphProto()
    made.CopyFrom(graph)
    kept = [node for node in graph.node if not gone.intersection(node.output)]
    del made.node[:], made.input[:], made.output[:]
    made.node.extend(kept)
    made.input.extend(v for i, v in enumerate(graph.input) if i - _GIVEN not in found)
    made.output.extend(v for i, v in enumerate(graph.output) if i - _MADE not in found)
    made.output.extend(ValueInfoProto(name=item) for _, item in found.values())
    return Appended(made, tuple(found))


def _appended(graph: GraphProto, state: int, reads: Counter[str]) -> tuple[list[str], str] | None:
    """Names of a sequence on its way through a body, from its end, and what is appended to it."""
    makers = {name: node for node in graph.node for name in node.output}
    given, name = graph.input[_GIVEN + state].name, graph.output[_MADE + state].name
    chain: list[str] = []
    item = ""
    while name != given:
        maker = makers.get(name)
        if maker is None or reads[name] != 1:
            return None
        inputs = list(maker.input)
        if maker.op_type == "SequenceInsert" and not item and not any(inputs[2:]):
            item = inputs[1]
        elif maker.op_type != "Identity":
            return None
        chain.append(name)
        name = inputs[0]
    return (chain, item) if item and reads[given] == 1 else None
