"""Plans over several lanes: the same bits as on one, waits only where they must be, no hangs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forks import in_child
from tests.fuzz.interrupts import find_places, interrupt
from tests.plan.build import N, Sketch, typed
from tests.plan.kernels import kernel
from tests.plan.signals import handling

import semel
from semel import ExecutionPlan, TimelineSignal, config
from semel.devices.cpu.executable import CpuExecutable
from semel.errors import CustomFunctionError, PlanError, VariableError
from semel.ir.expr import Variable
from semel.plan.instantiate import instantiate
from semel.plan.program import PlanIO, PlanVariable, Program, ProgramValue
from semel.plan.rows import (
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedKernel,
    PreparedLoop,
    PreparedRebind,
    PreparedSignal,
    PreparedWait,
)
from semel.runtime import device as table
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function, unregister_custom_function
from semel.runtime.events import EventLog
from semel.runtime.laned import LanedExecutable

X = np.arange(16, dtype=np.float32)


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second device that computes, with memory that only copies reach."""
    monkeypatch.setitem(table.MODULES, "far", "tests.plan.far")
    yield
    table._open.pop("far", None)


@pytest.fixture
def calls() -> Iterator[list[Callable[[], object]]]:
    """What the custom function "lanes_call" does, one after the other; then out = in."""
    todo: list[Callable[[], object]] = []

    @custom_function("lanes_call", reads=(0,), writes=(1,))
    def call(attrs: Any, buffers: Sequence[Buffer], variables: Any) -> None:
        for each in todo:
            each()
        buffers[1].copyin(buffers[0].numpy())

    yield todo
    unregister_custom_function("lanes_call")


class Laned(Sketch):
    """A sketch whose rows name lanes; buffers that begin with "far" or "null" lie there."""

    def buffer(self, name: str, buffer: Buffer | None = None) -> int:
        device = next((d for d in ("far", "null") if name.startswith(d)), "cpu")
        if buffer is None and name not in self.index:
            buffer = Buffer.empty((self.elements,), self.dtype, device)
        return super().buffer(name, buffer)

    def copy(self, source: str, target: str, lane: str = "copy", device: str = "") -> int:
        self._next_id += 1
        pair = (self.buffer(target), self.buffer(source))
        return self.add(PreparedCopy(self._next_id, pair, device=device, lane=lane))

    def host(self, source: str, target: str, lane: str = "compute") -> int:
        self._next_id += 1
        pair = (self.buffer(source), self.buffer(target))
        return self.add(PreparedCustomFunction(self._next_id, "lanes_call", None, pair, lane=lane))

    def add(self, row: Any) -> int:
        return self.builder.add_op(row)


def waits(plan: ExecutionPlan) -> dict[int, tuple[int, ...]]:
    return plan.engine.linked.waits


def pipeline(**options: Any) -> tuple[Laned, ExecutionPlan]:
    """staged = x on the copy lane, y = staged + 1 here, out = y there; z = 2 x beside it."""
    s = Laned(16)
    s.copy("x", "staged")
    s.op("increment", "staged", "y")
    s.op("double", "x", "z")
    s.copy("y", "out")
    s.buffers["x"].copyin(X)
    return s, s.build("out", "z", **options)


# ---------------------------------------------------------------- results and waits


def test_copies_run_beside_kernels() -> None:
    s, plan = pipeline()
    assert isinstance(plan.engine.executable, LanedExecutable)
    assert waits(plan) == {1: (0,), 3: (1,)}
    for turn in range(20):
        s.buffers["x"].copyin(X + turn)
        plan.execute()
        np.testing.assert_array_equal(s.buffers["out"].numpy(), X + turn + 1)
        np.testing.assert_array_equal(s.buffers["z"].numpy(), 2 * (X + turn))


