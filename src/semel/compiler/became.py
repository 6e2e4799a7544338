"""What became of each node of a graph, for people.

    graph as written x changes x kernels x Program  --describe_nodes-->  NodeNote for each node

A node is computed by a kernel, is nothing but an index in kernels that read through it, was
computed when the graph was compiled, or before any run from params; or it was rewritten together
with its neighbours, and is part of what these became.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.ir.graph import Graph, Node, users
from semel.ir.lineage import Change, image
from semel.lower.lowered import Lowered, regions_around
from semel.ops.stored import reads_params
from semel.plan.program import NodeNote, Program
from semel.plan.rows import PreparedCopy, PreparedKernel
from semel.schedule.group import Schedule

#: What a node became, and the positions of the rows where.
_Fate: TypeAlias = tuple[str, tuple[int, ...]]


def describe_nodes(
    asked: Graph,
    changes: Sequence[Change],
    schedule: Schedule,
    kernels: Sequence[Lowered],
    program: Program,
) -> tuple[NodeNote, ...]:
    """A note for each node as it was written, in order."""
    rows = _rows_of(schedule, kernels, program)
    fates: dict[Node, _Fate] = {}
    using = users(asked.nodes)
    for node in reversed(asked.nodes):
        together = _part_of([fates[user] for user in using[node]])
        fates[node] = _fate(node, image(node, changes), rows, together)
    return tuple(
        NodeNote(f"{i} {node.op.name} {node.type}", *fates[node], "".join(node.origins[-1:]))
        for i, node in enumerate(asked.nodes)
    )


@dataclass
class _Rows:
    """The positions of the rows that have to do with each node.

    `stored` are the nodes that kernels write to memory, `present` all of the last graph.
    """

    present: set[Node]
    at: dict[Node, list[int]] = field(default_factory=dict)
    stored: set[Node] = field(default_factory=set)

    def positions(self, node: Node) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.at.get(node, ())))


def _rows_of(schedule: Schedule, kernels: Sequence[Lowered], program: Program) -> _Rows:
    found = _Rows(set(schedule.graph.nodes))
    around: dict[int, int] = {}
    calls = [p for p in program.walk() if isinstance(p.row, (PreparedKernel, PreparedCopy))]
    for placed, lowered in zip(calls, kernels, strict=True):
        if lowered.region is not None:
            *_, outermost = regions_around(lowered.region)
            around[id(outermost.body)] = placed.around[0].position
        elif not lowered.group.bodies:  # not what moves the states of a loop
            found.stored.update(lowered.group.outputs)
            for node in lowered.group.inside:
                found.at.setdefault(node, []).append(placed.position)
    for group in schedule.groups:
        inside = [around[id(body.graph)] for _, body in group.bodies if id(body.graph) in around]
        for node in (group.root, *group.outputs) if inside else ():
            found.at.setdefault(node, []).extend(inside)
    return found


def _fate(node: Node, made: Node, rows: _Rows, together: _Fate) -> _Fate:
    """What a node became; `together` is what it is part of if it is not there any more."""
    ops = rows.positions(made)
    if node.op.kind == "leaf":
        if made in rows.present or (node.op.name != "constant" and together[0] != "unused"):
            return node.op.name, ()
        return together[0], ()
    if made.op.kind == "leaf":
        return _leaf_fate(made), ()
    if not ops:
        return together
    if made.op.has_bodies:
        return made.op.name, ops
    if made.op.moves:
        return "copy", ops
    return "view" if made.op.is_view and made not in rows.stored else "kernel", ops


def _leaf_fate(leaf: Node) -> str:
    if leaf.op.name == "stored" and reads_params(leaf):
        return "weights"
    return leaf.op.name if leaf.op.name in ("input", "param", "state") else "folded"


def _part_of(fates: Sequence[_Fate]) -> _Fate:
    """What a node is that is not there any more: part of what its users became."""
    ops = tuple(sorted({op for _, some in fates for op in some}))
    made = {what for what, _ in fates} - {"unused"}
    if not made:
        return "unused", ()
    return ("part", ops) if ops or len(made) > 1 else (made.pop(), ())
