"""What a plan is and why: kernels, buffers, steps, and what each variable changes.

    ExecutionPlan  --explain()-->  Explanation  --str(), json()-->  people, scripts

Everything is read off the plan and the program it came from; nothing runs and nothing is
measured. A plan built by hand has no graph behind it, so that its kernels list no nodes.

Positions count in order of execution; `op` numbers are those of `prepared_ops`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from semel.ir.expr import Dim, Variable, evaluate, variables
from semel.plan.report.describe import (
    alive_positions,
    buffer_kinds,
    buffer_names,
    evaluate_or_none,
    kind_of,
    loop_times,
    moved_bytes,
    step_numbers,
    written_positions,
)
from semel.plan.report.layers import Repeat, find_repeats
from semel.plan.report.text import explanation_html, format_explanation
from semel.plan.row import COMPUTE, LaneKey
from semel.plan.rows import PreparedBranch, PreparedKernel, PreparedLoop, PreparedOp
from semel.plan.tree import Placed
from semel.runtime.allocator import align

if TYPE_CHECKING:
    from semel.plan.link import LinkedRows
    from semel.plan.parts import PlanMemory, PlanParts
    from semel.plan.program import NodeNote, ProgramState


@dataclass(frozen=True, slots=True)
class ExplainedOp:
    """One operation: what it computes and reads, when it runs, and why it is one of its own.

    `reason` says why its result goes to memory instead of into the kernel that wants it, `where`
    why it is on its device, if there are several;
    `waits` names what it must wait for in the step before; `choice` says how its kernel is
    cut and whether that is the default or was measured to be faster; `times` how often it
    runs, if that is a loop. `inside` are the ops that it is a part of, outermost first. It runs
    on a `lane` of a `device`; what it waits for may be on another. `template` is the kind of its
    kernel. `moved_bytes` are what a run reads and writes there, all times together, at the
    current variables; None where one is not bound. Of a loop that only its condition ends
    nobody knows how often it runs: they are those of one iteration.
    """

    op: int
    kind: str
    name: str
    step: int
    nodes: tuple[str, ...]
    reason: str
    origins: tuple[str, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    tiles: str
    flops: str
    bytes: str
    waits: tuple[str, ...]
    choice: str = ""
    times: str = ""
    inside: tuple[int, ...] = ()
    device: str = ""
    lane: str = COMPUTE
    template: str = ""
    moved_bytes: int | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class ExplainedBuffer:
    """One buffer: where it lies, how long it lives, and whose bytes it uses again.

    `first` and `last` are positions in order of execution, -1 if nothing touches it. `kind` is
    input, output, kept (to be read by its name), constant or arena; buffer for what a plan built
    by hand does not declare.
    """

    index: int
    name: str
    kind: str
    type: str
    size_bytes: int
    storage: int
    offset_bytes: int
    first: int
    last: int
    shares_with: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A quantity that follows a variable: at its minimum, now, and at its maximum.

    The other variables keep their value meanwhile; None where something is not known.
    """

    what: str
    expression: str
    where: tuple[str, ...]
    at_min: int | None
    now: int | None
    at_max: int | None


@dataclass(frozen=True, slots=True)
class ExplainedVariable:
    """A variable, its bounds and value, and everything that it changes.

    A late one has the value that the last run found out; a held one goes on by itself, to `next`.
    """

    name: str
    min: int
    max: int | None
    value: int | None
    changes: tuple[Change, ...]
    guards: tuple[str, ...]
    is_late: bool
    next: str | None = None


