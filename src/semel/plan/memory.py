"""Give every intermediate value an offset in one arena.

    list[Lifetime]  --plan_memory-->  MemoryPlan

Two values may share bytes only if their lifetimes do not overlap. Largest first, each at the
lowest offset that is free for its whole life: not optimal, but deterministic, and close to
the best possible on real models, where a few large values decide the size.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from semel.runtime.allocator import align


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value is alive from op `first` to op `last`, both included."""

    size_bytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`offsets[i]` is where value i starts; the arena holds them all.

    Invariant: offsets are whole cache lines.
    """

    offsets: tuple[int, ...]
    arena_bytes: int


def lower_bound_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """The most that is alive at one time, in whole cache lines: no plan can need less."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        size = align(max(life.size_bytes, 1))
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Place every value; the result depends only on the argument."""
    offsets = [0] * len(lifetimes)
    # (offset, end, first, last) of what is placed, by offset: one walk finds the lowest gap.
    placed: list[tuple[int, int, int, int]] = []
    arena_bytes = 0
    for i in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size_bytes, i)):
        life = lifetimes[i]
        size = align(max(life.size_bytes, 1))
        offsets[i] = _lowest_gap(size, life, placed)
        insort(placed, (offsets[i], offsets[i] + size, life.first, life.last))
        arena_bytes = max(arena_bytes, offsets[i] + size)
    return MemoryPlan(tuple(offsets), arena_bytes)


def _lowest_gap(size: int, life: Lifetime, placed: list[tuple[int, int, int, int]]) -> int:
    """The lowest offset where `size` bytes are free during `life`."""
    low, first, last = 0, life.first, life.last
    for start, end, other_first, other_last in placed:
        if other_first <= last and first <= other_last:
            if low + size <= start:
                break
            low = max(low, end)
    return low
