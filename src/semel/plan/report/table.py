"""A profiled run as a table for people.

    list[KernelProfile], RunInfo  --format_table-->  aligned text

Long runs are cut to the operations that took longest; the last lines always say what the
whole run was.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.plan.report.lanes import lane_profiles
from semel.plan.report.records import KernelProfile, RunInfo
from semel.plan.row import COMPUTE

_HEAD = ("op", "kind", "name", "on", "lanes", "us", "share", "GB/s", "GFLOP/s", "limit", "origin")
_LEFT = ("kind", "name", "on", "origin")
_MAX_NAME, _MAX_ORIGIN = 44, 48


def format_table(profiles: Sequence[KernelProfile], run: RunInfo, top: int | None = None) -> str:
    """Operations in order, or the `top` longest, longest first; then the totals."""
    total = sum(p.elapsed for p in profiles)
    shown = list(profiles)
    if top is not None:
        shown = sorted(shown, key=lambda p: -p.elapsed)[:top]
    own = f"{run.device}/{COMPUTE}"
    # Where all ran on one lane, it goes without saying.
    is_laned = any(p.runs_on != own for p in profiles)
    columns = [i for i, name in enumerate(_HEAD) if is_laned or name != "on"]
    rows = [_HEAD, *(_row(p, total) for p in shown)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = [_line(row, widths, columns) for row in rows]
    if len(shown) < len(profiles):
        lines.append(f"... and {len(profiles) - len(shown)} more")
    lanes = [str(lane) for lane in lane_profiles(profiles, run)] if run.tracks else []
    return "\n".join([*lines, *_totals(profiles, run, total), *lanes])


def _row(profile: KernelProfile, total: float) -> tuple[str, ...]:
    share = profile.elapsed / total if total else 0.0
    limit = profile.share_of_limit
    bound = f"{limit:.0%} {profile.limited_by}".rstrip() if limit else "-"
    origin = profile.origins[-1] if profile.origins else ""
    return (
        str(profile.op_index),
        profile.kind,
        _cut(profile.name, _MAX_NAME),
        profile.runs_on,
        ",".join(map(str, profile.lanes)) or "-",
        f"{profile.elapsed * 1e6:.2f}",
        f"{share:.1%}",
        f"{profile.gb_per_s:.2f}",
        f"{profile.gflop_per_s:.2f}",
        bound,
        origin if len(origin) <= _MAX_ORIGIN else "..." + origin[3 - _MAX_ORIGIN :],
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _line(row: tuple[str, ...], widths: Sequence[int], columns: Sequence[int]) -> str:
    cells = [
        row[i].ljust(widths[i]) if _HEAD[i] in _LEFT else row[i].rjust(widths[i]) for i in columns
    ]
    return "  ".join(cells).rstrip()


def _totals(profiles: Sequence[KernelProfile], run: RunInfo, total: float) -> list[str]:
    ran = [p for p in profiles if p.spans]
    makespan = (max(p.end_ns for p in ran) - min(p.start_ns for p in ran)) / 1e9 if ran else 0.0
    values = ", ".join(f"{name}={value}" for name, value in run.variables.items())
    lines = [
        f"sum {total * 1e6:.2f} us, makespan {makespan * 1e6:.2f} us, "
        f"{len(profiles)} ops in {run.num_steps} steps, {run.num_shared_steps} of them shared, "
        f"{run.num_barriers} barriers, {run.threads} threads on {run.device}"
        + (f", {values}" if values else "")
    ]
    if run.skipped:
        lines.append(f"{len(run.skipped)} ops skipped: only outputs need them that nobody fetched")
    if run.num_unrecorded:
        lines.append(f"{run.num_unrecorded} calls of ops not recorded: the log was full")
    if run.limits is not None:
        lines.append(
            f"measured limits with {run.limits.threads} threads: "
            f"{run.limits.flops_per_s / 1e9:.0f} GFLOP/s (float32), "
            f"{run.limits.bytes_per_s / 1e9:.1f} GB/s; more than 100 %: from a cache, or the "
            "machine was busier while its limits were measured"
        )
    return lines
