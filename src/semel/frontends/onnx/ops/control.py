"""Control flow: branches, loops, scans.

What is known at import is decided there. Everything else becomes rows that a run walks: a branch
computes one of its sides, a loop goes on for as long as the run says. Only where a state
changes its shape from one iteration to the next, or is a sequence, a loop is written out, for
which the number of its iterations must be known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import GraphProto

from semel.errors import GraphError, ModelError, UnsupportedError
from semel.frontends.onnx.file import walk_nodes
from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.ops.appended import find_appended
from semel.frontends.onnx.ops.trips import Counter, find_trips
from semel.frontends.onnx.values import AnyValue, Value, as_value
from semel.ir.expr import Dim
from semel.ir.types import BOOL, INT64, DType, Shape
from semel.tensor.control import collecting_loop
from semel.tensor.late import item_dim
from semel.tensor.tensor import Tensor

#: Loops that are written out have at most so many iterations.
_MOST_WRITTEN = 1024
#: The condition within an iteration, or it would not have begun.
_TRUE = Value(BOOL, np.asarray(True))


class _NotCounted(Exception):  # noqa: N818  (an answer, no error)
    """A loop asks its body whether to go on."""


class _Traced(Exception):  # noqa: N818  (an answer, no error)
    """An iteration makes states of these shapes."""

    def __init__(self, after: Sequence[Tensor]) -> None:
        self.after = [state.shape for state in after]
        super().__init__("a body was traced")


# ---------------------------------------------------------------- branches


def _if(node: Node) -> Any:
    value = node.value(0)
    if value.known is not None and value.known.dtype != object:
        return _side(node, bool(value.known.reshape(())))
    if value.known is not None and node.walk.is_decided(value.known.item()):
        return _side(node, node.walk.is_true(node, value))
    truth = value.tensor.reshape(()).cast(BOOL)
    try:
        chosen = _chosen(node, truth)
    except (GraphError, ModelError, _NoTensor) as error:
        # Sides of different shapes, or of sequences: only what is known before a run can choose.
        try:
            is_then = node.walk.is_true(node, value)
        except UnsupportedError:
            message = f"both branches must give tensors of the same types: {error}"
            raise node.refuse(message) from error
        return _side(node, is_then)
    if not chosen.is_alike and (value.is_symbolic or node.walk.is_switch(value)):
        # Their sizes might agree in a run, but most probably do not: two graphs, each with one.
        with suppress(UnsupportedError):
            is_then = node.walk.is_true(node, value)
            return _side(node, is_then)
    return chosen.outputs


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What a run chooses; `is_alike` if both sides surely have the same shapes."""

    outputs: Any
    is_alike: bool


def _chosen(node: Node, truth: Tensor) -> _Chosen:
    """One of both sides, as a run decides. Of single elements, both get the higher rank.

    Exporters write a scalar on one side and a vector of one element on the other.
    """
    shapes: dict[bool, list[Shape]] = {}

    def side(is_then: bool) -> list[Tensor]:
        found = _tensors(node, is_then)
        shapes[is_then] = [x.shape for x in found]
        return found

    def aligned(is_then: bool) -> list[Tensor]:
        pairs = zip(_tensors(node, is_then), shapes[True], shapes[False], strict=True)
        return [
            x.reshape((1,) * max(len(t), len(e))) if len(t) != len(e) and _is_one(t, e) else x
            for x, t, e in pairs
        ]

    try:
        outputs = Tensor.cond(truth, partial(side, True), partial(side, False))
        return _Chosen(outputs, shapes[True] == shapes[False])
    except GraphError:
        if len(shapes) < 2 or len(shapes[True]) != len(shapes[False]):
            raise
        outputs = Tensor.cond(truth, partial(aligned, True), partial(aligned, False))
        pairs = zip(shapes[True], shapes[False], strict=True)
        return _Chosen(outputs, all(t == e or _is_one(t, e) for t, e in pairs))


def _is_one(*shapes: Shape) -> bool:
    """Whether all of these are of one element."""
    return all(dim == 1 for shape in shapes for dim in shape)


