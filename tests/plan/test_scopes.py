"""Where counters, late variables and conditions have values: all else is refused by `build`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.plan.kernels import kernel

from semel import ExecutionPlanBuilder, PlanError, Variable, VariableError
from semel.ir.expr import Index
from semel.ir.types import FLOAT32, TensorType
from semel.plan import (
    PreparedBranch,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    PreparedRebind,
    PreparedSignal,
    PreparedWait,
)
from semel.plan.check import check_plan
from semel.plan.row import Row, RuntimeVar
from semel.plan.rows import MOST_DEPTH
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function, unregister_custom_function
from semel.runtime.device import find_device
from semel.runtime.timeline import TimelineSignal

X, COUNT, OUT, FLAG = range(4)
LATE = Variable("late", 0, 8)


def builder(*rows: PreparedOp, flag: tuple[int, ...] = ()) -> ExecutionPlanBuilder:
    """x and out of 8 floats, an int64 and a bool."""
    made = ExecutionPlanBuilder()
    kinds = (((8,), "float32"), ((), "int64"), ((8,), "float32"), (flag, "bool"))
    for node, (shape, dtype) in enumerate(kinds):
        made.add_buffer(node, Buffer.empty(shape, dtype))
    for row in rows:
        made.add_op(row)
    made.set_output_buffers([OUT])
    return made


def double(variable: str | None = None, id: int = 3, **options: Any) -> PreparedKernel:
    """out = 2 * x, for as many as the variable says or for all."""
    how: dict[str, Any] = {"fixedvars": {"n": 8}}
    if variable is not None:
        how = {"runtime_vars": (RuntimeVar(variable, 0, 8),)}
    kernel_ = kernel("double", Variable("n", 0, 8))
    return PreparedKernel(id, None, kernel_, "", (X, OUT), (1,), **how, **options)


def rebind(name: str = "late", *limits: Any, id: int = 1) -> PreparedRebind:
    return PreparedRebind(id, (RuntimeVar(name, 0, 8),), (COUNT,), limits)


def loop(*body: PreparedOp, trip: Any = 3, counter: str = "c", id: int = 9) -> PreparedLoop:
    return PreparedLoop(id, counter, trip, body)


# ---------------------------------------------------------------- late variables


def test_a_limit_may_be_over_a_variable_that_nothing_else_names() -> None:
    plan = builder(rebind("late", Variable("s", 0, 8)), double("late")).build(threads=1)
    plan.buffers[X].copyin(np.ones(8, np.float32))
    plan.buffers[COUNT].copyin(np.array(3))
    plan.execute_with_vars(s=3)
    assert plan.variables == {"s": 3, "late": 3}
    with pytest.raises(VariableError, match=r"late must be at most s. Found late=3, s=2"):
        plan.execute_with_vars(s=2)


def test_a_limit_is_over_variables_that_are_known_before_the_run() -> None:
    with pytest.raises(PlanError, match=r"op 1.*must not depend on a loop's counter, got c"):
        builder(loop(rebind("late", Variable("c", 0)))).build()
    with pytest.raises(PlanError, match=r"op 1.*must be over the plan's variables, got i"):
        builder(rebind("late", Index("i", 4))).build()


Declare = Callable[[ExecutionPlanBuilder], None]
SHAPES: dict[str, tuple[tuple[PreparedOp, ...], Declare, str]] = {
    "an input": (
        (rebind(), double("late")),
        lambda b: b.declare_input("x", X, TensorType((LATE,), FLOAT32)),
        r"input 'x'.*'late' is known only after",
    ),
    "an output": (
        (loop(rebind(), double("late")),),
        lambda b: b.declare_output("out", OUT, TensorType((LATE,), FLOAT32)),
        r"output 'out'.*'late' must get its value outside of loops and branches",
    ),
    "a guard": (
        (PreparedBranch(5, (FLAG,), (rebind("a"),), (rebind("b"),)), double()),
        lambda b: b.add_guard(Variable("a", 0, 8) - Variable("b", 0, 8), "equal"),
        r"a, b must have values at the same time",
    ),
}


@pytest.mark.parametrize("which", SHAPES)
def test_shapes_and_guards_are_over_what_has_a_value_then(which: str) -> None:
    rows, declare, message = SHAPES[which]
    made = builder(*rows)
    declare(made)
    with pytest.raises(PlanError, match=message):
        made.build()


def test_a_guard_over_late_variables_of_one_list_and_one_inside_it_is_checked() -> None:
    a, b = Variable("a", 0, 8), Variable("b", 0, 8)
    made = builder(rebind("a"), loop(rebind("b", id=2)), double())
    made.add_guard(a - b - 1, "a is one more")
    plan = made.build(threads=1)
    with pytest.raises(VariableError, match="a is one more"):
        plan.execute()


def test_a_function_is_told_late_variables_where_they_have_values() -> None:
    seen: list[dict[str, int]] = []

    @custom_function("tell_scopes")
    def tell(attrs: Any, buffers: Any, variables: Any) -> None:
        seen.append(dict(variables))

    def call(id: int) -> PreparedOp:
        return PreparedCustomFunction(id, "tell_scopes", None, ())

    try:
        inside = PreparedBranch(5, (FLAG,), (rebind("arm", id=6), call(7)))
        plan = builder(call(1), rebind("late", id=2), inside, call(8)).build(threads=1)
        plan.buffers[COUNT].copyin(np.array(4))
        plan.buffers[FLAG].copyin(np.array(True))
        plan.execute()
        plan.execute()
    finally:
        unregister_custom_function("tell_scopes")
    assert seen == 2 * [{}, {"late": 4, "arm": 4}, {"late": 4}]


# ---------------------------------------------------------------- conditions


@pytest.mark.parametrize("shape", [(0,), (5,)])
def test_a_condition_is_one_bool(shape: tuple[int, ...]) -> None:
    found = rf"must have one buffer of one bool, got b1\[{shape[0]}\]"
    with pytest.raises(PlanError, match=rf"op 5 \(branch\).*{found}"):
        builder(PreparedBranch(5, (FLAG,), (double(),)), flag=shape).build()
    with pytest.raises(PlanError, match=rf"op 9 \(loop\).*{found}"):
        builder(PreparedLoop(9, "c", 3, (double(),), (), (FLAG,)), flag=shape).build()


# ---------------------------------------------------------------- bodies


def test_a_body_takes_records_of_rows() -> None:
    for wrong in (5, "x", Row()):
        with pytest.raises(PlanError, match=r"op 9.*body must be Prepared\* records, got"):
            PreparedLoop(9, "c", 3, (wrong,))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"op 9.*body must be Prepared\* records, got"):
        PreparedLoop(9, "c", 3, double())  # type: ignore[arg-type]


def nested(depth: int) -> PreparedOp:
    row: PreparedOp = double()
    for level in range(depth):
        row = loop(row, trip=1, counter=f"c{level}", id=level)
    return row


def test_bodies_nest_up_to_a_limit() -> None:
    plan = builder(nested(MOST_DEPTH)).build(threads=1)
    plan.buffers[X].copyin(np.ones(8, np.float32))
    for each in (plan, plan.clone()):
        each.execute()
        assert each.output_buffer.numpy().tolist() == [2.0] * 8
    assert len(plan.prepared_ops) == len(plan.op_order) == MOST_DEPTH + 1
    assert f"op {MOST_DEPTH}  double" in str(plan.explain())
    with pytest.raises(PlanError, match=rf"at most {MOST_DEPTH} loops and branches .* each other"):
        nested(MOST_DEPTH + 1)


def test_dependencies_stay_beside_a_row() -> None:
    with pytest.raises(PlanError, match=r"op 4.*depends on op 3, which is not there.*beside it"):
        builder(double(), loop(PreparedCopy(4, (OUT, X), (3,)))).build()


def test_what_a_row_must_follow_is_said_of_rows_that_are_there() -> None:
    plan = builder(double()).build(threads=1)
    program = replace(plan.program, after={99: (0,)})
    with pytest.raises(PlanError, match=r"after.*of which there are 1, got 99"):
        check_plan(program, plan.buffers, find_device("cpu"), 1)


def test_names_of_the_runtime_count_no_loop() -> None:
    with pytest.raises(VariableError, match="'core_id' is reserved for the runtime"):
        builder(loop(double(), counter="core_id")).build()


# ---------------------------------------------------------------- divisors


def test_nothing_is_divided_by_zero() -> None:
    m, signal = Variable("m", 0, 8), TimelineSignal("scopes", 100)
    rows: dict[str, PreparedOp] = {
        "limit = (8 // m)": rebind("late", 8 // m),
        "value = (8 // m)": PreparedWait(1, signal, 8 // m),
        "trip = (8 // m)": loop(double(), trip=8 // m, id=1),
    }
    for what, row in rows.items():
        plan = builder(row, double()).build(threads=1)
        plan.execute_with_vars(m=8)
        with pytest.raises(VariableError, match=rf"op 1: {re.escape(what)} must divide by at"):
            plan.execute_with_vars(m=0)


def test_no_trip_or_value_divides_by_a_counter_that_may_be_zero() -> None:
    c = Variable("c", 0)
    for inner in (loop(trip=8 // c, counter="d", id=1), PreparedSignal(1, SIGNAL, 8 // c)):
        with pytest.raises(PlanError, match=r"op 1.*must divide by at least 1 in every iteration"):
            builder(loop(inner), double()).build()
    builder(loop(loop(trip=8 // (c + 1), counter="d", id=1)), double()).build().execute()


SIGNAL = TimelineSignal("scopes")
