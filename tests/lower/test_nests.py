"""Compiled loops: what they compute, where their values lie, and that nothing else is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.checking import run_interpreted

import semel
from semel import Tensor, Variable, config
from semel.ir.graph import Graph
from semel.kernel.encode import decode_kernel
from semel.kernel.verify import verify_kernel
from semel.ops.evaluate import evaluate
from semel.plan import ExecutionPlan

Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(3)
T = Variable("t", 0, 40)
N = Variable("n", 0, 9)


def fibonacci(x: Tensor) -> list[Tensor]:
    """Two states that change places: each is read after it was written elsewhere."""
    start = [Tensor.zeros(*x.shape[1:]), Tensor.ones(*x.shape[1:])]
    (a, b), (seen,) = Tensor.loop(
        x.shape[0], start, lambda s, h: ([h[1], h[0] + h[1] + x[s]], [h[0] - h[1]])
    )
    return [a, b, seen]


def standing_still(x: Tensor) -> list[Tensor]:
    """A state that no iteration changes, and one that is read from outside each time."""
    (a, b), (seen,) = Tensor.loop(
        x.shape[0],
        [x.sum(0), Tensor.zeros(*x.shape[1:])],
        lambda s, h: ([h[0], x[s]], [h[1]]),
    )
    return [a, b, seen]


def recurrent(x: Tensor) -> list[Tensor]:
    """A matmul of the state with packed constants, and a reduction over it."""
    w = Tensor(WEIGHT)

    def body(step: Any, h: Any) -> Any:
        new = (h[0] @ w + x[x.shape[0] - 1 - step]).tanh()
        return [new, h[1].maximum(new.softmax(-1))], [new, new.sum(-1)]

    start = [Tensor.zeros(*x.shape[1:]), Tensor.zeros(*x.shape[1:])]
    finals, stacked = Tensor.loop(x.shape[0], start, body, backward=[True, False])
    return [*finals, *stacked]


def two_in_a_row(x: Tensor) -> list[Tensor]:
    """A loop over what another one stacked."""
    _, (sums,) = Tensor.loop(
        x.shape[0], [Tensor.zeros(*x.shape[1:])], lambda s, h: ([h[0] + x[s]], [h[0]])
    )
    (last,), (back,) = Tensor.loop(
        x.shape[0],
        [Tensor.zeros(*x.shape[1:])],
        lambda s, h: ([h[0] * 0.5 + sums[x.shape[0] - 1 - s]], [h[0]]),
        backward=[True],
    )
    return [last, back, sums]


WEIGHT = (RNG.standard_normal((5, 5)) / 3).astype(np.float32)
PROGRAMS = {f.__name__: f for f in (fibonacci, standing_still, recurrent, two_in_a_row)}


def build(name: str, trip: Any = T, rows: Any = N) -> Graph:
    outputs = PROGRAMS[name](Tensor.input("x", (trip, rows, 5)))
    return Graph(tuple(t.node for t in outputs))


def prepared(name: str, trip: Any = T, rows: Any = N, **options: Any) -> ExecutionPlan:
    outputs = PROGRAMS[name](Tensor.input("x", (trip, rows, 5)))
    return semel.prepare(outputs, **options)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_compiled_loop_agrees_with_the_reference(name: str, threads: int) -> None:
    plan, graph = prepared(name, threads=threads), build(name)
    for trip, rows in ((5, 3), (0, 2), (1, 1), (40, 9), (2, 0), (0, 0), (17, 4)):
        x = RNG.standard_normal((trip, rows, 5)).astype(np.float32)
        for got, want in zip(plan(x=x), evaluate(graph, {"x": x}), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert plan.compile_count == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_variables_and_fusion_give_the_same_bits(name: str) -> None:
    x = RNG.standard_normal((13, 7, 5)).astype(np.float32)
    first = [a.tobytes() for a in prepared(name, 13, 7, threads=1)(x=x)]
    for plan in (
        prepared(name, threads=1),
        prepared(name, threads=2),
        prepared(name, 13, threads=2),
        prepared(name, threads=1, fusion=False),
    ):
        assert [a.tobytes() for a in plan(x=x)] == first


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("fusion", [True, False])
def test_the_interpreter_reads_nothing_outside(name: str, fusion: bool) -> None:
    x = RNG.standard_normal((5, 3, 5)).astype(np.float32)
    graph = build(name)
    found = run_interpreted(graph, {"x": x}, {"t": 5, "n": 3}, fusion=fusion)
    for got, want in zip(found, evaluate(graph, {"x": x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_stale_memory_is_never_read(name: str) -> None:
    with config.override(debug=frozenset({"poison"})):
        plan = prepared(name, threads=2)
    for trip in (3, 8, 1):
        x = RNG.standard_normal((trip, 6, 5)).astype(np.float32)
        for got, want in zip(plan(x=x), evaluate(build(name), {"x": x}), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_of_loops_are_well_formed(name: str) -> None:
    for kernel in prepared(name, threads=1).kernels:
        assert verify_kernel(decode_kernel(kernel.encoded)) == []


def test_a_number_of_steps_without_a_maximum_grows() -> None:
    steps = Variable("t", 0)
    plan = prepared("recurrent", steps, threads=1)
    for trip in (3, 200, 5, 300):
        x = RNG.standard_normal((trip, 2, 5)).astype(np.float32)
        wanted = evaluate(build("recurrent", steps), {"x": x})
        for got, want in zip(plan(x=x), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5)
    assert plan.growths > 0 and plan.compile_count == 1


def test_a_saved_loop_runs_again(tmp_path: Path) -> None:
    plan = prepared("recurrent", threads=1)
    x = RNG.standard_normal((9, 4, 5)).astype(np.float32)
    want = plan(x=x)
    plan.save(tmp_path / "loop.plan")
    for options in ({}, {"recompile": True}, {"threads": 2}):
        loaded = semel.load_plan(tmp_path / "loop.plan", **options)
        for got, expected in zip(loaded(x=x), want, strict=True):
            assert got.tobytes() == expected.tobytes()
    loaded.save(tmp_path / "again.plan")
    assert (tmp_path / "again.plan").read_bytes() == (tmp_path / "loop.plan").read_bytes()


def test_a_clone_of_a_loop_runs() -> None:
    plan = prepared("fibonacci", threads=1)
    x = RNG.standard_normal((9, 4, 5)).astype(np.float32)
    want = plan(x=x)
    for got, expected in zip(plan.clone()(x=x), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_states_keep_their_bytes_through_the_loop() -> None:
    """What an iteration uses for itself shares bytes; what the loop carries does not."""
    plan = prepared("recurrent", 16, 9, threads=1)
    told = plan.explain()
    states = {b.index for b in told.buffers if b.name.startswith("state")}
    inside = {b for op in told.ops if op.times for b in (*op.reads, *op.writes)}
    assert len(states) == 2
    for buffer in told.buffers:
        if buffer.index in states:
            assert not set(buffer.shares_with) & inside


def test_what_a_loop_reads_from_outside_is_not_overwritten_by_it() -> None:
    """The sum is read in every iteration, and is dead after the loop."""
    x = Tensor.input("x", (T, 64))
    total = x.sum(0)

    def body(step: Any, h: Any) -> Any:
        a = h[0] + total
        b = a.cumsum(0)
        return [b.flip(0) * 0.25], [b.sum()]

    (last,), (sums,) = Tensor.loop(T, [Tensor.zeros(64)], body)
    plan = semel.prepare([last, sums], threads=1)
    data = RNG.standard_normal((6, 64)).astype(np.float32)
    wanted = evaluate(Graph((last.node, sums.node)), {"x": data})
    for got, want in zip(plan(x=data), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_loop_that_needs_only_its_last_state_stores_no_rows() -> None:
    x = Tensor.input("x", (T, 8))
    (last,), _ = Tensor.loop(T, [Tensor.zeros(8)], lambda s, h: ([h[0] + x[s]], [h[0] * 2]))
    plan = last.prepare(threads=1)
    assert plan.memory.arena_bytes <= 2 * 64


def test_a_state_of_one_number_works() -> None:
    (last,), (seen,) = Tensor.loop(
        T, [Tensor(1.5)], lambda s, h: ([h[0] * 0.5 + s], [h[0].reshape(1)])
    )
    plan = semel.prepare([last, seen], threads=1)
    plan.execute_with_vars(t=4)
    want = evaluate(Graph((last.node, seen.node)), {}, {"t": 4})
    np.testing.assert_array_equal(plan.output_buffers[0].numpy(), want[0])
    np.testing.assert_array_equal(plan.output_buffers[1].numpy(), want[1])


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int64", "bool"])
def test_states_have_any_dtype(dtype: str) -> None:
    x = Tensor.input("x", (T, 33), dtype)

    def body(step: Any, h: Any) -> Any:
        new = h[0] ^ x[step] if dtype in ("int8", "int64", "bool") else h[0] + x[step]
        return [new], [new]

    (last,), (seen,) = Tensor.loop(T, [Tensor.zeros(33, dtype=dtype)], body)
    plan = semel.prepare([last, seen], threads=1)
    data = (RNG.standard_normal((7, 33)) * 4).astype(x.dtype.numpy)
    for got, want in zip(
        plan(x=data), evaluate(Graph((last.node, seen.node)), {"x": data}), strict=True
    ):
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_bodies_agree_with_the_reference(data: st.DataObject) -> None:
    """Bodies of random elementwise, movement and reduction ops on states, input and step."""
    width = data.draw(st.integers(1, 40))
    x = Tensor.input("x", (T, N, width))
    count = data.draw(st.integers(1, 3))

    def body(step: Any, states: tuple[Tensor, ...]) -> Any:
        pool = [*states, x[step], x[T - 1 - step]]
        for _ in range(data.draw(st.integers(1, 6))):
            a, b = (pool[data.draw(st.integers(0, len(pool) - 1))] for _ in range(2))
            op = data.draw(st.sampled_from(["add", "mul", "max", "flip", "mean", "tanh", "where"]))
            match op:
                case "add":
                    made = a + b * 0.5
                case "mul":
                    made = a * b * 0.3
                case "max":
                    made = a.maximum(b)
                case "flip":
                    made = a.flip(1)
                case "mean":
                    made = a - b.mean(1, keepdims=True)
                case "tanh":
                    made = (a + step).tanh()
                case _:
                    made = (a > b).where(a, b * 2)
            pool.append(made)
        picks = [
            (pool[data.draw(st.integers(0, len(pool) - 1))] + x[step]).tanh() for _ in range(count)
        ]
        return picks, [pool[-1], pool[data.draw(st.integers(0, len(pool) - 1))]]

    turned = data.draw(st.lists(st.booleans(), min_size=2, max_size=2))
    start = [Tensor.zeros(N, width)] * count
    finals, stacked = Tensor.loop(T, start, body, backward=turned)
    outputs = [*finals, *stacked]
    kept = data.draw(st.lists(st.sampled_from(range(len(outputs))), min_size=1, unique=True))
    outputs = [outputs[k] for k in kept]
    plan = semel.prepare(outputs, threads=data.draw(st.sampled_from([1, 2])))
    graph = Graph(tuple(t.node for t in outputs))
    for trip, rows in ((4, 3), (0, 2), (7, 1)):
        array = RNG.uniform(-1, 1, (trip, rows, width)).astype(np.float32)
        found = plan(x=array) if len(outputs) > 1 else [plan(x=array)]
        for got, want in zip(found, evaluate(graph, {"x": array}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_products_of_bytes_in_a_loop_are_those_of_the_target() -> None:
    """A quantised recurrence: whole numbers, so that every executor gives the same."""
    weight = RNG.integers(-9, 9, (64, 64)).astype(np.int8)
    x = Tensor.input("x", (T, 5, 64), "int8")

    def body(step: Any, h: Any) -> Any:
        product = h[0].cast("int32") @ Tensor(weight).cast("int32")
        new = ((product >> 5) + x[step].cast("int32")).clip(-100, 100).cast("int8")
        return [new], [product]

    (last,), (products,) = Tensor.loop(T, [Tensor.zeros(5, 64, dtype="int8")], body)
    data = RNG.integers(-99, 99, (7, 5, 64)).astype(np.int8)
    wanted = evaluate(Graph((last.node, products.node)), {"x": data})
    for threads in (1, 2):
        found = semel.prepare([last, products], threads=threads)(x=data)
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
