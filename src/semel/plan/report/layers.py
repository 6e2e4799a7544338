"""Where the time of a run goes, by layer and by kernel name.

    names  --find_repeats-->  Repeat...: parts of a sequence that repeat
    list[KernelProfile]  --by_layer-->  LayerProfile...
    list[KernelProfile]  --by_name-->  NameProfile...

A layer is what repeats: models are made of equal layers, and these run equal kernels in the same
order, whoever wrote the model. What does not repeat lies before, between and behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from semel.plan.report.records import KernelProfile

#: The longest layer that is looked for, in operations.
_LONGEST = 512
#: A single operation is a layer only if it repeats so often.
_FEWEST_ALONE = 4
#: Names of the kernels of a layer that are listed.
_SHOWN = 5
_NUMBER = re.compile(r"\d+")

Codes: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `first` on, `length` operations, `count` times; a count of 1 repeats nothing."""

    first: int
    length: int
    count: int

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.first + self.length * self.count


def find_repeats(names: Sequence[str]) -> list[Repeat]:
    """All of a sequence: what repeats, longest first found, and what lies between."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    codes = np.array([numbers[name] for name in names], np.int64)
    return list(_cut(codes, 0, len(names)))


def _cut(codes: Codes, low: int, high: int) -> Iterator[Repeat]:
    todo = [(low, high)]
    while todo:
        low, high = todo.pop()
        best = _longest(codes[low:high])
        if best is None:
            if high > low:
                yield Repeat(low, high - low, 1)
            continue
        first, end = low + best.first, low + best.end
        yield from _cut(codes, low, first)
        yield Repeat(first, best.length, best.count)
        todo.append((end, high))


def _longest(codes: Codes) -> Repeat | None:
    """The repeat that covers most; of those that cover as much, that of the shortest part."""
    best: Repeat | None = None
    for length in range(1, min(_LONGEST, len(codes) // 2) + 1):
        same = np.concatenate([[0], codes[:-length] == codes[length:], [0]])
        edges = np.flatnonzero(np.diff(same))
        for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            found = Repeat(first, length, (end - first) // length + 1)
            covers = found.length * found.count
            enough = found.count >= (_FEWEST_ALONE if length == 1 else 2)
            if enough and (best is None or covers > best.length * best.count):
                best = found
    return best


# ---------------------------------------------------------------------------- profiles


@dataclass(frozen=True, slots=True)
class NameProfile:
    """All operations of one name; `elapsed` in seconds, `preempted` of them were disturbed."""

    name: str
    kind: str
    count: int
    elapsed: float
    bytes: int
    flops: int
    preempted: int
    limited_by: str = ""
    best_share: float | None = None


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """Operations from position `first` on, `length` of them `count` times.

    `elapsed` is that of all together; `where` what their origins have in common.
    """

    label: str
    where: str
    first: int
    length: int
    count: int
    elapsed: float
    names: tuple[NameProfile, ...]

    @property
    def last(self) -> int:
        """The position of its last operation."""
        return self.first + self.length * self.count - 1


def by_name(profiles: Sequence[KernelProfile]) -> list[NameProfile]:
    """Operations of one name and kind as one, what takes longest first."""
    found: dict[tuple[str, str], list[KernelProfile]] = {}
    for profile in profiles:
        found.setdefault((profile.name, profile.kind), []).append(profile)
    made = [_named(group) for group in found.values()]
    return sorted(made, key=lambda one: -one.elapsed)


def _named(group: Sequence[KernelProfile]) -> NameProfile:
    longest = max(group, key=lambda p: p.elapsed)
    return NameProfile(
        longest.name,
        longest.kind,
        len(group),
        sum(p.elapsed for p in group),
        sum(p.bytes for p in group),
        sum(p.flops for p in group),
        sum(bool(p.preempted) for p in group),
        longest.limited_by,
        longest.share_of_limit,
    )


def by_layer(profiles: Sequence[KernelProfile]) -> list[LayerProfile]:
    """The run in order, with layers that are equal as one."""
    repeats = find_repeats([f"{p.kind} {p.name}" for p in profiles])
    return [_layer(profiles, repeat) for repeat in repeats]


def _layer(profiles: Sequence[KernelProfile], repeat: Repeat) -> LayerProfile:
    own = profiles[repeat.first : repeat.end]
    part = own[: repeat.length]
    names = list(dict.fromkeys(p.name for p in part))
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return LayerProfile(
        f"{repeat.count} x {shown}" if repeat.count > 1 else shown,
        common_origin([origin for p in own for origin in p.origins]),
        repeat.first,
        repeat.length,
        repeat.count,
        sum(p.elapsed for p in own),
        tuple(by_name(own)),
    )


def common_origin(origins: Sequence[str]) -> str:
    """What names of nodes begin with alike, whatever the numbers in it: `/encoder/layer.*`."""
    if not origins:
        return ""
    texts = {_NUMBER.sub("*", origin) for origin in origins}
    if len(texts) == 1:
        return str(origins[0]) if len(set(origins)) == 1 else texts.pop()
    least, most = min(texts), max(texts)
    same = (i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b)
    prefix = least[: next(same, len(least))]
    cut = max(prefix.rfind(mark) for mark in "/.:")
    return prefix[: cut + 1].rstrip("/.:")
