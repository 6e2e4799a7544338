"""Order from bytes: which operations conflict, and which may run together.

    accesses in schedule order  --find_conflicts-->  predecessors  --form_steps-->  steps

Two accesses conflict if they share a byte and one of them writes; identity of buffers does
not matter. A conflict is *aligned* if tile t of one touches only what tile t of the other
does: then the two may run range by range on one thread without a barrier, and form a
*segment*. Segments without conflicts among them form a step; a barrier follows each step.

Only the nearest conflicts are recorded (last writer, readers since): earlier ones are
reached through them, and a chain of aligned conflicts is aligned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.ir.expr import Dim
from semel.runtime.bytemap import ByteMap

#: An operation moves at most this many steps ahead of its place in the schedule.
_WINDOW = 4
#: Rows in a segment at most: a run comes back to Python only between steps.
_MAX_CHAIN = 64


#: (storage, start, end): bytes of one block of memory.
ByteRange: TypeAlias = tuple[int, int, int]


def overlap(a: ByteRange, b: ByteRange) -> bool:
    """Whether two ranges share a byte."""
    return a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2])


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes [start, end) of a storage; tile t stays within its own `tile_bytes` of them."""

    storage: int
    start: int
    end: int
    is_write: bool
    tile_bytes: Dim | None = None


@dataclass(frozen=True, slots=True)
class OpAccess:
    """What one operation touches. `after` are predecessors that no byte shows."""

    accesses: tuple[Access, ...]
    tiles: Dim = 1
    after: tuple[int, ...] = ()
    is_alone: bool = False  # a step of its own


@dataclass(slots=True)
class _Piece:
    start: int
    end: int
    writer: tuple[int, Access] | None = None
    readers: list[tuple[int, Access]] = field(default_factory=list)

    def split(self, at: int) -> _Piece:
        """Cut at `at`; this piece keeps the left part."""
        right = _Piece(at, self.end, self.writer, list(self.readers))
        self.end = at
        return right


class _Timeline:
    """Who touched which bytes of one storage last."""

    def __init__(self) -> None:
        self._bytes = ByteMap(_Piece)

    def touch(self, op: int, access: Access) -> list[tuple[int, Access]]:
        """Record an access; the earlier accesses that it must follow."""
        found: list[tuple[int, Access]] = []
        for piece in self._bytes.cut(access.start, access.end):
            if piece.writer is not None:
                found.append(piece.writer)
            if access.is_write:
                found += piece.readers
                piece.writer, piece.readers = (op, access), []
            else:
                piece.readers.append((op, access))
        return found


def conflict_kind(earlier: OpAccess, later: OpAccess) -> str:
    """Why the one must precede the other: RAW, WAR or WAW on bytes they share, or nothing."""
    for a in earlier.accesses:
        for b in later.accesses:
            share = a.storage == b.storage and a.start < b.end and b.start < a.end
            if share and (a.is_write or b.is_write):
                return ("WAW" if b.is_write else "RAW") if a.is_write else "WAR"
    return ""


def find_conflicts(ops: Sequence[OpAccess], order: Sequence[int]) -> dict[int, dict[int, bool]]:
    """For each op of `order` its predecessors, each with whether all conflicts are aligned."""
    timelines: dict[int, _Timeline] = {}
    result: dict[int, dict[int, bool]] = {i: {} for i in order}
    for i in order:
        found = result[i]
        # Reads first: an op that reads and writes the same bytes must see the earlier writer.
        for access in sorted(ops[i].accesses, key=lambda a: a.is_write):
            if access.start == access.end:
                continue
            timeline = timelines.setdefault(access.storage, _Timeline())
            for j, other in timeline.touch(i, access):
                if j != i:
                    aligned = _is_aligned(ops[i], access, ops[j], other)
                    found[j] = found.get(j, True) and aligned
        for j in ops[i].after:
            found[j] = found.get(j, True) and ops[i].tiles == 1 and ops[j].tiles == 1
    return result


def _is_aligned(op: OpAccess, access: Access, other_op: OpAccess, other: Access) -> bool:
    if op.tiles != other_op.tiles:
        return False
    if op.tiles == 1:
        return True
    return (
        access.tile_bytes is not None
        and access.tile_bytes == other.tile_bytes
        and access.start == other.start
    )


def form_steps(
    ops: Sequence[OpAccess],
    order: Sequence[int],
    conflicts: Mapping[int, dict[int, bool]],
    *,
    keep_order: bool = False,
) -> list[list[list[int]]]:
    """Steps of segments of op indices; every op comes after all its predecessors.

    With `keep_order`, reading the steps from left to right gives `order` again: no op moves
    ahead of one that comes before it there.
    """
    steps: list[list[list[int]]] = []
    place: dict[int, tuple[int, int]] = {}  # op -> (step, segment)
    closed: set[int] = set()
    for i in order:
        step, segment = _find_place(ops, i, conflicts[i], steps, place, keep_order)
        while step in closed or (ops[i].is_alone and step < len(steps)):
            step, segment = step + 1, -1
        if step == len(steps):
            steps.append([])
        if segment < 0:
            steps[step].append([])
            segment = len(steps[step]) - 1
        steps[step][segment].append(i)
        place[i] = (step, segment)
        if ops[i].is_alone:
            closed.add(step)
    return steps


def _find_place(
    ops: Sequence[OpAccess],
    i: int,
    conflicts: dict[int, bool],
    steps: list[list[list[int]]],
    place: dict[int, tuple[int, int]],
    keep_order: bool,
) -> tuple[int, int]:
    """The step for op i, and its segment there; -1 for a new one."""
    earliest = len(steps) - (1 if keep_order else _WINDOW)
    if not conflicts:
        return max(0, earliest), -1
    latest = max(place[j][0] for j in conflicts)
    there = [j for j in conflicts if place[j][0] == latest]
    segments = {place[j][1] for j in there}
    if len(segments) == 1 and all(conflicts[j] for j in there) and not ops[i].is_alone:
        segment = segments.pop()
        chain = steps[latest][segment]
        # Tile counts are equal along a chain, and aligned conflicts need equal counts.
        may_join = not keep_order or chain is steps[-1][-1]
        if may_join and len(chain) < _MAX_CHAIN and not any(ops[j].is_alone for j in chain):
            return latest, segment
    return max(latest + 1, earliest), -1
