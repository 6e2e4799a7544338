"""Bodies: what a Python function makes of tensors, as a graph of its own.

    function --trace--> Traced: what it returned, and which nodes it made
    Traced   --Closing.close--> Graph, and the nodes outside that it reads

The function is called once. What it made stays in the body, unless it is said to be the same
whenever the body runs: that is made again outside. What it found outside is captured, an operand of
the loop or the branch. Constants stand inside, where the compiler can lay them out as they
are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Index, atoms
from semel.ir.graph import Graph, Node, Scope, attr_dims, make_node, no_scope, topological
from semel.ir.types import TensorType
from semel.ops.attrs import InputAttrs
from semel.ops.bodies import body_operand, may_fail

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

_traces = itertools.count()
_TRACE = " of trace "  #: in the names of what stands for states and steps while a body is traced


def stand_in(what: str, kind: TensorType, trace: int) -> Node:
    """What stands for a state while a body is traced."""
    return make_node("input", (), InputAttrs(f"{what}{_TRACE}{trace}", kind))


def traced_step(trip: Any, trace: int) -> Index:
    """What stands for the number of the iteration while a body is traced."""
    return Index(f"_step{_TRACE}{trace}", trip)


def next_trace() -> int:
    """A number that no other trace has."""
    return next(_traces)


def check_closed(graph: Graph, where: str) -> None:
    """Refuse a graph that uses what a loop's body was traced with: it has no value outside."""
    for node in graph.nodes:
        is_state = node.op.name == "input" and _TRACE in node.attrs.name
        dims = () if is_state else attr_dims(node.attrs)
        if is_state or any(isinstance(a, Index) for d in dims for a in atoms(d)):
            raise GraphError(
                where,
                f"a state or a step must not leave the body of its loop, got {node!r}.",
                hint="Return it as a state or as a value to stack.",
            )


class Traced:
    """What a function returned, as nodes, and the scope of those that it made."""

    def __init__(self, function: Callable[..., Sequence[Tensor]], *arguments: Any) -> None:
        self.scope = Scope()
        with self.scope:
            self.outputs = [handle.node for handle in function(*arguments)]

    def may_fail(self) -> bool:
        return any(n in self.scope and may_fail(n) for n in topological(self.outputs))

    def here(self) -> list[Node]:
        """The outputs, made where we are: nobody minds if they are computed."""
        return [_made_again(n, self.scope, {}) for n in self.outputs]


def _made_again(node: Node, scope: Scope, new: dict[Node, Node]) -> Node:
    """A node of a scope that has ended, and those of the scope below it, made where we are."""
    stack = [node]
    while stack:
        each = stack.pop()
        if each in new:
            continue
        missing = [n for n in each.inputs if n not in new] if each in scope else []
        if missing:
            stack += [each, *missing]
        else:
            new[each] = _copy(each, [new[n] for n in each.inputs]) if each in scope else each
    return new[node]


def _copy(node: Node, inputs: Sequence[Node]) -> Node:
    made = make_node(node.op.name, inputs, node.attrs)
    made.origins = made.origins or node.origins
    return made


class Closing:
    """Makes the bodies of one loop or branch; they capture the operands from `first` on."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._numbers: dict[Node, int] = {}

    @property
    def captured(self) -> tuple[Node, ...]:
        return tuple(self._numbers)

    def close(self, traced: Traced, states: Sequence[Node], inside: Collection[Node]) -> Graph:
        """The body of what was traced; `states` are its first operands, `inside` stays in it."""
        new = {node: body_operand(k, node.type) for k, node in enumerate(states)}
        again: dict[Node, Node] = {}

        def found(node: Node) -> Node:
            """What stands in the body for a node."""
            if node not in new:
                if node in inside or _is_constant(node):
                    inputs = [found(n) for n in node.inputs]
                    with no_scope():
                        new[node] = _copy(node, inputs)
                else:
                    outside = _made_again(node, traced.scope, again)
                    number = self._numbers.setdefault(outside, self._first + len(self._numbers))
                    new[node] = body_operand(number, node.type)
            return new[node]

        for node in topological(traced.outputs):
            if node in inside:
                found(node)  # operands first: no deep recursion
        outputs = tuple(found(n) for n in traced.outputs)
        return Graph(outputs, tuple(map(str, range(len(outputs)))))


def own_nodes(traced: Traced) -> set[Node]:
    """All that a function made: none of it is computed unless the body runs."""
    return {n for n in topological(traced.outputs) if n in traced.scope}


def changing_nodes(
    traced: Traced, states: Collection[Node], step: Index, *, may_be_skipped: bool
) -> set[Node]:
    """What is not the same in every iteration, or must not be computed if there is none."""
    changes: set[Node] = set()
    for node in topological(traced.outputs):
        own_step = any(step in atoms(d) for d in attr_dims(node.attrs))
        is_risk = may_be_skipped and node in traced.scope and may_fail(node)
        if node in states or own_step or is_risk or any(n in changes for n in node.inputs):
            changes.add(node)
    return changes - set(states)


def _is_constant(node: Node) -> bool:
    """Whether a node is sealed data, seen through movement."""
    while node.op.kind == "movement" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op.name in ("constant", "scalar")
