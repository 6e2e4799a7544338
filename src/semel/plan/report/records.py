"""The records of a profiled run, and how native events become them.

    ops, events, limits  --merge_events-->  list[KernelProfile]

A native event is one call: one row of the op table over a range of tiles, by one lane. An
operation that several lanes shared, or that a chain ran piece by piece, has several; they
become the spans of one record. Operations without an event (a view, a kernel with no tiles)
have a record too: every operation of the plan is in the report.

Invariants: spans of one record are in order of their start; spans of one lane never overlap.
`elapsed` is the time during which at least one lane worked on the operation, so that neither
lanes nor gaps count twice; `busy_ns` is what all lanes spent together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from semel.plan.row import COMPUTE
from semel.runtime.kernel import CachedKernel
from semel.runtime.measured import Event, MachineLimits, Span, Wait

_FEWEST_RUNS = 3
#: How many times its median an operation takes that was preempted: in a run in which the system
#: took a core away, and in any; and what the clock cannot tell apart.
_SWITCHED, _FAR, _CLOCK_S = 2.0, 4.0, 2e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOp:
    """What is known of an operation before it runs, at the variables of this run.

    `op_index` is its place in `prepared_ops`, `row` its row of the op table (-1: none), `step`
    the step that row belongs to. `bytes` and `flops` are what the operation has to move and
    to compute at least. `kind` is kernel, copy, view, host call, or native call (a custom
    function that the runner calls itself); `kernel` is None for all but the first. `lane` is the
    lane of the device that its row names; not to be mixed up with the participants of a run.
    """

    kernel: CachedKernel | None
    device: str  #: where it ran
    num_buffers: int  #: how many buffers it touches
    name: str  #: what it computes, in a word
    kind: str
    op_index: int
    op_id: int = 0  #: the id of its row
    row: int = -1
    step: int = -1
    tiles: int = 1  #: pieces that participants share
    bytes: int = 0
    flops: int = 0
    origins: tuple[str, ...] = ()  #: the source lines of what it computes
    lane: str = COMPUTE

    @property
    def runs_on(self) -> str:
        """Its device and the lane of it, as one name."""
        return f"{self.device}/{self.lane}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KernelProfile(ProfiledOp):
    """One operation of a profiled run, or of several. `elapsed` is in seconds.

    Of several runs it is the median, and `samples` has the time of each. Runs in which the
    operation was `preempted` (it took far longer than it does, since another program had its core)
    are named by their number; their times count neither in the median nor in the spread.

    `share_of_limit` is how much of the machine's measured limit the operation reached: of
    float32 arithmetic or of memory bandwidth (`limited_by`), whichever is larger. Above 1 the
    data came from a cache, or the machine was busier while its limits were measured. None:
    not measured, or there was nothing to move or compute.
    """

    elapsed: float  #: seconds; the median of several runs
    start_ns: int  #: when the first participant began, from the start of the run
    end_ns: int  #: when the last one was done
    spans: tuple[Span, ...] = ()  #: who worked on it from when to when
    share_of_limit: float | None = None  #: of what the machine gives; None: not known
    limited_by: str = ""  #: compute or memory, whichever share is larger
    samples: tuple[float, ...] = ()  #: the time of each run
    preempted: tuple[int, ...] = ()  #: runs in which another program had its core

    @property
    def kept(self) -> tuple[float, ...]:
        """The times of the runs in which it was not preempted."""
        return tuple(s for i, s in enumerate(self.samples) if i not in self.preempted)

    @property
    def spread(self) -> float:
        """Half of what lies between the least and the most, as a share of the median."""
        kept = self.kept
        return (max(kept) - min(kept)) / 2 / self.elapsed if kept and self.elapsed else 0.0

    @property
    def lanes(self) -> tuple[int, ...]:
        """The participants that worked on it, each once."""
        return tuple(sorted({span.lane for span in self.spans}))

    @property
    def busy_ns(self) -> int:
        """Nanoseconds of all lanes together."""
        return sum(span.end_ns - span.start_ns for span in self.spans)

    @property
    def gb_per_s(self) -> float:
        """Gigabytes (1e9) per second, both directions together."""
        return self.bytes / self.elapsed / 1e9 if self.elapsed > 0 else 0.0

    @property
    def gflop_per_s(self) -> float:
        """Floating-point operations per nanosecond."""
        return self.flops / self.elapsed / 1e9 if self.elapsed > 0 else 0.0

    def __str__(self) -> str:
        lanes = ",".join(map(str, self.lanes)) or "-"
        share = "" if self.share_of_limit is None else f", {self.share_of_limit:.0%} of the limit"
        return (
            f"{self.name}: {self.elapsed * 1e6:.2f} us on lane {lanes}, "
            f"{self.gb_per_s:.1f} GB/s, {self.gflop_per_s:.1f} GFLOP/s{share}"
        )

    def __repr__(self) -> str:
        return f"KernelProfile({self})"

    def json(self) -> dict[str, Any]:
        """Plain data, the derived numbers included; the kernel by its name."""
        names = ("name", "kind", "device", "lane", "op_index", "op_id", "row", "step", "tiles")
        numbers = ("num_buffers", "bytes", "flops", "elapsed", "start_ns", "end_ns", "busy_ns")
        derived = ("gb_per_s", "gflop_per_s", "share_of_limit", "limited_by")
        found = {name: getattr(self, name) for name in (*names, *numbers, *derived)}
        found["lanes"] = list(self.lanes)
        found["spread"] = self.spread
        found["samples"], found["preempted"] = list(self.samples), list(self.preempted)
        found["origins"] = list(self.origins)
        found["spans"] = [[s.lane, s.start_ns, s.end_ns, s.tiles] for s in self.spans]
        return found


@dataclass(frozen=True, slots=True)
class ArenaBlock:
    """A value in the arena: reserved bytes, used bytes, alive from record `first` to `last`."""

    name: str
    offset_bytes: int
    reserved_bytes: int
    used_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """A value outside of the arena: a param, constant, input, output, state, ..., its bytes."""

    name: str
    kind: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What holds for the whole run.

    `num_barriers`: steps that several lanes shared and that another step follows; the caller
    waits for all lanes there. A step that one lane runs needs none. `num_unrecorded`: calls of
    operations for which the log of a run had no room. `skipped`: the operations, by `op_index`,
    that the run did not come to, since only outputs need them that nobody fetched. Of a run on
    several lanes, `tracks` has for each participant (`Span.lane`) the lane of a device that it
    works for, and `waits` are those of lanes for each other. `makespans` are those of all `runs` in
    seconds, `switches` says how often the system took a core away from this process in each, and
    `shown` is the number of the one whose timeline the records have. `places` are the values that
    do not share the arena. The `subject` is a plan, or an executor: then operations are
    submissions, each participant is a lane, and there are no steps.
    """

    device: str
    threads: int
    variables: Mapping[str, int] = field(default_factory=dict)
    num_steps: int = 0
    num_shared_steps: int = 0
    num_barriers: int = 0
    arena_bytes: int = 0
    arena: tuple[ArenaBlock, ...] = ()
    limits: MachineLimits | None = None
    runs: int = 1
    num_unrecorded: int = 0
    skipped: tuple[int, ...] = ()
    waits: tuple[Wait, ...] = ()
    tracks: tuple[str, ...] = ()
    makespans: tuple[float, ...] = ()
    switches: tuple[int, ...] = ()
    shown: int = 0
    places: tuple[PlacedValue, ...] = ()
    subject: str = "plan"

    @property
    def is_of_plan(self) -> bool:
        """Whether a plan was run, by a caller, in steps."""
        return self.subject == "plan"


