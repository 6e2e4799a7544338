"""Kernels of loops and branches against the references: where values of bodies lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.codegen.lowering import lower_graph, run_by_interpreter, run_kernels
from tests.ops.bodies import Control

import semel
from semel import Tensor, Variable
from semel.ir.graph import Graph
from semel.lower.lowered import Arm, LoopRegion, Slot, regions_around
from semel.ops.evaluate import evaluate

T = Variable("t", 0, 64)


def check(
    outputs: list[Tensor], data: dict[str, Any], values: dict[str, int], fusion: bool = True
) -> None:
    graph, kernels = lower_graph(outputs, fusion=fusion)
    want = evaluate(Graph(tuple(t.node for t in outputs)), data, values)
    got = run_kernels(graph, kernels, data, values, run_by_interpreter)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


STATES: dict[str, Any] = {
    "number": (np.float32(2), lambda h: h * 2 + 1),
    "bool": (np.array(True), lambda h: ~h),
    "bools": (np.array([True, False, True]), lambda h: h ^ h[:1]),
    "half": (np.ones(3, np.float16), lambda h: h * 0.5),
    "byte": (np.arange(3, dtype=np.uint8), lambda h: h + 250),
    "long": (np.int64(3), lambda h: h * h),
    "empty": (np.zeros((0, 3), np.float32), lambda h: h + 1),
    "one": (np.ones((1, 1, 1), np.float32), lambda h: h + 1),
    "deep": (np.arange(12, dtype=np.float32).reshape(1, 2, 1, 3, 2), lambda h: h.flip(1) + h),
    "turned": (np.arange(9, dtype=np.float32).reshape(3, 3), lambda h: h.T * 2),
    "reduced": (np.arange(4, dtype=np.float32), lambda h: h / (h.sum() + 1)),
    "product": (np.eye(3, dtype=np.float32) * 2, lambda h: h @ h.T),
    "sorted": (np.array([3, 1, 2], np.float32), lambda h: h.sort() * -1),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("fusion", [True, False])
def test_states_may_be_of_any_kind(name: str, fusion: bool) -> None:
    array, step = STATES[name]
    x = Tensor.input("x", array.shape, str(array.dtype))
    (last,), (rows,) = Tensor.loop(T, [x], lambda s, h: ([step(h[0])], [h[0]]))
    condition = semel.while_loop(
        lambda h: h[1] < 3, lambda h: (step(h[0]), h[1] + 1), (x, Tensor(0)), max_trips=T
    )
    for trip in (0, 1, 2, 3):
        check([last, rows, condition[0]], {"x": array}, {"t": trip}, fusion)


@pytest.mark.parametrize("trip", [0, 1, 2, 5])
def test_states_may_be_swapped_shared_constant_and_passed_through(trip: int) -> None:
    x = Tensor.input("x", (3,))

    def body(s: Any, h: Any) -> Any:
        a, b, c, d, e = h
        return [b, a, c, c, e + d], [a, a]

    states = [x, x, Tensor([1.0, 2.0, 3.0]), Tensor.zeros(3), x * 2]
    finals, stacked = Tensor.loop(T, states, body)
    check([*finals, *stacked], {"x": np.array([4, 5, 6], np.float32)}, {"t": trip})


def test_kernels_say_in_which_region_they_run() -> None:
    x = Tensor.input("x", (T, 4))

    def outer(s: Any, h: Any) -> Any:
        g = semel.while_loop(lambda g: g.sum() < 50, lambda g: g + x[s] + 1, h[0], max_trips=s + 1)
        return [semel.cond(g[0] > 3, lambda: g * 2, lambda: g.cumsum(0))], [g]

    (last,), (rows,) = Tensor.loop(T, [Tensor.zeros(4)], outer)
    data = np.ones((5, 4), np.float32)
    check([last, rows], {"x": data}, {"t": 5})
    _, kernels = lower_graph([last, rows])
    chains = {tuple(type(r) for r in regions_around(k.region)) for k in kernels}
    assert chains == {(), (LoopRegion,), (LoopRegion, LoopRegion), (Arm, LoopRegion)}
    counters = {
        r.counter.name
        for k in kernels
        for r in regions_around(k.region)
        if isinstance(r, LoopRegion)
    }
    assert counters == {"_step", "_step1"}


def test_a_tiny_loop_with_a_condition_is_one_kernel_an_iteration() -> None:
    x = Tensor.input("x", ())
    h = semel.while_loop(lambda h: h < 100, lambda h: h * 2 + 1, x)
    _, kernels = lower_graph([h])
    assert len([k for k in kernels if k.region is not None]) == 1


def test_values_of_a_body_belong_to_it_and_states_to_what_is_around() -> None:
    x = Tensor.input("x", (8,))
    (last,), _ = Tensor.loop(3, [x], lambda s, h: ([h[0].cumsum(0).sort()], []))
    _, kernels = lower_graph([last])
    slots = {arg for k in kernels for arg in k.args if isinstance(arg, Slot)}
    owners = {slot.name: slot.owner for slot in slots}
    assert owners["state0"] is None
    assert all(isinstance(owner, LoopRegion) for n, owner in owners.items() if n != "state0")


@pytest.mark.parametrize("p", [True, False])
@pytest.mark.parametrize("fusion", [True, False])
def test_results_of_a_branch_lie_where_both_arms_store_them(p: bool, fusion: bool) -> None:
    x = Tensor.input("x", (3, 3))
    a, b, c = semel.cond(
        Tensor.input("p", (), "bool"), lambda: (x, x @ x, x[0]), lambda: (x * 2, x, x.sum(0))
    )
    data = {"x": np.arange(9, dtype=np.float32).reshape(3, 3), "p": np.array(p)}
    check([a, b, c], data, {}, fusion)
    check([b * 2 + a], data, {}, fusion)


@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_random_bodies(data: st.DataObject) -> None:
    control = Control(data)
    outputs = control.outputs()
    check(outputs, control.arrays(), control.values(), fusion=data.draw(st.booleans()))
