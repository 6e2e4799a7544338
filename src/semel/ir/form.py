"""What a graph looks like, without the objects it is made of.

    Graph  --graph_form-->  GraphForm: `key`, `storages`, `ids`

Two graphs with equal keys are equal but for the data of their constants: the same ops with
the same attributes, wired the same way, from constants of the same types that are shared the
same way. With the same storages too they are one graph, written twice or kept alive. A key
holds no node and no data, so it can be kept as long as one likes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from semel.ir.graph import Graph, Node, Storage


@dataclass(frozen=True, slots=True)
class GraphForm:
    """`storages` are those of the constants in order of appearance; `ids` those of the nodes."""

    key: Hashable
    storages: tuple[Storage, ...]
    ids: tuple[int, ...]


def graph_form(graph: Graph, marked: Mapping[str, Node] | None = None) -> GraphForm:
    """The form of a graph, and of which of its nodes are marked by which names."""
    reader = _Reader()
    key, place = reader.read(graph)
    marks = tuple((name, place[node]) for name, node in (marked or {}).items())
    return GraphForm((key, marks), tuple(reader.storages), tuple(n.id for n in graph.nodes))


def plain_attrs(attrs: Any) -> tuple[Hashable, tuple[Storage, ...]]:
    """Attributes without the objects in them, and the storages that bodies in them hold."""
    reader = _Reader()
    key = reader.attrs(attrs)
    return key, tuple(reader.storages)


class _Reader:
    """Numbers storages in order of appearance, in bodies of loops too."""

    def __init__(self) -> None:
        self.storages: dict[Storage, int] = {}

    def read(self, graph: Graph) -> tuple[Hashable, dict[Node, int]]:
        place = {node: i for i, node in enumerate(graph.nodes)}
        nodes = tuple(
            (n.op.name, tuple(place[i] for i in n.inputs), self.attrs(n.attrs), n.type)
            for n in graph.nodes
        )
        outputs = tuple(place[n] for n in graph.outputs)
        told = (graph.late, graph.updates, graph.held, graph.guards, len(graph.declared))
        return (nodes, outputs, graph.names, *told), place

    def attrs(self, attrs: Any) -> Hashable:
        """Attributes as they are, if they hold nothing but values."""
        if attrs is None:
            return None
        values = [getattr(attrs, name) for name in attrs.__dataclass_fields__]
        if not any(isinstance(value, (Storage, Graph)) for value in values):
            known: Hashable = attrs
            return known
        parts = (self._part(getattr(attrs, f.name)) for f in fields(attrs) if f.compare)
        return (type(attrs).__name__, *parts)

    def _part(self, value: Any) -> Hashable:
        if isinstance(value, Storage):
            return self.storages.setdefault(value, len(self.storages))
        if isinstance(value, Graph):
            return self.read(value)[0]
        known: Hashable = value
        return known
