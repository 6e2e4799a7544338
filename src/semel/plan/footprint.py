"""Which bytes a run of a plan touches, for those who order runs of several plans.

PlanParts  --footprint_of-->  (buffer, reads, writes) ...

A buffer counts as read if its contents before the run matter: not where the first row that uses it
writes it and reads nothing. Weights are left out: nobody writes them where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from semel.plan.parts import PlanParts
from semel.plan.program import WEIGHTS
from semel.runtime.buffer import Buffer


class BufferUse(NamedTuple):
    """What is done with a buffer."""

    buffer: Buffer
    reads: bool
    writes: bool


def footprint_of(parts: PlanParts) -> tuple[BufferUse, ...]:
    """What a run reads and writes, each buffer once."""
    reads: dict[int, bool] = {}
    writes: set[int] = set()
    for position in parts.order:
        uses = parts.ops[position].uses(parts.scope)
        for use in uses:
            is_read = "r" in use.access
            reads[use.index] = reads.get(use.index, is_read) or (
                is_read and use.index not in writes
            )
        writes.update(use.index for use in uses if "w" in use.access)
    return tuple(
        BufferUse(parts.buffers[index], is_read, index in writes)
        for index, is_read in reads.items()
        if parts.program.values[index].place not in WEIGHTS
    )


def as_uses(reads: Iterable[Buffer], writes: Iterable[Buffer]) -> tuple[BufferUse, ...]:
    """What somebody says that he reads and writes."""
    return (
        *(BufferUse(buffer, True, False) for buffer in reads),
        *(BufferUse(buffer, False, True) for buffer in writes),
    )