#: Exporters of "while" write the largest number there is as the count.
_FOREVER = 2**31 - 1


class _NoTensor(Exception):  # noqa: N818  (an answer, no error)
    """A sequence, or an optional, where only tensors can be."""


def _side(node: Node, is_then: bool) -> list[AnyValue]:
    return node.walk.graph(node.graph("then_branch" if is_then else "else_branch"), [])


def _tensors(node: Node, is_then: bool) -> list[Tensor]:
    return [_tensor(value) for value in _side(node, is_then)]


def _tensor(value: AnyValue) -> Tensor:
    if not isinstance(value, Value):
        raise _NoTensor("a branch gives a sequence or an optional.")
    return value.tensor


# ---------------------------------------------------------------- loops


def _loop(node: Node) -> Any:
    graph = node.graph("body")
    states = [node.any_value(i) for i in range(2, len(node.inputs))]
    if _is_known_false(node) and len(graph.output) == 1 + len(states):
        return states
    appended = find_appended(graph, states)
    values = [state for state in appended.left(states) if isinstance(state, Value)]
    if len(values) + len(appended.states) < len(states):
        return _written_out(node, graph, states, None)
    try:
        return appended.together(_in_one_type(node, appended.graph, values))
    except (GraphError, ModelError, _NoTensor) as error:
        return _written_out(node, graph, states, error)
    except UnsupportedError:
        if not appended.states:
            raise
        return _written_out(node, graph, states, None)  # with steps and items that are known


def _is_known_false(node: Node) -> bool:
    value = node.inputs[1] if node.has(1) else None
    known = value.known if isinstance(value, Value) else None
    return known is not None and known.dtype != object and not bool(known.reshape(()))


def _is_known_true(value: AnyValue | None) -> bool:
    if value is None:
        return True
    known = value.known if isinstance(value, Value) else None
    return known is not None and known.dtype != object and bool(known.reshape(()))


def _run_time(node: Node, graph: GraphProto, states: list[Value]) -> list[AnyValue]:
    """A loop of the run: by its count if that is known, else by asking."""
    most: Dim | None = node.dim(0) if node.has(0) else None
    if isinstance(most, int) and most >= _FOREVER:
        most = None
    trips = find_trips(node, graph, states, most)
    is_counting = trips.trip is not None
    trip = trips.trip if is_counting else most
    if trip is not None and (is_counting or _begins_surely(node)):
        try:
            body = _Iteration(node, graph, states, trips.same, trips.counters)
            return body.counted(trip, is_counting)
        except _NotCounted:
            pass
    return _Iteration(node, graph, states, trips.same, {}).asking(most)


def _begins_surely(node: Node) -> bool:
    return _is_known_true(node.inputs[1] if node.has(1) else None)


