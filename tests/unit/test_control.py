"""Branches, loops with a condition and loops in loops, as graphs: what is traced, and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.errors import GraphError, IndexRangeError, UnsupportedError, VariableError
from semel.ir.graph import Graph, Node, attr_bodies, make_node
from semel.ir.text import format_graph, parse_graph
from semel.ir.verify import verify_graph
from semel.ops.evaluate import evaluate
from semel.ops.guard_places import with_guards
from semel.ops.guards import guards
from semel.passes import run_passes

T = Variable("t", 0, 64)
N = Variable("n", 1, 64)
#: The package without its types: what is refused by them is refused by the code.
LOOSE: Any = semel


def value(tensor: Tensor, inputs: dict[str, Any] | None = None, **variables: int) -> Any:
    """By the references, as written and after the passes, which must agree."""
    graph = Graph((tensor.node,))
    assert verify_graph(graph) == []
    text = format_graph(graph)
    assert format_graph(parse_graph(text)) == text
    (found,) = evaluate(graph, inputs or {}, variables)
    (improved,) = evaluate(run_passes(graph, verify=True), inputs or {}, variables)
    np.testing.assert_array_equal(found, improved)
    return found


def inner_ops(node: Node) -> list[set[str]]:
    """The ops of each body."""
    return [{n.op.name for n in body.nodes} for body in attr_bodies(node.attrs)]


def flag(name: str = "p") -> Tensor:
    return Tensor.input(name, (), "bool")


# ---------------------------------------------------------------- branches


@pytest.mark.parametrize("p", [True, False])
def test_a_branch_gives_what_one_of_its_bodies_gives(p: bool) -> None:
    x = Tensor.input("x", (N,))
    y = semel.cond(flag(), lambda: x * 2, lambda: -x)
    data = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(value(y, {"p": np.array(p), "x": data}), data * (2 if p else -1))


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_branch_may_give_several_results(kind: Any) -> None:
    x = Tensor.input("x", (3,))
    got = semel.cond(flag(), lambda a: kind((a, a + 1)), lambda a: kind((a * 2, a)), x)
    assert type(got) is kind and len(got) == 2
    inputs = {"p": np.array(True), "x": np.ones(3, np.float32)}
    np.testing.assert_array_equal(value(got[1], inputs), np.full(3, 2))


def test_what_a_branch_makes_stays_in_it() -> None:
    x, i = Tensor.input("x", (N,)), Tensor.input("i", (2,), "int64")
    y = semel.cond(flag(), lambda: x[i].exp() + 0, lambda: x[:1].sum() + semel.zeros(2))
    then, orelse = inner_ops(y.node)
    assert {"check_index", "gather", "exp"} <= then and "reduce_sum" in orelse
    assert [n.op.name for n in y.node.inputs] == ["input"] * 3


def test_what_was_made_before_is_captured_and_an_equal_value_made_inside_is_not() -> None:
    x = Tensor.input("x", (3,))
    before = x.exp()
    y = semel.cond(flag(), lambda: before + 1, lambda: x.exp() - 1)
    assert before.node in y.node.inputs
    then, orelse = inner_ops(y.node)
    assert "exp" not in then and "exp" in orelse


def test_the_same_branch_written_twice_is_the_same_node() -> None:
    x = Tensor.input("x", (3,))
    one, two = (semel.cond(flag(), x.exp, x.sin) for _ in range(2))
    assert one.node is two.node


def test_what_leaves_a_branch_by_the_back_door_is_computed_where_it_is_used() -> None:
    x, kept = Tensor.input("x", (3,)), []

    def then() -> Tensor:
        kept.append(x.exp())
        return kept[0] * 2

    y = semel.cond(flag(), then, lambda: x)
    plan_input = kept[0] + x.exp() + y.sum() * 0
    data = np.ones(3, np.float32)
    got = evaluate(Graph((plan_input.node,)), {"x": data, "p": np.array(False)})[0]
    np.testing.assert_allclose(got, 2 * np.exp(data), rtol=1e-6)


def test_a_branch_that_is_decided_is_no_branch() -> None:
    x = Tensor.input("x", (3,))
    for p in (True, False):
        y = semel.cond(p, lambda: x * 2, lambda: x * 3)
        graph = run_passes(Graph((y.node,)), verify=True)
        assert "cond" not in {n.op.name for n in graph.nodes}
        data = np.ones(3, np.float32)
        np.testing.assert_array_equal(value(y, {"x": data}), data * (2 if p else 3))


def test_the_branch_that_is_not_taken_cannot_fail() -> None:
    x, i = Tensor.input("x", (3,)), Tensor.input("i", (2,), "int64")
    y = semel.cond(flag(), lambda: x[i], lambda: x[:2])
    inputs = {"x": np.arange(3, dtype=np.float32), "i": np.array([0, 7])}
    np.testing.assert_array_equal(value(y, {**inputs, "p": np.array(False)}), [0, 1])
    with pytest.raises(IndexRangeError, match="got 7"):
        value(y, {**inputs, "p": np.array(True)})


def test_what_a_body_demands_is_demanded_where_it_runs() -> None:
    x = Tensor.input("x", (N,))
    y = semel.cond(flag(), lambda: x.reshape(N // 4, 4).sum(), x.sum)
    graph = with_guards(Graph((y.node,)))
    assert guards(graph) == graph.guards == ()
    then, orelse = attr_bodies(graph.outputs[0].attrs)
    assert [str(amount) for amount, _ in then.guards] == ["n - 4*(n // 4)"] and not orelse.guards
    text = format_graph(graph)
    assert 'guard n - 4*((n)//(4)) "reshape: the number' in text
    assert format_graph(parse_graph(text)) == text
    data = np.ones(7, np.float32)
    assert value(y, {"p": np.array(False), "x": data}) == 7
    with pytest.raises(VariableError, match=r"the number of elements .*Found n=7"):
        value(y, {"p": np.array(True), "x": data})


@pytest.mark.parametrize(("trip", "factor"), [(3, ""), (T, "*min(t, 1)")])
def test_what_iterations_demand_is_demanded_once_if_there_is_one(trip: Any, factor: str) -> None:
    x = Tensor.input("x", (N,))

    def body(s: Any, h: Any) -> Any:
        return [h[0] + (x * h[0]).reshape(N // 4, 4).sum()], []

    (y,), _ = Tensor.loop(trip, [Tensor(0.0)], body)
    graph = with_guards(Graph((y.node,)))
    amounts = [str(amount) for amount, text in graph.guards if "reshape" in text]
    assert amounts == ([f"n{factor} - 4*(n // 4){factor}"] if factor else ["n - 4*(n // 4)"])
    assert not next(attr_bodies(graph.outputs[0].attrs)).guards
    if trip is T:
        assert value(y, {"x": np.ones(7, np.float32)}, t=0) == 0
    with pytest.raises(VariableError, match="the number of elements"):
        value(y, {"x": np.ones(7, np.float32)}, **({"t": 2} if trip is T else {}))


def test_what_a_conditional_loop_demands_stays_in_it() -> None:
    x = Tensor.input("x", (N,))
    y = semel.while_loop(lambda h: h < 5, lambda h: h + x.reshape(N // 4, 4).sum(), Tensor(0.0))
    graph = with_guards(Graph((y.node,)))
    assert graph.guards == () and len(next(attr_bodies(graph.outputs[0].attrs)).guards) == 1
    with pytest.raises(VariableError, match="reshape"):
        value(y, {"x": np.ones(7, np.float32)})
    z = semel.while_loop(lambda h: h < 5, lambda h: h + x.reshape(N // 4, 4).sum(), x.sum())
    assert value(z, {"x": np.ones(7, np.float32)}) == 7


def test_what_a_decided_branch_demands_is_demanded_around_it() -> None:
    x = Tensor.input("x", (N,))
    y = semel.cond(True, lambda: x.reshape(N // 4, 4).sum(), x.sum)
    graph = run_passes(with_guards(Graph((y.node,))), verify=True)
    assert "cond" not in {n.op.name for n in graph.nodes}
    assert [str(amount) for amount, _ in graph.guards] == ["n - 4*(n // 4)"]


# ---------------------------------------------------------------- late sizes


def positive(x: Tensor) -> Tensor:
    return x[x > 0]


def test_a_body_may_make_late_sizes() -> None:
    x = Tensor.input("x", (N,))
    y = semel.cond(flag(), lambda: positive(x).sum(), lambda: positive(-x).sum())
    data = np.array([1, -2, 3], np.float32)
    assert value(y, {"p": np.array(True), "x": data}) == 4
    assert value(y, {"p": np.array(False), "x": data}) == 2
    then, orelse = attr_bodies(y.node.attrs)
    assert [v.name for v in then.late] == [v.name for v in orelse.late] == ["_late0_0"]
    assert not Graph((y.node,)).late and [v.name for v in Graph((y.node,)).variables] == ["n"]
    again = semel.cond(flag(), lambda: positive(x).sum(), lambda: positive(-x).sum())
    assert again.node is y.node


def test_late_sizes_of_nested_bodies_have_names_of_their_own() -> None:
    """Both bodies select from their operand 1 by equal masks: by node they would be one size."""
    x, z = Tensor.input("x", (N,)), Tensor.input("z", (N,))

    def then() -> Tensor:
        a = positive(x)
        either: Tensor = semel.cond(a.sum() > 2, lambda: positive(z).sum() + a.sum(), a.sum)
        return either

    y = semel.cond(flag(), then, x.sum)
    inputs = {"p": np.array(True), "x": np.array([1, 2, -3], np.float32)}
    assert value(y, {**inputs, "z": np.array([5, -1, -1], np.float32)}) == 8


def test_an_iteration_selects_by_its_state() -> None:
    x = Tensor.input("x", (N,))
    _, (sums,) = Tensor.loop(
        3, [Tensor(0.0)], lambda s, h: ([h[0] + 1], [x[x > h[0]].sum() + x[x > 1].sum()])
    )
    data = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(value(sums, {"x": data}), [6 + 5, 5 + 5, 3 + 5])
    (body,) = attr_bodies(sums.node.attrs)
    assert len(body.late) == 1  # what no iteration changes is found out once, outside


def test_sizes_alone_may_be_used_in_a_body() -> None:
    x = Tensor.input("x", (N,))
    y = semel.cond(flag(), lambda: semel.ones(positive(x).shape).sum(), lambda: 0.0)
    data = np.array([1, -2, 3], np.float32)
    assert value(y, {"p": np.array(True), "x": data}) == 2


def test_a_decided_branch_gives_its_sizes_to_what_is_around_it() -> None:
    x = Tensor.input("x", (N,))
    arms = [lambda: positive(x).sum(), lambda: positive(-x).sum() * positive(x).sum()]
    y = sum((semel.cond(True, arm, x.sum) for arm in arms), Tensor(0.0))
    graph = run_passes(with_guards(Graph((y.node,))), verify=True)
    assert "cond" not in {n.op.name for n in graph.nodes}
    assert len({v.name for v in graph.late}) == len(graph.late) == 3
    assert value(y, {"x": np.array([1, -2, 3], np.float32)}) == 4 + 8


@pytest.mark.parametrize(
    "make",
    [
        lambda x: semel.cond(flag(), lambda: positive(x), lambda: positive(x)),
        lambda x: Tensor.loop(3, [x], lambda s, h: ([h[0] * 2], [positive(h[0])])),
    ],
)
def test_what_a_body_gives_has_a_shape_that_is_known_before(make: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"must have a shape that is known before it runs"):
        make(Tensor.input("x", (N,)))


def test_sizes_that_must_agree_in_a_body_are_checked_there() -> None:
    x, z = Tensor.input("x", (N,)), Tensor.input("z", (N,))
    y = semel.cond(flag(), lambda: (positive(x) + positive(z)).sum() * 2, x.sum)
    data = {"x": np.array([1, 2, -3], np.float32), "z": np.array([5, 1, 1], np.float32)}
    assert value(y, {**data, "p": np.array(False)}) == 0
    with pytest.raises(VariableError, match=r"dim 0 must be 1.* Found _late0_0=2"):
        value(y, {**data, "p": np.array(True)})


def test_names_of_bodies_are_refused_for_variables() -> None:
    n = Variable("_late0_0", 1, 4)
    x = Tensor.input("x", (n,))
    with pytest.raises(GraphError, match="'_late0_0' is a name that bodies need"):
        semel.cond(flag(), lambda: x.sum() + 1, lambda: 0.0)


@pytest.mark.parametrize(
    ("predicate", "then", "orelse", "message"),
    [
        (Tensor([True, False]), lambda: 1.0, lambda: 2.0, "the predicate must be one bool"),
        (Tensor(1.0), lambda: 1.0, lambda: 2.0, r"must be one bool, got f32\[\]"),
        (True, lambda: Tensor(1.0), lambda: Tensor(2), r"same types, got f32\[\] and i64\[\]"),
        (True, lambda: Tensor([1.0]), lambda: 2.0, "must give the same types"),
        (True, lambda: (1.0, 2.0), lambda: 2.0, "got a tuple of 2 and a tensor"),
        (True, lambda: (1.0, 2.0), lambda: [1.0, 2.0], "got a tuple of 2 and a list of 2"),
        (True, lambda: (), lambda: (), "must return a tensor"),
        (True, lambda: ((1.0,),), lambda: ((1.0,),), "a tuple or list of tensors"),
    ],
)
def test_a_branch_that_makes_no_sense_is_refused(
    predicate: Any, then: Any, orelse: Any, message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        semel.cond(predicate, then, orelse)


def test_a_predicate_of_one_element_may_have_any_rank() -> None:
    y = semel.cond(Tensor.input("p", (1, 1), "bool"), lambda: 1.0, lambda: 2.0)
    assert value(y, {"p": np.array([[True]])}) == 1


# ---------------------------------------------------------------- loops with a condition


def doubled_until(limit: float, **options: Any) -> Tensor:
    x = Tensor.input("x", ())
    result: Tensor = semel.while_loop(lambda h: h < limit, lambda h: h * 2, x, **options)
    return result


@pytest.mark.parametrize(("start", "last"), [(1, 128), (64, 128), (100, 100), (200, 200)])
def test_a_loop_goes_on_while_its_condition_holds(start: float, last: float) -> None:
    assert value(doubled_until(100), {"x": np.float32(start)}) == last


@pytest.mark.parametrize(("trips", "last"), [(0, 1), (1, 2), (3, 8), (7, 128), (50, 128)])
def test_a_loop_ends_after_max_trips(trips: int, last: float) -> None:
    assert value(doubled_until(100, max_trips=trips), {"x": np.float32(1)}) == last
    assert value(doubled_until(100, max_trips=T), {"x": np.float32(1)}, t=trips) == last


@pytest.mark.parametrize("kind", [tuple, list])
def test_states_come_back_as_they_were_given(kind: Any) -> None:
    seen: list[type] = []

    def body(states: Any) -> Any:
        seen.append(type(states))
        a, b = states
        return b, a + 1

    got = semel.while_loop(lambda s: s[0] < 5, body, kind((Tensor(0), 7)))
    assert type(got) is kind and seen == [kind]
    assert value(got[0]) == 7 and value(got[1]) == 1


def test_a_python_number_takes_the_dtype_of_its_state() -> None:
    h = semel.while_loop(lambda h: h < 1, lambda h: 2, Tensor(0.0))
    assert h.dtype == semel.float32 and value(h) == 2


def test_a_loop_counts_its_iterations() -> None:
    loop = doubled_until(100).node
    count = make_node("loop", loop.inputs, replace(loop.attrs, output=1))
    assert evaluate(Graph((count,)), {"x": np.float32(1)})[0] == 7


def test_what_may_fail_is_not_asked_after_the_last_iteration() -> None:
    x = Tensor.input("x", (4,))
    found = semel.while_loop(lambda i: x[i] > 0, lambda i: i + 1, Tensor(0), max_trips=4)
    assert value(found, {"x": np.ones(4, np.float32)}) == 4
    assert value(found, {"x": np.array([1, 1, 0, 1], np.float32)}) == 2
    unlimited = semel.while_loop(lambda i: x[i] > 0, lambda i: i + 1, Tensor(0))
    with pytest.raises(IndexRangeError, match="got 4"):
        value(unlimited, {"x": np.ones(4, np.float32)})


def test_what_may_fail_is_not_asked_before_a_loop_of_no_iterations() -> None:
    x, i = Tensor.input("x", (4,)), Tensor.input("i", (), "int64")
    h = semel.while_loop(lambda h: x[i] > h, lambda h: h + x[i], Tensor(0.0), max_trips=T)
    inputs = {"x": np.ones(4, np.float32), "i": np.array(9)}
    assert value(h, inputs, t=0) == 0
    with pytest.raises(IndexRangeError, match="got 9"):
        value(h, inputs, t=1)


@pytest.mark.parametrize(
    ("cond", "body", "init", "message"),
    [
        (lambda h: h, lambda h: h, Tensor(0.0), r"what cond returns must be one bool, got f32\[\]"),
        (lambda h: h > 0, lambda h: h > 0, Tensor([1.0]), "must keep its type"),
        (lambda h: h > 0, lambda h: h, Tensor([1.0, 2.0]), "must be one bool"),
        (lambda h: h > 0, lambda h: h.cast("float64"), Tensor(0.0), "must keep its type"),
        (lambda h: h > 0, lambda h: (h, h), Tensor(0.0), "must return 1 states, got 2"),
        (lambda h: h[0] > 0, lambda h: h, (), "needs a state"),
        (lambda h: True, lambda h: h, [[1.0, 2.0]], "init must be a tensor, or a tuple or list"),
    ],
)
def test_a_loop_that_makes_no_sense_is_refused(
    cond: Any, body: Any, init: Any, message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        semel.while_loop(cond, body, init)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LOOSE.while_loop(lambda i, s: i < 3, lambda s: s, (Tensor(0), Tensor(1.0))),
            r"\[while_loop\] cond must be a function that is called as cond\(states\), got missing "
            r"a required argument: 's'\. Both functions are given what init is, .* a, b = states",
        ),
        (
            lambda: LOOSE.while_loop(lambda s: s[0] < 3, lambda i, s: s, (Tensor(0), Tensor(1.0))),
            r"\[while_loop\] body must be a function that is called as body\(states\)",
        ),
        (
            lambda: LOOSE.while_loop(lambda s: s < 3, Tensor(1.0), Tensor(0)),
            r"\[while_loop\] body must be a function, got Tensor",
        ),
        (
            lambda: LOOSE.cond(True, Tensor(1.0), Tensor(2.0)),
            r"\[cond\] then must be a function, got Tensor\. Write lambda: x",
        ),
        (
            lambda: LOOSE.cond(True, lambda: 1.0, 2.0),
            r"\[cond\] orelse must be a function, got float",
        ),
        (
            lambda: LOOSE.cond(True, lambda: 1.0, lambda x: x),
            r"orelse must be a function that is called as orelse\(\), got missing a required",
        ),
        (
            lambda: LOOSE.cond(True, lambda x: x, lambda: 1.0, Tensor(1.0)),
            r"orelse must be a function that is called as orelse\(operand0\), got too many",
        ),
        (
            lambda: LOOSE.Tensor.loop(2, [Tensor(0)], lambda h: (h, [])),
            r"\[loop\] body must be a function that is called as body\(step, states\), got too",
        ),
        (
            lambda: LOOSE.Tensor.loop(2, Tensor([0.0, 1.0]), lambda k, h: (h, [])),
            r"\[loop\] states must be a sequence of tensors, got f32\[2\]",
        ),
        (lambda: doubled_until(3, max_trips=-1), r"\[while_loop\] max_trips must be >= 0, got -1"),
        (
            lambda: LOOSE.Tensor.loop(-2, [Tensor(0)], lambda k, h: (h, [])),
            r"\[loop\] trip must be >= 0",
        ),
    ],
)
def test_functions_that_cannot_be_called_so_are_refused(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        make()


def test_an_error_inside_of_a_function_is_the_functions_own() -> None:
    def body(states: Any) -> Any:
        return int("no number")

    with pytest.raises(ValueError, match="no number"):
        semel.while_loop(lambda s: s < 3, body, Tensor(0))


@pytest.mark.parametrize("trips", [1.5, "3", True])
def test_max_trips_must_be_a_dim(trips: Any) -> None:
    with pytest.raises(GraphError, match="max_trips must"):
        doubled_until(3, max_trips=trips)


# ---------------------------------------------------------------- bodies in bodies


def test_both_steps_may_be_used_inside() -> None:
    x = Tensor.input("x", (T, 4))

    def outer(s: Any, h: Any) -> Any:
        (row,), _ = Tensor.loop(4, [h[0]], lambda i, g: ([g[0] + x[s, i] * (10 * s + i)], []))
        return [row], []

    (last,), _ = Tensor.loop(T, [Tensor(0.0)], outer)
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    want = (data * (10 * np.arange(3)[:, None] + np.arange(4))).sum()
    assert value(last, {"x": data}) == want


def test_an_inner_trip_may_depend_on_the_outer_step() -> None:
    def outer(s: Any, h: Any) -> Any:
        return [Tensor.loop(s, [h[0]], lambda i, g: ([g[0] + i + 1], []))[0][0]], []

    (last,), _ = Tensor.loop(T, [Tensor(0)], outer)
    assert value(last, t=5) == sum(i + 1 for s in range(5) for i in range(s))


def test_a_stacked_result_must_not_depend_on_a_step_around() -> None:
    def outer(s: Any, h: Any) -> Any:
        _, (rows,) = Tensor.loop(s, [], lambda i, g: ([], [Tensor(1.0)]))
        return [h[0] + rows.sum()], []

    with pytest.raises(GraphError, match="must not depend on the step"):
        Tensor.loop(T, [Tensor(0.0)], outer)


def test_three_loops_in_each_other_have_three_steps() -> None:
    def nest(levels: int, h: Tensor, term: Callable[[list[Any]], Any], steps: list[Any]) -> Tensor:
        if not levels:
            return h + term(steps)
        (last,), _ = Tensor.loop(
            3, [h], lambda s, g: ([nest(levels - 1, g[0], term, [*steps, s])], [])
        )
        return last

    total = nest(3, Tensor(0), lambda s: 100 * s[0] + 10 * s[1] + s[2], [])
    want = sum(100 * a + 10 * b + c for a in range(3) for b in range(3) for c in range(3))
    assert value(total) == want
    assert total.node.attrs.level == 2


def test_the_same_nested_loop_written_twice_is_the_same_node() -> None:
    def make() -> Tensor:
        x = Tensor.input("x", (T, 3))

        def outer(s: Any, h: Any) -> Any:
            g = semel.while_loop(lambda g: g.sum() < 9, lambda g: g + x[s], h[0], max_trips=3)
            return [semel.cond(g[0] > s, lambda: g, lambda: h[0])], []

        return Tensor.loop(T, [Tensor.zeros(3)], outer)[0][0]

    assert make().node is make().node


def test_a_step_may_be_used_in_a_branch_of_its_body() -> None:
    x = Tensor.input("x", (T,))

    def body(s: Any, h: Any) -> Any:
        return [semel.cond(x[s] > 0, lambda: h[0] + x[s], lambda: h[0] * s)], []

    (last,), _ = Tensor.loop(T, [Tensor(0.0)], body)
    data, want = np.array([1, 2, -1, 4, -7], np.float32), 0.0
    for s, x_s in enumerate(data):
        want = want + x_s if x_s > 0 else want * s
    assert value(last, {"x": data}) == want


def test_what_no_iteration_changes_leaves_a_loop_but_no_branch() -> None:
    x, w = Tensor.input("x", (3,)), Tensor.input("w", (3,))

    def body(s: Any, h: Any) -> Any:
        return [semel.cond(h[0][0] > 0, lambda: h[0] + w.exp(), lambda: h[0] - w.sin())], []

    (last,), _ = Tensor.loop(4, [x], body)
    graph = Graph((last.node,))
    assert {"exp", "sin"}.isdisjoint(n.op.name for n in graph.nodes)
    (loop,) = [n for n in graph.nodes if n.op.name == "loop"]
    (branch,) = [n for n in loop.attrs.body.nodes if n.op.name == "cond"]
    assert {"exp", "sin"} <= set().union(*inner_ops(branch))


@pytest.mark.parametrize(("trip", "is_inside"), [(T, True), (T + 1, False), (4, False)])
def test_a_check_leaves_a_loop_that_surely_runs_only(trip: Any, is_inside: bool) -> None:
    x, i = Tensor.input("x", (3,)), Tensor.input("i", (2,), "int64")
    (last,), _ = Tensor.loop(trip, [Tensor.zeros(2)], lambda s, h: ([h[0] + x[i]], []))
    assert ("check_index" in inner_ops(last.node)[0]) == is_inside


def test_a_check_in_a_loop_of_no_iterations_does_not_fail() -> None:
    x, i = Tensor.input("x", (3,)), Tensor.input("i", (2,), "int64")
    (last,), _ = Tensor.loop(T, [Tensor.zeros(2)], lambda s, h: ([h[0] + x[i]], []))
    inputs = {"x": np.zeros(3, np.float32), "i": np.array([0, 9])}
    np.testing.assert_array_equal(value(last, inputs, t=0), [0, 0])
    with pytest.raises(IndexRangeError, match="got 9"):
        value(last, inputs, t=1)


def test_a_state_of_a_loop_around_may_not_leave_a_branch() -> None:
    kept = []

    def body(s: Any, h: Any) -> Any:
        def then() -> Tensor:
            kept.append(h[0] * 3)
            return kept[-1]

        return [semel.cond(h[0] > 0, then, lambda: h[0])], []

    Tensor.loop(3, [Tensor(1.0)], body)
    with pytest.raises(GraphError, match="must not leave the body"):
        kept[0].prepare()


# ---------------------------------------------------------------- states


def test_states_that_no_iteration_changes_are_no_states_after_the_passes() -> None:
    x = Tensor.input("x", (3,))

    def body(s: Any, h: Any) -> Any:
        a, b, c = h
        return [a + b, b, c * 1], [b]

    finals, (rows,) = Tensor.loop(T, [x, x * 2, x * 3], body)
    graph = run_passes(Graph((finals[0].node, finals[1].node, finals[2].node, rows.node)))
    loops = [n for n in graph.nodes if n.op.name == "loop"]
    assert {n.attrs.num_states for n in loops} == {1}
    data = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(value(finals[0], {"x": data}, t=3), 7 * data)
    np.testing.assert_array_equal(value(finals[1], {"x": data}, t=3), 2 * data)
    np.testing.assert_array_equal(value(rows, {"x": data}, t=2), [2 * data, 2 * data])


def test_a_loop_whose_condition_never_holds_is_no_loop() -> None:
    x = Tensor.input("x", (3,))
    h = semel.while_loop(lambda h: False, lambda h: h * 2, x)
    assert run_passes(Graph((h.node,))).outputs == (x.node,)


# ---------------------------------------------------------------- writing by index


def test_a_body_may_write_to_its_states_and_to_what_it_made() -> None:
    x = Tensor.input("x", (4,))

    def body(s: Any, h: Any) -> Any:
        made = semel.zeros(4)
        made[s] = 1.0
        h[0][s] = x[s] * 2
        return [h[0] + made], []

    (last,), _ = Tensor.loop(4, [semel.zeros(4)], body)
    data = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(value(last, {"x": data}), data * 2 + 1)


def test_a_body_must_not_write_to_what_is_outside() -> None:
    x = Tensor.input("x", (4,))

    def write() -> Tensor:
        x[0] = 1.0
        return x

    before = x.node
    with pytest.raises(GraphError, match="must not write to a tensor from outside"):
        semel.cond(flag(), write, lambda: x)
    with pytest.raises(GraphError, match="must not write to a tensor from outside"):
        Tensor.loop(3, [x], lambda s, h: ([write()], []))
    assert x.node is before
    x[0] = 1.0
    assert x.node is not before
