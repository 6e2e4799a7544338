"""Who must follow whom: byte ranges of all that was submitted, by device.

    accesses of new work  --DeviceTable.touch-->  Edges: what it needs, and what it follows

Work *needs* what wrote bytes that it reads: if that failed, so does the work. It merely *follows*
who read or wrote bytes that it overwrites: then the order is all that matters. On one lane order
needs no wait, but failures are handed on there too.

A `User` is who touched bytes last, and when he is done. Work that is submitted again and again (a
plan) stays one user whose value moves on, so that a submission need not touch anything if nobody
else has touched its storages meanwhile: they have versions.

Memory is flat: what is over and went well is forgotten, and so is memory that is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from semel.plan.footprint import BufferUse
from semel.runtime.bytemap import ByteMap
from semel.runtime.memory import Memory
from semel.runtime.timeline import TimelineSignal

if TYPE_CHECKING:
    from semel.executor.lane import ExecutorLane

#: Pieces that a table may have more than at the last look before it looks what can go.
_SLACK = 256

Wait = tuple[TimelineSignal, int]


class User:
    """Who touched bytes: on this lane, and done when its timeline is at `value`.

    One who could not be submitted in the end has done nothing, and stands for those `before` him.
    """

    __slots__ = ("before", "lane", "value")

    def __init__(self, lane: ExecutorLane, value: int = 0) -> None:
        self.lane, self.value = lane, value
        self.before: tuple[User, ...] = ()

    @property
    def is_over(self) -> bool:
        is_done = self.lane.timeline.value >= self.value
        return is_done and (not self.before or all(user.is_over for user in self.before))

    @property
    def has_failed(self) -> bool:
        """Whether what he wrote, or should have, cannot be read."""
        if self.value and self.lane.timeline.has_failed(self.value):
            return True
        return any(user.has_failed for user in self.before)

    @property
    def is_known_good(self) -> bool:
        return self.is_over and not self.has_failed


class Access(NamedTuple):
    """Bytes [start, end) of a block of memory, and what is done with them."""

    memory: Memory
    start: int
    end: int
    reads: bool
    writes: bool


def count_bytes(accesses: Mapping[str, Iterable[Access]]) -> int:
    """Bytes that are read and those that are written, of accesses by device."""
    return sum(
        (access.end - access.start) * (access.reads + access.writes)
        for each in accesses.values()
        for access in each
    )


class Edges:
    """What new work of a lane must come after."""

    __slots__ = ("_before", "_follows", "_lane", "_needs")

    def __init__(self, lane: ExecutorLane) -> None:
        self._lane = lane
        self._needs: dict[tuple[int, int], User] = {}
        self._follows: dict[int, User] = {}
        self._before: list[User] = []

    def need(self, user: User) -> None:
        """The work reads what `user` wrote."""
        for other in user.before:
            self.need(other)
        if user.value and not user.is_known_good:
            self._before.append(user)
            self._needs.setdefault((id(user.lane), user.value), user)

    def follow(self, user: User) -> None:
        """The work overwrites what `user` read or wrote."""
        self.replace(user)
        for other in user.before:
            self.follow(other)
        known = self._follows.get(id(user.lane))
        is_later = known is None or known.value < user.value
        if user.lane is not self._lane and is_later and not user.is_over:
            self._follows[id(user.lane)] = user

    def replace(self, user: User) -> None:
        """The work takes the place of `user` in a table: it comes after him on their lane."""
        if not user.is_known_good:
            self._before.append(user)

    def give_up(self, user: User) -> None:
        """Let `user`, who could not be submitted, stand for those whom he would have replaced."""
        user.before = tuple({id(other): other for other in self._before}.values())

    @property
    def sources(self) -> list[User]:
        """Whom the work needs, and who is not known to have done well."""
        return list(self._needs.values())

    @property
    def needs(self) -> list[Wait]:
        """Waits whose failures are the work's too."""
        return [(user.lane.timeline, user.value) for user in self._needs.values()]

    @property
    def follows(self) -> list[Wait]:
        """Waits that are for the order alone."""
        return [(user.lane.timeline, user.value) for user in self._follows.values()]


@dataclass(slots=True)
class _Piece:
    start: int
    end: int
    writer: User | None = None
    #: Of each lane the last one: by then all earlier ones of it are done, too.
    readers: dict[int, User] = field(default_factory=dict)

    def split(self, at: int) -> _Piece:
        right = _Piece(at, self.end, self.writer, dict(self.readers))
        self.end = at
        return right

    def is_wanted(self) -> bool:
        """Forget who is done; whether anybody is left. Failures stay until they are overwritten."""
        if self.writer is not None and self.writer.is_known_good:
            self.writer = None
        self.readers = {lane: user for lane, user in self.readers.items() if not user.is_over}
        return self.writer is not None or bool(self.readers)


