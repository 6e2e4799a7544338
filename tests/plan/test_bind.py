"""Variables: binding, bounds, guards, growth; inputs and their written shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, program_of, symbolic_add, typed
from tests.plan.kernels import TILE, kernel

from semel import Tensor, config
from semel.errors import InputError, OutOfMemoryError, PlanError, UserError, VariableError
from semel.ir.expr import Variable
from semel.plan.instantiate import instantiate
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program, ProgramValue
from semel.plan.weights import Weight

X8 = np.arange(8, dtype=np.float32)


def test_variables_come_from_the_shapes_of_inputs() -> None:
    plan = symbolic_add()
    for size in (8, 0, 3, 4096, 8):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(plan(x=x, y=x), 2 * x)
        assert plan.variables == {"n": size}


def test_rebinding_is_sticky() -> None:
    s = Sketch(64, fixed=False)
    s.op("increment", "x", "x2")
    s.builder.set_output_buffer(s.buffer("x2"))
    plan = s.builder.build(threads=1)
    plan.execute_with_vars(n=5)
    s.buffers["x2"].copyin(np.zeros(64, np.float32))
    plan.execute()
    np.testing.assert_array_equal(s.buffers["x2"].numpy(), [1] * 5 + [0] * 59)
    plan.execute_with_vars({"n": 7})
    np.testing.assert_array_equal(s.buffers["x2"].numpy(), [1] * 7 + [0] * 57)


def test_a_variable_never_bound_is_named() -> None:
    plan = symbolic_add()
    with pytest.raises(VariableError, match=r"'n' was never bound"):
        plan.execute()


@pytest.mark.parametrize("value", [-1, 4097, 1 << 70])
def test_out_of_range_value_is_refused_and_changes_nothing(value: int) -> None:
    plan = symbolic_add()
    plan(x=X8, y=X8)
    with pytest.raises(VariableError, match=r"'n' must"):
        plan.execute_with_vars(n=value)
    assert plan.variables == {"n": 8}
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 2 * X8)


def test_unknown_and_non_integer_variables_are_refused() -> None:
    plan = symbolic_add()
    plan(x=X8, y=X8)
    with pytest.raises(VariableError, match=r"no variable 'm'; known: n"):
        plan.execute_with_vars(n=3, m=3)
    with pytest.raises(VariableError, match="must be an int"):
        plan.execute_with_vars(n=3.0)  # type: ignore[arg-type]
    assert plan.variables == {"n": 8}


def test_a_broken_guard_names_the_values_and_changes_nothing() -> None:
    n = Variable("n", 0, 4096)
    plan = symbolic_add(guards=[(n % 4, "n must be a multiple of 4")])
    plan(x=X8, y=X8)
    with pytest.raises(VariableError, match=r"n must be a multiple of 4\. Found n=7\."):
        plan(x=X8[:7], y=X8[:7])
    assert plan.variables == {"n": 8}
    np.testing.assert_array_equal(plan(x=X8[:4], y=X8[:4]), 2 * X8[:4])


def test_fixed_variables_win() -> None:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "a", fixedvars={"n": 3})
    s.op("increment", "x", "b")
    plan = s.build("a", "b")
    plan.execute_with_vars(n=5)
    np.testing.assert_array_equal(s.buffers["a"].numpy(), [1] * 3 + [0] * 13)
    np.testing.assert_array_equal(s.buffers["b"].numpy(), [1] * 5 + [0] * 11)


def test_initial_values_survive_a_refused_bind() -> None:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "a", vals=(4,))
    plan = s.build("a")
    with pytest.raises(VariableError, match=r"must lie in \[0, 16\], got 99"):
        plan.execute_with_vars(n=99)
    plan.execute()
    np.testing.assert_array_equal(s.buffers["a"].numpy(), [1] * 4 + [0] * 12)


def test_stale_rows_are_never_read() -> None:
    plan = symbolic_add()
    plan(x=X8, y=X8)
    with pytest.raises(InputError, match=r"input 'x'.*written as \(5,\).*written as \(8,\)"):
        plan.execute_with_vars(n=5)
    x, y = plan.buffers[0], plan.buffers[1]
    x.copyin(X8[:5])
    with pytest.raises(InputError, match=r"input 'y'"):
        plan.execute_with_vars(n=5)
    y.copyin(X8[:5])
    plan.execute_with_vars(n=5)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 2 * X8[:5])
    x.copyin(X8[:6])
    with pytest.raises(InputError, match=r"input 'x'"):
        plan.execute()


def test_an_input_never_written_is_an_error() -> None:
    plan = symbolic_add()
    plan.buffers[0].copyin(X8)
    with pytest.raises(InputError, match=r"input 'y'.*never written"):
        plan.execute_with_vars(n=8)


def test_outputs_cannot_be_read_before_the_first_execute() -> None:
    plan = symbolic_add()
    with pytest.raises(PlanError, match="nothing was executed"):
        plan.output_buffer.numpy()


def test_borrowed_view_is_refused_once_the_plan_ran_again() -> None:
    plan = symbolic_add()
    plan(x=X8, y=X8)
    view = plan.output_buffer.borrow()
    np.testing.assert_array_equal(view.array(), 2 * X8)
    plan.execute()
    with pytest.raises(PlanError, match="ran again"):
        view.array()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X8}, "missing y"),
        ({"x": X8, "y": X8, "z": X8}, "unknown z"),
        ({"x": X8, "y": X8.astype(np.float64)}, "dtype must be float32, got float64"),
        ({"x": X8, "y": X8[:, None]}, "rank 1"),
        ({"x": X8, "y": X8[:7]}, r"'y' axis 0.*n=7, but input 'x' axis 0 gives n=8"),
        ({"x": np.zeros(5000, np.float32), "y": X8}, r"n=5000.*\[0, 4096\]"),
        ({"x": X8, "y": ["a"]}, "numbers that fit float32"),
        ({"x": X8, "y": 1j}, "numbers that fit float32"),
    ],
)
def test_wrong_inputs_are_named(inputs: dict[str, object], message: str) -> None:
    plan = symbolic_add()
    plan(x=X8, y=X8)
    with pytest.raises(InputError, match=message):
        plan(**inputs)
    np.testing.assert_array_equal(plan(x=X8, y=X8), 2 * X8)


def test_lists_and_dlpack_objects_are_inputs() -> None:
    class Exporter:
        def __init__(self, array: np.ndarray) -> None:
            self._array = array

        def __dlpack__(self, **options: Any) -> object:
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self._array.__dlpack_device__()

    plan = symbolic_add()
    result = plan(x=[1, 2, 3], y=Exporter(np.ones(3, np.float32)))
    np.testing.assert_array_equal(result, [2, 3, 4])


def test_results_are_copies() -> None:
    plan = symbolic_add()
    first = plan(x=X8, y=X8)
    plan(x=X8 + 1, y=X8)
    np.testing.assert_array_equal(first, 2 * X8)


def _program(top: int | None, *, wide: bool = False) -> Program:
    """out = 4 * (2n or n) elements of x, through two arena values and a shared kernel."""
    n, k = Variable("n", 0, top), Variable("k", 0, top)
    vector = typed((k,))
    values = (
        ProgramValue("x", vector, "io", node_ids=(1,)),
        ProgramValue("a", vector, "arena", None, 0, 1, (2,)),
        ProgramValue("b", vector, "arena", None, 1, 2, (3,)),
        ProgramValue("out", vector, "io", node_ids=(4,)),
        ProgramValue("one", typed((4,)), "constant", Weight(np.ones(4, np.float32)), node_ids=(5,)),
    )
    double, increment = kernel("double", n), kernel("increment", n)
    calls = [(double, (0, 1), (k,)), (double, (1, 2), (k,)), (increment, (2, 3), (k,))]
    return program_of(values, calls, {"x": 0}, {"out": 3}, (k,), compile_count=1)


def _check(plan: ExecutionPlan, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(plan(x=x), 4 * x + 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_program_runs_with_renamed_variables(threads: int) -> None:
    plan = instantiate(_program(4 * TILE), threads=threads)
    for size in (0, 1, 7, TILE, TILE + 1, 4 * TILE):
        _check(plan, size)
    assert plan.compile_count == 1
    assert plan.growths == 0


def test_plans_of_one_program_have_their_own_buffers() -> None:
    program = _program(64)
    a, b = instantiate(program, threads=1), instantiate(program, threads=1)
    _check(a, 5)
    _check(b, 9)
    np.testing.assert_array_equal(a.output_buffer.numpy(), 4 * np.arange(5) + 1)
    assert a.buffer(5).storage_id == b.buffer(5).storage_id  # type: ignore[union-attr]
    a.release_all_buffers()
    np.testing.assert_array_equal(b.buffer(5).numpy(), np.ones(4))  # type: ignore[union-attr]
    _check(b, 9)


def test_memory_of_a_variable_without_maximum_grows() -> None:
    plan = instantiate(_program(None), threads=2)
    _check(plan, 10)
    assert plan.growths == 0
    small = plan.memory.arena_bytes
    _check(plan, 1000)
    assert plan.growths == 1
    assert plan.memory.arena_bytes > small
    _check(plan, 10)
    held = plan.buffer(1)
    assert held is not None
    held.copyin(np.ones(5000, np.float32))
    plan.execute_with_vars(k=5000)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(5000, 5.0))
    assert plan.growths == 2
    assert plan.compile_count == 1


def test_growth_past_the_memory_limit_is_refused_and_changes_nothing() -> None:
    plan = instantiate(_program(None), threads=1, memory_limit=100_000)
    _check(plan, 50)
    with pytest.raises(OutOfMemoryError, match="100,000 are free"):
        plan(x=np.zeros(100_000, np.float32))
    _check(plan, 50)
    _check(plan, 3000)


def test_a_large_size_needs_no_room_for_many_others() -> None:
    """Capacities that nobody asked for are given up before a run is refused."""
    n, m = Variable("n", 0), Variable("m", 0)
    x = Tensor.input("x", (n, m), "float32")
    plan = (x + 1.0).prepare(memory_limit=1_000_000)
    for shape in ((1, 60_000), (50, 50), (60_000, 1), (1, 60_000), (64, 64)):
        given = np.random.default_rng(1).random(shape, dtype=np.float32)
        np.testing.assert_array_equal(plan(x=given), given + 1.0)
    with pytest.raises(OutOfMemoryError, match="1,000,000 are free"):
        plan(x=np.zeros((500, 500), np.float32))
    assert plan.compile_count == 1


def test_memory_says_what_sharing_saves() -> None:
    n = Variable("n", 1, 1000)
    vector = typed((n,))
    values = [ProgramValue("x", vector, "io", node_ids=(1,))]
    values += [ProgramValue(f"t{i}", vector, "arena", None, i, i + 1) for i in range(9)]
    values.append(ProgramValue("out", vector, "io"))
    calls = [(kernel("double", n), (i, i + 1), (n,)) for i in range(10)]
    program = program_of(values, calls, {"x": 0}, {"out": 10}, (n,))
    plan = instantiate(program, threads=1)
    assert plan.memory.naive_bytes == 9 * 4032
    assert plan.memory.arena_bytes == 2 * 4032
    assert plan.memory.at(n=16).arena_bytes == 2 * 64
    x = np.ones(1000, np.float32)
    np.testing.assert_array_equal(plan(x=x), 1024 * x)


def test_intermediates_cannot_be_read() -> None:
    plan = instantiate(_program(64), threads=1)
    _check(plan, 5)
    with pytest.raises(PlanError, match="shares its memory"):
        plan.buffer(2).numpy()  # type: ignore[union-attr]


def test_released_intermediates_come_back() -> None:
    plan = instantiate(_program(1 << 18), threads=1)
    _check(plan, 1 << 18)
    told: list[int] = []
    plan.release_intermediate_buffers(told.append)
    assert 2 in told
    assert 4 not in told
    _check(plan, 1 << 18)


def test_poison_fills_everything_stale() -> None:
    with config.override(debug=frozenset({"poison"})):
        plan = instantiate(_program(64), threads=1)
    _check(plan, 5)
    whole = plan.output_buffer.array((64,))
    assert np.isnan(whole[5:]).all()
    assert np.isnan(plan.buffers[0].array((64,))[5:]).all()
    _check(plan, 64)


@pytest.mark.parametrize(
    ("dim", "sizes"),
    [
        (3 * Variable("n", 1, 9), {3: 1, 6: 2, 27: 9}),
        (Variable("n", 1, 9) + 4, {5: 1, 13: 9}),
        (2 * Variable("n", 1, 9) - 1, {1: 1, 3: 2, 17: 9}),
    ],
    ids=str,
)
def test_a_variable_is_read_from_any_line_through_it(dim: Any, sizes: dict[int, int]) -> None:
    plan = (Tensor.input("x", (dim,)) + 1).prepare(threads=1)
    for size, n in sizes.items():
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(plan(x=x), x + 1)
        assert plan.explain().variables[0].value == n
    for size in {min(sizes) - 1, max(sizes) + 1}:
        with pytest.raises(UserError, match=r"shape must be|must lie in"):
            plan(x=np.zeros(size, np.float32))


def test_a_dim_that_falls_with_its_variable_is_checked_and_gives_none() -> None:
    n = Variable("n", 1, 9)
    x, y = Tensor.input("x", (n,)), Tensor.input("y", (10 - n,))
    plan = Tensor.concat([x, y]).prepare(threads=1)
    for size in (1, 5, 9):
        a, b = np.zeros(size, np.float32), np.ones(10 - size, np.float32)
        np.testing.assert_array_equal(plan(x=a, y=b), np.concatenate([a, b]))
        with pytest.raises(UserError, match="y"):
            plan(x=a, y=np.ones(11 - size, np.float32))
