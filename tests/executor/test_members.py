"""Members of an executor and of its contexts, one by one."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.executor.rig import PATIENCE, Gate, buffer_of, executor_of, fail, numbers, scaled
from tests.plan import far

import semel
from semel import Buffer, DeviceRegistry, DeviceSpec, SyncStrategy, UnifiedExecutor
from semel.errors import (
    InputError,
    OutOfMemoryError,
    PlanError,
    TimedOutError,
    UnsupportedError,
)
from semel.executor.lane import TimelineValue
from semel.executor.transfer import PIECE_BYTES
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.rows import PreparedSignal
from semel.runtime import device as table
from semel.runtime.timeline import TimelineSignal

# ---------------------------------------------------------------- devices


def test_a_device_is_added_once() -> None:
    executor = UnifiedExecutor(DeviceRegistry())
    first = executor.add_device("cpu:1")
    assert executor.add_device(DeviceSpec("cpu:1")) is first
    assert executor.devices == (DeviceSpec("cpu:1"),)
    assert executor.context("cpu:1") is executor.context_mut(DeviceSpec("cpu:1")) is first
    assert executor.context("cpu:0") is None
    assert "cpu:1/compute is done with all 0" in repr(executor)


@pytest.mark.parametrize("device", ["cpu:9", "cuda:0", "nothing at all"])
def test_a_device_that_is_not_there_is_not_added(device: str) -> None:
    executor = UnifiedExecutor()
    with pytest.raises(UnsupportedError, match=r"device must be|divided into 2"):
        executor.add_device(device)
    assert executor.devices == ()


def test_a_registry_is_a_registry() -> None:
    with pytest.raises(PlanError, match="registry must be a DeviceRegistry, got"):
        UnifiedExecutor("cpu")  # type: ignore[arg-type]


def test_work_needs_a_device_that_is_in_use(executor: UnifiedExecutor) -> None:
    with pytest.raises(PlanError, match=r"cpu must be in use.*in use: cpu:0, cpu:1.*add_device"):
        executor.execute_kernel("cpu", fail)
    plan, _ = scaled(2, "cpu")
    with pytest.raises(PlanError, match="cpu must be in use by the executor"):
        executor.submit(plan)
    elsewhere = Buffer.empty((4,), "float32", "cpu")
    with pytest.raises(PlanError, match="cpu must be in use by the executor"):
        executor.execute_transfer(elsewhere, buffer_of([0] * 4))
    with pytest.raises(PlanError, match="cpu must be in use by the executor"):
        executor.execute_kernel("cpu:0", fail, reads=[elsewhere])
    executor.synchronize_all(PATIENCE)


def test_strategies_on_the_class_and_on_an_executor(executor: UnifiedExecutor) -> None:
    assert UnifiedExecutor.sync_strategy("cpu:0", "cpu:0") is SyncStrategy.NONE
    assert executor.sync_strategy(DeviceSpec("cpu:0"), "cpu:1") is SyncStrategy.PEER_TO_PEER
    assert str(SyncStrategy.THROUGH_HOST) == "through the host"


def test_single_device_check(executor: UnifiedExecutor) -> None:
    here, there = buffer_of([1]), buffer_of([1], "cpu:1")
    assert executor.single_device_check([here, here]) == DeviceSpec("cpu:0")
    assert executor.single_device_check([here, there]) is None
    assert executor.single_device_check([]) is None
    with pytest.raises(PlanError, match="must be a list of Buffer records, got one by itself"):
        executor.single_device_check(here)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="buffers must be a Buffer, got"):
        executor.single_device_check([np.zeros(1)])  # type: ignore[list-item]


# ---------------------------------------------------------------- contexts


def test_a_context_has_lanes_memory_and_limits(executor: UnifiedExecutor) -> None:
    context = executor.context("cpu:1")
    assert context is not None
    assert (str(context.spec), context.device.name) == ("cpu:1", "cpu:1")
    assert context.timeline() is context.compute.timeline
    assert context.timeline("copy") is context.copy.timeline is not context.timeline()
    assert isinstance(context.timeline(), TimelineSignal)
    limits = context.limits
    assert limits.threads == context.device.default_threads()
    assert limits.cpus == context.device.cpus
    assert limits.memory_bytes is None or limits.memory_bytes > 0
    with pytest.raises(PlanError, match="lane must be one of compute, copy, got 'fast'"):
        context.timeline("fast")
    assert "cpu:1/copy is done with all 0" in repr(context)


def test_memory_of_a_context_is_limited() -> None:
    executor = UnifiedExecutor()
    context = executor.add_device("cpu:0", memory_limit=1024)
    buffer = context.allocate((128,), "float32")
    assert (buffer.device, buffer.shape) == ("cpu:0", (128,))
    assert context.allocator.used_bytes == 512
    assert context.limits.memory_bytes == 512
    with pytest.raises(OutOfMemoryError, match="needs 516 bytes, 512 are free"):
        context.allocate((129,), "float32")
    del buffer
    assert context.allocator.used_bytes == 0
    context.allocate((256,), "float32").memory.release()
    with pytest.raises(PlanError, match="size_bytes must not be negative"):
        context.allocator.allocate(-1)
    with pytest.raises(PlanError, match="has the memory limit 1024 already, and keeps it, got 2"):
        executor.add_device("cpu:0", memory_limit=2)
    assert executor.add_device("cpu:0", memory_limit=1024) is context
    with pytest.raises(PlanError, match=r"memory_limit must be a number of bytes.*got -4"):
        executor.add_device("cpu:1", memory_limit=-4)
    assert executor.context("cpu:1") is None


def test_values_are_reserved_and_signalled_by_hand(executor: UnifiedExecutor) -> None:
    context = executor.context("cpu:0")
    assert context is not None
    assert context.current_timeline() == 0
    first = context.next_timeline()
    second = executor.execute_kernel("cpu:0", lambda: None)
    assert (first, second, context.current_timeline()) == (1, 2, 2)
    assert not first.done()
    assert not second.done(), "what is behind a reserved value waits for it"
    with pytest.raises(TimedOutError, match=r"cpu:0/compute is at 'reserved by next_timeline'"):
        executor.synchronize_all(timeout=0.01)
    context.signal_completion(first)
    context.wait_for(second, PATIENCE)
    assert context.timeline().value == 2
    with pytest.raises(PlanError, match="value 1 of its compute lane must be reserved"):
        context.signal_completion(first)
    with pytest.raises(PlanError, match="value 2 of its compute lane must be reserved"):
        context.signal_completion(second)
    with pytest.raises(PlanError, match="value 9 is of no work: 2 were submitted"):
        context.wait_for(9)


def test_what_a_lane_reaches_only_the_lane_sets(executor: UnifiedExecutor) -> None:
    gate, context = Gate(), executor.context("cpu:0")
    assert context is not None
    value = executor.execute_kernel("cpu:0", gate)
    for lane in ("compute", "copy"):
        timeline = context.timeline(lane)
        with pytest.raises(PlanError, match=r"set by its lane alone.*signal_completion\(\)"):
            timeline.set(5)
        builder = ExecutionPlanBuilder("cpu:0")
        builder.add_buffer(0, buffer_of([0]))
        builder.add_op(PreparedSignal(0, timeline, 5))
        builder.set_output_buffer(0)
        with pytest.raises(PlanError, match="set by its lane alone"):
            builder.build()
    assert not value.done()
    gate.open()
    value.wait(PATIENCE)
    TimelineSignal("anybody's").set(5)


def test_a_reserved_value_may_fail(executor: UnifiedExecutor) -> None:
    context = executor.context("cpu:1")
    assert context is not None
    value = context.next_timeline("copy")
    after = executor.execute_kernel("cpu:0", fail, after=[value])
    with pytest.raises(PlanError, match="error must be a BaseException, got 'by hand'"):
        context.signal_completion(value, "copy", error="by hand")  # type: ignore[arg-type]
    context.signal_completion(value, "copy", error=RuntimeError("by hand"))
    for each in (value, after):
        with pytest.raises(RuntimeError, match="by hand"):
            each.wait(PATIENCE)


# ---------------------------------------------------------------- work


def test_a_value_is_an_int_that_knows_its_signal(executor: UnifiedExecutor) -> None:
    gate = Gate()
    value = executor.execute_kernel("cpu:1", gate)
    assert isinstance(value, int)
    assert value == 1
    assert value + 1 == 2
    context = executor.context("cpu:1")
    assert context is not None
    assert value.signal is context.timeline()
    assert repr(value) == "TimelineValue(1 of cpu:1/compute)"
    assert not value.done()
    with pytest.raises(TimedOutError, match=r"must reach 1 within 0 s: .* is at 'Gate' \(1 of 1\)"):
        value.wait(0)
    gate.open()
    value.wait(PATIENCE)
    assert value.done()
    assert value.exception() is None
    assert type(semel.DeviceSpec) is type
    assert type(TimelineValue.__reduce__(value)[1][0]) is int


def test_a_plan_runs_on_its_device(executor: UnifiedExecutor) -> None:
    plan, x = scaled(3, "cpu:1")
    x.copyin(numbers(1, 2, 3, 4))
    executor.execute_kernel("cpu:1", plan).wait(PATIENCE)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), numbers(3, 6, 9, 12))
    with pytest.raises(PlanError, match="the plan must be one of cpu:0, it is one of cpu:1"):
        executor.execute_kernel("cpu:0", plan)


def test_a_kernel_runs_on_its_buffers(executor: UnifiedExecutor) -> None:
    plan, _ = scaled(3, "cpu:1")
    row: Any = plan.prepared_ops[0]
    given = [buffer_of([0, 0, 0, 0], "cpu:1"), buffer_of([1, 2, 3, 4], "cpu:1")]
    order = [given[0] if i in row.output_indices else given[1] for i in range(len(given))]
    executor.execute_kernel("cpu:1", row.kernel, buffers=order)
    np.testing.assert_array_equal(_after(executor, given[0]), numbers(3, 6, 9, 12))
    given[1].copyin(numbers(1, 1, 1, 1))
    executor.execute_kernel("cpu:1", row.kernel, buffers=order)
    np.testing.assert_array_equal(_after(executor, given[0]), numbers(3, 3, 3, 3))
    assert len(executor._kernels._plans) == 1, "the same kernel on the same bytes is one plan"
    with pytest.raises(PlanError, match="needs 2 buffers, in its order, got 1"):
        executor.execute_kernel("cpu:1", row.kernel, buffers=order[:1])
    with pytest.raises(PlanError, match=r"needs 2 buffers, .* numbers .*, got 0"):
        executor.execute_kernel("cpu:1", row)
    with pytest.raises(PlanError, match="is prepared for cpu:1, not for cpu:0"):
        executor.execute_kernel("cpu:0", row, buffers=order)


def test_kernels_that_take_turns_are_not_mistaken_for_each_other(executor: UnifiedExecutor) -> None:
    rows: list[Any] = [scaled(factor, "cpu:1")[0].prepared_ops[0] for factor in (2, 3)]
    out, x = buffer_of([0] * 4, "cpu:1"), buffer_of([1, 2, 3, 4], "cpu:1")
    for k in range(100):
        row = replace(rows[k % 2], id=k)  # a record of its own each time, soon to be gone
        given = [out if i in row.output_indices else x for i in range(2)]
        row = replace(row, buffer_indices=(0, 1))
        executor.execute_kernel("cpu:1", row, buffers=given)
        expected = numbers(1, 2, 3, 4) * (2 + k % 2)
        np.testing.assert_array_equal(_after(executor, out), expected)
    assert len(executor._kernels._plans) == 64


def test_values_are_reserved_though_the_lane_is_full(executor: UnifiedExecutor) -> None:
    context = executor.context("cpu:0")
    assert context is not None
    first = context.next_timeline()
    for _ in range(255):
        executor.execute_kernel("cpu:0", int, reads=[], writes=[])
    threading.Timer(0.05, context.signal_completion, (first,)).start()
    last = context.next_timeline()  # waits for room, and lets others in meanwhile
    assert last == 257
    context.signal_completion(last)
    last.wait(PATIENCE)


def _after(executor: UnifiedExecutor, buffer: Buffer) -> Any:
    executor.synchronize_all(PATIENCE)
    return buffer.numpy()


def test_what_is_no_work_is_refused(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    with pytest.raises(PlanError, match="reads must be given for functions alone"):
        executor.execute_kernel("cpu:0", plan, reads=[x])
    with pytest.raises(PlanError, match="buffers and values must be given for kernels alone"):
        executor.execute_kernel("cpu:0", plan, buffers=[x], values={"n": 1})
    with pytest.raises(PlanError, match="buffers must be given for kernels alone"):
        executor.execute_kernel("cpu:0", int, buffers=[x])
    with pytest.raises(PlanError, match="needs a plan, a kernel or a function, got 7"):
        executor.execute_kernel("cpu:0", 7)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="plan must be a ExecutionPlan, got"):
        executor.submit(fail)  # type: ignore[arg-type]


@pytest.fixture
def far_executor(monkeypatch: pytest.MonkeyPatch) -> UnifiedExecutor:
    monkeypatch.setattr(table, "MODULES", dict(table.MODULES))
    monkeypatch.setattr(table, "_open", dict(table._open))
    DeviceRegistry().register("far", far)
    return executor_of("cpu:0", "cpu:1", "far")


@pytest.mark.parametrize(
    ("source", "target", "strategy"),
    [
        ("cpu:0", "cpu:0", SyncStrategy.NONE),
        ("cpu:0", "cpu:1", SyncStrategy.PEER_TO_PEER),
        ("cpu:0", "far", SyncStrategy.THROUGH_HOST),
        ("far", "cpu:1", SyncStrategy.THROUGH_HOST),
        ("far", "far", SyncStrategy.NONE),
    ],
)
def test_a_transfer_goes_by_what_the_devices_can(
    far_executor: UnifiedExecutor, source: str, target: str, strategy: SyncStrategy
) -> None:
    data = np.arange(1 << 19, dtype=np.float32)  # more than one piece
    src, dst = buffer_of(data, source), Buffer.empty(data.shape, "float32", target)
    value = far_executor.execute_transfer(src, dst, source, DeviceSpec(target))
    assert value.lane.name == f"{target}/copy"
    value.wait(PATIENCE)
    np.testing.assert_array_equal(dst.numpy(), data)
    (record,) = far_executor.transfers
    assert (record.source, record.target, record.strategy) == (source, target, strategy)
    assert record.num_bytes == data.nbytes
    is_staged = source == target == "far"  # else the host's memory is one of the two
    assert record.staged_bytes == (PIECE_BYTES if is_staged else 0)
    assert str(strategy) in str(record)


def test_a_transfer_that_makes_no_sense_is_refused(executor: UnifiedExecutor) -> None:
    a, b = buffer_of([1, 2]), buffer_of([1, 2, 3], "cpu:1")
    with pytest.raises(PlanError, match="src must lie on cpu:1, it lies on cpu:0"):
        executor.execute_transfer(a, b, "cpu:1", "cpu:1")
    with pytest.raises(PlanError, match="dst must lie on cpu:0, it lies on cpu:1"):
        executor.execute_transfer(a, b, "cpu:0", "cpu:0")
    with pytest.raises(InputError, match="dst must have the 8 bytes of src, it has 12"):
        executor.execute_transfer(a, b)
    with pytest.raises(InputError, match="dst must be float32, got int32"):
        executor.execute_transfer(a, Buffer.empty((2,), "int32", "cpu:1"))
    with pytest.raises(PlanError, match="src and dst must not share bytes"):
        executor.execute_transfer(a, a)
    with pytest.raises(PlanError, match="dst must be a Buffer, got"):
        executor.execute_transfer(a, np.zeros(2))  # type: ignore[arg-type]
    assert executor.num_submitted == 0


# ---------------------------------------------------------------- the end


def test_at_the_end_of_a_with_all_is_done() -> None:
    done = []
    with executor_of() as executor:
        executor.execute_kernel("cpu:0", lambda: done.append(1))
    assert done == [1]
    with pytest.raises(PlanError, match="is closed and takes no more work"):
        executor.execute_kernel("cpu:0", fail)
    with pytest.raises(PlanError, match="is closed and takes no more work"):
        executor.add_device("cpu")
    plan, _ = scaled(1)
    with pytest.raises(PlanError, match="is closed and takes no more work"):
        executor.submit(plan)


def test_a_failure_comes_out_of_a_with_unless_another_does() -> None:
    with pytest.raises(ValueError, match="on purpose"), executor_of() as executor:
        executor.execute_kernel("cpu:0", fail)
    with pytest.raises(KeyError, match="first"), executor_of() as executor:
        executor.execute_kernel("cpu:0", fail)
        raise KeyError("first")