def test_a_plan_on_one_lane_knows_nothing_of_lanes() -> None:
    s = Laned(16)
    s.copy("x", "y", lane="compute")
    plan = s.build("y")
    assert type(plan.engine.executable) is CpuExecutable
    assert waits(plan) == {}
    assert plan.engine.enter == plan.engine.executable.call


def test_lanes_meet_in_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is entered to begin, to go on from there, and to end, however often they meet."""
    s = Laned(16)
    for k in range(40):
        s.copy(f"x{k}", f"x{k + 1}", lane="copy" if k % 2 else "compute")
    plan = s.build("x40")
    executable = plan.engine.executable
    assert isinstance(executable, LanedExecutable) and len(waits(plan)) == 39
    entered: list[int] = []

    def enter() -> int:
        entered.append(1)
        return executable._main.executable.call()

    monkeypatch.setattr(executable._main, "enter", enter)
    s.buffers["x0"].copyin(X)
    for turn in range(1, 6):
        plan.execute()
        assert len(entered) == 3 * turn
    np.testing.assert_array_equal(s.buffers["x40"].numpy(), X)


def test_rows_of_lanes_really_overlap(calls: list[Callable[[], object]]) -> None:
    """A host row of the caller goes on only when the copy lane has come to its signal."""
    met = TimelineSignal("met")
    calls.append(lambda: met.wait(1, timeout=100))
    s = Laned(16)
    s.host("x", "y")
    s.copy("a", "b")
    s.add(PreparedSignal(1, met, 1, lane="copy"))
    plan = s.build("y", "b")
    plan.execute()
    assert met.value == 1


def test_no_wait_that_earlier_ones_imply() -> None:
    s = Laned(16)
    s.op("increment", "x", "a")  # 0
    s.op("increment", "x", "b")  # 1
    s.copy("b", "c")  # 2 waits for 1
    s.copy("a", "d")  # 3: 0 was over before 1
    s.op("add", "c", "d", "e")  # 4 waits for 3, and so for 2
    s.op("increment", "c", "f")  # 5
    plan = s.build("e", "f")
    assert waits(plan) == {2: (1,), 4: (3,)}


def test_what_a_lane_has_waited_for_is_known_through_it() -> None:
    s = Laned(16)
    s.op("increment", "x", "a")  # 0
    s.copy("a", "b")  # 1 waits for 0
    s.copy("b", "far", device="far")  # 2, far/copy, waits for 1
    s.copy("a", "far2", device="far")  # 3: 0 was over before 1, for which 2 has waited
    plan = s.build("b")
    assert waits(plan) == {1: (0,), 2: (1,)}


def test_bytes_decide_and_not_names() -> None:
    """Two halves of one buffer, and a window over both: only what overlaps waits."""
    s = Laned(16)
    whole = Buffer.empty((16,), "float32")
    s.buffer("whole", whole)
    for name, start in (("left", 0), ("right", 32), ("middle", 16)):
        s.buffer(name, whole.view(start, 32))
    for name in ("a", "b", "c"):
        s.buffer(name, Buffer.empty((8,), "float32"))
    s.copy("left", "a")  # 0
    s.copy("b", "right", lane="compute")  # 1: other bytes
    s.copy("c", "middle", lane="compute")  # 2: over what 0 reads
    plan = s.build("whole")
    assert waits(plan) == {2: (0,)}


def test_dependencies_cross_lanes_too_also_through_views() -> None:
    s = Laned(16)
    whole = Buffer.empty((16,), "float32")
    s.buffer("whole", whole)
    s.buffer("part", whole.view(0, 32))
    s.op("increment", "x", "y", id=1)  # 0
    s.add(PreparedBufferView(2, (s.buffer("part"), s.buffer("whole")), 0, 32, dependencies=(1,)))
    s.add(PreparedCopy(3, (s.buffer("b"), s.buffer("a")), dependencies=(2,), lane="copy"))
    s.add(PreparedCopy(4, (s.buffer("d"), s.buffer("c")), dependencies=(1,), lane="copy"))
    s.op("increment", "p", "q", dependencies=(2,))  # 4, on the same lane as 0
    plan = s.build("y", "b", "d", "q")
    assert waits(plan) == {2: (0,)}
    plan.execute()


def test_an_order_that_was_asked_for_is_kept_on_each_lane() -> None:
    s = Laned(16)
    for k in range(3):
        s.copy(f"x{k}", f"y{k}")
        s.op("increment", f"y{k}", f"z{k}")
    s.builder.set_output_buffers([s.buffer(f"z{k}") for k in range(3)])
    plan = s.builder.build(threads=1, order=(4, 2, 5, 0, 3, 1))
    taken = [i for step in plan.steps for segment in step for i in segment]
    assert taken == [5, 3, 1, 4, 2, 0]
    plan.execute()
    np.testing.assert_array_equal(s.buffers["z2"].numpy(), np.ones(16))


def test_arena_bytes_of_two_lanes_are_shared_only_behind_a_wait() -> None:
    """b lies where a was, and is written by the copy lane: not before a was read."""
    one = kernel("increment", Variable("n", 0, 16))
    kinds = [("x", "io"), ("y", "io"), ("z", "io"), ("a", "arena"), ("b", "arena")]
    lives = {"a": (0, 1), "b": (2, 3)}
    values = tuple(
        ProgramValue(name, typed((16,)), place, None, *lives.get(name, (0, 0)))
        for name, place in kinds
    )
    n = (Variable("n", 16, 16),)
    rows = (
        PreparedCopy(0, (3, 0), lane="copy"),
        PreparedKernel.call(1, one, (3, 1), n),
        PreparedCopy(2, (4, 0), lane="copy"),
        PreparedKernel.call(3, one, (4, 2), n),
    )
    program = Program(
        values,
        rows,
        (PlanIO("x", 0, typed((16,))),),
        (PlanIO("y", 1, typed((16,))), PlanIO("z", 2, typed((16,)))),
        (1, 2),
        variables=(PlanVariable(n[0]),),
    )
    plan = instantiate(program, threads=1)
    assert plan.buffers[3].byte_range == plan.buffers[4].byte_range
    assert waits(plan) == {1: (0,), 2: (1,), 3: (2,)}
    assert waits(instantiate(program, threads=1, arena=False)) == {1: (0,), 3: (2,)}
    for turn in range(50):
        for found in plan(x=X + turn):
            np.testing.assert_array_equal(found, X + turn + 1)


# ---------------------------------------------------------------- devices


def test_a_device_that_computes_nothing_is_there_where_lanes_meet() -> None:
    s = Laned(16)
    s.op("increment", "x", "y")
    s.copy("y", "null", device="null", lane="compute")
    s.op("double", "null", "null2", device="null")
    s.copy("null2", "z")
    plan = s.build("z")
    assert waits(plan) == {1: (0,), 3: (2,)}
    s.buffers["x"].copyin(X)
    s.buffers["null2"].copyin(np.full(16, 7, np.float32))
    plan.execute()
    np.testing.assert_array_equal(s.buffers["z"].numpy(), np.full(16, 7))
    assert [(p.device, p.lane, bool(p.spans)) for p in plan.execute_profiled(limits=False)] == [
        ("cpu", "compute", True),
        ("null", "compute", False),
        ("null", "compute", False),
        ("cpu", "copy", True),
    ]


def test_a_plan_of_the_null_device_can_have_rows_on_others() -> None:
    builder = semel.ExecutionPlanBuilder("null")
    a, b = (builder.add_buffer(i, Buffer.empty((4,), "float32")) for i in range(2))
    builder.add_op(PreparedCopy(1, (b, a), device="cpu", lane="copy"))
    builder.set_output_buffer(b)
    plan = builder.build()
    plan.buffers[a].copyin(np.ones(4, np.float32))
    plan.execute()
    assert plan.buffers[b].numpy().tolist() == [1, 1, 1, 1]


def test_two_devices_hand_data_back_and_forth() -> None:
    s = Laned(16)
    last = "x"
    for k in range(5):
        s.copy(last, f"far{k}", device="far")
        s.op("increment", f"far{k}", f"far_{k}", device="far")
        s.copy(f"far_{k}", f"back{k}", device="far")
        s.op("double", f"back{k}", f"y{k}")
        last = f"y{k}"
    plan = s.build(last, threads=2)
    want = X
    for _ in range(5):
        want = (want + 1) * 2
    s.buffers["x"].copyin(X)
    for _ in range(20):
        plan.execute()
        np.testing.assert_array_equal(s.buffers[last].numpy(), want)


# ---------------------------------------------------------------- what is refused


def test_what_is_inside_a_row_is_on_its_lane() -> None:
    s = Laned(16)
    s.begin(3)
    s.copy("x", "y")
    s.end()
    with pytest.raises(PlanError, match=r"inside op 1 \(loop\) on lane cpu/compute, so it must be"):
        s.build("y")


def test_late_variables_stay_on_the_callers_lane() -> None:
    def built(rebind_lane: str, kernel_lane: str) -> None:
        s = Laned(16, fixed=False)
        s.buffer("size", Buffer.empty((1,), "int64"))
        variable = semel.RuntimeVar("n", 0, 16)
        s.add(PreparedRebind(1, (variable,), (s.buffer("size"),), lane=rebind_lane))
        s.op("increment", "x", "y", lane=kernel_lane)
        s.build("y")

    built("compute", "compute")
    with pytest.raises(PlanError, match=r"gives late variables values, so it must be on lane cpu/"):
        built("copy", "compute")
    with pytest.raises(PlanError, match=r"uses 'n', which a run finds out, so it must be on lane"):
        built("compute", "copy")


def test_what_a_body_demands_is_checked_on_the_callers_lane() -> None:
    s, m = Laned(16), Variable("m", 0, 8)
    s.copy("x", "staged")
    s.branch("p")
    s.builder.add_op(PreparedRebind(7, (), (), guards=((m - 3, "m must be 3."),)))
    s.op("increment", "staged", "y")
    s.orelse()
    s.op("double", "staged", "y")
    s.end()
    s.buffers["x"].copyin(X)
    plan = s.build("y")
    assert isinstance(plan.engine.executable, LanedExecutable)
    for value, p, want in ((3, True, X + 1), (4, False, 2 * X)):
        s.buffers["p"].copyin(np.array([p]))
        plan.execute_with_vars(m=value)
        np.testing.assert_array_equal(s.buffers["y"].numpy(), want)
    s.buffers["p"].copyin(np.array([True]))
    with pytest.raises(VariableError, match=r"m must be 3\. Found m=4"):
        plan.execute()


def test_memory_of_another_device_is_reached_by_copies_of_that_device() -> None:
    s = Laned(16)
    s.copy("x", "far")
    with pytest.raises(PlanError, match=r"runs on cpu, so its buffers must lie there; buffer 0 l"):
        s.build("x")
    s = Laned(16)
    s.op("increment", "far", "y", device="far")
    with pytest.raises(PlanError, match=r"runs on far, .* buffer 1 lies on cpu"):
        s.build("y")


# ---------------------------------------------------------------- control flow and host rows


def test_a_loop_of_another_lane_runs_there_with_its_host_rows(
    calls: list[Callable[[], object]],
) -> None:
    threads: list[int] = []
    calls.append(lambda: threads.append(threading.get_ident()))
    s = Laned(16)
    s.op("increment", "x", "y")
    s.copy("y", "a")
    body = (
        PreparedCustomFunction(11, "lanes_call", None, (s.buffer("a"), s.buffer("b")), lane="copy"),
        PreparedCopy(12, (s.buffer("a"), s.buffer("b")), lane="copy"),
    )
    s.add(PreparedLoop(1, "step", N, body, lane="copy"))
    s.op("add", "a", "y", "z")
    plan = s.build("z")
    assert waits(plan) == {1: (0,), 5: (2,)}
    s.buffers["x"].copyin(X)
    plan.execute_with_vars(n=7)
    assert threads == [threading.get_ident()] * 7
    np.testing.assert_array_equal(s.buffers["z"].numpy(), 2 * (X + 1))


def test_signals_and_waits_of_the_plan_stay_on_their_lane() -> None:
    """The copy lane waits for what the caller signals later; on one lane that could never be."""
    there, back = TimelineSignal("there"), TimelineSignal("back")
    s = Laned(16)
    run = Variable("run", 1, 99)
    s.add(PreparedWait(1, there, run, lane="copy"))
    s.copy("x", "y")
    s.add(PreparedSignal(2, back, run, lane="copy"))
    s.op("increment", "a", "b")
    s.add(PreparedSignal(3, there, run))
    s.add(PreparedWait(4, back, run))
    s.op("increment", "p", "q")
    plan = s.build("y", "q")
    for number in range(1, 6):
        plan.execute_with_vars(run=number)
        assert (there.value, back.value) == (number, number)


# ---------------------------------------------------------------- failures


def failing(lane: str) -> tuple[Laned, ExecutionPlan]:
    """Checks indices on a lane, while both lanes have rows before and behind."""
    s = Laned(16, "int64")
    s.copy("x", "staged")
    s.op("check", "staged", "checked", lane=lane)
    s.copy("checked", "out", lane="compute")
    s.copy("out", "end")
    return s, s.build("end")


@pytest.mark.parametrize("lane", ["compute", "copy"])
def test_a_failed_check_ends_all_lanes(lane: str) -> None:
    s, plan = failing(lane)
    s.buffers["x"].copyin(np.arange(16) % 10)
    plan.execute()
    for _ in range(10):
        s.buffers["x"].copyin(np.arange(16))
        with pytest.raises(semel.IndexRangeError, match="10"):
            plan.execute()
        with pytest.raises(semel.StaleError, match="the last execute failed"):
            s.buffers["end"].numpy()
        s.buffers["x"].copyin(np.arange(16) % 7)
        plan.execute()
        np.testing.assert_array_equal(s.buffers["end"].numpy(), np.arange(16) % 7)


@pytest.mark.parametrize("lane", ["compute", "copy"])
def test_a_host_row_that_raises_ends_all_lanes(
    lane: str, calls: list[Callable[[], object]]
) -> None:
    s = Laned(16)
    s.copy("x", "staged")
    s.host("staged", "y", lane)
    s.copy("y", "z", lane="compute")
    s.copy("z", "out")
    plan = s.build("out")
    plan.execute()
    calls.append(lambda: 1 // 0)
    for _ in range(10):
        with pytest.raises(CustomFunctionError, match="ZeroDivisionError") as caught:
            plan.execute()
        assert caught.value.kind == "lanes_call"  # type: ignore[attr-defined]
    calls.clear()
    s.buffers["x"].copyin(X)
    plan.execute()
    np.testing.assert_array_equal(s.buffers["out"].numpy(), X)


def test_a_failure_ends_waits_for_others(calls: list[Callable[[], object]]) -> None:
    """Both lanes wait for signals that nobody will reach."""
    never = TimelineSignal("never")
    for lane in ("copy", "compute"):
        s = Laned(16)
        s.add(PreparedWait(1, never, 1, lane=lane))
        s.copy("x", "y", lane=lane)
        s.host("a", "b", "copy" if lane == "compute" else "compute")
        plan = s.build("y", "b")
        calls[:] = [lambda: 1 // 0]
        with pytest.raises(CustomFunctionError, match="ZeroDivisionError"):
            plan.execute()


def test_a_signal_that_goes_back_fails_where_it_is() -> None:
    done = TimelineSignal("done", 5)
    s = Laned(16)
    s.copy("x", "y")
    s.add(PreparedSignal(1, done, 3, lane="copy"))
    s.op("increment", "y", "z")
    plan = s.build("z")
    for _ in range(3):
        with pytest.raises(PlanError, match="must not go back: it is at 5, got 3"):
            plan.execute()


def test_variables_are_checked_before_any_lane_begins() -> None:
    s = Laned(16, fixed=False)
    s.copy("x", "staged")
    s.op("increment", "staged", "y")
    s.builder.add_guard(Variable("n", 0, 16) % 2, "n must be even")
    plan = s.build("y")
    with pytest.raises(semel.VariableError, match="'n' was never bound"):
        plan.execute()
    with pytest.raises(semel.VariableError, match="n must be even"):
        plan.execute_with_vars(n=3)
    s.buffers["x"].copyin(X)
    assert not s.buffers["staged"].numpy().any()
    for n in (4, 16, 2):
        s.buffers["y"].copyin(np.zeros(16, np.float32))
        plan.execute_with_vars(n=n)
        want = np.where(np.arange(16) < n, X + 1, 0)
        np.testing.assert_array_equal(s.buffers["y"].numpy(), want)


# ---------------------------------------------------------------- interruptions


def test_a_run_whose_lanes_wait_can_be_interrupted() -> None:
    never = TimelineSignal("never")
    s = Laned(16)
    s.add(PreparedWait(1, never, 1, lane="copy"))
    s.copy("x", "y")
    s.op("increment", "y", "z")
    plan = s.build("z")

    def stop(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt("stop")

    with handling(stop) as interrupt:
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt, match="stop"):
                interrupt(plan)
                plan.execute()
    never.set(1)
    plan.execute()


def test_a_signal_handler_may_raise_anywhere() -> None:
    s, plan = pipeline()
    plan.execute()
    places = find_places(plan.execute)
    chosen = random.Random(0).sample(places, min(len(places), 120))

    def stop() -> None:
        raise KeyboardInterrupt("stop")

    came = 0
    for place in chosen:
        try:
            came += interrupt(plan.execute, place, stop)
        except KeyboardInterrupt:
            came += 1
        s.buffers["x"].copyin(X)
        plan.execute()
        np.testing.assert_array_equal(s.buffers["out"].numpy(), X + 1)
    assert came > len(chosen) // 2


def test_a_plan_cannot_be_used_inside_itself(calls: list[Callable[[], object]]) -> None:
    s = Laned(16)
    s.copy("x", "a")
    s.host("a", "b", "copy")
    s.op("increment", "b", "c")
    plan = s.build("c")
    calls.append(plan.execute)
    with pytest.raises(semel.BusyError, match="cannot be used inside itself"):
        plan.execute()
    calls.clear()
    plan.execute()


def test_plans_of_lanes_run_inside_each_other(calls: list[Callable[[], object]]) -> None:
    """Lanes are a plan's own: the inner copy lane does not wait for the outer one."""
    inner_sketch, inner = pipeline()
    s = Laned(16)
    s.copy("x", "a")
    s.host("a", "b", "copy")
    s.copy("b", "c")
    s.op("increment", "c", "d")
    plan = s.build("d")
    calls.append(inner.execute)
    plan.execute()
    np.testing.assert_array_equal(inner_sketch.buffers["out"].numpy(), X + 1)


