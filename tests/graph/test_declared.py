"""What is declared is part of the plan, whether or not anything reads it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import semel
from semel import Graph
from semel.ir.text import format_graph, parse_graph
from semel.ops.stateful import StateReference
from semel.plan.plan import ExecutionPlan


def unread() -> Graph:
    """`first` and `last` are read by nobody, `zeroed` is optimised away, in the end so is `t`."""
    g = Graph("unread")
    g.input("first", (3,), "int32")
    zeroed, x = g.input("zeroed", (2,)), g.input("x", (2,))
    g.input("last", ("t", 2), "float64")
    g.param("spare", np.ones(5, np.float32))
    w = g.param("w", np.ones(2, np.float32))
    g.state("idle", (3,), init=[1, 2, 3])
    g.output("y", x * w + zeroed.astype("int32") * 0)
    return g


def given(rows: int = 4) -> dict[str, np.ndarray]:
    return {
        "first": np.zeros(3, np.int32),
        "zeroed": np.zeros(2, np.float32),
        "x": np.array([1, 2], np.float32),
        "last": np.zeros((rows, 2)),
    }


def check(plan: ExecutionPlan) -> None:
    assert list(plan.inputs) == ["first", "zeroed", "x", "last"]
    assert list(plan.params) == ["spare", "w"]
    assert list(plan.states) == ["idle"]
    assert plan.states.read("idle").tolist() == [1, 2, 3]
    assert plan(**given()).tolist() == [1, 2]
    assert plan(**given(7)).tolist() == [1, 2]
    without = given()
    del without["last"]
    with pytest.raises(semel.InputError, match="last"):
        plan(**without)
    with pytest.raises(semel.InputError, match=r"first"):
        plan(**{**given(), "first": np.zeros(4, np.int32)})
    with pytest.raises(semel.InputError, match=r"last"):
        plan(**{**given(), "last": np.zeros((4, 3))})
    plan.set_param("spare", np.zeros(5, np.float32))
    assert plan.params["spare"].version == 1
    assert plan(**given()).tolist() == [1, 2]


def test_a_plan_has_what_nobody_reads() -> None:
    check(unread().prepare(dims={"t": (1, 8)}))


def test_so_has_a_plan_that_travelled(tmp_path: Path) -> None:
    plan = unread().prepare(dims={"t": (1, 8)})
    plan.save(tmp_path / "x.plan")
    check(semel.load_plan(tmp_path / "x.plan"))
    check(pickle.loads(pickle.dumps(plan)))
    check(plan.clone())


def test_inputs_come_in_the_order_of_their_declaration() -> None:
    g = Graph("order")
    a, b = g.input("a", (2,)), g.input("b", (2,))
    g.output("y", b - a)  # b is used first
    assert list(g.prepare().inputs) == ["a", "b"]


def test_params_are_compiled_for_other_machines_in_their_places(tmp_path: Path) -> None:
    graph = unread()
    del graph.states["idle"]  # first values of states are compiled here only
    plan = graph.prepare(dims={"t": (1, 8)})
    plan.save(tmp_path / "x.plan", targets=["x86-64-v2", "x86-64-v3"])
    assert list(semel.load_plan(tmp_path / "x.plan").params) == ["spare", "w"]


def test_the_text_says_what_is_declared() -> None:
    built = unread().build({"t": (1, 8)})
    text = format_graph(built)
    assert "declared %0 %1 %2 %3 %4 %5 %6\n" in text
    again = parse_graph(text)
    assert format_graph(again) == text
    assert [n.attrs.name for n in again.inputs] == ["first", "zeroed", "x", "last"]


def test_the_reference_wants_them_too() -> None:
    reference = StateReference(unread().build({"t": (1, 8)}))
    assert reference.run(given())[0].tolist() == [1, 2]
    with pytest.raises(semel.InputError, match="inputs must be"):
        reference.run({"x": np.ones(2, np.float32)})


def test_equal_graphs_that_declare_other_things_are_other_programs() -> None:
    def made(more: bool) -> ExecutionPlan:
        g = Graph("g")
        x = g.input("x", (2,))
        if more:
            g.input("more", (2,))
        g.output("y", x + 1)
        return g.prepare()

    assert [list(made(more).inputs) for more in (False, True, False)] == [
        ["x"],
        ["x", "more"],
        ["x"],
    ]


def test_a_leaf_of_another_graph_is_refused() -> None:
    g = Graph("g")
    g.output("y", Graph("h").input("x", (2,)) + 1)
    with pytest.raises(semel.GraphError, match="input 'x' must be declared in it"):
        g.prepare()
