"""What lanes cost: to submit, to wait for the result, to hand work from one lane to another.

    measure_devices()  -->  PlanRow...

The work is a kernel of a few nanoseconds. Lanes are those of the two halves of the machine and are
awake, as between two runs of a loop; the caller stays on the first half. Times are the best of
many, both sides of a difference are measured in turn. On one core lanes share it, and what they
cost is what a switch of threads does.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks.plan import PlanRow
from semel.executor.executor import UnifiedExecutor
from semel.executor.ticket import Ticket
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.plan import ExecutionPlan
from semel.plan.rows import PreparedCopy
from semel.runtime.buffer import Buffer
from semel.runtime.device import find_device
from semel.runtime.native_lane import NativeLane
from semel.runtime.timeline import TimelineSignal
from semel.tensor.tensor import Tensor

_ROUNDS = 4000
_HOPS = 100
#: Layers that are streamed: what they compute takes longer than to read their weights.
_STREAMED, _STREAMED_ROWS, _WIDTH = 8, 256, 1024
_STREAM_ROUNDS = 20


def rows() -> dict[str, Callable[[], PlanRow]]:
    """Every measurement by name."""
    return {
        "submit": _submit,
        "wait": _wait,
        "result": _result,
        "hop": _hop,
        "joint": _joint,
        "stream": _stream,
    }


def measure_devices(names: list[str] | None = None) -> list[PlanRow]:
    """Measure the rows of these names, or all."""
    before = os.sched_getaffinity(0)
    # Both, before the caller is moved: they are parts of what it may use.
    here, _ = (find_device(f"cpu:{k}").cpus for k in range(2))
    os.sched_setaffinity(0, here)
    try:
        return [measure() for name, measure in rows().items() if names is None or name in names]
    finally:
        os.sched_setaffinity(0, before)


def _lane(index: int) -> NativeLane:
    """A lane on its part of the machine, which has begun."""
    lane = NativeLane(f"lane{index}", find_device(f"cpu:{index}").cpus)
    lane.timeline.wait(lane.submit_call(int))
    return lane


def _small(device: str = "cpu") -> ExecutionPlan:
    plan = (Tensor.input("x", (8,), "float32") + 1).prepare(device=device, threads=1)
    plan(x=np.zeros(8, np.float32))
    return plan


def _submit() -> PlanRow:
    """What an executor takes of its caller's time."""
    plan, best = _small("cpu:1"), 1 << 60
    with UnifiedExecutor() as executor:
        executor.add_device("cpu:1")
        for _ in range(_ROUNDS):
            start = time.perf_counter_ns()
            ticket = executor.submit(plan)
            best = min(best, time.perf_counter_ns() - start)
            ticket.wait()
    return PlanRow("submit a plan to an awake lane", best / 1e3, "us", 3)


def _wait() -> PlanRow:
    return _beyond_execute("submit and wait, beyond execute", Ticket.wait)


def _result() -> PlanRow:
    """An executor's ticket, and a copy of what its run gave."""
    return _beyond_execute("submit and result, beyond execute", Ticket.result)


def _beyond_execute(name: str, finish: Callable[[Ticket], object]) -> PlanRow:
    """A run under an executor, less the same run on the thread that wants it."""
    own, plan = _small(), _small("cpu:1")
    here = there = 1 << 60
    with UnifiedExecutor() as executor:
        executor.add_device("cpu:1")
        for _ in range(_ROUNDS):
            start = time.perf_counter_ns()
            own.execute()
            between = time.perf_counter_ns()
            finish(executor.submit(plan))
            end = time.perf_counter_ns()
            here, there = min(here, between - start), min(there, end - between)
    return PlanRow(name, (there - here) / 1e3, "us", 3)


