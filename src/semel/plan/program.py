"""The finished program: what runs, on which values, in which order.

    compile side  --Program-->  instantiate  -->  ExecutionPlan

A program is immutable plain data and is shared: each `instantiate` gives a plan with its own
inputs, outputs and arena, over the same kernels and constants. Names are for people;
everything refers to values and kernels by index.

Memory: inputs and outputs lie in one IO block, intermediates share one arena, both sized
for the variables' maxima. A variable without a maximum gets a capacity that grows on demand.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from semel.config import settings
from semel.errors import OutOfMemoryError, PlanError, VariableError
from semel.ir.expr import Dim, Variable, evaluate, substitute, upper_bound
from semel.ir.types import TensorType
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.link import KernelBinder, scratch_bytes
from semel.plan.memory import Lifetime, plan_memory
from semel.plan.parts import PlanMemory
from semel.plan.pickled import restore_program
from semel.plan.plan import ExecutionPlan
from semel.plan.prepared import (
    PreparedEnd,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    RuntimeVar,
)
from semel.plan.save import pack_plan
from semel.runtime.allocator import ALIGNMENT_BYTES, Memory, align, allocate
from semel.runtime.buffer import Buffer
from semel.runtime.device import find_device
from semel.runtime.free import check_free
from semel.runtime.kernel import CachedKernel

_FIRST_CAPACITY = 64


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """One tensor. `kind` is input, output, constant (with its `array`) or arena.

    An arena value is alive from op `first` to op `last`, both included. `node_ids` are the
    graph nodes that it holds.
    """

    name: str
    type: TensorType
    kind: str
    array: np.ndarray[Any, Any] | None = None
    first: int = 0
    last: int = 0
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """Run kernel `kernel` on `values[i] for i in args`, in the order of its signature.

    `variables` are this graph's variables in the kernel's positional order: a kernel shared
    by several ops may use other names inside. For people: the source lines of all it
    computes (`origins`) and of each of its checks, the graph `nodes` it computes,
    the `reason` why its result is not computed inside the kernel that wants it, and the
    `choice` of how the kernel is cut.
    """

    kernel: int
    args: tuple[int, ...]
    variables: tuple[Variable, ...] = ()
    origins: tuple[str, ...] = ()
    check_origins: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    reason: str = ""
    choice: str = ""


@dataclass(frozen=True, slots=True)
class ProgramLoop:
    """Ops `first` to `last`, both included, run `trip` times for `counter` = 0, 1, ..."""

    counter: Variable
    trip: Dim
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class Program:
    """Everything a plan is made from. `guards` must evaluate to 0 at every bind.

    `kept` are named values that can be read after a run like outputs, and are none. Variables
    without a maximum grow up to `max_capacity`, if there is one.
    """

    kernels: tuple[CachedKernel, ...]
    values: tuple[ProgramValue, ...]
    ops: tuple[ProgramOp, ...]
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    guards: tuple[tuple[Dim, str], ...] = ()
    variables: tuple[Variable, ...] = ()
    log: tuple[str, ...] = ()
    stage_seconds: dict[str, float] = field(default_factory=dict)
    compile_count: int = 0
    loops: tuple[ProgramLoop, ...] = ()
    kept: tuple[tuple[str, int], ...] = ()
    max_capacity: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a program is what a plan's file would hold."""
        return restore_program, (pack_plan(self, find_device("cpu").device_code()),)

    def sections(self) -> dict[int, np.ndarray[Any, Any]]:
        """The constants, by value: what a plan file stores as bytes."""
        return {i: v.array for i, v in enumerate(self.values) if v.array is not None}


def instantiate(
    program: Program,
    *,
    threads: int | None = None,
    memory_limit: int | None = None,
    bindings: Mapping[str, int] | None = None,
    arena: bool | None = None,
) -> ExecutionPlan:
    """A plan of its own: fresh buffers, shared kernels and constants.

    `memory_limit` bounds the bytes of weights, arena, IO and scratch together. `bindings` are
    the first values of variables; the others are unbound. With `arena` False (else: as the
    settings say) no two intermediates share a byte.
    """
    _check_program(program)
    first = _checked_bindings(program, bindings or {})
    arena = settings().arena if arena is None else arena
    capacities = {
        v.name: max(_FIRST_CAPACITY, 2 * v.min, first.get(v.name, 0))
        for v in program.variables
        if v.max is None
    }
    _check_capacities(program, capacities)
    layout = _Layout(program, capacities, arena)
    layout.check_limit(memory_limit)
    builder = ExecutionPlanBuilder()
    memory = _PlanBuffers(program, layout)
    memory.add_to(builder)
    _declare(program, builder, capacities, first)
    for prepared in _prepared_ops(program):
        builder.add_op(prepared)
    plan = builder.build(threads=threads)
    plan.compile_count = program.compile_count
    _adopt(plan, program, memory, layout, memory_limit, arena)
    layout.check_limit(memory_limit, plan.memory.scratch_bytes)
    return plan


