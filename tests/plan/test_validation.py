"""Everything that build() refuses, beside what test_builder.py shows; and variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add, typed
from tests.plan.kernels import kernel

from semel import Tensor, Variable
from semel.errors import (
    CycleError,
    GraphError,
    InputError,
    PlanError,
    ReleasedError,
    UnsupportedError,
    UserError,
    VariableError,
)
from semel.ir.expr import Index
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedBufferView, PreparedCopy, PreparedCustomFunction, PreparedKernel
from semel.runtime.allocator import allocate
from semel.runtime.buffer import Buffer

DOUBLE = kernel("double", Variable("n", 0, 16))


def _kernel(**fields: Any) -> PreparedKernel:
    plain = {
        "id": 1,
        "ast": None,
        "kernel": DOUBLE,
        "device": "",
        "buffer_indices": (0, 1),
        "output_indices": (1,),
    }
    return PreparedKernel(**{**plain, **fields})


def _builder(*ops: Any, dtype: str = "float32") -> ExecutionPlanBuilder:
    builder = ExecutionPlanBuilder()
    for i in range(4):
        builder.add_buffer(i, Buffer.empty((16,), dtype))
    for op in ops:
        builder.add_op(op)
    builder.set_output_buffer(1)
    return builder


@pytest.mark.parametrize(
    ("op", "message", "fields"),
    [
        (_kernel(output_indices=()), "at least one output", {"op": 1}),
        (_kernel(output_indices=(1, 1)), "repeat", {"op": 1}),
        (_kernel(output_indices=(-1,)), "positions among", {"op": 1, "index": -1}),
        (_kernel(buffer_indices=(0, 44)), "got 44", {"index": 44, "num_buffers": 4}),
        (_kernel(buffer_indices=(-1, 1)), "got -1", {"index": -1}),
        (_kernel(buffer_indices=(1, 1)), "they overlap argument 0", {"op": 1}),
        (_kernel(dependencies=(5,)), "depends on op 5", {"op": 1, "dependency": 5}),
        (_kernel(device="cuda:0"), "device must be one of cpu", {"op": 1}),
        (_kernel(device="cpu:2"), "the cores are divided into 2", {"op": 1}),
        (_kernel(device="cpu:0"), "runs on cpu:0, so its buffers must lie there", {"op": 1}),
        (_kernel(device="null"), "runs on null, so its buffers must lie there", {"op": 1}),
        (_kernel(lane="fast"), "lane must be one of compute, copy, got 'fast'", {"op": 1}),
        (PreparedCopy(3, (0, 1), lane="kopie"), "lane must be one of", {"lane": "kopie"}),
        (PreparedCopy(3, (0, 1), device="null"), "runs on null", {"op": 3}),
        (_kernel(vals=(1, 2)), "1 vals, got 2", {"op": 1}),
        (_kernel(runtime_vars=(RuntimeVar("a", 0), RuntimeVar("b", 0))), "1 runtime_vars", {}),
        (PreparedCopy(3, (0, 44)), "got 44", {"index": 44}),
        (PreparedBufferView(3, (0, 44), 0, 4), "got 44", {"index": 44}),
        (PreparedBufferView(3, (0, 0), 0, 999), "must lie within base's 64 bytes", {"op": 3}),
        (PreparedBufferView(3, (0, 0), -4, 4), "must lie within base's 64 bytes", {"op": 3}),
        (PreparedCustomFunction(3, "all_reduce", None, (0, 44)), "got 44", {"index": 44}),
    ],
)
def test_malformed_operations_carry_their_numbers(
    op: Any, message: str, fields: dict[str, Any]
) -> None:
    builder = _builder(op)
    with pytest.raises(UserError, match=message) as caught:
        builder.build(threads=1)
    for name, value in fields.items():
        assert getattr(caught.value, name) == value
    # A failed build changes nothing: the same builder fails in the same way again.
    with pytest.raises(UserError, match=message):
        builder.build(threads=1)


def test_what_is_no_record_is_refused_at_once() -> None:
    with pytest.raises(PlanError, match="Prepared"):
        ExecutionPlanBuilder().add_op("kernel")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="must be a Buffer, got ndarray"):
        ExecutionPlanBuilder().add_buffer(0, np.zeros(3))  # type: ignore[arg-type]


def test_a_buffer_of_another_dtype_is_refused() -> None:
    with pytest.raises(PlanError, match="'in0' must be float32, got int32"):
        _builder(_kernel(), dtype="int32").build(threads=1)


def _elsewhere(device: str) -> Buffer:
    return Buffer.window(allocate(16), 0, 16, typed((4,)), device)


def test_a_buffer_of_a_device_that_is_not_there_is_refused() -> None:
    builder = ExecutionPlanBuilder()
    with pytest.raises(
        UnsupportedError, match="must be one of cpu, disk, null, got 'cuda:0'"
    ) as caught:
        builder.add_buffer(0, _elsewhere("cuda:0"))
    assert caught.value.device == "cuda:0"  # type: ignore[attr-defined]
    builder.add_buffer(0, Buffer.empty((4,), "float32"))
    with pytest.raises(UnsupportedError, match="the cores are divided into 2"):
        builder.replace_buffer(0, _elsewhere("cpu:2"))


def test_a_released_buffer_is_refused() -> None:
    released = Buffer.empty((16,), "float32")
    builder = _builder(_kernel(buffer_indices=(0, 1)))
    builder.replace_buffer(0, released)
    released.memory.release()
    with pytest.raises(ReleasedError, match="buffer 0"):
        builder.build(threads=1)


@pytest.mark.parametrize("value", [17, -1])
def test_fixed_values_must_lie_within_bounds(value: int) -> None:
    with pytest.raises(VariableError, match=rf"'n' must lie in \[0, 16\], got {value}"):
        _builder(_kernel(fixedvars={"n": value})).build(threads=1)
    with pytest.raises(VariableError, match="must be an int"):
        _builder(_kernel(fixedvars={"n": 1.5})).build(threads=1)


def test_initial_values_of_a_custom_function_are_bounded_too() -> None:
    op = PreparedCustomFunction(
        1, "all_reduce", None, (0,), fixedvars={"k": 5}, runtime_vars=(RuntimeVar("k", 0, 4),)
    )
    with pytest.raises(VariableError, match="'k' must lie in"):
        _builder(op).build(threads=1)


def test_partial_overlap_of_an_output_with_an_input_is_refused() -> None:
    whole = Buffer.empty((24,), "float32")
    builder = _builder(_kernel())
    builder.replace_buffer(0, whole.view(0, 64))
    builder.replace_buffer(1, whole.view(32, 64))
    with pytest.raises(PlanError, match="its bytes must be its own"):
        builder.build(threads=1)
    builder.replace_buffer(1, Buffer.empty((16,), "float32"))
    builder.build(threads=1)


def test_declared_types_must_fit_their_buffers() -> None:
    for declare, kind in (("declare_input", "input"), ("declare_output", "output")):
        builder = _builder()
        getattr(builder, declare)("big", 1, typed((Variable("m", 0, 17),)))
        with pytest.raises(PlanError, match=rf"{kind} 'big'.*must fit its buffer of 64 bytes"):
            builder.build(threads=1)
        builder = _builder()
        getattr(builder, declare)("odd", 1, typed((4,), "int32"))
        with pytest.raises(PlanError, match=rf"{kind} 'odd'.*must be float32, got int32"):
            builder.build(threads=1)
        builder = _builder()
        getattr(builder, declare)("endless", 1, typed((Variable("m", 0, None),)))
        with pytest.raises(PlanError, match="any number"):
            builder.build(threads=1)


def test_a_guard_over_a_loop_index_is_refused() -> None:
    builder = _builder()
    builder.add_guard(Index("i", 4), "no")
    with pytest.raises(PlanError, match="must be over the plan's variables"):
        builder.build(threads=1)


def test_an_empty_plan_needs_no_outputs() -> None:
    plan = ExecutionPlanBuilder().build(threads=1)
    plan.execute()
    assert (plan.op_order, plan.op_levels, plan.num_barriers) == ((), [], 0)


# ---------------------------------------------------------------- cycles


def test_the_cycle_comes_first_and_the_blocked_apart() -> None:
    builder = _builder(
        _kernel(id=10),
        _kernel(id=1, dependencies=(3,)),
        _kernel(id=2, dependencies=(1,)),
        _kernel(id=3, dependencies=(2,)),
        _kernel(id=4, dependencies=(3, 10)),
        _kernel(id=5, dependencies=(4,)),
    )
    with pytest.raises(CycleError, match="2 more wait for it") as caught:
        builder.build(threads=1)
    cycle, blocked = caught.value.cycle, caught.value.blocked  # type: ignore[attr-defined]
    assert sorted(cycle) == [1, 2, 3]
    at = cycle.index(1)
    assert [*cycle[at:], *cycle[:at]] == [1, 2, 3]  # each before its user
    assert blocked == [4, 5]


def test_a_cycle_behind_a_long_tail_is_found_from_the_tail() -> None:
    # The lowest position is blocked but on no cycle.
    builder = _builder(
        _kernel(id=1, dependencies=(2,)),
        _kernel(id=2, dependencies=(3,)),
        _kernel(id=3, dependencies=(4,)),
        _kernel(id=4, dependencies=(3,)),
    )
    with pytest.raises(CycleError, match="4 -> 3 -> 4") as caught:
        builder.build(threads=1)
    assert sorted(caught.value.cycle) == [3, 4]  # type: ignore[attr-defined]
    assert caught.value.blocked == [1, 2]  # type: ignore[attr-defined]


def test_an_operation_that_waits_for_itself_is_a_cycle_of_one() -> None:
    with pytest.raises(CycleError, match="7 -> 7") as caught:
        _builder(_kernel(id=7, dependencies=(7,))).build(threads=1)
    assert caught.value.cycle == [7]  # type: ignore[attr-defined]
    assert caught.value.blocked == []  # type: ignore[attr-defined]


def test_a_repeated_dependency_is_harmless() -> None:
    plan = _builder(_kernel(id=1), _kernel(id=2, dependencies=(1, 1))).build(threads=1)
    assert plan.op_levels == [[0], [1]]


# ---------------------------------------------------------------- variables


def test_precedence_is_fixed_then_latest_then_earlier_then_bind() -> None:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "a", fixedvars={"n": 2})
    s.op("increment", "x", "b", vals=(3,))
    plan = s.build("a", "b")

    def counts() -> list[int]:
        return [int(s.buffers[name].numpy().sum()) for name in ("a", "b")]

    def clear() -> None:
        for name in ("a", "b"):
            s.buffers[name].copyin(np.zeros(16, np.float32))

    plan.execute()
    assert counts() == [2, 3]
    for bound, expected in ((5, 5), (4, 4)):
        clear()
        plan.execute_with_vars(n=bound)
        assert counts() == [2, expected]
    clear()
    plan.execute()  # the latest stays
    assert counts() == [2, 4]


def test_several_variables_change_together_or_not_at_all() -> None:
    s = Sketch(16, fixed=False)
    m, n = RuntimeVar("m", 0, 16), RuntimeVar("n", 0, 16)
    s.op("increment", "x", "a", runtime_vars=(m,))
    s.op("increment", "x", "b", runtime_vars=(n,))
    plan = s.build("a", "b")
    with pytest.raises(VariableError, match="'n' was never bound") as caught:
        plan.execute_with_vars(m=4)
    assert caught.value.variable == "n"  # type: ignore[attr-defined]
    assert plan.variables == {"m": None, "n": None}
    plan.execute_with_vars(m=4, n=5)
    for bad in ({"m": 6, "n": 17}, {"m": 6, "q": 1}, {"m": 6, "n": "7"}, {"m": 6, "n": True}):
        with pytest.raises(VariableError, match=r"^\[plan\].*variable"):
            plan.execute_with_vars(bad)  # type: ignore[arg-type]
        assert plan.variables == {"m": 4, "n": 5}
    plan.execute_with_vars(m=6)
    assert plan.variables == {"m": 6, "n": 5}


def test_unknown_and_out_of_range_errors_carry_their_fields() -> None:
    plan = symbolic_add()
    with pytest.raises(VariableError, match="no variable 'q'") as caught:
        plan.execute_with_vars(q=1)
    assert caught.value.variable == "q"  # type: ignore[attr-defined]
    with pytest.raises(VariableError, match="got 5000") as caught:
        plan.execute_with_vars(n=5000)
    error: Any = caught.value
    assert (error.variable, error.value, error.min, error.max) == ("n", 5000, 0, 4096)


def test_core_id_is_reserved() -> None:
    with pytest.raises(GraphError, match="'core_id' is reserved"):
        Variable("core_id", 0, 4)
    core = (RuntimeVar("core_id", 0, 16),)
    with pytest.raises(VariableError, match="'core_id' is reserved"):
        _builder(_kernel(runtime_vars=core)).build(threads=1)
    plan = _builder(_kernel(runtime_vars=core, fixedvars={"core_id": 16})).build(threads=1)
    plan.execute()
    with pytest.raises(VariableError, match="no variable 'core_id'"):
        plan.execute_with_vars(core_id=1)


def test_a_refused_call_changes_nothing() -> None:
    n = Variable("n", 0, 4096)
    plan = symbolic_add(guards=[(n % 2, "n must be even")])
    x = np.arange(8, dtype=np.float32)
    plan(x=x, y=x)
    with pytest.raises(VariableError, match="must be even"):
        plan(x=x[:3], y=x[:3])
    with pytest.raises(InputError, match="gives n=6, but input 'x' axis 0 gives n=8"):
        plan(x=x, y=x[:6])
    assert plan.variables == {"n": 8}
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 2 * x)
    plan.execute()  # inputs and shapes are those of the good call
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 2 * x)


def test_a_graph_over_an_unbound_variable_is_rebound() -> None:
    n, m = Variable("n", 1, 300), Variable("m", 1, None)
    rng = np.random.default_rng(0)
    for variable in (n, m):
        x = Tensor.input("x", (variable, 24), "float32")
        plan = ((x @ x.T).softmax(-1) @ x).sum(0).prepare(threads=2)
        for size in (7, 300, 1, 64, 65):
            data = rng.standard_normal((size, 24)).astype(np.float32)
            fixed = Tensor.input("x", (size, 24), "float32")
            exact = ((fixed @ fixed.T).softmax(-1) @ fixed).sum(0).prepare(threads=1)
            np.testing.assert_array_equal(plan(x=data), exact(x=data))
        assert plan.compile_count == 1
