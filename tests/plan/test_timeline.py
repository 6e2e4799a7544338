"""Signals that only grow, and rows that reach them and wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forks import in_child
from tests.fuzz.interrupts import find_places, interrupt
from tests.plan.build import Sketch
from tests.plan.signals import handling

import semel
from semel import TimelineSignal, Variable
from semel.errors import PlanError, TimedOutError
from semel.plan import ExecutionPlan, PreparedCopy, PreparedSignal, PreparedWait
from semel.runtime import timeline

N = Variable("n", 0, 1 << 20)


def started(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def copying(*rows: Any, first: bool = True) -> tuple[Sketch, ExecutionPlan]:
    """out = x, with these rows before the copy or after it."""
    s = Sketch(4)
    copy = PreparedCopy(9, (s.buffer("out"), s.buffer("x")))
    for row in (*rows, copy) if first else (copy, *rows):
        s.builder.add_op(row)
    return s, s.build("out")


# ---------------------------------------------------------------- signals


def test_what_was_reached_stays_reached() -> None:
    signal = TimelineSignal("s")
    assert signal.value == 0 and signal.wait(0) and signal.wait(-5)
    with pytest.raises(TimedOutError, match=r"'s'\] must reach 1 within 0.01 s, it is at 0"):
        signal.wait(1, timeout=0.01)
    signal.set(3)
    assert signal.wait(1) and signal.wait(3)
    assert signal.is_reached(3) and not signal.is_reached(4)
    signal.set(3)
    with pytest.raises(PlanError, match="must not go back: it is at 3, got 2"):
        signal.set(2)
    assert repr(signal) == "TimelineSignal('s', 3)"


@pytest.mark.parametrize("wrong", ["3", 1.5, None, 1 << 70])
def test_a_value_is_an_int(wrong: Any) -> None:
    with pytest.raises(semel.UserError, match="value"):
        TimelineSignal("s").set(wrong)


def test_a_timeout_of_nothing_asks_once() -> None:
    signal = TimelineSignal("s", 7)
    assert signal.wait(7, timeout=0) and signal.wait(7, timeout=float("inf"))
    with pytest.raises(TimedOutError, match=r"'s'\] must reach 8 within 0 s, it is at 7") as caught:
        signal.wait(8, timeout=0)
    assert (caught.value.signal, caught.value.value) == ("s", 8)  # type: ignore[attr-defined]
    with pytest.raises(semel.UserError, match="timeout"):
        signal.wait(8, timeout="soon")  # type: ignore[arg-type]


def asleep(thread: threading.Thread) -> bool:
    with open(f"/proc/self/task/{thread.native_id}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("step", [1, 1 << 32, (1 << 32) - 1])
def test_who_sleeps_is_woken_whatever_the_step(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits a futex, half of the value, is the same after a step of 2^32."""
    monkeypatch.setattr(timeline, "_SLICE_NS", 10**12)  # nobody looks by itself
    signal = TimelineSignal("s")
    for turn in range(1, 4):
        thread = started(partial(signal.wait, turn * step))
        while not asleep(thread):
            time.sleep(0.001)
        signal.set(turn * step)
        thread.join(100)
        assert not thread.is_alive()


def test_a_signal_that_is_gone_leaves_its_line_to_another() -> None:
    first = TimelineSignal("first", 5)
    address, seen = first.address, set()
    del first
    for _ in range(200):
        seen.add((other := TimelineSignal("other")).address)
        assert other.value == 0
    assert address in seen and len(seen) < 70


def test_many_wait_for_one_and_one_for_many() -> None:
    there, back = TimelineSignal("there"), [TimelineSignal(f"back{k}") for k in range(4)]

    def answer(own: TimelineSignal) -> None:
        for i in range(1, 101):
            there.wait(i)
            own.set(i)

    threads = [started(partial(answer, own)) for own in back]
    for i in range(1, 101):
        there.set(i)
        for own in back:
            assert own.wait(i, timeout=100)
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on_with_the_value() -> None:
    signal = TimelineSignal("s", 3)
    waiting = started(lambda: signal.wait(4))
    while not asleep(waiting):
        time.sleep(0.001)

    def child() -> None:
        assert signal.value == 3
        thread = started(lambda: signal.wait(9))
        signal.set(9)
        thread.join(100)
        assert not thread.is_alive()

    in_child(child)
    assert signal.value == 3
    signal.set(4)
    waiting.join(100)
    assert not waiting.is_alive()


def test_no_wake_up_is_lost() -> None:
    ping, pong = TimelineSignal("ping"), TimelineSignal("pong")

    def answer() -> None:
        for i in range(1, 301):
            ping.wait(i)
            pong.set(i)

    thread = started(answer)
    for i in range(1, 301):
        ping.set(i)
        assert pong.wait(i, timeout=100)
    thread.join(100)
    assert not thread.is_alive()


def test_who_waits_can_be_asked_to_give_up() -> None:
    signal, is_over, answers = TimelineSignal("s"), threading.Event(), []
    thread = started(lambda: answers.append(signal.wait(1, unless=is_over.is_set)))
    signal.nudge()
    is_over.set()
    signal.nudge()
    thread.join(100)
    assert answers == [False]
    signal.set(1)
    assert signal.wait(1, unless=is_over.is_set)