def _checked_bindings(program: Program, bindings: Mapping[str, int]) -> dict[str, int]:
    """The first values of variables by name, each within its bounds."""
    known = {v.name: v for v in program.variables}
    unknown = [name for name in bindings if name not in known]
    if unknown:
        raise VariableError(
            "bindings",
            f"must be of variables that the plan has ({', '.join(known) or 'none'}), "
            f"got {', '.join(map(str, unknown))}.",
            variable=unknown[0],
        )
    fixed = {v.name: v.min for v in program.variables if v.min == v.max}
    return fixed | dict(known[name].bind(value) for name, value in bindings.items())


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


def _scratch_bytes(program: Program, capacities: Mapping[str, int], threads: int) -> int:
    """What all participants need together."""
    tops = {v.name: capacities.get(v.name, v.max) for v in program.variables}
    bounded = {v.name: Variable(v.name, v.min, tops[v.name]) for v in program.variables}
    bounded |= {loop.counter.name: loop.counter for loop in program.loops}
    return threads * align(scratch_bytes(_prepared_ops(program), KernelBinder(bounded)))


def _check_program(program: Program) -> None:
    for value in program.values:
        if value.kind not in ("input", "output", "constant", "arena"):
            raise PlanError(value.name, f"kind of a value must be known, got {value.kind!r}.")
        if (value.kind == "constant") != (value.array is not None):
            raise PlanError(value.name, "a constant has an array, and nothing else has.")
    for kind, named in (("input", program.inputs), ("output", program.outputs)):
        for name, index in named:
            found = program.values[index].kind
            if found != kind:
                raise PlanError(
                    name, f"an {kind} of the program must be one in memory, is {found}."
                )
    for op in program.ops:
        if not all(0 <= arg < len(program.values) for arg in op.args):
            raise PlanError("program", f"args must be values of the program, got {op.args}.")
        _check_written(program, op)
    end = 0
    for loop in program.loops:
        if not end <= loop.first <= loop.last < len(program.ops):
            raise PlanError("program", f"loops must be apart and within the ops, got {loop}.")
        end = loop.last + 1


def _check_written(program: Program, op: ProgramOp) -> None:
    """Constants are the same in all plans, and may lie in a file: nobody writes there."""
    signature = program.kernels[op.kernel].signature
    for arg, spec in zip(op.args, signature.buffers, strict=False):  # the builder counts them
        if "w" in spec.access and program.values[arg].kind == "constant":
            raise PlanError(signature.name, f"'{spec.name}' is written, it must be no constant.")


def _declare(
    program: Program,
    builder: ExecutionPlanBuilder,
    capacities: Mapping[str, int],
    first: Mapping[str, int],
) -> None:
    for variable in program.variables:
        capacity = capacities.get(variable.name)
        builder.declare_variable(variable, first.get(variable.name), capacity=capacity)
    for name, index in program.inputs:
        builder.declare_input(name, index, program.values[index].type)
    for name, index in program.outputs:
        builder.declare_output(name, index, program.values[index].type)
    builder.set_output_buffers([index for _, index in program.outputs])
    for expr, message in program.guards:
        builder.add_guard(expr, message)


def _prepared_ops(program: Program) -> list[PreparedOp]:
    """The ops in order, each loop between its two ends; ids are positions in the program."""
    begins = {loop.first: (k, loop) for k, loop in enumerate(program.loops)}
    ends = {loop.last: k for k, loop in enumerate(program.loops)}
    free = len(program.ops)
    found: list[PreparedOp] = []
    for position, op in enumerate(program.ops):
        if position in begins:
            k, loop = begins[position]
            found.append(PreparedLoop(free + 2 * k, loop.counter.name, loop.trip))
        found.append(_prepared(program, position, op))
        if position in ends:
            found.append(PreparedEnd(free + 2 * ends[position] + 1))
    return found


