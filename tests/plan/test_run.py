"""Running: one native call, steps, threads, hazards."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add, table_of
from tests.plan.kernels import TILE, kernel

from semel import config
from semel.codegen.runner import emit_runner
from semel.codegen.runner_key import checked_text
from semel.errors import InternalError, PlanError, UnsupportedError
from semel.ir.abi import Header
from semel.ir.expr import Variable
from semel.ir.types import FLOAT32, TensorType
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.rows import PreparedBufferView, PreparedCopy, PreparedKernel
from semel.runtime.buffer import Buffer
from semel.runtime.device import find_device
from semel.runtime.kernel import CachedKernel


def test_one_kernel_runs() -> None:
    s = Sketch(10)
    s.op("add", "x", "y", "out")
    plan = s.build("out")
    s.buffers["x"].copyin(np.arange(10, dtype=np.float32))
    s.buffers["y"].copyin(np.ones(10, np.float32))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.arange(10) + 1)


def test_kernel_from_pointer_runs() -> None:
    n = Variable("n", 0, 8)
    vector = TensorType((n,), FLOAT32)
    address = kernel("double", n).address
    made = CachedKernel.from_pointer(address, [vector], [vector], [n], 1)
    builder = ExecutionPlanBuilder()
    x = builder.add_buffer(1, Buffer(np.arange(8, dtype=np.float32)))
    out = builder.add_buffer(2, Buffer.empty((8,), "float32"))
    builder.add_kernel(PreparedKernel(5, None, made, "", (x, out), (1,), vals=(8,)))
    builder.set_output_buffer(out)
    plan = builder.build(threads=1)
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.arange(8) * 2)


def test_an_empty_plan_builds_and_runs() -> None:
    plan = ExecutionPlanBuilder().build(threads=1)
    plan.execute()
    assert plan.num_outputs == 0
    assert plan.output_buffer_at(0) is None


def test_row_wise_chain_needs_no_barrier() -> None:
    s = Sketch(8 * TILE)
    s.op("double", "x", "a")
    s.op("increment", "a", "b")
    s.op("add", "b", "a", "out")
    assert s.build("out", threads=2).steps == [[[0, 1, 2]]]


def test_a_kernel_that_reads_any_row_waits_for_all() -> None:
    s = Sketch(8 * TILE)
    s.op("double", "x", "a")
    s.op("reverse", "a", "out")
    assert s.build("out", threads=2).steps == [[[0]], [[1]]]


def test_single_tile_kernels_chain_whatever_they_read() -> None:
    s = Sketch(100)
    s.op("double", "x", "a")
    s.op("reverse", "a", "out")
    assert s.build("out").steps == [[[0, 1]]]


def test_independent_kernels_share_a_step() -> None:
    s = Sketch(8 * TILE)
    s.op("double", "x", "a")
    s.op("increment", "y", "b")
    s.op("reverse", "x", "c")
    assert s.build("a", threads=2).steps == [[[0], [1], [2]]]


def test_overlapping_views_are_ordered_by_bytes() -> None:
    # The second op reads through a view of the first one's storage: no buffer object is shared.
    whole = Buffer.empty((4 * TILE,), "float32")
    s = Sketch(2 * TILE)
    s.buffer("low", whole.view(0, 8 * TILE))
    s.buffer("middle", whole.view(4 * TILE, 8 * TILE))
    s.op("increment", "x", "low")
    s.op("double", "middle", "out")
    plan = s.build("out", threads=2)
    assert plan.steps == [[[0]], [[1]]]


def test_disjoint_views_are_independent() -> None:
    whole = Buffer.empty((4 * TILE,), "float32")
    s = Sketch(2 * TILE)
    s.buffer("low", whole.view(0, 8 * TILE))
    s.buffer("high", whole.view(8 * TILE, 8 * TILE))
    s.op("increment", "x", "low")
    s.op("double", "y", "high")
    assert s.build("low", threads=2).steps == [[[0], [1]]]


def test_write_after_read_keeps_the_schedule_order() -> None:
    s = Sketch(4 * TILE)
    s.op("reverse", "x", "a")
    s.op("increment", "y", "x")
    assert s.build("a", threads=2).steps == [[[0]], [[1]]]


def test_copy_and_view_run_in_order() -> None:
    s = Sketch(8)
    s.op("increment", "x", "a")
    a, b = s.buffer("a"), s.buffer("b")
    s.builder.add_op(PreparedCopy(7, (b, a)))
    part = s.builder.add_buffer(900, s.buffers["b"].view(8, 16))
    s.builder.add_op(PreparedBufferView(8, (part, b), 8, 16))
    s.builder.set_output_buffer(part)
    plan = s.builder.build(threads=1)
    s.buffers["x"].copyin(np.arange(8, dtype=np.float32))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), [3, 4, 5, 6])


def test_overlapping_copy_moves_bytes_as_if_through_a_third_buffer() -> None:
    whole = Buffer(np.arange(10, dtype=np.float32))
    builder = ExecutionPlanBuilder()
    dst = builder.add_buffer(1, whole.view(8, 32))
    src = builder.add_buffer(2, whole.view(0, 32))
    builder.add_op(PreparedCopy(1, (dst, src)))
    builder.set_output_buffer(dst)
    builder.build(threads=2).execute()
    np.testing.assert_array_equal(whole.numpy(), [0, 1, 0, 1, 2, 3, 4, 5, 6, 7])


def test_dependency_beats_insertion_order() -> None:
    s = Sketch(16)
    s.op("double", "a", "b", id=1, dependencies=(2,))
    s.op("increment", "x", "a", id=2)
    plan = s.build("b")
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(16, 2.0))


def _random_plan(seed: int, threads: int) -> tuple[Sketch, list[str]]:
    """Random kernels on overlapping windows of one storage."""
    rng = np.random.default_rng(seed)
    size = 3 * TILE
    whole = Buffer(rng.standard_normal(10 * TILE).astype(np.float32))
    s = Sketch(size)
    names = []
    for i in range(8):
        start = int(rng.integers(0, 14)) * TILE // 2 * 4
        s.buffer(f"v{i}", whole.view(start, size * 4))
        names.append(f"v{i}")
    for _ in range(40):
        op = rng.choice(["add", "mul", "double", "increment", "reverse"])
        count = 3 if op in ("add", "mul") else 2
        picks = [str(p) for p in rng.choice(names, count, replace=False)]
        out = s.buffers[picks[-1]].byte_range
        # A kernel whose output overlaps an input of another base is undefined by itself.
        if all(_apart(s.buffers[p].byte_range, out) for p in picks[:-1]):
            s.op(str(op), *picks)
    return s, names


def _apart(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    return a[2] <= b[1] or b[2] <= a[1]


def _run_in_schedule_order(s: Sketch) -> None:
    """The oracle: each op alone, one after the other."""
    for op in s.builder._ops:
        one = ExecutionPlanBuilder()
        assert isinstance(op, PreparedKernel)
        indices = tuple(
            one.add_buffer(i, s.builder._buffers[b]) for i, b in enumerate(op.buffer_indices)
        )
        one.add_kernel(
            PreparedKernel(
                1, None, op.kernel, "", indices, op.output_indices, fixedvars=op.fixedvars
            )
        )
        one.set_output_buffer(indices[-1])
        one.build(threads=1).execute()


@pytest.mark.parametrize("seed", range(12))
def test_any_number_of_threads_gives_the_bits_of_the_schedule_order(seed: int) -> None:
    expected, names = _random_plan(seed, 1)
    _run_in_schedule_order(expected)
    for threads in (1, 2, 3):
        s, _ = _random_plan(seed, threads)
        s.build(names[0], threads=threads).execute()
        for name in names:
            np.testing.assert_array_equal(s.buffers[name].numpy(), expected.buffers[name].numpy())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_steps_are_shared_and_right(threads: int) -> None:
    elements = 64 * TILE
    s = Sketch(elements)
    s.op("double", "x", "a")
    s.op("reverse", "a", "b")
    s.op("increment", "b", "c")
    s.op("add", "c", "x", "out")
    plan = s.build("out", threads=threads)
    x = np.arange(elements, dtype=np.float32)
    s.buffers["x"].copyin(x)
    for _ in range(50):
        plan.execute()
        np.testing.assert_array_equal(plan.output_buffer.numpy(), 2 * x[::-1] + 1 + x)


def test_workers_take_part_even_if_they_slept() -> None:
    s = Sketch(16 * TILE)
    s.op("who", "x", "out")
    plan = s.build("out", threads=2)
    seen: set[float] = set()
    until = time.monotonic() + 100
    while seen != {0.0, 1.0} and time.monotonic() < until:
        time.sleep(0.01)  # long enough for an idle worker to fall asleep
        plan.execute()
        seen |= set(plan.output_buffer.numpy().tolist())
    assert seen == {0.0, 1.0}


def test_one_thread_never_touches_the_pool() -> None:
    s = Sketch(16 * TILE)
    s.op("who", "x", "out")
    plan = s.build("out", threads=1)
    plan.execute()
    assert set(plan.output_buffer.numpy().tolist()) == {0.0}
    assert table_of(plan).words[Header.POOL_READY] == 0


@pytest.mark.parametrize("seed", range(5))
def test_dawdling_workers_change_no_bit(seed: int) -> None:
    expected, names = _random_plan(seed, 1)
    _run_in_schedule_order(expected)
    with config.override(debug=frozenset({"jitter"})):
        s, _ = _random_plan(seed, 4)
        plan = s.build(names[0], threads=4)
    plan.execute()
    for name in names:
        np.testing.assert_array_equal(s.buffers[name].numpy(), expected.buffers[name].numpy())


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_runner_is_well_formed_on_every_architecture(arch: str) -> None:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(checked_text(arch, emit_runner(arch)))
    module.verify()
    with pytest.raises(UnsupportedError, match="got riscv64"):
        emit_runner("riscv64")


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_a_runner_of_another_text_has_another_key(arch: str) -> None:
    with pytest.raises(InternalError, match=f"RUNNER_KEYS .* for {arch}: its text changed"):
        checked_text(arch, emit_runner(arch) + ";")


def test_two_plans_run_at_once_on_two_python_threads() -> None:
    elements = 32 * TILE
    failures: list[str] = []

    def work(scale: int) -> None:
        s = Sketch(elements)
        s.op("double", "x", "a")
        s.op("reverse", "a", "out")
        plan = s.build("out", threads=2)
        x = np.arange(elements, dtype=np.float32) * scale
        s.buffers["x"].copyin(x)
        for _ in range(200):
            plan.execute()
            if not np.array_equal(plan.output_buffer.numpy(), 2 * x[::-1]):
                failures.append(f"scale {scale}")

    threads = [threading.Thread(target=work, args=(i,)) for i in (1, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_one_plan_called_from_several_threads_is_serialised() -> None:
    plan = symbolic_add(4 * TILE, threads=2)
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            x = rng.standard_normal(int(rng.integers(0, 4 * TILE))).astype(np.float32)
            if not np.array_equal(plan(x=x, y=x), x + x):
                failures.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_more_plans_than_entries_of_one_runner_copy() -> None:
    plans = [symbolic_add(16) for _ in range(150)]
    x = np.arange(4, dtype=np.float32)
    for plan in plans:
        np.testing.assert_array_equal(plan(x=x, y=x), 2 * x)


_IDLE = """
import os, time
from tests.plan.build import Sketch
from tests.plan.kernels import TILE

