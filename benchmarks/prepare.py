"""From weights in a file to the first result: seconds and peak memory, in new processes.

    rounds  --measure_prepare-->  PrepareRow per model and way  --prepare_lines-->  rows of cells

Four ways to start: ONNX Runtime from an .onnx file, and Semel with an empty kernel cache, with a
full one and from a plan file. Each is a process of its own (`benchmarks.prepare_worker`) that
has its libraries imported when the clock starts, reads its weights from a file, gets ready,
runs once, and tells the seconds of both and the most memory it held. Ways take turns, so that
all see the same machine. A plan file is judged by the time to get ready: the first run of a model
is no faster than its others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

MODELS = ("minilm", "resnet50")
WAYS = {
    "onnxruntime": "onnxruntime",
    "cold": "empty cache",
    "warm": "full cache",
    "file": "plan file",
}
#: Seconds by way: to the first result, from a plan file until ready.
_SECONDS = {
    "minilm": {"cold": 1.0, "warm": 0.25, "file": 0.02},
    "resnet50": {"cold": 1.5, "warm": 0.4, "file": 0.03},
}
#: MiB more than onnxruntime that are allowed; both models have more than 50 MiB of weights.
_MIB_OVER = {"cold": 150.0, "warm": 0.0, "file": 0.0}


@dataclass(frozen=True, slots=True)
class Start:
    """One process: seconds until ready, seconds of the first run, the most MiB held."""

    ready: float
    first_run: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class PrepareRow:
    """One model started in one way, and what it must not exceed; None where nothing must hold."""

    model: str
    way: str
    start: Start
    seconds_bar: float | None = None
    mib_bar: float | None = None

    @property
    def judged_seconds(self) -> float:
        return self.start.ready + (0.0 if self.way == "file" else self.start.first_run)

    @property
    def met(self) -> str:
        pairs = ((self.judged_seconds, self.seconds_bar), (self.start.peak_mib, self.mib_bar))
        judged = [value <= bar for value, bar in pairs if bar is not None]
        return "-" if not judged else "yes" if all(judged) else "no"


def measure_prepare(rounds: int = 5) -> list[PrepareRow]:
    """Every model in every way: the least of some processes, number by number."""
    ways = [way for way in WAYS if way != "onnxruntime" or find_spec("onnxruntime")]
    rows: list[PrepareRow] = []
    for model in MODELS:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder:
            _run("files", model, folder)
            turns = [{way: _run(way, model, folder) for way in ways} for _ in range(rounds)]
        best = {way: _least([turn[way] for turn in turns]) for way in ways}
        rows += [judge_start(model, way, best[way], best.get("onnxruntime")) for way in ways]
    return rows


def _least(starts: Sequence[Start]) -> Start:
    return Start(
        min(s.ready for s in starts),
        min(s.first_run for s in starts),
        min(s.peak_mib for s in starts),
    )


def judge_start(model: str, way: str, start: Start, peer: Start | None) -> PrepareRow:
    """A row with its bars; memory is compared with the peer's, if that ran."""
    if way == "onnxruntime":
        return PrepareRow(model, way, start)
    limit = None if peer is None else peer.peak_mib + _MIB_OVER[way]
    return PrepareRow(model, way, start, _SECONDS[model][way], limit)


def prepare_lines(rows: Sequence[PrepareRow]) -> list[list[str]]:
    """The numbers beside their bars, as rows of cells."""
    lines = [["prepare", "ready s", "first run s", "bar s", "peak MiB", "bar MiB", "met"]]
    for row in rows:
        start = row.start
        bars = ["-" if row.seconds_bar is None else f"{row.seconds_bar:g}",
                "-" if row.mib_bar is None else f"{row.mib_bar:.0f}"]  # fmt: skip
        cells = [f"{row.model}, {WAYS[row.way]}", f"{start.ready:.3f}", f"{start.first_run:.3f}"]
        lines.append([*cells, bars[0], f"{start.peak_mib:.0f}", bars[1], row.met])
    return lines


def _run(way: str, model: str, folder: str) -> Start:
    command = [sys.executable, "-m", "benchmarks.prepare_worker", way, model, folder]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-800:]}")
    return Start(*json.loads(done.stdout))
