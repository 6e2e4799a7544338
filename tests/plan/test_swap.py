"""Arrays that take the place of bound ones: the right numbers, whatever they overlap."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semel
from semel import Tensor, Variable
from semel.errors import InputError, ReleasedError, StaleError
from semel.plan import ExecutionPlan

N = Variable("n", 1, 64)


def add(threads: int = 1) -> ExecutionPlan:
    x, y = Tensor.input("x", (N,)), Tensor.input("y", (N,))
    return semel.prepare({"out": x + 2 * y}, threads=threads, bindings={"n": 8})


def full(value: float, size: int = 8) -> Any:
    return np.full(size, value, np.float32)


def test_each_array_is_read_where_it_lies() -> None:
    plan = add()
    arrays = [full(i) for i in range(5)]
    plan.bind_input("y", full(1))
    for i in (0, 1, 0, 1, 2, 3, 2, 4, 0):
        plan.bind_input("x", arrays[i])
        plan.execute()
        assert plan.engine.bindings.staged() == []
        np.testing.assert_array_equal(plan.output_buffer.numpy(), full(i + 2))
        arrays[i][:] += 0  # the caller's own
    arrays[0][:] = 40
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), full(42))
    assert plan.buffers[plan.engine.state.inputs["x"].index].numpy().tolist() == [40] * 8


def test_outputs_of_earlier_runs_are_void() -> None:
    plan = add()
    plan.bind_input("x", full(1))
    plan.bind_input("y", full(1))
    plan.execute()
    plan.bind_input("x", full(2))
    with pytest.raises(StaleError, match="arrays were bound or unbound after the last execute"):
        plan.output_buffer.numpy()


def test_another_shape_or_dtype_goes_the_long_way() -> None:
    plan = add()
    plan.bind_input("x", full(1))
    plan.bind_input("y", full(1))
    plan.execute_with_vars(n=8)
    with pytest.raises(InputError, match="dtype must be float32"):
        plan.bind_input("x", np.ones(8))
    with pytest.raises(InputError, match="C-contiguous"):
        plan.bind_input("x", np.ones(16, np.float32)[::2])
    with pytest.raises(InputError, match="NumPy array"):
        plan.bind_input("x", [1.0] * 8)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="masked"):
        plan.bind_input("x", np.ma.ones(8, np.float32))
    plan.execute()
    plan.bind_input("x", full(3, 4))
    plan.bind_input("y", full(1, 4))
    plan.execute_with_vars(n=4)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), full(5, 4))


def test_the_array_before_is_held_and_no_other() -> None:
    plan = add()
    plan.bind_input("y", full(1))
    gone = []
    for i in range(4):
        array = full(i)
        plan.bind_input("x", array)
        gone.append(weakref.ref(array))
    del array
    gc.collect()
    assert [ref() is None for ref in gone] == [True, True, False, False]
    plan.unbind()
    assert all(ref() is None for ref in gone)


def test_a_released_plan_takes_no_array() -> None:
    plan = add()
    arrays = full(1), full(2)
    for array in arrays:
        plan.bind_input("x", array)
    plan.release_all_buffers()
    with pytest.raises(ReleasedError, match="released"):
        plan.bind_input("x", arrays[0])


def test_arrays_that_overlap_what_is_written_are_staged() -> None:
    plan = add()
    memory = np.zeros(32, np.float32)
    plan.bind_input("y", full(1))
    plan.bind_input("x", full(1))
    plan.bind_output("out", memory[:8])
    plan.bind_input("x", memory[16:24])
    assert plan.engine.bindings.staged() == []
    plan.bind_input("x", memory[4:12])
    assert plan.engine.bindings.staged()
    memory[:] = np.arange(32)
    plan.execute()
    np.testing.assert_array_equal(memory[:8], np.arange(4, 12) + 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("xyo"), st.integers(0, 24)), min_size=1, max_size=12))
def test_random_windows_of_one_memory(binds: list[tuple[str, int]]) -> None:
    """Whatever overlaps whatever, a run is as if all were read before anything is written."""
    plan = add()
    memory = np.arange(32, dtype=np.float32)
    at = {"x": 0, "y": 16, "o": 8}
    names = {"x": "x", "y": "y", "o": "out"}
    for which in at:
        bind = plan.bind_output if which == "o" else plan.bind_input
        bind(names[which], memory[at[which] : at[which] + 8])
    plan.execute_with_vars(n=8)
    memory[:] = np.arange(32)
    for which, start in binds:
        at[which] = start
        bind = plan.bind_output if which == "o" else plan.bind_input
        bind(names[which], memory[start : start + 8])
        want = memory.copy()
        x, y = (memory[at[k] : at[k] + 8].copy() for k in "xy")
        want[at["o"] : at["o"] + 8] = x + 2 * y
        plan.execute()
        np.testing.assert_array_equal(memory, want)
        memory[:] = np.arange(32)


def test_an_array_in_the_place_of_one_that_is_gone_says_why_outputs_are() -> None:
    """Also if it lies where that lay: nothing moves, and the outputs are of no run all the same."""
    x = Tensor.input("x", (4,))
    plan = (x * 2).prepare(threads=1)
    data = np.arange(4, dtype=np.float32)
    plan.bind_input("x", data)
    plan.execute()
    plan.bind_input("x", data[:])
    with pytest.raises(StaleError, match="arrays were bound or unbound after the last execute"):
        plan.output_buffer.numpy()
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), data * 2)


def test_a_lent_array_is_the_memory_of_its_buffer() -> None:
    plan = (Tensor.input("x", (2, 3)) + 1).prepare(threads=1)
    one, two = (np.full((2, 3), k, np.float32) for k in (1, 2))
    for array in (one, two, one):
        plan.bind_input("x", array)
        plan.execute()
        buffer = plan.buffers[plan.engine.state.inputs["x"].index]
        assert buffer.address == array.ctypes.data
        np.testing.assert_array_equal(plan.output_buffer.numpy(), array + 1)


def test_two_outputs_that_are_one_are_both_written() -> None:
    g = semel.Graph("twice")
    total = g.input("x", (3,)) + 1
    g.output("a", total)
    g.output("b", total)
    plan = g.prepare()
    arrays = [np.zeros(3, np.float32) for _ in range(4)]
    for a, b in ((arrays[0], arrays[1]), (arrays[2], arrays[1]), (arrays[2], arrays[3])):
        plan.bind_output("a", a)
        plan.bind_output("b", b)
        for k in (1, 2):
            plan(x=np.full(3, k, np.float32))
            assert a.tolist() == b.tolist() == [k + 1] * 3
    assert plan.engine.bindings.staged() == ["b"]


def two_outputs() -> ExecutionPlan:
    x = Tensor.input("x", (8,))
    return semel.prepare({"a": x * 2, "b": x.flip(0) + 1, "c": x * 2})


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("start", [0, 4, 7])
def test_two_outputs_must_not_share_memory(first: str, second: str, start: int) -> None:
    plan, memory = two_outputs(), np.zeros(24, np.float32)
    data = np.arange(8, dtype=np.float32)
    want = {"a": data * 2, "b": data[::-1] + 1}
    plan.bind_output(first, memory[:8])
    for is_bound in (False, True):
        with pytest.raises(
            InputError, match=rf"\[output '{second}'\] array must have memory of its"
        ) as e:
            plan.bind_output(second, memory[start : start + 8])
        assert f"bound to '{first}'" in str(e.value) and "unbind the other one first" in str(
            e.value
        )
        plan(x=data)
        np.testing.assert_array_equal(memory[:8], want[first])
        if not is_bound:  # what was bound before stays bound
            plan.bind_output(second, memory[8:16])
        np.testing.assert_array_equal(memory[8:16], want[second] if is_bound else 0)
    plan.unbind(first)
    plan.bind_output(second, memory[:8])
    plan.bind_output(first, memory[8:16])
    plan(x=data)
    np.testing.assert_array_equal(memory[:16], np.r_[want[second], want[first]])


def test_two_outputs_that_are_one_may_have_one_array() -> None:
    plan, memory = two_outputs(), np.zeros(16, np.float32)
    plan.bind_output("a", memory[:8])
    plan.bind_output("c", memory[:8])
    with pytest.raises(InputError, match="memory of its own"):
        plan.bind_output("c", memory[1:9])
    plan(x=np.ones(8, np.float32))
    np.testing.assert_array_equal(memory, [2] * 8 + [0] * 8)


def test_an_input_and_an_output_of_one_name_are_unbound_apart() -> None:
    g = semel.Graph("same")
    g.output("x", g.input("x", (3,)) + 1)
    plan = g.prepare()
    given, made = np.ones(3, np.float32), np.zeros(3, np.float32)
    plan.bind_input("x", given)
    plan.bind_output("x", made)
    plan.unbind("x", is_output=False)
    plan(x=np.full(3, 4, np.float32))
    assert made.tolist() == [5] * 3
    plan.bind_input("x", given)
    plan.unbind("x", is_output=True)
    assert plan().tolist() == [2] * 3
    assert made.tolist() == [5] * 3
