"""Concatenations of very many parts are made in steps.

    before                                      after
    %9 = concat %0 %1 ... %2999 {axis=0}        %3 = concat %0 ... %62 {axis=0}
                                                %4 = concat %63 ... %125 {axis=0}
                                                %9 = concat %3 %4 ... {axis=0}

A kernel has a loop nest for each part, or if there are too many of them one for all, which asks
every part for each element: code and time grow with the parts. Steps have few parts each, many
have the same kernel, and what is joined twice is little beside that.
"""

from __future__ import annotations

from itertools import pairwise

from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ops.movement import MANY_PARTS, MAX_PARTS

#: Parts of a step: always more than `MANY_PARTS`, so that the scheduler stores it.
_STEP = 2 * MANY_PARTS


def join_in_steps(graph: Graph) -> Graph:
    """Let no concatenation have more parts than a kernel has nests for."""
    return rewrite(graph, _rule) if "concat" in graph.ops else graph


def _rule(node: Node) -> Node | None:
    parts = node.inputs
    if node.op.name != "concat" or len(parts) <= MAX_PARTS:
        return None
    while len(parts) > MAX_PARTS:
        steps = -(-len(parts) // _STEP)
        ends = [len(parts) * k // steps for k in range(steps + 1)]
        parts = tuple(
            make_node("concat", parts[start:stop], node.attrs) for start, stop in pairwise(ends)
        )
    return make_node("concat", parts, node.attrs)
