"""What lowering any contraction begins with: the names, the buffers, and where it is wanted.

    Group with a contraction  --Contraction-->  its node, buffers by node, and the index of the node

Matmuls, products of bytes, matmuls of experts and attention differ in how they walk their
operands; what they read, write and check, at which index of the group's loops their result is
wanted, and what is stored of it, is the same question for all.
"""

from __future__ import annotations

from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Statement, Value
from semel.lower.evaluate import Evaluator, wanted_at
from semel.lower.lowered import Names, make_buffers
from semel.ops.index_maps import Indices
from semel.ops.state import stored_at
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
        root_at = group.place(group.root, self.root_loops)
        self.at = wanted_at(self.node, [group.root], self.loadable, root_at)

    def stores(self, found: Value) -> list[Statement]:
        """The stores of what follows the contraction, from the element that was found of it."""
        known = {self.node: ir.cast(found, self.node.type.dtype)}
        evaluate = Evaluator(self.loadable, known, self.checks, self.names)
        made: list[Statement] = []
        for output in self.group.outputs:
            at = self.group.place(output, self.root_loops)
            value = evaluate(output, at)
            made.append(ir.Store(self.buffers[output], stored_at(output, at), value))
        return [*evaluate.prelude, *made]
