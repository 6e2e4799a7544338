"""Loops and branches to kernels: those of their bodies, moved to where the values lie.

    Group of a loop   --lower_bodies--> Lowered before, in and after a LoopRegion
    Group of a branch --lower_bodies--> Lowered of two Arms, and perhaps one before

A body is lowered like any graph, as if each of its values had memory of its own. Then
every buffer is *moved*: to a slot of a state that changes with each iteration, to a row of
a stacked result, to the node behind a captured value. Moving adds to addresses what depends on the
counter, and nothing else changes: what a kernel computes, and in which order, stays. A body
in a body is moved twice, first by the inner one, then by the outer one.

    state k, read at iteration s     slot s % 2 of two
    state k, next                    slot (s + 1) % 2
    stacked result                   row s, or trip - 1 - s
    result of a branch               where it lies; both arms store there

Before a loop a kernel fills slot 0 of each state; after it, another reads slot n % 2 for n
iterations: the trip, or, if the loop has a condition, as many as an iteration has last counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from semel.ir.expr import Dim
from semel.ir.graph import Graph, Node, make_node
from semel.ir.target import Target
from semel.ir.types import INT64, TensorType
from semel.kernel.ir import Buffer, Kernel, Statement
from semel.kernel.rewrite import move_buffers
from semel.lower.lowered import (
    Argument,
    Arm,
    Branch,
    LoopRegion,
    Lowered,
    Moved,
    Region,
    Slot,
    kernel_variables,
)
from semel.ops.attrs import (
    CondAttrs,
    GatherAttrs,
    LoopAttrs,
    ReshapeAttrs,
)
from semel.ops.bodies import body_operand, is_filled
from semel.ops.cond import PREDICATE
from semel.ops.filled import filled
from semel.schedule.group import BranchBody, Group, LoopBody, Schedule
from semel.schedule.groups import build_schedule
from semel.schedule.reasons import LEAVES_STATE, SETS_STATE, Why
from semel.schedule.reasons import PREDICATE as PREDICATE_COPY

LowerSchedule = Callable[[Schedule, Target, "Region | None"], tuple[Lowered, ...]]

_COUNT = TensorType((), INT64)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies: `offset` elements into memory of `size`."""

    argument: Argument
    size: Dim
    offset: Dim = 0


Places = Mapping[Node, Sequence[Place]]


def lower_bodies(
    group: Group, graph: Graph, parent: Region | None, target: Target, lower: LowerSchedule
) -> list[Lowered]:
    """All kernels of a loop or a branch of `graph`, in order; they run in `parent`."""
    if isinstance(group.body, LoopBody):
        return _Loop(group, group.body, parent, target, lower).run()
    assert isinstance(group.body, BranchBody)
    return _Branch(group, group.body, graph, parent, target, lower).run()


class _Bodied:
    """What loops and branches share: kernels that move, and kernels that copy."""

    def __init__(
        self, group: Group, parent: Region | None, target: Target, lower: LowerSchedule
    ) -> None:
        self.group, self.parent, self.target, self.lower = group, parent, target, lower
        self.operands = group.root.inputs
        #: Who copies: the function that loops, as kernels are called.
        self.by = group.root.made_by or group.root.op.name
        self.results = {n.attrs.output: n for n in group.outputs}

    def _body(self, schedule: Schedule, region: Region, places: Places) -> list[Lowered]:
        """The kernels of a body, where they belong; who finds a better one moves it again."""

        def move(lowered: Lowered) -> Lowered:
            moved = move_arguments(lowered, places, region)
            return replace(moved, region=lowered.region or region, moved=Moved(lowered, move))

        return [move(it) for it in self.lower(schedule, self.target, region)]

    def _make(self, value: Node, to: Place, places: Places, why: Why) -> Lowered:
        """A kernel that computes a value of a small graph where `to` says."""
        copied = make_node("reshape", (value,), ReshapeAttrs(value.type.shape), made_by=self.by)
        (made,) = self.lower(build_schedule(Graph((copied,)), stored=why), self.target, None)

        def move(lowered: Lowered) -> Lowered:
            moved = move_arguments(lowered, {**places, copied: [to]}, None)
            return replace(moved, moved=Moved(lowered, move))

        return move(made)

    def _copy(self, source: Node, to: Place, why: Why) -> Lowered:
        """A kernel that copies an operand, or makes it there if it is a number."""
        if is_filled(source):
            return self._make(source, to, {}, why)
        return self._copy_from(_whole(source), source.type, to, why)

    def _copy_from(self, source: Place, kind: TensorType, to: Place, why: Why) -> Lowered:
        node = body_operand(0, kind)
        return self._make(node, to, {node: [source]}, why)