# ---------------------------------------------------------------- forks


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_lanes_of_its_own() -> None:
    s, plan = pipeline()
    plan.execute()

    def child() -> None:
        s.buffers["x"].copyin(X + 5)
        plan.execute()
        np.testing.assert_array_equal(s.buffers["out"].numpy(), X + 6)

    in_child(child)
    plan.execute()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("lane", ["compute", "copy"])
def test_a_run_that_forks_goes_on_in_the_parent_only(
    lane: str, calls: list[Callable[[], object]]
) -> None:
    s = Laned(16)
    s.copy("x", "a")
    s.host("a", "b", lane)
    s.copy("b", "c")
    s.op("increment", "c", "d")
    plan = s.build("d")
    s.buffers["x"].copyin(X)
    children: list[int] = []
    calls.append(lambda: children.append(os.fork()))
    code = 1
    try:
        plan.execute()
    except PlanError as error:
        code = 0 if "forked in the middle of a run on several lanes" in str(error) else 2
    if children and not children[-1]:
        try:
            calls.clear()
            plan.execute()
            np.testing.assert_array_equal(s.buffers["d"].numpy(), X + 1)
        except BaseException:
            code = 3
        os._exit(code)
    _, status = os.waitpid(children[-1], 0)
    assert os.waitstatus_to_exitcode(status) == 0
    np.testing.assert_array_equal(s.buffers["d"].numpy(), X + 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_beside_a_run() -> None:
    """Another thread is in the middle of it: the child can use the plan, from the beginning."""
    go, here = TimelineSignal("go"), TimelineSignal("here")
    s = Laned(16)
    s.add(PreparedSignal(1, here, 1, lane="copy"))
    s.add(PreparedWait(2, go, 1, lane="copy"))
    s.copy("x", "y")
    s.op("increment", "y", "z")
    plan = s.build("z")
    s.buffers["x"].copyin(X)
    thread = threading.Thread(target=plan.execute)
    thread.start()
    here.wait(1, timeout=100)

    def child() -> None:
        go.set(1)
        plan.execute()
        np.testing.assert_array_equal(s.buffers["z"].numpy(), X + 1)

    in_child(child)
    go.set(1)
    thread.join(100)
    assert not thread.is_alive()


_ENDING = """
import threading, time
import numpy as np
import semel
from semel.plan import PreparedCopy
builder = semel.ExecutionPlanBuilder()
a, b, c = (builder.add_buffer(i, semel.Buffer.empty((1 << 20,), "float32")) for i in range(3))
builder.add_op(PreparedCopy(1, (b, a), lane="copy"))
builder.add_op(PreparedCopy(2, (c, b)))
builder.set_output_buffer(c)
plan = builder.build()
plan.execute()
threading.excepthook = lambda args: None
def run():
    while True:
        plan.execute()
threading.Thread(target=run, daemon=True).start()
time.sleep(0.05)
print("end")
"""


def test_the_interpreter_can_end_in_the_middle_of_a_run() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _ENDING], capture_output=True, text=True, timeout=240, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "end\n", "")


