"""`semel demo`: one transformer, prepared once, executed at many lengths, every number checked.

    threads, quick  --run_demo-->  DemoReport  --sections-->  text

The report says what happened rather than what should: seconds by stage with a cold and with
a warm kernel cache, kernels with and without fusion, memory shared against not shared, and
for every length the time, the error against the NumPy reference, and the rates reached
beside the limits measured on the same machine a moment later. The exit code is 0 only if
every check holds; speed is shown and never a check.

Both starts are real: each is a new process, the first with an empty cache directory and the
second with what the first left there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from semel.cli.encoder import QUICK, EncoderSize, example_input
from semel.cli.prepare import Prepared, prepare_encoder, prepare_in_new_process
from semel.cli.report import Section, format_bytes, show
from semel.config import override
from semel.devices.cpu.limits import Limits, measure_limits
from semel.ir import expr
from semel.ops.evaluate import evaluate
from semel.ops.outputs import copy_leaf_outputs
from semel.passes import run_passes
from semel.plan.plan import ExecutionPlan
from semel.schedule.groups import build_schedule

# Two float32 sums of a thousand products in different orders differ by about this much.
TOLERANCE = 2e-4
COLD_BAR_S, WARM_BAR_S = 3.0, 0.5
_COUNTED_RUNS = 100


@dataclass(frozen=True, slots=True)
class LengthResult:
    """One sequence length: seconds per execute (median), work done, and the largest error."""

    length: int
    seconds: float
    flops: int
    bytes: int
    max_error: float


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything the demo found out."""

    model: str
    threads: int
    cold_seconds: dict[str, float]
    warm_seconds: dict[str, float]
    nodes: int
    kernels: int
    distinct_kernels: int
    unfused_kernels: int
    weights_bytes: int
    arena_bytes: int
    naive_bytes: int
    lengths: tuple[LengthResult, ...]
    executes: int
    compile_count: int
    allocated_bytes: int
    limits: Limits

    @property
    def checks(self) -> dict[str, bool]:
        """What must hold, by sentence."""
        return {
            f"every output within {TOLERANCE:.0e} of the NumPy reference": all(
                r.max_error <= TOLERANCE for r in self.lengths
            ),
            "compiled exactly once": self.compile_count == 1,
            f"{_COUNTED_RUNS} executes leave no allocation behind": self.allocated_bytes == 0,
        }


def run(arguments: argparse.Namespace) -> int:
    """The command: show the report; 0 if every check holds."""
    report = run_demo(threads=arguments.threads, quick=arguments.quick)
    if arguments.json:
        print(json.dumps({**asdict(report), "checks": report.checks}, indent=2))
    else:
        show(sections(report))
    failed = [text for text, holds in report.checks.items() if not holds]
    for text in failed:
        print(f"semel demo: a check failed: {text}.", file=sys.stderr)
    return 1 if failed else 0


def run_demo(*, threads: int | None = None, quick: bool = False) -> DemoReport:
    """Prepare, execute, check and measure; takes some seconds, half of it with `quick`."""
    size = QUICK if quick else EncoderSize()
    with (
        tempfile.TemporaryDirectory(prefix="semel-demo-") as folder,
        override(cache=True, cache_dir=Path(folder)),
    ):
        cold = prepare_in_new_process(size, Path(folder), threads)
        warm = prepare_in_new_process(size, Path(folder), threads)
        prepared = prepare_encoder(size, threads)
    plan, program = prepared.plan, prepared.program
    lengths = [n for n in (1, 16, 37, 64, 128) if n <= size.max_length]
    counter = _Counter(plan)
    results = tuple(
        measure_length(prepared, size, n, counter, seconds=0.05 if quick else 0.25)
        for n in (lengths[::2] if quick else lengths)
    )
    memory = plan.memory
    return DemoReport(
        model=str(size),
        threads=plan.threads,
        cold_seconds=cold,
        warm_seconds=warm,
        nodes=sum(node.op.kind != "leaf" for node in prepared.graph.nodes),
        kernels=len(plan.prepared_kernels),
        distinct_kernels=len(program.kernels),
        unfused_kernels=unfused_kernels(prepared),
        weights_bytes=memory.weights_bytes,
        arena_bytes=memory.arena_bytes,
        naive_bytes=memory.naive_bytes,
        lengths=results,
        allocated_bytes=allocated_bytes(counter),
        executes=counter.executes,
        compile_count=plan.compile_count,
        limits=measure_limits(plan.threads),
    )


