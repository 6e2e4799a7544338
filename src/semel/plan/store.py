"""The memory of one plan: a buffer for each value of its program.

    Program x capacities  --Layout-->  offsets  --ProgramStore-->  buffers

Inputs and outputs of a compiled program lie in one IO block, intermediates share one arena, both
sized for the variables' maxima. A variable without a maximum gets a capacity that grows on demand.
States lie in a block of their own, which never moves. Each device that values lie on has such
blocks. Weights lie where `plan.weights` has them, for all who read them.

A plan built by hand has the buffers that it was given and no store; `fork_buffers` makes those of
its clones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from semel.errors import InternalError, OutOfMemoryError, PlanError, VariableError
from semel.ir.expr import evaluate, upper_bound
from semel.ir.fields import MemoryLimit
from semel.plan.memory import Lifetime, plan_memory
from semel.plan.parts import DeviceMemory, PlanMemory, PlanParts
from semel.plan.program import (
    WEIGHTS,
    InTermsOf,
    Program,
    ProgramValue,
    bounded_variables,
)
from semel.plan.scope import RowScope
from semel.runtime.allocator import align
from semel.runtime.buffer import Buffer
from semel.runtime.device import find_device
from semel.runtime.free import check_free
from semel.runtime.memory import Memory

#: What variables without a maximum get room for at first; less, if that much is not there.
_FIRST_CAPACITIES = (64, 16, 4)


def first_store(
    program: Program, values: Mapping[str, int], options: StoreOptions
) -> tuple[dict[str, int], ProgramStore]:
    """Room for variables without a maximum that begin with these values, and the memory.

    A size may be the product of many of them, with a bound far beyond what any run asks for. Room
    grows when it is needed, so that no first guess refuses a graph.
    """
    for most in _FIRST_CAPACITIES:
        capacities = {
            v.variable.name: max(most, 2 * v.variable.min, values.get(v.variable.name, 0))
            for v in program.variables
            if v.variable.max is None
        }
        try:
            return capacities, ProgramStore(program, capacities, options)
        except OutOfMemoryError:
            if not capacities or most == _FIRST_CAPACITIES[-1]:
                raise
    raise InternalError("store", "has no first capacity.")


# ---------------------------------------------------------------- sizes and offsets


class Layout:
    """Sizes and offsets of all values at given capacities; plain numbers, no memory.

    `blocks` has, by device, what lies there.
    """

    def __init__(self, program: Program, sizes: list[int], is_shared: bool) -> None:
        values = program.values
        self.device = program.device
        self.sizes = sizes
        self.offsets = [0] * len(values)
        on: dict[str, list[int]] = {program.device: []}
        for i, value in enumerate(values):
            on.setdefault(value.device or program.device, []).append(i)
        self.blocks = {
            device: self._on_device(values, own, is_shared) for device, own in on.items()
        }
        self.weights_bytes = _weights_bytes(program)

    def _on_device(
        self, values: Sequence[ProgramValue], own: Sequence[int], is_shared: bool
    ) -> DeviceMemory:
        """Give the values of one device their offsets there."""
        arena = [i for i in own if values[i].place == "arena"]
        placed = plan_memory(
            [
                Lifetime(self.sizes[i], values[i].first, values[i].last)
                if is_shared
                else Lifetime(self.sizes[i], 0, 0)  # all at once
                for i in arena
            ]
        )
        for i, offset in zip(arena, placed.offsets, strict=True):
            self.offsets[i] = offset
        weights = {values[i].weight for i in own if values[i].place in WEIGHTS}
        return DeviceMemory(
            weights_bytes=sum(weight.held_bytes for weight in weights if weight is not None),
            arena_bytes=placed.arena_bytes,
            io_bytes=self._in_a_row([i for i in own if values[i].place == "io"]),
            state_bytes=self._in_a_row([i for i in own if values[i].place == "state"]),
            naive_bytes=sum(align(self.sizes[i]) for i in arena),
        )

    def _in_a_row(self, own: Sequence[int]) -> int:
        """Values one after the other, each with a line of slack; what they take."""
        end = 0
        for i in own:
            self.offsets[i] = end
            end += align(max(self.sizes[i], 1)) + 64
        return end

    @property
    def own_bytes(self) -> int:
        """What a plan holds for itself on all devices, scratch aside."""
        return sum(block.own_bytes for block in self.blocks.values())

    @staticmethod
    def within(program: Program, capacities: Mapping[str, int], is_shared: bool) -> Layout:
        """For all values up to the variables' maxima, or up to these capacities."""
        roomy = [
            replace(v, capacity=max(capacities.get(v.variable.name, 0), v.variable.min))
            for v in program.variables
        ]
        bounded = bounded_variables(roomy, program.late)
        named = InTermsOf(bounded)
        return Layout(program, [_size_bytes(v, named) for v in program.values], is_shared)

    @staticmethod
    def at(program: Program, values: Mapping[str, int], is_shared: bool) -> Layout:
        """For exactly these values, and the most that late variables can be at them."""
        known = dict(values)
        for late in program.late:
            known.setdefault(late.variable.name, evaluate(late.limit or 0, known))
        sizes = [evaluate(v.type.num_bytes, known) for v in program.values]
        return Layout(program, sizes, is_shared)

    def check_limit(self, memory_limit: MemoryLimit, scratch: int = 0) -> None:
        """Refuse what does not fit before anything is allocated.

        One number is the limit of all together; several are those of devices by name, scratch
        aside.
        """
        own = self.own_bytes + scratch
        wanted = own + self.weights_bytes
        if isinstance(memory_limit, Mapping):
            for device, block in self.blocks.items():
                most = memory_limit.get(device)
                if most is not None and block.peak_bytes > most:
                    raise OutOfMemoryError(device, block.peak_bytes, most)
        elif memory_limit is not None and wanted > memory_limit:
            raise OutOfMemoryError(self.device, wanted, memory_limit)
        check_free(own)  # the weights are there already

    def as_memory(self, program: Program) -> PlanMemory:
        """The sums, for people; those of weights as the program has them now."""
        held = set(program.saved_weights)
        made = {program.values[r.value].weight for r in program.recipes if r.formula is not None}
        return PlanMemory(
            weights_bytes=_weights_bytes(program),
            params_bytes=sum(raw.held_bytes for raw in held & {p.raw for p in program.params}),
            derived_bytes=sum(weight.held_bytes for weight in made if weight is not None),
            arena_bytes=sum(block.arena_bytes for block in self.blocks.values()),
            io_bytes=sum(block.io_bytes for block in self.blocks.values()),
            state_bytes=sum(block.state_bytes for block in self.blocks.values()),
            naive_bytes=sum(block.naive_bytes for block in self.blocks.values()),
            devices=self.blocks,
        )


