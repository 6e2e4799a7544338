"""What may be read or written of a plan's buffers, and what the refusal says."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add, typed

import semel
from semel import Tensor, Variable
from semel.errors import PlanError, ReleasedError, StaleError
from semel.ir.types import as_dtype
from semel.runtime.buffer import Buffer

# ---------------------------------------------------------------- NumPy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "bool", "uint64"])
def test_numpy_takes_a_buffer_as_an_array(dtype: str) -> None:
    data = np.array([[0, 1, 1], [1, 0, 1]]).astype(as_dtype(dtype).numpy)
    plan = semel.prepare(Tensor.input("x", (2, 3), dtype).flip(0), threads=1)
    plan(x=data)
    found = np.asarray(plan.output_buffer)
    assert (found.dtype, found.shape) == (data.dtype, (2, 3))
    np.testing.assert_array_equal(found, data[::-1])
    assert np.array(plan.output_buffer, dtype=np.float64).dtype == np.float64
    found[...] = 0  # a copy: nothing of the plan's changes
    np.testing.assert_array_equal(np.asarray(plan.output_buffer), data[::-1])


def test_numpy_is_told_that_a_buffer_is_always_copied() -> None:
    buffer = Buffer(np.arange(3))
    with pytest.raises(ValueError, match=r"a copy is made.*borrow\(\)"):
        np.array(buffer, copy=False)
    assert np.array(buffer, copy=True).tolist() == [0, 1, 2]
    assert (np.arange(3) + np.asarray(buffer)).tolist() == [0, 2, 4]


def test_numpy_sees_the_errors_of_a_read() -> None:
    plan = symbolic_add()
    with pytest.raises(StaleError, match="nothing was executed"):
        np.asarray(plan.output_buffer)
    plan.release_all_buffers()
    with pytest.raises(ReleasedError, match="released"):
        np.asarray(plan.output_buffer)


def test_a_buffer_can_be_written_from_another() -> None:
    target = Buffer.empty((3,), "int64")
    target.copyin(Buffer(np.arange(3)))
    assert target.numpy().tolist() == [0, 1, 2]


# ---------------------------------------------------------------- outputs that are gone


def test_an_output_that_rebinding_voided_did_not_fail() -> None:
    plan = symbolic_add()
    x = np.ones(4, np.float32)
    plan(x=x, y=x)
    plan.bind_input("x", x)
    with pytest.raises(StaleError, match="arrays were bound or unbound after the last execute"):
        plan.output_buffer.numpy()
    plan.execute()
    plan.unbind()
    with pytest.raises(StaleError, match="arrays were bound or unbound after the last execute"):
        plan.output_buffer.numpy()
    plan(x=x, y=x)
    assert plan.output_buffer.numpy().tolist() == [2] * 4


def test_an_output_that_growth_voided_did_not_fail() -> None:
    x = Tensor.input("x", (Variable("n", 1, None),), "float32")
    plan = semel.prepare(x + 1, threads=1)
    plan(x=np.zeros(3, np.float32))
    plan.buffers[0].copyin(np.zeros(5000, np.float32))
    assert plan.growths == 1
    with pytest.raises(StaleError, match="memory grew after the last execute"):
        plan.output_buffer.numpy()


def test_an_output_of_a_failed_run_says_so_whatever_happened_before() -> None:
    s = Sketch(4, "int64")
    s.op("check", "x", "out")
    s.builder.declare_output("out", s.buffer("out"), typed((4,), "int64"))
    plan = s.build("out")
    plan.execute()
    plan.unbind()
    s.buffers["x"].copyin(np.full(4, 99))
    with pytest.raises(semel.IndexRangeError, match="got 99"):
        plan.execute()
    with pytest.raises(StaleError, match="the last execute failed"):
        plan.output_buffer.numpy()
    plan.unbind()  # voids nothing: there was nothing valid
    with pytest.raises(StaleError, match="the last execute failed"):
        plan.output_buffer.numpy()


def test_a_forked_child_reads_the_outputs_of_a_plan_at_rest() -> None:
    plan = symbolic_add()
    plan(x=np.ones(4, np.float32), y=np.ones(4, np.float32))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if plan.output_buffer.numpy().tolist() == [2, 2, 2, 2] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_shapes_and_variables_do_not_part_when_a_signal_comes_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = symbolic_add()
    plan(x=np.ones(4, np.float32), y=np.ones(4, np.float32))
    commit = plan.engine.commit

    def interrupted() -> None:
        commit()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(plan.engine, "commit", interrupted)
        plan(x=np.ones(8, np.float32), y=np.ones(8, np.float32))
    plan.execute()
    assert plan.output_buffer.numpy().tolist() == [2, 2, 2, 2]


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize("size", [3, 15, 16, 1000])
def test_a_constant_cannot_be_written(size: int) -> None:
    weight = Tensor(np.arange(size, dtype=np.float32))
    plan = semel.prepare(Tensor.input("x", (size,), "float32") * weight, threads=1)
    clone = plan.clone()
    for each in (plan, clone):
        buffer: Any = each.buffer(weight)
        assert buffer.numpy().tolist() == list(range(size))
        parts = (buffer, buffer.view(0, 4))
        for part in parts:
            with pytest.raises(PlanError, match=r"\[copyin\] a constant .* all plans"):
                part.copyin(np.zeros(part.shape, np.float32))
        with pytest.raises(ValueError, match="read-only"):
            buffer.array()[...] = 0
        ones = np.ones(size, np.float32)
        np.testing.assert_array_equal(each(x=ones), np.arange(size, dtype=np.float32))
    plan.release_all_buffers()
    clone.execute()


def test_an_intermediate_cannot_be_written() -> None:
    x = Tensor.input("x", (64, 64), "float32")
    plan = semel.prepare((x @ x).sum(0) @ (x @ x.T).sum(1), threads=1)
    arena = [b for b in plan.buffers if "Intermediate" in type(b.keeper).__name__]
    assert arena
    with pytest.raises(PlanError, match="an intermediate is written by the plan"):
        arena[0].copyin(np.zeros(arena[0].shape, np.float32))


def test_an_input_that_was_unbound_is_the_plans_to_write() -> None:
    plan = symbolic_add()
    x = np.ones(4, np.float32)
    plan(x=x, y=x)
    buffer: Any = plan.buffers[0]
    plan.bind_input("x", x)
    with pytest.raises(PlanError, match=r"bound|caller"):
        buffer.copyin(np.zeros(4, np.float32))
    plan.unbind("x")
    buffer.copyin(np.full(4, 5, np.float32))
    plan.execute()
    assert plan.output_buffer.numpy().tolist() == [6] * 4
    assert x.tolist() == [1] * 4