def merge_runs(
    ops: Sequence[ProfiledOp],
    runs: Sequence[Sequence[Event]],
    limits: MachineLimits | None = None,
    switches: Sequence[int] = (),
) -> list[KernelProfile]:
    """The run that took as long as half of them; each operation with the median of all runs.

    One run has a timeline that fits together; a median is not moved by a run that was disturbed.
    """
    merged = [merge_events(ops, events, limits) for events in runs]
    shown = merged[middle(makespans(runs))]
    return [
        _of_all(profile, [run[i].elapsed for run in merged], switches, limits)
        for i, profile in enumerate(shown)
    ]


def makespans(runs: Sequence[Sequence[Event]]) -> list[float]:
    """Seconds from the first begin to the last end, of each run."""
    return [
        (max(e.span.end_ns for e in events) - min(e.span.start_ns for e in events)) / 1e9
        if events
        else 0.0
        for events in runs
    ]


def _median(times: Sequence[float]) -> float:
    """Half of them are at most that; of an even number, halfway between the two in the middle."""
    ordered, half = sorted(times), len(times) // 2
    return ordered[half] if len(times) % 2 else (ordered[half - 1] + ordered[half]) / 2


def middle(numbers: Sequence[float]) -> int:
    """The place of the median; of two, that of the smaller one."""
    order = sorted(range(len(numbers)), key=lambda i: numbers[i])
    return order[(len(order) - 1) // 2]


def _of_all(
    profile: KernelProfile,
    samples: Sequence[float],
    switches: Sequence[int],
    limits: MachineLimits | None,
) -> KernelProfile:
    preempted = find_preempted(samples, switches)
    kept = [sample for i, sample in enumerate(samples) if i not in preempted]
    made = _with_elapsed(profile, _median(kept), limits)
    return replace(made, samples=tuple(samples), preempted=preempted)


def find_preempted(samples: Sequence[float], switches: Sequence[int] = ()) -> tuple[int, ...]:
    """The runs in which an operation took far longer than it does.

    Twice the median counts where the system says that it took a core away in that run, four times
    anywhere; with less than three runs nobody knows.
    """
    if len(samples) < _FEWEST_RUNS:
        return ()
    usual = _median(samples)
    found = []
    for i, sample in enumerate(samples):
        factor = _SWITCHED if i < len(switches) and switches[i] else _FAR
        if sample > factor * usual + _CLOCK_S:
            found.append(i)
    return tuple(found)


def merge_events(
    ops: Sequence[ProfiledOp], events: Sequence[Event], limits: MachineLimits | None = None
) -> list[KernelProfile]:
    """One record per operation, in the order of `ops`.

    An operation without events starts and ends where the one before it ended.
    """
    spans: dict[int, list[Span]] = {}
    for event in events:
        spans.setdefault(event.row, []).append(event.span)
    found: list[KernelProfile] = []
    now = min((e.span.start_ns for e in events), default=0)
    for op in ops:
        own = sorted(spans.get(op.row, ()), key=lambda s: (s.start_ns, s.lane))
        found.append(_profile(op, tuple(own), now, limits))
        now = found[-1].end_ns
    return found


def _profile(
    op: ProfiledOp, spans: tuple[Span, ...], now: int, limits: MachineLimits | None
) -> KernelProfile:
    start = spans[0].start_ns if spans else now
    end = max((s.end_ns for s in spans), default=now)
    known = {name: getattr(op, name) for name in ProfiledOp.__dataclass_fields__}
    # A loop may end early, an arm may not run: what was done is what was seen.
    done = sum(span.tiles for span in spans)
    known |= {what: known[what] * done // max(op.tiles, 1) for what in ("tiles", "bytes", "flops")}
    profile = KernelProfile(**known, elapsed=0.0, start_ns=start, end_ns=end, spans=spans)
    return _with_elapsed(profile, covered_ns(spans) / 1e9, limits)


def _with_elapsed(
    profile: KernelProfile, elapsed: float, limits: MachineLimits | None
) -> KernelProfile:
    """The record with this time, and with the share of the limit that follows from it."""
    share: float | None = None
    limited_by = ""
    if limits is not None and profile.spans and (profile.flops or profile.bytes):
        share, limited_by = limits.share(profile.flops, profile.bytes, elapsed)
    return replace(profile, elapsed=elapsed, share_of_limit=share, limited_by=limited_by)


def covered_ns(spans: Sequence[Span]) -> int:
    """The length of the union of the spans, which are in order of their start."""
    covered, until = 0, 0
    for span in spans:
        begin = max(span.start_ns, until)
        if span.end_ns > begin:
            covered += span.end_ns - begin
            until = span.end_ns
    return covered


def live_bytes(blocks: Sequence[ArenaBlock], num_ops: int) -> list[int]:
    """Used bytes of the arena while each operation runs."""
    change = [0] * (num_ops + 1)
    for block in blocks:
        change[block.first] += block.used_bytes
        change[block.last + 1] -= block.used_bytes
    total, found = 0, []
    for delta in change[:num_ops]:
        total += delta
        found.append(total)
    return found
