"""`semel bench`: how long runs take, at each size that is asked for.

    model, sizes, threads  -->  rows: p50, p90, p99, kernels against host  -->  text, md, csv, JSON

A run is a call as a program makes it: arrays in, arrays out. Beside it stands what its kernels need
at best, from the profiler; what is left of the fastest call is the host's: checks, copies, Python.
With `--compare`, both programs take turns in blocks of some milliseconds, so that a busy moment of
the machine meets both.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from semel.cli.compare import PEERS, Peer, check_comparable, open_peer, run_peer
from semel.cli.grammar import (
    Commands,
    add_choices,
    add_command,
    add_inputs,
    add_target,
    parse_grid,
    parse_threads,
)
from semel.cli.loaded import LoadedTarget, load_target
from semel.cli.progress import working
from semel.cli.report import Section, format_seconds, show
from semel.devices.cpu.toolchain import available_cores
from semel.errors import UnsupportedError

_BLOCK_S = 0.02
_FEWEST_RUNS = 10
_PROFILED_RUNS = 10
_FORMATS = ("text", "md", "csv", "json")


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one call, over so many of them."""

    runs: int
    least: float
    p50: float
    p90: float
    p99: float
    mean: float

    @staticmethod
    def of(samples: Sequence[float]) -> Times:
        """The times of these samples."""
        p50, p90, p99 = (float(p) for p in np.percentile(samples, (50, 90, 99)))
        return Times(len(samples), min(samples), p50, p90, p99, float(np.mean(samples)))


@dataclass(frozen=True, slots=True)
class Kernels:
    """What the kernels of a run take at best; `longest` is one of them, `share` its part."""

    seconds: float
    count: int
    longest: str
    share: float


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One point of the grid; `kernels` is None if nothing of the model is compiled."""

    threads: int
    sizes: dict[str, int]
    times: Times
    kernels: Kernels | None
    compile_count: int
    other: Times | None

    @property
    def host_seconds(self) -> float | None:
        """What the fastest call spends outside of kernels."""
        if self.kernels is None:
            return None
        return max(self.times.least - self.kernels.seconds, 0.0)

    @property
    def ratio(self) -> float | None:
        """Our median as a share of the other program's."""
        return None if self.other is None else self.times.p50 / self.other.p50


def run(arguments: argparse.Namespace) -> int:
    """The command: measure every point, show them, and say what to do next."""
    rows = list(_measure_all(arguments))
    advice = advise(rows)
    form = "json" if arguments.json else arguments.format
    match form:
        case "json":
            print(json.dumps(_record(arguments, rows, advice), indent=2))
        case "csv":
            print(as_csv(rows), end="")
        case "md":
            print(as_markdown(rows, arguments.compare))
            print(f"\n{advice}")
        case _:
            fewest = min(row.times.runs for row in rows)
            title = f"{arguments.target}, at least {fewest} runs each"
            head = tuple(_heads(rows, arguments.compare))
            cells = tuple(tuple(_cells(row)) for row in rows)
            show([Section(title, cells, head, (advice,))])
    return 0


def _measure_all(arguments: argparse.Namespace) -> Iterator[BenchRow]:
    grid = parse_grid(arguments.dim)
    check_comparable(arguments)
    for threads in arguments.threads or [None]:
        target = load_target(arguments, threads)
        peer = None
        if arguments.compare:
            peer = open_peer(arguments.compare, target.name, threads)
        points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        for i, sizes in enumerate(points):
            shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
            with working(f"bench {target.name}") as say:
                say(f"{shown or 'as it is'}, {i + 1} of {len(points)}")
                yield _measure(target, arguments, sizes, peer)


def _measure(
    target: LoadedTarget, arguments: argparse.Namespace, sizes: Mapping[str, int], peer: Peer | None
) -> BenchRow:
    inputs = target.inputs(arguments.input, sizes, arguments.seed)
    calls = [target.call(inputs, sizes)]
    calls[0]()
    if peer is not None:
        run_peer(arguments.compare, peer, inputs)
        calls.append(lambda: peer(inputs))
    samples = rotate(calls, arguments.seconds, arguments.warm_up, arguments.runs)
    own, *others = [Times.of(each) for each in samples]
    threads, kernels = _profile(target, inputs)
    return BenchRow(
        threads=threads,
        sizes=target.sizes(inputs, sizes),
        times=own,
        kernels=kernels,
        compile_count=target.compile_count,
        other=others[0] if others else None,
    )


def rotate(
    calls: Sequence[Callable[[], Any]], seconds: float, warm_up: int, runs: int | None
) -> list[list[float]]:
    """Seconds of each call, measured in turns: so many runs, or for so long."""
    for call in calls:
        for _ in range(warm_up):
            call()
    samples: list[list[float]] = [[] for _ in calls]
    clock = time.perf_counter
    while not all(_is_enough(each, seconds, runs) for each in samples):
        for call, found in zip(calls, samples, strict=True):
            end = clock() + _BLOCK_S
            while True:
                begin = clock()
                call()
                now = clock()
                found.append(now - begin)
                if now >= end or len(found) == runs:
                    break
    return samples


