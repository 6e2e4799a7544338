"""Native lanes: runs and functions in order, failures with their values, no hangs."""

from __future__ import annotations

import gc
import os
import random
import signal as system
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.forks import in_child
from tests.fuzz.interrupts import find_places, interrupt, where
from tests.plan.build import Sketch

import semel
from semel import ExecutionPlan, Tensor, TimelineSignal, Variable
from semel.errors import BusyError, CancelledError, CustomFunctionError, PlanError, TimedOutError
from semel.plan.rows import PreparedCopy, PreparedCustomFunction
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function, unregister_custom_function
from semel.runtime.native_lane import NativeLane

X = np.arange(16, dtype=np.float32)


def counting() -> tuple[Sketch, ExecutionPlan]:
    """x = x + 1 at each run: how often it ran."""
    s = Sketch(16)
    return s, count_on(s)


def count_on(s: Sketch) -> ExecutionPlan:
    s.op("increment", "x", "y")
    s.builder.add_op(PreparedCopy(9, (s.buffer("x"), s.buffer("y"))))
    return s.build("x")


def runs(s: Sketch) -> float:
    return float(s.buffers["x"].numpy()[0])


@pytest.fixture
def calls() -> Iterator[list[Callable[[], object]]]:
    """What the custom function "lane_call" does, one after the other; then out = in."""
    todo: list[Callable[[], object]] = []

    @custom_function("lane_call", reads=(0,), writes=(1,))
    def call(attrs: Any, buffers: Sequence[Buffer], variables: Any) -> None:
        for each in todo:
            each()
        buffers[1].copyin(buffers[0].numpy())

    yield todo
    unregister_custom_function("lane_call")


def hosted() -> tuple[Sketch, ExecutionPlan]:
    """z = x + 1 by way of a row of the host."""
    s = Sketch(16)
    s.op("increment", "x", "y")
    s.builder.add_op(PreparedCustomFunction(1, "lane_call", None, (s.buffer("y"), s.buffer("z"))))
    s.buffers["x"].copyin(X)
    return s, s.build("z")


# ---------------------------------------------------------------- order


def test_runs_and_functions_are_done_in_order() -> None:
    lane, (s, plan) = NativeLane("one"), counting()
    seen: list[float] = []
    values = []
    for _ in range(50):
        values.append(lane.submit_run(plan))
        values.append(lane.submit_call(lambda: seen.append(runs(s))))
    assert values == list(range(1, 101))
    assert lane.timeline.wait(100, timeout=100) and lane.num_pending == 0
    assert seen == list(range(1, 51))
    assert repr(lane) == "NativeLane('one', 0 pending)"


def test_a_submission_waits_for_what_it_follows() -> None:
    go, lane, (s, plan) = TimelineSignal("go"), NativeLane(), counting()
    first = lane.submit_run(plan, [(go, 3)])
    second = lane.submit_call(lambda: None)
    go.set(2)
    with pytest.raises(TimedOutError, match=r"within 0.05 s, it is at 0"):
        lane.timeline.wait(first, timeout=0.05)
    with pytest.raises(
        TimedOutError, match=r"'lane'\] must be done with submission 2 .* done 0 of"
    ):
        lane.sync(timeout=0)
    go.set(3)
    lane.timeline.wait(second, timeout=100)
    assert runs(s) == 1


def test_lanes_hand_work_back_and_forth() -> None:
    """Each run follows the one before, on the other lane: on the same bytes."""
    lanes = NativeLane("a"), NativeLane("b")
    (s, plan), t = counting(), Sketch(16)
    for name in ("x", "y"):
        t.buffer(name, s.buffers[name])
    other = count_on(t)
    value = 0
    for turn in range(300):
        after = [(lanes[1 - turn % 2].timeline, value)] if value else []
        value = lanes[turn % 2].submit_run((plan, other)[turn % 2], after)
    for lane in lanes:
        lane.sync(timeout=100)
    assert runs(s) == 300


