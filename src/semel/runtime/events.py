"""The event buffers of one profiled run.

    OpTable (bound)  --EventLog-->  events that the runner's timed walk wrote

Each lane has its own buffer, so that writing an event is two readings of the clock and four
stores, without atomics. The buffers are sized from the bound table: a lane that did all
the chunks of all segments by itself would just fill its own. Where a run decides by itself how
often it goes round, there is room for many, and what found none is counted (`dropped`). Host
calls happen between two native calls; `enter` times them by the same clock.

Invariant: lanes point to event buffers only while a log is attached; a run without one
takes the walk that knows nothing of events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from semel.ir import abi
from semel.ir.abi import Code, Header, Lane, Segment, Step
from semel.ir.abi import Event as EventWord
from semel.runtime.measured import Event, Span, Wait
from semel.runtime.optable import OpTable
from semel.runtime.words import Words, aligned_words

#: Calls of one lane that a log has room for; a loop may make more, and they go unrecorded.
MAX_EVENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One profiled run: its events, its (steps, shared steps, barriers), calls without an event.

    Of a run on several lanes, `waits` are those for each other, and `tracks` has for each
    participant the name of the lane that it works for.
    """

    events: list[Event]
    steps: tuple[int, int, int]
    dropped: int
    waits: tuple[Wait, ...] = ()
    tracks: tuple[str, ...] = ()


class TimedEntry(Protocol):
    """A plan's place in the native runner."""

    def call_timed(self) -> int:
        """Run through the walk that writes events to the lanes' buffers."""


class Clock(Protocol):
    """The clock of the runner."""

    @property
    def ticks(self) -> Callable[[], int]: ...

    def ns_per_tick(self) -> float:
        """The period of the clock, as exactly as it is known by now."""


class EventLog:
    """Attached to a table for one run: `with EventLog(...) as log: log.enter()`."""

    def __init__(self, table: OpTable, entry: TimedEntry, clock: Clock) -> None:
        self._table, self._entry, self._clock = table, entry, clock
        self._ticks: Callable[[], int] = clock.ticks
        self._lanes = table.lanes.reshape(-1, abi.LANE_WORDS)
        self._room = room = max(num_events(table), 1)
        self._runs = aligned_words(2 * max(int(table.words[Header.NUM_STEPS]), 1))
        self._buffers = [aligned_words(room * abi.EVENT_WORDS) for _ in self._lanes]
        self._hosted: list[tuple[int, int, int]] = []
        self._host_row = -1
        self._host_start = 0
        self._start = 0
        self._calls = [0] * len(self._lanes)

    def __enter__(self) -> Self:
        for lane, buffer in zip(self._lanes, self._buffers, strict=True):
            lane[Lane.EVENTS] = buffer.ctypes.data
            lane[Lane.NUM_EVENTS] = 0
            lane[Lane.MAX_EVENTS] = self._room
        self._table.words[Header.STEP_RUNS] = self._runs.ctypes.data
        self._start = self._ticks()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lanes[:, Lane.EVENTS] = 0
        self._calls = self._lanes[:, Lane.NUM_EVENTS].tolist()
        self._table.words[Header.STEP_RUNS] = 0

    def enter(self) -> int:
        """The plan's entry while it is profiled; what lies between two calls is a host call."""
        if self._host_row >= 0:
            self._hosted.append((self._host_row, self._host_start, self._ticks()))
            self._host_row = -1
        code = self._entry.call_timed()
        if code == Code.HOST_CALL:
            self._host_start = self._ticks()
            self._host_row = self._table.words[Header.ERROR_INDEX]
        return code

    def begun_after(self, first: Any) -> int:
        """Nanoseconds from the begin of another log to that of this one, by the host's clock."""
        late: int = self._start - first._start
        return round(late * self._clock.ns_per_tick())

    def logged(self) -> LoggedRun:
        """What there is to know of the run, once it is over."""
        return LoggedRun(self.events(), self.count_steps(), self.dropped)

    @property
    def dropped(self) -> int:
        """Calls of rows that were made and found no room in the log."""
        return sum(max(calls - self._room, 0) for calls in self._calls)

    def count_steps(self) -> tuple[int, int, int]:
        """(steps, steps that lanes share, barriers) as they were run.

        A step of a loop counts as often as it was run, and the loop's two ends as often as it
        began.
        """
        runs, shared = self._runs.reshape(-1, 2).T
        for loop in self._table.loops:
            runs[loop.last_step] = runs[loop.first_step]
        return _sums(runs.tolist(), shared.tolist())

    def events(self) -> list[Event]:
        """All events of the run in nanoseconds since it began."""
        ns_per_tick = self._clock.ns_per_tick()

        def ns(ticks: int) -> int:
            return max(round((ticks - self._start) * ns_per_tick), 0)

        found = [Event(row, Span(0, ns(a), ns(b), 1)) for row, a, b in self._hosted]
        for index, (calls, buffer) in enumerate(zip(self._calls, self._buffers, strict=True)):
            words = buffer.reshape(-1, abi.EVENT_WORDS)[: min(calls, self._room)]
            found += [
                Event(
                    int(e[EventWord.ROW]),
                    Span(
                        index,
                        ns(int(e[EventWord.START])),
                        ns(int(e[EventWord.END])),
                        int(e[EventWord.TILES]),
                    ),
                )
                for e in words
            ]
        return found


def num_events(table: OpTable) -> int:
    """How many calls a run makes, at most: rows times chunks of each segment, of each time.

    Where only the run itself says how often and in how many chunks, there is room for any.
    """
    if not table.is_settled_at_bind:
        return MAX_EVENTS
    steps = _steps(table)
    count = 0
    for step, times in zip(steps, table.step_counts(), strict=True):
        first, last = int(step[Step.FIRST_SEGMENT]), int(step[Step.NUM_SEGMENTS])
        segments = table.segments.reshape(-1, abi.SEGMENT_WORDS)[first : first + last]
        # A plan of one thread has no chunks: it calls each row once.
        chunks = np.maximum(segments[:, Segment.NUM_CHUNKS], 1)
        count += times * int(np.sum(segments[:, Segment.NUM_ROWS] * chunks))
    return min(count, MAX_EVENTS)


def _steps(table: OpTable) -> Words:
    # Cut first: the words of a table without steps are no whole record.
    words = int(table.words[Header.NUM_STEPS]) * abi.STEP_WORDS
    return table.steps[:words].reshape(-1, abi.STEP_WORDS)


def count_steps(table: OpTable) -> tuple[int, int, int]:
    """(steps, steps that lanes share, barriers) of a run at the bound variables.

    What only a run can say is counted as `OpTable.step_counts` does.
    """
    counts = table.step_counts()
    is_shared = _steps(table)[:, Step.SHARED] != 0
    if table.words[Header.THREADS] < 2:
        is_shared[:] = False
    return _sums(counts, [n * int(s) for n, s in zip(counts, is_shared, strict=True)])


def _sums(times: Sequence[int], shared: Sequence[int]) -> tuple[int, int, int]:
    """The end of the run is where everything ends anyway, so it is no barrier."""
    return sum(times), sum(shared), sum(shared[:-1])
