"""Who writes the outputs of a plan, and how much of them at which variables.

PlanParts  --find_writers-->  OutputWriters: what `plan.stale` compares
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.ir.expr import Dim, is_nonnegative, minimum, variables
from semel.plan.parts import PlanParts
from semel.plan.rows import PreparedLoop, PreparedOp
from semel.plan.stale import Writer


@dataclass(frozen=True, slots=True)
class OutputWriters:
    """The writers of each output by buffer index, and what the marks follow."""

    writers: Mapping[int, tuple[Writer, ...]]
    marks: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class _Write:
    """`size` bytes from the start of a range; `is_sure`: at each run, as the variables say."""

    storage: int
    start: int
    end: int
    size: Dim
    is_sure: bool


def find_writers(parts: PlanParts) -> OutputWriters:
    """Who writes the outputs; none for an output that all of a run is sure to overwrite."""
    written = _writes(parts)
    declared = {io.index: io.type.num_bytes for io in parts.output_io}
    found: dict[int, tuple[Writer, ...]] = {}
    marks: dict[Dim, int] = {}
    for index in dict.fromkeys(parts.outputs):
        storage, first, end = parts.buffers[index].byte_range
        own = [w for w in written if w.storage == storage and w.start < end and first < w.end]
        need = declared.get(index, end - first)
        if any(
            w.is_sure and w.start <= first and is_nonnegative(w.start - first + w.size - need)
            for w in own
        ):
            continue
        found[index] = tuple(_writer(write, first, marks) for write in own)
    return OutputWriters(found, tuple(marks))


def _writer(write: _Write, first: int, marks: dict[Dim, int]) -> Writer:
    """A mark for what is sure: of an arm nobody knows whether earlier runs came through it."""
    is_marked = write.is_sure and not isinstance(write.size, int)
    mark = marks.setdefault(write.size, len(marks)) if is_marked else None
    return Writer(write.start - first, write.size, mark)


def _writes(parts: PlanParts) -> list[_Write]:
    """Everything that a run writes, or may."""
    found: list[_Write] = []
    for placed in parts.placed:
        is_sure = not any(_is_decided_late(around.row, parts) for around in placed.around)
        times: Dim = 1
        for loop in placed.loops if is_sure else ():
            times = times * minimum(loop.trip, 1)
        found += [
            _Write(*parts.buffers[use.index].byte_range, use.size * times, is_sure)
            for use in placed.row.uses(parts.scope)
            if "w" in use.access
        ]
    return found


def _is_decided_late(row: PreparedOp, parts: PlanParts) -> bool:
    """Whether a bind does not say if the rows inside of a row run."""
    if not isinstance(row, PreparedLoop):
        return True
    names = {v.name for v in variables(row.trip)}
    return bool(row.buffer_indices) or not names.isdisjoint(parts.counters)