def test_many_signals_can_be_waited_for() -> None:
    lane, seen = NativeLane(), []
    signals = [TimelineSignal(f"s{k}") for k in range(20)]
    value = lane.submit_call(lambda: seen.append(1), [(s, 1) for s in signals])
    for signal in signals:
        assert not seen
        signal.set(1)
    lane.timeline.wait(value, timeout=100)
    assert seen == [1]


def test_submissions_come_from_any_thread() -> None:
    lane = NativeLane()
    seen: list[tuple[int, int]] = []

    def submit(who: int) -> None:
        for i in range(200):
            lane.submit_call(partial(seen.append, (who, i)))

    threads = [threading.Thread(target=submit, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    lane.sync(timeout=60)
    for who in range(4):
        assert [i for w, i in seen if w == who] == list(range(200))


def test_a_full_lane_lets_submitters_wait() -> None:
    go, lane = TimelineSignal("go"), NativeLane("full")
    (s, plan) = counting()
    lane.submit_run(plan, [(go, 1)])

    def submit() -> None:
        for _ in range(600):
            lane.submit_run(plan)

    thread = threading.Thread(target=submit)
    thread.start()
    while lane.num_pending < 256:
        time.sleep(0.001)
    thread.join(0.05)
    assert thread.is_alive() and lane.num_pending == 256
    go.set(1)
    thread.join(100)
    lane.sync(timeout=100)
    assert runs(s) == 601


def test_work_of_a_lane_cannot_wait_for_it() -> None:
    lane = NativeLane("own")
    value = lane.submit_call(lane.sync)
    lane.timeline.await_value(value, 100)  # nothing comes after it: but for itself
    assert isinstance(lane.failure(value), PlanError)

    def many() -> None:
        for _ in range(300):
            lane.submit_call(int)

    value = lane.submit_call(many)
    with pytest.raises(PlanError, match=r"is full .256 pending., and its own work cannot wait"):
        lane.timeline.wait(value, timeout=100)
    lane.sync(timeout=100)


def test_what_is_no_work_is_refused() -> None:
    lane = NativeLane("typed")
    with pytest.raises(PlanError, match="must call a function, got 3"):
        lane.submit_call(3)  # type: ignore[arg-type]
    with pytest.raises(semel.UserError, match="after"):
        lane.submit_call(int, [("go", 1)])  # type: ignore[list-item]
    lane.close()
    with pytest.raises(PlanError, match="is closed"):
        lane.submit_call(int)


# ---------------------------------------------------------------- plans of lanes


def test_rows_of_the_host_are_done_by_python(calls: list[Callable[[], object]]) -> None:
    lane, (s, plan) = NativeLane(), hosted()
    for turn in range(20):
        s.buffers["x"].copyin(X + turn)
        value = lane.submit_run(plan)
        assert s.buffers["z"].numpy()[1] == turn + 2  # who reads waits
        assert lane.timeline.is_reached(value)


def test_a_plan_that_shares_its_work_starts_the_pool() -> None:
    x = Tensor.input("x", (1 << 18,), "float32")
    plan, lane = (x.exp() + 1).prepare(threads=2), NativeLane()
    plan(x=np.zeros(1 << 18, np.float32))
    for _ in range(5):
        lane.submit_run(plan)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(1 << 18, 2))
    assert lane.timeline.value == 5


def test_arrays_that_are_bound_are_used() -> None:
    x = Tensor.input("x", (16,), "float32")
    plan, lane = (x + 1).prepare(threads=1), NativeLane()
    out = np.zeros(16, np.float32)
    plan.bind_input("x", X)
    plan.bind_output(plan.outputs[0].name, out)
    lane.timeline.wait(lane.submit_run(plan), timeout=100)
    np.testing.assert_array_equal(out, X + 1)


def test_who_uses_a_plan_that_a_lane_has_waits() -> None:
    go, lane, (s, plan) = TimelineSignal("go"), NativeLane(), counting()
    lane.submit_run(plan, [(go, 1)])
    lane.submit_run(plan)
    found: list[object] = []
    actions: list[Callable[[], object]] = [
        plan.execute,
        lambda: found.append(runs(s)),
        partial(s.buffers["y"].copyin, np.ones(16, np.float32)),
    ]
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.02)
        assert thread.is_alive()
    go.set(1)
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    assert found in ([2.0], [3.0]) and runs(s) == 3
    plan.execute()
    assert runs(s) == 4


