"""Who writes the outputs of a plan, and how much of them at which variables.

PlanParts  --find_writers-->  OutputWriters: what `plan.stale` compares
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.ir.expr import Dim, is_nonnegative, minimum
from semel.plan.parts import PlanParts
from semel.plan.stale import Writer


@dataclass(frozen=True, slots=True)
class OutputWriters:
    """The writers of each output by buffer index, and what the marks follow."""

    writers: Mapping[int, tuple[Writer, ...]]
    marks: tuple[Dim, ...]


def find_writers(parts: PlanParts) -> OutputWriters:
    """Who writes the outputs; none for an output that all of a run is sure to overwrite."""
    written = _writes(parts)
    declared = {io.index: io.type.num_bytes for io in parts.output_io}
    found: dict[int, tuple[Writer, ...]] = {}
    marks: dict[Dim, int] = {}
    for index in dict.fromkeys(parts.outputs):
        storage, first, end = parts.buffers[index].byte_range
        own = [
            (start - first, size)
            for other, start, stop, size in written
            if other == storage and start < end and first < stop
        ]
        need = declared.get(index, end - first)
        if any(start <= 0 and is_nonnegative(start + size - need) for start, size in own):
            continue
        found[index] = tuple(
            Writer(
                start, size, None if isinstance(size, int) else marks.setdefault(size, len(marks))
            )
            for start, size in own
        )
    return OutputWriters(found, tuple(marks))


def _writes(parts: PlanParts) -> list[tuple[int, int, int, Dim]]:
    """(storage, start, end, bytes that are written) of everything that a run writes."""
    found: list[tuple[int, int, int, Dim]] = []
    for placed in parts.placed:
        times: Dim = 1
        for loop in placed.loops:
            times = times * minimum(loop.trip, 1)
        found += [
            (*parts.buffers[use.index].byte_range, use.size * times)
            for use in placed.row.uses(parts.scope)
            if "w" in use.access
        ]
    return found
