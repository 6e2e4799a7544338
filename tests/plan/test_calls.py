"""Runs with arrays, whatever is done with the outputs: `Calls.run` and `Calls.slots`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.test_call_counts import count_calls

import semel
from semel import ExecutionPlan, Tensor, Variable
from semel.errors import BusyError, InputError, VariableError
from semel.plan.calls import Calls
from semel.plan.engine import Engine
from semel.plan.readers import Copies, Reader, output_view

X = np.arange(8, dtype=np.float32)
COPIES = Copies()


class Sums(Reader[Any]):
    """A reader of sums, which counts how often it was asked."""

    def __init__(self) -> None:
        self.prepared = 0

    def prepare(self, engine: Engine) -> Callable[[], list[float]]:
        self.prepared += 1
        views = [output_view(engine, index) for index in engine.parts.outputs]
        return lambda: [float(view().sum()) for view in views]


def calls_of(plan: ExecutionPlan) -> Calls:
    return plan.calls


def pair(threads: int = 1) -> ExecutionPlan:
    """x + y and x * y, of any length."""
    n = Variable("n", 1, 16)
    x, y = Tensor.input("x", (n,)), Tensor.input("y", (n,))
    return semel.prepare([x + y, x * y], threads=threads)


def head() -> ExecutionPlan:
    """The first n numbers of x, doubled: no shape says what n is."""
    n = Variable("n", 1, 8)
    return semel.prepare(Tensor.input("x", (8,))[:n] * 2, threads=1)


def test_a_reader_is_asked_once_for_runs_that_are_alike() -> None:
    plan, sums = pair(), Sums()
    for k in range(3):
        assert calls_of(plan).run({"x": X + k, "y": X}, sums) == [56 + 8 * k, 140 + 28 * k]
    assert sums.prepared == 1
    assert calls_of(plan).run({"x": X[:3], "y": X[:3]}, sums) == [6, 5]
    assert sums.prepared == 2


def test_two_readers_do_not_displace_each_other() -> None:
    plan, sums = pair(), Sums()
    for _ in range(3):
        assert calls_of(plan).run({"x": X, "y": X}, sums) == [56, 140]
        np.testing.assert_array_equal(plan(x=X, y=X)[1], X * X)
    assert sums.prepared == 1


def test_readers_made_for_one_run_are_not_kept_for_ever() -> None:
    plan = pair()
    for k in range(50):
        assert calls_of(plan).run({"x": X, "y": X + k}, Sums()) == [56 + 8 * k, 140 + 28 * k]
    fast = calls_of(plan)._fast
    assert fast is not None
    assert len(fast.reads) < 10


def test_a_reader_works_while_the_plan_is_held() -> None:
    plan = pair()

    class Reentrant(Reader[Any]):
        def prepare(self, engine: Engine) -> Callable[[], None]:
            return plan.execute

    for _ in range(2):
        with pytest.raises(BusyError, match="cannot be used inside itself"):
            calls_of(plan).run({"x": X, "y": X}, Reentrant())
    np.testing.assert_array_equal(plan(x=X, y=X)[0], X + X)


def test_a_reader_may_return_nothing() -> None:
    plan = pair()

    class Nothing(Reader[Any]):
        def prepare(self, engine: Engine) -> Callable[[], None]:
            return lambda: None

    before = plan.engine.state.run.generation
    for _ in range(3):
        assert calls_of(plan).run({"x": X, "y": X}, Nothing()) is None
    assert plan.engine.state.run.generation == before + 3


def test_a_reader_that_refuses_leaves_inputs_and_variables_as_they_were() -> None:
    plan = pair()
    is_good = [True]

    class Picky(Copies):
        def check(self, engine: Engine) -> None:
            if not is_good[0]:
                raise InputError("reader", "cannot read that.")

    calls_of(plan).run({"x": X, "y": X}, Picky())
    is_good[0] = False
    for size in (8, 3):
        with pytest.raises(InputError, match="cannot read that"):
            calls_of(plan).run({"x": X[:size] + 1, "y": X[:size]}, Picky())
        plan.execute()
        np.testing.assert_array_equal(plan.output_buffers[0].numpy(), X + X)
        assert plan.variables == {"n": 8}


# ---------------------------------------------------------------- variables


def test_variables_that_no_shape_gives_are_given_or_stay() -> None:
    plan = head()
    run = calls_of(plan).run
    with pytest.raises(VariableError, match="'n' was never bound"):
        run({"x": X}, COPIES)
    np.testing.assert_array_equal(run({"x": X}, COPIES, {"n": 3}), X[:3] * 2)
    np.testing.assert_array_equal(run({"x": X + 1}, COPIES, {"n": 3}), X[1:4] * 2)
    np.testing.assert_array_equal(run({"x": X}, COPIES), X[:3] * 2)
    np.testing.assert_array_equal(run({"x": X}, COPIES, {"n": 5}), X[:5] * 2)
    np.testing.assert_array_equal(run({"x": X}, COPIES), X[:5] * 2)
    plan.execute_with_vars(n=2)
    np.testing.assert_array_equal(run({"x": X}, COPIES), X[:2] * 2)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"n": 9}, VariableError, r"'n' must lie in \[1, 8\], got 9"),
        ({"m": 1}, VariableError, "no variable 'm'; known: n"),
        ({"n": 2.5}, VariableError, "variable 'n'"),
    ],
)
def test_variables_that_are_refused_change_nothing(
    values: Any, error: type[Exception], message: str
) -> None:
    plan = head()
    run = calls_of(plan).run
    run({"x": X}, COPIES, {"n": 3})
    with pytest.raises(error, match=message):
        run({"x": X + 1}, COPIES, values)
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), X[:3] * 2)


def test_a_variable_must_agree_with_the_shapes() -> None:
    with pytest.raises(InputError, match="n is given as 3, the inputs say n=8"):
        calls_of(pair()).run({"x": X, "y": X}, COPIES, {"n": 3})


# ---------------------------------------------------------------- inputs that are not given


def test_bound_inputs_are_not_given_and_take_turns_on_the_short_way() -> None:
    plan, sums = pair(), Sums()
    ones, twos = np.ones_like(X), np.full_like(X, 2)
    for k in range(4):
        plan.bind_input("y", (ones, twos)[k % 2])
        assert calls_of(plan).run({"x": X}, sums) == [28 + 8 * (1 + k % 2), 28 * (1 + k % 2)]
    assert sums.prepared == 1
    with pytest.raises(InputError, match="inputs must be x; unknown y"):
        calls_of(plan).run({"x": X, "y": X}, sums)


def test_bound_outputs_that_take_turns_are_read_where_they_are() -> None:
    plan, sums = pair(), Sums()
    name = plan.engine.parts.output_io[0].name
    places = [np.zeros_like(X), np.zeros_like(X)]
    for k in range(4):
        plan.bind_output(name, places[k % 2])
        assert calls_of(plan).run({"x": X + k, "y": X}, sums)[0] == 56 + 8 * k
        np.testing.assert_array_equal(plan(x=X - k, y=X)[0], X + X - k)
        np.testing.assert_array_equal(places[k % 2], X + X - k)


def test_inputs_written_before_stay_if_the_run_is_sticky() -> None:
    plan = pair()
    run = calls_of(plan).run
    with pytest.raises(InputError, match="missing y"):
        run({"x": X}, COPIES, sticky=True)
    run({"x": X, "y": X}, COPIES)
    for k in range(3):
        np.testing.assert_array_equal(run({"x": X * k}, COPIES, sticky=True)[0], X + X * k)
    with pytest.raises(InputError, match="missing y"):
        calls_of(pair()).run({"x": X}, COPIES)
    with pytest.raises(InputError, match="gives n=3, but input 'y' axis 0 gives n=8"):
        run({"x": X[:3]}, COPIES, sticky=True)
    np.testing.assert_array_equal(run({}, COPIES, sticky=True)[0], X + X * 2)


# ---------------------------------------------------------------- by position


@pytest.mark.parametrize("threads", [1, 2])
def test_slots_take_arrays_in_order(threads: int) -> None:
    plan = pair(threads)
    slots = calls_of(plan).slots
    for k in range(3):
        found = slots([X + k, X], COPIES)
        np.testing.assert_array_equal(found[0], X + k + X)
        np.testing.assert_array_equal(found[1], (X + k) * X)
    np.testing.assert_array_equal(slots((X[:5], [1, 2, 3, 4, 5]), COPIES)[0], X[:5] + X[1:6])
    plan.bind_input("x", X[:4].copy())
    for k in range(3):
        np.testing.assert_array_equal(slots([X[:4] + k], COPIES)[1], X[:4] * (X[:4] + k))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([X], r"takes 2 arrays \(x, y\) in this order, got 1"),
        ([X, X, X], r"takes 2 arrays \(x, y\) in this order, got 3"),
        ([X, X[:4]], "gives n=4, but input 'x' axis 0 gives n=8"),
        ([X, X.astype(np.float64)], "input 'y'. dtype must be float32, got float64"),
        ([X, X.reshape(2, 4)], "input 'y'. shape must be .* with rank 1"),
    ],
)
def test_slots_refuse_before_anything_is_written(arrays: list[Any], message: str) -> None:
    plan = pair()
    calls_of(plan).slots([X, X], COPIES)
    with pytest.raises(InputError, match=message):
        calls_of(plan).slots([a + 1 for a in arrays], COPIES)
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffers[0].numpy(), X + X)


def test_slots_after_a_sticky_run_need_all_inputs() -> None:
    plan = pair()
    run, slots = calls_of(plan).run, calls_of(plan).slots
    run({"x": X, "y": X}, COPIES)
    run({"y": X}, COPIES, sticky=True)
    with pytest.raises(InputError, match=r"takes 2 arrays \(x, y\)"):
        slots([X], COPIES)


def test_a_call_inside_a_run_is_refused_and_a_failed_one_is_over() -> None:
    plan = semel.prepare(
        Tensor.input("x", (4,)).gather(0, Tensor.input("i", (4,), "int64")), threads=1
    )
    good, bad = np.arange(4), np.array([0, 1, 2, 9])
    for _ in range(2):
        np.testing.assert_array_equal(calls_of(plan).slots([X[:4], good], COPIES), X[:4])
        with pytest.raises(semel.IndexRangeError, match="9"):
            calls_of(plan).slots([X[:4], bad], COPIES)


# ---------------------------------------------------------------- how short the way is


def test_the_short_ways_stay_short() -> None:
    plan, sums = pair(), Copies()
    arrays = {"x": X, "y": X}
    by_name = count_calls(lambda: calls_of(plan).run(arrays, sums))
    by_place = count_calls(lambda: calls_of(plan).slots([X, X], sums))
    assert by_name <= 22
    assert by_place <= 16
