"""Symbolic numbers as operands: any value is a value, negative ones too."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.errors import GraphError
from semel.ir.expr import floordiv, maximum, minimum, mod
from semel.ir.graph import Graph
from semel.ir.text import format_graph, parse_graph
from semel.ops.guards import guards

S, T = Variable("s", 1, 40), Variable("t", 0, 40)

NUMBERS: dict[str, tuple[Any, Callable[[int, int], int]]] = {
    "difference": (T - S, lambda s, t: t - s),
    "negative": (-S - 1, lambda s, t: -s - 1),
    "quotient": (floordiv(T - S, 4), lambda s, t: (t - s) // 4),
    "remainder": (mod(T - S, 5), lambda s, t: (t - s) % 5),
    "product": ((T - S) * (S - 9), lambda s, t: (t - s) * (s - 9)),
    "least": (minimum(T - S, -3), lambda s, t: min(t - s, -3)),
    "most": (maximum(T - S, -3), lambda s, t: max(t - s, -3)),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", ["int64", "int16", "float32"])
def test_a_number_of_either_sign_is_added(name: str, dtype: str) -> None:
    number, value = NUMBERS[name]
    x = Tensor.input("x", (S,), dtype)
    y = Tensor.input("y", (T,), dtype)
    result = semel.prepare([x + number, (y * number).sum()], threads=1)
    for s, t in ((3, 20), (20, 3), (7, 7), (1, 0), (40, 40)):
        a, b = (np.arange(n, dtype=dtype) for n in (s, t))
        added, summed = result(x=a, y=b)
        np.testing.assert_array_equal(added, a + np.array(value(s, t), dtype))
        np.testing.assert_array_equal(summed, (b * np.array(value(s, t), dtype)).sum())


REFLECTED: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
REFLECTED_BITS: list[Callable[[Any, Any], Any]] = [
    operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_number_stands_on_either_side_of_an_operator(dtype: str) -> None:
    x = Tensor.input("x", (S,), dtype)
    functions = REFLECTED + (REFLECTED_BITS if dtype == "int64" else [])
    made = [f(number, x) for f in functions for number in (S, S + 1)]
    made += [f(x, number) for f in functions for number in (S, S + 1)]
    plan = semel.prepare(made, threads=1)
    for size in (1, 3):
        array = np.arange(1, size + 1, dtype=dtype)
        want = [f(np.asarray(n, dtype), array) for f in functions for n in (size, size + 1)]
        want += [f(array, np.asarray(n, dtype)) for f in functions for n in (size, size + 1)]
        for got, wanted in zip(plan(x=array), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_negative_number_wraps_in_an_unsigned_dtype() -> None:
    x = Tensor.input("x", (S,), "uint8")
    plan = semel.prepare(x + (T - S) + 0 * Tensor.input("y", (T,), "uint8").sum(), threads=1)
    got = plan(x=np.zeros(5, np.uint8), y=np.zeros(2, np.uint8))
    np.testing.assert_array_equal(got, np.full(5, 253, np.uint8))


def test_a_number_demands_nothing_of_the_variables() -> None:
    graph = Graph(((Tensor.zeros(()) + (T - S)).node,))
    assert guards(graph) == ()
    text = format_graph(graph)
    assert "start=-s + t" in text
    assert format_graph(parse_graph(text)) == text


def test_a_number_of_a_loop_counts_down() -> None:
    def body(step: Any, states: tuple[Tensor, ...]) -> Any:
        return [states[0] + (step - S)], []

    (total,), _ = Tensor.loop(S, [Tensor.zeros((), dtype="int64")], body)
    plan = semel.prepare(total + 0 * Tensor.input("x", (S,), "int64").sum(), threads=1)
    for s in (1, 4, 9):
        assert plan(x=np.zeros(s, np.int64)) == sum(step - s for step in range(s))


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "lt", "le", "gt", "ge", "eq")
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_stands_on_either_side(name: str) -> None:
    act = OPERATORS[name]
    x, y = Tensor.input("x", (S,), "int64"), Tensor.input("y", (T,), "int64")
    made = [act(x, T - S), act(T - S, x), act(T, x), act(mod(T - S, 3), x)]
    plan = semel.prepare([*made, y.sum()], threads=1)
    a = np.array([-7, -1, 1, 2, 11], np.int64)
    for t in (2, 20):
        numbers = [np.int64(n) for n in (t - 5, t - 5, t, (t - 5) % 3)]
        *got, _ = plan(x=a, y=np.zeros(t, np.int64))
        with np.errstate(divide="ignore"):
            want = [act(a, np.int64(t - 5)), *(act(n, a) for n in numbers[1:])]
        for found, wanted in zip(got, want, strict=True):
            np.testing.assert_array_equal(found, wanted.astype(found.dtype))


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "uint32", "uint64", "int64"])
def test_a_number_that_the_dtype_does_not_hold_compares_by_value(name: str, dtype: str) -> None:
    """As a Python integer does: nothing wraps in a comparison."""
    act = getattr(operator, name)
    n = Variable("n", -1000, 1000)
    x = Tensor.input("x", (4,), dtype)
    plan = semel.prepare([act(x, n), act(n, x), act(x, n - 1)], threads=1)
    top = np.iinfo(dtype).max
    a = np.array([0, 1, 24, top], dtype)
    given = plan.buffer(x)
    assert given is not None
    given.copyin(a)
    for number in (-1000, -256, -1, 0, 24, 25, 127, 128, 256, 280, 1000):
        plan.execute_with_vars(n=number)
        got = [buffer.numpy() for buffer in plan.output_buffers]
        exact = a.astype(object)
        np.testing.assert_array_equal(got[0], act(exact, number))
        np.testing.assert_array_equal(got[1], act(number, exact))
        np.testing.assert_array_equal(got[2], act(exact, number - 1))


def test_a_comparison_with_a_number_that_fits_needs_no_cast() -> None:
    """Masks of narrow positions stay what the passes know."""
    compared = Tensor.input("x", (4,), "int8") < Variable("n", -128, 127)
    assert compared.node.inputs[0].op.name == "input"


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod"])
def test_numbers_of_numpy_are_ints(name: str) -> None:
    act = OPERATORS[name]
    assert act(T, np.int64(3)) == act(T, 3)
    assert act(T - S, np.uint8(3)) == act(T - S, 3)
    assert type(act(np.int32(3), T + 1)) is type(act(3, T + 1))


@pytest.mark.parametrize("other", [1.5, "a", None, [1], np.ones(2)])
def test_what_is_no_number_is_refused(other: Any) -> None:
    with pytest.raises(GraphError, match="must be an int, a Variable or an expression of them"):
        S + other
    with pytest.raises(GraphError, match="must be an int, a Variable or an expression of them"):
        (S + T) // other


def test_gathered_rows_are_reduced_along_a_symbolic_axis() -> None:
    n, m, k = (Variable(name, 1, None) for name in "nmk")
    x = Tensor.input("x", (n, m))
    taps = Tensor.input("taps", (k,), "int64")
    index = (Tensor.arange(3).unsqueeze(1) + taps).clip(0, n - 1)
    plan = x.take(index, 0).sum(1).prepare(threads=1)
    for rows, columns, count in ((5, 7, 2), (2, 300, 5)):
        array = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        at = np.clip(np.arange(3)[:, None] + np.arange(count), 0, rows - 1)
        found = plan(x=array, taps=np.arange(count))
        np.testing.assert_allclose(found, array[at].sum(1), rtol=1e-6)


def test_room_for_a_product_of_open_sizes_is_made_when_it_is_asked_for() -> None:
    sizes = [Variable(f"s{i}", 1, None) for i in range(8)]
    plan = (Tensor.input("x", tuple(sizes)) + 1).prepare(threads=1)
    assert plan(x=np.zeros((1, 2) * 4, np.float32)).shape == (1, 2) * 4
