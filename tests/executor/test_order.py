"""What waits for what: bytes that cross lanes, and nothing else."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.executor.rig import PATIENCE, Gate, buffer_of, executor_of, fail, numbers, scaled

import semel
from semel import UnifiedExecutor
from semel.errors import PlanError, StaleError
from semel.runtime.timeline import TimelineSignal


def test_work_of_a_lane_is_done_in_order(executor: UnifiedExecutor) -> None:
    seen: list[int] = []
    for k in range(300):  # more than a lane has room for
        executor.execute_kernel("cpu:0", partial(seen.append, k), reads=[], writes=[])
    executor.synchronize_all(PATIENCE)
    assert seen == list(range(300))


def test_devices_do_not_wait_for_each_other(executor: UnifiedExecutor) -> None:
    gate = Gate()
    blocked = executor.execute_kernel("cpu:0", gate)
    executor.execute_kernel("cpu:1", lambda: None).wait(PATIENCE)
    a, b = buffer_of([1, 2], "cpu:1"), buffer_of([0, 0], "cpu:1")
    executor.execute_transfer(a, b).wait(PATIENCE)
    assert not blocked.done()
    gate.open()
    blocked.wait(PATIENCE)


def test_copies_go_on_beside_kernels(executor: UnifiedExecutor) -> None:
    a, b, c = buffer_of([1, 2]), buffer_of([0, 0], "cpu:1"), buffer_of([5, 6])
    gate = Gate()
    blocked = executor.execute_kernel("cpu:0", gate, reads=[c])
    executor.execute_transfer(a, b).wait(PATIENCE)
    executor.execute_transfer(a, buffer_of([0, 0])).wait(PATIENCE)
    executor.execute_transfer(c, buffer_of([0, 0])).wait(PATIENCE)  # two who read do not wait
    assert not blocked.done()
    gate.open()


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        ("r", "r", False),
        ("r", "w", True),
        ("w", "r", True),
        ("w", "w", True),
    ],
)
def test_who_shares_bytes_waits(
    executor: UnifiedExecutor, first: str, second: str, waits: bool
) -> None:
    buffer, gate = buffer_of([1, 2, 3, 4]), Gate()
    executor.execute_kernel("cpu:0", gate, **_as(first, buffer.view(0, 8)))
    assert gate.has_begun.wait(PATIENCE)
    apart = executor.execute_kernel("cpu:1", lambda: None, **_as(second, buffer.view(8, 8)))
    apart.wait(PATIENCE)
    shared = executor.execute_kernel("cpu:1", lambda: None, **_as(second, buffer.view(4, 8)))
    if waits:
        assert not shared.done()
    else:
        shared.wait(PATIENCE)
    gate.open()
    shared.wait(PATIENCE)


def _as(access: str, buffer: Any) -> dict[str, Any]:
    return {"reads" if access == "r" else "writes": [buffer]}


def test_a_function_that_says_nothing_fences_its_device(executor: UnifiedExecutor) -> None:
    a, b = buffer_of([1, 2]), buffer_of([0, 0])
    elsewhere = buffer_of([0, 0], "cpu:1")
    gate = Gate()
    executor.execute_kernel("cpu:0", gate)
    assert gate.has_begun.wait(PATIENCE)
    copy = executor.execute_transfer(a, b)  # on the same device's other lane
    guest = executor.execute_transfer(a, elsewhere)  # on another device's lane, from this one
    executor.execute_kernel("cpu:1", lambda: None, writes=[buffer_of([0], "cpu:1")]).wait(PATIENCE)
    assert not copy.done()
    assert not guest.done()
    gate.open()
    copy.wait(PATIENCE)
    guest.wait(PATIENCE)


def test_a_fence_waits_for_all_of_its_device(executor: UnifiedExecutor) -> None:
    a, there = buffer_of([1, 2]), buffer_of([0, 0], "cpu:1")
    context = executor.context("cpu:1")
    assert context is not None
    held = context.next_timeline("copy")
    guest = executor.execute_transfer(a, there)  # runs on cpu:1, reads memory of cpu:0
    fence = executor.execute_kernel("cpu:0", lambda: None)
    executor.execute_kernel("cpu:1", lambda: None, reads=[], writes=[]).wait(PATIENCE)
    assert not fence.done()
    context.signal_completion(held, "copy")
    fence.wait(PATIENCE)
    assert guest.done()


def test_plans_and_transfers_make_a_chain(executor: UnifiedExecutor) -> None:
    double, x = scaled(2, "cpu:0")
    triple, y = scaled(3, "cpu:1")
    start, end = buffer_of([1, 2, 3, 4]), buffer_of([0, 0, 0, 0])
    for _ in range(50):
        executor.execute_transfer(start, x)
        executor.submit(double)
        executor.execute_transfer(double.output_buffer, y, "cpu:0", "cpu:1")
        executor.submit(triple)
        executor.execute_transfer(triple.output_buffer, end)
        executor.execute_transfer(end, start)
        executor.synchronize_all(PATIENCE)
        np.testing.assert_array_equal(end.numpy(), numbers(6, 12, 18, 24))
        start.copyin(numbers(1, 2, 3, 4))


def test_a_plan_is_not_overwritten_before_it_was_read(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 1, 1, 1))
    out = buffer_of([0, 0, 0, 0], "cpu:1")
    context = executor.context("cpu:1")
    assert context is not None
    executor.submit(plan)
    held = context.next_timeline("copy")
    read = executor.execute_transfer(plan.output_buffer, out)
    again = executor.submit(plan)
    assert not again.done()
    context.signal_completion(held, "copy")
    again.wait(PATIENCE)
    assert read.done()


def test_after_says_what_bytes_do_not(executor: UnifiedExecutor) -> None:
    gate, signal = Gate(), TimelineSignal("outside")
    first = executor.execute_kernel("cpu:0", gate)
    second = executor.execute_kernel("cpu:1", lambda: None, after=[first])
    plan, x = scaled(1, "cpu:1")
    x.copyin(numbers(1, 2, 3, 4))
    third = executor.submit(plan, after=[second, (signal, 3)])
    fourth = executor.execute_kernel("cpu:0", lambda: None, after=[third])
    assert not second.done()
    gate.open()
    second.wait(PATIENCE)
    assert not third.done()
    signal.set(3)
    fourth.wait(PATIENCE)
    assert third.done()


_S = TimelineSignal("s")


@pytest.mark.parametrize("unknown", [7, "value", None, ("a", 1), (_S, "x"), (_S, 1 << 70)])
def test_an_unknown_predecessor_is_refused(executor: UnifiedExecutor, unknown: Any) -> None:
    plan, _ = scaled(1)
    a, b = buffer_of([1]), buffer_of([2])
    for submit in (
        lambda: executor.submit(plan, after=[unknown]),
        lambda: executor.execute_kernel("cpu:0", plan, after=[unknown]),
        lambda: executor.execute_kernel("cpu:0", lambda: None, after=[unknown]),
        lambda: executor.execute_transfer(a, b, after=[unknown]),
    ):
        with pytest.raises(PlanError, match="after must be"):
            submit()
    assert executor.num_submitted == 0, "nothing was submitted"


@pytest.mark.parametrize("after", [7, fail, ...])
def test_predecessors_are_a_list(executor: UnifiedExecutor, after: Any) -> None:
    plan, _ = scaled(1)
    with pytest.raises(PlanError, match="after must be a list"):
        executor.submit(plan, after)
    with pytest.raises(PlanError, match="after must be a list"):
        executor.execute_kernel("cpu:0", int, after=after)
    assert executor.num_submitted == 0, "nothing was submitted"


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1", "elsewhere"])
def test_a_value_that_no_lane_has_given_out_is_refused(
    executor: UnifiedExecutor, device: str
) -> None:
    """Whose lane it is does not matter: its own would wait for itself, others' may never come."""
    other = executor_of("cpu:0") if device == "elsewhere" else executor
    context = other.context("cpu:0" if device == "elsewhere" else device)
    assert context is not None
    other.execute_kernel(context.spec, int).wait(PATIENCE)
    for unknown in (2, 10**6):
        with pytest.raises(PlanError, match=f"value {unknown} is of no work: 1 were submitted"):
            executor.execute_kernel("cpu:0", int, after=[(context.timeline(), unknown)])
    executor.execute_kernel("cpu:0", int, after=[(context.timeline(), 1)]).wait(PATIENCE)


