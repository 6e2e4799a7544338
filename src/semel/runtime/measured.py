"""What a device measures: when a lane was busy with which row, and what the machine can reach.

    Device  --timed call, limits()-->  Event, MachineLimits  --plan/report-->  tables, pages

Times are nanoseconds of the profiled run, whatever clock the device has.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One lane's uninterrupted work on one operation; times in ns of the profiled run."""

    lane: int
    start_ns: int
    end_ns: int
    tiles: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """What the runner wrote: `row` of the op table, and when which lane was busy with it."""

    row: int
    span: Span


@dataclass(frozen=True, slots=True)
class Wait:
    """A lane's wait for another, `signal` by the name of what it waited for."""

    span: Span
    signal: str


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The most that `threads` threads reach on this machine, measured."""

    threads: int
    flops_per_s: float
    bytes_per_s: float

    def share(self, flops: int, moved_bytes: int, seconds: float) -> tuple[float, str]:
        """The larger of the two shares that this work reaches, and which limit it is."""
        if seconds <= 0:
            return 0.0, ""
        of_flops = flops / seconds / self.flops_per_s
        of_bytes = moved_bytes / seconds / self.bytes_per_s
        return (of_flops, "flops") if of_flops > of_bytes else (of_bytes, "bytes")
