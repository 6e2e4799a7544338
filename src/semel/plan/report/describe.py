"""Names and lifetimes of what a plan consists of, for reports.

    PlanParts, Program | None  -->  names, kinds, positions; ProfiledOp, ArenaBlock

`explain` and the profiler say the same of the same thing because both ask here. Positions
count in order of execution (`LinkedOps.order`), views included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from semel.ir.expr import Dim, evaluate
from semel.plan.loops import PlanLoop, find_loops, loop_at
from semel.plan.prepared import (
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedEnd,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
)
from semel.plan.report.records import ArenaBlock, ProfiledOp
from semel.runtime.custom import CustomFunction

if TYPE_CHECKING:
    from semel.plan.link import LinkedOps
    from semel.plan.parts import PlanParts
    from semel.plan.program import Program

_KINDS: dict[type, str] = {
    PreparedKernel: "kernel",
    PreparedCopy: "copy",
    PreparedBufferView: "view",
    PreparedCustomFunction: "host call",
    PreparedLoop: "loop",
    PreparedEnd: "end",
}


def kind_of(parts: PlanParts, op: PreparedOp) -> str:
    """kernel, copy, view, loop, end, host call, or native call: one that the runner calls."""
    if isinstance(op, PreparedCustomFunction) and _function(parts, op).convention == "kernel":
        return "native call"
    return _KINDS[type(op)]


def written_positions(parts: PlanParts, op: PreparedOp) -> set[int]:
    """Positions among the operation's buffers that it may write."""
    match op:
        case PreparedKernel():
            return set(op.output_indices)
        case PreparedCustomFunction():
            access = _function(parts, op).access(len(op.buffer_indices), op.attrs)
            return {position for position, how in enumerate(access) if "w" in how}
        case _:
            return {0}


def _function(parts: PlanParts, op: PreparedCustomFunction) -> CustomFunction:
    return parts.functions[op.kind]


def name_of(op: PreparedOp) -> str:
    """The kernel's or function's name; a copy and a view are called what they are."""
    match op:
        case PreparedKernel():
            return op.kernel.name
        case PreparedCustomFunction():
            return op.kind
        case _:
            return _KINDS[type(op)]


def origins_of(op: PreparedOp) -> tuple[str, ...]:
    """The source lines that a compiled kernel carries."""
    ast = op.ast if isinstance(op, PreparedKernel) else None
    return ast if isinstance(ast, tuple) and all(isinstance(o, str) for o in ast) else ()


def buffer_names(parts: PlanParts, program: Program | None) -> list[str]:
    """A name for each buffer, with its index where the name alone could mean several."""
    names = [f"#{i}" for i in range(len(parts.buffers))]
    if program is not None:
        names = [f"{value.name}#{i}" for i, value in enumerate(program.values)]
    for io in (*parts.output_io, *parts.input_io):
        names[io.index] = io.name
    return names


def buffer_kinds(parts: PlanParts, program: Program | None) -> list[str]:
    """input, output, constant, arena, or buffer for what a hand-built plan does not declare."""
    if program is not None:
        return [value.kind for value in program.values]
    kinds = ["buffer"] * len(parts.buffers)
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
    for position, i in enumerate(order):
        for b in parts.ops[i].buffer_indices:
            first, _ = found.get(b, (position, position))
            found[b] = (first, position)
    place = {i: position for position, i in enumerate(order)}
    for loop in find_loops(parts.ops):
        begin, end = place[loop.begin], place[loop.end]
        for b, (first, last) in found.items():
            is_inside = begin < first and last < end
            if not is_inside and first < end and begin < last and _is_used(parts, loop, b):
                found[b] = (min(first, begin), max(last, end))
    return found


def _is_used(parts: PlanParts, loop: PlanLoop, buffer: int) -> bool:
    inside = parts.ops[loop.begin + 1 : loop.end]
    return any(buffer in op.buffer_indices for op in inside)


def loop_times(parts: PlanParts) -> dict[int, str]:
    """For each operation inside a loop, how often that is run."""
    loops = find_loops(parts.ops)
    return {i: str(loop.trip) for loop in loops for i in range(loop.begin + 1, loop.end)}


def step_numbers(linked: LinkedOps) -> dict[int, int]:
    """The step of each operation that has a row."""
    return {
        i: number for number, step in enumerate(linked.steps) for segment in step for i in segment
    }


def evaluate_or_none(value: Dim, values: Mapping[str, int]) -> int | None:
    """The value, or None if it needs a variable that is not bound."""
    try:
        return evaluate(value, values)
    except KeyError:
        return None


def describe_plan(parts: PlanParts, values: Mapping[str, int], peak_bytes: int) -> str:
    """A plan in one line: what goes in and comes out, variables, operations, bytes."""
    inputs = [f"{io.name}: {io.type}" for io in parts.input_io]
    outputs = [f"{io.name}: {io.type}" for io in parts.output_io]
    outputs = outputs or [str(parts.buffers[i].type) for i in parts.outputs]
    bounds = [
        f"{v.name}={values.get(v.name, '?')} in [{v.min}, {'...' if v.max is None else v.max}]"
        for v in (known.variable for known in parts.variables)
    ]
    facts = [
        parts.device.name,
        f"{_few(inputs)} -> {_few(outputs)}",
        *([_few(bounds)] if bounds else []),
        f"{len(parts.ops)} ops",
        f"{peak_bytes:,} bytes",
    ]
    return f"ExecutionPlan({'; '.join(facts)})"


def _few(items: Sequence[str], most: int = 4) -> str:
    more = [f"{len(items) - most} more"] if len(items) > most else []
    return ", ".join([*items[:most], *more]) or "nothing"


def describe_ops(
    parts: PlanParts, linked: LinkedOps, values: Mapping[str, int]
) -> list[ProfiledOp]:
    """Every operation in order of execution, with its work in all iterations at these variables."""
    row_of = {i: row for row, i in enumerate(linked.row_ops)}
    step_of = step_numbers(linked)
    found: list[ProfiledOp] = []
    for i in linked.order:
        op, row = parts.ops[i], row_of.get(i, -1)
        work = linked.rows[row] if row >= 0 else None
        loop = loop_at(linked.loops, i)
        times = 1 if loop is None else max(evaluate(linked.loops[loop].trip, values), 0)
        found.append(
            ProfiledOp(
                kernel=op.kernel if isinstance(op, PreparedKernel) else None,
                device=parts.device.name,
                num_buffers=len(op.buffer_indices),
                name=name_of(op),
                kind=kind_of(parts, op),
                op_index=i,
                op_id=op.id,
                row=row,
                step=step_of.get(i, -1),
                tiles=0 if work is None else evaluate(work.tiles, values) * times,
                bytes=0 if work is None else evaluate(work.bytes, values) * times,
                flops=0 if work is None else evaluate(work.flops, values) * times,
                origins=origins_of(op),
            )
        )
    return found


def describe_arena(
    parts: PlanParts, linked: LinkedOps, program: Program | None, values: Mapping[str, int]
) -> tuple[ArenaBlock, ...]:
    """The values that share the arena, in order of their first use."""
    if program is None:
        return ()
    alive = alive_positions(parts, linked.order)
    names = buffer_names(parts, program)
    blocks = [
        ArenaBlock(
            f"{names[i]}: {value.type}",
            parts.buffers[i].offset,
            parts.buffers[i].capacity_bytes,
            evaluate(value.type.num_bytes, values),
            *alive[i],
        )
        for i, value in enumerate(program.values)
        if value.kind == "arena" and i in alive
    ]
    return tuple(sorted(blocks, key=lambda b: (b.first, b.offset_bytes)))