def _weights_bytes(program: Program) -> int:
    """What weights take now."""
    first_values = {value.weight for value in program.values if value.place == "state"}
    return sum(w.held_bytes for w in program.saved_weights if w not in first_values)


def _size_bytes(value: ProgramValue, named: InTermsOf) -> int:
    size = upper_bound(named(value.type.num_bytes))
    if size is None:
        raise PlanError(
            value.name,
            f"{value.type} has no largest size.",
            hint="Give what it divides by a minimum of 1.",
        )
    return max(size, 0)


# ---------------------------------------------------------------- memory


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`memory_limit` bounds weights, arena, IO and scratch together, or those of devices by name;
    `is_shared`: intermediates that are never alive together may lie in the same bytes.
    """

    memory_limit: MemoryLimit
    is_shared: bool


class ProgramStore:
    """The memory of one plan of a compiled program, and a buffer for each of its values."""

    def __init__(
        self,
        program: Program,
        capacities: Mapping[str, int],
        options: StoreOptions,
        states: Mapping[str, Memory] | None = None,
    ) -> None:
        self.program, self.options = program, options
        self.capacities = dict(capacities)
        layout = self._layout(capacities)
        layout.check_limit(options.memory_limit)
        self._devices = {name: find_device(name) for name in layout.blocks}
        #: By device. They never move, and pages cost nothing before a run writes there: room is a
        #: reservation.
        self.states = states or {
            name: device.allocate(size, mapped=size > 0)
            for name, device in self._devices.items()
            for size in [layout.blocks[name].state_bytes]
        }
        self._allocate(layout)
        self.buffers = tuple(
            Buffer.window(*self._where(i), value.type, value.device or program.device)
            for i, value in enumerate(program.values)
        )
        if states is None:
            self._put_first_values(layout)

    def _put_first_values(self, layout: Layout) -> None:
        for i, value in enumerate(self.program.values):
            if value.place == "state" and value.weight is not None:
                states = self.states[value.device or self.program.device]
                states.copy_in(layout.offsets[i], value.weight.array)

    def fork(self) -> ProgramStore:
        """As much memory for another plan; what states hold is there too, and shared if it can be.

        Nobody writes to states meanwhile.
        """
        states = {name: memory.fork() for name, memory in self.states.items()}
        return ProgramStore(self.program, self.capacities, self.options, states)

    def _layout(self, capacities: Mapping[str, int]) -> Layout:
        _check_capacities(self.program, capacities)
        return Layout.within(self.program, capacities, self.options.is_shared)

    def _allocate(self, layout: Layout) -> None:
        self._current = layout
        #: By device, as the states are.
        self.io: dict[str, Memory] = {}
        self.arena: dict[str, Memory] = {}
        for name, block in layout.blocks.items():
            device, size = self._devices[name], block.arena_bytes
            self.io[name] = device.allocate(block.io_bytes)
            self.arena[name] = device.allocate(size, mapped=size > 0)

    def _where(self, i: int) -> tuple[Memory, int, int]:
        layout = self._current
        value = self.program.values[i]
        device = value.device or self.program.device
        if value.place in WEIGHTS and value.weight is not None:
            return value.weight.on(self._devices[device]), 0, layout.sizes[i]
        blocks = {"arena": self.arena, "state": self.states}.get(value.place, self.io)
        return blocks[device], layout.offsets[i], layout.sizes[i]

    @property
    def own_bytes(self) -> int:
        """What is held now, weights and scratch aside."""
        return self._current.own_bytes

    @property
    def memory(self) -> PlanMemory:
        """What is held now; scratch is the plan's."""
        program, is_shared = self.program, self.options.is_shared

        def measure(values: Mapping[str, int]) -> PlanMemory:
            return Layout.at(program, values, is_shared).as_memory(program)

        return replace(self._current.as_memory(program), measure=measure)

    def check_scratch(self, scratch_bytes: int) -> None:
        """Refuse scratch that does not fit beside what is held."""
        self._current.check_limit(self.options.memory_limit, scratch_bytes)

    def resize(self, capacities: Mapping[str, int], parts: PlanParts) -> None:
        """Move every buffer to memory for these capacities.

        The inputs keep their contents, and so do outputs that runs write in part. An
        OutOfMemoryError says so before anything moves.
        """
        layout = self._layout(capacities)
        scratch = _scratch_bytes(parts, capacities)
        layout.check_limit(self.options.memory_limit, scratch)
        old = [b.memory.peek(b.offset, b.capacity_bytes) for b in self.buffers]
        self._allocate(layout)
        self.capacities = dict(capacities)
        kept = {io.index for io in self.program.inputs}
        kept |= {io.index for io in self.program.outputs if io.part}
        for i, buffer in enumerate(self.buffers):
            buffer.move(*self._where(i))
            if i in kept:
                buffer.memory.copy_in(buffer.offset, old[i][: buffer.capacity_bytes])


