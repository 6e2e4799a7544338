"""A plan as an operation of a plan."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import (
    Buffer,
    BusyError,
    CustomFunctionError,
    ExecutionPlanBuilder,
    IndexRangeError,
    InputError,
    PlanError,
    Tensor,
    Variable,
    VariableError,
    config,
)
from semel.ir.types import FLOAT32, TensorType
from semel.plan import PreparedCopy, PreparedCustomFunction, PreparedLoop, PreparedOp
from semel.plan.plan import ExecutionPlan
from semel.runtime.custom import custom_function, unregister_custom_function

TOP = 16
N = Variable("n", 1, TOP)
X = np.arange(TOP * 4, dtype=np.float32).reshape(TOP, 4)


def _inner(top: int | None = TOP) -> ExecutionPlan:
    """softmax(x) and its sum, for n rows."""
    x = Tensor.input("x", (Variable("n", 1, top), 4), "float32")
    return semel.prepare([x.softmax(-1), x.sum()], threads=1)


def _outer(inner: ExecutionPlan, *, declared: bool = True, **options: Any) -> ExecutionPlan:
    """x -> copied -> the plan inside -> soft, total."""
    b = ExecutionPlanBuilder()
    for i, shape in enumerate([(TOP, 4), (TOP, 4), (TOP, 4), ()]):
        b.add_buffer(i, Buffer.empty(shape, "float32"))
    b.add_op(PreparedCopy(1, (1, 0)))
    b.add_op(PreparedCustomFunction(7, "graph", inner, (1, 2, 3), **options))
    if declared:
        b.declare_variable(N)
        kind = TensorType((N, 4), FLOAT32)
        b.declare_input("x", 0, kind)
        b.declare_output("soft", 2, kind)
        b.declare_output("total", 3, TensorType((), FLOAT32))
    b.set_output_buffers([2, 3])
    return b.build(threads=1)


def test_a_plan_inside_gives_the_bits_of_the_plan_by_itself() -> None:
    inner = _inner()
    wanted = {n: inner(x=X[:n]) for n in (16, 3)}
    outer = _outer(_inner())
    for n, (soft, total) in wanted.items():
        got = outer(x=X[:n])
        assert got[0].tobytes() == soft.tobytes() and got[1].tobytes() == total.tobytes()


def test_it_reads_its_inputs_and_writes_its_outputs() -> None:
    outer = _outer(_inner())
    assert outer.op_dependencies == [(), (0,)]
    (explained,) = [o for o in outer.explain().ops if o.name == "graph"]
    assert (explained.reads, explained.writes) == ((1,), (2, 3))


def test_fixed_values_win_and_others_stay_as_they_are_inside() -> None:
    fixed = _outer(_inner(), fixedvars={"n": 2})
    soft, _ = fixed(x=X)
    assert soft[:2].tobytes() == _inner()(x=X[:2])[0].tobytes()
    inner = _inner()
    inner(x=X[:3])  # n stays 3 inside
    outer = _outer(inner, declared=False)
    outer.buffers[0].copyin(X)
    outer.execute()
    assert outer.buffers[2].numpy()[:3].tobytes() == _inner()(x=X[:3])[0].tobytes()
    assert inner.variables == {"n": 3}


def test_a_variable_that_nobody_bound_is_named() -> None:
    outer = _outer(_inner(), declared=False)
    outer.buffers[0].copyin(X)
    with pytest.raises(VariableError, match=r"op 7 \(graph\).*input 'x' needs 'n', never bound"):
        outer.execute()


def test_it_is_checked_when_the_plan_is_built() -> None:
    def build(attrs: Any, *buffers: Buffer) -> ExecutionPlan:
        b = ExecutionPlanBuilder()
        indices = [b.add_buffer(i, buffer) for i, buffer in enumerate(buffers)]
        b.add_op(PreparedCustomFunction(7, "graph", attrs, tuple(indices)))
        b.set_output_buffer(0)
        return b.build()

    rows, one = Buffer.empty((TOP, 4), "float32"), Buffer.empty((), "float32")
    with pytest.raises(PlanError, match="attrs must be an ExecutionPlan, got dict"):
        build({}, rows)
    with pytest.raises(CustomFunctionError, match="position 2 is declared"):
        build(_inner(), rows, rows)
    with pytest.raises(CustomFunctionError, match=r"output 0, output 1, got 4 buffers"):
        build(_inner(), rows, Buffer.empty((TOP, 4), "float32"), one, one)
    with pytest.raises(CustomFunctionError, match=r"output 1 must be float32, got int64"):
        build(_inner(), rows, Buffer.empty((TOP, 4), "float32"), Buffer.empty((), "int64"))
    fixed = (Tensor.input("x", (8,), "float32") + 1).prepare()
    with pytest.raises(CustomFunctionError, match=r"input 'x' is f32\[8\]: .* too small"):
        build(fixed, Buffer.empty((4,), "float32"), Buffer.empty((8,), "float32"))


def test_a_buffer_that_is_too_small_at_these_variables_is_refused() -> None:
    inner = _inner(None)
    outer = _outer(inner, declared=False)
    inner(x=np.ones((TOP + 1, 4), np.float32))
    outer.buffers[0].copyin(X)
    with pytest.raises(InputError, match=r"input 'x' of the plan inside .* must hold 272 bytes"):
        outer.execute()


def test_errors_inside_name_both_plans() -> None:
    rows = Tensor.input("rows", (4,), "float32")
    inner = rows.take(Tensor.input("at", (2,), "int64"), 0).prepare()
    b = ExecutionPlanBuilder()
    b.add_buffer(0, Buffer(np.zeros(4, np.float32)))
    b.add_buffer(1, Buffer(np.array([1, 9])))
    b.add_buffer(2, Buffer.empty((2,), "float32"))
    order = (0, 1) if tuple(inner.inputs) == ("rows", "at") else (1, 0)
    b.add_op(PreparedCustomFunction(7, "graph", inner, (*order, 2)))
    b.set_output_buffer(2)
    plan = b.build()
    with pytest.raises(IndexRangeError, match=r"op 7 \(graph\).* \[-4, 4\), got 9"):
        plan.execute()


def test_a_clone_has_a_plan_inside_of_its_own() -> None:
    outer = _outer(_inner())
    outer(x=X)
    clone = outer.clone()
    insides = [p.prepared_ops[1].attrs for p in (outer, clone)]  # type: ignore[union-attr]
    assert insides[0] is not insides[1]
    threads = [
        threading.Thread(target=lambda p=p: [p(x=X) for _ in range(20)]) for p in (outer, clone)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outer(x=X)[0].tobytes() == clone(x=X)[0].tobytes()


@pytest.fixture
def rerun() -> Iterator[list[ExecutionPlan]]:
    """A custom function that runs the plans in a list."""
    plans: list[ExecutionPlan] = []

    @custom_function("rerun", reads=(0,), writes=(1,))
    def run(attrs: Any, buffers: Any, variables: Any) -> None:
        for plan in plans:
            plan.execute()

    yield plans
    unregister_custom_function("rerun")


def test_neither_plan_runs_inside_itself(rerun: list[ExecutionPlan]) -> None:
    def wrap(op: PreparedCustomFunction) -> ExecutionPlan:
        b = ExecutionPlanBuilder()
        kind = TensorType((4,), FLOAT32)
        for i in range(2):
            b.add_buffer(i, Buffer.empty((4,), "float32"))
        b.add_op(op)
        b.declare_input("x", 0, kind)
        b.declare_output("y", 1, kind)
        return b.build()

    inner = wrap(PreparedCustomFunction(1, "rerun", None, (0, 1)))
    outer = wrap(PreparedCustomFunction(2, "graph", inner, (0, 1)))
    outer(x=np.ones(4, np.float32))
    for plan in (inner, outer):
        rerun[:] = [plan]
        with pytest.raises(BusyError, match="inside itself"):
            outer(x=np.ones(4, np.float32))
    rerun.clear()
    outer(x=np.ones(4, np.float32))


def test_a_file_holds_the_plan_inside(tmp_path: Path) -> None:
    outer = _outer(_inner())
    wanted = outer(x=X[:5])
    outer.save(tmp_path / "nested.plan")
    others = [
        semel.load_plan(tmp_path / "nested.plan"),
        semel.load_plan(tmp_path / "nested.plan", trust=False),
        pickle.loads(pickle.dumps(outer)),
    ]
    for other in others:
        assert [a.tobytes() for a in other(x=X[:5])] == [a.tobytes() for a in wanted]


def test_plans_may_be_inside_of_plans_inside(tmp_path: Path) -> None:
    inner = _outer(_inner())
    outer = _outer(inner)
    wanted = _inner()(x=X[:5])
    assert outer(x=X[:5])[0].tobytes() == wanted[0].tobytes()
    outer.save(tmp_path / "deep.plan")
    assert semel.load_plan(tmp_path / "deep.plan")(x=X[:5])[0].tobytes() == wanted[0].tobytes()


def test_a_plan_inside_shows_stale_memory_too() -> None:
    with config.override(debug=frozenset({"poison"})):
        outer = _outer(_inner())
        assert outer(x=X[:5])[0].tobytes() == _inner()(x=X[:5])[0].tobytes()


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_clone_has_one_clone_of_it_which_is_what_a_file_holds(
    is_inside: bool, tmp_path: Path
) -> None:
    """The plan inside has a state: a counter, which every run of it moves on."""
    counting = ExecutionPlanBuilder()
    for i in range(2):
        counting.add_buffer(i, Buffer.empty((4,), "float32"))
    one = (Tensor.input("x", (4,), "float32") + 1).prepare(threads=1).prepared_kernels[0]
    counting.add_op(PreparedCopy(1, (1, 0)))
    places = tuple(0 if i in one.output_indices else 1 for i in range(2))
    counting.add_kernel(replace(one, id=2, buffer_indices=places))
    counting.set_output_buffer(0)
    outer = ExecutionPlanBuilder()
    outer.add_buffer(0, Buffer.empty((4,), "float32"))
    row: PreparedOp = PreparedCustomFunction(7, "graph", counting.build(threads=1), (0,))
    outer.add_op(PreparedLoop(1, "c", 1, (row,)) if is_inside else row)
    outer.set_output_buffer(0)
    plan = outer.build(threads=1)
    plan.execute()
    clone = plan.clone()
    clone.execute()
    clone.save(tmp_path / "clone.plan")
    for each, count in ((semel.load_plan(tmp_path / "clone.plan"), 3), (clone, 3), (plan, 2)):
        each.execute()
        assert each.output_buffer.numpy().tolist() == [float(count)] * 4
