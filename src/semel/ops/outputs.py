"""Outputs that somebody computes: what a run hands out is written by that run.

output %x, an input      -->  output reshape %x, a copy
output %c, a constant    -->  output reshape %c
"""

from __future__ import annotations

from semel.ir.graph import Graph, make_node
from semel.ops.attrs import ReshapeAttrs
from semel.ops.state import fills_frame


def copy_leaf_outputs(graph: Graph) -> Graph:
    """The graph with a copy of its own for every output that is an input, a constant or a state."""
    first = len(graph.late) + len(graph.updates)
    outputs = [
        make_node("reshape", (n,), ReshapeAttrs(n.type.shape))
        if n.op.kind == "leaf" or (n.op.kind == "update" and i >= first and not fills_frame(n))
        else n
        for i, n in enumerate(graph.outputs)
    ]
    return graph if tuple(outputs) == graph.outputs else graph.with_outputs(outputs)
