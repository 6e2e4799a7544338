"""A profiled run as a table for people.

    list[KernelProfile], RunInfo  --format_table-->  aligned text

First what repeats, as layers and by name; then operations, of long runs those that took longest;
the last lines always say what the whole run was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from semel.plan.report.lanes import lane_profiles
from semel.plan.report.layers import by_layer, by_name
from semel.plan.report.records import KernelProfile, RunInfo
from semel.plan.row import COMPUTE

#: Columns by name, and in which order they are left out where there is no room.
_NUMBERS = ("us", "+-", "share", "GB/s", "GFLOP/s", "limit")
_HEAD = ("op", "kind", "name", "on", "lanes", *_NUMBERS, "origin")
_LEFT = ("kind", "name", "on", "origin", "what", "where")
_FIRST_OUT = ("origin", "kind", "lanes", "GB/s", "GFLOP/s", "on", "where")
_MAX_NAME, _MAX_ORIGIN, _MOST_NAMES = 44, 48, 15
_GAP = "  "

Rows: TypeAlias = "Sequence[tuple[str, ...]]"


def format_table(
    profiles: Sequence[KernelProfile],
    run: RunInfo,
    top: int | None = None,
    width: int | None = None,
) -> str:
    """Layers and names, if some repeat; operations in order, or the `top` longest; the totals.

    With a `width`, columns are left out until the lines of tables fit.
    """
    total = sum(p.elapsed for p in profiles)
    shown = list(profiles)
    if top is not None:
        shown = sorted(shown, key=lambda p: -p.elapsed)[:top]
    own = f"{run.device}/{COMPUTE}"
    hidden = set()
    if all(p.runs_on == own for p in profiles):
        hidden.add("on")  # where all ran on one lane, it goes without saying
    if run.runs == 1:
        hidden.add("+-")
    lines = [*_layers(profiles, total, width), *_names(profiles, total, width)]
    lines += _lines(_HEAD, [_row(p, total) for p in shown], hidden, width)
    if len(shown) < len(profiles):
        lines.append(f"... and {len(profiles) - len(shown)} more")
    lanes = [str(lane) for lane in lane_profiles(profiles, run)] if run.tracks else []
    return "\n".join([*lines, *_totals(profiles, run, total), *lanes])


def _layers(profiles: Sequence[KernelProfile], total: float, width: int | None) -> list[str]:
    """Equal layers as one line each, if there are any."""
    layers = by_layer(profiles)
    if all(layer.count == 1 for layer in layers):
        return []
    rows = [
        (
            f"{layer.elapsed / total if total else 0:.1%}",
            f"{layer.elapsed * 1e6:.2f}",
            f"{layer.elapsed * 1e6 / layer.count:.2f}" if layer.count > 1 else "",
            f"{layer.first}-{layer.last}",
            layer.label,
            _end_of(layer.where),
        )
        for layer in layers
    ]
    return [*_lines(("share", "us", "each", "ops", "what", "where"), rows, set(), width), ""]


def _names(profiles: Sequence[KernelProfile], total: float, width: int | None) -> list[str]:
    """Operations of one name as one line each, if some share theirs."""
    names = by_name(profiles)
    if len(names) == len(profiles):
        return []
    rows = [
        (
            f"{one.elapsed / total if total else 0:.1%}",
            f"{one.elapsed * 1e6:.2f}",
            str(one.count),
            _bound(one.best_share, one.limited_by),
            _cut(one.name, _MAX_NAME),
        )
        for one in names[:_MOST_NAMES]
    ]
    lines = _lines(("share", "us", "times", "limit", "what"), rows, set(), width)
    if len(names) > _MOST_NAMES:
        lines.append(f"... and {len(names) - _MOST_NAMES} more names")
    return [*lines, ""]


def _row(profile: KernelProfile, total: float) -> tuple[str, ...]:
    share = profile.elapsed / total if total else 0.0
    spread = f"{profile.spread:.0%}" if profile.samples else ""
    marked = f"p{len(profile.preempted)} " if profile.preempted else ""
    return (
        str(profile.op_index),
        profile.kind,
        _cut(profile.name, _MAX_NAME),
        profile.runs_on,
        ",".join(map(str, profile.lanes)) or "-",
        f"{profile.elapsed * 1e6:.2f}",
        marked + spread,
        f"{share:.1%}",
        f"{profile.gb_per_s:.2f}",
        f"{profile.gflop_per_s:.2f}",
        _bound(profile.share_of_limit, profile.limited_by),
        _end_of(profile.origins[-1] if profile.origins else ""),
    )


def _bound(share: float | None, limited_by: str) -> str:
    """How near to a limit; faster than memory is what comes from a cache."""
    if not share:
        return "-"
    if share > 1 and limited_by == "bytes":
        return "cache"
    return f"{share:.0%} {limited_by}".rstrip()


def _end_of(text: str) -> str:
    return text if len(text) <= _MAX_ORIGIN else "..." + text[3 - _MAX_ORIGIN :]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _lines(head: tuple[str, ...], rows: Rows, hidden: set[str], width: int | None) -> list[str]:
    """Aligned lines of the columns that there is room for; the last ones are cut if need be."""
    cells = [head, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    kept = [i for i, name in enumerate(head) if name not in hidden]

    def needed() -> int:
        return sum(widths[i] for i in kept) + len(_GAP) * (len(kept) - 1)

    for name in _FIRST_OUT if width else ():
        if width is not None and needed() > width and name in head:
            kept = [i for i in kept if head[i] != name]
    lines = []
    for row in cells:
        texts = [
            row[i].ljust(widths[i]) if head[i] in _LEFT else row[i].rjust(widths[i]) for i in kept
        ]
        line = _GAP.join(texts).rstrip()
        lines.append(_cut(line, width) if width else line)
    return lines


def _totals(profiles: Sequence[KernelProfile], run: RunInfo, total: float) -> list[str]:
    ran = [p for p in profiles if p.spans]
    makespan = (max(p.end_ns for p in ran) - min(p.start_ns for p in ran)) / 1e9 if ran else 0.0
    values = ", ".join(f"{name}={value}" for name, value in run.variables.items())
    times = f"sum {total * 1e6:.2f} us, makespan {makespan * 1e6:.2f} us"
    if run.is_of_plan:
        lines = [
            f"{times}, {len(profiles)} ops in {run.num_steps} steps, {run.num_shared_steps} of "
            f"them shared, {run.num_barriers} barriers, {run.threads} threads on {run.device}"
            + (f", {values}" if values else "")
        ]
    else:
        lines = [f"{times}, {len(profiles)} submissions to {len(run.tracks)} lanes"]
    if run.runs > 1:
        least, most = min(run.makespans, default=0.0), max(run.makespans, default=0.0)
        lines.append(
            f"medians of {run.runs} runs, whose makespans were {least * 1e6:.2f} to "
            f"{most * 1e6:.2f} us; +- is half of what lies between the least and the most"
        )
    disturbed = sum(bool(p.preempted) for p in profiles)
    if disturbed:
        lines.append(
            f"p: {disturbed} ops were preempted (another program had the core) in so many runs, "
            "which do not count"
        )
    if run.skipped:
        lines.append(f"{len(run.skipped)} ops skipped: only outputs need them that nobody fetched")
    if run.num_unrecorded:
        lines.append(f"{run.num_unrecorded} calls of ops not recorded: the log was full")
    if run.limits is not None:
        lines.append(
            f"measured limits with {run.limits.threads} threads: "
            f"{run.limits.flops_per_s / 1e9:.0f} GFLOP/s (float32), "
            f"{run.limits.bytes_per_s / 1e9:.1f} GB/s; cache: faster than memory, so from a cache"
        )
    return lines
