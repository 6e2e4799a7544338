"""The hot path: no Python per operation, no allocation."""

from __future__ import annotations

import ctypes
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch
from tests.plan.kernels import TILE

from semel.plan.plan import ExecutionPlan
from semel.runtime.allocator import counters

OPS = 1000


def _chain(threads: int = 1, *, elements: int = 8) -> ExecutionPlan:
    s = Sketch(elements, bytes_per_element=1000 if threads > 1 else 12)
    for i in range(OPS):
        s.op("increment", f"b{i % 2}", f"b{(i + 1) % 2}")
    return s.build("b0", threads=threads)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _malloc_bytes() -> int:
    try:
        mallinfo2: Any = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("the C library has no mallinfo2")
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


def _allocated(execute: Callable[[], None]) -> tuple[int, int, int, int]:
    """What 200 executes allocate: bytes of Python's that stay, at most, blocks, bytes of malloc."""
    made, held = counters().total_blocks, _malloc_bytes()
    tracemalloc.start()
    try:
        execute()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(100):
            execute()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for _ in range(100):
        execute()
    blocks, native = counters().total_blocks - made, _malloc_bytes() - held
    return after - before, peak - before, blocks, native


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_thousand_operations_run_without_an_allocation(threads: int) -> None:
    plan = _chain(threads, elements=8 if threads == 1 else 4 * TILE)
    execute = plan.execute
    for _ in range(20):
        execute()
    # What an execute does, each of them does: threads of other tests, which may be about to end,
    # would have to be in the way every time.
    found = [_allocated(execute) for _ in range(5)]
    kept, peak, blocks, native = map(min, zip(*found, strict=True))
    assert kept < 512, "memory stays allocated after an execute"
    assert peak < 2048, "an execute allocates more than its own frame"
    assert blocks == 0
    assert native < 65_536  # tracemalloc's own tables


def test_a_run_calls_no_python_per_operation() -> None:
    plan = _chain()
    plan.execute()
    calls = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        plan.execute()
    finally:
        sys.setprofile(None)
    assert calls[0] < 10
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(8, 2 * OPS))
