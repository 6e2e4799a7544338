"""Sizes that a run finds out: what they are called, where they come from, what is checked."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest

import semel
from semel import GraphError, Tensor, Variable, VariableError
from semel.ir.expr import LateVariable
from semel.ir.form import graph_form
from semel.ir.graph import Graph
from semel.ir.late import with_counts
from semel.ir.text import format_graph, parse_graph
from semel.ir.verify import verify_graph
from semel.ops import late
from semel.ops.evaluate import evaluate

N = Variable("n", 0, 50)
DATA = np.array([3, -1, 0, 4, -1, 5, -9, 2, 6, -5])


def x() -> Tensor:
    return Tensor.input("x", (N,), "int64")


def graph_of(*tensors: Tensor) -> Graph:
    return Graph(tuple(t.node for t in tensors))


def test_one_mask_is_one_size_and_two_are_two() -> None:
    mask = x() > 0
    assert x()[mask].shape == (x() * 2)[x() > 0].shape
    assert x()[mask].node is x()[x() > 0].node
    assert x()[mask].shape != x()[x() > 1].shape


def test_names_go_by_place_so_that_equal_graphs_have_equal_text() -> None:
    texts, forms = [], []
    for _ in range(2):
        first, second = x()[x() > 0], x()[x() < 3]
        graph, became = with_counts(graph_of(first.sum(), second, first * 2))
        assert [v.name for v in graph.late] == ["late0", "late1"]
        assert became[second.node] is graph.results[1][1]
        assert verify_graph(graph) == []
        texts.append(format_graph(graph))
        forms.append(graph_form(graph).key)
        del first, second, graph, became
        gc.collect()
    assert texts[0] == texts[1] and forms[0] == forms[1]
    assert parse_graph(texts[0]) == parse_graph(texts[1])
    assert format_graph(parse_graph(texts[0])) == texts[0]


def test_a_name_that_is_taken_is_left_alone() -> None:
    taken = Tensor.input("y", (Variable("late0", 0, 9),), "int64")
    graph, _ = with_counts(Graph((x()[x() > 0].node, taken.node), ("late1", "y")))
    assert [v.name for v in graph.late] == ["late2"]


def test_what_has_been_told_is_told_once() -> None:
    graph, _ = with_counts(graph_of(x()[x() > 0]))
    assert with_counts(graph) == (graph, {})
    plain = graph_of(x() + 1)
    assert with_counts(plain)[0] is plain


def test_a_size_is_told_before_what_has_it_whatever_the_operands() -> None:
    ones = Tensor.ones(*x()[x() > 0].shape)
    gc.collect()
    (got,) = evaluate(graph_of(ones), {"x": DATA})
    np.testing.assert_array_equal(got, np.ones((DATA > 0).sum(), np.float32))


def test_a_size_that_nobody_can_tell_is_an_error() -> None:
    selected = x()[x() > 0]
    size = selected.shape[0]
    evaluate(graph_of(selected), {"x": DATA})
    del selected
    gc.collect()
    with pytest.raises(GraphError, match="must be the size of a tensor that somebody holds"):
        Tensor.ones(size).prepare()


def test_sizes_hold_nothing_of_the_graph_alive() -> None:
    data = Tensor(np.ones(1000)) * 2
    mask = data > 0
    kept: Any = data[mask].shape
    gone = ref(mask.node)
    evaluate(graph_of(data[mask]), {})
    del data, mask
    gc.collect()
    assert gone() is None and isinstance(kept[0], LateVariable)


def test_its_limit_is_what_is_masked() -> None:
    (size,) = x()[x() > 0].shape
    assert isinstance(size, LateVariable)
    assert (size.min, size.max, size.limit) == (0, 50, N)
    unbounded = Tensor.input("u", (Variable("m", 0), 3), "bool")
    (size,) = unbounded.nonzero()[0].shape
    assert isinstance(size, LateVariable) and size.max is None
    inner = x()[x() > 0]
    (size,) = inner[inner > 1].shape
    assert isinstance(size, LateVariable) and size.limit == inner.shape[0]


def test_a_mask_is_two_nodes_until_it_is_compiled() -> None:
    mask = x() > 0
    picked, where = x()[mask].node, mask.nonzero()[0].node
    assert picked.op.name == "select" and where.op.name == "positions"
    assert picked.inputs[2] is where.inputs[1] and where.inputs[1].inputs == (mask.node,)
    graph, became = with_counts(Graph((picked, where)))
    assert not any(n.op.made_of for n in graph.nodes)
    assert became[picked].op.name == "gather" and became[where].op.name == "compact"
    assert became[picked].inputs[1] is became[where]
    assert became[picked].origins == picked.origins


@pytest.mark.parametrize("is_on", [True, False])
def test_a_mask_inside_a_branch_that_is_decided(is_on: bool) -> None:
    a = x()
    sums = (lambda: a[a > 0].sum() * 1), (lambda: a[a < 0].sum() * 1)
    found = semel.cond(Tensor(is_on), *sums)
    assert found.prepare()(x=DATA) == (DATA[DATA > 0] if is_on else DATA[DATA < 0]).sum()


@pytest.mark.parametrize("tile", [3, 4096])
def test_the_reference_agrees_with_numpy(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(late, "TILE", tile)
    a, d = x(), DATA
    pairs: list[tuple[Tensor, Any]] = [
        (a[a > 0], d[d > 0]),
        (a[a > 0] + a[a > 0], 2 * d[d > 0]),
        (a.nonzero()[0], np.nonzero(d)[0]),
        (a.masked_select(a.reshape(-1, 1) > 0), np.broadcast_to(d, (10, 10))[d > 0].ravel()),
        (a[a > 0].cumsum(), d[d > 0].cumsum()),
        (Tensor.concat([a[a > 0], a[:2], a[a < 0]]), np.concatenate([d[d > 0], d[:2], d[d < 0]])),
        (a[a > 0].cast("float64").mean(), d[d > 0].mean()),
        (a[a > 0].reshape(-1, 1) @ a[a < 0].reshape(1, -1), np.outer(d[d > 0], d[d < 0])),
    ]  # fmt: skip
    got = evaluate(graph_of(*(t for t, _ in pairs)), {"x": d})
    for one, (_, want) in zip(got, pairs, strict=True):
        np.testing.assert_array_equal(one, want)


def test_masks_beside_other_keys() -> None:
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    a = Tensor.input("a", (3, 4, 5))
    rows = np.array([True, False, True])
    plane = values[:, :, 0] % 3 == 0
    r, p = Tensor.input("r", (3,), "bool"), Tensor.input("p", (3, 4), "bool")
    keys: list[tuple[Any, Any]] = [
        (r, rows),
        (p, plane),
        ((r, 1), (rows, 1)),
        ((r, slice(None), 2), (rows, slice(None), 2)),
        ((p, slice(1, 4)), (plane, slice(1, 4))),
        ((p, [4]), (plane, [4])),
        ((..., None, r[:1].expand(5)), (..., None, np.repeat(rows[:1], 5))),
        ((None, r), (None, rows)),
        ((r, 2, ...), (rows, 2, ...)),
    ]
    got = evaluate(graph_of(*(a[key] for key, _ in keys)), {"a": values, "r": rows, "p": plane})
    for one, (_, key) in zip(got, keys, strict=True):
        np.testing.assert_array_equal(one, values[key])


def test_assignment_by_a_mask_takes_one_value_for_each_true_element() -> None:
    a = Tensor.input("a", (3, 4))
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    wanted = values.copy()
    wanted[values > 5] = np.arange(6)
    b = Tensor(a)
    b[a > 5] = Tensor.input("v", (6,))
    (got,) = evaluate(graph_of(b), {"a": values, "v": np.arange(6, dtype=np.float32)})
    np.testing.assert_array_equal(got, wanted)
    c = Tensor(a)
    c[a[:, 0] > 3, 1] = -1.0
    wanted = values.copy()
    wanted[values[:, 0] > 3, 1] = -1
    np.testing.assert_array_equal(evaluate(graph_of(c), {"a": values})[0], wanted)
    added = a.index_put((a > 5,), 1.0, accumulate=True)
    np.testing.assert_array_equal(
        evaluate(graph_of(added), {"a": values})[0], values + (values > 5)
    )


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "float64"])
def test_unique(dtype: str) -> None:
    rng = np.random.default_rng(0)
    flat = rng.integers(0, 9, 24)
    a = Tensor.input("a", (4, 6), dtype)
    values = flat.astype(a.dtype.numpy).reshape(4, 6)
    if dtype == "float64":
        values[1, :3] = np.nan
        values[0, 0] = -0.0
    results = a.unique(return_index=True, return_inverse=True, return_counts=True)
    got = evaluate(graph_of(*results), {"a": values})
    want = np.unique(values.astype(np.float64), True, True, True)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one.astype(np.float64), other)
    assert got[2].shape == (4, 6)


def test_unique_of_nothing() -> None:
    results = x().unique(True, True, True)
    got = evaluate(graph_of(*results), {"x": np.zeros(0, np.int64)})
    assert [g.shape for g in got] == [(0,)] * 4


def test_sizes_that_must_agree_are_checked_when_they_are_known() -> None:
    total = x()[x() > 0] + x()[x() < 0]
    (got,) = evaluate(graph_of(total), {"x": np.array([1, -1])})
    np.testing.assert_array_equal(got, [0])
    (got,) = evaluate(graph_of(total), {"x": np.array([1, -1, -1])})
    np.testing.assert_array_equal(got, [0, 0])
    with pytest.raises(VariableError, match=r"dim 0 must be 1.* Found late0=2, late1=3"):
        evaluate(graph_of(total), {"x": np.array([1, -1, -1, 1, -1])})
    with pytest.raises(VariableError, match="cannot reduce no elements"):
        evaluate(graph_of(x()[x() > 0].max()), {"x": np.array([-1])})


def test_a_body_may_have_sizes_of_what_is_around_it() -> None:
    a = x()[x() > 0]
    (last,), _ = Tensor.loop(3, [a], lambda s, h: ([h[0] + a], []))
    (got,) = evaluate(graph_of(last), {"x": DATA})
    np.testing.assert_array_equal(got, 4 * DATA[DATA > 0])


def test_an_assignment_of_the_wrong_number_of_values() -> None:
    a = x()
    a[x() > 0] = Tensor.input("v", (Variable("m", 0, 9),), "int64")
    with pytest.raises(VariableError, match=r"^\[setitem\] dim 0 must be 1 or late0"):
        evaluate(graph_of(a), {"x": DATA, "v": np.zeros(2, np.int64)})


def test_forms_with_the_same_counts_of_other_graphs_differ() -> None:
    one, _ = with_counts(graph_of(x()[x() > 0].sum()))
    other, _ = with_counts(graph_of(x()[x() > 1].sum()))
    assert semel.ir.form.graph_form(one).key != graph_form(other).key


def test_functions_take_arrays() -> None:
    data = np.array([[0, 2], [2, 5]])
    for got, want in zip(semel.nonzero(data), np.nonzero(data), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(semel.argwhere(data).numpy(), np.argwhere(data))
    np.testing.assert_array_equal(semel.masked_select(data, data > 1).numpy(), [2, 2, 5])
    values, counts = semel.unique(data, return_counts=True)
    assert (values.tolist(), counts.tolist()) == ([0, 2, 5], [1, 2, 1])