class _Loop(_Bodied):
    def __init__(
        self,
        group: Group,
        body: LoopBody,
        parent: Region | None,
        target: Target,
        lower: LowerSchedule,
    ) -> None:
        super().__init__(group, parent, target, lower)
        self.body = body
        self.attrs: LoopAttrs = group.root.attrs
        self.region = LoopRegion(
            body.counter, self.attrs.trip, self.attrs.has_condition, parent, body.schedule.graph
        )
        self.states = {k: self._state(k) for k in body.kept if k < self.attrs.num_states}
        self.count = Place(Slot(self.region, "count", _COUNT, is_state=True), 1)

    def _state(self, k: int) -> Slot:
        kind = self.operands[k].type
        both = TensorType((2, *kind.shape), kind.dtype)
        return Slot(self.region, f"state{k}", both, is_state=True)

    def run(self) -> list[Lowered]:
        before = [self._copy(self.operands[k], self._slot(k, 0), SETS_STATE) for k in self.states]
        inside = self._body(self.body.schedule, self.region, self._places())
        after = [self._final(k, node) for k, node in self.results.items() if k in self.states]
        if self.attrs.has_condition:
            before += self._before_condition()
            if self.attrs.num_values in self.results:
                count = self.results[self.attrs.num_values]
                after.append(self._copy_from(self.count, _COUNT, _whole(count), LEAVES_STATE))
        return [*before, *inside, *after]

    def _before_condition(self) -> list[Lowered]:
        """Nothing has run yet: no iteration, and no row of what is stacked."""
        first = self.operands[self.attrs.num_states]
        before = [
            self._copy(first, self._condition(), SETS_STATE),
            self._make(filled(0, _COUNT.dtype, _COUNT.shape), self.count, {}, SETS_STATE),
        ]
        for k, node in self.results.items():
            if self.attrs.num_states <= k < self.attrs.num_values:
                zeros = filled(0, node.type.dtype, node.type.shape)
                before.append(self._make(zeros, _whole(node), {}, SETS_STATE))
        return before

    def _final(self, k: int, result: Node) -> Lowered:
        """A state as the last iteration has left it."""
        if not self.attrs.has_condition:
            last = self._slot(k, self.attrs.trip % 2)
            return self._copy_from(last, result.type, _whole(result), LEAVES_STATE)
        slot = self.states[k]
        both, count = body_operand(0, slot.type), body_operand(1, _COUNT)
        two = filled(2, _COUNT.dtype, _COUNT.shape)
        number = make_node("imod", (count, two), made_by=self.by)
        value = make_node("gather", (both, number), GatherAttrs(0), made_by=self.by)
        places = {both: [Place(slot, slot.type.num_elements)], count: [self.count]}
        return self._make(value, _whole(result), places, LEAVES_STATE)

    # ------------------------------------------------------------ places

    def _slot(self, k: int, number: Dim) -> Place:
        elements = self.operands[k].type.num_elements
        return Place(self.states[k], 2 * elements, number * elements)

    def _condition(self) -> Place:
        assert self.region.condition is not None
        return Place(self.region.condition, 1)

    def _places(self) -> dict[Node, list[Place]]:
        """Where the body's inputs and outputs lie; all else lies where the body has it."""
        counter, graph = self.region.counter, self.body.schedule.graph
        places: dict[Node, list[Place]] = {}
        for node in graph.inputs:
            k = int(node.attrs.name)
            is_state = k < self.attrs.num_states
            places[node] = [self._slot(k, counter % 2) if is_state else _whole(self.operands[k])]
        to = [self._result(k) for k in self.body.kept]
        if self.attrs.has_condition:
            to.append(self.count)
        return _with_results(places, graph, to, self.region)

    def _result(self, k: int) -> Place:
        """Where an iteration stores output k of the body."""
        if k < self.attrs.num_states:
            return self._slot(k, (self.region.counter + 1) % 2)
        return self._row(k) if k < self.attrs.num_values else self._condition()

    def _row(self, k: int) -> Place:
        """The row of a stacked result that an iteration writes."""
        result = self.results[k]
        elements = self.attrs.body.values[k].type.num_elements
        counter, trip = self.region.counter, self.attrs.trip
        is_backward = self.attrs.backward[k - self.attrs.num_states]
        row = trip - 1 - counter if is_backward else counter
        return Place(result, result.type.num_elements, row * elements)


