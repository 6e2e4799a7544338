"""Tensor, layer 15: a loop whose iterations depend on each other.

    trip, initial states, body(step, states)  -->  final states, stacked values

The body is called once, with tensors that stand for the states and a `step` that may be used
wherever a dim may, as in `x[step]`. What it makes becomes a graph of its own. Whatever it
uses that no iteration changes is computed outside, once; constants stay inside, where the
compiler can lay them out as they are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Self

from semel.errors import GraphError
from semel.ir.expr import Dim, Expr, Fn, Index, Variable, atoms
from semel.ir.graph import Graph, Node, attr_dims, make_node, topological
from semel.ir.types import as_shape
from semel.ops.attrs import InputAttrs, LoopAttrs, loop_step
from semel.ops.loop import loop_operand, replace_step
from semel.tensor.handle import Handle, TensorLike
from semel.tensor.origin import user_origin
from semel.tensor.random import Random

_traces = itertools.count()
_TRACE = " of trace "  #: in the names of what stands for states and steps while a body is traced
_DIMS = (int, Variable, Expr, Fn, Index)


class Loops(Random):
    """Recurrences."""

    __slots__ = ()

    @classmethod
    def loop(
        cls,
        trip: Dim,
        states: Sequence[TensorLike],
        body: Callable[[Any, tuple[Self, ...]], tuple[Sequence[TensorLike], Sequence[TensorLike]]],
        *,
        backward: Sequence[bool] = (),
    ) -> tuple[tuple[Self, ...], tuple[Self, ...]]:
        """Run `states, values = body(step, states)` for step = 0, 1, ..., trip - 1.

        The result is (final states, stacked): each value of all iterations along a new first
        axis, the one of iteration s at row s, or, where `backward` says so, at row trip - 1 - s.
        A state keeps its shape and dtype. `trip` may be symbolic, and 0. Nothing runs in
        Python but the one call that says what an iteration does.

        >>> x = Tensor([1.0, 2.0, 3.0])
        >>> (last,), (sums,) = Tensor.loop(3, [Tensor(0.0)], lambda s, h: ([h[0] + x[s]], [h[0]]))
        >>> last.item(), sums.tolist()
        (6.0, [0.0, 1.0, 3.0])
        """
        if isinstance(trip, bool) or not isinstance(trip, _DIMS):
            raise GraphError("loop", f"trip must be an int or an expression, got {trip!r}.")
        (count,) = as_shape((trip,), "loop")
        trace, initial = next(_traces), [cls._lift(s) for s in states]
        step = Index(f"_step{_TRACE}{trace}", count)
        inside = tuple(
            cls._wrap(make_node("input", (), InputAttrs(f"state {k}{_TRACE}{trace}", s.type)))
            for k, s in enumerate(initial)
        )
        after, values = _checked(body(step, inside), len(initial))
        outputs = [cls._lift(t)._node for t in (*after, *values)]
        turned = tuple(backward) or (False,) * len(values)
        if len(turned) != len(values):
            raise GraphError(
                "loop", f"backward must say so of {len(values)} values, got {len(turned)}."
            )
        graph, captured = _close([t._node for t in inside], outputs, step)
        operands, origin = (*(t._node for t in initial), *captured), user_origin()
        kinds = [LoopAttrs(count, graph, len(initial), turned, k) for k in range(len(outputs))]
        results = [cls._wrap(make_node("loop", operands, k, origin=origin)) for k in kinds]
        return tuple(results[: len(initial)]), tuple(results[len(initial) :])


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


def _checked(returned: Any, num_states: int) -> tuple[list[Any], list[Any]]:
    """What a body returned, as two lists: as many states as there are, and something at all."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not is_pair or any(isinstance(part, Handle) for part in returned):
        raise GraphError(
            "loop",
            f"the body must return (next states, values to stack), got {type(returned).__name__}.",
            hint="Both are sequences of tensors, and may be empty.",
        )
    after, values = list(returned[0]), list(returned[1])
    if len(after) != num_states:
        raise GraphError("loop", f"the body must return {num_states} states, got {len(after)}.")
    if not after and not values:
        raise GraphError("loop", "needs a state or a value to stack.")
    return after, values


def _close(
    states: Sequence[Node], outputs: Sequence[Node], step: Index
) -> tuple[Graph, tuple[Node, ...]]:
    """The body as a graph of its own, and the nodes outside that it reads."""
    nodes = topological(outputs)
    changes: set[Node] = set()
    for node in nodes:
        own_step = any(step in atoms(d) for d in attr_dims(node.attrs))
        if node in states or own_step or any(n in changes for n in node.inputs):
            changes.add(node)
    new: dict[Node, Node] = {node: loop_operand(k, node.type) for k, node in enumerate(states)}
    captured: dict[Node, None] = {}

    def inside(node: Node) -> Node:
        """What stands in the body for a node that no iteration changes."""
        if node not in changes and node not in new:
            if _is_constant(node):
                new[node] = node
            else:
                new[node] = loop_operand(len(states) + len(captured), node.type)
                captured[node] = None
        return new[node]

    for node in nodes:
        if node in changes and node not in new:
            made = make_node(node.op.name, [inside(n) for n in node.inputs], node.attrs)
            made.origins = made.origins or node.origins
            new[node] = made
    closed = Graph(tuple(inside(n) for n in outputs), tuple(map(str, range(len(outputs)))))
    return replace_step(closed, step, loop_step(step.extent)), tuple(captured)


def _is_constant(node: Node) -> bool:
    """Whether a node is sealed data, seen through movement."""
    while node.op.kind == "movement" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op.name in ("constant", "scalar")
