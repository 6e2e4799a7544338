"""What an executor's lanes did while somebody looked, as the report of a profiled run.

    submissions that are over, as lanes tell of them  --Recorder-->  ProfileReport

Each submission is a record, each lane a track. Times are those that the lanes' threads write down
(`NativeLane.observe`); nobody else is asked anything, and nothing is, while nobody looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from semel.executor.lane import Call, ExecutorLane
from semel.executor.ticket import Submitter
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import ProfiledOp, RunInfo, merge_events
from semel.runtime.measured import Event, Span, Wait
from semel.runtime.native import host_runner
from semel.runtime.native_lane import Done

#: What a report is of, where it is of no plan.
SUBJECT = "executor"
#: Submissions of one report; of more it says how many there were.
_MOST_RECORDS = 100_000


class _Record(NamedTuple):
    """A submission that is over, without what it refers to."""

    lane: int
    value: int
    name: str
    kind: str
    num_bytes: int
    #: Signals that it waited for, by name, with their values.
    waits: tuple[tuple[str, int], ...]
    taken: int
    begun: int
    ended: int
    origin: str


class Recorder:
    """From `watch` to `stop`; both, and all between, with the executor's lock."""

    def __init__(self, submitters: Iterable[Submitter]) -> None:
        #: Filled by `finish`.
        self.report = ProfileReport([], RunInfo("", 0, subject=SUBJECT))
        # An engine is nobody else's as long as its submitter is held.
        self._submitters = {id(each.engine): each for each in submitters}
        self._lanes: list[ExecutorLane] = []
        self._records: list[_Record] = []
        self._num_unrecorded = 0

    def meet(self, submitter: Submitter) -> None:
        """A plan that is submitted for the first time."""
        self._submitters[id(submitter.engine)] = submitter

    def watch(self, lanes: Iterable[ExecutorLane]) -> None:
        """Look at these, too."""
        for lane in lanes:
            self._lanes.append(lane)
            lane.native.observe(partial(self._note, len(self._lanes) - 1))

    def stop(self) -> None:
        """Look no more."""
        for lane in self._lanes:
            lane.native.observe(None)

    def _note(self, lane: int, done: Done) -> None:
        if len(self._records) == _MOST_RECORDS:
            self._num_unrecorded += 1
            return
        work = done.work
        known = work if isinstance(work, Call) else self._submitters.get(id(work))
        error = self._lanes[lane].timeline.peek_failure(done.value)
        self._records.append(
            _Record(
                lane,
                done.value,
                work.name,
                known.kind if known else "plan",
                known.num_bytes if known else 0,
                tuple((signal.name, value) for signal, value in done.pairs),
                done.taken,
                done.begun,
                done.ended,
                "" if error is None else f"failed: {type(error).__name__}",
            )
        )

    def finish(self) -> None:
        """Fill the report."""
        records = sorted(self._records, key=lambda each: (each.begun, each.lane))
        used = sorted({each.lane for each in records})
        tracks = {lane: number for number, lane in enumerate(used)}
        start, scale = min((r.taken for r in records), default=0), host_runner().ns_per_tick()

        def nanoseconds(ticks: int) -> int:
            return max(round((ticks - start) * scale), 0)

        def span(lane: int, begin: int, end: int) -> Span:
            return Span(tracks[lane], nanoseconds(begin), nanoseconds(end), 1)

        ends = {(self._lanes[r.lane].timeline.name, r.value): r.ended for r in records}
        ops = [self._op(number, record) for number, record in enumerate(records)]
        spans = [span(r.lane, r.begun, r.ended) for r in records]
        waits = [
            Wait(span(r.lane, r.taken, r.begun), awaited)
            for r in records
            if (awaited := _awaited(r, ends))
        ]
        events = [Event(number, each) for number, each in enumerate(spans)]
        names = [self._lanes[lane].name for lane in used]
        self.report.run = RunInfo(
            names[0].rpartition("/")[0] if names else "",
            len(used),
            num_unrecorded=self._num_unrecorded,
            waits=tuple(waits),
            tracks=tuple(names),
            subject=SUBJECT,
        )
        self.report.extend(merge_events(ops, events))

    def _op(self, number: int, record: _Record) -> ProfiledOp:
        lane = self._lanes[record.lane]
        return ProfiledOp(
            kernel=None,
            device=lane.device,
            num_buffers=0,
            name=record.name,
            kind=record.kind,
            op_index=number,
            op_id=record.value,
            row=number,
            bytes=record.num_bytes,
            origins=(record.origin,) if record.origin else (),
            lane=lane.name.rpartition("/")[2],
        )


def _awaited(record: _Record, ends: dict[tuple[str, int], int]) -> str:
    """What a submission waited for; empty if all of it was over when its turn came."""
    late = [
        f"{name} {value}"
        for name, value in record.waits
        if ends.get((name, value), record.begun) > record.taken
    ]
    return " and ".join(late)