def test_a_plan_goes_from_lane_to_lane() -> None:
    go, (s, plan) = TimelineSignal("go"), counting()
    first, second = NativeLane("first"), NativeLane("second")
    first.submit_run(plan, [(go, 1)])
    value = second.submit_run(plan)
    with pytest.raises(TimedOutError, match=r"within 0\.02 s"):
        second.timeline.wait(value, timeout=0.02)
    go.set(1)
    second.timeline.wait(value, timeout=100)
    assert runs(s) == 2


def test_a_failure_on_one_lane_is_not_that_of_the_next(calls: list[Callable[[], object]]) -> None:
    """The plan goes on to another lane behind a run that fails, not because of it."""
    go, (_, plan) = TimelineSignal("go"), hosted()
    first, second = NativeLane("first"), NativeLane("second")

    def fail_once() -> None:
        calls.clear()
        raise ValueError("once")

    calls.append(fail_once)
    bad = first.submit_run(plan, [(go, 1)])
    good = second.submit_run(plan)
    go.set(1)
    second.timeline.wait(good, timeout=100)
    assert isinstance(first.failure(bad), CustomFunctionError)


def test_a_plan_cannot_be_used_inside_its_run(calls: list[Callable[[], object]]) -> None:
    lane, (s, plan) = NativeLane(), hosted()
    for action in (plan.execute, s.buffers["z"].numpy):
        calls[:] = [action]
        with pytest.raises(BusyError, match="cannot be used inside itself"):
            lane.timeline.wait(lane.submit_run(plan), timeout=100)
    calls[:] = [partial(lane.submit_run, plan)]
    with pytest.raises(BusyError, match="cannot be used inside itself"):
        plan.execute()
    calls.clear()
    lane.timeline.wait(lane.submit_run(plan), timeout=100)


def test_work_of_a_lane_may_use_plans_between_their_runs() -> None:
    lane, (s, plan) = NativeLane(), counting()
    seen: list[float] = []

    def use() -> None:
        plan.execute()
        seen.append(runs(s))
        lane.submit_run(plan)

    all_submitted = threading.Event()
    lane.submit_call(all_submitted.wait)  # else the runs that `use` submits come in between
    for _ in range(20):
        lane.submit_run(plan)
        lane.submit_call(use)
    lane.submit_run(plan)
    all_submitted.set()
    while lane.num_pending:
        lane.sync(timeout=100)
    assert seen == list(range(2, 41, 2)) and runs(s) == 61


def test_a_run_on_a_lane_can_be_cancelled() -> None:
    s = Sketch(16)
    s.begin(1 << 40)
    s.op("increment", "x", "y")
    s.end()
    plan, lane = s.build("y"), NativeLane()
    value = lane.submit_run(plan)
    while not lane.timeline.is_reached(value):
        plan.cancel()
        time.sleep(0.001)
    assert isinstance(lane.failure(value), CancelledError)


def test_memory_grows_where_a_run_needs_more() -> None:
    n = Variable("n", 1)
    x = Tensor.input("x", (n,), "float32")
    plan, lane = (x.softmax(-1) * n).prepare(threads=1), NativeLane()
    for size in (4, 4000, 5):
        data = np.full(size, 2, np.float32)
        plan.buffers[plan.engine.parts.input_io[0].index].copyin(data)
        with plan.lock:
            plan.engine.bind({"n": size})
            value = lane.submit_run(plan)
        lane.timeline.wait(value, timeout=100)
        np.testing.assert_allclose(plan.output_buffer.numpy(), np.ones(size), rtol=1e-5)


# ---------------------------------------------------------------- failures


