"""Plans on memory that cannot be looked at in place: everything goes by copies."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Buffer, ExecutionPlan, Tensor, Variable, config
from semel.errors import DeviceError
from semel.runtime import device as table

X = np.arange(12, dtype=np.float32).reshape(3, 4)
WEIGHTS = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(table.MODULES, "far", "tests.plan.far")
    yield
    table._open.pop("far", None)


def _plan(threads: int = 1) -> ExecutionPlan:
    x = Tensor.input("x", (Variable("n", 1), 4), "float32")
    y = x @ Tensor(WEIGHTS) + Tensor(np.float32(3))
    return semel.prepare({"y": y, "sum": y.sum()}, device="far", threads=threads)


def _check(plan: ExecutionPlan, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    y, total = plan(x=x)
    want = x @ WEIGHTS + 3
    np.testing.assert_allclose(y, want, rtol=1e-5)
    np.testing.assert_allclose(total, want.sum(), rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_grow_and_repeat(threads: int) -> None:
    plan = _plan(threads)
    assert plan.device == "far"
    for rows in (3, 3, 500, 1):
        _check(plan, np.ones((rows, 4), np.float32) * rows)
    assert plan.growths > 0


def test_no_memory_of_the_plan_is_the_hosts() -> None:
    plan = _plan()
    _check(plan, X)
    assert not any(buffer.memory.is_host for buffer in plan.buffers)
    assert {buffer.device for buffer in plan.buffers} == {"far"}
    with pytest.raises(DeviceError, match="cannot be looked at in place"):
        plan.output_buffer.borrow().array()
    np.testing.assert_allclose(plan.output_buffer.numpy(), X @ WEIGHTS + 3, rtol=1e-5)


def test_inputs_are_written_by_hand_and_kept_by_clones() -> None:
    plan = _plan()
    _check(plan, X)
    twin = plan.clone()
    twin.execute()
    np.testing.assert_array_equal(twin.output_buffer.numpy(), plan.output_buffer.numpy())
    twin(x=X * 2)
    assert not np.array_equal(twin.output_buffer.numpy(), plan.output_buffer.numpy())


def test_bound_arrays_are_copied_at_each_run() -> None:
    plan = _plan()
    x, out = X.copy(), np.zeros((3, 5), np.float32)
    plan.bind_input("x", x)
    plan.bind_output("y", out)
    for scale in (1, 2):
        x[...] = X * scale
        plan.execute_with_vars(n=3)
        np.testing.assert_allclose(out, X * scale @ WEIGHTS + 3, rtol=1e-5)
    assert plan.engine.bindings.staged() == ["x", "y"]


def test_plans_are_saved_loaded_and_pickled(tmp_path: Path) -> None:
    plan = _plan()
    plan.save(tmp_path / "far.plan")
    for again in (
        semel.load_plan(tmp_path / "far.plan"),
        semel.load_plan(tmp_path / "far.plan", trust=False),
        pickle.loads(pickle.dumps(plan)),
    ):
        _check(again, X)
        assert not any(buffer.memory.is_host for buffer in again.buffers)


def test_poison_reaches_it() -> None:
    with config.override(debug=frozenset({"poison"})):
        _check(_plan(), X)


def test_plans_built_by_hand_are_saved_with_its_contents(tmp_path: Path) -> None:
    builder = semel.ExecutionPlanBuilder("far")
    source, target = (Buffer.empty((4,), "float32", "far") for _ in range(2))
    first, second = builder.add_buffer(0, source), builder.add_buffer(1, target)
    builder.add_op(semel.PreparedCopy(0, (second, first)))
    builder.set_output_buffer(second)
    source.copyin(X[0])
    plan = builder.build(threads=1)
    plan.save(tmp_path / "hand.plan")
    for one in (plan, plan.clone(), semel.load_plan(tmp_path / "hand.plan")):
        one.execute()
        np.testing.assert_array_equal(one.output_buffer.numpy(), X[0])
        assert not any(buffer.memory.is_host for buffer in one.buffers)


def test_custom_functions_see_copies_that_share_bytes() -> None:
    @semel.custom_function("test_far_twice", reads=(0,), writes=(1, 2))
    def twice(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
        buffers[1].copyin(buffers[0].numpy() * 2)
        assert buffers[2].numpy().tolist() == buffers[1].numpy()[2:].tolist()
        buffers[2].copyin(np.array([7, 8], np.float32))

    builder = semel.ExecutionPlanBuilder("far")
    source, target = (Buffer.empty((4,), "float32", "far") for _ in range(2))
    places = [builder.add_buffer(i, b) for i, b in enumerate((source, target, target.view(8, 8)))]
    builder.add_op(semel.PreparedCustomFunction(0, "test_far_twice", None, tuple(places)))
    builder.set_output_buffer(places[1])
    try:
        plan = builder.build(threads=1)
    finally:
        semel.unregister_custom_function("test_far_twice")
    source.copyin(X[1])
    plan.execute()
    np.testing.assert_array_equal(target.numpy(), [8, 10, 7, 8])
    np.testing.assert_array_equal(source.numpy(), X[1])
