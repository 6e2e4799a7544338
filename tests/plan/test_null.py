"""The null device: everything about a plan but the computing."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import semel
from semel import ExecutionPlan, Tensor, Variable, config
from semel.errors import InputError, UnsupportedError, VariableError
from semel.runtime.device import find_device

X = np.ones((3, 4), np.float32)


def _softmax(device: str = "null") -> ExecutionPlan:
    x = Tensor.input("x", (Variable("n", 1, 64), 4), "float32")
    weights = Tensor(np.full((4, 5), 2, np.float32))
    return (x @ weights).softmax(-1).prepare(device=device, threads=2)


def test_outputs_have_their_shapes_and_nothing_is_computed() -> None:
    plan = _softmax()
    assert (plan.device, plan.variables) == ("null", {"n": None})
    result = plan(x=X)
    assert (result.shape, result.dtype) == ((3, 5), np.float32)
    assert not result.any()
    plan.execute_with_vars(n=3)
    assert plan.output_buffer.shape == (3, 5)


def test_kernels_are_those_of_the_cpu() -> None:
    null, cpu = _softmax(), _softmax("cpu")
    assert [k.text for k in null.kernels] == [k.text for k in cpu.kernels]
    assert all(kernel.code for kernel in null.kernels)
    assert {op.device for op in null.prepared_kernels} == {"null"}
    assert null.steps == cpu.steps
    assert cpu(x=X).any()  # a plan of the one is no plan of the other


def test_variables_and_inputs_are_checked_as_ever() -> None:
    plan = _softmax()
    with pytest.raises(InputError, match="was never written"):
        plan.execute_with_vars(n=3)
    with pytest.raises(InputError, match=r"must lie in \[1, 64\]"):
        plan(x=np.ones((65, 4), np.float32))
    plan(x=X)
    with pytest.raises(VariableError, match=r"'n' must lie in \[1, 64\], got 65"):
        plan.execute_with_vars(n=65)
    with pytest.raises(InputError, match="must be written as"):
        plan.execute_with_vars(n=2)


def test_memory_grows_and_arrays_are_bound() -> None:
    x = Tensor.input("x", (Variable("n", 1),), "float32")
    plan = (x + 1).prepare(device="null:0")
    assert plan(x=np.ones(1000, np.float32)).shape == (1000,)
    out = np.full(1000, 7, np.float32)
    plan.bind_output(next(iter(plan.program.outputs)).name, out)
    plan.execute()
    assert set(out.tolist()) == {7}


def test_loops_and_tables_of_several_outputs_run() -> None:
    x = Tensor.input("x", (6, 2), "float32")
    first, second = semel.prepare([x.cumsum(0), x.sum()], device="null")(
        x=np.ones((6, 2), np.float32)
    )
    assert (first.shape, second.shape) == ((6, 2), ())


def test_a_late_size_is_the_least_it_can_be() -> None:
    x = Tensor.input("x", (8,), "float32")
    found = x.masked_select(x > 0) * 2
    plan = found.prepare(device="null")
    assert plan(x=np.ones(8, np.float32)).shape == (0,)
    assert found.prepare()(x=np.ones(8, np.float32)).shape == (8,)


def test_what_bodies_demand_is_demanded_by_nobody() -> None:
    n = Variable("n", 0, 64)
    x, p = Tensor.input("x", (n,)), Tensor.input("p", (), "bool")
    y = semel.cond(p, lambda: x.reshape(n // 4, 4).sum() + x[x > 0].sum(), x.sum)
    plan = y.prepare(device="null")
    assert plan(x=np.ones(7, np.float32), p=np.array(True)) == 0


def test_bodies_of_loops_and_branches_are_left_out() -> None:
    x = Tensor.input("x", (3,), "float32")
    h = semel.while_loop(lambda h: h.sum() < 100, lambda h: h * 2, x)
    y = semel.cond(h[0] > 1, lambda: h + 1, lambda: h)
    assert y.prepare(device="null")(x=np.ones(3, np.float32)).tolist() == [0, 0, 0]


def test_a_profile_shows_rows_that_nobody_ran() -> None:
    plan = _softmax()
    plan(x=X)
    report = plan.execute_profiled(limits=False)
    assert [p.elapsed for p in report] == [0.0] * len(plan.prepared_kernels)
    assert "null" in str(report)


def test_a_clone_is_on_the_same_device() -> None:
    plan = _softmax()
    plan(x=X)
    twin = plan.clone()
    twin.execute()
    assert (twin.device, twin.output_buffer.shape) == ("null", (3, 5))


def test_a_plan_is_saved_loaded_and_pickled_with_its_device(tmp_path: Path) -> None:
    plan = _softmax()
    plan.save(tmp_path / "null.plan")
    for again in (
        semel.load_plan(tmp_path / "null.plan"),
        semel.load_plan(tmp_path / "null.plan", recompile=True),
        semel.load_plan(tmp_path / "null.plan", trust=False),
        pickle.loads(pickle.dumps(plan)),
    ):
        assert again.device == "null"
        assert not again(x=X).any()


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"\[prepare\] device must be one of cpu, disk, null"
    ):
        Tensor([1.0]).prepare(device="gpu")


def test_nothing_is_remembered_of_races_that_nobody_ran(tmp_path: Path) -> None:
    null, cpu = (find_device(name).facts() for name in ("null", "cpu"))
    assert null != cpu
    with config.override(debug=frozenset({"poison"})):
        plan = _softmax()
        assert np.isnan(plan(x=X)).all(), "poison is what a run would leave there"
