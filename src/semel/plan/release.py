"""Which bytes of a plan built by hand hold nothing between two runs, and who else holds them.

    operations in schedule order  --passing_ranges-->  byte ranges that may be given back

Nobody says of a buffer made by hand that it is an intermediate: it may as well be a state that the
next run goes on from. It is one just if no run can see what an earlier one left there: it is no
input and no output, and every read of it follows a write in the same run that covers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from semel.ir.expr import Dim, is_nonnegative
from semel.plan.link import KernelBinder
from semel.plan.loops import PlanLoop, find_loops, loop_at
from semel.plan.parts import PlanParts
from semel.plan.prepared import PreparedCopy, PreparedCustomFunction, PreparedKernel, PreparedOp
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction

ByteRange = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Use:
    """One buffer of one operation: how many bytes it may read, and writes, from `where`.

    `is_whole`: it writes them all each time, and not those that a loop's counter selects.
    """

    where: ByteRange
    reads: Dim | None
    writes: Dim | None
    loop: int | None
    is_whole: bool


def passing_ranges(parts: PlanParts, binder: KernelBinder) -> list[ByteRange]:
    """The byte ranges of buffers whose contents no later run sees."""
    loops = find_loops(parts.ops)
    uses = [use for position in parts.order for use in _uses(parts, position, binder, loops)]
    kept = [parts.buffers[io.index].byte_range for io in parts.input_io]
    kept += [parts.buffers[i].byte_range for i in parts.outputs]
    kept += _seen_later(uses)
    ranges = {use.where: None for use in uses if use.writes is not None}
    return [one for one in ranges if not any(_overlap(one, other) for other in kept)]


def _uses(
    parts: PlanParts, position: int, binder: KernelBinder, loops: Sequence[PlanLoop]
) -> Iterator[_Use]:
    op, loop = parts.ops[position], loop_at(loops, position)
    counter = None if loop is None else loops[loop].counter.name
    is_whole = not isinstance(op, PreparedKernel) or all(
        var.name != counter or var.name in op.fixedvars for var in op.runtime_vars
    )
    for index, access, size in accesses(op, parts.buffers, binder, parts.functions):
        reads, writes = (size if letter in access else None for letter in "rw")
        yield _Use(parts.buffers[index].byte_range, reads, writes, loop, is_whole)


def accesses(
    op: PreparedOp,
    buffers: Sequence[Buffer],
    binder: KernelBinder,
    functions: Mapping[str, CustomFunction],
) -> Iterator[tuple[int, str, Dim]]:
    """(buffer, r, w or rw, bytes) for each argument; reads come before writes."""
    match op:
        case PreparedKernel():
            specs, sizes = op.kernel.signature.buffers, binder.bind(op).sizes_bytes
            found = [
                (index, spec.access, size)
                for index, spec, size in zip(op.buffer_indices, specs, sizes, strict=True)
            ]
        case PreparedCopy():
            target, source = op.buffer_indices
            size = buffers[target].capacity_bytes
            found = [(source, "r", size), (target, "w", size)]
        case PreparedCustomFunction():
            # It writes what it likes of what it may write: nothing is sure.
            how = functions[op.kind].access(len(op.buffer_indices), op.attrs)
            found = [
                (index, "rw" if "w" in letters else letters, buffers[index].capacity_bytes)
                for index, letters in zip(op.buffer_indices, how, strict=True)
            ]
        case _:
            found = []
    yield from sorted(found, key=lambda use: "r" not in use[1])


def _seen_later(uses: Sequence[_Use]) -> list[ByteRange]:
    """Where an operation may read what was there before the run."""
    found: list[ByteRange] = []
    written: list[_Use] = []
    for use in uses:
        if use.reads is not None and not any(_covers(w, use) for w in written):
            found.append(use.where)
        if use.writes is not None:
            written.append(use)
    return found


def _covers(write: _Use, read: _Use) -> bool:
    """Whether the write, if it came first, wrote all that is read; a loop may not run at all."""
    if not write.is_whole or (write.loop is not None and write.loop != read.loop):
        return False
    if write.where[0] != read.where[0] or write.where[1] > read.where[1]:
        return False
    if write.writes is None or read.reads is None:
        return False
    return is_nonnegative(write.where[1] + write.writes - read.where[1] - read.reads)


def _overlap(a: ByteRange, b: ByteRange) -> bool:
    return a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2])
