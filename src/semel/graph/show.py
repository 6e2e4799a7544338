"""Graphs for people: the signature that a plan of them will have, and tables for notebooks.

Graph  --graph_line, graph_html-->  text
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from semel.plan.report.html import html_block, html_table
from semel.plan.table import Entry, Signature, Table, show_shape
from semel.tensor.tensor import Tensor

if TYPE_CHECKING:
    from semel.graph.builder import Graph


def graph_line(graph: Graph) -> str:
    """The graph in one line: its signature, and how many params and states it has."""
    line = Signature(graph.name, *_io(graph)).shortened()
    counts = [f"{len(getattr(graph, part))} {part}" for part in ("params", "states")]
    return f"Graph({'; '.join([line, *counts])})"


def graph_html(graph: Graph) -> str:
    """The signature, and a table of each sort of leaf that there is, and of outputs."""
    sorts = ("inputs", "params", "states", "outputs")
    tables = [_html(sort, getattr(graph, sort)) for sort in sorts if getattr(graph, sort)]
    return html_block(str(Signature(graph.name, *_io(graph))), tables)


def _io(graph: Graph) -> tuple[Table, Table]:
    return _table("input", graph.inputs), _table("output", graph.outputs)


def _table(what: str, tensors: Mapping[str, Tensor]) -> Table:
    """Nothing has a place yet, nor a size."""
    entries = enumerate(tensors.items())
    return Table(what, (Entry(name, i, t.dtype, t.shape, None, 0) for i, (name, t) in entries))


def _html(caption: str, tensors: Mapping[str, Tensor]) -> str:
    rows = [
        (str(i), name, t.dtype.name, show_shape(t.shape))
        for i, (name, t) in enumerate(tensors.items())
    ]
    return html_table(caption, ("", "name", "dtype", "shape"), rows)
