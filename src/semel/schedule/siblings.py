"""Groups that read the same data side by side become one kernel.

    groups --merge_siblings--> fewer groups

Two groups may join if they loop over the same elements in the same way, read a
common tensor of that size, and neither needs the other's result: sum and max of one
tensor, sine and cosine of one tensor. The tensor is then read once. Both are on one device. Groups
that compute one number each, with no loop inside, join whatever they read: the call of a kernel
costs more than the number.

A group looks no further than `MAX_APART` levels up and down, and there at the latest
`MAX_CANDIDATES` of its kind, so that the work grows with the graph and no faster: who is on the way
is found in one walk. What lies further apart is better read twice than kept waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from semel.ir.expr import Index, product
from semel.ir.graph import Node
from semel.ir.types import Shape
from semel.schedule.group import MAX_OUTPUTS, MAX_WORK, Group
from semel.schedule.reasons import ONE_NUMBER, SAME_READS, Why

MAX_CANDIDATES = 64
MAX_APART = 32

Depends = dict[Group, set[Group]]
#: A tensor, and a shape in which all of it is read.
Walk = tuple[Node, Shape]


def merge_siblings(groups: list[Group], depends: Depends) -> list[tuple[Group, Group, Why]]:
    """Join what can be joined, in place; returns who was kept, who is gone, and why."""
    levels = _Levels(depends)
    known = _Candidates(levels)
    joined: list[tuple[Group, Group, Why]] = []
    for group in groups:
        if group.kind != "loops":
            continue
        found = known.find(group)
        if found is None:
            known.add(group)
            continue
        other, cause = found
        _join(other, group)
        levels.join(other, group)
        known.add(other)  # what the other one reads, it reads
        joined.append((other, group, cause))
    gone = {group for _, group, _ in joined}
    groups[:] = [group for group in groups if group not in gone]
    return joined


class _Candidates:
    """Groups that may be joined, by what they have in common, `MAX_APART` levels together."""

    def __init__(self, levels: _Levels) -> None:
        self._levels = levels
        self._by: dict[Any, deque[Group]] = {}
        self._number: dict[Group, int] = {}

    def add(self, group: Group) -> None:
        """Let later groups find this one, unless it has room for no more."""
        self._number.setdefault(group, len(self._number))
        block = self._levels.level[group] // MAX_APART
        for key in _keys(group):
            known = self._by.setdefault((key, block), deque(maxlen=MAX_CANDIDATES))
            if len(group.outputs) >= MAX_OUTPUTS:
                if group in known:
                    known.remove(group)
            elif group not in known:
                known.append(group)

    def find(self, group: Group) -> tuple[Group, Why] | None:
        """The first one that the group may join, and why; None if there is none."""
        causes: dict[Group, Why] = {}
        for key in _keys(group):
            cause = SAME_READS if isinstance(key[-1], tuple) else ONE_NUMBER
            for other in self._near(key, group):
                if _fits(group, other):
                    causes.setdefault(other, cause)
        for other in self._levels.apart(group, sorted(causes, key=self._number.__getitem__)):
            return other, causes[other]
        return None

    def _near(self, key: tuple[Any, ...], group: Group) -> Iterator[Group]:
        """Those with this in common that lie no further than `MAX_APART` levels away."""
        level = self._levels.level
        block = level[group] // MAX_APART
        for number in (block - 1, block, block + 1):
            for other in self._by.get((key, number), ()):
                if abs(level[group] - level[other]) <= MAX_APART:
                    yield other


def _keys(group: Group) -> Iterator[tuple[Any, ...]]:
    """What groups have in common that may join: device, loops, phases, and a tensor if need be.

    Loops over a finer shape than the root's are others than those over a root of that shape: who
    joins is stored at the place that the first one's loops say.
    """
    outer = None
    if group.outer is not None:
        outer = tuple(isinstance(i, Index) and i in group.outer for i in group.loops)
    extents = frozenset(
        (n.inputs[0].type.shape, n.attrs.axes if n.attrs.chunk is None else n.attrs)
        for n in group.reduces
    )
    for walk in _walks(group):
        yield group.device, group.shape, group.walk, outer, extents, walk
    if product(group.shape) == 1 and not group.reduces:
        yield group.device, group.shape, group.walk, outer, extents, None


def _walks(group: Group) -> Iterable[Walk]:
    """What a group walks over as its loops do: tensors as they are, and slices of them."""
    walked = {n.inputs[0].type.shape for n in group.reduces} | {group.shape}
    reads = set(group.reads)
    found = {(n, n.type.shape): None for n in group.reads}
    for node in group.inside:
        if node.op.name == "slice" and node.inputs[0] in reads:
            found[node.inputs[0], node.type.shape] = None
    return [walk for walk in found if walk[1] in walked]


def _fits(a: Group, b: Group) -> bool:
    return len(a.outputs) + len(b.outputs) <= MAX_OUTPUTS and a.work + b.work <= MAX_WORK


class _Levels:
    """How deep each group lies: deeper than all that it needs, whatever was joined."""

    def __init__(self, depends: Depends) -> None:
        self.depends = depends
        self.users: Depends = {group: set() for group in depends}
        for group, needs in depends.items():
            for needed in needs:
                self.users[needed].add(group)
        self.level: dict[Group, int] = dict.fromkeys(depends, 0)
        waiting = {group: len(needs) for group, needs in depends.items()}
        ready = [group for group, count in waiting.items() if not count]
        while ready:
            needed = ready.pop()
            for user in self.users[needed]:
                self.level[user] = max(self.level[user], self.level[needed] + 1)
                waiting[user] -= 1
                if not waiting[user]:
                    ready.append(user)

    def apart(self, group: Group, others: list[Group]) -> Iterator[Group]:
        """Those of the others that neither need the group nor are needed by it, in their order."""
        if not others:
            return
        found = [self.level[other] for other in others]
        below = self._reached(group, self.depends, min(found), self.level[group])
        above = self._reached(group, self.users, self.level[group], max(found))
        yield from (other for other in others if other not in below and other not in above)

    def _reached(self, group: Group, ways: Depends, low: int, high: int) -> set[Group]:
        """What lies on the ways from a group, between these levels."""
        seen, stack = {group}, [group]
        while stack:
            for each in ways[stack.pop()]:
                if each not in seen and low <= self.level[each] <= high:
                    seen.add(each)
                    stack.append(each)
        return seen

    def join(self, kept: Group, gone: Group) -> None:
        """`kept` needs what both need, and whoever needs `gone` needs `kept`."""
        depends, users, level = self.depends, self.users, self.level
        for needed in depends[gone]:
            users[needed].discard(gone)
            users[needed].add(kept)
        depends[kept] |= depends.pop(gone)
        for user in users[gone]:
            depends[user].discard(gone)
            depends[user].add(kept)
        users[kept] |= users.pop(gone)
        level[kept] = max(level[kept], level.pop(gone))
        stack = [kept]
        while stack:
            needed = stack.pop()
            for user in users[needed]:
                if level[user] <= level[needed]:
                    level[user] = level[needed] + 1
                    stack.append(user)


def _join(kept: Group, gone: Group) -> None:
    """What `gone` computes, `kept` computes in loops of its own."""
    for name in ("outputs", "inside", "reads", "reduces"):
        mine: list[Node] = getattr(kept, name)
        mine += [n for n in getattr(gone, name) if n not in mine]
    mine_of = dict(zip(gone.loops, kept.loops, strict=True))
    for node, at in gone.rows.items():
        kept.rows.setdefault(node, tuple(0 if i == 0 else mine_of[i] for i in at))
    kept.work += gone.work
