"""Branches and nested loops of plans built by hand: what runs, and what a run reports."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.build import Sketch, table_of
from tests.plan.kernels import TILE
from tests.plan.signals import handling
from tests.plan.test_loops import check_kernel

import semel
from semel import Variable
from semel.compiler.artefacts import compile_kernel
from semel.devices import find_backend
from semel.errors import IndexRangeError, PlanError
from semel.ir.expr import Dim, Index
from semel.ir.types import BOOL, FLOAT32
from semel.kernel import ir
from semel.plan import (
    ExecutionPlan,
    PreparedBranch,
    PreparedCopy,
    PreparedKernel,
    PreparedLoop,
)
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel

T = Variable("t", 0, 1 << 20)


def either(threads: int = 1) -> tuple[Sketch, ExecutionPlan]:
    """out = 2 * (2 * x) if p, else 2 * (x + 1)."""
    s = Sketch(8)
    s.buffer("x")
    s.branch("p")
    s.op("double", "x", "y")
    s.orelse()
    s.op("increment", "x", "y")
    s.end()
    s.op("double", "y", "out")
    plan = s.build("out", threads=threads)
    s.buffers["x"].copyin(np.arange(8, dtype=np.float32))
    return s, plan


def set_flag(buffer: Buffer, value: bool) -> None:
    buffer.copyin(np.array([value]))


@pytest.mark.parametrize("threads", [1, 2])
def test_one_of_two_arms_runs(threads: int) -> None:
    s, plan = either(threads)
    x = np.arange(8)
    for value in (True, False, True, True, False):
        set_flag(s.buffers["p"], value)
        plan.execute()
        np.testing.assert_array_equal(plan.output_buffer.numpy(), 4 * x if value else 2 * (x + 1))


def test_a_row_before_may_compute_the_condition() -> None:
    s = Sketch(1, "bool")
    seen: list[bool] = []

    def flip(attrs: Any, buffers: Any, variables: Any) -> None:
        buffers[0].copyin(~buffers[0].numpy())

    def note(attrs: Any, buffers: Any, variables: Any) -> None:
        seen.append(attrs)

    semel.custom_function("control_flip")(flip)
    semel.custom_function("control_note")(note)
    try:
        s.builder.add_op(
            semel.plan.PreparedCustomFunction(1, "control_flip", None, (s.buffer("p"),))
        )
        s.branch("p")
        s.builder.add_op(semel.plan.PreparedCustomFunction(2, "control_note", True, ()))
        s.orelse()
        s.builder.add_op(semel.plan.PreparedCustomFunction(3, "control_note", False, ()))
        s.end()
        plan = s.build("p")
        set_flag(s.buffers["p"], False)
        for _ in range(3):
            plan.execute()
        assert seen == [True, False, True]
    finally:
        for name in ("control_flip", "control_note"):
            semel.unregister_custom_function(name)


def test_what_an_arm_that_does_not_run_would_report_is_not_reported() -> None:
    s = Sketch(8, "int64")
    out, x = s.buffer("out"), s.buffer("x")
    s.branch("p")
    call = PreparedKernel(3, None, check_kernel(), "", (out, x), (0,), fixedvars={"row": 0})
    s.builder.add_op(call)
    s.end()
    plan = s.build("out")
    s.buffers["x"].copyin(np.full(8, 99))
    set_flag(s.flag("p"), False)
    plan.execute()
    set_flag(s.flag("p"), True)
    with pytest.raises(IndexRangeError, match="got 99"):
        plan.execute()
    set_flag(s.flag("p"), False)
    plan.execute()


def test_a_branch_is_a_fence_with_steps_of_its_own() -> None:
    _, plan = either()
    assert plan.steps == [[[0]], [[1]], [[2]], [[3]]]
    assert plan.op_dependencies == [(), (0,), (0,), (0,)]
    told = plan.explain()
    assert [op.kind for op in told.ops] == ["branch", "kernel", "kernel", "kernel"]
    report = plan.execute_profiled(limits=False)
    assert [len(p.spans) for p in report] in ([0, 1, 0, 1], [0, 0, 1, 1])


def test_a_clone_and_a_file_branch_too(tmp_path: Path) -> None:
    s = Sketch(8)
    a, b, out = (s.buffer(name) for name in ("a", "b", "out"))
    s.branch("p")
    s.builder.add_op(PreparedCopy(3, (out, a)))
    s.orelse()
    s.builder.add_op(PreparedCopy(4, (out, b)))
    s.end()
    plan = s.build("out")
    s.buffers["a"].copyin(np.full(8, 1, np.float32))
    s.buffers["b"].copyin(np.full(8, 2, np.float32))
    for value, want in ((True, 1), (False, 2)):
        set_flag(s.buffers["p"], value)
        plan.execute()
        plan.save(tmp_path / "plan")
        for other in (plan, plan.clone(), semel.load_plan(tmp_path / "plan", threads=1)):
            other.execute()
            np.testing.assert_array_equal(other.output_buffer.numpy(), np.full(8, want))


@pytest.mark.parametrize("buffers", [(), (0,), (1, 1)])
def test_a_branch_needs_one_bool(buffers: tuple[int, ...]) -> None:
    s = Sketch(8)
    s.buffer("x")
    s.flag("p")
    s.builder.add_op(PreparedBranch(5, buffers, ()))
    with pytest.raises(PlanError, match="one buffer of one bool"):
        s.build("x")


def test_loops_nest() -> None:
    s = Sketch(8)
    s.begin(T, "i", 1)
    s.op("increment", "x", "y")
    s.begin(3, "j", 2)
    s.op("increment", "y", "z")
    s.op("increment", "z", "y")
    s.end()
    s.op("double", "y", "x")
    s.end()
    plan = s.build("x")
    for trip in (0, 1, 4):
        s.buffers["x"].copyin(np.ones(8, np.float32))
        plan.execute_with_vars(t=trip)
        want = 1
        for _ in range(trip):
            want = 2 * (want + 1 + 6)
        np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(8, want))
    assert [op.times for op in plan.explain().ops] == ["t", "t", *["t x 3"] * 3, "t"]


# ---------------------------------------------------------------- conditional loops


@cache
def below_kernel() -> CachedKernel:
    """p = x[0] < 10."""
    flag, x = ir.Buffer("b0", BOOL, 1, "w"), ir.Buffer("b1", FLOAT32, 8, "r")
    value = ir.op("lt", ir.load(x, 0), ir.const(FLOAT32, 10.0))
    body = (ir.Store(flag, 0, value),)
    kernel = ir.Kernel("below", (flag, x), (), (), Index("tile", 1), 1, body)
    backend = find_backend("cpu")
    return compile_kernel(kernel, backend.compiler(backend.target()))


def doubling(threads: int = 1, most: Dim = T) -> tuple[Sketch, ExecutionPlan]:
    """while x[0] < 10, and at most so many times: x = 2 * (x + 1)."""
    s = Sketch(8)
    x = s.buffer("x")
    s.begin_while("p", most)
    s.builder.add_op(PreparedKernel(7, None, below_kernel(), "", (s.buffer("p"), x), (0,)))
    s.run()
    s.op("increment", "x", "y")
    s.op("double", "y", "x")
    s.end()
    s.op("double", "x", "out")
    return s, s.build("out", threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_goes_on_while_its_bool_is_true(threads: int) -> None:
    s, plan = doubling(threads)
    for start, most in ((1, 100), (50, 100), (0, 100), (1, 0), (1, 1), (1, 2), (9, 100)):
        s.buffers["x"].copyin(np.full(8, start, np.float32))
        plan.execute_with_vars(t=most)
        want, trips = start, 0
        while want < 10 and trips < most:
            want, trips = 2 * (want + 1), trips + 1
        np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(8, 2 * want))
        if most > 0:
            assert table_of(plan).iteration(0) == trips - (trips == most)


def test_an_endless_loop_can_be_interrupted() -> None:
    s = Sketch(8)
    s.begin_while("p", 1 << 60)
    s.run()
    s.op("increment", "x", "y")
    s.end()
    plan = s.build("y")
    set_flag(s.buffers["p"], True)

    def stop(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt("stop")

    with handling(stop) as interrupt, pytest.raises(KeyboardInterrupt, match=r"^stop$"):
        interrupt(plan)
        plan.execute()
    set_flag(s.buffers["p"], False)
    plan.execute()


def test_a_failure_ends_a_conditional_loop() -> None:
    s = Sketch(8, "int64")
    out, x = s.buffer("out"), s.buffer("x")
    s.begin_while("p", 1 << 60)
    s.run()
    call = PreparedKernel(3, None, check_kernel(), "", (out, x), (0,), fixedvars={"row": 0})
    s.builder.add_op(call)
    s.end()
    plan = s.build("out")
    set_flag(s.buffers["p"], True)
    s.buffers["x"].copyin(np.full(8, 99))
    with pytest.raises(IndexRangeError, match="got 99, in iteration 0"):
        plan.execute()


def test_a_conditional_loop_is_explained_and_profiled() -> None:
    s, plan = doubling()
    s.buffers["x"].copyin(np.ones(8, np.float32))
    report = plan.execute_profiled({"t": 9}, limits=False)
    assert [(p.kind, len(p.spans)) for p in report] == [
        ("loop", 0), ("kernel", 3), ("kernel", 2), ("kernel", 2), ("kernel", 1)
    ]  # fmt: skip
    assert [op.times for op in plan.explain().ops] == [*["up to t"] * 4, ""]


def test_a_test_without_a_bool_is_refused() -> None:
    s = Sketch(8)
    copy = PreparedCopy(3, (s.buffer("y"), s.buffer("x")))
    s.builder.add_op(PreparedLoop(1, "step", T, (), test=(copy,)))
    with pytest.raises(PlanError, match="must have a bool too"):
        s.build("y")


# ---------------------------------------------------------------- random trees

Tree = list[Any]


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Tree:
    names = st.sampled_from("abcd")
    items: Tree = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["op", "op", "loop", "branch"] if depth else ["op"]))
        if kind == "op":
            source, to = draw(names), draw(names)
            if source != to:
                items.append((draw(st.sampled_from(["double", "increment"])), source, to))
        elif kind == "loop":
            items.append(("loop", draw(st.integers(0, 3)), draw(trees(depth=depth - 1))))
        else:
            arms = draw(trees(depth=depth - 1)), draw(trees(depth=depth - 1))
            items.append(("branch", draw(st.sampled_from("pq")), *arms))
    return items


def add(s: Sketch, tree: Tree, number: list[int]) -> None:
    for kind, *rest in tree:
        number[0] += 1
        if kind == "loop":
            s.begin(rest[0], f"i{number[0]}", number[0])
            add(s, rest[1], number)
            s.end()
        elif kind == "branch":
            s.branch(rest[0], number[0])
            add(s, rest[1], number)
            s.orelse()
            add(s, rest[2], number)
            s.end()
        else:
            s.op(kind, *rest)


def interpret(tree: Tree, values: dict[str, Any], flags: dict[str, bool]) -> None:
    for kind, *rest in tree:
        if kind == "loop":
            for _ in range(rest[0]):
                interpret(rest[1], values, flags)
        elif kind == "branch":
            interpret(rest[1] if flags[rest[0]] else rest[2], values, flags)
        else:
            source, to = rest
            values[to] = values[source] * 2 if kind == "double" else values[source] + 1


@settings(max_examples=60, deadline=None)
@given(trees(), st.booleans(), st.booleans(), st.sampled_from([1, 2]))
def test_random_trees_do_what_they_say(tree: Tree, p: bool, q: bool, threads: int) -> None:
    s = Sketch(2 * TILE, bytes_per_element=1000)
    values: dict[str, Any] = {
        name: np.full(2 * TILE, i, np.float32) for i, name in enumerate("abcd")
    }
    for name in values:
        s.buffer(name)
    flags = {"p": p, "q": q}
    for name in flags:
        s.flag(name)
    add(s, tree, [0])
    plan = s.build(*values, threads=threads)
    for name, array in values.items():
        s.buffers[name].copyin(array)
    for name, value in flags.items():
        set_flag(s.buffers[name], value)
    plan.execute()
    interpret(tree, values, flags)
    for name, array in values.items():
        np.testing.assert_array_equal(s.buffers[name].numpy(), array)


def test_rows_inside_a_row_are_shown_as_they_are() -> None:
    s, plan = either()
    branch, then, orelse = plan.prepared_ops[:3]
    assert isinstance(branch, PreparedBranch) and branch.bodies == ((then,), (orelse,))
    assert isinstance(then, PreparedKernel)
    assert then.buffer_ptrs == (s.buffers["x"].address, s.buffers["y"].address)
    assert then in plan.prepared_kernels and then.vals == (8,)


def tree() -> tuple[Sketch, ExecutionPlan]:
    """A loop with a conditional loop and a branch in it, between two kernels."""
    s = Sketch(8)
    s.op("double", "x", "a")  # 0
    s.begin(3, "i")  # 1
    s.op("increment", "a", "b")  # 2
    s.begin_while("p", 4, "j", 2)  # 3
    s.op("double", "b", "c")  # 4, its test
    s.run()
    s.op("increment", "c", "d")  # 5
    s.end()
    s.branch("q", 3)  # 6
    s.op("double", "d", "e")  # 7
    s.orelse()
    s.op("increment", "d", "e")  # 8
    s.end()
    s.end()
    s.op("double", "e", "out")  # 9
    s.op("double", "x", "other")  # 10
    return s, s.build("out", "other")


def test_dependencies_and_levels_follow_the_tree() -> None:
    _, plan = tree()
    assert plan.op_dependencies == [
        (), (0,), (1,), (2,), (3,), (4,), (3,), (6,), (6,), (1,), (1,)
    ]  # fmt: skip
    assert plan.op_levels == [[0], [1], [2], [3], [4], [5], [6], [7, 8], [9, 10]]
    assert plan.op_order == tuple(range(11))
    shown = [i for step in plan.steps for segment in step for i in segment]
    assert tuple(shown) == plan.op_order == tuple(op.op for op in plan.explain().ops)
    assert [each.op_index for each in plan.execute_profiled(limits=False)] == shown


def test_an_arm_does_not_wait_for_the_other() -> None:
    _, plan = tree()
    ops = {op.op: op for op in plan.explain().ops}
    assert ops[7].waits == ops[8].waits == ()
    assert ops[4].times == "3 x up to 4" and ops[8].times == "3"


def test_profiles_count_the_work_that_was_done() -> None:
    s, plan = tree()
    set_flag(s.flag("p"), False)
    set_flag(s.flag("q"), True)
    report = plan.execute_profiled(limits=False)
    assert [each.tiles for each in report if each.kind == "kernel"] == [1, 3, 3, 0, 3, 0, 1, 1]
    assert [each.bytes for each in report][4:9] == [3 * 96, 0, 0, 3 * 96, 0]
