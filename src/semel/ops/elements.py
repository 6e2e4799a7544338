"""What the rule of an op may ask while one element of a node is made.

    (Elements, node, index, guard) --op.element--> Value

`Elements` is what lowering offers to the rules on the ops: other nodes' elements, indices that are
read from memory, and checks. A guard says when the element is wanted at all: a rule hands it down
with whatever it asks for, and where it does not hold no memory is read and no check fails.
"""

from __future__ import annotations

from typing import Protocol

from semel.ir.graph import Node
from semel.ir.opdef import Indices
from semel.ir.signature import CheckInfo
from semel.kernel.values import Value


class Elements(Protocol):
    """Values of nodes inside one loop body."""

    def __call__(self, node: Node, at: Indices, guard: Value | None = None) -> Value:
        """The value of a node at an index."""

    def moved(self, node: Node, operand: int, at: Indices, guard: Value | None) -> Indices:
        """The index of an operand that element `at` of the node needs, read from memory if so."""

    def check(self, info: CheckInfo, ok: Value, value: Value, guard: Value | None) -> None:
        """Report `value` unless `ok`, where the guard holds. Ask for all else before."""
