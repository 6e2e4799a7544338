"""Loops in loops, loops with a condition and branches as plans: what runs, and what is reported."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.lower.test_bodies import STATES
from tests.ops.bodies import Control
from tests.plan.clobber import clobbered
from tests.plan.signals import handling

import semel
from semel import Tensor, Variable
from semel.errors import IndexRangeError
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate

T = Variable("t", 0, 64)


def doubling(**options: Any) -> semel.ExecutionPlan:
    h = semel.while_loop(lambda h: h < 100, lambda h: h * 2, Tensor.input("x", ()))
    return h.prepare(**options)


def choosing(**options: Any) -> semel.ExecutionPlan:
    """x[i] if p, else the first two of x, doubled."""
    x, i = Tensor.input("x", (4,)), Tensor.input("i", (2,), "int64")
    p = Tensor.input("p", (), "bool")
    return semel.cond(p, lambda: x[i], lambda: x[:2] * 2).prepare(**options)


ROWS = np.arange(4, dtype=np.float32)


# ---------------------------------------------------------------- what runs


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("start", "last"), [(1, 128), (64, 128), (100, 100), (200, 200)])
def test_a_loop_goes_on_while_its_condition_holds(threads: int, start: int, last: int) -> None:
    assert doubling(threads=threads)(x=np.float32(start)) == last


def test_the_number_of_iterations_is_found_out_at_each_run() -> None:
    plan = doubling(threads=1)
    for start in (1, 99, 3, 200, 1):
        want = start
        while want < 100:
            want *= 2
        assert plan(x=np.float32(start)) == want
    assert plan.compile_count <= 1


@pytest.mark.parametrize("trips", [0, 1, 3, 7, 20])
def test_a_loop_ends_after_max_trips(trips: int) -> None:
    x = Tensor.input("x", ())
    h = semel.while_loop(lambda h: h < 100, lambda h: h * 2, x, max_trips=T)
    plan = semel.prepare(h + 0 * T, threads=1, bindings={"t": trips})
    assert plan(x=np.float32(1)) == min(2**trips, 128)


def test_only_the_body_that_is_chosen_runs() -> None:
    plan = choosing(threads=1)
    np.testing.assert_array_equal(plan(x=ROWS, i=np.array([3, -1]), p=np.array(True)), [3, 3])
    np.testing.assert_array_equal(plan(x=ROWS, i=np.array([7, 9]), p=np.array(False)), [0, 2])


def test_the_body_that_is_chosen_may_fail_and_says_where() -> None:
    plan = choosing(threads=1)
    with pytest.raises(IndexRangeError, match=r"got 7 \(.*test_bodies\.py:\d+\)"):
        plan(x=ROWS, i=np.array([7, 0]), p=np.array(True))
    np.testing.assert_array_equal(plan(x=ROWS, i=np.array([1, 2]), p=np.array(True)), [1, 2])


def test_a_check_in_a_loop_of_no_iterations_does_not_fail() -> None:
    x, i = Tensor.input("x", (3,)), Tensor.input("i", (2,), "int64")
    (last,), _ = Tensor.loop(T, [Tensor.zeros(2)], lambda s, h: ([h[0] + x[i]], []))
    plan = semel.prepare(last, threads=1, bindings={"t": 0})
    inputs = {"x": np.ones(3, np.float32), "i": np.array([0, 9])}
    np.testing.assert_array_equal(plan(**inputs), [0, 0])
    with pytest.raises(IndexRangeError, match="got 9, in iteration 0"):
        plan.execute_with_vars(t=2)


def test_values_are_computed_without_a_plan() -> None:
    for limit, last in ((10, [4, 8]), (100, [64, 128])):
        most = Tensor(float(limit))
        h = semel.while_loop(lambda h: h[0].sum() < h[1], lambda h: (h[0] * 2, h[1]),
                             (Tensor([1.0, 2.0]), most))  # fmt: skip
        np.testing.assert_array_equal(h[0].numpy(), last)
    for p in (True, False):
        y = semel.cond(Tensor([1.0 if p else -1.0]).sum() > 0, lambda: Tensor(2), lambda: Tensor(3))
        assert y.item() == (2 if p else 3)


def test_a_value_may_be_asked_for_while_a_body_is_traced() -> None:
    def body(h: Tensor) -> Tensor:
        return h * float((Tensor([1.0, 2.0]).sum() + 1).item())

    assert semel.while_loop(lambda h: h < 50, body, Tensor(1.0)).item() == 64


def test_both_counters_of_nested_loops_may_be_used_in_a_branch() -> None:
    x = Tensor.input("x", (T, 4))

    def outer(s: Any, h: Any) -> Any:
        def inner(i: Any, g: Any) -> Any:
            return [semel.cond(x[s, i] > 0, lambda: g[0] + x[s, i] * s, lambda: g[0] - i)], [g[0]]

        (row,), (seen,) = Tensor.loop(4, [h[0]], inner)
        return [row], [seen]

    (last,), (seen,) = Tensor.loop(T, [Tensor(0.0)], outer)
    data = np.array([[1, -1, 2, 0], [3, 1, -2, 5], [0, 0, 7, -1]], np.float32)
    want, rows = np.float32(0), []
    for s in range(3):
        for i in range(4):
            rows.append(want)
            want = want + data[s, i] * s if data[s, i] > 0 else want - i
    for threads in (1, 2):
        got = semel.prepare([last, seen], threads=threads)(x=data)
        assert got[0] == want
        np.testing.assert_array_equal(got[1], np.reshape(rows, (3, 4)))


@pytest.mark.parametrize("name", STATES)
def test_states_may_be_of_any_kind(name: str) -> None:
    array, step = STATES[name]
    x = Tensor.input("x", array.shape, str(array.dtype))
    h, count = semel.while_loop(
        lambda h: h[1] < 3, lambda h: (step(h[0]), h[1] + 1), (x, Tensor(0))
    )
    (last,), (rows,) = Tensor.loop(2, [h], lambda s, h: ([step(h[0])], [h[0]]))
    outputs = [last, rows, count]
    got = semel.prepare(outputs, threads=1)(x=array)
    want = evaluate(Graph(tuple(t.node for t in outputs)), {"x": array})
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_a_large_state_is_shared_by_threads() -> None:
    x = Tensor.input("x", (1 << 18,))
    h, n = semel.while_loop(
        lambda s: s[0].max() < 50, lambda s: (s[0] * 1.5 + 1, s[1] + 1), (x, Tensor(0))
    )
    data = np.linspace(0, 1, 1 << 18, dtype=np.float32)
    one, two = (semel.prepare([h, n], threads=t)(x=data) for t in (1, 2))
    np.testing.assert_array_equal(one[0], two[0])
    assert one[1] == two[1] > 3


# ---------------------------------------------------------------- plans


def test_plans_are_saved_and_loaded(tmp_path: Path) -> None:
    x = Tensor.input("x", (T, 3))

    def outer(s: Any, h: Any) -> Any:
        g = semel.while_loop(lambda g: g.sum() < 20, lambda g: g + x[s] + 1, h[0], max_trips=5)
        return [semel.cond(g[0] > 9, lambda: g - 9, lambda: g * 2)], [g]

    (last,), (rows,) = Tensor.loop(T, [Tensor.zeros(3)], outer)
    plan = semel.prepare([last, rows], threads=1)
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    want = plan(x=data)
    file = tmp_path / "plan.semel"
    plan.save(file)
    for loaded in (semel.load_plan(file), semel.load_plan(file, trust=True), plan.clone()):
        for got, expected in zip(loaded(x=data), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_bodies_of_a_branch_share_their_bytes() -> None:
    x = Tensor.input("x", (1 << 12,))
    p = Tensor.input("p", (), "bool")

    def arm(h: Tensor) -> Tensor:
        return h.sort().cumsum(0).sort().cumsum(0)

    both = semel.cond(p, lambda: arm(x), lambda: arm(x * 2)).prepare(threads=1)
    one = arm(x).prepare(threads=1)
    assert both.memory.arena_bytes < 1.2 * one.memory.arena_bytes + 4096


def test_values_of_bodies_that_are_not_alive_together_share_bytes() -> None:
    x = Tensor.input("x", (1 << 12,))
    (last,), _ = Tensor.loop(3, [x], lambda s, h: ([h[0].sort().cumsum(0).sort().cumsum(0)], []))
    memory = last.prepare(threads=1).memory
    assert memory.arena_bytes < memory.naive_bytes


def test_profiles_tell_what_has_run() -> None:
    plan = doubling(threads=1)
    plan(x=np.float32(1))
    spans = [len(p.spans) for p in plan.execute_profiled() if p.kind == "kernel"]
    assert spans == [1, 1, 1, 1, 7, 1]
    picked = choosing(threads=1)
    picked(x=ROWS, i=np.array([0, 1]), p=np.array(False))
    spans = [len(p.spans) for p in picked.execute_profiled() if p.kind == "kernel"]
    assert sum(spans) == 1


def test_explanations_show_branches_and_conditions() -> None:
    text = str(choosing(threads=1).explain())
    assert "branch" in text and "gather" in text
    assert "condition" in str(doubling(threads=1).explain())


def test_tensors_around_bodies_are_kept() -> None:
    x = Tensor.input("x", (3,))
    before = x + 1
    y = semel.cond(before.sum() > 5, lambda: before * 2, lambda: before) - 1
    plan = semel.prepare(y, keep={"before": before}, threads=1)
    data = np.ones(3, np.float32)
    np.testing.assert_array_equal(plan(x=data), data * 3)
    np.testing.assert_array_equal(plan.kept["before"], data * 2)


def test_bodies_run_without_fusion_and_with_tuned_kernels() -> None:
    x = Tensor.input("x", (4, 8))
    w = Tensor(np.eye(8, dtype=np.float32) * 2)
    h = semel.while_loop(
        lambda h: h.sum() < 1000,
        lambda h: semel.cond(h[0, 0] > 4, lambda: h @ w + 1, lambda: h @ w),
        x,
    )
    data = np.ones((4, 8), np.float32)
    want = h.prepare(threads=1)(x=data)
    for options in ({"fusion": False}, {"tune": True}):
        np.testing.assert_array_equal(h.prepare(threads=1, **options)(x=data), want)


def test_an_endless_loop_can_be_interrupted() -> None:
    x = Tensor.input("x", ())
    plan = semel.while_loop(lambda h: h < 2, lambda h: h * 0.5, x).prepare(threads=1)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt("stop")

    with handling(stop) as interrupt, pytest.raises(KeyboardInterrupt, match="stop"):
        interrupt(plan)
        plan(x=np.float32(1))
    assert plan(x=np.float32(3)) == 3


@settings(max_examples=20, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_values_live_as_long_as_somebody_reads_them(data: st.DataObject) -> None:
    plan = semel.prepare(Control(data, late=True).outputs(), threads=1)
    for seed in range(10):
        assert clobbered(plan, Random(seed)) == []


@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_random_bodies(data: st.DataObject) -> None:
    control = Control(data, late=True)
    outputs = control.outputs()
    arrays, values = control.arrays(), control.values()
    want = evaluate(Graph(tuple(t.node for t in outputs)), arrays, values)
    for threads in (1, 2):
        got = semel.prepare(outputs, threads=threads)(**arrays)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)


def test_a_search_takes_the_steps_that_another_library_takes() -> None:
    """Power iteration until the vector settles, as a Python loop over torch does it."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    a = rng.standard_normal((6, 6)).astype(np.float32)
    a = a @ a.T
    m = Tensor.input("m", (6, 6))

    def body(states: Any) -> Any:
        v, _, count = states
        w = m @ v
        w = w / (w * w).sum().sqrt()
        return w, (w - v).abs().max(), count + 1

    first = (semel.ones(6), Tensor(1.0), Tensor(0))
    v, change, count = semel.while_loop(lambda s: s[1] > 1e-4, body, first, max_trips=500)
    got = semel.prepare([v, change, count], threads=1)(m=a)
    want, delta, steps = torch.ones(6), 1.0, 0
    while delta > 1e-4 and steps < 500:
        new = torch.from_numpy(a) @ want
        new = new / new.norm()
        want, delta, steps = new, float((new - want).abs().max()), steps + 1
    assert abs(int(got[2]) - steps) <= 1
    np.testing.assert_allclose(got[0], want.numpy(), atol=1e-3)