def _prepared(program: Program, position: int, op: ProgramOp) -> PreparedKernel:
    kernel = program.kernels[op.kernel]
    written = [i for i, spec in enumerate(kernel.signature.buffers) if "w" in spec.access]
    return PreparedKernel(
        id=position,
        ast=op.origins,
        kernel=kernel,
        device="cpu",
        buffer_indices=op.args,
        output_indices=tuple(written),
        runtime_vars=tuple(RuntimeVar.of(v) for v in op.variables),
    )


# ---------------------------------------------------------------- memory


class _Layout:
    """Sizes and offsets of all values at given capacities; plain numbers, no memory."""

    def __init__(self, program: Program, capacities: Mapping[str, int], arena: bool) -> None:
        bounded = {
            v: Variable(v.name, v.min, max(capacities[v.name], v.min))
            for v in program.variables
            if v.max is None
        }
        self.sizes = [_size_bytes(v, bounded) for v in program.values]
        self._place(program, arena)

    @staticmethod
    def at(program: Program, values: Mapping[str, int], arena: bool) -> _Layout:
        """The layout of a plan made for exactly these values."""
        layout = _Layout.__new__(_Layout)
        layout.sizes = [evaluate(v.type.num_bytes, values) for v in program.values]
        layout._place(program, arena)
        return layout

    def _place(self, program: Program, is_shared: bool) -> None:
        values, end = program.values, len(program.ops)
        self.offsets = [0] * len(values)
        self.io_bytes = 0
        for i, value in enumerate(values):
            if value.kind in ("input", "output"):
                self.offsets[i] = self.io_bytes
                # A line of slack, as for every buffer of its own.
                self.io_bytes += align(max(self.sizes[i], 1)) + 64
        arena = [i for i, value in enumerate(values) if value.kind == "arena"]
        placed = plan_memory(
            [
                Lifetime(self.sizes[i], values[i].first, values[i].last)
                if is_shared
                else Lifetime(self.sizes[i], 0, end)
                for i in arena
            ]
        )
        for i, offset in zip(arena, placed.offsets, strict=True):
            self.offsets[i] = offset
        self.arena_bytes = placed.arena_bytes
        self.naive_bytes = sum(align(self.sizes[i]) for i in arena)
        self.weights_bytes = sum(
            size for size, v in zip(self.sizes, values, strict=True) if v.kind == "constant"
        )

    def check_limit(self, memory_limit: int | None, scratch: int = 0) -> None:
        """Refuse what does not fit before anything is allocated."""
        own = self.io_bytes + self.arena_bytes + scratch
        wanted = own + self.weights_bytes
        if memory_limit is not None and wanted > memory_limit:
            raise OutOfMemoryError("cpu", wanted, memory_limit)
        check_free(own)  # the weights are there already

    def as_memory(self) -> PlanMemory:
        return PlanMemory(
            weights_bytes=self.weights_bytes,
            arena_bytes=self.arena_bytes,
            io_bytes=self.io_bytes,
            naive_bytes=self.naive_bytes,
        )


def _size_bytes(value: ProgramValue, bounded: Mapping[Variable, Variable]) -> int:
    size = upper_bound(substitute(value.type.num_bytes, bounded))
    if size is None:
        raise PlanError(
            value.name,
            f"{value.type} has no largest size.",
            hint="Give what it divides by a minimum of 1.",
        )
    return max(size, 0)


