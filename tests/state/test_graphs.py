"""Graphs that keep something between runs, as users write them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import semel
from semel import Graph, Tensor
from semel.ir.text import format_graph, parse_graph
from semel.ops.stateful import StateReference
from semel.plan.plan import ExecutionPlan

RNG = np.random.default_rng(5)


def rows(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def counter() -> Graph:
    g = Graph("counter")
    delta, total = g.input("delta", (4,), "float32"), g.state("total", (4,), "float32")
    g.output("sum", total + delta, feeds=total)
    return g


def attend(capacity: int = 32, width: int = 8) -> Graph:
    g = Graph("attend")
    x, cache = g.input("x", ("t", width), "float32"), g.state("k", (capacity, width), "float32")
    keys = cache.append(x)
    g.output("y", (x @ keys.T).softmax(-1) @ keys)
    return g


def kernel_names(plan: ExecutionPlan) -> list[str]:
    return [op.name for op in plan.prepared_kernels]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_counter_counts(threads: int) -> None:
    plan = counter().prepare(threads=threads)
    for k in range(5):
        out = plan(delta=np.ones(4, np.float32))
        assert out.tolist() == [k + 1] * 4
    assert plan.states.read("total").tolist() == [5] * 4
    assert kernel_names(plan) == ["add"]
    assert plan.states["total"].how == "in place"


def test_the_first_value_is_the_one_given() -> None:
    g = Graph("from three")
    delta, total = g.input("delta", (2,)), g.state("total", (2,), init=[3.0, 4.0])
    g.output("sum", total + delta, feeds=total)
    plan = g.prepare()
    assert plan.states.read("total").tolist() == [3, 4]
    plan(delta=np.ones(2, np.float32))
    assert plan.states.read("total").tolist() == [4, 5]
    plan.states.reset()
    assert plan.states.read("total").tolist() == [3, 4]


def test_appended_rows_are_seen_at_once_and_nothing_is_copied() -> None:
    graph = attend()
    plan = graph.prepare(dims={"t": (1, 16)})
    reference = StateReference(graph.build({"t": (1, 16)}))
    for count in (5, 1, 1, 16, 9):
        x = rows(count, 8)
        np.testing.assert_allclose(plan(x=x), reference.run({"x": x})[0], rtol=1e-5, atol=1e-6)
        assert plan.states.cursors == reference.held
        np.testing.assert_array_equal(
            plan.states.read("k"), reference.states["k"][: reference.held["cursor"]]
        )
    assert kernel_names(plan) == ["update", "attention"]
    assert plan.compile_count in (0, 1) and plan.variables["cursor"] == 32


def test_a_full_state_refuses_before_anything_is_written() -> None:
    plan = attend(capacity=8).prepare(dims={"t": (1, 8)})
    plan(x=rows(6, 8))
    before = plan.states.snapshot()
    with pytest.raises(semel.StateError, match=r"must end at or before 8 .* Found cursor=6, t=3"):
        plan(x=rows(3, 8))
    assert plan.states.cursors == {"cursor": 6}
    np.testing.assert_array_equal(plan.states.read("k"), before.arrays["k"])
    plan(x=rows(2, 8))
    assert plan.states.cursors == {"cursor": 8}


def test_a_cursor_is_bound_by_nobody() -> None:
    plan = attend().prepare(dims={"t": (1, 8)})
    with pytest.raises(semel.VariableError, match="is kept between runs"):
        plan.execute_with_vars(cursor=3)
    with pytest.raises(semel.VariableError, match="must be of variables that the plan has"):
        attend().prepare(dims={"t": (1, 8)}, bindings={"cursor": 1})


def test_a_refused_bind_takes_no_cursor_back() -> None:
    plan = attend().prepare(dims={"t": (1, 8)})
    plan(x=rows(3, 8))
    with pytest.raises(semel.VariableError, match="must lie in"):
        plan.execute_with_vars(t=100)
    assert plan.states.cursors == {"cursor": 3}
    plan(x=rows(2, 8))
    assert plan.states.cursors == {"cursor": 5}


def test_several_states_share_a_cursor() -> None:
    g = Graph("kv")
    x = g.input("x", ("t", 4))
    k, v = g.state("k", (16, 4)), g.state("v", (16, 4))
    keys, values = k.append(x), v.append(x * 2)
    g.output("y", (x @ keys.T).softmax(-1) @ values)
    assert keys.shape[0] == values.shape[0]
    plan = g.prepare(dims={"t": (1, 4)})
    assert list(plan.states.cursors) == ["cursor"]
    plan(x=rows(3, 4))
    np.testing.assert_array_equal(plan.states.read("v"), 2 * plan.states.read("k"))


def test_states_that_grow_apart_need_cursors_of_their_own() -> None:
    g = Graph("apart")
    x = g.input("x", ("t", 4))
    a, b = g.state("a", (16, 4)), g.state("b", (16, 4))
    a.append(x)
    b.append(x[:1])
    g.output("y", x.sum())
    with pytest.raises(semel.GraphError, match="must grow by the same number of rows"):
        g.build()
    g = Graph("apart")
    x = g.input("x", ("t", 4))
    a, b = g.state("a", (16, 4)), g.state("b", (16, 4))
    a.append(x)
    g.output("y", b.append(x[:1], cursor=g.cursor("one", 16)).sum())
    plan = g.prepare(dims={"t": (1, 4)})
    plan(x=rows(3, 4))
    assert plan.states.cursors == {"cursor": 3, "one": 1}


def test_positions_are_counted_by_the_cursor() -> None:
    g = Graph("positions")
    x, seen = g.input("x", ("t",)), g.state("seen", (16,))
    seen.append(x)
    assert seen.cursor is not None
    g.output("at", Tensor.arange(x.shape[0]) + seen.cursor.variable)
    plan = g.prepare(dims={"t": (1, 8)})
    assert plan(x=rows(3)).tolist() == [0, 1, 2]
    assert plan(x=rows(2)).tolist() == [3, 4]


def test_the_text_of_a_graph_says_what_becomes_of_states() -> None:
    for graph in (counter().build(), attend().build({"t": (1, 16)})):
        text = format_graph(graph)
        again = parse_graph(text)
        assert format_graph(again) == text
        assert (again.updates, again.held) == (graph.updates, graph.held)
    assert "held cursor = cursor + t" in text
    assert 'next %2 "k"' in text


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda g, s: s.replace(Tensor.ones(3)), r"next value must be f32\[4\]"),
        (lambda g, s: s.append(Tensor.ones(2, 2)), "rows must have its dtype and rank"),
        (lambda g, s: g.output("y", s + 1, feeds=Tensor.ones(4)), "must be a state of graph"),
        (lambda g, s: (s.replace(s + 1), s.append(s[:1])), "either replaced, once, or updated"),
        (lambda g, s: g.state("s", (4,)), "is a state of graph 'g' already"),
        (lambda g, s: g.input("s", (4,)), "is a state of graph 'g' already"),
        (lambda g, s: s.__setitem__(0, 1.0), "must not be assigned to"),
        (lambda g, s: s.valid(), "has no cursor"),
        (lambda g, s: s.append(s[:1], cursor=g.cursor("c", 9)), "must have room for 9 rows"),
        (
            lambda g, s: s.append(s[:1], cursor=Graph("h").cursor("c", 4)),
            "must be one of graph 'g'",
        ),
        (lambda g, s: s.append(s[:1], cursor="c"), "must be one of graph 'g', got 'c'"),
        (lambda g, s: s.update(s[:1], None), "must be ints or Variables, got None"),
        (lambda g, s: s.update(s[:1], ("t",)), "must be ints or Variables, got 't'"),
        (lambda g, s: s.update(s[:1], (0, 0)), r"starts must be 1, one per axis, got \(0, 0\)"),
        (lambda g, s: g.state("q", (4,), init="abcd"), "data must be bool, integer or real"),
        (lambda g, s: (g.output("y", s + 1), g.prepare(dims=[("t", (1, 2))])), "must map names"),
    ],
)
def test_what_cannot_be_said_is_refused(write, match: str) -> None:  # type: ignore[no-untyped-def]
    g = Graph("g")
    s = g.state("s", (4,))
    with pytest.raises(semel.GraphError, match=match):
        write(g, s)


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_rows_are_like_their_state(columns: int) -> None:
    """Fewer columns would leave old elements beside new ones, and show them as valid."""
    g = Graph("g")
    x, s = g.input("x", ("t", columns)), g.state("s", (8, 3))
    with pytest.raises(semel.GraphError, match="must be like it along all axes but 0"):
        s.append(x)


def test_an_append_that_is_refused_leaves_no_trace() -> None:
    g = Graph("g")
    x, s = g.input("x", ("t", 3)), g.state("s", (8, 3))
    refused = [
        lambda: s.append(x, 1),
        lambda: s.append(Tensor.ones(8, 4), 1),
        lambda: s.append(Tensor.ones(9, 3)),
        lambda: semel.cond(x.sum() > 0, lambda: s.append(x).sum(), x.sum),
    ]
    for append in refused:
        with pytest.raises(semel.GraphError, match=r"append|state|update"):
            append()
    assert not g.cursors and not g.axes and s.cursor is None
    g.output("y", s.append(x) * 1)
    plan = g.prepare(dims={"t": (1, 4)})
    assert plan.states.cursors == {"cursor": 0}
    assert plan(x=np.ones((2, 3), np.float32)).shape == (2, 3)


def test_a_state_is_appended_to_itself() -> None:
    g = Graph("g")
    s = g.state("s", (4,), init=[1, 2, 3, 4])
    g.output("y", s.append(s) * 1)
    assert g.prepare()().tolist() == [1, 2, 3, 4]


def test_a_state_is_updated_outside_of_bodies() -> None:
    g = Graph("g")
    s = g.state("s", (4,))

    def body(v: Tensor) -> Tensor:
        return s.replace(v + 1)

    with pytest.raises(semel.GraphError, match="must not be updated inside the body"):
        semel.while_loop(lambda v: v.sum() < 9, body, Tensor.ones(4), max_trips=3)


def test_a_value_of_a_state_is_not_asked_for_without_a_plan() -> None:
    with pytest.raises(semel.GraphError, match="state 's'"):
        (Graph("g").state("s", (4,)) + 1).numpy()


def test_tensors_of_a_graph_find_their_buffers() -> None:
    g = Graph("found")
    x, s = g.input("x", ("t", 2)), g.state("s", (8, 2))
    half = x * 0.5
    y = g.output("y", s.append(half) + 1)
    plan = g.prepare(dims={"t": (1, 4)}, keep={"half": half}, bindings={"t": 2})
    given, result = plan.buffer(x), plan.buffer(y)
    assert given is not None and result is not None and plan.buffer(half) is not None
    given.copyin(np.ones((2, 2), np.float32))
    plan.execute()
    assert result.numpy().tolist() == [[1.5, 1.5]] * 2
    assert plan.kept["half"].numpy().tolist() == [[0.5, 0.5]] * 2
    plan.execute()
    assert result.numpy().tolist() == [[1.5, 1.5]] * 4
    with pytest.raises(semel.GraphError, match="what is kept must be computed for its outputs"):
        g.prepare(keep={"other": x + 9})


def test_as_many_rows_as_a_mask_is_true_are_appended() -> None:
    g = Graph("some")
    x, s = g.input("x", ("t",)), g.state("s", (8,))
    g.output("y", s.append(x[x > 0]) * 1)
    plan = g.prepare(dims={"t": (1, 4)})
    assert plan(x=np.array([1, -1, 2], np.float32)).tolist() == [1, 2]
    assert plan(x=np.array([-1, -2], np.float32)).tolist() == [1, 2]
    assert plan(x=np.array([3, 4, 5, 6], np.float32)).tolist() == [1, 2, 3, 4, 5, 6]
    assert plan.states.cursors == {"cursor": 6}
    with pytest.raises(semel.StateError, match="must end at or before 8"):
        plan(x=np.array([3, 4, 5, -6], np.float32))
    assert plan.states.cursors == {"cursor": 6}
    assert plan(x=np.array([7], np.float32)).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_explanations_tell_held_variables() -> None:
    text = str(attend().prepare(dims={"t": (1, 16)}).explain())
    assert "held variable cursor in [0, 32], now 0\n  after a run it is cursor + t" in text


def test_plans_travel_to_other_processes_and_begin_anew() -> None:
    plan = attend().prepare(dims={"t": (1, 16)})
    x = rows(3, 8)
    first = plan(x=x)
    plan(x=x)
    again = pickle.loads(pickle.dumps(plan))
    np.testing.assert_array_equal(again(x=x), first)


def test_the_null_device_keeps_cursors_too() -> None:
    plan = attend().prepare(dims={"t": (1, 16)}, device="null")
    plan(x=rows(3, 8))
    assert plan.states.cursors == {"cursor": 3}
    assert plan.states.read("k").shape == (3, 8)
