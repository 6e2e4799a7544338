"""A device that fails, hangs or is late under an executor: its value fails, all else goes on."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np
import pytest
from tests.executor.rig import Gate, buffer_of, executor_of, numbers, scaled
from tests.faults.backend import FAULTS
from tests.faults.rig import PATIENCE, X, alone, be_impatient, spread, write

from semel import DeviceContext, TimelineSignal, UnifiedExecutor
from semel.errors import DeviceError, PlanError, ReleasedError, TimedOutError
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.plan import ExecutionPlan
from semel.plan.rows import PreparedCopy, PreparedWait


@pytest.fixture
def executor() -> Iterator[UnifiedExecutor]:
    made = executor_of("cpu:0", "cpu:1", "faulty")
    yield made
    for context in made._contexts.values():
        context.close()


def context_of(executor: UnifiedExecutor, device: str) -> DeviceContext:
    found = executor.context(device)
    assert found is not None
    return found


@pytest.fixture
def plan() -> ExecutionPlan:
    made = alone()
    write(made)
    return made


def test_a_failure_names_device_row_and_origin(
    executor: UnifiedExecutor, plan: ExecutionPlan
) -> None:
    good = executor.submit(plan).result(PATIENCE)
    FAULTS.plan("raises")
    failed = executor.submit(plan)
    read = executor.execute_transfer(plan.output_buffer, buffer_of(X * 0, "cpu:1"))
    other, x = scaled(2, "cpu:1")
    x.copyin(numbers(1, 2, 3, 4))
    np.testing.assert_array_equal(executor.submit(other).result(PATIENCE), numbers(2, 4, 6, 8))
    with pytest.raises(DeviceError, match=r"op 0 \(.*\) on faulty, from .*rig\.py") as caught:
        failed.result(PATIENCE)
    assert caught.value.device == "faulty"  # type: ignore[attr-defined]
    assert caught.value.row == 0  # type: ignore[attr-defined]
    assert "rig.py" in caught.value.origin  # type: ignore[attr-defined]
    assert caught.value.__notes__ == ["submission 2 of lane 'faulty/compute'"]
    assert read.exception(PATIENCE) is caught.value
    np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), good)


def test_a_late_run_is_only_late(executor: UnifiedExecutor, plan: ExecutionPlan) -> None:
    good = executor.submit(plan).result(PATIENCE)
    FAULTS.plan("is late", 0.05)
    late = executor.submit(plan)
    copied = buffer_of(good * 0, "cpu:1")
    executor.execute_transfer(plan.output_buffer, copied).wait(PATIENCE)
    np.testing.assert_array_equal(copied.numpy(), good)
    assert late.done()


@pytest.mark.parametrize("kind", ["hangs", "is stuck"])
def test_a_device_that_hangs_is_named_and_after_a_reset_the_plan_runs_again(
    executor: UnifiedExecutor, plan: ExecutionPlan, kind: str
) -> None:
    good = executor.submit(plan).result(PATIENCE)
    FAULTS.plan(kind)
    hangs = executor.submit(plan)
    behind = executor.submit(plan)
    with pytest.raises(TimedOutError, match="faulty/compute is at 'plan' "):
        hangs.wait(0.1)
    with pytest.raises(TimedOutError, match="faulty/compute is at 'plan' "):
        executor.synchronize_all(0.05)
    other, x = scaled(2, "cpu:1")
    x.copyin(numbers(1, 2, 3, 4))
    np.testing.assert_array_equal(executor.submit(other).result(PATIENCE), numbers(2, 4, 6, 8))
    context_of(executor, "faulty").reset(PATIENCE)
    with pytest.raises(DeviceError, match="reset") as caught:
        hangs.result(PATIENCE)
    assert caught.value.device == "faulty"  # type: ignore[attr-defined]
    behind.wait(PATIENCE)  # goes on by itself
    np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), good)


def test_a_plan_over_devices_that_hangs_is_reset_like_any_other(
    executor: UnifiedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_impatient(monkeypatch)
    plan = spread()
    write(plan)
    good = executor.submit(plan).result(PATIENCE)
    FAULTS.plan("hangs")
    ticket = executor.submit(plan)
    with pytest.raises(TimedOutError, match="cpu:0/compute is at 'plan' "):
        ticket.wait(0.1)
    context_of(executor, "faulty").reset(PATIENCE)
    with pytest.raises(DeviceError, match=r"on faulty.*the device was reset"):
        ticket.result(PATIENCE)
    np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), good)


# ---------------------------------------------------------------- resets of what works


def waiting(signal: TimelineSignal, device: str = "cpu:1") -> ExecutionPlan:
    """y = x, once the signal is at 1."""
    builder = ExecutionPlanBuilder(device)
    for number, values in enumerate(([0, 0], [1, 2])):
        builder.add_buffer(number, buffer_of(values, device))
    builder.add_op(PreparedWait(0, signal, 1))
    builder.add_op(PreparedCopy(1, (0, 1), dependencies=(0,)))
    builder.set_output_buffer(0)
    return builder.build(threads=1)


def test_a_reset_gives_up_a_native_run(executor: UnifiedExecutor) -> None:
    never = TimelineSignal("never")
    plan = waiting(never)
    ticket = executor.submit(plan)
    behind = executor.execute_kernel("cpu:1", int, reads=[], writes=[])
    with pytest.raises(TimedOutError, match="cpu:1/compute is at 'plan'"):
        ticket.wait(0.05)
    context_of(executor, "cpu:1").reset(PATIENCE)
    with pytest.raises(DeviceError, match=r"cpu:1/compute\] was reset in the middle of 'plan'"):
        ticket.result(PATIENCE)
    behind.wait(PATIENCE)
    never.set(1)
    np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), numbers(1, 2))


def test_a_reset_fails_values_that_nobody_will_signal(executor: UnifiedExecutor) -> None:
    context = context_of(executor, "cpu:1")
    reserved = context.next_timeline()
    behind = executor.execute_kernel("cpu:1", int, reads=[], writes=[])
    context.reset(PATIENCE)
    with pytest.raises(DeviceError, match="was reset before value 1 was signalled"):
        reserved.wait(PATIENCE)
    behind.wait(PATIENCE)
    with pytest.raises(PlanError, match="must be reserved"):
        context.signal_completion(reserved)


def test_a_reset_of_an_idle_device_does_nothing(
    executor: UnifiedExecutor, plan: ExecutionPlan
) -> None:
    good = executor.submit(plan).result(PATIENCE)
    for _ in range(3):
        for device in ("cpu:0", "cpu:1", "faulty"):
            context_of(executor, device).reset(0)
    np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), good)
    executor.synchronize_all(PATIENCE)


def test_a_reset_leaves_alone_what_waits_for_others(executor: UnifiedExecutor) -> None:
    gate, a = Gate(), buffer_of([1, 2])
    executor.execute_kernel("cpu:0", gate, writes=[a])
    waits = executor.execute_transfer(a, buffer_of([0, 0], "cpu:1"))
    context_of(executor, "cpu:1").reset(PATIENCE)
    gate.open()
    waits.wait(PATIENCE)


def test_a_reset_gives_up_what_waits_for_a_signal_that_nobody_sets(
    executor: UnifiedExecutor,
) -> None:
    never = TimelineSignal("never")
    context = context_of(executor, "cpu:1")
    plan, x = scaled(2, "cpu:1")
    x.copyin(numbers(1, 2, 3, 4))
    stuck = executor.execute_kernel("cpu:1", int, reads=[], writes=[], after=[(never, 7)])
    behind = executor.execute_kernel("cpu:1", int, reads=[], writes=[])
    run = executor.submit(plan, after=[(never, 8)])
    many = [(TimelineSignal(f"s{k}"), 1) for k in range(20)]
    last = executor.execute_kernel("cpu:1", int, reads=[], writes=[], after=many)
    late = r"cpu:1/compute is at 'int' \(1 of 4\), which waits for never \(0 of 7\)"
    with pytest.raises(TimedOutError, match=late):
        stuck.wait(0.02)
    context.reset(PATIENCE)
    why = "cpu:1/compute] was reset while 'int' waited for 7 of signal 'never', which is at 0"
    with pytest.raises(DeviceError, match=re.escape(why)) as caught:
        stuck.wait(PATIENCE)
    assert (caught.value.signal, caught.value.value) == ("never", 1)  # type: ignore[attr-defined]
    behind.wait(PATIENCE)
    with pytest.raises(DeviceError, match="'plan' waited for 8 of signal 'never'"):
        run.wait(PATIENCE)
    with pytest.raises(DeviceError, match="waited for 1 of signal 's0'"):
        last.wait(PATIENCE)
    np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), numbers(2, 4, 6, 8))
    again = executor.execute_kernel("cpu:1", int, reads=[], writes=[], after=[(never, 7)])
    never.set(7)
    again.wait(PATIENCE)  # another one in the same place waits as ever


def test_what_a_reset_gives_up_still_comes_after_others(executor: UnifiedExecutor) -> None:
    """Bytes: who overwrites what the work was to write relies on what that came after."""
    gate, a, never = Gate(), buffer_of([1, 2]), TimelineSignal("never")
    executor.execute_kernel("cpu:0", gate, reads=[a])
    stuck = executor.execute_kernel("cpu:1", int, writes=[a], after=[(never, 1)])
    written = executor.execute_kernel("cpu:1", int, writes=[a])
    context_of(executor, "cpu:1").reset(PATIENCE)
    with pytest.raises(TimedOutError, match="waits for cpu:0/compute"):
        written.wait(0.05)
    assert not stuck.done()
    gate.open()
    assert isinstance(stuck.exception(PATIENCE), DeviceError)
    written.wait(PATIENCE)


def set_all(signals: list[TimelineSignal]) -> None:
    for signal in signals:
        signal.set(1)


@pytest.mark.parametrize("seed", range(3))
def test_resets_while_signals_are_set_lose_nothing(executor: UnifiedExecutor, seed: int) -> None:
    """Each work is done once if its signals were set in time, and else fails with the reset."""
    rng, context = Random(seed), context_of(executor, "cpu:1")
    for _ in range(30):
        signals = [TimelineSignal(f"s{k}") for k in range(4)]
        done: list[int] = []
        values = [
            executor.execute_kernel(
                rng.choice(("cpu:0", "cpu:1")),
                partial(done.append, k),
                reads=[],
                writes=[],
                after=[(rng.choice(signals), 1) for _ in range(rng.choice((0, 1, 9)))],
            )
            for k in range(40)
        ]
        setter = threading.Thread(target=set_all, args=(signals[1:],))
        setter.start()
        context.reset(PATIENCE)
        context_of(executor, "cpu:0").reset(PATIENCE)
        setter.join()
        errors = [value.exception(PATIENCE) for value in values]
        assert sorted(done) == [k for k, error in enumerate(errors) if error is None]
        assert all(error is None or isinstance(error, DeviceError) for error in errors)


def test_a_function_that_does_not_end_is_named(executor: UnifiedExecutor) -> None:
    gate = Gate()
    value = executor.execute_kernel("cpu:0", gate)
    assert gate.has_begun.wait(PATIENCE)
    with pytest.raises(TimedOutError, match=r"cpu:0: reset.*cpu:0/compute is at 'Gate'"):
        context_of(executor, "cpu:0").reset(0.05)
    gate.open()
    value.wait(PATIENCE)


@pytest.mark.parametrize("which", ["src", "dst"])
def test_memory_that_was_given_back_before_its_copy_is_named(
    executor: UnifiedExecutor, which: str
) -> None:
    gate = Gate()
    pair = {"src": buffer_of([1, 2]), "dst": buffer_of([0, 0], "cpu:1")}
    opened = executor.execute_kernel("cpu:0", gate, reads=[], writes=[])
    copied = executor.execute_transfer(pair["src"], pair["dst"], after=[opened])
    pair[which].memory.release()
    gate.open()
    with pytest.raises(ReleasedError, match=f"the memory of {which} was given back"):
        copied.wait(PATIENCE)


def test_many_failures_and_resets_leave_nothing_behind(
    executor: UnifiedExecutor, plan: ExecutionPlan
) -> None:
    good = executor.submit(plan).result(PATIENCE)
    for turn in range(60):
        FAULTS.plan(("raises", "hangs")[turn % 2])
        ticket = executor.submit(plan)
        if turn % 2:
            assert FAULTS.is_reached.wait(PATIENCE)
            context_of(executor, "faulty").reset(PATIENCE)
        assert isinstance(ticket.exception(PATIENCE), DeviceError)
    np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), good)
    gc.collect()
    for context in executor._contexts.values():
        assert not context._reserved
        assert context.compute.num_pending == 0
