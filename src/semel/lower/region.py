"""A loop to kernels: those of its body, moved to where its values lie.

    Group of a loop --lower_loop--> Lowered before, in and after a Region

The body is lowered like any graph, as if each of its values had memory of its own. Then
every buffer is *moved*: to a slot of a state that changes with each iteration, to a row of
a stacked result, to the node behind a captured value. Moving adds to addresses what depends on the
counter, and nothing else changes: what a kernel computes, and in which order, stays.

    state k, read at iteration s     slot s % 2 of two
    state k, next                    slot (s + 1) % 2
    stacked result                   row s, or trip - 1 - s

Before the loop a kernel fills slot 0 of each state; after it, another reads slot trip % 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from semel.ir.expr import Dim
from semel.ir.graph import Graph, Node, make_node
from semel.ir.target import Target
from semel.ir.types import TensorType
from semel.kernel.ir import Buffer, Kernel, Statement
from semel.kernel.rewrite import move_buffers
from semel.lower.lowered import (
    Argument,
    Lowered,
    Moved,
    Region,
    Slot,
    kernel_variables,
    nodes_of,
)
from semel.ops.attrs import LoopAttrs, ReshapeAttrs
from semel.ops.loop import loop_operand
from semel.schedule.group import Group, LoopBody, Schedule
from semel.schedule.groups import build_schedule, is_filled
from semel.schedule.reasons import LEAVES_STATE, SETS_STATE, Why

LowerSchedule = Callable[[Schedule, Target], tuple[Lowered, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies: `offset` elements into memory of `size`."""

    argument: Argument
    size: Dim
    offset: Dim = 0


def lower_loop(group: Group, target: Target, lower: LowerSchedule) -> list[Lowered]:
    """All kernels of a loop, in order."""
    assert group.body is not None
    return _Loop(group, group.body, target, lower).run()


class _Loop:
    def __init__(self, group: Group, body: LoopBody, target: Target, lower: LowerSchedule) -> None:
        self.group, self.body, self.target, self.lower = group, body, target, lower
        self.attrs: LoopAttrs = group.root.attrs
        self.region = Region(body.counter, self.attrs.trip)
        self.results = {n.attrs.output: n for n in group.outputs}
        self.states = {k: self._state(k) for k in body.kept if k < self.attrs.num_states}
        self.places = self._places()

    def _state(self, k: int) -> Slot:
        kind = self.group.root.inputs[k].type
        both = TensorType((2, *kind.shape), kind.dtype)
        return Slot(self.region, f"state{k}", both, is_state=True)

    def run(self) -> list[Lowered]:
        before = [self._copy(self._initial(k), self._slot(k, 0), SETS_STATE) for k in self.states]
        inside = [self._inside(it) for it in self.lower(self.body.schedule, self.target)]
        last = self.attrs.trip % 2
        after = [
            self._copy(self._slot(k, last), Place(node, node.type.num_elements), LEAVES_STATE)
            for k, node in self.results.items()
            if k in self.states
        ]
        return [*before, *inside, *after]

    def _inside(self, lowered: Lowered) -> Lowered:
        """A kernel of the body, where it belongs; whoever finds a better one calls this again."""
        moved = _moved(lowered, self.places, self.region)
        return replace(moved, region=self.region, moved=Moved(lowered, self._inside))

    # ------------------------------------------------------------ places

    def _slot(self, k: int, number: Dim) -> Place:
        elements = self.group.root.inputs[k].type.num_elements
        return Place(self.states[k], 2 * elements, number * elements)

    def _initial(self, k: int) -> Node | Place:
        operand = self.group.root.inputs[k]
        return operand if is_filled(operand) else Place(operand, operand.type.num_elements)

    def _places(self) -> dict[Node, list[Place]]:
        """Where the body's inputs and outputs lie; all else lies where the body has it."""
        counter, graph = self.region.counter, self.body.schedule.graph
        places: dict[Node, list[Place]] = {}
        for node in graph.inputs:
            k = int(node.attrs.name)
            if k < self.attrs.num_states:
                places[node] = [self._slot(k, counter % 2)]
            else:
                places[node] = [Place(self.group.root.inputs[k], node.type.num_elements)]
        for k, node in zip(self.body.kept, graph.outputs, strict=True):
            here = places.setdefault(node, [])
            here.append(self._slot(k, (counter + 1) % 2) if k in self.states else self._row(k))
        return places

    def _row(self, k: int) -> Place:
        """The row of a stacked result that an iteration writes."""
        result = self.results[k]
        elements = self.attrs.body.outputs[k].type.num_elements
        counter, trip = self.region.counter, self.attrs.trip
        is_backward = self.attrs.backward[k - self.attrs.num_states]
        row = trip - 1 - counter if is_backward else counter
        return Place(result, result.type.num_elements, row * elements)

    def _copy(self, source: Node | Place, to: Place, why: Why) -> Lowered:
        """A kernel that copies a value from one place to another, or makes it there."""
        if isinstance(source, Place):
            kind = _value_type(source, to)
            node = loop_operand(0, kind)
            places = {node: [source]}
        else:
            node, places = source, {}
        copied = make_node("reshape", (node,), ReshapeAttrs(node.type.shape))
        places[copied] = [to]
        (lowered,) = self.lower(build_schedule(Graph((copied,)), stored=why), self.target)
        return _moved(lowered, places, self.region)


def _value_type(source: Place, to: Place) -> TensorType:
    """The type of what is copied: one of the two is a node, the other a state's two slots."""
    for place in (source, to):
        if isinstance(place.argument, Node):
            return place.argument.type
    raise AssertionError("a copy between two states")


# ---------------------------------------------------------------- moving


def _moved(lowered: Lowered, places: Mapping[Node, Sequence[Place]], region: Region) -> Lowered:
    """The kernel with its buffers where their values lie; equal memory is one argument."""
    kernel = lowered.kernel
    wanted: dict[str, Sequence[Place]] = {}
    access: dict[Argument, str] = {}
    sizes: dict[Argument, Dim] = {}
    for buffer, node in zip(kernel.buffers, nodes_of(lowered), strict=True):
        own = Place(_argument(node, region), buffer.size)
        found = places.get(node, [own])
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


def _argument(node: Node, region: Region) -> Argument:
    """A constant is itself everywhere; what the body computes belongs to this loop."""
    if node.op.kind == "leaf":
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