@dataclass(frozen=True, slots=True)
class ExplainedMemory:
    """Bytes held. `live_bytes` is the most that is alive at once, at the row at `live_at`.

    No arena can be smaller. `devices` has for each of several devices what lies there, for people.
    """

    weights_bytes: int
    arena_bytes: int
    io_bytes: int
    state_bytes: int
    scratch_bytes: int
    peak_bytes: int
    naive_bytes: int
    live_bytes: int
    live_at: int
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedState:
    """What is kept between runs: `how` a run updates it and `why`, and which cursor it follows."""

    name: str
    type: str
    how: str
    why: str
    buffers: tuple[int, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """All of it; `str()` for people, `json()` for scripts.

    `nodes` say what became of each node of the graph, as it was written. `compile_count` is how
    often the compiler ran for this plan, once if the program was not found again; `recompiles`
    what it did beyond that: nothing, whatever is bound, grown or replaced. `placement` says how
    devices were chosen, if they were.
    """

    device: str  #: where the plan runs
    threads: int  #: participants of a run at most
    compile_count: int  #: how often the compiler ran for this plan
    num_steps: int  #: parts of a run between barriers
    num_kernels: int  #: calls of kernels
    num_distinct_kernels: int  #: kernels that were compiled for them
    ops: tuple[ExplainedOp, ...]  #: one for each operation, in order of execution
    buffers: tuple[ExplainedBuffer, ...]  #: where each value lies, and for how long
    variables: tuple[ExplainedVariable, ...]  #: sizes, and what they change
    memory: ExplainedMemory  #: bytes by purpose
    log: tuple[str, ...] = ()  #: why there is one kernel more, line by line
    states: tuple[ExplainedState, ...] = ()  #: what is kept between runs
    target: str = ""  #: the machine that the code was made for
    nodes: tuple[NodeNote, ...] = ()  #: what became of each node of the graph
    recompiles: int = 0  #: what it compiled beyond that
    signature: str = ""  #: what goes in and comes out
    placement: tuple[str, ...] = ()  #: how devices were chosen

    @property
    def moved_bytes(self) -> int | None:
        """What all ops of a run read and write; None where a variable is not bound.

        Of a loop that only its condition ends, one iteration counts.
        """
        amounts = [op.moved_bytes for op in self.ops]
        known = [amount for amount in amounts if amount is not None]
        return sum(known) if len(known) == len(amounts) else None

    def json(self) -> dict[str, Any]:
        """Plain data: dictionaries, lists, numbers and text."""
        return asdict(self)

    @property
    def layers(self) -> list[Repeat]:
        """The ops in order, with layers that are equal as one."""
        return find_repeats([f"{op.kind} {op.name}" for op in self.ops])

    def folded(self) -> str:
        """The text with one of equal layers: what people read first of a large plan."""
        return format_explanation(self, folded=True)

    def __str__(self) -> str:
        return format_explanation(self)

    def __repr__(self) -> str:
        name = f"{self.signature}; " if self.signature else ""
        return (
            f"Explanation({name}{self.device}; {len(self.ops)} ops, {self.num_distinct_kernels} "
            f"distinct kernels, {self.num_steps} steps; print() shows all of it)"
        )

    def _repr_html_(self) -> str:
        return explanation_html(self, repr(self))


def explain_plan(
    parts: PlanParts,
    linked: LinkedRows,
    memory: PlanMemory,
    values: Mapping[str, int],
    compile_count: int,
    signature: str = "",
) -> Explanation:
    """Read everything off the parts of a plan; `values` are the bound variables."""
    kernels = [kernel for op in parts.ops for kernel in op.kernels]
    buffers = _buffers(parts, linked.order)
    return Explanation(
        device=parts.device.name,
        threads=parts.threads,
        compile_count=compile_count,
        num_steps=len(linked.shown_steps()),
        num_kernels=len(kernels),
        num_distinct_kernels=len(set(kernels)),
        ops=_ops(parts, linked, values),
        buffers=buffers,
        variables=tuple(
            _variable(v.variable, parts, values) for v in (*parts.variables, *parts.late)
        ),
        memory=_memory(memory, buffers, len(linked.order)),
        log=parts.program.log,
        placement=parts.program.placement,
        states=tuple(_state(state, parts) for state in parts.states),
        target=parts.program.target.name if parts.program.target else "",
        nodes=parts.program.nodes,
        recompiles=max(compile_count - 1, 0),
        signature=signature,
    )


def _state(state: ProgramState, parts: PlanParts) -> ExplainedState:
    kind = parts.program.values[state.index].type
    halves = [i for i in (state.index, state.other) if i is not None]
    return ExplainedState(state.name, str(kind), state.how, state.why, tuple(halves), state.cursor)


# ---------------------------------------------------------------- operations


def _ops(
    parts: PlanParts, linked: LinkedRows, values: Mapping[str, int]
) -> tuple[ExplainedOp, ...]:
    step_of, steps = step_numbers(linked), linked.shown_steps()
    names = buffer_names(parts)
    times, moved = loop_times(parts), moved_bytes(parts, linked, values)
    found: list[ExplainedOp] = []
    for i in linked.order:
        op, step = parts.ops[i], step_of.get(i, -1)
        device, lane = _lane_of(parts, i)
        before = [] if step < 1 else [j for segment in steps[step - 1] for j in segment]
        before = [j for j in before if _lane_of(parts, j) == (device, lane)]
        before += linked.waits.get(i, ())
        before = [j for j in before if not _exclude_each_other(parts.placed[i], parts.placed[j])]
        written = written_positions(parts, op)
        notes = op.notes
        bound = parts.scope.bind(op) if isinstance(op, PreparedKernel) else None
        found.append(
            ExplainedOp(
                op=i,
                kind=kind_of(parts, op),
                name=op.name,
                step=step,
                nodes=notes.nodes,
                reason=notes.reason,
                where=notes.where,
                origins=op.origins,
                reads=tuple(b for p, b in enumerate(op.buffer_indices) if p not in written),
                writes=tuple(b for p, b in enumerate(op.buffer_indices) if p in written),
                tiles="" if bound is None else str(bound.tiles),
                flops="" if bound is None else str(bound.flops),
                bytes="" if bound is None else str(bound.bytes),
                waits=tuple(_waits(parts, i, before, names)),
                choice=notes.choice,
                times=times.get(i, ""),
                inside=tuple(around.position for around in parts.placed[i].around),
                device=device,
                lane=lane,
                template=notes.template,
                moved_bytes=moved[i],
            )
        )
    return tuple(found)


def _lane_of(parts: PlanParts, i: int) -> LaneKey:
    """Where a row runs: what is inside another, where that does."""
    placed = parts.placed[i]
    row = placed.around[0].row if placed.around else placed.row
    return row.lane_on(parts.program.device)


def _waits(parts: PlanParts, i: int, before: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    """Why operation `i` cannot run beside those of the step before."""
    op = parts.ops[i]
    written = written_positions(parts, op)
    for j in before:
        for position, b in enumerate(op.buffer_indices):
            other = _first_conflict(parts, b, position in written, parts.ops[j])
            if other is not None:
                verb = "writes over" if position in written else "reads"
                yield f"{verb} {names[b]}, which op {j} {other}"
                break
        else:
            if j in parts.after[i]:
                yield f"must follow op {j}"
    yield from (f"op {k} ends before it" for k in _ended(parts, i, before))


def _exclude_each_other(a: Placed, b: Placed) -> bool:
    """Whether two rows are in the two arms of a branch."""
    inside = {each.position: each.body for each in b.around if isinstance(each.row, PreparedBranch)}
    return any(inside.get(each.position, each.body) != each.body for each in a.around)


def _ended(parts: PlanParts, i: int, before: Sequence[int]) -> list[int]:
    """Rows with bodies that the step before was inside of and operation `i` is not."""
    now = {around.position for around in parts.placed[i].around}
    then = {around.position for j in before for around in parts.placed[j].around}
    return sorted(then - now)


def _first_conflict(parts: PlanParts, b: int, writes: bool, other: PreparedOp) -> str | None:
    storage, start, end = parts.buffers[b].byte_range
    written = written_positions(parts, other)
    for position, c in enumerate(other.buffer_indices):
        other_storage, other_start, other_end = parts.buffers[c].byte_range
        overlap = storage == other_storage and start < other_end and other_start < end
        if b != c and not writes and parts.program.values[b].place == "arena":
            continue  # bytes that an earlier value had: nothing of it is read
        if overlap and position in written:
            return "writes"
        if overlap and writes:
            return "reads"
    return None


# ---------------------------------------------------------------- buffers and memory


def _buffers(parts: PlanParts, order: Sequence[int]) -> tuple[ExplainedBuffer, ...]:
    names, kinds = buffer_names(parts), buffer_kinds(parts)
    alive = alive_positions(parts, order)
    ranges = [b.byte_range for b in parts.buffers]
    types = [value.type for value in parts.program.values]
    found: list[ExplainedBuffer] = []
    for i, buffer in enumerate(parts.buffers):
        storage, start, end = ranges[i]
        shares = [
            j
            for j, (other, low, high) in enumerate(ranges)
            if j != i and other == storage and low < end and start < high
        ]
        first, last = alive.get(i, (-1, -1))
        found.append(
            ExplainedBuffer(
                i,
                names[i],
                kinds[i],
                str(types[i]),
                buffer.capacity_bytes,
                storage,
                start,
                first,
                last,
                tuple(shares),
            )
        )
    return tuple(found)


def _memory(
    memory: PlanMemory, buffers: Sequence[ExplainedBuffer], num_ops: int
) -> ExplainedMemory:
    live = [0] * num_ops
    for buffer in buffers:
        if buffer.kind == "arena" and buffer.first >= 0:
            for position in range(buffer.first, buffer.last + 1):
                live[position] += align(buffer.size_bytes)
    most = max(live, default=0)
    return ExplainedMemory(
        memory.weights_bytes,
        memory.arena_bytes,
        memory.io_bytes,
        memory.state_bytes,
        memory.scratch_bytes,
        memory.peak_bytes,
        memory.naive_bytes,
        most,
        live.index(most) if most else -1,
        tuple(f"{name}: {block}" for name, block in memory.devices.items())
        if len(memory.devices) > 1
        else (),
    )


# ---------------------------------------------------------------- variables


def _variable(variable: Variable, parts: PlanParts, values: Mapping[str, int]) -> ExplainedVariable:
    others = {
        v.name: values.get(v.name, v.min if v.max is None else v.max)
        for v in parts.bounded.values()
    }
    quantities: dict[tuple[str, Dim], list[str]] = {}
    for what, where, value in _quantities(parts):
        if variable.name in {v.name for v in variables(value)}:
            quantities.setdefault((what, value), []).append(where)
    changes = [
        _change(variable, what, value, where, others, values)
        for (what, value), where in quantities.items()
    ]
    guards = [
        message
        for expr, message in parts.guards
        if variable.name in {v.name for v in variables(expr)}
    ]
    return ExplainedVariable(
        variable.name,
        variable.min,
        variable.max,
        values.get(variable.name),
        tuple(changes),
        tuple(guards),
        any(v.variable.name == variable.name for v in parts.late),
        next(
            (str(v.next) for v in parts.variables if v.variable == variable and v.next is not None),
            None,
        ),
    )


def _quantities(parts: PlanParts) -> Iterator[tuple[str, str, Dim]]:
    """Everything symbolic in a plan: (what it is, whose, expression)."""
    for i, op in enumerate(parts.ops):
        if isinstance(op, PreparedKernel):
            bound = parts.scope.bind(op)
            yield "tiles", f"op {i}", bound.tiles
            yield "scratch bytes", f"op {i}", bound.scratch_bytes
            yield "flops", f"op {i}", bound.flops
        elif isinstance(op, PreparedLoop):
            yield "iterations", f"op {i}", op.trip
    names = buffer_names(parts)
    types = {i: value.type for i, value in enumerate(parts.program.values)}
    types |= {io.index: io.type for io in (*parts.input_io, *parts.output_io)}
    for i, name in enumerate(names):
        yield "bytes", name, types[i].num_bytes


def _change(
    variable: Variable,
    what: str,
    value: Dim,
    where: Sequence[str],
    others: Mapping[str, int],
    values: Mapping[str, int],
) -> Change:
    def at(number: int | None) -> int | None:
        return None if number is None else evaluate(value, {**others, variable.name: number})

    return Change(
        what,
        str(value),
        tuple(where),
        at(variable.min),
        evaluate_or_none(value, values),
        at(variable.max),
    )