def test_a_failure_belongs_to_its_value() -> None:
    lane, other, seen = NativeLane("first"), NativeLane("second"), []
    bad = lane.submit_call(lambda: 1 // 0)
    good = lane.submit_call(lambda: seen.append("good"))
    kin = other.submit_call(lambda: seen.append("never"), [(lane.timeline, bad)])
    grandkin = lane.submit_call(lambda: seen.append("never"), [(other.timeline, kin)])
    free = other.submit_call(lambda: seen.append("free"), [(lane.timeline, good)])
    for signal, value in ((lane.timeline, bad), (other.timeline, kin), (lane.timeline, grandkin)):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="division") as caught:
                signal.wait(value, timeout=100)
            assert caught.value.__notes__ == ["submission 1 of lane 'first'"]
    lane.timeline.wait(good, timeout=100)
    other.timeline.wait(free, timeout=100)
    assert sorted(seen) == ["free", "good"]
    assert lane.failure(good) is None and lane.failure(bad) is lane.failure(grandkin)


def test_a_failed_check_of_a_kernel_is_a_failure() -> None:
    s = Sketch(16, "int64")
    s.op("check", "x", "y")
    plan, lane = s.build("y"), NativeLane()
    s.buffers["x"].copyin(np.arange(16))
    bad = lane.submit_run(plan)
    with pytest.raises(semel.IndexRangeError, match="10"):
        lane.timeline.wait(bad, timeout=100)
    with pytest.raises(semel.StaleError, match="the last execute failed"):
        s.buffers["y"].numpy()
    s.buffers["x"].copyin(np.arange(16) % 7)
    lane.timeline.wait(lane.submit_run(plan), timeout=100)
    np.testing.assert_array_equal(s.buffers["y"].numpy(), np.arange(16) % 7)