@dataclass(eq=False)
class _Iteration:
    """The body of a loop, over the states that are left without those that are known."""

    node: Node
    graph: GraphProto
    states: list[Value]
    same: Collection[int]
    counters: Mapping[int, Counter]

    def __post_init__(self) -> None:
        known = {*self.same, *self.counters}
        self.moving = [k for k in range(len(self.states)) if k not in known]

    def counted(self, trip: Dim, is_counting: bool) -> list[AnyValue]:
        """By a count of iterations; if the body is not `is_counting` itself, it must go on."""

        def body(step: Any, inside: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
            goes_on, after, rows = self.at(step, inside)
            if not (is_counting or _is_known_true(goes_on)):
                raise _NotCounted
            return after, rows

        final, collected = Tensor.loop(trip, self.begun(), body)
        return [*self.together(trip, final), *map(Value.of, collected)]

    def asking(self, most: Dim | None) -> list[AnyValue]:
        """While its condition is true; rows are kept where there is room."""
        is_collecting = len(self.graph.output) > 1 + len(self.states)
        first = self.node.optional(1)
        begins = Tensor(True) if first is None else first.reshape(()).cast(BOOL)

        def body(step: Any, inside: tuple[Tensor, ...]) -> Any:
            goes_on, after, rows = self.at(step, inside)
            return _tensor(goes_on).reshape(()).cast(BOOL), after, rows

        # One iteration more than there is room for says that more is needed.
        room, trip = most, most
        if is_collecting and most is None:
            room = self.node.walk.new_room()
            trip = room + 1
        final, collected, count = collecting_loop(begins, self.begun(), body, trip)
        steps = 0 if room is None or not is_collecting else item_dim(count, room)
        cut = [Value.of(each.narrow(0, 0, steps)) for each in collected]
        return [*self.together(0, final), *cut]

    def at(
        self, step: Dim, inside: Sequence[Tensor]
    ) -> tuple[AnyValue, list[Tensor], list[Tensor]]:
        """Whether to go on, the next states, and what is collected."""
        given = [_dim_value(step), _TRUE, *self.together(step, inside)]
        goes_on, *made = self.node.walk.graph(self.graph, given)
        after = [_tensor(made[k]).cast(self.states[k].dtype) for k in self.moving]
        return goes_on, after, [_tensor(value) for value in made[len(self.states) :]]

    def begun(self) -> list[Tensor]:
        """The states that move, before the first iteration."""
        return [self.states[k].tensor for k in self.moving]

    def together(self, iteration: Dim, moving: Sequence[Tensor]) -> list[AnyValue]:
        """All states before an iteration, or behind the last one."""
        found: list[AnyValue] = list(self.states)
        for k, counter in self.counters.items():
            found[k] = _dim_value(counter.at(iteration), self.states[k].dtype)
        for k, state in zip(self.moving, moving, strict=True):
            found[k] = Value.of(state)
        return found


def _dim_value(dim: Any, dtype: DType = INT64) -> Value:
    return Value.of_dims(_scalar(dim), dtype)


def _scalar(dim: Any) -> np.ndarray[Any, Any]:
    made = np.empty((), object)
    made[()] = dim
    return made


def _shapes_after(node: Node, graph: GraphProto, states: list[Value]) -> list[Shape]:
    """The shapes of states that one iteration makes."""

    def body(step: Any, inside: tuple[Tensor, ...]) -> Any:
        _, *made = node.walk.graph(graph, [_dim_value(step), _TRUE, *inside])
        raise _Traced([_tensor(value) for value in made[: len(states)]])

    try:
        Tensor.loop(1, [state.tensor for state in states], body)
    except _Traced as found:
        return found.after
    raise AssertionError("a loop traces its body")


def _in_one_type(node: Node, graph: GraphProto, states: list[Value]) -> list[AnyValue]:
    """A loop of the run, whose states begin with the shapes that an iteration gives them.

    Exporters begin what is only written in a loop as the number 0, and lose axes of size 1.
    """
    try:
        return _run_time(node, graph, states)
    except GraphError:
        shapes = _shapes_after(node, graph, states)
        unread = _unread(graph) if _surely_begins(node) else set()
        begun = [
            _begun(state, shape, i in unread)
            for i, (state, shape) in enumerate(zip(states, shapes, strict=True))
        ]
        if all(new is old for new, old in zip(begun, states, strict=True)):
            raise
        return _run_time(node, graph, begun)


def _begun(state: Value, shape: Shape, is_unread: bool) -> Value:
    if shape == state.shape:
        return state
    if is_unread:
        return Value.of(Tensor.zeros(*shape, dtype=state.dtype))
    is_one = all(dim == 1 for dim in (*shape, *state.shape))
    is_higher = is_one and len(shape) > state.ndim
    return Value.of(state.tensor.reshape(tuple(shape))) if is_higher else state


def _surely_begins(node: Node) -> bool:
    """Whether there is a first iteration, as far as is known."""
    trip = node.value(0).known if node.has(0) else np.asarray(1)
    is_counted = trip is not None and trip.dtype != object and int(trip.reshape(())) > 0
    return is_counted and _begins_surely(node)


def _unread(graph: GraphProto) -> set[int]:
    """Which states nothing in a body reads, by number."""
    read = {output.name for output in graph.output}
    for inner in walk_nodes(graph):
        read.update(inner.input)
        for attribute in inner.attribute:
            read.update(output.name for output in attribute.g.output)
    return {i for i, given in enumerate(graph.input[2:]) if given.name not in read}


def _written_out(
    node: Node, graph: GraphProto, states: Sequence[AnyValue], error: Exception | None
) -> list[AnyValue]:
    """One iteration after the other, as many as are known to be."""
    if node.has(1) and not node.walk.is_true(node, node.value(1)):
        return _written(node, graph, states, 0)
    try:
        trips = int(node.numbers(0).reshape(())) if node.has(0) else None
    except UnsupportedError:
        if error is not None:
            raise node.refuse(f"its states must keep their types: {error}") from error
        raise
    return _written(node, graph, states, trips)


def _written(
    node: Node, graph: GraphProto, states: Sequence[AnyValue], trips: int | None
) -> list[AnyValue]:
    now = list(states)
    rows: list[list[AnyValue]] = [[] for _ in range(len(graph.output) - 1 - len(states))]
    step = 0
    while trips is None or step < trips:
        if step >= _MOST_WRITTEN:
            raise node.refuse(f"a loop that must be written out has more than {step} iterations.")
        given = [Value.of_array(np.asarray(step, np.int64)), _TRUE, *now]
        goes_on, *made = node.walk.graph(graph, given)
        now = made[: len(states)]
        for kept, row in zip(rows, made[len(states) :], strict=True):
            kept.append(row)
        step += 1
        if not isinstance(goes_on, Value) or not node.walk.is_true(node, goes_on):
            break
    return [*now, *(as_value(_stacked(node, graph, i, kept)) for i, kept in enumerate(rows))]


def _stacked(node: Node, graph: GraphProto, output: int, rows: list[AnyValue]) -> Any:
    if not rows:
        raise node.refuse(f"nothing is collected for output {output}, so it has no shape.")
    return Tensor.stack([_tensor(row) for row in rows], 0)


# ---------------------------------------------------------------- scans


def _scan(node: Node) -> list[Tensor]:
    graph, count = node.graph("body"), node.attr("num_scan_inputs")
    given = node.tensors(1 if node.version < 9 else 0)
    if node.version < 9:
        return _batched_scan(node, graph, count, given)
    return _scanned(node, graph, count, given)


def _scanned(node: Node, graph: GraphProto, count: int, given: list[Tensor]) -> list[Tensor]:
    """States through the slices of inputs; what each slice gives is collected."""
    num_states = len(given) - count
    states, inputs = given[:num_states], given[num_states:]
    collected = len(graph.output) - num_states
    axes = _attr_list(node, "scan_input_axes", 0, count)
    turns = _attr_list(node, "scan_input_directions", 0, count)
    rows = [x.moveaxis(axis, 0) for x, axis in zip(inputs, axes, strict=True)]
    trip = rows[0].shape[0]

    def body(step: Any, inside: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        slices = [x[trip - 1 - step if turn else step] for x, turn in zip(rows, turns, strict=True)]
        made = [_tensor(v) for v in node.walk.graph(graph, [*inside, *slices])]
        return made[:num_states], made[num_states:]

    backward = [bool(turn) for turn in _attr_list(node, "scan_output_directions", 0, collected)]
    final, stacked = Tensor.loop(trip, states, body, backward=backward)
    places = _attr_list(node, "scan_output_axes", 0, collected)
    return [*final, *(y.moveaxis(0, axis) for y, axis in zip(stacked, places, strict=True))]


def _attr_list(node: Node, name: str, default: int, count: int) -> list[int]:
    return list(node.attr(name) or [default] * count)


def _batched_scan(node: Node, graph: GraphProto, count: int, given: list[Tensor]) -> list[Tensor]:
    """Version 8: one scan for each entry of a batch, all of the same length."""
    if node.has(0):
        raise node.refuse("lengths of the entries of a batch are not supported.")
    batch = node.size(given[0].shape[0])
    each = [_scanned(node, graph, count, [x[b] for x in given]) for b in range(batch)]
    return [Tensor.stack(list(entries), 0) for entries in zip(*each, strict=True)]


CONVERTERS: dict[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