def _check_capacities(program: Program, capacities: Mapping[str, int]) -> None:
    most = program.max_capacity
    for name, capacity in capacities.items():
        if most is not None and capacity > most:
            raise VariableError(
                "plan",
                f"'{name}' has no maximum and must stay below {most} in a plan from a file that is "
                f"not trusted, its buffers would be made for {capacity}.",
                hint="Give the variable a maximum, or load a file you trust with trust=True.",
                variable=name,
            )


def _scratch_bytes(parts: PlanParts, capacities: Mapping[str, int]) -> int:
    """What all participants need together at these capacities."""
    roomy = [
        replace(v, capacity=capacities.get(v.variable.name, v.capacity)) for v in parts.variables
    ]
    bounded = bounded_variables(roomy, parts.late)
    scope = RowScope({**bounded, **parts.counters}, parts.functions, parts.buffers)
    return parts.threads * align(scope.scratch_bytes(parts.ops))


# ---------------------------------------------------------------- clones of plans built by hand


def fork_buffers(buffers: Sequence[Buffer], own: Iterable[int]) -> tuple[Buffer, ...]:
    """Buffers with the same types and offsets; the storages of those in `own` are copies.

    All others hold weights and are shared. Buffers that share bytes here share bytes there.
    """
    forked: dict[int, Memory] = {}
    for index in own:
        memory = buffers[index].memory
        if memory.id not in forked:
            forked[memory.id] = memory.duplicate()
    return tuple(
        Buffer.window(
            forked.get(b.memory.id, b.memory), b.offset, b.capacity_bytes, b.type, b.device
        )
        for b in buffers
    )
