"""What the lanes of devices did in a profiled run, and how much of it side by side.

    list[KernelProfile], RunInfo  --lane_profiles-->  list[LaneProfile]

A lane is busy while a participant of it works on an operation, and waits where the run makes it
wait for another. What a copy lane moves while another lane is busy is hidden behind that: `beside`
is how much of its busy time, which is what lanes are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from semel.plan.report.records import KernelProfile, RunInfo, covered_ns
from semel.plan.row import COMPUTE
from semel.runtime.measured import Span


@dataclass(frozen=True, slots=True)
class LaneProfile:
    """One lane of a device: `participants` are its tracks, times are nanoseconds.

    `beside_ns` is the part of `busy_ns` in which a lane of another name was busy as well.
    `moved_bytes` are those that its copies have copied, each counted once. What was waited before
    the first operation of the run began is not counted.
    """

    name: str
    participants: tuple[int, ...]
    num_ops: int
    num_copies: int
    moved_bytes: int
    busy_ns: int
    num_waits: int
    waited_ns: int
    beside_ns: int

    @property
    def device(self) -> str:
        """The device whose lane it is."""
        return self.name.rpartition("/")[0]

    def __str__(self) -> str:
        text = f"{self.name}: {self.num_ops} ops, busy {_us(self.busy_ns)}"
        if self.busy_ns:
            text += f", {self.beside_ns / self.busy_ns:.0%} of it beside other lanes"
        if self.num_copies:
            rate = 2 * self.moved_bytes / max(self.busy_ns, 1)
            text += f", {self.num_copies} copies of {self.moved_bytes} bytes, {rate:.2f} GB/s"
        if self.num_waits:
            text += f", {self.num_waits} waits of {_us(self.waited_ns)}"
        return text


def tracks_of(run: RunInfo, profiles: Sequence[KernelProfile]) -> list[str]:
    """The lane of a device that each participant works for."""
    most = max((lane for profile in profiles for lane in profile.lanes), default=0)
    named = list(run.tracks)
    return named + [f"{run.device}/{COMPUTE}"] * (most + 1 - len(named))


def lane_profiles(profiles: Sequence[KernelProfile], run: RunInfo) -> list[LaneProfile]:
    """Every lane that there is, in the order of its participants."""
    tracks = tracks_of(run, profiles)
    names = list(dict.fromkeys(tracks))
    busy = {name: _union(_spans_of(profiles, tracks, name)) for name in names}
    return [_lane(name, tracks, profiles, run, busy) for name in names]


def _lane(
    name: str,
    tracks: Sequence[str],
    profiles: Sequence[KernelProfile],
    run: RunInfo,
    busy: dict[str, list[Span]],
) -> LaneProfile:
    own = [p for p in profiles if any(tracks[lane] == name for lane in p.lanes)]
    copies = [p for p in own if p.kind == "copy"]
    waits = [wait for wait in run.waits if tracks[wait.span.lane] == name]
    origin = min((p.start_ns for p in profiles if p.spans), default=0)
    others = _union(span for other, spans in busy.items() if other != name for span in spans)
    return LaneProfile(
        name,
        tuple(number for number, track in enumerate(tracks) if track == name),
        len(own),
        len(copies),
        sum(p.bytes for p in copies) // 2,  # which count what is read and what is written
        covered_ns(busy[name]),
        len(waits),
        sum(max(wait.span.end_ns - max(wait.span.start_ns, origin), 0) for wait in waits),
        _common_ns(busy[name], others),
    )


def _spans_of(
    profiles: Sequence[KernelProfile], tracks: Sequence[str], name: str
) -> Iterable[Span]:
    return (span for p in profiles for span in p.spans if tracks[span.lane] == name)


def _union(spans: Iterable[Span]) -> list[Span]:
    """Spans that do not overlap, in order, and cover the same."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda s: s.start_ns):
        if found and span.start_ns <= found[-1].end_ns:
            last = found[-1]
            found[-1] = Span(last.lane, last.start_ns, max(last.end_ns, span.end_ns))
        else:
            found.append(span)
    return found


def _common_ns(one: Sequence[Span], other: Sequence[Span]) -> int:
    """How long two lists of spans, each as `_union` makes it, are both covered."""
    both = _union([*one, *other])
    return covered_ns(one) + covered_ns(other) - covered_ns(both)


def _us(ns: int) -> str:
    return f"{ns / 1000:.2f} us"
