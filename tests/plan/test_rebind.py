"""Rows that give late variables their values, in compiled plans and in plans built by hand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.kernels import kernel

import semel
from semel import (
    ExecutionPlanBuilder,
    GraphError,
    InputError,
    PlanError,
    StaleError,
    Tensor,
    Variable,
    VariableError,
)
from semel.ir.types import FLOAT32, INT64, TensorType
from semel.plan.plan import ExecutionPlan
from semel.plan.row import RuntimeVar
from semel.plan.rows import (
    PreparedCustomFunction,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    PreparedRebind,
)
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function, unregister_custom_function

Array = np.ndarray[Any, np.dtype[Any]]
N = Variable("n", 0, 100)
DATA = np.array([1, -2, 3, -4], np.float32)
UNEVEN = np.array([1, 2, 4, -3, -1], np.float32)  # 1 of either would stretch


def both() -> dict[str, Tensor]:
    """Positive numbers, and their sums with the negative ones: as many as these."""
    x = Tensor.input("x", (N,))
    return {"above": x[x > 0], "sums": x[x > 0] + x[x < 0]}


def check(plan: ExecutionPlan) -> None:
    for _ in range(2):
        above, sums = plan(x=DATA)
        np.testing.assert_array_equal(above, [1, 3])
        np.testing.assert_array_equal(sums, [-1, -1])


# ---------------------------------------------------------------- compiled


def test_late_values_show_after_a_run() -> None:
    plan = semel.prepare(both())
    assert plan.variables == {"n": None, "late0": None, "late1": None}
    with pytest.raises(PlanError, match="needs 'late0', known after a run"):
        _ = plan.output_buffer.shape
    check(plan)
    assert plan.variables == {"n": 4, "late0": 2, "late1": 2}
    assert plan.output_buffer.shape == (2,)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), [1, 3])
    assert [op.name for op in plan.prepared_ops if isinstance(op, PreparedRebind)] == [
        "rebind late0, late1"
    ]


def test_a_guard_over_them_ends_the_run() -> None:
    plan = semel.prepare(both())
    with pytest.raises(VariableError, match=r"dim 0 must be 1 or .* Found late0=3, late1=2"):
        plan(x=UNEVEN)
    assert plan.variables == {"n": 5, "late0": None, "late1": None}
    with pytest.raises(StaleError, match="the last execute failed"):
        plan.output_buffer.numpy()
    check(plan)


def test_nobody_binds_them() -> None:
    plan = semel.prepare(both())
    with pytest.raises(VariableError, match="'late0' is found out by each run, nobody binds it"):
        plan.execute_with_vars(late0=3)
    with pytest.raises(VariableError, match=r"must be of variables that the plan has \(n\)"):
        semel.prepare(both(), bindings={"late0": 3})


@pytest.mark.parametrize("trust", [True, False])
def test_files_and_pickles_keep_them(tmp_path: Path, trust: bool) -> None:
    plan = semel.prepare(both())
    plan.save(tmp_path / "late.plan")
    loaded = semel.load_plan(tmp_path / "late.plan", trust=trust)
    check(loaded)
    with pytest.raises(VariableError, match="Found late0=3, late1=2"):
        loaded(x=UNEVEN)
    check(pickle.loads(pickle.dumps(plan)))
    open_ended = Tensor.input("x", (Variable("m", 0),))
    open_ended[open_ended > 0].prepare().save(tmp_path / "open.plan")
    loaded = semel.load_plan(tmp_path / "open.plan", trust=trust)
    for size in (5, 3000):
        data = np.arange(-2, size, dtype=np.float32)
        np.testing.assert_array_equal(loaded(x=data), data[data > 0])


def test_clones_find_out_for_themselves() -> None:
    plan = semel.prepare(both())
    check(plan)
    clone = plan.clone()
    assert clone.variables == {"n": 4, "late0": None, "late1": None}
    np.testing.assert_array_equal(clone(x=-DATA)[0], [2, 4])
    assert plan.output_buffer.shape == (2,)


def test_bound_outputs_have_room_for_the_most() -> None:
    x = Tensor.input("x", (N,))
    plan = x[x > 0].prepare()
    out = np.full(4, 9, np.float32)
    plan.bind_output("output0", out)
    np.testing.assert_array_equal(plan(x=DATA), [1, 3])
    np.testing.assert_array_equal(out, [1, 3, 9, 9])
    assert plan.output_buffer.shape == (2,)
    plan.bind_output("output0", np.zeros(2, np.float32))
    with pytest.raises(InputError, match=r"array must have shape \(4,\) at these variables"):
        plan(x=DATA)


def test_memory_is_for_the_most() -> None:
    x = Tensor.input("x", (Variable("m", 0), 2))
    plan = x[x > 0].prepare()
    assert plan.memory.at(m=1000).io_bytes >= 2 * 8000
    assert plan.memory.at(m=10).io_bytes < 2000


def test_a_program_is_found_again_whatever_was_made_in_between() -> None:
    semel.prepare(both())
    other = Tensor.input("x", (N,))
    kept = other[other > 7]
    tensors = both()
    plan = semel.prepare(tensors)
    assert plan.compile_count == 0 and kept.shape != tensors["above"].shape
    check(plan)
    assert plan.buffer(tensors["above"]) is plan.output_buffer


def test_kept_values_have_late_shapes() -> None:
    x = Tensor.input("x", (N,))
    selected = x[x > 0]
    plan = semel.prepare(selected.sum(), keep={"selected": selected})
    plan(x=DATA)
    np.testing.assert_array_equal(plan.kept["selected"].numpy(), [1, 3])


def test_reports_show_the_rebind() -> None:
    plan = semel.prepare(both())
    assert "late variable late0 in [0, 100], known after a run" in str(plan.explain())
    check(plan)
    assert "rebind late0, late1 (rebind)" in str(plan.explain())
    assert "late variable late1 in [0, 100], now 2" in str(plan.explain())
    assert "rebind late0, late1" in str(plan.execute_profiled(limits=False))
    assert "late0=2" in str(plan.execute_profiled(limits=False))


def test_a_mask_that_is_only_counted_may_need_a_sum() -> None:
    x, w = Tensor.input("x", (3,)), Tensor.input("w", (3,))
    plan = semel.ones(w[x.sum() + w > 0].shape).sum().prepare(threads=1)
    got = plan(x=np.array([1, 2, -1], np.float32), w=np.array([-1, -2, -3], np.float32))
    assert got == 1


def test_a_loop_runs_as_often_as_a_run_finds_out() -> None:
    x = Tensor.input("x", (N,))
    selected = x[x > 0]
    (total,), (steps,) = Tensor.loop(
        selected.shape[0], [Tensor(0.0)], lambda s, h: ([h[0] + selected[s]], [h[0]])
    )
    plan = semel.prepare([total, steps])
    for data in (DATA, -DATA, UNEVEN, np.zeros(3, np.float32)):
        got, running = plan(x=data)
        assert got == data[data > 0].sum()
        wanted = np.concatenate([[0], data[data > 0].cumsum()])[:-1]
        np.testing.assert_array_equal(running, wanted)


def test_bodies_have_sizes_of_what_is_around_them() -> None:
    x = Tensor.input("x", (N,))
    s = x[x > 0]
    nested = Tensor.loop(
        s.shape[0],
        [Tensor(0.0)],
        lambda k, outer: (
            Tensor.loop(s.shape[0], outer, lambda j, h: ([h[0] + s[j] * s[k]], []))[0],
            [],
        ),
    )
    plan = semel.prepare(
        [
            semel.cond(x.sum() > 0, lambda: s * 2, lambda: s - 1),
            semel.while_loop(lambda h: (h.sum() < 100) & (h.sum() > 0), lambda h: h * 2, s,
                             max_trips=50),
            nested[0][0],
        ]
    )  # fmt: skip
    for data in (DATA, UNEVEN, DATA, -np.abs(DATA)):
        rows = data[data > 0]
        arm, doubled, product = plan(x=data)
        np.testing.assert_array_equal(arm, rows * 2 if data.sum() > 0 else rows - 1)
        while 0 < rows.sum() < 100:
            rows = rows * 2
        np.testing.assert_array_equal(doubled, rows)
        assert product == data[data > 0].sum() ** 2


# ---------------------------------------------------------------- values without a plan


def test_eager_values() -> None:
    for shift in range(3):
        t = Tensor(DATA) + shift
        wanted = DATA + shift
        np.testing.assert_array_equal(t[t > 0].numpy(), wanted[wanted > 0])
        assert len(t[t > 0]) == (wanted > 0).sum()
    assert Tensor(DATA)[Tensor(DATA) + 0 > 2].item() == 3.0
    with pytest.raises(GraphError, match=r"needs exactly one element, got f32\[late\d+\] with 2"):
        Tensor(DATA)[Tensor(DATA) + 0 > 0].item()
    with pytest.raises(VariableError, match=r"cannot reduce no elements.*test_rebind.py:\d+"):
        Tensor(DATA)[Tensor(DATA) + 0 > 5].max().item()


def test_what_is_known_when_it_is_compiled_is_a_size_all_the_same() -> None:
    t = Tensor(DATA)
    above, below = semel.prepare([t[t > 0], t[t < 0]])()
    np.testing.assert_array_equal(above, [1, 3])
    np.testing.assert_array_equal(below, [-2, -4])
    assert Tensor(3.0).unique().tolist() == [3.0]
    assert Tensor(np.zeros((0, 3), np.float32)).argwhere().numpy().shape == (0, 2)


def test_eager_data_makes_no_new_program() -> None:
    def value(data: Array) -> Any:
        t = Tensor(data) * 2
        return t[t > 1].unique(return_counts=True)[1].tolist()

    assert value(DATA) == [1, 1]
    with semel.no_recompiles():
        assert value(np.array([3, 3, 3, 0], np.float32)) == [3]


# ---------------------------------------------------------------- by hand


@pytest.fixture
def counting() -> Any:
    """A custom function that writes how many elements of its first buffer are positive."""

    @custom_function("count_positive", reads=(0,), writes=(1,))
    def count(attrs: Any, buffers: Any, variables: Any) -> None:
        buffers[1].array()[...] = (buffers[0].array() > 0).sum() + (attrs or 0)

    yield
    unregister_custom_function("count_positive")


def by_hand(extra: int = 0, top: int | None = 8, limit: Any = None) -> ExecutionPlan:
    """Double the first `late` of 8 elements, where late is how many are positive."""
    builder = ExecutionPlanBuilder()
    for node, kind in enumerate(("float32", "int64", "float32")):
        builder.add_buffer(node, Buffer.empty(() if kind == "int64" else (8,), kind))
    builder.add_op(PreparedCustomFunction(1, "count_positive", extra, (0, 1)))
    limits = () if limit is None else (limit,)
    builder.add_op(PreparedRebind(2, (RuntimeVar("late", 0, top),), (1,), limits))
    builder.add_kernel(
        PreparedKernel(
            3, None, kernel("double", Variable("n", 0, 8)), "", (0, 2), (1,),
            runtime_vars=(RuntimeVar("late", 0, 8),),
        )
    )  # fmt: skip
    late = Variable("late", 0, 8)
    builder.declare_input("x", 0, TensorType((8,), FLOAT32))
    builder.declare_output("out", 2, TensorType((late,), FLOAT32))
    builder.set_output_buffers([2])
    return builder.build(threads=1)


def test_a_host_function_may_count(counting: Any) -> None:
    plan = by_hand()
    data = np.array([1, 2, 3, -1, -1, -1, -1, -1], np.float32)
    for each in (plan, plan.clone()):
        np.testing.assert_array_equal(each(x=data), [2, 4, 6])
        assert each.variables == {"late": 3}
        np.testing.assert_array_equal(each(x=-data), [-2, -4, -6, 2, 2])


def test_what_is_out_of_bounds_ends_the_run(counting: Any) -> None:
    plan = by_hand(extra=6)
    with pytest.raises(VariableError, match=r"'late' must lie in \[0, 8\], the run found 14"):
        plan(x=np.ones(8, np.float32))
    np.testing.assert_array_equal(plan(x=-np.ones(8, np.float32)), [-2] * 6)
    plan = by_hand(extra=0, limit=5)
    with pytest.raises(VariableError, match=r"late must be at most 5. Found late=8"):
        plan(x=np.ones(8, np.float32))


def test_a_size_of_each_iteration(counting: Any) -> None:
    """The last iteration's size is what is known after the run, and what it wrote is fresh."""
    builder = ExecutionPlanBuilder()
    buffers = [Buffer.empty((8,), "float32"), Buffer.empty((), "int64")]
    for node, buffer in enumerate([*buffers, Buffer.empty((8,), "float32")]):
        builder.add_buffer(node, buffer)
    count = PreparedCustomFunction(1, "count_positive", 0, (0, 1))
    rebind = PreparedRebind(2, (RuntimeVar("late", 0, 8),), (1,))
    builder.add_op(PreparedLoop(9, "step", 3, (count, rebind, _double())))
    builder.set_output_buffers([2])
    plan = builder.build(threads=1)
    data = np.array([1, 2, 3, 4, 5, -1, -1, -1], np.float32)
    buffers[0].copyin(data)
    plan.execute()
    assert plan.variables == {"late": 5}
    np.testing.assert_array_equal(plan.output_buffer.numpy(), [2, 4, 6, 8, 10, 0, 0, 0])
    buffers[0].copyin(-data)
    plan.execute()
    assert plan.variables == {"late": 3}
    with pytest.raises(StaleError, match=r"bytes \[12, 20\) are of an earlier run"):
        plan.output_buffer.numpy()