class _Counter:
    """Executes a plan and keeps count."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._execute = plan.execute
        self.executes = 0

    def run(self, times: int) -> float:
        """Seconds per execute over `times` of them."""
        execute = self._execute
        start = time.perf_counter()
        for _ in repeat(None, times):
            execute()
        self.executes += times
        return (time.perf_counter() - start) / times


def measure_length(
    prepared: Prepared, size: EncoderSize, length: int, counter: _Counter, *, seconds: float
) -> LengthResult:
    """Rebind to `length`, compare one result with the reference, then time repeats."""
    x = example_input(size, length)
    output = prepared.plan(x=x)
    (reference,) = evaluate(prepared.graph, {"x": x})
    once = max(counter.run(1), 1e-7)
    # Blocks of about a millisecond: long enough to time, short enough to take a median of.
    block = max(1, int(1e-3 / once))
    blocks = max(5, int(seconds / (once * block)))
    median = statistics.median(counter.run(block) for _ in range(blocks))
    flops, moved = work(prepared.plan, {"seq": length})
    return LengthResult(length, median, flops, moved, float(np.max(np.abs(output - reference))))


def work(plan: ExecutionPlan, values: Mapping[str, int]) -> tuple[int, int]:
    """Floating-point operations and bytes that the plan's kernels need at these values."""
    flops = moved = 0
    for op in plan.prepared_kernels:
        signature = op.kernel.signature
        own = {
            variable.name: values[outer.name]
            for variable, outer in zip(signature.variables, op.runtime_vars, strict=True)
        }
        flops += expr.evaluate(signature.flops, own)
        moved += expr.evaluate(signature.bytes, own)
    return flops, moved


def unfused_kernels(prepared: Prepared) -> int:
    """How many kernels the same graph takes when every op is one of its own."""
    graph = copy_leaf_outputs(run_passes(copy_leaf_outputs(prepared.graph)))
    return len(build_schedule(graph, fusion=False).groups)


def allocated_bytes(counter: _Counter) -> int:
    """Python memory that a hundred executes leave behind, as tracemalloc sees it."""
    counter.run(1)
    tracemalloc.start()
    try:
        counter.run(_COUNTED_RUNS)  # the first traced run pays for tracing itself
        before, _ = tracemalloc.get_traced_memory()
        counter.run(_COUNTED_RUNS)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return max(after - before, 0)


# ------------------------------------------------------------------------------- text


def sections(report: DemoReport) -> list[Section]:
    """The report as tables for people."""
    return [
        _model_section(report),
        _prepare_section(report),
        _execute_section(report),
        _check_section(report),
    ]


def _model_section(report: DemoReport) -> Section:
    threads = f"{report.threads} thread{'s' if report.threads > 1 else ''}"
    title = f"semel demo: a transformer encoder, {threads}"
    saved = report.naive_bytes / max(report.arena_bytes, 1)
    rows = (
        ("model", report.model),
        ("sequence", "a variable, seq in [1, 128]: rebound at run time, never recompiled"),
        (
            "fusion",
            f"{report.nodes} ops -> {report.kernels} kernels "
            f"({report.distinct_kernels} distinct); {report.unfused_kernels} without fusion",
        ),
        (
            "memory",
            f"{format_bytes(report.naive_bytes)} -> {format_bytes(report.arena_bytes)} "
            f"for intermediates ({saved:.1f}x less), {format_bytes(report.weights_bytes)} weights",
        ),
    )
    return Section(title, rows)


def _prepare_section(report: DemoReport) -> Section:
    def row(name: str, *seconds: float) -> tuple[str, ...]:
        return (name, *(f"{s * 1e3:.1f} ms" for s in seconds))

    warm = report.warm_seconds
    rows = [row(stage, s, warm.get(stage, 0.0)) for stage, s in report.cold_seconds.items()]
    rows.append(row("total", sum(report.cold_seconds.values()), sum(warm.values())))
    rows.append(row("bar", COLD_BAR_S, WARM_BAR_S))
    return Section(
        "prepare, once",
        tuple(rows),
        ("stage", "cold cache", "warm cache"),
        ("both in a new process; warm: the kernels are on disk",),
    )


def _execute_section(report: DemoReport) -> Section:
    limits = report.limits
    rows = tuple(
        (
            str(r.length),
            f"{r.seconds * 1e6:.1f}",
            f"{r.flops / r.seconds / 1e9:.1f}",
            f"{r.flops / r.seconds / limits.flops_per_s:.0%}",
            f"{r.bytes / r.seconds / 1e9:.1f}",
            f"{r.bytes / r.seconds / limits.read_bytes_per_s:.0%}",
            f"{r.max_error:.1e}",
        )
        for r in report.lengths
    )
    return Section(
        "execute, many times",
        rows,
        ("seq", "us", "GFLOP/s", "of peak", "GB/s", "of read", "max error"),
        (
            f"limits measured here: {limits.flops_per_s / 1e9:.0f} GFLOP/s, "
            f"read {limits.read_bytes_per_s / 1e9:.1f} GB/s, "
            f"copy {limits.copy_bytes_per_s / 1e9:.1f} GB/s",
            "bytes count every kernel's arguments once; above 100 % they come from the caches",
        ),
    )


def _check_section(report: DemoReport) -> Section:
    rows = tuple(("ok  " if holds else "FAIL", text) for text, holds in report.checks.items())
    return Section(
        f"checks, after {report.executes:,} executes",
        rows,
        notes=("", "Next: `semel doctor` says what Semel sees of this machine."),
    )