class _Branch(_Bodied):
    def __init__(
        self,
        group: Group,
        body: BranchBody,
        graph: Graph,
        parent: Region | None,
        target: Target,
        lower: LowerSchedule,
    ) -> None:
        super().__init__(group, parent, target, lower)
        self.body, self.graph = body, graph
        self.attrs: CondAttrs = group.root.attrs

    def run(self) -> list[Lowered]:
        predicate = self.operands[0]
        before: list[Lowered] = []
        if self.parent is None:
            branch = Branch(predicate)
        elif predicate.op.kind == "leaf" or predicate in self.graph.outputs:
            # It lies where an iteration says, and a branch looks at one place.
            slot = Slot(self.parent, "predicate", PREDICATE, node=self.group.root)
            branch = Branch(slot)
            before.append(self._copy(predicate, Place(slot, 1), PREDICATE_COPY))
        else:
            branch = Branch(_argument(predicate, self.parent))
        arms = []
        for schedule, is_then in ((self.body.then, True), (self.body.orelse, False)):
            arm = Arm(branch, is_then, self.parent, schedule.graph)
            arms.append(self._body(schedule, arm, self._places(schedule.graph, arm)))
        return [*before, *arms[0], *arms[1]]

    def _places(self, graph: Graph, arm: Arm) -> dict[Node, list[Place]]:
        places = {node: [_whole(self.operands[int(node.attrs.name)])] for node in graph.inputs}
        return _with_results(places, graph, [_whole(self.results[k]) for k in self.body.kept], arm)


def _with_results(
    places: dict[Node, list[Place]], graph: Graph, to: Sequence[Place], region: Region
) -> dict[Node, list[Place]]:
    """Also where the values of a body go. What tells a late variable stays where it is made, too:
    a rebind looks at one place."""
    for node in graph.counts:
        places[node] = [Place(_argument(node, region), 1)]
    for place, node in zip(to, graph.values, strict=True):
        places.setdefault(node, []).append(place)
    return places


def _whole(node: Node) -> Place:
    return Place(node, node.type.num_elements)


# ---------------------------------------------------------------- moving


def move_arguments(lowered: Lowered, places: Places, region: Region | None) -> Lowered:
    """The kernel with its buffers where their values lie; equal memory is one argument."""
    kernel = lowered.kernel
    wanted: dict[str, Sequence[Place]] = {}
    access: dict[Argument, str] = {}
    sizes: dict[Argument, Dim] = {}
    for buffer, argument in zip(kernel.buffers, lowered.args, strict=True):
        if not isinstance(argument, Node):
            found: Sequence[Place] = [Place(argument, buffer.size)]  # of a body inside this one
        else:
            own = Place(_argument(argument, region), buffer.size)
            found = places.get(argument, [own])
        wanted[buffer.name] = found if "w" in buffer.access else found[:1]
        for place in wanted[buffer.name]:
            access[place.argument] = _joined(access.get(place.argument, ""), buffer.access)
            sizes[place.argument] = place.size
    dtypes = {p.argument: b.dtype for b in kernel.buffers for p in wanted[b.name]}
    buffers = {
        argument: Buffer(f"b{i}", dtypes[argument], sizes[argument], how)
        for i, (argument, how) in enumerate(access.items())
    }
    to = {
        name: [(buffers[place.argument], place.offset) for place in found]
        for name, found in wanted.items()
    }
    return Lowered(
        _with_buffers(kernel, tuple(buffers.values()), move_buffers(kernel.body, to)),
        tuple(buffers),
        lowered.group,
        lowered.choice,
    )


def _argument(node: Node, region: Region | None) -> Argument:
    """A constant is itself everywhere; what a body computes belongs to its region."""
    if node.op.kind == "leaf" or region is None:
        return node
    return Slot(region, node.op.name, node.type, node=node)


def _joined(one: str, other: str) -> str:
    return "".join(how for how in "rw" if how in one + other)


def _with_buffers(
    kernel: Kernel, buffers: tuple[Buffer, ...], body: tuple[Statement, ...]
) -> Kernel:
    dims = [
        kernel.tiles,
        kernel.flops,
        kernel.bytes,
        *(b.size for b in (*buffers, *kernel.scratch)),
        *(c.size for c in kernel.checks),
    ]
    variables = kernel_variables(dims, body)
    return replace(kernel, buffers=buffers, body=body, variables=variables)
