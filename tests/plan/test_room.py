"""Sizes that a run finds out and nobody has a bound for: runs that lack room begin again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Graph, Tensor, Variable, load_plan
from semel.errors import IndexRangeError, OutOfMemoryError, StateError
from semel.plan.room import FIRST_ROOM
from semel.tensor.late import item_dim

ROOM = Variable("room", 1)


def counted(x: Tensor) -> Tensor:
    """0, 2, 4, ...: as many as the first number of x says."""
    return semel.arange(item_dim(x[0], ROOM)).cast("float32") * 2


def number(n: int) -> np.ndarray[Any, Any]:
    return np.array([n])


@pytest.fixture
def plan() -> Any:
    return counted(Tensor.input("x", (1,), "int64")).prepare(threads=1)


def test_memory_grows_for_what_a_run_finds_out(plan: Any) -> None:
    assert plan.program.rooms == {"room": ROOM}
    for n in (3, FIRST_ROOM, 300, 5, 100_000, 0):
        np.testing.assert_array_equal(plan(x=number(n)), np.arange(n) * 2.0)
    assert plan.growths == 2 and plan.compile_count == 1
    clone = plan.clone()
    np.testing.assert_array_equal(clone(x=number(200_000)), np.arange(200_000) * 2.0)
    assert (clone.growths, plan.growths) == (1, 2)


def test_the_buffers_way_sees_nothing_of_it(plan: Any) -> None:
    given = plan.buffers[plan.inputs["x"].index]
    given.copyin(number(77))
    plan.execute()
    assert plan.output_buffer.numpy().tolist() == (np.arange(77) * 2.0).tolist()


def test_what_is_no_size_is_refused_as_ever(plan: Any) -> None:
    with pytest.raises(IndexRangeError, match="size must lie in"):
        plan(x=number(-1))
    assert plan(x=number(2)).tolist() == [0, 2]
    assert plan.growths == 0


def test_a_limit_that_somebody_gave_is_kept() -> None:
    x = Tensor.input("x", (1,), "int64")
    size = item_dim(x[0], Variable("most", 1, 50))
    plan = semel.arange(size).prepare(threads=1, bindings={"most": 50})
    with pytest.raises(IndexRangeError, match=r"\[0, 51\), got 60"):
        plan(x=number(60))


def test_more_than_there_is_memory_for_is_refused() -> None:
    x = Tensor.input("x", (1,), "int64")
    plan = counted(x).prepare(threads=1, memory_limit=1 << 20)
    with pytest.raises(OutOfMemoryError, match="1,048,576 are free"):
        plan(x=number(1 << 30))
    np.testing.assert_array_equal(plan(x=number(100)), np.arange(100) * 2.0)


def test_a_plan_from_a_file_grows_too(plan: Any, tmp_path: Path) -> None:
    plan.save(tmp_path / "counted.plan")
    again = load_plan(tmp_path / "counted.plan")
    np.testing.assert_array_equal(again(x=number(1000)), np.arange(1000) * 2.0)
    assert again.growths == 1


def test_a_state_goes_on_once_however_often_a_run_begins() -> None:
    g = Graph("counting")
    x, total = g.input("x", (1,), "int64"), g.state("total", (1,), "float32")
    values = counted(x)
    g.output("sum", total + values.sum(), feeds=total)
    plan = g.prepare(threads=1)
    for n in (3, 500, 4):
        plan(x=number(n))
    wanted = sum(float(np.arange(n).sum() * 2) for n in (3, 500, 4))
    assert plan.states.read("total").tolist() == [wanted]
    assert plan.growths == 1


def test_a_state_that_was_being_updated_is_not_updated_twice() -> None:
    """What a run has written to a state in place cannot be taken back: it is refused, and said."""
    g = Graph("caching")
    x, kept = g.input("x", (1,), "int64"), g.state("kept", (8, 4), "float32")
    rows = kept.update(kept[1:2] + 1, (0, 0))
    g.output("y", counted(x) + rows.sum())
    plan = g.prepare(threads=1)
    plan(x=number(3))
    try:
        plan(x=number(500))
    except IndexRangeError:
        with pytest.raises(StateError, match="is invalid"):
            plan(x=number(3))
    else:  # the size was found out before the state was written to
        assert plan.growths == 1


def test_runs_on_lanes_begin_again() -> None:
    plan = counted(Tensor.input("x", (1,), "int64")).prepare(threads=1)
    given = plan.buffers[plan.inputs["x"].index]
    with semel.UnifiedExecutor(semel.DeviceRegistry()) as executor:
        executor.add_device("cpu")
        for n in (3, 700):
            given.copyin(number(n))
            executor.submit(plan).result()
            np.testing.assert_array_equal(plan.output_buffer.numpy(), np.arange(n) * 2.0)
