"""How often a loop runs, where its body counts; and what it leaves of its states as it is.

    while i < n:  i += 2; ...        -->  a loop of (n - start + 1) // 2 iterations

ONNX has one loop for all of these. Exporters write a "for" as a "while" that counts for itself, and
carry what no iteration changes through all states: weights, bounds. Who knows that finds
sizes where there was data, weights where there were states, and rows that need no searching.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from semel.frontends.onnx.node import Node
from semel.frontends.onnx.ratio import SYMBOLIC
from semel.frontends.onnx.values import AnyValue, Value
from semel.ir.dims import ceildiv, less, maximum, minimum, select
from semel.ir.expr import Dim

#: Casts between these keep what is counted: sizes are far below what a float32 has of integers.
_NUMBERS = {TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE}
#: Inputs of a body before its states: the number of the iteration, and that it takes place.
_FIRST = 2


@dataclass(frozen=True, slots=True)
class Counter:
    """A state that is `start + step * k` in iteration k."""

    start: Dim
    step: int

    def at(self, iteration: Dim) -> Dim:
        return self.start + self.step * iteration


@dataclass(frozen=True, slots=True)
class Trips:
    """States by number: those that stay the same, those that count; and how often, if known."""

    same: frozenset[int]
    counters: Mapping[int, Counter]
    trip: Dim | None


@dataclass(frozen=True, slots=True)
class _Line:
    """A name outside of the arithmetic, and what is added to it."""

    name: str
    offset: int = 0


def find_trips(
    node: Node, graph: GraphProto, states: Sequence[AnyValue], most: Dim | None
) -> Trips:
    """What the body of a loop tells about its states, and about how often it runs, at `most`."""
    body = _Body(node, graph)
    lines = [body.line(output.name) for output in graph.output[1 : 1 + len(states)]]
    names = [given.name for given in graph.input[_FIRST:]]
    same, counters = set(), {}
    for k, (line, state) in enumerate(zip(lines, states, strict=True)):
        if line is None or line.name != names[k]:
            continue
        if body.is_same(graph.output[1 + k].name, names[k]):
            same.add(k)
        elif line.offset and (start := _start(state)) is not None:
            counters[k] = Counter(start, line.offset)
    outer = {name: states[k] for k, name in enumerate(names) if k in same}
    counted = {names[k]: counter for k, counter in counters.items()}
    counted[graph.input[0].name] = Counter(0, 1)
    trip = _trip(node, graph, body, counted, outer)
    if trip is not None and most is not None:
        trip = minimum(trip, most)
    return Trips(frozenset(same), counters, trip)


def _start(state: AnyValue) -> Dim | None:
    """Where a counter begins, if it is an integer of shape ()."""
    is_integer = isinstance(state, Value) and state.dtype.is_integer and state.ndim == 0
    return _size(state) if is_integer else None


def _size(value: AnyValue) -> Dim | None:
    """A value that is one size, as far as that is known without asking."""
    known = value.known if isinstance(value, Value) else None
    if known is None or known.size != 1 or known.dtype.kind not in "ifO":
        return None
    size: Any = known.item()
    if isinstance(size, float) and size.is_integer():
        return int(size)
    return size if isinstance(size, (int, *SYMBOLIC)) else None


def _trip(
    node: Node,
    graph: GraphProto,
    body: _Body,
    counted: Mapping[str, Counter],
    outer: Mapping[str, AnyValue],
) -> Dim | None:
    """How often a loop runs that goes on while a counter is below something that stays."""
    made = body.below(graph.output[0].name)
    begins = _begins(node)
    if made is None or begins is None:
        return None
    (low, high), is_or_equal = made
    if low.name in counted and high.name not in counted:
        counter, sign, line, other = counted[low.name], 1, low, high
    elif high.name in counted and low.name not in counted:
        counter, sign, line, other = counted[high.name], -1, high, low
    else:
        return None
    bound = body.outside(other.name, outer)
    if bound is None or counter.step * sign <= 0:
        return None
    # Iteration k + 1 takes place if this much is left, of which each one takes |step|.
    left = sign * (bound + other.offset - counter.start - line.offset) + is_or_equal
    step = abs(counter.step)
    first = sign * (bound + other.offset - counter.start) + is_or_equal
    trip: Dim = maximum(ceildiv(left, step), 0) + 1
    if line.offset == counter.step and begins == less(0, first):
        trip = maximum(ceildiv(first, step), 0)
    elif begins != 1:
        trip = select(begins, trip, 0)
    return trip


def _begins(node: Node) -> Dim | None:
    """Whether there is a first iteration, as far as is known without asking."""
    if not node.has(1):
        return 1
    known = node.value(1).known
    if known is None or known.size != 1:
        return None
    found: Dim = int(known.item()) if known.dtype != object else known.item()
    return found


class _Body:
    """The nodes of a body by what they make, read as arithmetic."""

    def __init__(self, node: Node, graph: GraphProto) -> None:
        self._node, self._graph = node, graph
        self._makers: dict[str, NodeProto] = {
            name: each for each in graph.node for name in each.output if name
        }
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}

    def is_same(self, name: str, given: str) -> bool:
        """Whether a value is an input of the body, handed on."""
        while name in self._makers and self._makers[name].op_type == "Identity":
            name = self._makers[name].input[0]
        return name == given

    def line(self, name: str) -> _Line | None:
        """A value as another one plus a number; None if it is nothing of the kind."""
        offset = 0
        while name in self._makers:
            maker = self._makers[name]
            match maker.op_type, list(maker.input):
                case "Identity", [source]:
                    name = source
                case "Cast", [source] if _target(maker) in _NUMBERS:
                    name = source
                case "Add" | "Sub" as kind, [left, right]:
                    number = self._number(right)
                    if number is None and kind == "Add":
                        left, number = right, self._number(left)
                    if number is None:
                        return None
                    name = left
                    offset += number if kind == "Add" else -number
                case _:
                    return None
        return _Line(name, offset)

    def below(self, name: str) -> tuple[tuple[_Line, _Line], int] | None:
        """Two values of which the first is to be below the second; 1: or equal."""
        while (maker := self._makers.get(name)) is not None:
            match maker.op_type, list(maker.input):
                case "Identity", [source]:
                    name = source
                case "And", [left, right] if self._goes_on(left) or self._goes_on(right):
                    name = right if self._goes_on(left) else left
                case "Less" | "LessOrEqual" as kind, [left, right]:
                    return self._pair(left, right, kind == "LessOrEqual")
                case "Greater" | "GreaterOrEqual" as kind, [left, right]:
                    return self._pair(right, left, kind == "GreaterOrEqual")
                case _:
                    return None
        return None

    def outside(self, name: str, states: Mapping[str, AnyValue]) -> Dim | None:
        """A size from around the loop, or one that no iteration changes."""
        number = self._number(name)
        if number is not None:
            return number
        if any(name == given.name for given in self._graph.input) and name not in states:
            return None
        return _size(states[name] if name in states else self._node.walk.value(name))

    def _goes_on(self, name: str) -> bool:
        """Whether a value is the condition that holds in each iteration."""
        return self.is_same(name, self._graph.input[1].name)

    def _pair(
        self, low: str, high: str, is_or_equal: bool
    ) -> tuple[tuple[_Line, _Line], int] | None:
        lines = self.line(low), self.line(high)
        if lines[0] is None or lines[1] is None:
            return None
        return (lines[0], lines[1]), int(is_or_equal)

    def _number(self, name: str) -> int | None:
        """An integer that is known: in the body, or around it."""
        maker = self._makers.get(name)
        if maker is not None and maker.op_type == "Identity":
            return self._number(maker.input[0])
        array = None
        if name in self._tensors:
            array = numpy_helper.to_array(self._tensors[name])
        elif maker is not None and maker.op_type == "Constant":
            tensors = [a.t for a in maker.attribute if a.name == "value"]
            array = numpy_helper.to_array(tensors[0]) if tensors else None
        elif maker is None and not any(name == given.name for given in self._graph.input):
            value = self._node.walk.values.get(name)
            array = value.known if isinstance(value, Value) else None
        if array is None or array.size != 1 or array.dtype.kind not in "if":
            return None
        number = array.item()
        return int(number) if number == int(number) else None


def _target(cast: NodeProto) -> int:
    return next((int(a.i) for a in cast.attribute if a.name == "to"), 0)
