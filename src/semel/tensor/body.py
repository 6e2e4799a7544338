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
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim, Index, LateVariable, atoms, substitute
from semel.ir.graph import (
    Graph,
    Node,
    Scope,
    attr_bodies,
    attr_dims,
    late_variable,
    make_again,
    make_node,
    no_scope,
    stands_for,
    topological,
)
from semel.ir.late import find_counts, substitute_attrs
from semel.ir.types import TensorType
from semel.ops.attrs import InputAttrs, late_name, step_name
from semel.ops.bodies import body_depth, body_operand, may_fail

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

_traces = itertools.count()
#: In the names of inputs that stand for what was given away.
_DONATED = ", which was donated to "
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


def given_away(path: str, to: str, kind: TensorType) -> Node:
    """What is left of a tensor that was donated to a function."""
    return make_node("input", (), InputAttrs(f"{path}{_DONATED}{to}", kind))


def check_closed(graph: Graph, where: str) -> None:
    """Refuse a graph that uses what a function was traced with, or what was given away."""
    for node in graph.nodes:
        name = node.attrs.name if node.op.name == "input" else ""
        if _DONATED in name:
            raise GraphError(
                where,
                f"a donated tensor has no value any more, got '{name}'.",
                hint="Go on with what the call returned, or leave it out of donate=.",
            )
        if _TRACE in name:
            raise _left(where, f"'{name.partition(_TRACE)[0]}': {node.type}")
        if any(isinstance(a, Index) for d in attr_dims(node.attrs) for a in atoms(d)):
            raise _left(where, f"a {node.op.name} at a step")


def _left(where: str, found: str) -> GraphError:
    return GraphError(
        where,
        "an argument, a state or a step must not leave the body of the function that it was given "
        f"to while that was followed, got {found}.",
        hint="Return it: of a loop as a state or as a value to stack.",
    )


class Traced:
    """What a function returned, as nodes, and the scope of those that it made.

    `counts` tell the late variables that it made, in order; `nodes` are all nodes below, and what
    tells a size before what has it.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], *arguments: Any) -> None:
        self.scope = Scope()
        with self.scope:
            self.outputs = [handle.node for handle in function(*arguments)]
        told = find_counts(topological(self.outputs))
        self.counts = {v: count for v, count in told.items() if count in self.scope}
        self.nodes = topological((*self.counts.values(), *self.outputs))

    def may_fail(self) -> bool:
        return any(n in self.scope and may_fail(n) for n in self.nodes)

    def here(self) -> list[Node]:
        """The outputs, made where we are: nobody minds if they are computed."""
        return [*map(_Again(self), self.outputs)]


class _Again:
    """Makes nodes of a scope that has ended, and those of the scope below them, where we are."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._new: dict[Node, Node] = {}
        self._late: dict[Any, LateVariable] = {}

    def __call__(self, node: Node) -> Node:
        new, scope, stack = self._new, self._traced.scope, [node]
        while stack:
            each = stack.pop()
            if each in new:
                continue
            missing = [n for n in each.inputs if n not in new] if each in scope else []
            if missing:
                stack += [each, *missing]
            elif each in scope:
                for variable in each.rule.late:
                    self.variable(variable)
                new[each] = _copy(each, [new[n] for n in each.inputs], self._late)
            else:
                new[each] = each
        return new[node]

    def variable(self, variable: LateVariable) -> LateVariable:
        """What a late variable is here; one that the scope did not make is what it was."""
        count = self._traced.counts.get(variable)
        if count is None:
            return variable
        if variable not in self._late:
            made = self(count)
            self._late[variable] = late_variable(made, substitute(variable.limit, self._late))
        return self._late[variable]


def _copy(node: Node, inputs: Sequence[Node], late: Mapping[Any, Dim]) -> Node:
    attrs = substitute_attrs(node.attrs, late) if node.rule.late else node.attrs
    made = make_again(node, inputs, attrs)
    stands_for(made, node)
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
        """The body of what was traced; `states` are its first operands, `inside` stays in it.

        Late variables that it makes are its own. They are named by how deep bodies are inside each
        other, so that equal bodies are equal, and no name means two things in one of them.
        """
        new = {node: body_operand(k, node.type) for k, node in enumerate(states)}
        again, late = _Again(traced), dict[Any, LateVariable]()
        own: dict[LateVariable, Node] = {}

        def found(node: Node) -> Node:
            """What stands in the body for a node."""
            if node not in new:
                if node in inside or _is_constant(node):
                    inputs = [found(n) for n in node.inputs]
                    with no_scope():
                        new[node] = _copy(node, inputs, late)
                else:
                    outside = again(node)
                    number = self._numbers.setdefault(outside, self._first + len(self._numbers))
                    new[node] = body_operand(number, outside.type)
            return new[node]

        depth = max((body_depth(b) + 1 for n in inside for b in attr_bodies(n.attrs)), default=0)
        for variable, count in traced.counts.items():
            if count not in inside:
                late[variable] = again.variable(variable)
                continue
            told, limit = found(count), substitute(variable.limit, late)
            name = late_name(depth, len(own))
            late[variable] = LateVariable(name, variable.min, variable.max, limit)
            own[late[variable]] = told
        for node in traced.nodes:
            if node in inside:
                found(node)  # operands first: no deep recursion
        outputs = tuple(found(n) for n in traced.outputs)
        names = (*(v.name for v in own), *map(str, range(len(outputs))))
        body = Graph((*own.values(), *outputs), names, tuple(own))
        _check_names(body)
        return body


def _check_names(body: Graph) -> None:
    for variable in body.variables:
        is_ours = isinstance(variable, LateVariable)
        if not is_ours and variable.name.startswith((step_name(0), late_name())):
            raise GraphError(
                "body", f"'{variable.name}' is a name that bodies need for themselves."
            )


def own_nodes(traced: Traced) -> set[Node]:
    """All that a function made: none of it is computed unless the body runs."""
    return {n for n in traced.nodes if n in traced.scope}


def changing_nodes(
    traced: Traced, states: Collection[Node], step: Index, *, may_be_skipped: bool
) -> set[Node]:
    """What is not the same in every iteration, or must not be computed if there is none."""
    changes: set[Node] = set()
    for node in traced.nodes:
        own_step = any(step in atoms(d) for d in attr_dims(node.attrs))
        is_risk = may_be_skipped and node in traced.scope and may_fail(node)
        sizes = (traced.counts.get(variable) for variable in node.rule.late)
        below = any(n in changes for n in (*node.inputs, *sizes))
        if node in states or own_step or is_risk or below:
            changes.add(node)
    return changes - set(states)


def _is_constant(node: Node) -> bool:
    """Whether a node is sealed data, seen through movement."""
    while node.op.kind == "movement" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op.name in ("constant", "scalar")
