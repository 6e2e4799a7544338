"""Rows of a run at larger variables are not results of the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add, table_of, typed

import semel
from semel import Variable
from semel.errors import StaleError
from semel.plan.rows import PreparedCopy
from semel.runtime.buffer import Buffer

EARLIER = "of an earlier run at larger variables"


def _plain() -> tuple[Sketch, Any]:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "out")
    return s, s.build("out")


def test_rows_of_an_earlier_larger_run_are_refused() -> None:
    s, plan = _plain()
    out = s.buffers["out"]
    plan.execute_with_vars(n=4)
    assert out.numpy().tolist() == [1] * 4 + [0] * 12  # what nobody computed is the caller's
    plan.execute_with_vars(n=8)
    plan.execute()
    assert out.numpy().tolist() == [1] * 8 + [0] * 8
    plan.execute_with_vars(n=6)
    reads = (
        out.numpy,
        out.borrow,
        lambda: np.asarray(out),
        lambda: out.copyout(np.empty(16, "f4")),
    )
    for read in reads:
        with pytest.raises(StaleError, match=rf"bytes \[24, 32\) are {EARLIER}"):
            read()
    assert out.view(0, 24).numpy().tolist() == [1] * 6
    assert out.view(32, 32).numpy().tolist() == [0] * 8
    with pytest.raises(StaleError, match=rf"bytes \[28, 32\) are {EARLIER}"):
        out.view(16, 24).view(12, 12).numpy()
    plan.execute_with_vars(n=8)
    assert out.numpy().tolist() == [1] * 8 + [0] * 8


def test_what_the_caller_wrote_since_is_the_callers() -> None:
    s, plan = _plain()
    out = s.buffers["out"]
    plan.execute_with_vars(n=8)
    out.copyin(np.full(16, 5, np.float32))
    plan.execute_with_vars(n=4)
    assert out.numpy().tolist() == [1] * 4 + [5] * 12
    out.copyin(np.zeros(16, np.float32))
    plan.execute()  # at the same n again, without a bind of its own
    plan.execute_with_vars(n=2)
    with pytest.raises(StaleError, match=rf"bytes \[8, 16\) are {EARLIER}"):
        out.numpy()


def test_a_refused_bind_marks_nothing() -> None:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "out")
    s.builder.add_guard(Variable("n", 0, 16) % 2, "n must be even")
    plan = s.build("out")
    plan.execute_with_vars(n=4)
    with pytest.raises(semel.VariableError, match="even"):
        plan.execute_with_vars(n=7)
    plan.execute_with_vars(n=4)
    assert s.buffers["out"].numpy().sum() == 4


def test_rows_that_another_operation_writes_are_results() -> None:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "out", fixedvars={"n": 12})
    s.op("double", "x", "out")
    plan = s.build("out")
    for n in (8, 12, 4):
        plan.execute_with_vars(n=n)
        assert s.buffers["out"].numpy().tolist() == [0] * n + [1] * (12 - n) + [0] * 4
    plan.execute_with_vars(n=16)
    plan.execute_with_vars(n=4)
    with pytest.raises(StaleError, match=rf"bytes \[48, 64\) are {EARLIER}"):
        s.buffers["out"].numpy()


def test_halves_are_written_by_two() -> None:
    whole = Buffer.empty((32,), "float32")
    s = Sketch(16, fixed=False)
    s.buffer("left", whole.view(0, 64))
    s.buffer("right", whole.view(64, 64))
    s.op("increment", "x", "left")
    s.op("increment", "x", "right")
    s.buffer("whole", whole)
    plan = s.build("whole")
    plan.execute_with_vars(n=16)
    plan.execute_with_vars(n=15)
    with pytest.raises(StaleError, match=rf"bytes \[60, 64\) are {EARLIER}"):
        whole.numpy()


def test_a_loop_that_did_not_run_wrote_nothing() -> None:
    s = Sketch(16)
    s.begin(Variable("t", 0, 4), "step")
    s.builder.add_op(PreparedCopy(3, (s.buffer("out"), s.buffer("x"))))
    s.end()
    plan = s.build("out")
    plan.execute_with_vars(t=0)
    s.buffers["out"].numpy()  # nothing was ever computed
    plan.execute_with_vars(t=2)
    plan.execute_with_vars(t=1)
    s.buffers["out"].numpy()
    plan.execute_with_vars(t=0)
    with pytest.raises(StaleError, match=rf"bytes \[0, 64\) are {EARLIER}"):
        s.buffers["out"].numpy()


def test_a_call_does_not_return_rows_of_an_earlier_one() -> None:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "out")
    s.builder.declare_input("x", s.buffer("x"), typed((Variable("n", 0, 16),)))
    plan = s.build("out")
    assert plan(x=np.zeros(8, np.float32)).sum() == 8
    with pytest.raises(StaleError, match=EARLIER):
        plan(x=np.zeros(4, np.float32))


def test_a_declared_shape_that_is_larger_than_what_is_written_is_no_excuse() -> None:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "out")
    s.builder.declare_output("out", s.buffer("out"), typed((16,)))
    plan = s.build("out")
    plan.execute_with_vars(n=8)
    plan.execute_with_vars(n=4)
    with pytest.raises(StaleError, match=EARLIER):
        plan.output_buffer.numpy()


def test_a_declared_symbolic_shape_needs_no_marks() -> None:
    plan = symbolic_add()
    assert table_of(plan).marks == []
    for n in (8, 4):
        ones = np.ones(n, np.float32)
        assert plan(x=ones, y=ones).tolist() == [2] * n


@pytest.mark.parametrize("how", ["clone", "file"])
def test_what_was_copied_with_the_plan_is_as_stale_there(how: str, tmp_path: Path) -> None:
    s = Sketch(16)
    s.begin(Variable("t", 0, 4), "step")
    s.builder.add_op(PreparedCopy(3, (s.buffer("out"), s.buffer("x"))))
    s.end()
    plan = s.build("out")
    plan.execute_with_vars(t=2)
    plan.save(tmp_path / "plan")
    other = plan.clone() if how == "clone" else semel.load_plan(tmp_path / "plan")
    assert other.output_buffer is not None
    other.output_buffer.numpy()
    other.execute_with_vars(t=0)
    with pytest.raises(StaleError, match=EARLIER):
        other.output_buffer.numpy()


def test_an_arm_that_did_not_run_wrote_nothing() -> None:
    s = Sketch(8, fixed=False)
    s.buffer("x")
    s.branch("p")
    s.op("double", "x", "out")
    s.end()
    plan = s.build("out")
    mine = np.arange(8, dtype=np.float32)
    s.buffers["out"].copyin(mine)
    s.buffers["x"].copyin(mine)
    for n in (8, 2):
        plan.execute_with_vars(n=n)
        np.testing.assert_array_equal(plan.output_buffer.numpy(), mine)
    s.flag("p").copyin(np.array([True]))
    plan.execute_with_vars(n=3)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), [0, 2, 4, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("is_taken", [True, False])
def test_an_arm_is_not_sure_to_overwrite(is_taken: bool) -> None:
    """What is before the branch wrote more at an earlier run; the arm may write the rest or not."""
    s = Sketch(8, fixed=False)
    s.op("double", "x", "out")
    s.branch("p")
    s.op("increment", "x", "out", fixedvars={"n": 4})
    s.end()
    plan = s.build("out")
    s.buffers["x"].copyin(np.arange(8, dtype=np.float32))
    s.flag("p").copyin(np.array([is_taken]))
    plan.execute_with_vars(n=8)
    plan.execute_with_vars(n=4)
    with pytest.raises(StaleError, match=r"bytes \[16, 32\) are of an earlier run"):
        plan.output_buffer.numpy()