class _PlanBuffers:
    """The memory of one plan, and a buffer for each value."""

    def __init__(self, program: Program, layout: _Layout) -> None:
        self._program = program
        self.constants = _constants(program)
        self.io = allocate(layout.io_bytes)
        self.arena = allocate(layout.arena_bytes, mapped=True)
        self.buffers = [
            Buffer.window(*self._where(i, layout), value.type)
            for i, value in enumerate(program.values)
        ]

    def _where(self, i: int, layout: _Layout) -> tuple[Memory, int, int]:
        match self._program.values[i].kind:
            case "constant":
                return self.constants[i], 0, layout.sizes[i]
            case "arena":
                return self.arena, layout.offsets[i], layout.sizes[i]
            case _:
                return self.io, layout.offsets[i], layout.sizes[i]

    def add_to(self, builder: ExecutionPlanBuilder) -> None:
        for i, (value, buffer) in enumerate(zip(self._program.values, self.buffers, strict=True)):
            # A value without a node still needs a key: negative ones are nobody's id.
            ids = value.node_ids or (-1 - i,)
            index = builder.add_buffer(ids[0], buffer)
            for node_id in ids[1:]:
                builder.map_buffer(node_id, index)

    def resize(self, layout: _Layout) -> None:
        """Move every buffer to memory of the new layout; the inputs keep their contents."""
        old = [b.memory.bytes[b.offset : b.offset + b.capacity_bytes] for b in self.buffers]
        self.io = allocate(layout.io_bytes)
        self.arena = allocate(layout.arena_bytes, mapped=True)
        for i, (value, buffer) in enumerate(zip(self._program.values, self.buffers, strict=True)):
            buffer.move(*self._where(i, layout))
            if value.kind == "input":
                self.io.bytes[buffer.offset : buffer.offset + len(old[i])] = old[i]


_constant_memory: weakref.WeakKeyDictionary[Program, dict[int, Memory]] = (
    weakref.WeakKeyDictionary()
)


def _constants(program: Program) -> dict[int, Memory]:
    """Where the constants lie, for all plans of a program: the arrays themselves.

    They are sealed, so that nobody can change them; only what is too small for a kernel to
    read safely is copied.
    """
    found = _constant_memory.get(program)
    if found is None:
        found = {}
        for i, value in enumerate(program.values):
            if value.array is not None:
                found[i] = _constant(value)
        _constant_memory[program] = found
    return found


def share_constants(program: Program, other: Program) -> None:
    """Let the plans of `other`, which has the same constants, read them where `program`'s do."""
    adopt_constants(other, _constants(program))


def adopt_constants(program: Program, memory: dict[int, Memory]) -> None:
    """Let the plans of `program` read its constants where they lie: memory by value."""
    _constant_memory[program] = memory


def _constant(value: ProgramValue) -> Memory:
    array = np.asarray(value.array)
    if array.shape != value.type.shape or array.dtype != value.type.dtype.numpy:
        raise PlanError(
            value.name, f"array must be {value.type}, got {array.dtype}{list(array.shape)}."
        )
    if array.nbytes >= ALIGNMENT_BYTES and array.flags.c_contiguous and array.flags.aligned:
        return Memory.over(array.reshape(-1).view(np.uint8))
    memory = allocate(array.nbytes)
    np.ndarray(array.shape, array.dtype, memory.bytes.data)[...] = array
    memory.bytes.flags.writeable = False
    return memory


def _adopt(
    plan: ExecutionPlan,
    program: Program,
    memory: _PlanBuffers,
    layout: _Layout,
    memory_limit: int | None,
    arena: bool,
) -> None:
    """Tell the plan what belongs to it and how to grow."""

    def measure(values: Mapping[str, int]) -> PlanMemory:
        return _Layout.at(program, values, arena).as_memory()

    def set_memory(placed: _Layout) -> None:
        shared = frozenset(m.id for m in memory.constants.values())
        owner = owner_ref()
        if owner is not None:
            record = replace(placed.as_memory(), measure=measure)
            owner.own(record, arena=(memory.arena,), shared=shared)

    def resize(capacities: Mapping[str, int]) -> None:
        _check_capacities(program, capacities)
        larger = _Layout(program, capacities, arena)
        larger.check_limit(memory_limit, _scratch_bytes(program, capacities, threads))
        memory.resize(larger)
        set_memory(larger)

    threads = plan.threads
    owner_ref = weakref.ref(plan)
    plan.set_again(
        lambda n: instantiate(program, threads=n, memory_limit=memory_limit, arena=arena)
    )
    plan.set_program(program, memory_limit)
    set_memory(layout)
    if any(v.max is None for v in program.variables):
        plan.set_resize(resize)
    outputs = {index for _, index in program.outputs}
    inner = [(i, value) for i, value in enumerate(program.values) if i not in outputs]
    plan.keep_values(
        intermediates={i: value.type for i, value in inner if value.kind == "arena"},
        constants={i: value.type for i, value in inner if value.kind == "constant"},
    )
    plan.keep_results({name: (i, program.values[i].type) for name, i in program.kept})
