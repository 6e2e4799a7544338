"""Two parts of the machine at work: plans beside each other, and one behind the other.

    measure_pairs()  -->  PlanRow...

The work stays in the caches. What two cores give is measured, not assumed: chains of FMAs on one
and on both, in the same rotation. A row is the share of that speed-up that plans reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.plan import PlanRow
from semel.devices.cpu.yardstick import FmaLoop
from semel.executor.executor import UnifiedExecutor
from semel.plan.plan import ExecutionPlan
from semel.runtime.buffer import Buffer
from semel.tensor.tensor import Tensor

_ROUNDS, _RUNS, _WIDTH, _LAYERS = 9, 12, 256, 8


def measure_pairs() -> list[PlanRow]:
    """The rows; the caller may run on all cores."""
    with UnifiedExecutor() as executor:
        for device in ("cpu:0", "cpu:1"):
            executor.add_device(device)
        return [_side_by_side(executor), _pipeline(executor)]


def _stage(device: str) -> tuple[ExecutionPlan, Buffer]:
    """Some products with one matrix, and the buffer of its input."""
    weight = Tensor((np.eye(_WIDTH) * 0.5).astype(np.float32))
    x = Tensor.input("x", (_WIDTH, _WIDTH))
    y = x
    for _ in range(_LAYERS):
        y = (y @ weight).relu()
    plan = y.prepare(device=device, threads=1)
    plan(x=np.ones((_WIDTH, _WIDTH), np.float32))
    found = plan.buffer(x)
    assert found is not None
    return plan, found


def _share(alone: Callable[[], None], both: Callable[[], None]) -> float:
    """The speed-up of the same work on both cores, in those of FMAs."""
    loops = FmaLoop(1), FmaLoop(2)
    best = [float("inf")] * 4
    for _ in range(_ROUNDS):
        found = [_seconds(alone), _seconds(both), *(loop.seconds() for loop in loops)]
        best = list(map(min, best, found))
    # The loop on two threads does twice the work of that on one.
    return (best[0] / best[1]) / (2 * best[2] / best[3])


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _side_by_side(executor: UnifiedExecutor) -> PlanRow:
    first, second, other = (_stage(d)[0] for d in ("cpu:0", "cpu:0", "cpu:1"))

    def run(*plans: ExecutionPlan) -> None:
        for _ in range(_RUNS):
            for plan in plans:
                executor.submit(plan)
        executor.synchronize_all()

    share = _share(lambda: run(first, second), lambda: run(first, other))
    return PlanRow("two plans side by side, of what two cores give", share, "", 0.9, at_least=True)


def _pipeline(executor: UnifiedExecutor) -> PlanRow:
    (first, _), (here, to_here), (there, to_there) = map(_stage, ("cpu:0", "cpu:0", "cpu:1"))

    def run(last: ExecutionPlan, target: Buffer) -> None:
        for _ in range(_RUNS):
            executor.submit(first)
            executor.execute_transfer(first.output_buffer, target)
            executor.submit(last)
        executor.synchronize_all()

    share = _share(lambda: run(here, to_here), lambda: run(there, to_there))
    # The first of the runs is alone, and so is the last.
    share *= (_RUNS + 1) / _RUNS
    return PlanRow(
        "a pipeline of two stages, of what two cores give", share, "", 0.9, at_least=True
    )
