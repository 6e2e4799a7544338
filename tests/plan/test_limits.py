"""Runs that end before their last step: cancelled by somebody, or out of time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, table_of
from tests.plan.signals import handling, once_running
from tests.plan.test_control import set_flag
from tests.plan.test_loops import codes_of

import semel
from semel import ExecutionPlan, Graph, Tensor, TimelineSignal, Variable
from semel.errors import CancelledError, PlanError, StateError, TimedOutError
from semel.ir.abi import COME_BACK, Code, Header
from semel.plan.limits import RunLimits
from semel.plan.readers import Copies
from semel.plan.rows import PreparedCopy, PreparedCustomFunction, PreparedWait
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function, unregister_custom_function

X = np.arange(8, dtype=np.float32)
COPIES = Copies()
#: Limits one after the other, for tests in which a run must come to some place in time: where the
#: first is too short, the machine was busy.
LONGER = (0.02, 0.5, 5.0, 50.0)


@pytest.fixture
def calls() -> Iterator[list[Callable[[], object]]]:
    """What the custom function "limits_call" does, one call after the other."""
    todo: list[Callable[[], object]] = []

    @custom_function("limits_call")
    def call(attrs: Any, buffers: Sequence[Buffer], variables: Any) -> None:
        if todo:
            todo.pop(0)()

    yield todo
    unregister_custom_function("limits_call")


def calling(count: int) -> tuple[Sketch, ExecutionPlan]:
    """So many calls of the custom function; before each, x becomes larger by one."""
    s = Sketch(8)
    for k in range(count):
        s.op("increment", "x", "y")
        s.builder.add_op(PreparedCustomFunction(k, "limits_call", None, (s.buffer("y"),)))
        s.builder.add_op(PreparedCopy(50 + k, (s.buffer("x"), s.buffer("y"))))
    return s, s.build("x")


def endless(kind: str, elements: int = 8, threads: int = 1) -> tuple[Sketch, ExecutionPlan]:
    """A loop that takes years, of a counter or of a condition, while "p" is true."""
    s = Sketch(elements)
    s.flag("p")
    if kind == "while":
        s.begin_while("p", 1 << 50)
        s.run()
    else:
        s.branch("p", id=90)
        s.begin(1 << 50)
    s.op("increment", "x", "y")
    s.op("increment", "y", "z")
    s.end()
    if kind != "while":
        s.end()
    s.op("double", "x", "out")
    plan = s.build("out", "y", threads=threads)
    s.buffers["x"].copyin(np.arange(elements, dtype=np.float32))
    set_flag(s.buffers["p"], True)
    return s, plan


def cancel_soon(plan: ExecutionPlan) -> threading.Thread:
    """A thread that cancels the next run once it is in the middle."""
    return once_running(plan, plan.cancel)


def check_endless_ends(s: Sketch, plan: ExecutionPlan) -> None:
    """Without its loop the plan does what it should."""
    set_flag(s.buffers["p"], False)
    plan.execute()
    expected = 2 * np.arange(s.elements, dtype=np.float32)
    np.testing.assert_array_equal(s.buffers["out"].numpy(), expected)


# ---------------------------------------------------------------- cancelled


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["while", "for"])
@pytest.mark.parametrize("elements", [8, 1 << 18])
def test_a_native_loop_is_cancelled_from_another_thread(
    kind: str, elements: int, threads: int
) -> None:
    s, plan = endless(kind, elements, threads)
    for _ in range(2):
        thread = cancel_soon(plan)
        with pytest.raises(CancelledError, match=r"the run was cancelled before step \d of \d"):
            plan.execute()
        thread.join()
    with pytest.raises(semel.StaleError, match="the last execute failed"):
        plan.output_buffer.numpy()
    check_endless_ends(s, plan)


def test_a_run_is_cancelled_between_its_steps_wherever_it_is(calls: list[Any]) -> None:
    s, plan = calling(3)
    for k in range(3):
        s.buffers["x"].copyin(X)
        calls[:] = [lambda: None] * k + [plan.cancel]
        with pytest.raises(CancelledError, match="before step") as caught:
            plan.execute()
        assert calls == []
        assert vars(caught.value)["num_steps"] == 7
        assert vars(caught.value)["step"] == 2 * k + 2
        s.buffers["x"].copyin(X)
        plan.execute()
        np.testing.assert_array_equal(s.buffers["x"].numpy(), X + 3)


def test_what_a_cancelled_run_did_stays_done(calls: list[Any]) -> None:
    s, plan = calling(3)
    s.buffers["x"].copyin(X)
    calls[:] = [lambda: None, plan.cancel]
    with pytest.raises(CancelledError, match="before step 4 of 7"):
        plan.execute()
    np.testing.assert_array_equal(s.buffers["x"].array(), X + 1)


def test_cancelling_what_does_not_run_does_nothing(calls: list[Any]) -> None:
    s, plan = calling(1)
    plan.cancel()
    plan.execute()
    plan.cancel()
    plan.cancel()
    plan.execute()
    np.testing.assert_array_equal(s.buffers["x"].numpy(), np.full(8, 2))
    plan.release_all_buffers()
    plan.cancel()


def test_what_was_wanted_of_one_run_is_not_wanted_of_the_next(calls: list[Any]) -> None:
    """Neither of a bind that grows memory, which comes back to Python too."""
    n = Variable("n", 1)
    x = Tensor.input("x", (n,))
    plan = (x.flip(0) + 1).prepare(threads=1)
    plan(x=X)
    run = plan.engine.state.run
    enter = plan.engine.enter

    def cancelled() -> int:
        code = enter()
        run._words[Header.ASKED] = COME_BACK  # too late for this one
        return code

    plan.engine.enter = cancelled
    plan.execute()
    plan.engine.enter = enter
    more = np.arange(3000, dtype=np.float32)
    np.testing.assert_array_equal(plan(x=more), more[::-1] + 1)
    assert plan.growths == 1


def test_a_signal_handler_may_cancel() -> None:
    s, plan = endless("while")
    with (
        handling(lambda *_: plan.cancel()) as interrupt,
        pytest.raises(CancelledError, match="was cancelled"),
    ):
        interrupt(plan)
        plan.execute()
    check_endless_ends(s, plan)


def test_a_clone_is_not_cancelled_with_its_plan(calls: list[Any]) -> None:
    _, plan = calling(2)
    other = plan.clone()
    calls[:] = [plan.cancel, other.cancel]
    with pytest.raises(CancelledError, match="before step 2"):
        plan.execute()
    calls[:] = [plan.cancel]
    other.execute()
    np.testing.assert_array_equal(other.output_buffer.numpy(), np.full(8, 2))


def test_a_profiled_run_and_a_call_are_cancelled_too() -> None:
    (count,), _ = Tensor.loop(
        Variable("t", 1, 1 << 40), [Tensor.input("x", (8,))], lambda s, h: ([h[0] + 1], [])
    )
    plan = count.prepare(threads=1)
    calls = plan.calls
    attempts: list[Callable[[], Any]] = [
        lambda: plan.execute_with_vars_profiled(t=1 << 40),
        lambda: calls.run({"x": X}, COPIES, {"t": 1 << 40}),
        lambda: calls.slots([X], COPIES),
    ]
    np.testing.assert_array_equal(calls.run({"x": X}, COPIES, {"t": 3}), X + 3)
    for attempt in attempts:
        thread = cancel_soon(plan)
        with pytest.raises(CancelledError, match="was cancelled"):
            attempt()
        thread.join()
    np.testing.assert_array_equal(calls.run({"x": X}, COPIES, {"t": 3}), X + 3)


# ---------------------------------------------------------------- out of time


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["while", "for"])
def test_a_run_ends_when_its_time_is_over(kind: str, threads: int) -> None:
    s, plan = endless(kind, threads=threads)
    for timeout in (0, 0.02):
        with pytest.raises(TimedOutError, match=f"must be over within {timeout} s, this one had"):
            plan.execute_limited(timeout=timeout)
    check_endless_ends(s, plan)


def test_a_run_without_time_does_nothing() -> None:
    s = Sketch(8)
    s.op("increment", "x", "y")
    plan = s.build("y")
    with pytest.raises(TimedOutError, match="come to step 0 of 1"):
        plan.execute_limited(timeout=0)
    np.testing.assert_array_equal(s.buffers["y"].array(), np.zeros(8))


def test_a_run_in_time_is_like_any_other(calls: list[Any]) -> None:
    s, plan = calling(3)
    plan.execute_limited(timeout=1000)
    plan.execute_limited(timeout=float("inf"))
    plan.execute_limited()
    np.testing.assert_array_equal(s.buffers["x"].numpy(), np.full(8, 9))


def test_a_limit_is_over_with_its_run() -> None:
    s, plan = endless("while")
    with pytest.raises(TimedOutError, match="must be over"):
        plan.execute_limited(timeout=0.01)
    words = table_of(plan).words
    assert words[Header.UNTIL] == 0
    codes = codes_of(plan)
    check_endless_ends(s, plan)
    assert codes == [Code.OK]


def test_no_step_is_begun_after_a_custom_function_that_took_too_long(calls: list[Any]) -> None:
    for seconds in LONGER:
        s, plan = calling(3)
        calls[:] = [int, partial(time.sleep, 2 * seconds), lambda: pytest.fail("called")]
        with pytest.raises(TimedOutError, match=f"within {seconds} s, this one had") as caught:
            plan.execute_limited(timeout=seconds)
        if len(calls) == 1:  # the second one was called in time
            break
    assert "come to step 4 of 7" in str(caught.value)
    np.testing.assert_array_equal(s.buffers["x"].array(), np.ones(8))


@pytest.mark.parametrize("wrong", [-1, float("nan"), "1", True, [1]])
def test_a_timeout_is_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(PlanError, match="timeout must be seconds >= 0, or None"):
        RunLimits(timeout=wrong)


def test_calls_have_limits_too() -> None:
    (count,), _ = Tensor.loop(
        Variable("t", 1, 1 << 40), [Tensor.input("x", (8,))], lambda s, h: ([h[0] + 1], [])
    )
    plan = count.prepare(threads=1)
    run, slots = plan.calls.run, plan.calls.slots
    short, long = RunLimits(timeout=0.02), RunLimits(timeout=1000)
    for _ in range(2):
        for _ in range(2):
            np.testing.assert_array_equal(run({"x": X}, COPIES, {"t": 3}, long), X + 3)
            np.testing.assert_array_equal(slots([X], COPIES, long), X + 3)
        with pytest.raises(TimedOutError, match=r"within 0.02 s"):
            run({"x": X}, COPIES, {"t": 1 << 40}, short)
        with pytest.raises(TimedOutError, match=r"within 0.02 s"):
            slots([X], COPIES, short)


# ---------------------------------------------------------------- waiting for others


@pytest.mark.parametrize("lane", ["compute", "copy"])
def test_who_waits_for_a_signal_is_ended(lane: str) -> None:
    never = TimelineSignal("never")
    s = Sketch(8)
    s.op("increment", "x", "y")
    s.builder.add_op(PreparedWait(1, never, 1, lane=lane))
    s.builder.add_op(PreparedCopy(2, (s.buffer("out"), s.buffer("y")), lane=lane))
    plan = s.build("out")
    for _ in range(2):
        with pytest.raises(TimedOutError, match=r"within 0.02 s.*'never' must reach 1, it is at 0"):
            plan.execute_limited(timeout=0.02)
        thread = cancel_soon(plan)
        with pytest.raises(CancelledError, match="was cancelled"):
            plan.execute()
        thread.join()
    never.set(1)
    plan.execute()
    np.testing.assert_array_equal(s.buffers["out"].numpy(), np.ones(8))


def test_all_lanes_of_a_run_end_with_it() -> None:
    s = Sketch(8)
    s.begin_while("p", 1 << 50)
    s.run()
    s.op("increment", "x", "y")
    s.end()
    s.builder.add_op(PreparedCopy(2, (s.buffer("out"), s.buffer("z")), lane="copy"))
    plan = s.build("out", "y")
    set_flag(s.buffers["p"], True)
    for _ in range(2):
        thread = cancel_soon(plan)
        with pytest.raises(CancelledError, match="was cancelled"):
            plan.execute()
        thread.join()
        with pytest.raises(TimedOutError, match="must be over"):
            plan.execute_limited(timeout=0.02)
    set_flag(s.buffers["p"], False)
    plan.execute()


# ---------------------------------------------------------------- states


def test_a_cancelled_run_moves_no_cursor_and_spoils_what_it_has_updated() -> None:
    g = Graph("g")
    x, log, total = g.input("x", (1, 8)), g.state("log", (4, 8)), g.state("total", (8,))
    runs = g.state("runs", (8,))
    rows = log.append(x)
    first = rows.sum(0) + runs.update(x[0, :4], (2,)).cumsum(0) * 0
    (slow,), _ = Tensor.loop(Variable("t", 1, 1 << 40), [first], lambda s, h: ([h[0] + 1], []))
    g.output("y", total + slow, feeds=total)
    plan = g.prepare(threads=1)
    run = plan.calls.run
    run({"x": X[None]}, COPIES, {"t": 2})
    before = plan.states.snapshot()
    for seconds in LONGER:
        with pytest.raises(TimedOutError, match=f"within {seconds} s"):
            run({"x": X[None]}, COPIES, {"t": 1 << 40}, RunLimits(timeout=seconds))
        if not plan.states["runs"].is_valid:
            break
    assert plan.states.cursors == dict(before.cursors)
    assert plan.states["log"].is_valid  # nobody reads the row that may be there
    assert plan.states["total"].is_valid  # it was not reached
    assert plan.states.read("total").tolist() == before.arrays["total"].tolist()
    assert not plan.states["runs"].is_valid
    with pytest.raises(StateError, match=r"'runs'\] is invalid: a run that updated it in place"):
        plan.execute()
    plan.states.restore(before)
    np.testing.assert_array_equal(run({"x": X[None]}, COPIES, {"t": 2}), 3 * X + 4)
