"""A profiled run in the Trace Event Format, which Perfetto and chrome://tracing open.

    list[KernelProfile], RunInfo  --chrome_trace-->  a JSON object

A process for each device, in it one track per participant of its lanes with a slice for each span
and for each wait for another lane; one track for the steps, and a counter of the arena's live
bytes. Times are microseconds with three decimals, made from whole nanoseconds, so that the end of
one slice is never after the start of the next.

Invariant: slices of one track do not overlap, or one lies inside the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel.plan.report.lanes import tracks_of
from semel.plan.report.records import KernelProfile, RunInfo, live_bytes
from semel.plan.row import COMPUTE

_PID = 1  #: of the plan's own device; others follow
_STEPS_TID = 1000  #: above every lane


def chrome_trace(profiles: Sequence[KernelProfile], run: RunInfo) -> dict[str, Any]:
    """The whole trace; `json.dumps` of it is the file."""
    origin = min((p.start_ns for p in profiles if p.spans), default=0)
    tracks = tracks_of(run, profiles)
    pids = _processes(tracks, run.device)
    events = [*_names(tracks, pids, run), *(_steps(profiles, origin) if run.is_of_plan else ())]
    for profile in profiles:
        more = {} if run.is_of_plan else {"value": profile.op_id}
        events += _slices(profile, pids, origin, more)
    events += _waits(run, pids, origin)
    events += _memory(profiles, run, origin)
    other = {"device": run.device, "threads": run.threads, "barriers": run.num_barriers}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _processes(tracks: Sequence[str], own: str) -> list[int]:
    """The number of the device that each participant works for, the plan's own first."""
    devices = [track.rpartition("/")[0] for track in tracks]
    known = list(dict.fromkeys([own, *devices]))
    return [_PID + known.index(device) for device in devices]


def _names(tracks: Sequence[str], pids: Sequence[int], run: RunInfo) -> list[dict[str, Any]]:
    found = [
        _metadata(
            "process_name", 0, name=f"semel plan on {run.device}" if run.is_of_plan else run.device
        )
    ]
    if run.is_of_plan:
        found.append(_metadata("thread_name", _STEPS_TID, name="steps"))
        found.append(_metadata("thread_sort_index", _STEPS_TID, sort_index=0))
    told = {_PID}
    for lane, (track, pid) in enumerate(zip(tracks, pids, strict=True)):
        device, _, name = track.rpartition("/")
        if pid not in told:
            told.add(pid)
            found.append(_metadata("process_name", 0, pid, name=device))
            found.append(_metadata("process_sort_index", 0, pid, sort_index=pid))
        note = " (caller)" if not lane else f" ({track})" if name != COMPUTE else ""
        shown = f"lane {lane}{note}" if run.is_of_plan else track
        found.append(_metadata("thread_name", lane, pid, name=shown))
        found.append(_metadata("thread_sort_index", lane, pid, sort_index=lane + 1))
    return found


def _metadata(kind: str, tid: int, pid: int = _PID, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": arguments}


def _waits(run: RunInfo, pids: Sequence[int], origin: int) -> list[dict[str, Any]]:
    """What lanes waited for each other, from the first operation on."""
    found = []
    for wait in run.waits:
        lane, start = wait.span.lane, max(wait.span.start_ns - origin, 0)
        end = wait.span.end_ns - origin
        if end > start:
            name = f"wait for {wait.signal}"
            found.append(_slice(name, "wait", pids[lane], lane, start, end, {}))
    return found


def _slices(
    profile: KernelProfile, pids: Sequence[int], origin: int, more: Mapping[str, Any]
) -> list[dict[str, Any]]:
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
            pids[span.lane],
            span.lane,
            span.start_ns - origin,
            span.end_ns - origin,
            {**arguments, **more, "tiles": span.tiles},
        )
        for span in profile.spans
    ]


def _slice(
    name: str,
    category: str,
    pid: int,
    tid: int,
    start_ns: int,
    end_ns: int,
    arguments: dict[str, Any],
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": pid,
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
        found.append(_slice(f"step {step}", "step", _PID, _STEPS_TID, start, end, arguments))
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
