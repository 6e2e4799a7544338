"""Symbolic numbers as operands: any value is a value, negative ones too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
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
