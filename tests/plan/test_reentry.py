"""Coming back to a plan in the middle of its own operation: refused before anything is touched.

Signal handlers, destructors, custom functions and tracers run on the thread that is inside. Every
public member is in one of the tables below: a new one is a decision.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, table_of
from tests.plan.kernels import TILE

from semel import Tensor, Variable
from semel.errors import BusyError, SemelError
from semel.ir.abi import Code, Header
from semel.plan.direct import direct_call
from semel.plan.nested import run_between
from semel.plan.plan import ExecutionPlan
from semel.plan.rows import PreparedCustomFunction
from semel.plan.saving import pass_source, resume
from semel.runtime.buffer import BorrowedArray, Buffer
from semel.runtime.custom import custom_function

A, B = np.ones((3, 8), np.float32), np.full((3, 8), 5, np.float32)
W = np.random.default_rng(0).standard_normal((8, 8), dtype=np.float32)
WEIGHTS = Tensor(W)
X = Tensor.input("x", (Variable("n", 1, 1024), 8), "float32")  # of many tiles


def _long() -> Tensor:
    """More than sixteen steps: so often at least the runner looks at its clock."""
    y = X
    for _ in range(20):
        y = (y @ WEIGHTS).softmax(-1).sort(-1)
    return y


def _plan() -> ExecutionPlan:
    """A plan that comes back to Python in the middle of each run, as a long one would."""
    plan = _long().prepare(threads=1)
    plan(x=A)
    table_of(plan).words[Header.SLICE_TICKS] = 1
    return plan


EXPECTED = _long().prepare(threads=1)(x=A)

# ---------------------------------------------------------------- the tables

Attempt = Callable[[ExecutionPlan], Any]

REFUSED: dict[str, Attempt] = {
    "__call__": lambda p: p(x=B),
    "bind_input": lambda p: p.bind_input("x", B),
    "bind_output": lambda p: p.bind_output("output0", np.empty_like(A)),
    "clone": lambda p: p.clone(),
    "execute": lambda p: p.execute(),
    "execute_limited": lambda p: p.execute_limited(timeout=9),
    "execute_profiled": lambda p: p.execute_profiled(limits=False),
    "execute_with_vars": lambda p: p.execute_with_vars(n=2),
    "execute_with_vars_profiled": lambda p: p.execute_with_vars_profiled(n=2),
    "extent_report": lambda p: p.extent_report(),
    "num_barriers": lambda p: p.num_barriers,
    "release_all_buffers": lambda p: p.release_all_buffers(),
    "release_intermediate_buffers": lambda p: p.release_intermediate_buffers(),
    "replicate": lambda p: p.replicate(),
    "rows_for": lambda p: p.rows_for(["output0"]),
    "set_extent": lambda p: p.set_extent("n", 2),
    "set_param": lambda p: p.set_param("w", B),
    "set_params": lambda p: p.set_params({"w": B}),
    "set_param_typed": lambda p: p.set_param_typed("w", B.tobytes(), "float32"),
    "load_params": lambda p: p.load_params({"w": B}),
    "unbind": lambda p: p.unbind(),
}
#: What a plan is can be asked at any time. Of a compiled plan that goes for its file too.
READ: dict[str, Attempt] = {
    "arena_ptr": lambda p: p.arena_ptr,
    "name": lambda p: p.name,
    "outputs": lambda p: p.outputs,
    "ast_to_buffer_map": lambda p: p.ast_to_buffer_map,
    "growths": lambda p: p.growths,
    "program": lambda p: p.program,
    "signals": lambda p: p.signals,
    "buffer": lambda p: p.buffer(X),
    "buffers": lambda p: p.buffers,
    "device": lambda p: p.device,
    "explain": lambda p: p.explain(),
    "extents": lambda p: p.extents,
    "inputs": lambda p: p.inputs,
    "kept": lambda p: p.kept,
    "kernels": lambda p: p.kernels,
    "lock": lambda p: p.lock,
    "memory": lambda p: p.memory,
    "missing_params": lambda p: p.missing_params(),
    "num_outputs": lambda p: p.num_outputs,
    "op_dependencies": lambda p: p.op_dependencies,
    "op_levels": lambda p: p.op_levels,
    "op_order": lambda p: p.op_order,
    "output_buffer": lambda p: p.output_buffer,
    "output_buffer_at": lambda p: p.output_buffer_at(0),
    "output_buffer_idx": lambda p: p.output_buffer_idx,
    "output_buffers": lambda p: p.output_buffers,
    "pack": lambda p: p.pack(),
    "params": lambda p: p.params,
    "prepared_kernels": lambda p: p.prepared_kernels,
    "prepared_ops": lambda p: p.prepared_ops,
    "save": lambda p: p.save(os.devnull + "/nowhere"),
    "signature": lambda p: p.signature,
    "states": lambda p: p.states,
    "steps": lambda p: p.steps,
    "target": lambda p: p.target,
    "threads": lambda p: p.threads,
    "variables": lambda p: p.variables,
}

#: The same of what the package does with a plan: functions of the rooms that do it.
OURS_REFUSED: dict[str, Attempt] = {
    "direct_call": lambda p: direct_call(p, ["x"]),
    "exchange": lambda p: p.calls.exchange([]),
    "resume": lambda p: resume(p.engine, {"n": 2}, {}),
    "run_between": lambda p: run_between(p, {}, lambda name, shape: B, lambda i, array: None),
}
OURS_READ: dict[str, Attempt] = {
    "check_shapes": lambda p: p.calls.check_shapes({"x": A.shape}),
    "is_written_in_part": lambda p: p.calls.is_written_in_part("output0"),
    "pass_source": lambda p: pass_source(p.engine, lambda source: None),
    "without_value": lambda p: p.calls.without_value(["x"]),
}
EVERY_REFUSED, EVERY_READ = {**REFUSED, **OURS_REFUSED}, {**READ, **OURS_READ}

BUFFER_REFUSED: dict[str, Callable[[Buffer], Any]] = {
    "alone": lambda b: b.alone(lambda: None),
    "borrow": lambda b: b.borrow(),
    "copyin": lambda b: b.copyin(np.zeros(b.shape, b.dtype.numpy)),
    "copyout": lambda b: b.copyout(np.zeros(b.shape, b.dtype.numpy)),
    "numpy": lambda b: b.numpy(),
}
BUFFER_READ = {
    *("address", "byte_range", "capacity_bytes", "device", "dtype", "generation", "keeper"),
    *(
        "memory",
        "nbytes",
        "offset",
        "readable_shape",
        "shape",
        "storage_id",
        "type",
        "view",
        "whole",
    ),
}
#: Ways to make a buffer, and the package's own.
BUFFER_INSIDE = {
    *("array", "empty", "from_file", "keep", "move", "peek", "put", "put_part", "set_whole"),
    "window",
}


def _members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_member_of_a_plan_is_in_a_table() -> None:
    ends = {"cancel"}  # what is under way: tests/plan/test_limits.py
    assert _members(ExecutionPlan) | {"__call__"} == {*REFUSED, *READ, *ends}


def test_every_member_of_a_buffer_is_in_a_table() -> None:
    assert _members(Buffer) == {*BUFFER_REFUSED, *BUFFER_READ, *BUFFER_INSIDE}


# ---------------------------------------------------------------- in the middle of a run


def _in_the_middle(plan: ExecutionPlan, attempt: Callable[[], Any]) -> list[BaseException | None]:
    """Run, with `attempt` where signal handlers run: when the native runner has come back."""
    seen: list[BaseException | None] = []
    engine = plan.engine
    enter, own = engine.enter, engine.own_enter

    def enter_and_try() -> int:
        code = enter()
        if code == Code.AGAIN and not seen:
            try:
                attempt()
                seen.append(None)
            except Exception as error:
                seen.append(error)
        return code

    engine.enter = engine.own_enter = enter_and_try
    plan.execute()
    engine.enter, engine.own_enter = enter, own
    assert len(seen) == 1, "the runner did not come back"
    return seen


@pytest.mark.parametrize("member", sorted(EVERY_REFUSED))
def test_a_running_plan_is_not_changed(member: str) -> None:
    plan = _plan()
    (error,) = _in_the_middle(plan, lambda: EVERY_REFUSED[member](plan))
    assert isinstance(error, BusyError) and "inside itself" in str(error)
    assert np.array_equal(plan.output_buffer.numpy(), EXPECTED)
    assert np.array_equal(plan(x=A), EXPECTED) and plan.variables == {"n": 3}


@pytest.mark.parametrize("member", sorted(set(EVERY_READ) - {"save"}))
def test_a_running_plan_says_what_it_is(member: str) -> None:
    plan = _plan()
    assert _in_the_middle(plan, lambda: EVERY_READ[member](plan)) == [None]
    assert np.array_equal(plan.output_buffer.numpy(), EXPECTED)


def test_a_running_compiled_plan_can_be_saved(tmp_path: Path) -> None:
    plan = _plan()
    assert _in_the_middle(plan, lambda: plan.save(tmp_path / "a.plan")) == [None]
    assert (tmp_path / "a.plan").exists()


@pytest.mark.parametrize("member", sorted(BUFFER_REFUSED))
@pytest.mark.parametrize("which", ["input", "output", "view", "constant"])
def test_buffers_of_a_running_plan_are_left_alone(member: str, which: str) -> None:
    plan = _plan()
    given = plan.buffer(X)
    assert given is not None
    constant = next(b for b in plan.buffers if b.type.shape == (8, 8))
    buffer = {
        "input": given,
        "output": plan.output_buffer,
        "view": given.view(0, 32),
        "constant": constant,
    }[which]
    (error,) = _in_the_middle(plan, lambda: BUFFER_REFUSED[member](buffer))
    assert isinstance(error, BusyError)
    assert np.array_equal(plan.output_buffer.numpy(), EXPECTED)


def test_a_borrowed_input_is_not_read_in_the_middle_of_a_run() -> None:
    plan = _plan()
    given = plan.buffer(X)
    assert given is not None
    look: BorrowedArray = given.borrow()
    for read in (look.numpy, lambda: look[0], lambda: np.asarray(look)):
        (error,) = _in_the_middle(plan, read)
        assert isinstance(error, BusyError)


def test_buffers_that_a_plan_merely_uses_are_left_alone() -> None:
    """Of a plan built by hand, undeclared inputs and intermediates count too."""
    seen: list[str] = []

    def action(attrs: Any, buffers: Any, variables: Any) -> None:
        for name in ("x", "a", "out"):
            try:
                s.buffers[name].copyin(np.zeros(TILE, np.float32))
            except BusyError:
                seen.append(name)

    custom_function("reentry_host")(action)
    s = Sketch(TILE)
    s.op("double", "x", "a", id=1)
    s.builder.add_op(PreparedCustomFunction(2, "reentry_host", None, (s.buffer("a"),)))
    s.op("add", "a", "x", "out", id=3)
    plan = s.build("out")
    s.buffers["x"].copyin(np.ones(TILE, np.float32))
    plan.execute()
    assert seen == ["x", "a", "out"]
    np.testing.assert_array_equal(s.buffers["out"].numpy(), np.full(TILE, 3, np.float32))


# ---------------------------------------------------------------- who comes back


@pytest.fixture
def alarms() -> Iterator[Callable[[Any], None]]:
    """Sets what the signal handler of SIGUSR1 does."""
    actions: list[Any] = []
    old = signal.signal(signal.SIGUSR1, lambda *_: actions[-1]())
    yield actions.append
    signal.signal(signal.SIGUSR1, old)


def test_a_signal_handler_is_refused(alarms: Callable[[Any], None]) -> None:
    plan, errors = _plan(), []

    def handler() -> None:
        for attempt in EVERY_REFUSED.values():
            with pytest.raises(BusyError, match="inside itself"):
                attempt(plan)
            errors.append(1)

    alarms(handler)
    _in_the_middle(plan, lambda: signal.raise_signal(signal.SIGUSR1))
    assert len(errors) == len(EVERY_REFUSED)
    assert np.array_equal(plan.output_buffer.numpy(), EXPECTED)


def test_an_error_of_a_handler_ends_the_run_and_the_next_one_works(
    alarms: Callable[[Any], None],
) -> None:
    plan = _plan()
    alarms(lambda: plan(x=B))
    enter = plan.engine.enter

    def interrupted() -> int:
        code = enter()
        if code == Code.AGAIN:
            signal.raise_signal(signal.SIGUSR1)
        return code

    plan.engine.enter = interrupted
    with pytest.raises(BusyError, match="inside itself"):
        plan.execute()
    plan.engine.enter = enter
    assert table_of(plan).words[Header.BUSY] == 0
    assert np.array_equal(plan(x=A), EXPECTED)


def test_a_destructor_is_refused() -> None:
    plan, refused = _plan(), []

    class Garbage:
        pass

    def gone() -> None:
        try:
            plan(x=B)
        except BusyError:
            refused.append(True)

    kept = [Garbage()]
    weakref.finalize(kept[0], gone)
    _in_the_middle(plan, kept.clear)
    assert refused == [True]
    assert np.array_equal(plan.output_buffer.numpy(), EXPECTED)


@pytest.mark.parametrize("rows", [3, 2])
def test_a_tracer_at_any_line_changes_no_result(rows: int) -> None:
    """With the shapes of the last call, and with others: the fast way and the slow one."""
    plan, other = _plan(), _plan()
    a = np.full((rows, 8), 2, np.float32)
    want, nested_want = other(x=a), other(x=B)
    counts = {"refused": 0, "done": 0}

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if "semel" in frame.f_code.co_filename and event == "line":
            try:
                assert np.array_equal(plan(x=B), nested_want)
                counts["done"] += 1
            except BusyError:
                counts["refused"] += 1
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        got = plan(x=a)
    finally:
        sys.settrace(old)
    assert np.array_equal(got, want)
    assert counts["refused"] > 10 and counts["done"] > 0


def test_another_thread_waits() -> None:
    plan, got = _plan(), []

    def start() -> None:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()

    thread = threading.Thread(target=lambda: got.append(plan(x=B)))
    assert _in_the_middle(plan, start) == [None]
    thread.join()
    assert np.array_equal(got[0], plan(x=B))


def test_a_plan_can_be_given_its_own_buffers() -> None:
    plan = X.prepare(threads=1)
    plan(x=A)
    assert np.array_equal(plan(x=plan.output_buffer.borrow()), A)


def test_a_call_that_is_refused_leaves_the_inputs() -> None:
    y = Tensor.input("y", (8,), "float32")
    plan = (X + y).prepare(threads=1)
    ones = np.ones(8, np.float32)
    plan(x=A, y=ones)
    with pytest.raises(Exception, match="dtype must be float32, got float64"):
        plan(x=B, y=ones.astype(np.float64))
    plan.execute()
    assert np.array_equal(plan.output_buffer.numpy(), A + 1)


#: What moves the memory of a plan.
_CHANGES = ("_grow", "_flatten", "relink", "_link", "resize", "attach")


@pytest.mark.parametrize("at", range(1, 40))
def test_a_signal_while_memory_grows_leaves_a_plan_that_works_or_says_why(at: int) -> None:
    """Raised at the n-th line of the change: the old state, the new one, or a typed refusal."""
    x = Tensor.input("x", (Variable("n", 1), 4), "float32")
    plan = (x * 2).prepare(threads=1)
    small = np.ones((3, 4), np.float32)
    plan(x=small)
    large = np.ones((500, 4), np.float32)
    lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_name not in _CHANGES:
            return trace if "semel" in frame.f_code.co_filename else None
        if event == "line":
            lines += 1
            if lines == 2 * at:
                raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        plan(x=large)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(old)
    for value in (small, large):
        try:
            assert np.array_equal(plan(x=value), 2 * value)
        except Exception as error:
            assert "interrupted" in str(error)


@pytest.mark.parametrize("at", range(1, 30))
def test_a_signal_while_an_array_is_bound_leaves_a_plan_that_works_or_says_why(at: int) -> None:
    """Never rows of the plan's own input with an array of fewer rows in its place."""
    plan = (X * 2).prepare(threads=1)
    large, small = np.ones((16, 8), np.float32), np.ones((2, 8), np.float32)
    plan(x=large)
    names = ("bind_input", "rebind", "add", "record", "detach", "attach")
    # No handler runs between its lines: it enters and leaves the hold in place, like `execute`.
    holds = "ExecutionPlan.bind_input"
    lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        code = frame.f_code
        if event == "line" and code.co_name in names and code.co_qualname != holds:
            lines += 1
            if lines == at:
                raise KeyboardInterrupt
        return trace if "semel" in frame.f_code.co_filename else None

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        plan.bind_input("x", small)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(old)
    try:
        copy = plan.clone()
        copy.execute_with_vars(n=16 if "x" not in plan.engine.bindings.input_shapes() else 2)
        assert (copy.output_buffer.numpy() == 2).all()
        plan.unbind()
        assert (plan(x=small) == 2).all()
    except Exception as error:
        assert "interrupted" in str(error)