def test_mistakes() -> None:
    var = RuntimeVar("late", 0, 8)
    with pytest.raises(VariableError, match="'late' must have a maximum or a limit"):
        PreparedRebind(1, (RuntimeVar("late", 0),), (0,))
    with pytest.raises(PlanError, match="needs one buffer and one limit for each variable"):
        PreparedRebind(1, (var,), (0, 1))
    rows: dict[str, list[PreparedOp]] = {
        "from a buffer of one int64, got f32": [PreparedRebind(1, (var,), (0,))],
        "'late' gets its value at one rebind": [PreparedRebind(i, (var,), (1,)) for i in (1, 2)],
        "a rebind must give it one before": [_double(), PreparedRebind(1, (var,), (1,))],
    }  # fmt: skip
    for message, ops in rows.items():
        builder = ExecutionPlanBuilder()
        for kind in (TensorType((8,), FLOAT32), TensorType((), INT64), TensorType((8,), FLOAT32)):
            builder.add_buffer(None, Buffer.empty(kind.shape, kind.dtype))
        for op in ops:
            builder.add_op(op)
        builder.set_output_buffers([2])
        with pytest.raises((PlanError, VariableError), match=message):
            builder.build()


def _double() -> PreparedKernel:
    return PreparedKernel(
        3, None, kernel("double", Variable("n", 0, 8)), "", (0, 2), (1,),
        runtime_vars=(RuntimeVar("late", 0, 8),),
    )  # fmt: skip