# ---------------------------------------------------------------- everything else that plans do


def declared() -> ExecutionPlan:
    """y = x + 1 by way of the copy lane, with an input and an output that can be bound."""
    s = Laned(64, fixed=False)
    n = Variable("n", 0, 64)
    s.copy("x", "staged")
    s.op("increment", "staged", "half")
    s.copy("half", "y")
    s.builder.declare_input("x", s.buffer("x"), typed((n,)))
    s.builder.declare_output("y", s.buffer("y"), typed((n,)))
    return s.build("y")


def test_arrays_are_bound_on_all_lanes() -> None:
    plan = declared()
    assert plan(x=X).tolist() == (X + 1).tolist()
    first, second = np.full(64, 3, np.float32), np.full(64, 4, np.float32)
    out = np.zeros(64, np.float32)
    plan.bind_output("y", out)
    for array in (first, second, first):
        plan.bind_input("x", array)
        plan.execute_with_vars(n=64)
        np.testing.assert_array_equal(out, array + 1)
    plan.unbind()
    assert plan(x=X).tolist() == (X + 1).tolist()


def test_clones_run_at_the_same_time() -> None:
    plan = declared()
    plan(x=X)
    clones = [plan.clone() for _ in range(4)]
    found: dict[tuple[int, int], Any] = {}

    def run(k: int) -> None:
        for turn in range(20):
            found[k, turn] = clones[k](x=X * k + turn)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(found) == 80
    for (k, turn), array in found.items():
        np.testing.assert_array_equal(array, X * k + turn + 1)


