"""The loop op: types, reference, text, guards, and what `Tensor.loop` captures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.errors import GraphError, VariableError
from semel.ir.graph import Graph, make_node
from semel.ir.text import format_graph, parse_graph
from semel.ir.verify import verify_graph
from semel.ops.attrs import LoopAttrs
from semel.ops.bodies import body_operand, result_key
from semel.ops.evaluate import evaluate
from semel.ops.guards import guards
from semel.ops.loop import live_loop
from semel.passes import run_passes
from semel.tensor.movement import slice_axes

T = Variable("t", 0, 64)


def running_sum(trip: Any = T, width: int = 3) -> tuple[Tensor, Tensor]:
    x = Tensor.input("x", (trip, width))
    zero = Tensor.zeros(width)
    (last,), (sums,) = Tensor.loop(trip, [zero], lambda s, h: ([h[0] + x[s]], [h[0] + x[s]]))
    return last, sums


def test_a_loop_computes_what_a_python_loop_does() -> None:
    last, sums = running_sum()
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = evaluate(Graph((last.node, sums.node)), {"x": x})
    np.testing.assert_array_equal(found[0], x.sum(0))
    np.testing.assert_array_equal(found[1], x.cumsum(0))


def test_no_iteration_gives_the_initial_state_and_no_rows() -> None:
    last, sums = running_sum()
    found = evaluate(Graph((last.node, sums.node)), {"x": np.zeros((0, 3), np.float32)})
    np.testing.assert_array_equal(found[0], np.zeros(3))
    assert found[1].shape == (0, 3)


def test_a_loop_of_a_fixed_number_of_no_iterations_runs() -> None:
    last, sums = running_sum(0)
    a, b = semel.prepare([last, sums], threads=1)(x=np.zeros((0, 3), np.float32))
    np.testing.assert_array_equal(a, np.zeros(3))
    assert b.shape == (0, 3)


def test_results_of_one_loop_are_one_loop() -> None:
    last, sums = running_sum()
    assert result_key(last.node) == result_key(sums.node)
    assert last.shape == (3,) and sums.shape == (T, 3)


def test_the_same_loop_written_twice_is_the_same_node() -> None:
    assert running_sum()[1].node is running_sum()[1].node


def test_what_no_iteration_changes_is_computed_outside() -> None:
    x, w = Tensor.input("x", (T, 4)), Tensor.input("w", (4, 4))
    (last,), _ = Tensor.loop(T, [Tensor.zeros(1, 4)], lambda s, h: ([h[0] @ w.exp() + x[s]], []))
    loop = last.node
    assert [n.op.name for n in loop.inputs[1:]] == ["exp", "input"]
    assert "exp" not in {n.op.name for n in loop.attrs.body.nodes}


def test_constants_stay_in_the_body_where_they_can_be_packed() -> None:
    w = Tensor(np.ones((4, 4), np.float32))
    (last,), _ = Tensor.loop(T, [Tensor.zeros(1, 4)], lambda s, h: ([h[0] @ w.T], []))
    assert len(last.node.inputs) == 1
    assert "constant" in {n.op.name for n in last.node.attrs.body.nodes}


def test_a_state_may_be_an_input_of_the_same_name_as_an_operand() -> None:
    x = Tensor.input("0", (3,))
    (last,), _ = Tensor.loop(4, [Tensor(np.ones(3, np.float32))], lambda s, h: ([h[0] + x], []))
    found = evaluate(Graph((last.node,)), {"0": np.full(3, 2, np.float32)})
    np.testing.assert_array_equal(found[0], np.full(3, 9))


def test_the_step_is_a_number_too() -> None:
    (last,), (steps,) = Tensor.loop(
        T, [Tensor(np.zeros((), np.int64))], lambda s, h: ([h[0] + s], [semel.arange(T)[s] * 2 - s])
    )
    found = evaluate(Graph((last.node, steps.node)), {}, {"t": 5})
    assert found[0] == 10
    np.testing.assert_array_equal(found[1], np.arange(5))


def test_values_may_be_stacked_from_the_end() -> None:
    x = Tensor.input("x", (T,))
    _, (there, back) = Tensor.loop(T, [], lambda s, h: ([], [x[s], x[s]]), backward=[False, True])
    data = np.arange(5, dtype=np.float32)
    found = evaluate(Graph((there.node, back.node)), {"x": data})
    np.testing.assert_array_equal(found[0], data)
    np.testing.assert_array_equal(found[1], data[::-1])


# ---------------------------------------------------------------- text, verify, guards


def test_text_comes_back_as_the_same_graph() -> None:
    last, sums = running_sum()
    graph = Graph((last.node, sums.node), ("last", "sums"))
    text = format_graph(graph)
    assert "body 0 for _step < t" in text and text.count("body 0") == 1
    assert format_graph(parse_graph(text)) == text


def test_text_keeps_two_bodies_apart() -> None:
    x = Tensor.input("x", (T,))
    _, (one,) = Tensor.loop(T, [], lambda s, h: ([], [x[s] * 2]))
    _, (two,) = Tensor.loop(T, [], lambda s, h: ([], [one[T - 1 - s] + 1]))
    graph = Graph((two.node,))
    assert parse_graph(format_graph(graph)) == graph


@pytest.mark.parametrize(
    ("line", "message"),
    [("  %9 = nonsense\n", "must be a variable"), ("%5 = loop %0 {body=7}", "body")],
)
def test_text_that_makes_no_sense_is_refused(line: str, message: str) -> None:
    text = format_graph(Graph((running_sum()[0].node,)))
    with pytest.raises(GraphError, match=message):
        parse_graph(text + line)


def test_a_body_is_verified() -> None:
    last, _ = running_sum()
    graph = Graph((last.node,))
    assert verify_graph(graph) == []
    inner = last.node.attrs.body.outputs[0]
    right, inner.type = inner.type, Tensor.zeros(7).type
    try:
        assert any("its body: " in problem for problem in verify_graph(graph))
    finally:
        inner.type = right


def test_guards_of_the_body_are_guards_of_the_graph() -> None:
    x = Tensor.input("x", (T, 12))
    n = Variable("n", 1, 16)
    y = Tensor.input("y", (n,))
    (last,), _ = Tensor.loop(
        T,
        [Tensor.zeros(12)],
        lambda s, h: ([h[0] + x[s] + slice_axes(y, (0,), (12,), (1,)) * h[0]], []),
    )
    assert any("n" in str(amount) for amount, _ in guards(Graph((last.node,))))


def test_what_may_fail_in_some_iteration_is_refused() -> None:
    x = Tensor.input("x", (Variable("m", 1, 64), 3))

    def body(step: Any, h: Any) -> Any:
        return [h[0] + slice_axes(x, (step, 0), (1, 3), (1, 1))[0]], []

    with pytest.raises(GraphError, match="every iteration"):
        Tensor.loop(T, [Tensor.zeros(3)], body)


def test_a_sequence_of_another_length_is_checked_as_data() -> None:
    x = Tensor.input("x", (Variable("m", 1, 64), 3))
    (last,), _ = Tensor.loop(T, [Tensor.zeros(3)], lambda s, h: ([h[0] + x[s]], []))
    plan = last.prepare(threads=1)
    buffer = plan.buffer(x)
    assert buffer is not None
    buffer.copyin(np.ones((4, 3), np.float32))
    plan.execute_with_vars(t=4, m=4)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(3, 4))
    with pytest.raises(semel.IndexRangeError, match="got 4, in iteration 4"):
        plan.execute_with_vars(t=6, m=4)


def test_a_negative_number_of_iterations_is_refused() -> None:
    with pytest.raises(GraphError, match="trip must be >= 0, got -1"):
        Tensor.loop(-1, [Tensor.zeros(3)], lambda s, h: (h, []))
    n = Variable("n", 0, 8)
    (last,), _ = Tensor.loop(n - 4, [Tensor.zeros(3)], lambda s, h: ([h[0] + 1], []))
    plan = last.prepare(threads=1)
    with pytest.raises(VariableError, match="the number of iterations must be >= 0"):
        plan.execute_with_vars(n=3)
    plan.execute_with_vars(n=7)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(3, 3))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda s, h: h[0], "must return"),
        (lambda s, h: (h[0], []), "must return"),
        (lambda s, h: ([], []), "1 states"),
        (lambda s, h: ([h[0].sum()], []), "must keep its type"),
        (lambda s, h: ([h[0].cast("float64")], []), "must keep its type"),
        (lambda s, h: ([h[0]], [semel.zeros(s + 1)]), "must not depend on the step"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused(body: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Tensor.loop(T, [Tensor.zeros(3)], body)


def test_a_loop_of_nothing_is_refused() -> None:
    with pytest.raises(GraphError, match="needs a state or a value"):
        Tensor.loop(T, [], lambda s, h: ([], []))


@pytest.mark.parametrize("trip", [1.5, "3", True, None])
def test_a_trip_that_is_no_dim_is_refused(trip: Any) -> None:
    with pytest.raises(GraphError, match="trip must"):
        Tensor.loop(trip, [Tensor.zeros(3)], lambda s, h: (h, []))


def test_a_wrong_number_of_directions_is_refused() -> None:
    with pytest.raises(GraphError, match="backward"):
        Tensor.loop(T, [], lambda s, h: ([], [Tensor.zeros(2)]), backward=[True, False])


def test_a_name_that_loops_need_is_refused() -> None:
    taken = Variable("_step", 1, 4)
    y = Tensor.input("y", (taken,))
    with pytest.raises(GraphError, match="need for themselves"):
        Tensor.loop(T, [Tensor.zeros(taken)], lambda s, h: ([h[0] + y], []))


def test_what_a_body_was_traced_with_has_no_value_outside() -> None:
    x, kept = Tensor.input("x", (T, 3)), []

    def body(step: Any, h: Any) -> Any:
        kept.extend([h[0] * 2, x[step]])
        return h, []

    Tensor.loop(T, [Tensor.zeros(3)], body)
    for leaked in kept:
        with pytest.raises(GraphError, match="must not leave the body"):
            leaked.prepare()


def test_operands_that_do_not_fit_the_body_are_refused() -> None:
    kind = Tensor.zeros(3).type
    h = body_operand(0, kind)
    body = Graph((make_node("neg", (h,)),), ("0",))
    other = Tensor.zeros(4).node
    with pytest.raises(GraphError, match="operand 0"):
        make_node("loop", (other,), LoopAttrs(4, body, 1, (), 0))
    with pytest.raises(GraphError, match="output must lie"):
        make_node("loop", (Tensor.zeros(3).node,), LoopAttrs(4, body, 1, (), 1))
    with pytest.raises(GraphError, match="must give"):
        make_node("loop", (), LoopAttrs(4, body, 1, (), 0))


# ---------------------------------------------------------------- passes


def test_passes_go_into_the_body_and_move_constants_there() -> None:
    w = Tensor(np.full((3, 3), 2, np.float32))
    doubled = w * 2  # an op on constants: folded outside, and then a constant
    x = Tensor.input("x", (T, 1, 3))
    (last,), _ = Tensor.loop(
        T, [Tensor.zeros(1, 3)], lambda s, h: ([h[0] @ doubled + x[s] * 1 + 0 * x[s]], [])
    )
    assert len(last.node.inputs) == 3
    graph = run_passes(Graph((last.node,)), verify=True)
    (loop,) = [n for n in graph.nodes if n.op.name == "loop"]
    assert len(loop.inputs) == 2
    names = [n.op.name for n in loop.attrs.body.nodes]
    assert "constant" in names


def test_states_that_nothing_needs_are_left_out() -> None:
    def body(step: Any, h: Any) -> Any:
        a, b, c = h
        return [a + 1, b + a, c * 2], [b]

    finals, (stacked,) = Tensor.loop(T, [Tensor.zeros(3)] * 3, body)
    attrs = stacked.node.attrs
    assert live_loop(attrs, [3])[1] == (0, 1, 3)
    assert live_loop(attrs, [0])[1] == (0,)
    assert live_loop(attrs, [2])[1] == (2,)
    assert finals[2].shape == (3,)


def test_a_constant_that_is_read_at_the_step_is_not_folded() -> None:
    w = Tensor([1.0, 2.0, 3.0])
    (last,), _ = Tensor.loop(3, [Tensor(0.0)], lambda s, h: ([h[0] + w[s] * 2], []))
    assert last.item() == 12


@pytest.mark.parametrize("threads", [1, 2])
def test_a_permuted_constant_is_read_at_the_step(threads: int) -> None:
    """Its rows differ from step to step, so it cannot be laid out for one of them."""
    data = np.arange(48, dtype=np.float32).reshape(4, 12)
    w, x = Tensor(data), Tensor.input("x", (2, 4))
    _, (rows,) = Tensor.loop(12, [Tensor(0.0)], lambda s, h: ([h[0]], [x + w.T[s].reshape(1, 4)]))
    plan = rows.prepare(threads=threads)
    ones = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(plan(x=ones), ones + data.T[:, None, :])


def test_a_permuted_constant_is_read_from_a_symbolic_start() -> None:
    data = np.arange(48, dtype=np.float32).reshape(4, 12)
    n = Variable("n", 0, 9)
    x = Tensor.input("x", (3, 4))
    plan = (x + Tensor(data).T[n : n + 3]).prepare(threads=1)
    ones = np.ones((3, 4), np.float32)
    plan.buffer(x).copyin(ones)  # type: ignore[union-attr]
    for start in (0, 5, 9):
        plan.execute_with_vars(n=start)
        np.testing.assert_array_equal(plan.output_buffer.numpy(), ones + data.T[start : start + 3])
