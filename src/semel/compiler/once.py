"""What every run would compute again though it is known before any: stored, like a weight.

    Schedule  --store_known-->  Graph in which what constants and params alone determine is a leaf

Passes fold what is small. Of what is left, that which is dear to compute, or lies in memory between
two kernels anyway, becomes a `stored` leaf, which is made before the first run, whatever its size.
What is cheap, and computed by a kernel on its way, costs less there than to read it.
"""

from __future__ import annotations

from collections.abc import Collection

from semel.ir.graph import Graph, Node, rewrite
from semel.ops.narrow_weights import is_widened
from semel.ops.stored import KNOWN, can_be_made, stored
from semel.schedule.group import DEAR, Schedule


def store_known(schedule: Schedule) -> Graph:
    """The graph with leaves in the place of what runs need not compute; itself if there is none."""
    graph = schedule.graph
    work = _known(graph)
    in_memory = {node for group in schedule.groups for node in group.outputs if node in work}
    asked = _asked(graph, work, in_memory) if work else set()
    widened = _widened(graph, work)
    wanted = {n for n in asked if n in in_memory or (work[n] >= DEAR and n not in widened)}
    if not wanted:
        return graph
    # Nothing below them is replaced, so that they are themselves when it is their turn.
    return rewrite(graph, lambda node: stored(node) if node in wanted else None)


def _known(graph: Graph) -> dict[Node, int]:
    """The work in what is determined before any run, by kernels of fixed sizes that cannot fail."""
    work: dict[Node, int] = {n: 0 for n in graph.nodes if n.op.name in KNOWN}
    leaves = frozenset(work)
    for node in graph.nodes:
        if node.op.kind != "leaf" and can_be_made(node) and work.keys() >= set(node.inputs):
            is_counted = node.op.kind in ("elementwise", "movement")
            own = node.op.cost if is_counted else DEAR
            work[node] = min(own + sum(work[n] for n in node.inputs), DEAR)
    return {node: amount for node, amount in work.items() if node not in leaves}


def _widened(graph: Graph, work: dict[Node, int]) -> set[Node]:
    """The known right operands that contractions widen as they read them, whatever work that is."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op.contraction is not None and node.op.contraction.widens:
            right = node.inputs[1]
            while right.op.is_view:
                right = right.inputs[0]
            if right in work and is_widened(right):
                found.add(right)
    return found


def _asked(graph: Graph, work: dict[Node, int], in_memory: Collection[Node]) -> set[Node]:
    """The known nodes that unknown ones read, perhaps through views that no kernel stores."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node not in work:
            stack = [n for n in node.inputs if n in work]
            while stack:
                each = stack.pop()
                if each.op.kind == "movement" and not (each in in_memory and _is_smaller(each)):
                    stack += [n for n in each.inputs if n in work]
                elif not (each.op.is_product and node.op.kind == "reduce"):
                    found.add(each)  # a sum rounds once, of products that it sees
    return found


def _is_smaller(moved: Node) -> bool:
    """Whether what was moved takes no more memory than before; all sizes are numbers here."""
    after, before = moved.type.max_bytes, [node.type.max_bytes for node in moved.inputs]
    return after is not None and after <= sum(size for size in before if size is not None)
