"""However much is submitted, nothing is remembered of what is over."""

from __future__ import annotations

import gc
import resource
import sys
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.executor.rig import PATIENCE, buffer_of, executor_of, fail, numbers, scaled
from tests.fuzz.long import SECONDS

from semel import UnifiedExecutor
from semel.executor.hazards import _SLACK


def _pieces(executor: UnifiedExecutor) -> int:
    return sum(context.table.num_pieces for context in executor._contexts.values())


def _resident_bytes() -> int:
    """Memory of this process that is there, whoever has it; files that are mapped are none."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * resource.getpagesize()


class _Work:
    """Submissions of every kind, many of them, over and over."""

    def __init__(self, executor: UnifiedExecutor) -> None:
        self._executor = executor
        self._plan, x = scaled(2)
        x.copyin(numbers(1, 2, 3, 4))
        self._other, self._y = scaled(3, "cpu:1")

    def do(self, runs: int) -> None:
        executor, plan = self._executor, self._plan
        for _ in range(runs):
            executor.submit(plan)
        for _ in range(30):
            executor.execute_kernel("cpu:1", int, reads=[], writes=[])
            executor.execute_transfer(plan.output_buffer, self._y)
            executor.submit(self._other)
        for _ in range(20):
            executor.execute_transfer(buffer_of([1, 2]), buffer_of([0, 0], "cpu:1"))
            executor.execute_kernel("cpu:0", fail, writes=[buffer_of([1])])
        with pytest.raises(ValueError, match="on purpose"):
            executor.synchronize_all(PATIENCE)

    def settle(self) -> None:
        """Let what is bounded be as small as it gets."""
        for context in self._executor._contexts.values():
            context.table.tidy()
        gc.collect()


#: Submissions that must leave nothing behind; a million in the long mode.
MANY = 1_000_000 if SECONDS else 20_000


@pytest.mark.timeout(900 if SECONDS else 120)
def test_many_submissions_leave_memory_flat(executor: UnifiedExecutor) -> None:
    work = _Work(executor)
    for _ in range(10):
        work.do(100)  # now all that is bounded is as large as it gets
    work.settle()
    before, count = sys.getallocatedblocks(), executor.num_submitted
    resident = _resident_bytes()
    for _ in range(4):
        work.do(MANY // 4 - 100)
    work.settle()
    assert executor.num_submitted - count >= MANY
    assert sys.getallocatedblocks() - before < 2000
    assert _resident_bytes() - resident < 16 << 20
    assert _pieces(executor) <= 4 * _SLACK


def test_nothing_that_is_remembered_is_large(executor: UnifiedExecutor) -> None:
    work = _Work(executor)
    tracemalloc.start()
    try:
        for _ in range(10):
            work.do(50)
        work.settle()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            work.do(100)
        work.settle()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000


def test_what_was_submitted_is_let_go_of(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    executor.submit(plan).wait(PATIENCE)
    buffer = buffer_of([1, 2])
    executor.execute_transfer(buffer, buffer_of([0, 0], "cpu:1")).wait(PATIENCE)
    watched: list[Any] = [weakref.ref(o) for o in (plan, buffer, buffer.memory)]
    del plan, x, buffer
    # A lane lets go of what is over when it comes to rest.
    for device in ("cpu:0", "cpu:1"):
        executor.execute_kernel(device, int).wait(PATIENCE)
    executor.synchronize_all(PATIENCE)
    for _ in range(100):
        gc.collect()
        if not any(ref() is not None for ref in watched) and not executor._submitters:
            break
    assert [ref() for ref in watched] == [None, None, None]
    assert executor._submitters == {}


def test_an_executor_that_nobody_holds_ends() -> None:
    executor = executor_of()
    executor.execute_kernel("cpu:0", int).wait(PATIENCE)
    watched = weakref.ref(executor)
    del executor
    gc.collect()
    assert watched() is None


def test_memory_that_is_gone_is_forgotten(executor: UnifiedExecutor) -> None:
    for _ in range(8 * _SLACK):
        executor.execute_kernel("cpu:0", int, writes=[buffer_of([1])])
    executor.synchronize_all(PATIENCE)
    context = executor.context("cpu:0")
    assert context is not None
    assert context.table.num_pieces <= 2 * _SLACK + 300
    assert len(context.table._storages) <= 2 * _SLACK + 300