LARGE, SMALL = np.ones((16, 8), np.float32), np.full((2, 8), 3, np.float32)
#: What is bound before, and the change that a signal comes into.
CHANGES: dict[str, tuple[Attempt, Attempt]] = {
    "bind an input": (lambda p: None, lambda p: p.bind_input("x", SMALL)),
    "bind another": (lambda p: p.bind_input("x", SMALL + 1), lambda p: p.bind_input("x", SMALL)),
    "bind an output": (lambda p: None, lambda p: p.bind_output("output0", np.zeros_like(LARGE))),
    "unbind": (lambda p: p.bind_input("x", SMALL), lambda p: p.unbind()),
}


def _interrupted_at(at: int, action: Callable[[], Any]) -> bool:
    """Run the action with a KeyboardInterrupt at its n-th line there; whether it has that many."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        if "/semel/" not in frame.f_code.co_filename:
            return None
        if event == "line" and frame.f_code.co_name in _MOVING:
            lines += 1
            if lines == at:
                raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(old)
    return False


_MOVING = ("rebind", "bind_input", "unbind", "attach", "detach", "swap", "set_base")


@pytest.mark.parametrize("name", CHANGES)
def test_rows_and_arrays_never_part_when_a_signal_comes_between(name: str) -> None:
    """At every line of the change: what runs next is the old array, the new one or a refusal."""
    before, change = CHANGES[name]
    y = X * 2
    at, refused = 0, 0
    while True:
        at += 1
        plan = y.prepare(threads=1)
        plan(x=LARGE)
        before(plan)
        if not _interrupted_at(at, lambda plan=plan: change(plan)):  # type: ignore[misc]
            break
        try:
            plan.execute()
            got = plan.output_buffer.numpy()
        except SemelError:
            refused += 1
            continue
        whole = (2 * LARGE, 2 * SMALL, 2 * (SMALL + 1))
        assert any(np.array_equal(got, want) for want in whole), f"line {at}: {got.shape} {got[0]}"
    assert at > 5 and refused > 0