s = Sketch(64 * TILE)
s.op("who", "x", "out")
plan = s.build("out", threads=2)
before = set(os.listdir("/proc/self/task"))
plan.execute()
while 1 not in plan.output_buffer.numpy():
    plan.execute()
(worker,) = set(os.listdir("/proc/self/task")) - before

def looks():  # whether it sleeps, and how often it was woken so far
    with open(f"/proc/self/task/{worker}/status") as lines:
        found = dict(line.split(":", 1) for line in lines)
    return found["State"].split()[0], found["voluntary_ctxt_switches"]

until = time.monotonic() + 100
while True:
    first = looks()
    time.sleep(0.3)
    if first == looks() and first[0] == "S":
        break
    assert time.monotonic() < until, looks()
"""


def test_idle_workers_sleep() -> None:
    """For as long as nothing is to be done: none of them wakes up to see."""
    subprocess.run([sys.executable, "-c", _IDLE], check=True, timeout=240)


def test_released_plan_refuses_to_run() -> None:
    s = Sketch(16)
    s.op("double", "x", "out")
    plan = s.build("out")
    plan.execute()
    freed: list[int] = []
    plan.release_all_buffers(freed.append)
    assert freed == [0, 1]
    with pytest.raises(PlanError, match="released"):
        plan.execute()
    with pytest.raises(PlanError, match="released"):
        s.buffers["x"].numpy()


def test_a_release_does_not_pull_memory_from_under_another_plan() -> None:
    shared = Buffer(np.arange(1 << 18, dtype=np.float32))
    plans = []
    for _ in range(2):
        s = Sketch(1 << 18)
        s.buffer("x", shared)
        s.op("double", "x", "out")
        plans.append(s.build("out"))
    plans[0].release_all_buffers()
    plans[1].execute()
    np.testing.assert_array_equal(plans[1].output_buffer.numpy(), 2 * np.arange(1 << 18))


@pytest.mark.usefixtures("settled")
def test_dropping_a_plan_returns_its_entry() -> None:
    plan = symbolic_add(16)
    device = find_device("cpu")  # whose runner its parts share
    before = len(device._free)  # type: ignore[attr-defined]
    del plan
    assert len(device._free) == before + 1  # type: ignore[attr-defined]
