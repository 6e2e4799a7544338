"""The report of a profiled run: a list of records that can show itself.

    execute_profiled()  -->  ProfileReport  -->  table, JSON, Chrome trace, HTML page

It is a plain list of `KernelProfile` in order of execution, so that a loop over it is all
one needs; everything about the run as a whole stands in `run`. Reports hold no plan and no
buffers: they can be kept, compared and written long after the plan is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from semel.plan.report.html import html_block, html_table
from semel.plan.report.lanes import LaneProfile, lane_profiles
from semel.plan.report.layers import LayerProfile, NameProfile, by_layer, by_name
from semel.plan.report.records import KernelProfile, RunInfo, live_bytes
from semel.plan.report.table import format_table
from semel.plan.report.trace import chrome_trace

#: Named as text, like a device: only who writes a page pays for what writing it needs.
_PAGE = "semel.plan.report.page"
#: Names that notebooks show.
_SHOWN = 12


class ProfileReport(list[KernelProfile]):
    """Every operation of one run, in order; `run` says what holds for all of it."""

    def __init__(self, profiles: Iterable[KernelProfile], run: RunInfo) -> None:
        super().__init__(profiles)
        self.run = run

    @property
    def sum_seconds(self) -> float:
        """The times of all operations added up: more than the makespan if they overlap."""
        return sum(p.elapsed for p in self)

    @property
    def makespan_seconds(self) -> float:
        """From the first start to the last end."""
        ran = [p for p in self if p.spans]
        if not ran:
            return 0.0
        return (max(p.end_ns for p in ran) - min(p.start_ns for p in ran)) / 1e9

    @property
    def live_bytes(self) -> list[int]:
        """Used bytes of the arena while each operation runs."""
        return live_bytes(self.run.arena, len(self))

    @property
    def lanes(self) -> list[LaneProfile]:
        """What each lane of each device did: how long it was busy, waited, and copied what."""
        return lane_profiles(self, self.run)

    @property
    def layers(self) -> list[LayerProfile]:
        """The run in order, with layers that are equal as one."""
        return by_layer(self)

    @property
    def names(self) -> list[NameProfile]:
        """Operations of one name as one, what takes longest first."""
        return by_name(self)

    def table(self, top: int | None = None, width: int | None = None) -> str:
        """Aligned text for people; with `top`, only the longest operations; at most so wide."""
        return format_table(self, self.run, top, width)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        runs = "" if self.run.runs == 1 else f", median of {self.run.runs} runs"
        longest = max(self, key=lambda p: p.elapsed, default=None)
        most = "" if longest is None else f"; longest: {longest.name}"
        return (
            f"ProfileReport({len(self)} ops on {self.run.device}, "
            f"{self.makespan_seconds * 1e6:.2f} us{runs}{most})"
        )

    def _repr_html_(self) -> str:
        return profile_html(self, repr(self))

    def json(self) -> dict[str, Any]:
        """Plain data for scripts: the run, its totals, and one entry per operation."""
        run = asdict(self.run)
        run["variables"] = dict(self.run.variables)
        return {
            "run": run,
            "sum_seconds": self.sum_seconds,
            "makespan_seconds": self.makespan_seconds,
            "live_bytes": self.live_bytes,
            "layers": [asdict(layer) for layer in self.layers],
            "names": [asdict(name) for name in self.names],
            "lanes": [{**asdict(lane), "device": lane.device} for lane in self.lanes],
            "ops": [p.json() for p in self],
        }

    def chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write a trace that Perfetto and chrome://tracing open."""
        Path(path).write_text(json.dumps(chrome_trace(self, self.run)), "utf-8")

    def html(self, path: str | PathLike[str]) -> None:
        """Write one page with timeline, arena map, roofline and sources; it works offline."""
        page: Any = import_module(_PAGE)
        Path(path).write_text(page.render_page(self.json(), self), "utf-8")


def profile_html(report: ProfileReport, line: str) -> str:
    """Layers if there are any, and what takes longest by name, for notebooks."""
    total = report.sum_seconds or 1.0
    tables = []
    layers = report.layers
    if any(layer.count > 1 for layer in layers):
        rows = [
            (f"{x.elapsed / total:.1%}", f"{x.elapsed * 1e6:.2f}", f"{x.first}-{x.last}", x.label)
            for x in layers
        ]
        tables.append(html_table("by layer", ("share", "us", "ops", "what"), rows))
    rows = [
        (f"{x.elapsed / total:.1%}", f"{x.elapsed * 1e6:.2f}", str(x.count), x.name)
        for x in report.names[:_SHOWN]
    ]
    tables.append(html_table("by kernel", ("share", "us", "times", "name"), rows))
    return html_block(line, tables, "report.html(path) writes a page with all of it.")
