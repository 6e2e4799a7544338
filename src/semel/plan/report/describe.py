"""Names and lifetimes of what a plan consists of, for reports.

    PlanParts  -->  names, kinds, positions; ProfiledOp, ArenaBlock

`explain` and the profiler say the same of the same thing because both ask here. Positions
count in order of execution (`LinkedRows.order`), views included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from semel.ir.expr import Dim, evaluate
from semel.plan.program import GIVEN
from semel.plan.report.records import ArenaBlock, PlacedValue, ProfiledOp
from semel.plan.rows import PreparedCustomFunction, PreparedLoop, PreparedOp
from semel.plan.table import Signature, few
from semel.plan.tree import Placed

if TYPE_CHECKING:
    from semel.plan.link import LinkedRows
    from semel.plan.parts import PlanParts


def kind_of(parts: PlanParts, op: PreparedOp) -> str:
    """The kind of a row; of a function, whether the host or the runner calls it."""
    if isinstance(op, PreparedCustomFunction):
        is_native = parts.scope.function(op).convention == "kernel"
        return "native call" if is_native else "host call"
    return op.kind


def written_positions(parts: PlanParts, op: PreparedOp) -> set[int]:
    """Positions among the operation's buffers that it may write; a view's first is its own."""
    uses = op.uses(parts.scope)
    return {i for i, use in enumerate(uses) if "w" in use.access} if uses else {0}


def buffer_names(parts: PlanParts) -> list[str]:
    """A name for each buffer, with its index where the name alone could mean several."""
    values = parts.program.values
    names = [v.name if v.place == GIVEN else f"{v.name}#{i}" for i, v in enumerate(values)]
    for name, index in parts.program.kept:
        names[index] = name
    for io in (*parts.output_io, *parts.input_io):
        names[io.index] = io.name
    return names


def buffer_kinds(parts: PlanParts) -> list[str]:
    """The kinds of `ExplainedBuffer`; who is kept and an output is an output, as is no input."""
    kinds = ["buffer" if v.place == GIVEN else v.place for v in parts.program.values]
    for _, index in parts.program.kept:
        kinds[index] = "kept"
    for index in parts.outputs:
        kinds[index] = "output"
    for io in parts.input_io:
        kinds[io.index] = "input"
    return kinds


def alive_positions(parts: PlanParts, order: Sequence[int]) -> dict[int, tuple[int, int]]:
    """For each buffer that is touched: the first and the last position in `order` that does.

    What a loop has from outside, or leaves behind, is alive from its begin to its end.
    """
    found: dict[int, tuple[int, int]] = {}
    place = {i: at for at, i in enumerate(order)}
    inside: dict[int, list[int]] = {}
    for position, i in enumerate(order):
        for b in parts.ops[i].buffer_indices:
            first, _ = found.get(b, (position, position))
            found[b] = (first, position)
        for around in parts.placed[i].around:
            inside.setdefault(around.position, []).append(i)
    for i in sorted(inside, reverse=True):  # inner ones first
        begin, end = place[i], max(place[j] for j in inside[i])
        for b in {b for j in inside[i] for b in parts.ops[j].buffer_indices}:
            first, last = found[b]
            if not (begin < first and last <= end):
                found[b] = (min(first, begin), max(last, end))
    return found


#: How often a loop runs that nothing else ends.
UNTIL = "until its condition is false"


def loop_times(parts: PlanParts) -> dict[int, str]:
    """For each operation inside loops how often it is run, for a loop how often what is inside."""
    found: dict[int, str] = {}
    for placed in parts.placed:
        own = (placed.row,) if isinstance(placed.row, PreparedLoop) else ()
        loops = (*placed.loops, *own)
        trips = [str(loop.trip) for loop in loops]
        if len(trips) > 1:
            trips = [f"({trip})" if " " in trip else trip for trip in trips]
        trips = [
            UNTIL if loop.is_open else f"up to {trip}" if loop.buffer_indices else trip
            for loop, trip in zip(loops, trips, strict=True)
        ]
        if trips:
            found[placed.position] = " x ".join(trips)
    return found


def step_numbers(linked: LinkedRows) -> dict[int, int]:
    """The step of each operation that has a row."""
    return {
        i: number
        for number, step in enumerate(linked.shown_steps())
        for segment in step
        for i in segment
    }


def evaluate_or_none(value: Dim, values: Mapping[str, int]) -> int | None:
    """The value, or None if it needs a variable that is not bound."""
    try:
        return evaluate(value, values)
    except KeyError:
        return None


def describe_plan(
    parts: PlanParts, values: Mapping[str, int], peak_bytes: int, signature: Signature
) -> str:
    """A plan in one line: what goes in and comes out, variables, operations, bytes."""
    bounds = [
        f"{v.name}={values.get(v.name, '?')} in [{v.min}, {'...' if v.max is None else v.max}]"
        for v in (known.variable for known in parts.variables)
    ]
    facts = [
        parts.device.name,
        signature.shortened(),
        *([few(bounds)] if bounds else []),
        f"{len(parts.ops)} ops",
        f"{peak_bytes:,} bytes",
    ]
    return f"ExecutionPlan({'; '.join(facts)})"


def describe_ops(
    parts: PlanParts, linked: LinkedRows, values: Mapping[str, int]
) -> list[ProfiledOp]:
    """Every operation in order of execution, with its work in all iterations at these variables."""
    row_of = row_numbers(linked)
    step_of = step_numbers(linked)
    found: list[ProfiledOp] = []
    for i in linked.order:
        op, row = parts.ops[i], row_of.get(i, -1)
        work = linked.rows[row] if row >= 0 else None
        times = _times(parts.placed[i], values)
        device, lane = op.lane_on(parts.program.device)
        found.append(
            ProfiledOp(
                kernel=next(iter(op.kernels), None),
                device=device,
                lane=lane,
                num_buffers=len(op.buffer_indices),
                name=op.name,
                kind=kind_of(parts, op),
                op_index=i,
                op_id=op.id,
                row=row,
                step=step_of.get(i, -1),
                tiles=0 if work is None else evaluate(work.tiles, values) * times,
                bytes=0 if work is None else evaluate(work.bytes, values) * times,
                flops=0 if work is None else evaluate(work.flops, values) * times,
                origins=op.origins,
            )
        )
    return found


def row_numbers(linked: LinkedRows) -> dict[int, int]:
    """The first row of each operation that has one."""
    return {i: row for row, i in reversed(list(enumerate(linked.row_ops)))}


def moved_bytes(
    parts: PlanParts, linked: LinkedRows, values: Mapping[str, int]
) -> dict[int, int | None]:
    """For each operation what it reads and writes in all iterations; None if that is not known.

    Of a loop that only its condition ends, in one.
    """
    row_of = row_numbers(linked)
    found: dict[int, int | None] = {}
    for i in linked.order:
        once: int | None = 0
        if i in row_of:
            once = evaluate_or_none(linked.rows[row_of[i]].bytes, values)
        loops = (loop for loop in parts.placed[i].loops if not loop.is_open)
        trips = [evaluate_or_none(loop.trip, values) for loop in loops]
        known = [max(trip, 0) for trip in trips if trip is not None]
        is_known = once is not None and len(known) == len(trips)
        found[i] = prod(known, start=once or 0) if is_known else None
    return found


def _times(placed: Placed, values: Mapping[str, int]) -> int:
    """How often a row runs; a loop whose trip is not known before counts as one."""
    times = 1
    for loop in placed.loops:
        trip = None if loop.is_open else evaluate_or_none(loop.trip, values)
        times *= 1 if trip is None else max(trip, 0)
    return times


def describe_arena(
    parts: PlanParts, linked: LinkedRows, values: Mapping[str, int]
) -> tuple[ArenaBlock, ...]:
    """The values that share the arena, in order of their first use."""
    alive = alive_positions(parts, linked.order)
    names = buffer_names(parts)
    blocks = [
        ArenaBlock(
            f"{names[i]}: {value.type}",
            parts.buffers[i].offset,
            parts.buffers[i].capacity_bytes,
            evaluate(value.type.num_bytes, values),
            *alive[i],
        )
        for i, value in enumerate(parts.program.values)
        if value.place == "arena" and i in alive
    ]
    return tuple(sorted(blocks, key=lambda b: (b.first, b.offset_bytes)))


def describe_places(parts: PlanParts) -> tuple[PlacedValue, ...]:
    """The values that have bytes of their own, largest first."""
    names, kinds = buffer_names(parts), buffer_kinds(parts)
    found: dict[tuple[int, int], PlacedValue] = {}
    for i, value in enumerate(parts.program.values):
        storage, start, end = parts.buffers[i].byte_range
        if value.place == "arena" and kinds[i] == "arena":
            continue
        shown = PlacedValue(f"{names[i]}: {value.type}", kinds[i], end - start)
        # Views of the same bytes count once, as the largest.
        known = found.get((storage, start))
        if known is None or known.bytes < shown.bytes:
            found[storage, start] = shown
    return tuple(sorted(found.values(), key=lambda p: -p.bytes))
