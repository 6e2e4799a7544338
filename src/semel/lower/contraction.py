"""What lowering any contraction begins with: the names, the buffers, and where it is wanted.

    Group with a contraction  --Contraction-->  its node, buffers by node, and the index of the node

Matmuls, products of bytes, matmuls of experts and attention differ in how they walk their
operands; what they read, write and check, and at which index of the group's loops their result is
wanted, is the same question for all.
"""

from __future__ import annotations

from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.ir.target import Target
from semel.lower.evaluate import wanted_at
from semel.lower.lowered import Names, make_buffers
from semel.ops.index_maps import Indices
from semel.schedule.group import Group


class Contraction:
    """The group of one contraction; `at` is where the group's loops, `root_loops`, want it."""

    def __init__(self, group: Group, target: Target) -> None:
        assert group.contract is not None
        self.group, self.target = group, target
        self.node: Node = group.contract
        self.names = Names()
        self.buffers = make_buffers(group.outputs, group.reads)
        self.loadable = {n: b for n, b in self.buffers.items() if n not in group.outputs}
        self.checks: list[CheckInfo] = []
        self.root_loops: Indices = tuple(self.names.index("i", d) for d in group.shape)
        self.at = wanted_at(self.node, group.outputs, self.loadable, self.root_loops)
