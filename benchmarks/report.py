"""Results as a table for people and as JSON for scripts.

    RowResult...  --judge-->  Verdict...  --table, document-->  text, JSON

Ratios are Semel's time over the best peer's: below 1 Semel is faster. A bar that no peer ran for
is not judged.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.driver import VARIANT, RowResult, Timing
from benchmarks.experts import ExpertTable
from benchmarks.graphs import GraphRow
from benchmarks.peers import NAMES
from benchmarks.plan import PlanRow
from benchmarks.prepare import PrepareRow
from benchmarks.rows import ROWS
from semel.devices import choose_target

FORMAT = 1
_TIE = 1.05  # two runs on a quiet machine differ by about this much


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row judged: ratio to the best peer, its name, whether the bar is met, of the limit.

    `against` is Semel's time over that of each variant of it.
    """

    row: str
    threads: int
    ratio: float | None
    best_peer: str
    met: str  # yes, no, tie, or - where nothing can be said
    share: float | None
    against: Mapping[str, float] = field(default_factory=dict)


def judge(results: Sequence[RowResult]) -> list[Verdict]:
    """A verdict for every result, in order."""
    known = {(r.row, r.threads): r for r in results}
    return [_judge(result, known) for result in results]


def _judge(result: RowResult, known: Mapping[tuple[str, int], RowResult]) -> Verdict:
    row = ROWS[result.row]
    times = {p: _time(t, row.statistic) for p, t in result.timings.items() if not t.error}
    ours = times.pop("semel", None)
    if ours is None:
        return Verdict(row.name, result.threads, None, "", "no", None)
    against = {peer: ours / times.pop(peer) for peer in list(times) if VARIANT in peer}
    best = min(times, key=lambda peer: times[peer], default="")
    bounds: list[float] = []
    for kind, key, amount in row.bar.limits:
        other = known.get((key, result.threads))
        if kind == "time":
            bounds.append(amount)
        elif kind == "best" and best and key in ("", str(result.threads)):
            bounds.append(times[best] * amount)
        elif kind == "share" and row.bound in result.limits and key in ("", str(result.threads)):
            bounds.append(row.traffic / (result.limits[row.bound] * amount))
        elif kind in ("row", "times") and other and not other.timings["semel"].error:
            found = _time(other.timings["semel"], row.statistic)
            bounds.append(found + amount if kind == "row" else found * amount)
    rate = result.limits.get(row.bound)
    return Verdict(
        row.name,
        result.threads,
        ours / times[best] if best else None,
        best,
        _met(ours, bounds),
        row.traffic / result.timings["semel"].p10 / rate if rate else None,
        against,
    )


def _met(ours: float, bounds: Sequence[float]) -> str:
    if not bounds:
        return "-"
    if ours <= min(bounds):
        return "yes"
    return "tie" if ours <= min(bounds) * _TIE else "no"


def _time(timing: Timing, statistic: str) -> float:
    return timing.p10 if statistic == "p10" else timing.median


# -------------------------------------------------------------------------------- text


def table(results: Sequence[RowResult]) -> str:
    """All results, aligned; times are median/p10 in microseconds."""
    peers = [n for n in NAMES if any(n in r.timings for r in results)]
    variants = list(dict.fromkeys(n for r in results for n in r.timings if VARIANT in n))
    held = [f"/ {variant.partition(VARIANT)[2]}" for variant in variants]
    head = ["row", "thr", *peers, *variants]
    head += ["ratio", "best peer", "bar", "met", "of limit", *held]
    lines = [head]
    for result, verdict in zip(results, judge(results), strict=True):
        row = ROWS[result.row]
        lines.append(
            [
                row.title,
                str(result.threads),
                *(_cell(result.timings.get(peer)) for peer in (*peers, *variants)),
                _ratio(verdict.ratio),
                verdict.best_peer or "-",
                row.bar.text or "-",
                verdict.met,
                "-" if verdict.share is None else f"{verdict.share:.0%}",
                *(_ratio(verdict.against.get(variant)) for variant in variants),
            ]
        )
    text = align(lines)
    errors = [
        f"{ROWS[r.row].title}, {peer}: {timing.error}"
        for r in results
        for peer, timing in r.timings.items()
        if timing.error
    ]
    notes = [
        "Times in us, median/p10. Calls are judged by medians, throughput by p10. "
        "met = tie: within 5 %."
    ]
    return "\n".join([text, *notes, *errors])


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _cell(timing: Timing | None) -> str:
    if timing is None:
        return "-"
    if timing.error:
        return "failed"
    return f"{_short(timing.median * 1e6)}/{_short(timing.p10 * 1e6)}"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def align(lines: Sequence[Sequence[str]]) -> str:
    """Rows of cells as columns: text to the left, all but the first column to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = []
    for line in lines:
        cells = [
            c.rjust(w) if i else c.ljust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


def limits_line(results: Sequence[RowResult]) -> str:
    """The best rates of the machine seen during the run, per thread count."""
    lines = []
    for threads in sorted({r.threads for r in results if r.limits}):
        limits = [r.limits for r in results if r.threads == threads and r.limits]
        best = {key: max(limit[key] for limit in limits) / 1e9 for key in limits[0]}
        lines.append(
            f"limits, {threads} thread{'s' if threads > 1 else ''}: {best['fma']:.0f} GFLOP/s, "
            f"read {best['read']:.1f} GB/s, copy {best['copy']:.1f} GB/s"
        )
    return "\n".join(lines)


# -------------------------------------------------------------------------------- JSON


def document(
    results: Sequence[RowResult],
    versions: Mapping[str, str],
    startup: Mapping[str, float],
    plan: Sequence[PlanRow] = (),
    prepare: Sequence[PrepareRow | GraphRow] = (),
    experts: Sequence[ExpertTable] = (),
) -> dict[str, Any]:
    """Everything measured, with what is needed to repeat it."""
    return {
        "format": FORMAT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.machine()}",
            "target": choose_target("cpu").name,
        },
        "versions": {"python": platform.python_version(), **versions},
        "commit": git_commit(),
        "startup_seconds": dict(startup),
        "plan": [asdict(row) for row in plan],
        "prepare": [asdict(row) for row in prepare],
        "experts": [asdict(table) for table in experts],
        "results": [asdict(r) for r in results],
        "verdicts": [asdict(v) for v in judge(results)],
    }


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def git_commit() -> str:
    """The checked-out commit, with + if files differ from it; empty outside a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if commit and git("status", "--porcelain") else "")
    except OSError:
        return ""
