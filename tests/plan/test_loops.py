"""Loops of a plan: fences, iterations, what one of them may do, and what a run reports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.build import Sketch, table_of
from tests.plan.kernels import TILE

import semel
from semel import config
from semel.compiler.artefacts import compile_kernel
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.toolchain import host_target
from semel.errors import (
    CustomFunctionError,
    IndexRangeError,
    OrderError,
    PlanError,
    VariableError,
)
from semel.ir.abi import Code, Header
from semel.ir.expr import Dim, Index, Variable
from semel.ir.signature import CheckInfo
from semel.ir.types import FLOAT32, INT64
from semel.kernel import ir
from semel.plan import ExecutionPlan, PreparedCopy, PreparedCustomFunction, PreparedKernel
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function_names, unregister_custom_function
from semel.runtime.kernel import CachedKernel

T = Variable("t", 0, 1 << 20)


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    before = set(custom_function_names())
    yield
    for name in set(custom_function_names()) - before:
        unregister_custom_function(name)


def begin(s: Sketch, trip: Dim = T, counter: str = "step", id: int = 1) -> None:
    s.begin(trip, counter, id)


def end(s: Sketch) -> None:
    s.end()


def counting(elements: int = 8, threads: int = 1) -> tuple[Sketch, ExecutionPlan]:
    """out = 2 * (2 * x + 2 * t): two increments in a loop, on bytes that live through it."""
    s = Sketch(elements)
    s.op("double", "x", "y")
    begin(s)
    s.op("increment", "y", "a")
    s.op("increment", "a", "y")
    end(s)
    s.op("double", "y", "out")
    plan = s.build("out", threads=threads)
    s.buffers["x"].copyin(np.arange(elements, dtype=np.float32))
    return s, plan


@cache
def row_kernel() -> CachedKernel:
    """out[row] = 10 * x[steps - 1 - row] + row for 4 columns: reads and writes by the counter."""
    steps, row = Variable("steps", 0, 64), Variable("row", 0, 63)
    out = ir.Buffer("b0", FLOAT32, steps * 4, "w")
    x = ir.Buffer("b1", FLOAT32, steps * 4, "r")
    column, tile = Index("i", 4), Index("tile", 1)
    read = ir.load(x, (steps - 1 - row) * 4 + column)
    number = ir.cast(ir.index(row), FLOAT32)
    value = ir.fma(read, ir.const(FLOAT32, 10.0), number)
    body = (ir.Loop(column, 0, 4, (ir.Store(out, row * 4 + column, value),)),)
    return compile_kernel(
        ir.Kernel("rows", (out, x), (), (row, steps), tile, 1, body), CpuCompiler(host_target())
    )


@cache
def check_kernel() -> CachedKernel:
    """Reports an index of x[row] that is not below 10."""
    row = Variable("row", 0, 7)
    out, x = ir.Buffer("b0", INT64, 8, "w"), ir.Buffer("b1", INT64, 8, "r")
    value = ir.load(x, row)
    body = (
        ir.Check(ir.op("lt", value, ir.const(INT64, 10)), 1, value),
        ir.Store(out, row, value),
    )
    checks = (CheckInfo("pick", "index", 10),)
    tile = Index("tile", 1)
    return compile_kernel(
        ir.Kernel("pick", (out, x), (), (row,), tile, 1, body, checks), CpuCompiler(host_target())
    )


def rows_plan(threads: int = 1) -> tuple[Buffer, Buffer, ExecutionPlan]:
    s = Sketch(256)
    begin(s, Variable("steps", 0, 64), "row")
    out, x = s.buffer("out"), s.buffer("x")
    s.builder.add_kernel(PreparedKernel(3, None, row_kernel(), "", (out, x), (0,)))
    end(s)
    plan = s.build("out", threads=threads)
    return s.buffers["x"], s.buffers["out"], plan


def codes_of(plan: ExecutionPlan) -> list[int]:
    """What every later native call of the plan returns."""
    codes: list[int] = []
    enter = plan.engine.enter

    def counted() -> int:
        codes.append(enter())
        return codes[-1]

    plan.engine.enter = counted
    return codes


# ---------------------------------------------------------------- iterations


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trip", [0, 1, 2, 17, 5000])
def test_what_lies_between_runs_so_many_times(threads: int, trip: int) -> None:
    _, plan = counting(threads=threads)
    plan.execute_with_vars(t=trip)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 4 * np.arange(8) + 4 * trip)


def test_a_loop_is_a_step_of_its_own() -> None:
    _, plan = counting()
    assert plan.steps == [[[0]], [[1]], [[2, 3]], [[4]]]


def test_kernels_read_the_counter_as_a_variable() -> None:
    x, out, plan = rows_plan()
    data = np.arange(256, dtype=np.float32).reshape(64, 4)
    x.copyin(data.reshape(-1))
    for steps in (64, 1, 0, 7):
        plan.execute_with_vars(steps=steps)
        expected = 10 * data[:steps][::-1] + np.arange(steps)[:, None]
        found = out.view(0, 16 * steps).numpy()
        np.testing.assert_array_equal(found.reshape(steps, 4), expected)


def test_a_counter_is_bound_by_nobody() -> None:
    _, _, plan = rows_plan()
    assert plan.variables == {"steps": None}
    with pytest.raises(VariableError, match="row"):
        plan.execute_with_vars(steps=2, row=1)


def test_a_counter_does_not_bind_what_is_fixed() -> None:
    s = Sketch(256)
    begin(s, Variable("steps", 0, 64), "row")
    out, x = s.buffer("out"), s.buffer("x")
    fixed = {"row": 2}
    s.builder.add_kernel(PreparedKernel(3, None, row_kernel(), "", (out, x), (0,), fixedvars=fixed))
    end(s)
    plan = s.build("out")
    s.buffers["x"].copyin(np.ones(256, np.float32))
    s.buffers["out"].copyin(np.zeros(256, np.float32))
    plan.execute_with_vars(steps=5)
    assert np.flatnonzero(s.buffers["out"].numpy()).tolist() == [8, 9, 10, 11]


def test_two_loops_have_counters_of_their_own() -> None:
    s = Sketch(8)
    begin(s, T, "a", 1)
    s.op("increment", "x", "y")
    s.op("double", "y", "x")
    end(s)
    begin(s, T + 1, "b", 3)
    s.op("increment", "x", "y")
    s.op("increment", "y", "x")
    end(s)
    s.op("double", "x", "out")
    plan = s.build("out")
    s.buffers["x"].copyin(np.zeros(8, np.float32))
    plan.execute_with_vars(t=3)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(8, 2 * (14 + 8)))


@pytest.mark.parametrize("jitter", [False, True])
def test_shared_steps_in_a_loop_give_the_same_bits(jitter: bool) -> None:
    found = []
    for threads in (1, 2, 3):
        s = Sketch(16 * TILE, bytes_per_element=200)
        begin(s)
        s.op("reverse", "x", "y")
        s.op("increment", "y", "x")
        end(s)
        s.op("double", "x", "out")
        with config.override(debug=frozenset({"jitter"} if jitter else ())):
            plan = s.build("out", threads=threads)
        s.buffers["x"].copyin(np.arange(16 * TILE, dtype=np.float32))
        plan.execute_with_vars(t=25)
        found.append(plan.output_buffer.numpy())
        if threads > 1:
            # The last step needs no barrier, the two of the loop do so in every iteration.
            assert plan.num_barriers == 25 * 2
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    np.testing.assert_array_equal(found[0], 2 * (np.arange(16 * TILE)[::-1] + 25.0))


def test_ten_thousand_iterations_come_back_to_python_once() -> None:
    _, plan = counting()
    plan.execute_with_vars(t=10_000)
    codes = codes_of(plan)
    plan.execute()
    assert codes == [Code.OK]


def test_a_run_comes_back_between_iterations_and_goes_on() -> None:
    _, plan = counting()
    codes = codes_of(plan)
    table_of(plan).words[Header.SLICE_TICKS] = 1000
    plan.execute_with_vars(t=10_000)
    assert codes[-1] == Code.OK and codes.count(Code.AGAIN) > 3
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 4 * np.arange(8) + 40_000)


def test_a_host_call_in_a_loop_sees_the_counter() -> None:
    seen: list[int] = []

    def note(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
        seen.append(variables["step"])

    semel.custom_function("loop_note")(note)
    s = Sketch(8)
    begin(s)
    s.op("increment", "x", "y")
    s.builder.add_op(PreparedCustomFunction(7, "loop_note", None, (s.buffer("y"),)))
    s.builder.add_op(PreparedCopy(8, (s.buffer("x"), s.buffer("y"))))
    end(s)
    plan = s.build("x")
    s.buffers["x"].copyin(np.zeros(8, np.float32))
    plan.execute_with_vars(t=4)
    assert seen == [0, 1, 2, 3]
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(8, 4.0))


# ---------------------------------------------------------------- failures


def checked_plan(threads: int = 1) -> tuple[Sketch, ExecutionPlan]:
    s = Sketch(8, "int64")
    begin(s, Variable("t", 0, 8), "row")
    out, x = s.buffer("out"), s.buffer("x")
    s.builder.add_kernel(PreparedKernel(3, None, check_kernel(), "", (out, x), (0,)))
    end(s)
    return s, s.build("out", threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failure_names_the_first_iteration_that_failed(threads: int) -> None:
    s, plan = checked_plan(threads)
    s.buffers["x"].copyin(np.array([1, 2, 99, 3, 77, 4, 5, 6]))
    with pytest.raises(IndexRangeError, match="got 99, in iteration 2") as caught:
        plan.execute_with_vars(t=8)
    assert vars(caught.value)["iteration"] == 2 and vars(caught.value)["index"] == 99


def test_a_loop_ends_with_the_iteration_that_failed() -> None:
    s, plan = checked_plan()
    s.buffers["x"].copyin(np.array([1, 2, 99, 3, 77, 4, 5, 6]))
    with pytest.raises(IndexRangeError, match="got 99, in iteration 2"):
        plan.execute_with_vars(t=8)
    assert table_of(plan).iteration(0) == 2


def test_a_plan_runs_again_after_a_failure_in_a_loop() -> None:
    s, plan = checked_plan()
    s.buffers["x"].copyin(np.full(8, 50))
    with pytest.raises(IndexRangeError, match="iteration 0"):
        plan.execute_with_vars(t=8)
    s.buffers["x"].copyin(np.arange(8))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.arange(8))


def test_an_exception_in_a_loop_leaves_the_plan_usable() -> None:
    calls = []

    def fail_once(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
        calls.append(variables["step"])
        if len(calls) == 3:
            raise ValueError("no")

    semel.custom_function("loop_fail_once")(fail_once)
    s = Sketch(8)
    begin(s)
    s.builder.add_op(PreparedCustomFunction(7, "loop_fail_once", None, (s.buffer("x"),)))
    end(s)
    plan = s.build("x")
    with pytest.raises(CustomFunctionError, match="no"):
        plan.execute_with_vars(t=5)
    plan.execute()
    assert calls == [0, 1, 2, 0, 1, 2, 3, 4]


# ---------------------------------------------------------------- order


def test_no_order_moves_an_operation_out_of_a_loop() -> None:
    s = Sketch(8)
    s.op("double", "x", "y")
    begin(s)
    s.op("increment", "a", "b")
    end(s)
    s.op("double", "p", "q")
    s.builder.set_output_buffers([s.buffer("b")])
    with pytest.raises(OrderError, match="operation 1 must come before 3"):
        s.builder.build(order=[0, 3, 1], threads=1)
    with pytest.raises(PlanError, match="each of the 3 operations once"):
        s.builder.build(order=[0, 2, 1, 3], threads=1)


def test_an_operation_that_shares_no_byte_stays_behind_the_loop() -> None:
    s = Sketch(8)
    begin(s)
    s.op("increment", "a", "b")
    end(s)
    s.op("double", "x", "y")
    plan = s.build("b")
    assert plan.steps == [[[0]], [[1]], [[2]]]
    assert plan.op_dependencies[2] == (0,)


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    names = st.sampled_from("abcd")
    count = draw(st.integers(1, 6))
    made = [(draw(st.sampled_from(["double", "increment"])), draw(names), draw(names))
            for _ in range(count)]  # fmt: skip
    return [op for op in made if op[1] != op[2]]


@settings(max_examples=40, deadline=None)
@given(programs(), programs(), programs(), st.integers(0, 4), st.sampled_from([1, 2]))
def test_random_loops_do_what_their_lines_say(
    before: list[tuple[str, str, str]],
    inside: list[tuple[str, str, str]],
    after: list[tuple[str, str, str]],
    trip: int,
    threads: int,
) -> None:
    s = Sketch(2 * TILE, bytes_per_element=1000)
    values = {name: np.full(2 * TILE, i, np.float32) for i, name in enumerate("abcd")}
    for name in values:
        s.buffer(name)
    for op in before:
        s.op(*op)
    begin(s)
    for op in inside:
        s.op(*op)
    end(s)
    for op in after:
        s.op(*op)
    plan = s.build(*values, threads=threads)
    for name, array in values.items():
        s.buffers[name].copyin(array)
    for kind, source, to in [*before, *inside * trip, *after]:
        values[to] = values[source] * 2 if kind == "double" else values[source] + 1
    plan.execute_with_vars(t=trip)
    for name, array in values.items():
        np.testing.assert_array_equal(s.buffers[name].numpy(), array)


# ---------------------------------------------------------------- refusals


def test_a_counter_outside_its_loop_is_refused() -> None:
    s = Sketch(256)
    begin(s, Variable("steps", 0, 64), "row")
    s.op("double", "x", "y")
    end(s)
    out, x = s.buffer("out"), s.buffer("x")
    s.builder.add_kernel(PreparedKernel(3, None, row_kernel(), "", (out, x), (0,)))
    with pytest.raises(VariableError, match="has no value outside"):
        s.build("out")


def test_a_counter_that_is_used_twice_is_refused() -> None:
    s = Sketch(8)
    for id_ in (1, 3):
        begin(s, T, "step", id_)
        s.op("double", "x", "y")
        end(s)
    with pytest.raises(PlanError, match="counter of its own"):
        s.build("y")


def test_a_counter_that_is_a_declared_variable_is_refused() -> None:
    s = Sketch(8)
    s.builder.declare_variable(Variable("step", 0, 8))
    begin(s)
    s.op("double", "x", "y")
    end(s)
    with pytest.raises(PlanError, match="cannot be declared"):
        s.build("y")


def test_an_amount_of_work_that_changes_in_a_loop_is_refused() -> None:
    s = Sketch(64, fixed=False)
    begin(s, T, "n")
    s.op("double", "x", "y")
    end(s)
    with pytest.raises(PlanError, match="must not depend on a loop's counter"):
        s.build("y")


@pytest.mark.parametrize("trip", [Index("i", 4), Variable("step", 0, 4)])
def test_a_trip_count_over_anything_but_variables_is_refused(trip: Dim) -> None:
    s = Sketch(8)
    begin(s, trip)
    s.op("double", "x", "y")
    end(s)
    with pytest.raises(PlanError, match="trip must"):
        s.build("y")


# ---------------------------------------------------------------- reports, clones, files


@pytest.mark.parametrize("threads", [1, 2])
def test_a_profile_has_every_call_of_every_iteration(threads: int) -> None:
    _, plan = counting(threads=threads)
    report = plan.execute_profiled({"t": 6}, limits=False)
    assert [len(p.spans) for p in report] == [1, 0, 6, 6, 1]
    assert [p.kind for p in report] == ["kernel", "loop", "kernel", "kernel", "kernel"]
    assert report.run.num_steps == 3 + 6 + 1
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 4 * np.arange(8) + 24)


def test_a_profile_counts_the_work_of_all_iterations() -> None:
    _, plan = counting()
    once = plan.execute_profiled({"t": 1}, limits=False)[2]
    often = plan.execute_profiled({"t": 6}, limits=False)[2]
    assert often.bytes == 6 * once.bytes > 0


def test_a_profile_says_how_many_calls_it_has_no_record_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, plan = counting()
    assert "not recorded" not in str(plan.execute_profiled({"t": 6}, limits=False))
    monkeypatch.setattr("semel.runtime.events.MAX_EVENTS", 5)
    report = plan.execute_profiled({"t": 6}, limits=False)
    assert sum(len(p.spans) for p in report) == 5
    assert report.run.num_unrecorded == 2 + 2 * 6 - 5
    assert "9 calls of ops not recorded" in str(report)


def test_an_explanation_says_how_often() -> None:
    _, plan = counting()
    told = plan.explain()
    assert [op.times for op in told.ops] == ["", "t", "t", "t", ""]
    assert "loop  times t" in str(told)
    assert "iterations of op 1 = t" in str(told)


def test_what_lives_across_iterations_is_alive_through_the_loop() -> None:
    _, plan = counting()
    buffers = plan.explain().buffers
    # x is read before the loop, y lives through it, a is of one iteration, out comes after.
    assert [(b.first, b.last) for b in buffers] == [(0, 0), (0, 4), (2, 3), (4, 4)]
    s = Sketch(8)
    begin(s)
    s.op("add", "x", "w", "y")
    end(s)
    s.op("double", "y", "out")
    found = {b.index: (b.first, b.last) for b in s.build("out").explain().buffers}
    assert found[s.index["y"]] == (0, 2) and found[s.index["w"]] == (1, 1)


def test_a_clone_has_counters_of_its_own() -> None:
    _, plan = counting()
    plan.execute_with_vars(t=3)
    clone = plan.clone()
    clone.execute_with_vars(t=5)
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 4 * np.arange(8) + 12)
    np.testing.assert_array_equal(clone.output_buffer.numpy(), 4 * np.arange(8) + 20)


def test_a_plan_with_a_loop_survives_its_file(tmp_path: Path) -> None:
    x, out, plan = rows_plan()
    data = np.arange(256, dtype=np.float32)
    x.copyin(data)
    plan.execute_with_vars(steps=9)
    plan.save(tmp_path / "rows.plan")
    loaded = semel.load_plan(tmp_path / "rows.plan", threads=1)
    loaded.execute()
    np.testing.assert_array_equal(loaded.output_buffer.numpy()[:36], out.numpy()[:36])
    assert loaded.steps == plan.steps
    loaded.execute_with_vars(steps=2)


def test_a_loop_runs_in_a_forked_child() -> None:
    _, plan = counting(threads=2)
    plan.execute_with_vars(t=7)
    child = os.fork()
    if child == 0:  # pragma: no cover
        plan.execute_with_vars(t=9)
        right = np.array_equal(plan.output_buffer.numpy(), 4 * np.arange(8) + 36)
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
