"""Which rows of a plan some of its outputs need, and the plan's parts with those rows alone.

    PlanParts, outputs  --needed_rows-->  positions of outermost rows  --only_rows-->  PlanParts

Found backwards from what must be right when a run is over: the outputs that are wanted, states, and
in a plan built by hand whatever a later run may read. A row that writes any of that is needed, and
then so is all that it reads. A row with bodies is needed as a whole or not at all. Rows that write
nothing are there for something else (signals, checks), and those that find out sizes decide what
sizes are: they are always needed.

Values of a compiled plan are told apart by what they are, since many of them share bytes; buffers
of a plan built by hand by their bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from semel.plan.hazards import ByteRange, overlap
from semel.plan.parts import PlanParts
from semel.plan.program import GIVEN
from semel.plan.release import seen_later
from semel.plan.row import Use
from semel.plan.rows import (
    PreparedBufferView,
    PreparedCustomFunction,
    PreparedOp,
    PreparedRebind,
)
from semel.plan.split import blocks_at
from semel.plan.tree import num_rows, walk


def needed_rows(parts: PlanParts, wanted: Collection[int]) -> frozenset[int]:
    """The outermost rows, by position, of a run whose outputs are these buffers."""
    touched = {start: _touched(parts, start) for start in parts.blocks[None]}
    live = _live_at_end(parts, wanted)
    found: set[int] = set()
    asked: set[int] = set()
    for start in reversed(parts.blocks[None]):
        own = touched[start]
        if own.is_always or start in asked or live.meets(own.writes):
            found.add(start)
            live.add(own.reads)
            if parts.ops[start].dependencies or parts.program.after.get(start):
                asked.update(parts.after[start])
    return frozenset(found)


def only_rows(parts: PlanParts, rows: Collection[int]) -> tuple[PlanParts, tuple[int, ...]]:
    """The plan with these outermost rows alone, and for each of its positions that in the plan."""
    kept = sorted(rows)
    whole = [i for at in kept for i in range(at, at + num_rows(parts.ops[at]))]
    position = {i: own for own, i in enumerate(whole)}
    order = parts.run_order
    program = replace(
        parts.program,
        rows=tuple(parts.ops[i] for i in kept),
        run_order=None if order is None else tuple(position[i] for i in order if i in rows),
        after={},
    )
    outermost = [position[i] for i in parts.blocks[None] if i in rows]
    made = replace(
        parts,
        program=program,
        placed=tuple(walk(program.rows)),
        blocks=blocks_at(parts, outermost, position),
        after=tuple(tuple(position[j] for j in parts.after[i] if j in position) for i in whole),
        guards_at={position[at]: n for at, n in parts.guards_at.items() if at in position},
    )
    return made, tuple(whole)


# ---------------------------------------------------------------- what rows touch


@dataclass(frozen=True, slots=True)
class _Touched:
    """The buffers that a row reads and writes, with all that is inside it."""

    reads: frozenset[int]
    writes: frozenset[int]
    is_always: bool


def _touched(parts: PlanParts, start: int) -> _Touched:
    rows = parts.ops[start : start + num_rows(parts.ops[start])]
    uses = [use for row in rows for use in _uses(parts, row)]
    writes = frozenset(use.index for use in uses if "w" in use.access)
    return _Touched(
        frozenset(use.index for use in uses if "r" in use.access),
        writes,
        not writes or any(isinstance(row, PreparedRebind) for row in rows),
    )


def _uses(parts: PlanParts, row: PreparedOp) -> tuple[Use, ...]:
    """What a row touches; a function that says what it writes needs nothing of what was there."""
    found = row.uses(parts.scope)
    if not isinstance(row, PreparedCustomFunction):
        return found
    letters = parts.scope.function(row).access(len(row.buffer_indices), row.attrs)
    return tuple(replace(use, access=how) for use, how in zip(found, letters, strict=True))


class _Values:
    """What is needed of a compiled plan: values, of which views are the same."""

    def __init__(self, rows: Iterable[PreparedOp]) -> None:
        views = [row for row in rows if isinstance(row, PreparedBufferView)]
        self._bases = {row.buffer_indices[0]: row.buffer_indices[1] for row in views}
        self._needed: set[int] = set()

    def _base(self, index: int) -> int:
        while index in self._bases:
            index = self._bases[index]
        return index

    def add(self, indices: Iterable[int]) -> None:
        """These are needed before here."""
        self._needed.update(map(self._base, indices))

    def meets(self, indices: Iterable[int]) -> bool:
        """Whether one of these is needed."""
        return any(self._base(index) in self._needed for index in indices)


class _Bytes:
    """What is needed of a plan built by hand: byte ranges."""

    def __init__(self, parts: PlanParts) -> None:
        self._buffers = parts.buffers
        self._needed: set[ByteRange] = set(seen_later(parts, lambda row: _uses(parts, row)))

    def add(self, indices: Iterable[int]) -> None:
        """These are needed before here."""
        self._needed.update(self._buffers[index].byte_range for index in indices)

    def meets(self, indices: Iterable[int]) -> bool:
        """Whether a byte of one of these is needed."""
        ranges = [self._buffers[index].byte_range for index in indices]
        return any(overlap(one, other) for one in ranges for other in self._needed)


def _live_at_end(parts: PlanParts, wanted: Collection[int]) -> _Values | _Bytes:
    """What must be right when a run is over."""
    is_given = any(value.place == GIVEN for value in parts.program.values)
    live = _Bytes(parts) if is_given else _Values(parts.ops)
    live.add(wanted)
    halves = (half for state in parts.states for half in (state.index, state.other))
    live.add(half for half in halves if half is not None)
    return live