def test_files_hold_lanes_and_devices(tmp_path: Path) -> None:
    compiled = (semel.Tensor.input("x", (16,), "float32") + 1).prepare(threads=1).kernels[0]
    writes = ["w" in spec.access for spec in compiled.signature.buffers]

    def increment(s: Laned, source: str, target: str, device: str, lane: str) -> None:
        args = [s.buffer(target if is_written else source) for is_written in writes]
        row = PreparedKernel.call(len(s.index), compiled, args, device=device)
        s.add(replace(row, lane=lane))

    s = Laned(16)
    s.copy("x", "far", device="far")
    increment(s, "far", "far2", "far", "compute")
    s.copy("far2", "y", device="far")
    increment(s, "y", "z", "cpu", "copy")
    plan = s.build("z")
    s.buffers["x"].copyin(X)
    plan.save(tmp_path / "plan")
    loaded = semel.load_plan(tmp_path / "plan")
    places = [op.lane_on("cpu") for op in loaded.prepared_ops]
    assert places == [("far", "copy"), ("far", "compute"), ("far", "copy"), ("cpu", "copy")]
    assert [b.device for b in loaded.buffers] == [b.device for b in plan.buffers]
    assert waits(loaded) == waits(plan) == {1: (0,), 2: (1,), 3: (2,)}
    loaded.execute()
    np.testing.assert_array_equal(loaded.output_buffer.numpy(), X + 2)