class Storage:
    """One block of memory. `version` changes whenever somebody else touches it than before."""

    __slots__ = ("_bytes", "_last", "_memory", "version")

    def __init__(self, memory: Memory) -> None:
        self._memory = weakref.ref(memory)
        self._bytes = ByteMap(_Piece)
        self._last: User | None = None
        self.version = 0

    def touch(self, user: User, access: Access, edges: Edges) -> None:
        """Record an access, and note whom it must come after."""
        if self._last is not user:
            self._last = user
            self.version += 1
        lane = id(user.lane)
        for piece in self._bytes.cut(access.start, access.end):
            writer = piece.writer
            if writer is not None and writer is not user:
                (edges.need if access.reads else edges.follow)(writer)
            if access.writes:
                for reader in piece.readers.values():
                    edges.follow(reader)
                piece.writer, piece.readers = user, {}
            else:
                if lane in piece.readers:
                    edges.replace(piece.readers[lane])
                piece.readers[lane] = user

    @property
    def num_pieces(self) -> int:
        return len(self._bytes.pieces)

    def tidy(self) -> bool:
        """Forget what is over; whether anything is left.

        Whoever relied on what is forgotten finds another version.
        """
        memory = self._memory()
        is_gone = memory is None or not memory.is_alive
        if is_gone or self._bytes.keep(_Piece.is_wanted):
            self._last = None
            self.version += 1
        return not is_gone and bool(self._bytes.pieces)


class DeviceTable:
    """Who touched which memory of one device last."""

    def __init__(self) -> None:
        self._storages: dict[int, Storage] = {}
        self._num_pieces, self._most = 0, _SLACK
        #: The last work of which nobody knows what it touches; all of the device, then.
        self.fence: User | None = None
        self.num_fences = 0
        #: Work on lanes of other devices that touched memory of this one; the last of each lane.
        self.guests: dict[int, User] = {}

    def storage(self, memory: Memory) -> Storage:
        """What is known of a block of memory."""
        found = self._storages.get(memory.id)
        if found is None:
            found = self._storages[memory.id] = Storage(memory)
        return found

    def touch(self, user: User, access: Access, edges: Edges) -> Storage:
        """Record an access, and note whom it must come after."""
        if self._num_pieces > self._most:
            self.tidy()
        storage = self.storage(access.memory)
        before = storage.num_pieces
        storage.touch(user, access, edges)
        self._num_pieces += storage.num_pieces - before
        return storage

    def enter(self, user: User, edges: Edges, *, is_guest: bool) -> None:
        """Note that work runs on the device, or as a guest touches memory of it."""
        if self.fence is not None:
            if self.fence.is_over:
                self.fence = None
            elif self.fence is not user:
                edges.follow(self.fence)
        if is_guest:
            self.guests[id(user.lane)] = user

    def close_off(self, user: User, lanes: Iterable[ExecutorLane], edges: Edges) -> None:
        """Let `user` come after all that is under way on the device, and before all that is not."""
        for lane in lanes:
            edges.follow(User(lane, lane.num_submitted))
        for guest in self.guests.values():
            edges.follow(guest)
        self.guests = {lane: guest for lane, guest in self.guests.items() if not guest.is_over}
        self.fence = user
        self.num_fences += 1

    def tidy(self) -> None:
        """Forget what is over."""
        self._storages = {id: s for id, s in self._storages.items() if s.tidy()}
        self._num_pieces = sum(s.num_pieces for s in self._storages.values())
        self._most = 2 * self._num_pieces + _SLACK

    @property
    def num_pieces(self) -> int:
        """How much is remembered."""
        return self._num_pieces


def accesses_of(uses: Iterable[BufferUse]) -> dict[str, list[Access]]:
    """What is touched, by device: neighbours that are used alike are one access."""
    found: dict[str, list[Access]] = {}
    ranges = sorted(
        (
            (use.buffer.device, use.buffer.byte_range, use.reads, use.writes, use.buffer.memory)
            for use in uses
            if use.buffer.capacity_bytes
        ),
        key=lambda each: each[:4],
    )
    for device, (_, start, end), reads, writes, memory in ranges:
        known = found.setdefault(device, [])
        last = known[-1] if known else None
        is_next = last is not None and last.memory is memory and last[3:] == (reads, writes)
        if last is not None and is_next and start <= last.end:
            known[-1] = last._replace(end=max(end, last.end))
        else:
            known.append(Access(memory, start, end, reads, writes))
    return found