def test_a_row_of_the_host_that_raises_is_a_failure(calls: list[Callable[[], object]]) -> None:
    lane, (s, plan) = NativeLane(), hosted()
    calls.append(lambda: 1 // 0)
    with pytest.raises(CustomFunctionError, match="ZeroDivisionError"):
        lane.timeline.wait(lane.submit_run(plan), timeout=100)
    calls.clear()
    lane.submit_run(plan)
    np.testing.assert_array_equal(s.buffers["z"].numpy(), X + 1)


def test_a_released_plan_is_a_failure() -> None:
    lane, (_, plan) = NativeLane(), counting()
    plan.release_all_buffers()
    with pytest.raises(semel.ReleasedError, match="released"):
        lane.timeline.wait(lane.submit_run(plan), timeout=100)


def test_of_many_failures_the_first_and_the_last_are_kept() -> None:
    lane = NativeLane()

    def fail(k: int) -> None:
        raise ValueError(f"number {k}")

    for k in range(1, 301):
        lane.submit_call(partial(fail, k))
    lane.sync(timeout=60)
    unseen = lane.timeline.unseen()
    assert (unseen[0][0], str(unseen[0][1])) == (1, "number 1")
    assert str(lane.failure(1)) == "number 1"
    assert lane.timeline.unseen() == unseen[1:], "the first one was seen"
    assert str(lane.failure(300)) == "number 300"
    assert len(lane.timeline._failures) == 64
    assert lane.timeline.has_failed(2), "that it failed is known longer than why"
    with pytest.raises(PlanError, match="what 2 stands for has failed, or may have"):
        lane.timeline.wait(2)


def test_of_too_many_failures_none_is_taken_for_a_success() -> None:
    signal = TimelineSignal("busy")
    for value in range(2, 10_002, 2):
        signal.note_failure(value, ValueError(str(value)))
    signal.set(10_001)
    assert all(signal.has_failed(value) for value in range(2, 10_002, 2))
    assert not signal.has_failed(10_001)
    assert not signal.has_failed(9_999)
    assert len(signal._failures) + len(signal._forgotten) <= 64 + 4096
    with pytest.raises(PlanError, match="or may have"):
        signal.wait(3)  # long ago: nobody knows


def submit_one(lane: NativeLane) -> None:
    lane.timeline.wait(lane.submit_call(int), timeout=100)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("seed", range(3))
def test_a_storm(seed: int) -> None:
    """Threads submit to lanes at random, what follows what at random, among signals and forks."""
    lanes = [NativeLane(f"lane{k}") for k in range(3)]
    plans = [counting() for _ in lanes]
    done: list[tuple[int, int]] = []  # (lane, value) of the functions that went well
    needs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    bad: set[tuple[int, int]] = set()
    ran, lock = [0] * len(lanes), threading.Lock()

    def work(place: list[tuple[int, int]], is_bad: bool) -> None:
        while not place:
            time.sleep(0)  # who submits is about to say which it is
        if is_bad:
            raise ValueError(str(place[0]))
        done.append(place[0])

    def submit(who: int) -> None:
        rng = random.Random(10 * seed + who)
        for _ in range(100):
            k = rng.randrange(len(lanes))
            with lock:
                known = list(needs)
            after = rng.sample(known, min(len(known), rng.randrange(3)))
            signals = [(lanes[lane].timeline, value) for lane, value in after]
            if rng.random() < 0.3:
                value = lanes[k].submit_run(plans[k][1])
                with lock:
                    ran[k] += 1
                    needs[k, value] = []
                continue
            place: list[tuple[int, int]] = []
            is_bad = rng.random() < 0.1
            value = lanes[k].submit_call(partial(work, place, is_bad), signals)
            with lock:
                needs[k, value] = after
                if is_bad:
                    bad.add((k, value))
            place.append((k, value))

    threads = [threading.Thread(target=submit, args=(who,)) for who in range(3)]
    before = system.signal(system.SIGALRM, lambda *_: None)
    try:
        system.setitimer(system.ITIMER_REAL, 0.001, 0.001)
        for thread in threads:
            thread.start()
        for lane in lanes:
            in_child(partial(submit_one, lane))
        for thread in threads:
            thread.join(100)
        for lane in lanes:
            lane.sync(timeout=60)
    finally:
        system.setitimer(system.ITIMER_REAL, 0)
        system.signal(system.SIGALRM, before)
    failed: set[tuple[int, int]] = set()
    while more := {p for p in needs if p in bad or failed & set(needs[p])} - failed:
        failed |= more
    assert failed == {p for p in needs if lanes[p[0]].timeline.has_failed(p[1])}
    order = {place: at for at, place in enumerate(done)}
    for place, at in order.items():
        assert all(order.get(other, -1) < at for other in needs[place])
    for k, (s, _) in enumerate(plans):
        assert runs(s) == ran[k]
        assert [v for lane, v in done if lane == k] == sorted(v for lane, v in done if lane == k)


# ---------------------------------------------------------------- memory and threads


def test_work_that_is_done_holds_nothing() -> None:
    class Large:
        pass

    lane, large = NativeLane(), Large()
    gone = weakref.ref(large)
    lane.submit_call(partial(id, large))
    del large
    _, plan = counting()
    engine = weakref.ref(plan.engine)
    lane.submit_run(plan)
    lane.sync(timeout=100)
    del plan, _
    until = time.monotonic() + 100  # the lane says when it has nothing to do
    while (gone() or engine()) and time.monotonic() < until:
        time.sleep(0.001)
        gc.collect()
    assert gone() is None and engine() is None


def test_many_submissions_leave_memory_flat() -> None:
    lane, (s, plan) = NativeLane(), counting()
    for _ in range(2000):
        lane.submit_run(plan)
    lane.sync(timeout=60)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            lane.submit_run(plan)
        lane.sync(timeout=60)
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()
    assert runs(s) == 22_000


def tasks() -> set[int]:
    return {int(task) for task in os.listdir("/proc/self/task")}


def test_a_lane_that_nobody_holds_ends_with_its_work() -> None:
    NativeLane().submit_call(int)  # whatever starts with the first one is there now
    go, lane, ended = TimelineSignal("go"), NativeLane(), threading.Event()
    before = tasks()
    lane.submit_call(ended.set, [(go, 1)])
    new = tasks() - before
    assert len(new) == 2
    del lane
    gc.collect()
    go.set(1)
    assert ended.wait(100)
    until = time.monotonic() + 100
    while tasks() & new and time.monotonic() < until:
        time.sleep(0.001)
    assert not tasks() & new


def test_a_lane_runs_on_its_cpus() -> None:
    before, own = tasks(), sorted(os.sched_getaffinity(0))
    lane = NativeLane("placed", cpus=own[-1:])
    lane.timeline.wait(lane.submit_call(int), timeout=100)
    assert [own[-1:]] == [
        sorted(found)
        for task in tasks() - before
        if len(found := os.sched_getaffinity(task)) < len(own) or len(own) == 1
    ][:1]


# ---------------------------------------------------------------- signals, forks, ends


def test_a_signal_handler_may_raise_anywhere() -> None:
    lane, (s, plan) = NativeLane(), counting()
    go = TimelineSignal("go", 1)
    use = partial(lane.submit_run, plan, [(go, 1)])
    lane.timeline.wait(use(), timeout=100)

    def stop() -> None:
        raise KeyboardInterrupt("stop")

    came = 0
    for place in find_places(use):
        try:
            came += interrupt(use, place, stop)
        except KeyboardInterrupt:
            came += 1
        count = runs(s)
        lane.timeline.wait(lane.submit_run(plan), timeout=100)
        plan.execute()
        assert runs(s) == count + 2, where(place)
    assert came > 10


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_lane_of_its_own() -> None:
    go, lane, (s, plan) = TimelineSignal("go"), NativeLane("forked"), counting()
    first = lane.submit_run(plan, [(go, 1)])
    second = lane.submit_call(int)

    def child() -> None:
        for value in (first, second):
            with pytest.raises(PlanError, match=r"'forked'\] the process was forked before this"):
                lane.timeline.wait(value, timeout=100)
        assert lane.num_pending == 0
        s.buffers["x"].copyin(np.zeros(16, np.float32))
        lane.timeline.wait(lane.submit_run(plan), timeout=100)
        assert runs(s) == 1
        go.set(1)

    in_child(child)
    assert not lane.timeline.is_reached(first)
    go.set(1)
    lane.timeline.wait(second, timeout=100)
    assert runs(s) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_work_that_forks_goes_on_in_the_parent(calls: list[Callable[[], object]]) -> None:
    lane, (s, plan) = NativeLane(), hosted()

    def child() -> None:
        calls.clear()
        s.buffers["x"].copyin(X)
        plan.execute()
        np.testing.assert_array_equal(s.buffers["z"].numpy(), X + 1)
        lane.timeline.wait(lane.submit_call(int), timeout=100)

    calls.append(lambda: in_child(child))
    lane.timeline.wait(lane.submit_run(plan), timeout=60)
    lane.timeline.wait(lane.submit_call(lambda: in_child(lambda: None)), timeout=60)
    np.testing.assert_array_equal(s.buffers["z"].numpy(), X + 1)


_ENDING = """
import threading, time
import numpy as np
import semel
from semel import Tensor, TimelineSignal
from semel.runtime.native_lane import NativeLane
x = Tensor.input("x", (1 << 20,), "float32")
y = x
for _ in range({layers}):
    y = (y.exp() + x).cumsum(0)
plan = y.prepare(threads=1)
plan(x=np.zeros(1 << 20, np.float32))
lane, other, never = NativeLane(), NativeLane(), TimelineSignal("never")
other.submit_run(plan.clone(), [(never, 1)])
for _ in range(100):
    lane.submit_run(plan)
lane.submit_call({call})
lane.submit_call(lambda: print("never"))
time.sleep(0.05)
print("end", flush=True)
"""


@pytest.mark.parametrize("call", ["threading.Event().wait", "int"])
@pytest.mark.parametrize("layers", [1, 30])
def test_the_interpreter_can_end_while_lanes_work(call: str, layers: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _ENDING.format(call=call, layers=layers)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "end\n", "")


def test_nothing_starts_before_it_is_needed() -> None:
    code = """
import os, semel
from semel.runtime.native_lane import NativeLane
from semel import TimelineSignal
from semel.runtime import timeline
before = len(os.listdir("/proc/self/task"))
lane, signal = NativeLane("idle"), TimelineSignal("s", 3)
assert signal.wait(3) and signal.is_reached(2) and not lane.num_pending
assert len(os.listdir("/proc/self/task")) == before and timeline._functions is None
lane.sync()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
