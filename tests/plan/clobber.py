"""Whether values of a compiled plan keep their bytes as long as somebody reads them.

    plan, random choices  --clobbered-->  rows that read what another value was written over

The rows are walked as a run would: loops a few times, ending early where they may, one arm of
each branch. Each write of a value spoils all others that share bytes with it until they are
written again; a row that reads a spoiled value has found a lifetime that is too short.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from semel.plan.plan import ExecutionPlan
from semel.plan.rows import PreparedBranch, PreparedLoop, PreparedOp


def clobbered(plan: ExecutionPlan, rng: Random) -> list[str]:
    """What is wrong with one walk through the rows."""
    walk = _Walk(plan, rng)
    walk.run(plan.program.rows)
    return walk.found


class _Walk:
    def __init__(self, plan: ExecutionPlan, rng: Random) -> None:
        self._parts, self._rng = plan.engine.parts, rng
        self._spoiled: dict[int, str] = {}
        self.found: list[str] = []

    def run(self, rows: Sequence[PreparedOp]) -> None:
        for row in rows:
            match row:
                case PreparedLoop():
                    self._loop(row)
                case PreparedBranch():
                    self._touch(row)
                    self.run(self._rng.choice(row.bodies))
                case _:
                    self._touch(row)

    def _loop(self, row: PreparedLoop) -> None:
        for _ in range(self._rng.choice((0, 1, 2, 3))):
            self.run(row.test)
            self._touch(row)
            self.run(row.body)
        if row.buffer_indices:
            self.run(row.test)
            self._touch(row)

    def _touch(self, row: PreparedOp) -> None:
        uses = row.uses(self._parts.scope)
        for use in uses:
            if "r" in use.access and use.index in self._spoiled:
                name = self._parts.program.values[use.index].name
                by = self._spoiled[use.index]
                self.found.append(f"op {row.id} {row.name} reads {name}, overwritten by {by}")
        for use in uses:
            if "w" in use.access:
                self._write(use.index, f"op {row.id} {row.name}")

    def _write(self, index: int, by: str) -> None:
        storage, start, end = self._parts.buffers[index].byte_range
        self._spoiled.pop(index, None)
        for other, buffer in enumerate(self._parts.buffers):
            found, low, high = buffer.byte_range
            if other != index and found == storage and max(start, low) < min(end, high):
                self._spoiled[other] = by