def _is_enough(samples: list[float], seconds: float, runs: int | None) -> bool:
    if runs is not None:
        return len(samples) >= runs
    return len(samples) >= _FEWEST_RUNS and sum(samples) >= seconds


def _profile(target: LoadedTarget, inputs: Mapping[str, Any]) -> tuple[int, Kernels | None]:
    try:
        plan = target.plan_for(inputs)
    except UnsupportedError:
        return 1, None  # all of it is on the host
    report = plan.execute_profiled(limits=False, runs=_PROFILED_RUNS)
    ran = sorted(report, key=lambda op: op.elapsed, reverse=True)
    longest = ran[0].name if ran else ""
    share = ran[0].elapsed / max(report.sum_seconds, 1e-12) if ran else 0.0
    return plan.threads, Kernels(report.makespan_seconds, len(ran), longest, share)


def advise(rows: Sequence[BenchRow]) -> str:
    """One line: what would help most."""
    row = max(rows, key=lambda row: row.times.p50)
    times, kernels, host = row.times, row.kernels, row.host_seconds
    if kernels is None or host is None:
        return "Nothing of this model is compiled: it works on text or images on the host."
    if row.compile_count > 1:
        return (
            f"It was compiled {row.compile_count} times: inputs decide what is computed; "
            "--freeze those that never change."
        )
    if host > kernels.seconds:
        return (
            f"The call costs more than its kernels ({format_seconds(host)} of "
            f"{format_seconds(times.least)}): run larger batches, or `run_slots` and `bind_input`."
        )
    if times.p90 > 1.5 * times.p50:
        return "Times spread widely: the machine is busy, or has more threads than cores."
    if row.threads == 1 and available_cores() > 1 and times.p50 > 1e-3:
        return f"One of {available_cores()} cores is used: try --threads {available_cores()}."
    if kernels.share > 0.3:
        return (
            f"{kernels.longest} takes {kernels.share:.0%} of {kernels.count} kernels' time: "
            "see `semel profile`, or compile with --tune."
        )
    return f"The time is spread over {kernels.count} kernels: `semel profile` shows them."


# ---------------------------------------------------------------- text


def _heads(rows: Sequence[BenchRow], peer: str | None) -> list[str]:
    own = [*rows[0].sizes, "threads", "p50", "p90", "p99", "kernels", "host"]
    return [*own, f"{peer} p50", "ratio"] if peer else own


def _cells(row: BenchRow) -> list[str]:
    times = row.times
    found = [str(size) for size in row.sizes.values()]
    found += [str(row.threads), *(format_seconds(t) for t in (times.p50, times.p90, times.p99))]
    if row.kernels is None or row.host_seconds is None:
        found += ["-", "-"]
    else:
        found += [format_seconds(row.kernels.seconds), format_seconds(row.host_seconds)]
    if row.other is not None:
        found += [format_seconds(row.other.p50), f"{row.ratio:.2f}"]
    return found


def as_markdown(rows: Sequence[BenchRow], peer: str | None) -> str:
    """A table for a README or a bug report."""
    head = _heads(rows, peer)
    lines = [head, ["---:"] * len(head), *(_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_csv(rows: Sequence[BenchRow]) -> str:
    """A line for each point, in seconds."""
    flat = [_flat(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: BenchRow) -> dict[str, Any]:
    found: dict[str, Any] = {**row.sizes, "threads": row.threads, **asdict(row.times)}
    found["kernel_seconds"] = None if row.kernels is None else row.kernels.seconds
    found["host_seconds"] = row.host_seconds
    if row.other is not None:
        found |= {"other_p50": row.other.p50, "ratio": row.ratio}
    return found


def _record(arguments: argparse.Namespace, rows: Sequence[BenchRow], advice: str) -> dict[str, Any]:
    return {
        "target": arguments.target,
        "compare": arguments.compare,
        "rows": [
            {**asdict(row), "host_seconds": row.host_seconds, "ratio": row.ratio} for row in rows
        ],
        "advice": advice,
    }


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "measure how long runs take, at one size or at many, beside another program"
    parser = add_command(commands, "bench", text, run)
    add_target(parser)
    add_inputs(parser, is_grid=True)
    add_choices(parser, threads=False)
    parser.add_argument(
        "--threads", type=_thread_list, metavar="N,N...", help="default: all our cores"
    )
    parser.add_argument("--compare", choices=PEERS, help="measure that too, in turns")
    parser.add_argument("--seconds", type=_positive, default=1.0, metavar="S", help="per point; 1")
    parser.add_argument("--runs", type=_count, metavar="N", help="so many, however long it takes")
    parser.add_argument("--warm-up", type=_count, default=5, metavar="N", help="runs before; 5")
    parser.add_argument("--format", choices=_FORMATS, default="text", help="default: text")


def _thread_list(text: str) -> list[int]:
    return [parse_threads(part) for part in text.split(",")]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, got {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"must be seconds in (0, 3600], got {text!r}")
    return seconds
