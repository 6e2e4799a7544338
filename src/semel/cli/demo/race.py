"""Who takes how long, and how near that is to what the machine can do.

    work by name, Loops  --race-->  Timing by name

All take turns, the loops that measure the machine among them: a neighbour who takes half of it
takes half from everybody. In its turn each first does its work some times untimed, so that it does
not pay for what the one before left in the caches and on the cores. Threads of some libraries go on
spinning for long behind their work: such a one comes last, and then all rest.

Each has an equal share of the time: who has spent it, a slow one early, takes no more turns, so
that all of it ends in time whoever takes part.

A limit is the best that anybody reached in the rotation, so that no share of it can exceed 1.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from semel.devices.cpu.yardstick import FmaLoop, ReadLoop

_UNTIMED, _IN_A_ROW = 3, 10
#: Timed runs of a turn, and rounds, at least: unless all have spent their share.
_LEAST_TIMED, _LEAST_ROUNDS = 2, 4
#: Behind each turn, and behind the last: OpenBLAS, which NumPy has, spins for some 70 ms.
_REST_S, _LONG_REST_S = 5e-3, 0.1

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: the median of so many, and between which nine and one of ten lie."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, found: list[float]) -> Timing:
        """From all that was measured."""
        cuts = statistics.quantiles(found, n=10, method="inclusive")
        return cls(statistics.median(found), cuts[0], cuts[-1], len(found))


@dataclass(frozen=True, slots=True)
class Limit:
    """How near some work came to the best of its kind.

    `amount` bytes or operations take `best_seconds` at the best rate of the rotation, and
    `seconds` in the work itself.
    """

    amount: int
    seconds: float
    best_seconds: float

    @property
    def share(self) -> float:
        """1 at the limit; never above."""
        return self.best_seconds / self.seconds

    @property
    def rate(self) -> float:
        """Amounts a second."""
        return self.amount / self.seconds

    @property
    def best_rate(self) -> float:
        """The same at the limit."""
        return self.amount / self.best_seconds


class Loop(Protocol):
    """Measures itself: seconds for an `amount` of what it does."""

    amount: int

    def __call__(self) -> float: ...


class Reading:
    """A loop that only reads so many bytes, as the work it is compared with does, and again."""

    def __init__(self, threads: int, amount: int) -> None:
        self._loop = ReadLoop(threads, amount)
        self.amount = amount

    def __call__(self) -> float:
        """Seconds for all of the bytes."""
        self._loop.seconds(_UNTIMED)
        return self._loop.seconds(_IN_A_ROW) * self.amount / self._loop.nbytes


class Arithmetic:
    """A loop that only multiplies and adds, in registers."""

    def __init__(self, threads: int, amount: int) -> None:
        self._loop = FmaLoop(threads)
        self.amount = amount

    def __call__(self) -> float:
        """Seconds for all of the operations."""
        return self._loop.seconds() * self.amount / self._loop.flops


def race(
    work: Mapping[str, Work],
    loops: Mapping[str, Loop],
    seconds: float,
    tell: Callable[[Mapping[str, float]], None],
) -> dict[str, list[float]]:
    """Seconds of everything that was timed by name; loops measure themselves."""
    found: dict[str, list[float]] = {name: [] for name in (*work, *loops)}
    left = dict.fromkeys(work, seconds / len(work))
    end, rounds = time.perf_counter() + seconds, 0
    while any(share > 0 for share in left.values()) and (
        rounds < _LEAST_ROUNDS or time.perf_counter() < end
    ):
        for name, loop in loops.items():
            found[name].append(loop())
        for name, once in work.items():
            if left[name] > 0:
                time.sleep(_REST_S)
                begin = time.perf_counter()
                found[name] += _turn(once, left[name])
                left[name] -= time.perf_counter() - begin
        time.sleep(_LONG_REST_S)
        rounds += 1
        tell({name: statistics.median(found[name]) for name in work})
    return found


def _turn(once: Work, share: float) -> list[float]:
    """Seconds of each timed run of a turn, which is over when the share is spent."""
    begin = time.perf_counter()
    for _ in repeat(None, _UNTIMED):
        if time.perf_counter() - begin < share:
            once()
    timed: list[float] = []
    while len(timed) < _IN_A_ROW:
        if len(timed) >= _LEAST_TIMED and time.perf_counter() - begin >= share:
            break
        timed.append(_seconds(once))
    return timed


def limit_of(amount: int, ours: list[float], loop: list[float]) -> Limit:
    """Our median beside the best that the loop, or we ourselves, ever reached."""
    return Limit(amount, statistics.median(ours), min(*ours, *loop))


def _seconds(once: Work) -> float:
    begin = time.perf_counter()
    once()
    return time.perf_counter() - begin
