"""What goes wrong while running: bad data, host calls, re-entry, Ctrl-C, fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.forks import in_child
from tests.plan.build import Sketch, symbolic_add, table_of, typed
from tests.plan.kernels import TILE
from tests.plan.signals import once_running

from semel.errors import CustomFunctionError, IndexRangeError, PlanError
from semel.ir.abi import Header
from semel.plan.plan import ExecutionPlan
from semel.plan.rows import PreparedCustomFunction
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function

_calls: list[Any] = []


def _host(attrs: Any, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
    _calls.append(dict(values))
    attrs(buffers)


custom_function("test_host")(_host)


def _hosted(action: Any, *, threads: int = 1) -> tuple[Sketch, ExecutionPlan]:
    """double, then `action` in Python, then increment."""
    s = Sketch(8 * TILE)
    s.op("double", "x", "a", id=1)
    s.builder.add_op(PreparedCustomFunction(2, "test_host", action, (s.buffer("a"),)))
    s.op("increment", "a", "out", id=3)
    return s, s.build("out", threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_bad_index_is_named_and_outputs_are_invalid(threads: int) -> None:
    s = Sketch(64 * TILE, "int64")
    s.op("check", "x", "out")
    s.builder.declare_output("out", s.buffer("out"), typed((64 * TILE,), "int64"))
    plan = s.build("out", threads=threads)
    x = np.zeros(64 * TILE, np.int64)
    s.buffers["x"].copyin(x)
    plan.execute()
    x[5 * TILE] = 12
    s.buffers["x"].copyin(x)
    with pytest.raises(
        IndexRangeError, match=r"\[gather\] index must lie in \[-10, 10\), got 12"
    ) as e:
        plan.execute()
    assert (e.value.op, e.value.index, e.value.size) == ("gather", 12, 10)  # type: ignore[attr-defined]
    with pytest.raises(PlanError, match="last execute failed"):
        plan.output_buffer.numpy()
    s.buffers["x"].copyin(np.ones(64 * TILE, np.int64))
    plan.execute()
    assert plan.output_buffer.numpy().all()


def test_the_first_failing_op_is_reported() -> None:
    s = Sketch(TILE, "int64")
    s.op("check", "x", "a")
    s.op("check", "y", "b")
    plan = s.build("a")
    s.buffers["x"].copyin(np.full(TILE, 11))
    s.buffers["y"].copyin(np.full(TILE, 99))
    with pytest.raises(IndexRangeError, match="got 11"):
        plan.execute()


@pytest.mark.parametrize("threads", [1, 2])
def test_host_calls_run_between_kernels(threads: int) -> None:
    def action(buffers: Sequence[Buffer]) -> None:
        buffers[0].copyin(buffers[0].numpy() * 10)

    s, plan = _hosted(action, threads=threads)
    x = np.arange(8 * TILE, dtype=np.float32)
    s.buffers["x"].copyin(x)
    for _ in range(3):
        plan.execute()
        np.testing.assert_array_equal(plan.output_buffer.numpy(), 20 * x + 1)


def test_running_a_plan_inside_itself_is_an_error() -> None:
    seen: list[BaseException] = []

    def action(buffers: Sequence[Buffer]) -> None:
        for again in (plan.execute, lambda: plan.execute_with_vars(n=1), plan):
            try:
                again()
            except PlanError as error:
                seen.append(error)

    s, plan = _hosted(action)
    s.buffers["x"].copyin(np.ones(8 * TILE, np.float32))
    plan.execute()
    assert len(seen) == 3
    assert all("inside itself" in str(error) for error in seen)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(8 * TILE, 3.0))


def test_an_exception_in_a_host_call_ends_the_run_cleanly() -> None:
    is_broken = True

    def action(buffers: Sequence[Buffer]) -> None:
        if is_broken:
            raise ZeroDivisionError("host")

    s, plan = _hosted(action)
    with pytest.raises(CustomFunctionError, match="raised ZeroDivisionError: host") as caught:
        plan.execute()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert (caught.value.op, caught.value.kind) == (2, "test_host")  # type: ignore[attr-defined]
    is_broken = False
    s.buffers["x"].copyin(np.ones(8 * TILE, np.float32))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(8 * TILE, 3.0))


@pytest.fixture
def listening() -> Iterator[None]:
    """Ctrl-C is heard even where a shell started the tests in the background, which ignores it."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_long_execute_and_the_next_one_works(threads: int) -> None:
    s = Sketch(16 * TILE)
    for i in range(1000):  # seconds in all
        s.op("slow", f"b{i % 2}", f"b{(i + 1) % 2}")
        s.op("reverse", f"b{(i + 1) % 2}", f"b{i % 2}")
    s.op("increment", "b0", "end")
    s.builder.declare_output("out", s.buffer("end"), typed((16 * TILE,)))
    plan = s.build("end", threads=threads)
    kill = partial(os.kill, os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        once_running(plan, kill, 0.1)
        plan.execute()
    assert not s.buffers["end"].array().any(), "it ran to its end"
    with pytest.raises(PlanError, match="the last execute failed"):
        plan.output_buffer.numpy()
    assert table_of(plan).words[Header.BUSY] == 0
    with pytest.raises(KeyboardInterrupt):
        once_running(plan, kill)
        plan.execute()


def test_an_error_in_one_thread_leaves_the_other_alone() -> None:
    good, bad = symbolic_add(4 * TILE, threads=2), symbolic_add(4 * TILE, threads=2)
    stop = threading.Event()
    errors: list[str] = []

    def fail() -> None:
        while not stop.is_set():
            try:
                bad.execute_with_vars(n=-1)
                errors.append("no error")
            except Exception as error:
                if type(error).__name__ != "VariableError":
                    errors.append(repr(error))

    thread = threading.Thread(target=fail)
    thread.start()
    x = np.arange(4 * TILE, dtype=np.float32)
    for _ in range(300):
        np.testing.assert_array_equal(good(x=x, y=x), 2 * x)
    stop.set()
    thread.join()
    assert not errors


_FORK = """
import os, sys, threading
import numpy as np
from tests.plan.build import Sketch
from tests.plan.kernels import TILE

s = Sketch(64 * TILE)
s.op("slow", "x", "a")
s.op("reverse", "a", "out")
plan = s.build("out", threads=2)
plan.execute()                      # the pool is running now
if {busy}:
    threading.Thread(target=lambda: [plan.execute() for _ in range(20)], daemon=True).start()
child = os.fork()
if child == 0:
    s.buffers["x"].copyin(np.arange(64 * TILE, dtype=np.float32))
    for _ in range(3):
        plan.execute()
    good = np.array_equal(plan.output_buffer.numpy(), np.arange(64 * TILE)[::-1] + 1)
    workers = plan.engine.parts.device.pool().num_workers
    os._exit(0 if good and workers == 1 else 3)
_, status = os.waitpid(child, 0)
plan.execute()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_has_a_pool_of_its_own(busy: bool) -> None:
    done = _run(_FORK.format(busy=busy))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_moving", [False, True])
def test_a_fork_in_the_middle_of_what_another_thread_does(is_moving: bool) -> None:
    s = Sketch(8)
    s.op("double", "x", "out")
    plan = s.build("out")
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        with plan.lock:
            plan.engine.state.is_moving = is_moving
            begun.set()
            assert over.wait(100)
            plan.engine.state.is_moving = False

    def child() -> None:
        if is_moving:
            with pytest.raises(PlanError, match="another thread changed its memory when"):
                plan.execute()
        else:
            s.buffers["x"].copyin(np.arange(8, dtype=np.float32))
            plan.execute()
            assert plan.output_buffer.numpy().tolist() == [2.0 * i for i in range(8)]

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(100)
    try:
        in_child(child)
    finally:
        over.set()
        thread.join()
    s.buffers["x"].copyin(np.ones(8, np.float32))
    plan.execute()
    assert plan.output_buffer.numpy().tolist() == [2] * 8


def test_what_the_forking_thread_was_at_goes_on_in_the_child() -> None:
    s = Sketch(8)
    s.op("double", "x", "out")
    plan = s.build("out")
    s.buffers["x"].copyin(np.ones(8, np.float32))
    state = plan.engine.state

    def child() -> None:
        state.is_moving = False  # what it was at is over, here too
        plan.execute()
        assert plan.output_buffer.numpy().tolist() == [2] * 8

    with plan.lock:
        state.is_moving = True
        in_child(child)
        state.is_moving = False


def test_a_process_with_workers_ends_with_its_own_exit_code() -> None:
    done = _run(
        "import sys\n"
        "from tests.plan.build import Sketch\n"
        "from tests.plan.kernels import TILE\n"
        "s = Sketch(64 * TILE)\n"
        "s.op('double', 'x', 'out')\n"
        "plan = s.build('out', threads=2)\n"
        "for _ in range(100): plan.execute()\n"
        "sys.exit(5)\n"
    )
    assert done.returncode == 5, done.stderr
