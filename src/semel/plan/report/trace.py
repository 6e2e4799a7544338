"""A profiled run in the Trace Event Format, which Perfetto and chrome://tracing open.

    list[KernelProfile], RunInfo  --chrome_trace-->  a JSON object

One track per lane with a slice for each span, one track for the steps, and a counter of the
arena's live bytes. Times are microseconds with three decimals, made from whole nanoseconds,
so that the end of one slice is never after the start of the next.

Invariant: slices of one track do not overlap, or one lies inside the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.plan.report.records import KernelProfile, RunInfo, live_bytes
from semel.plan.row import COMPUTE

_PID = 1
_STEPS_TID = 1000  #: above every lane


def chrome_trace(profiles: Sequence[KernelProfile], run: RunInfo) -> dict[str, Any]:
    """The whole trace; `json.dumps` of it is the file."""
    origin = min((p.start_ns for p in profiles if p.spans), default=0)
    events = [*_names(profiles, run), *_steps(profiles, origin)]
    for profile in profiles:
        events += _slices(profile, origin)
    events += _memory(profiles, run, origin)
    other = {"device": run.device, "threads": run.threads, "barriers": run.num_barriers}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _names(profiles: Sequence[KernelProfile], run: RunInfo) -> list[dict[str, Any]]:
    lanes = sorted({lane for p in profiles for lane in p.lanes} | {0})
    elsewhere = {lane: p.runs_on for p in profiles for lane in p.lanes if p.lane != COMPUTE}
    notes = {**{lane: f" ({name})" for lane, name in elsewhere.items()}, 0: " (caller)"}
    tracks = [(lane, f"lane {lane}{notes.get(lane, '')}") for lane in lanes]
    found = [_metadata("process_name", 0, name=f"semel plan on {run.device}")]
    for order, (tid, name) in enumerate([(_STEPS_TID, "steps"), *tracks]):
        found.append(_metadata("thread_name", tid, name=name))
        found.append(_metadata("thread_sort_index", tid, sort_index=order))
    return found


def _metadata(kind: str, tid: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": _PID, "tid": tid, "name": kind, "args": arguments}


def _slices(profile: KernelProfile, origin: int) -> list[dict[str, Any]]:
    arguments = {
        "op": profile.op_index,
        "kind": profile.kind,
        "on": profile.runs_on,
        "step": profile.step,
        "bytes": profile.bytes,
        "flops": profile.flops,
        "GB/s": round(profile.gb_per_s, 3),
        "GFLOP/s": round(profile.gflop_per_s, 3),
        "share of limit": profile.share_of_limit,
        "origins": list(profile.origins),
    }
    return [
        _slice(
            profile.name,
            profile.kind,
            span.lane,
            span.start_ns - origin,
            span.end_ns - origin,
            {**arguments, "tiles": span.tiles},
        )
        for span in profile.spans
    ]


def _slice(
    name: str, category: str, tid: int, start_ns: int, end_ns: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PID,
        "tid": tid,
        "name": name,
        "cat": category,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": arguments,
    }


def _steps(profiles: Sequence[KernelProfile], origin: int) -> list[dict[str, Any]]:
    """One slice per step, from its first start to its last end; steps follow each other."""
    members: dict[int, list[KernelProfile]] = {}
    for profile in profiles:
        if profile.spans and profile.step >= 0:
            members.setdefault(profile.step, []).append(profile)
    found = []
    for step, inside in sorted(members.items()):
        start = min(p.start_ns for p in inside) - origin
        end = max(p.end_ns for p in inside) - origin
        lanes = sorted({lane for p in inside for lane in p.lanes})
        arguments = {"ops": [p.op_index for p in inside], "lanes": lanes}
        found.append(_slice(f"step {step}", "step", _STEPS_TID, start, end, arguments))
    return found


def _memory(profiles: Sequence[KernelProfile], run: RunInfo, origin: int) -> list[dict[str, Any]]:
    levels = live_bytes(run.arena, len(profiles))
    return [
        {
            "ph": "C",
            "pid": _PID,
            "tid": 0,
            "name": "arena bytes",
            "ts": max(profile.start_ns - origin, 0) / 1000,
            "args": {"live": level},
        }
        for profile, level in zip(profiles, levels, strict=True)
        if run.arena
    ]
