"""A failure belongs to its value; nothing hangs, everything else goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from tests.executor.rig import PATIENCE, Gate, buffer_of, fail, numbers, scaled

from semel import UnifiedExecutor
from semel.errors import InputError, PlanError, TimedOutError
from semel.runtime.timeline import TimelineSignal


def test_who_waits_for_a_failure_gets_it(executor: UnifiedExecutor) -> None:
    value = executor.execute_kernel("cpu:0", fail)
    with pytest.raises(ValueError, match="on purpose") as caught:
        value.wait(PATIENCE)
    assert caught.value.__notes__ == ["submission 1 of lane 'cpu:0/compute'"], "its origin"
    assert value.exception() is caught.value
    assert value.done()
    executor.synchronize_all(PATIENCE)  # somebody has seen it


def test_work_that_needs_what_failed_fails_with_it(executor: UnifiedExecutor) -> None:
    a, b, c = buffer_of([1, 2]), buffer_of([0, 0], "cpu:1"), buffer_of([0, 0])
    origin = executor.execute_kernel("cpu:0", fail, writes=[a])
    copied = executor.execute_transfer(a, b)
    used = executor.execute_kernel("cpu:1", lambda: None, reads=[b], writes=[c])
    named = executor.execute_kernel("cpu:1", lambda: None, after=[origin])
    for value in (origin, copied, used, named):
        assert value.exception(PATIENCE) is origin.exception()
    assert len(executor.transfers) == 0
    assert used.exception() is not None
    assert used.exception().__notes__ == ["submission 1 of lane 'cpu:0/compute'"]  # type: ignore[union-attr]


def test_everything_else_goes_on(executor: UnifiedExecutor) -> None:
    a, b = buffer_of([1, 2]), buffer_of([3, 4])
    executor.execute_kernel("cpu:0", fail, writes=[a])
    unrelated = executor.execute_transfer(b, buffer_of([0, 0], "cpu:1"))
    same_lane = executor.execute_kernel("cpu:0", lambda: None, reads=[b])
    fence = executor.execute_kernel("cpu:0", lambda: None)
    overwritten = executor.execute_kernel("cpu:1", lambda: a.copyin(numbers(5, 6)), writes=[a])
    read = executor.execute_kernel("cpu:0", lambda: None, reads=[a])
    for value in (unrelated, same_lane, fence, overwritten, read):
        assert value.exception(PATIENCE) is None, value
    with pytest.raises(ValueError, match="on purpose"):
        executor.synchronize_all(PATIENCE)


def test_who_only_read_does_no_harm_by_failing(executor: UnifiedExecutor) -> None:
    a = buffer_of([1, 2])
    failed = executor.execute_kernel("cpu:0", fail, reads=[a])
    written = executor.execute_kernel("cpu:1", lambda: None, writes=[a])
    assert written.exception(PATIENCE) is None
    assert isinstance(failed.exception(PATIENCE), ValueError)


def test_a_failure_is_known_however_late_somebody_reads(executor: UnifiedExecutor) -> None:
    a = buffer_of([1, 2])
    value = executor.execute_kernel("cpu:0", fail, writes=[a])
    assert isinstance(value.exception(PATIENCE), ValueError)
    for _ in range(3):
        late = executor.execute_kernel("cpu:1", lambda: None, reads=[a.view(0, 4)])
        assert isinstance(late.exception(PATIENCE), ValueError)
    for context in executor._contexts.values():
        context.table.tidy()
    late = executor.execute_kernel("cpu:1", lambda: None, reads=[a])
    assert isinstance(late.exception(PATIENCE), ValueError)
    executor.execute_kernel("cpu:0", lambda: None, writes=[a.view(0, 4)]).wait(PATIENCE)
    half = executor.execute_kernel("cpu:1", lambda: None, reads=[a.view(0, 4)])
    other = executor.execute_kernel("cpu:1", lambda: None, reads=[a.view(4, 4)])
    assert half.exception(PATIENCE) is None
    assert isinstance(other.exception(PATIENCE), ValueError)


def test_failures_of_runs_are_their_tickets(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    missing = executor.submit(plan)
    with pytest.raises(InputError, match="x"):
        missing.result(PATIENCE)
    read = executor.execute_transfer(plan.output_buffer, buffer_of([0] * 4, "cpu:1"))
    assert read.exception(PATIENCE) is missing.exception()
    x.copyin(numbers(1, 2, 3, 4))
    good = executor.submit(plan)
    np.testing.assert_array_equal(good.result(PATIENCE), numbers(2, 4, 6, 8))
    executor.execute_transfer(plan.output_buffer, buffer_of([0] * 4, "cpu:1")).wait(PATIENCE)


def test_a_run_whose_input_could_not_be_copied_fails_each_time(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    executor.execute_kernel("cpu:1", fail, writes=[x])
    for _ in range(3):
        with pytest.raises(ValueError, match="on purpose"):
            executor.submit(plan).result(PATIENCE)
    executor.execute_transfer(buffer_of([1, 1, 1, 1]), x)
    for _ in range(3):
        np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), numbers(2, 2, 2, 2))


def test_outputs_after_a_failed_run_of_the_same_batch_are_found(
    executor: UnifiedExecutor,
) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    context = executor.context("cpu:0")
    assert context is not None
    held = context.next_timeline()
    first = executor.submit(plan, after=[executor.execute_kernel("cpu:1", fail)])
    second = executor.submit(plan)
    context.signal_completion(held)
    assert isinstance(first.exception(PATIENCE), ValueError)
    np.testing.assert_array_equal(second.result(PATIENCE), numbers(2, 4, 6, 8))


# ---------------------------------------------------------------- synchronize_all


def test_a_failed_kernel_does_not_hang_who_synchronizes(executor: UnifiedExecutor) -> None:
    executor.execute_kernel("cpu:0", fail)
    with pytest.raises(ValueError, match="on purpose"):
        executor.synchronize_all(PATIENCE)
    executor.synchronize_all(PATIENCE)


def test_each_failure_is_raised_once(executor: UnifiedExecutor) -> None:
    a, b = buffer_of([1]), buffer_of([1], "cpu:1")

    def number(k: int) -> None:
        raise ValueError(f"number {k}")

    executor.execute_kernel("cpu:0", lambda: number(1), writes=[a])
    executor.execute_transfer(a, b)  # fails with the first
    second = executor.execute_kernel("cpu:0", lambda: number(2))
    second.lane.await_end(second, PATIENCE)
    executor.execute_kernel("cpu:1", lambda: number(3))
    for expected in (1, 2, 3):
        with pytest.raises(ValueError, match=f"number {expected}"):
            executor.synchronize_all(PATIENCE)
    executor.synchronize_all(PATIENCE)


def test_the_first_failure_in_time_is_raised_first(executor: UnifiedExecutor) -> None:
    gate = Gate()

    def fail_late() -> None:
        gate()
        raise KeyError("late")

    late = executor.execute_kernel("cpu:0", fail_late)
    early = executor.execute_kernel("cpu:1", fail)
    assert gate.has_begun.wait(PATIENCE)
    early.lane.await_end(early, PATIENCE)  # nobody has seen it by that
    gate.open()
    late.lane.await_end(late, PATIENCE)
    with pytest.raises(ValueError, match="on purpose"):
        executor.synchronize_all(PATIENCE)
    with pytest.raises(KeyError, match="late"):
        executor.synchronize_all(PATIENCE)
    executor.synchronize_all(PATIENCE)


@pytest.mark.parametrize("seen", ["origin", "dependent"])
def test_what_was_seen_is_not_raised_again_by_what_failed_with_it(
    executor: UnifiedExecutor, seen: str
) -> None:
    a, b = buffer_of([1]), buffer_of([1], "cpu:1")
    values = {"origin": executor.execute_kernel("cpu:0", fail, writes=[a])}
    values["dependent"] = executor.execute_transfer(a, b)
    with pytest.raises(ValueError, match="on purpose"):
        values[seen].wait(PATIENCE)
    executor.synchronize_all(PATIENCE)
    later = executor.execute_kernel("cpu:1", int, reads=[b])
    assert isinstance(later.exception(PATIENCE), ValueError)
    executor.execute_kernel("cpu:1", fail)  # the same words, another failure
    with pytest.raises(ValueError, match="on purpose"):
        executor.synchronize_all(PATIENCE)
    executor.synchronize_all(PATIENCE)


def test_what_is_late_is_named(executor: UnifiedExecutor) -> None:
    gate, a, b = Gate(), buffer_of([1]), buffer_of([1], "cpu:1")
    executor.execute_kernel("cpu:0", gate, writes=[a])
    executor.execute_transfer(a, b)
    executor.execute_kernel("cpu:1", lambda: None)
    with pytest.raises(TimedOutError, match=r"must be done within 0.02 s") as caught:
        executor.synchronize_all(timeout=0.02)
    late = caught.value.late  # type: ignore[attr-defined]
    assert late == [
        "cpu:0/compute is at 'Gate' (1 of 1)",
        "cpu:1/compute is at 'test_what_is_late_is_named.<locals>.<lambda>' (1 of 1), which "
        "waits for cpu:1/copy (0 of 1)",
        "cpu:1/copy is at 'copy f32[1] cpu:0 -> cpu:1' (1 of 1), which waits for cpu:0/compute "
        "(0 of 1)",
    ]
    gate.open()
    executor.synchronize_all(PATIENCE)


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
def test_a_timeout_is_a_number_of_seconds(executor: UnifiedExecutor, timeout: float) -> None:
    with pytest.raises(PlanError, match="timeout"):
        executor.synchronize_all(timeout)


# ---------------------------------------------------------------- what others got wrong


def test_no_wake_up_is_lost() -> None:
    """Two threads hand a number back and forth, each of which may just be about to sleep."""
    here, there = TimelineSignal("here"), TimelineSignal("there")
    rounds = 2000

    def answer() -> None:
        for k in range(1, rounds + 1):
            here.wait(k, PATIENCE)
            there.set(k)

    thread = threading.Thread(target=answer)
    thread.start()
    for k in range(1, rounds + 1):
        here.set(k)
        there.wait(k, PATIENCE)
    thread.join(PATIENCE)
    assert there.value == rounds


def test_transfers_between_any_two_devices_never_wait_for_themselves(
    executor: UnifiedExecutor,
) -> None:
    executor.add_device("cpu")
    buffers = [buffer_of([k, k], device) for k, device in enumerate(("cpu", "cpu:0", "cpu:1"))]
    for source in buffers:
        for target in buffers:
            if source is not target:
                executor.execute_transfer(source, target).wait(PATIENCE)
                executor.execute_transfer(target, source)
    executor.synchronize_all(PATIENCE)


_FORKED = """
import os, sys
from tests.executor.rig import *
from semel.errors import PlanError
executor, gate = executor_of(), Gate()
pending = executor.execute_kernel("cpu:0", gate)
behind = executor.execute_kernel("cpu:0", lambda: None)
assert gate.has_begun.wait(PATIENCE)
child = os.fork()
if child == 0:
    status = 1
    try:
        for value in (pending, behind):
            try:
                value.wait(PATIENCE)
            except PlanError as error:
                assert "forked" in str(error), error
            else:
                raise AssertionError("it was never done here")
        plan, x = scaled(2)
        x.copyin(numbers(1, 2, 3, 4))
        assert executor.submit(plan).result(PATIENCE).tolist() == [2, 4, 6, 8]
        try:
            executor.synchronize_all(PATIENCE)
        except PlanError:
            pass
        status = 0
    finally:
        os._exit(status)
gate.open()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
executor.synchronize_all(PATIENCE)
"""

_EXIT = """
import time
from tests.executor.rig import *
executor = executor_of()
for device in DEVICES:
    for _ in range(100):
        executor.execute_kernel(device, lambda: time.sleep(0.05))
"""

_INTERRUPTED = """
import os, signal, threading
from tests.executor.rig import *
executor, gate = executor_of(), Gate()
value = executor.execute_kernel("cpu:0", gate)
assert gate.has_begun.wait(PATIENCE)
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    executor.synchronize_all(PATIENCE)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("not interrupted")
gate.open()
value.wait(PATIENCE)
executor.synchronize_all(PATIENCE)
"""


@pytest.mark.parametrize("code", [_FORKED, _EXIT, _INTERRUPTED], ids=["fork", "exit", "ctrl-C"])
def test_busy_lanes_at_a(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=os.getcwd(),
    )
    assert (done.returncode, done.stderr) == (0, "")