@pytest.mark.parametrize("action", ["set", "wait", "nudge"])
def test_a_handler_that_raises_leaves_a_signal_that_works(action: str) -> None:
    signal = TimelineSignal("s")

    def use() -> None:
        if action == "nudge":
            signal.nudge()
        else:
            getattr(signal, action)(signal.value)

    def stop() -> None:
        raise KeyboardInterrupt("stop")

    for place in find_places(use):
        with suppress(KeyboardInterrupt):
            interrupt(use, place, stop)
        thread = started(lambda: signal.set(signal.value + 1))
        thread.join(100)
        assert not thread.is_alive(), place


# ---------------------------------------------------------------- rows


def test_a_run_waits_until_the_value_is_reached() -> None:
    signal = TimelineSignal("go")
    s, plan = copying(PreparedWait(1, signal, N))
    s.buffers["x"].copyin(np.ones(4, np.float32))
    signal.set(2)
    plan.execute_with_vars(n=2)
    thread = started(lambda: plan.execute_with_vars(n=3))
    thread.join(0.05)
    assert thread.is_alive()
    signal.set(5)
    thread.join(100)
    assert not thread.is_alive()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.ones(4))


def test_a_signal_comes_after_all_rows_before_it() -> None:
    signal = TimelineSignal("done")
    s, plan = copying(PreparedSignal(1, signal, N * 10), first=False)
    assert plan.steps == [[[0]], [[1]]] and plan.op_dependencies[1] == (0,)
    assert plan.signals == {"done": signal}
    s.buffers["x"].copyin(np.ones(4, np.float32))
    plan.execute_with_vars(n=4)
    assert signal.value == 40
    with pytest.raises(PlanError, match="must not go back"):
        plan.execute_with_vars(n=3)
    plan.execute_with_vars(n=5)


def test_a_wait_for_less_than_nothing_is_over() -> None:
    s, plan = copying(PreparedWait(1, TimelineSignal("go"), N - 4))
    s.buffers["x"].copyin(np.ones(4, np.float32))
    for n in (0, 4):
        plan.execute_with_vars(n=n)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.ones(4))


def test_two_plans_hand_data_back_and_forth() -> None:
    """One doubles what the other incremented, a hundred times, on the same bytes."""
    there, back = TimelineSignal("there"), TimelineSignal("back")
    step = Variable("step", 0, 99)
    left = Sketch(4)
    left.begin(100)
    left.op("increment", "x", "y")
    left.builder.add_op(PreparedSignal(1, there, step + 1))
    left.builder.add_op(PreparedWait(2, back, step + 1))
    left.end()
    one = left.build("y")
    right = Sketch(4)
    right.buffer("y", left.buffers["y"])
    right.buffer("x", left.buffers["x"])
    right.begin(100)
    right.builder.add_op(PreparedWait(1, there, step + 1))
    right.op("increment", "y", "x")
    right.builder.add_op(PreparedSignal(2, back, step + 1))
    right.end()
    two = right.build("x")
    left.buffers["x"].copyin(np.zeros(4, np.float32))
    thread = started(two.execute)
    one.execute()
    thread.join(100)
    assert not thread.is_alive() and there.value == back.value == 100
    np.testing.assert_array_equal(left.buffers["x"].numpy(), np.full(4, 200))


def test_a_wait_can_be_interrupted() -> None:
    _, plan = copying(PreparedWait(1, TimelineSignal("never"), 1))

    def stop(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt("stop")

    with handling(stop) as interrupt, pytest.raises(KeyboardInterrupt, match="stop"):
        interrupt(plan)
        plan.execute()
    plan.signals["never"].set(1)
    plan.execute()


@pytest.mark.parametrize("lane", ["compute", "copy"])
def test_a_profile_shows_rows_that_wait(lane: str) -> None:
    go, done = TimelineSignal("go"), TimelineSignal("done")
    rows = PreparedWait(1, go, 1, lane=lane), PreparedSignal(2, done, 1, lane=lane)
    _, plan = copying(*rows)
    waiting = threading.Timer(0.01, go.set, (1,))
    waiting.start()
    spans = {p.op_index: p.spans for p in plan.execute_profiled(limits=False)}
    waiting.join(100)
    assert [len(spans[k]) for k in range(3)] == [1, 1, 1]
    assert spans[0][0].start_ns < spans[0][0].end_ns <= spans[1][0].start_ns


def test_files_and_clones_have_the_rows(tmp_path: Path) -> None:
    signal = TimelineSignal("done", 3)
    _, plan = copying(PreparedSignal(1, signal, N), PreparedWait(2, signal, 4), first=False)
    plan.save(tmp_path / "plan")
    loaded = semel.load_plan(tmp_path / "plan")
    assert loaded.signals["done"] is not signal and loaded.signals["done"].value == 3
    loaded.execute_with_vars(n=4)
    assert (loaded.signals["done"].value, signal.value) == (4, 3)
    clone = plan.clone()
    assert clone.signals["done"] is signal
    clone.execute_with_vars(n=7)
    assert signal.value == 7
    told = [(op.kind, op.name) for op in plan.explain().ops]
    assert told[1:] == [("signal", "signal done n"), ("wait", "wait done 4")]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(PlanError, match="'same' for two"):
        copying(
            PreparedSignal(1, TimelineSignal("same"), 1), PreparedWait(2, TimelineSignal("same"), 1)
        )
    with pytest.raises(PlanError, match="has no buffers"):
        s = Sketch(4)
        s.buffer("x")
        s.builder.add_op(PreparedWait(1, TimelineSignal("s"), 1, buffer_indices=(0,)))
        s.build("x")
    with pytest.raises(PlanError, match="signal must be a TimelineSignal"):
        PreparedWait(1, "go", 1)  # type: ignore[arg-type]