def _hop() -> PlanRow:
    """Plans on two lanes by turns, each after the one before, all submitted before the first."""
    lanes, plans = (_lane(0), _lane(1)), (_small(), _small())
    runs = [1 << 60, 1 << 60]
    for _ in range(_ROUNDS // 20):
        for which, (first, second) in enumerate(((0, 0), (0, 1))):
            gate = TimelineSignal("gate")
            lane, value, after = first, 0, [(gate, 1)]
            for _ in range(_HOPS):
                value = lanes[lane].submit_run(plans[lane], after)
                after = [(lanes[lane].timeline, value)]
                lane = second if lane == first else first
            last = lanes[first if lane == second else second]
            start = time.perf_counter_ns()
            gate.set(1)
            last.timeline.wait(value)
            runs[which] = min(runs[which], time.perf_counter_ns() - start)
    each = (runs[1] - runs[0]) / _HOPS
    return PlanRow("from a run on one lane to one on another", each / 1e3, "us", 1)


def _crossing(hops: int) -> ExecutionPlan:
    """A plan whose rows are on two lanes by turns, each after the one before."""
    builder = ExecutionPlanBuilder("cpu:0")
    for i in range(hops + 1):
        device = f"cpu:{i % 2}"
        builder.add_buffer(i, Buffer.empty((8,), "float32", device))
    for i in range(hops):
        builder.add_op(PreparedCopy(i, (i + 1, i), device=f"cpu:{i % 2}"))
    builder.set_output_buffer(hops)
    return builder.build(threads=1)


def _joint() -> PlanRow:
    """One more crossing in a plan over two parts of the machine."""
    few, many = _crossing(2), _crossing(2 + _HOPS)
    best = [1 << 60, 1 << 60]
    for _ in range(_ROUNDS // 4):
        for which, plan in enumerate((few, many)):
            start = time.perf_counter_ns()
            plan.execute()
            best[which] = min(best[which], time.perf_counter_ns() - start)
    return PlanRow(
        "one more crossing of lanes in a plan", (best[1] - best[0]) / _HOPS / 1e3, "us", 1
    )


def _layers(where: str) -> Tensor:
    """Layers whose weights lie on a device, computed on the first half of the machine."""
    h = Tensor.input("x", (_STREAMED_ROWS, _WIDTH))
    for k in range(_STREAMED):
        weight = Tensor.input(f"w{k}", (_WIDTH, _WIDTH), device=where)
        h = (h @ (weight if where == "cpu:0" else weight.to("cpu:0"))).relu()
    return h


def _copies(disk: str) -> ExecutionPlan:
    """As many weights, read from the file into memory and nothing else."""
    builder = ExecutionPlanBuilder(disk)
    for k in range(_STREAMED):
        builder.add_buffer(2 * k, Buffer.empty((_WIDTH, _WIDTH), "float32"))
        builder.add_buffer(2 * k + 1, Buffer.empty((_WIDTH, _WIDTH), "float32", disk))
        builder.add_op(PreparedCopy(k, (2 * k, 2 * k + 1)))
    builder.set_output_buffer(0)
    return builder.build(threads=1)


def _stream() -> PlanRow:
    """Layers that read their weights from a file, against the longer of computing and reading."""
    generator = np.random.default_rng(0)
    weights = {
        f"w{k}": generator.standard_normal((_WIDTH, _WIDTH), np.float32) / 32
        for k in range(_STREAMED)
    }
    x = generator.standard_normal((_STREAMED_ROWS, _WIDTH), np.float32)
    here = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        disk = f"disk:{folder}/weights.bin"
        plans = [_layers(disk).prepare(device="cpu:0"), _layers("cpu:0").prepare(device="cpu:0")]
        # The lane that reads begins with the first run: on the other half, like the caller then.
        os.sched_setaffinity(0, find_device("cpu:1").cpus)
        try:
            for plan in plans:
                plan(x=x, **weights)
        finally:
            os.sched_setaffinity(0, here)
        plans.append(_copies(disk))
        best = [1 << 60] * len(plans)
        for _ in range(_STREAM_ROUNDS):
            for which, plan in enumerate(plans):
                start = time.perf_counter_ns()
                plan.execute()
                best[which] = min(best[which], time.perf_counter_ns() - start)
    streamed, computed, read = best
    ratio = streamed / max(computed, read)
    return PlanRow("weights from a file, against computing or reading", ratio, "x", 1.15)