def test_reports_show_lanes() -> None:
    _, plan = pipeline()
    explained = plan.explain()
    assert [(op.op, op.device, op.lane) for op in sorted(explained.ops, key=lambda op: op.op)] == [
        (0, "cpu", "copy"),
        (1, "cpu", "compute"),
        (2, "cpu", "compute"),
        (3, "cpu", "copy"),
    ]
    by_op = {op.op: op for op in explained.ops}
    assert by_op[1].waits == ("reads #0, which op 0 writes",)
    assert by_op[3].waits == ("reads #2, which op 1 writes",)
    assert "op 0  copy  on cpu/copy" in str(explained)
    report = plan.execute_profiled(limits=False)
    assert all(len(p.spans) == 1 for p in report)
    assert "cpu/copy" in str(report)
    assert {p.op_index: p.lanes for p in report} == {0: (1,), 1: (0,), 2: (0,), 3: (1,)}
    spans = {p.op_index: p.spans[0] for p in report}
    assert spans[0].end_ns <= spans[1].start_ns and spans[1].end_ns <= spans[3].start_ns


def test_times_of_lanes_are_by_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever attaches the logs may be held up between any two of them."""
    _, plan = pipeline()
    enter, delays = EventLog.__enter__, iter([0.0, 0.02])

    def late(log: EventLog) -> EventLog:
        entered = enter(log)
        time.sleep(next(delays))
        return entered

    monkeypatch.setattr(EventLog, "__enter__", late)
    spans = {p.op_index: p.spans[0] for p in plan.execute_profiled(limits=False)}
    assert spans[0].end_ns <= spans[1].start_ns and spans[1].end_ns <= spans[3].start_ns


def test_memory_is_given_back() -> None:
    _, plan = pipeline()
    plan.execute()
    plan.release_all_buffers()
    with pytest.raises(semel.ReleasedError, match="buffers were released"):
        plan.execute()


def test_a_thousand_runs_with_jitter() -> None:
    with config.override(debug=frozenset({"jitter"})):
        s, plan = pipeline()
        for turn in range(200):
            s.buffers["x"].copyin(X + turn)
            plan.execute()
            np.testing.assert_array_equal(s.buffers["out"].numpy(), X + turn + 1)
    s, plan = pipeline(threads=2)
    for turn in range(1000):
        s.buffers["x"].copyin(X + turn)
        plan.execute()
        assert s.buffers["out"].numpy()[3] == turn + 4