# ---------------------------------------------------------------- the fast way


def test_a_plan_on_one_device_takes_the_fast_way(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    for _ in range(10):
        executor.submit(plan)
    assert (executor.num_submitted, executor.num_fast) == (10, 9)
    other, y = scaled(2, "cpu:1")
    y.copyin(numbers(1, 2, 3, 4))
    for _ in range(10):
        executor.submit(plan)
        executor.submit(other)
    assert executor.num_fast == 9 + 10 + 9, "plans that share no bytes do not slow each other down"
    executor.synchronize_all(PATIENCE)


@pytest.mark.parametrize("how", ["transfer", "function", "fence", "growth"])
def test_whoever_touches_its_memory_sends_a_plan_the_long_way(
    executor: UnifiedExecutor, how: str
) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    executor.submit(plan)
    executor.submit(plan)
    assert executor.num_fast == 1
    if how == "transfer":
        executor.execute_transfer(buffer_of([1, 2, 3, 4]), x)
    elif how == "function":
        executor.execute_kernel("cpu:1", lambda: None, reads=[plan.output_buffer])
    elif how == "fence":
        executor.execute_kernel("cpu:0", lambda: None)
    else:
        executor.synchronize_all(PATIENCE)
        plan.engine.relink()
    executor.submit(plan).wait(PATIENCE)
    assert executor.num_fast == 1
    executor.submit(plan).wait(PATIENCE)  # what it had to wait for is seen to have gone well
    executor.submit(plan).wait(PATIENCE)
    assert executor.num_fast >= 2


def test_a_plan_over_two_devices_never_takes_the_fast_way(executor: UnifiedExecutor) -> None:
    x = semel.Tensor.input("x", (4,), "float32")
    plan = ((x * 2).to("cpu:1") + 1).prepare(device="cpu:0")
    other, y = scaled(10, "cpu:1")
    source, back = plan.buffer(x), buffer_of([0] * 4)
    assert source is not None
    start = buffer_of([1, 2, 3, 4], "cpu:1")
    for _ in range(20):
        executor.execute_transfer(start, source)
        executor.submit(plan)
        executor.submit(plan)
        executor.execute_transfer(plan.output_buffer, y)
        last = executor.submit(other)
        executor.execute_transfer(other.output_buffer, back)
    np.testing.assert_array_equal(last.result(PATIENCE), numbers(30, 50, 70, 90))
    assert executor.num_fast == 0
    executor.synchronize_all(PATIENCE)
    np.testing.assert_array_equal(back.numpy(), numbers(30, 50, 70, 90))


# ---------------------------------------------------------------- tickets


def test_a_ticket_gives_the_outputs(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    ticket = executor.submit(plan)
    assert ticket.value == 1
    np.testing.assert_array_equal(ticket.result(PATIENCE), numbers(2, 4, 6, 8))
    assert ticket.done()
    assert ticket.exception() is None
    assert "done" in repr(ticket)
    again = ticket.result()
    plan.execute()
    assert ticket.result() is again, "what was read once is the ticket's"


def test_outputs_of_an_earlier_run_are_never_given_as_those_of_a_later(
    executor: UnifiedExecutor,
) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    first, second = executor.submit(plan), executor.submit(plan)
    with pytest.raises(StaleError, match="its run's outputs are gone"):
        first.result(PATIENCE)
    np.testing.assert_array_equal(second.result(PATIENCE), numbers(2, 4, 6, 8))
    third = executor.submit(plan)
    third.wait(PATIENCE)
    plan.output_buffer.numpy()  # looking changes nothing
    np.testing.assert_array_equal(third.result(PATIENCE), numbers(2, 4, 6, 8))
    fourth = executor.submit(plan)
    fourth.wait(PATIENCE)
    plan.execute()
    with pytest.raises(StaleError, match="its run's outputs are gone"):
        fourth.result(PATIENCE)


def test_a_run_with_inputs_of_its_own_keeps_its_outputs(executor: UnifiedExecutor) -> None:
    plan, _ = scaled(2)
    data = numbers(1, 2, 3, 4)
    tickets = []
    for k in range(5):
        tickets.append(executor.submit(plan, inputs={"x": data}))
        data += 1 + k
    for k, ticket in enumerate(tickets):
        start = k * (k + 1) / 2
        np.testing.assert_array_equal(ticket.result(PATIENCE), (numbers(1, 2, 3, 4) + start) * 2)
    listed = executor.submit(plan, inputs={"x": [1, 1, 1, 1]})
    np.testing.assert_array_equal(listed.result(PATIENCE), numbers(2, 2, 2, 2))


def test_runs_with_and_without_inputs_keep_their_order(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 1, 1, 1))
    own = executor.submit(plan, inputs={"x": numbers(5, 5, 5, 5)})
    plain = executor.submit(plan)
    np.testing.assert_array_equal(own.result(PATIENCE), numbers(10, 10, 10, 10))
    np.testing.assert_array_equal(plain.result(PATIENCE), numbers(10, 10, 10, 10))


# ---------------------------------------------------------------- from inside


def test_work_may_submit_work(executor: UnifiedExecutor) -> None:
    values: list[Any] = []

    def more() -> None:
        values.append(executor.execute_kernel("cpu:1", lambda: None))
        values.append(executor.execute_kernel("cpu:0", lambda: None))

    executor.execute_kernel("cpu:0", more).wait(PATIENCE)
    for value in values:
        value.wait(PATIENCE)


def test_work_that_would_wait_for_itself_is_told_so(executor: UnifiedExecutor) -> None:
    errors: list[Exception] = []

    def wait(action: Any) -> None:
        try:
            action()
        except PlanError as error:
            errors.append(error)

    def work() -> None:
        later = executor.execute_kernel("cpu:0", lambda: None)
        elsewhere = executor.execute_kernel("cpu:1", lambda: None, after=[later])
        wait(lambda: later.wait(PATIENCE))
        wait(lambda: elsewhere.wait(PATIENCE))
        wait(executor.synchronize_all)

    executor.execute_kernel("cpu:0", work).wait(PATIENCE)
    assert len(errors) == 3
    assert "its own work cannot wait for what comes after it" in str(errors[0])
    assert "its own work cannot wait for what comes after it" in str(errors[1])
    assert "would wait for itself" in str(errors[2])


def test_work_may_fill_the_plan_that_waits_for_it(executor: UnifiedExecutor) -> None:
    """The plan is its lane's from the submission on; who must come before is let in."""
    plan, x = scaled(2, "cpu:0")
    x.copyin(numbers(0, 0, 0, 0))
    has_submitted = threading.Event()

    def fill() -> None:
        assert has_submitted.wait(PATIENCE)
        x.copyin(numbers(1, 2, 3, 4))

    executor.execute_kernel("cpu:1", fill, writes=[x])
    ticket = executor.submit(plan)
    has_submitted.set()
    np.testing.assert_array_equal(ticket.result(PATIENCE), numbers(2, 4, 6, 8))


def test_transfers_into_and_out_of_plans_that_wait_for_them(executor: UnifiedExecutor) -> None:
    double, x = scaled(2, "cpu:0")
    triple, y = scaled(3, "cpu:1")
    context = executor.context("cpu:0")
    assert context is not None
    held = context.next_timeline("copy")
    executor.execute_transfer(buffer_of([1, 2, 3, 4]), x)
    first = executor.submit(double)
    executor.execute_transfer(double.output_buffer, y)
    second = executor.submit(triple)
    executor.execute_transfer(triple.output_buffer, x)
    third = executor.submit(double)
    context.signal_completion(held, "copy")
    np.testing.assert_array_equal(third.result(PATIENCE), numbers(12, 24, 36, 48))
    assert first.done()
    assert second.done()


def test_threads_submit_at_the_same_time(executor: UnifiedExecutor) -> None:
    total = buffer_of([0])
    array = total.array()

    def add() -> None:
        before = float(array[0])
        array[0] = before + 1

    def submit(device: str) -> None:
        for _ in range(100):
            executor.execute_kernel(device, add, reads=[total], writes=[total])

    threads = [threading.Thread(target=submit, args=(f"cpu:{k % 2}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    executor.synchronize_all(PATIENCE)
    assert total.numpy()[0] == 400
