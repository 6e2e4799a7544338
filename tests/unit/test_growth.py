"""Work that grows with the graph and no faster: calls are counted, so that no clock is asked.

Each graph is prepared with its kernels known and its program not; twice the graph may be twice the
work and a little more, where what is quadratic would be four times.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.test_call_counts import count_calls

from semel import Tensor, concat, prepare
from semel.compiler.programs import forget_programs


def a_chain(length: int) -> list[Tensor]:
    """Groups that all read one tensor and need one another."""
    x, w = Tensor.input("x", (8, 8)), Tensor.input("w", (8, 8))
    y = x
    for _ in range(length):
        y = ((y @ w).softmax(-1) + x).tanh()
    return [y]


def a_ladder(length: int) -> list[Tensor]:
    """Two chains side by side, whose groups join."""
    x = Tensor.input("x", (8, 8))
    a, b = x, x
    for _ in range(length):
        a, b = (a.cumsum(0) + x).tanh(), (b.cumsum(0) + x).exp()
    return [a, b]


def parts(count: int) -> list[Tensor]:
    return [concat([Tensor.input(f"x{i}", (2,)) for i in range(count)])]


def outputs(count: int) -> list[Tensor]:
    """Groups that read one tensor and may join until they are full."""
    x = Tensor.input("x", (8,))
    return [x + Tensor.input(f"x{i}", (8,)) for i in range(count)]


def outputs_of_their_own(count: int) -> list[Tensor]:
    return [Tensor.input(f"x{i}", (8,)).exp() for i in range(count)]


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        (a_chain, 40),
        (a_ladder, 40),
        (parts, 150),
        (outputs, 100),
        (outputs_of_their_own, 100),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_twice_the_graph_is_twice_the_work(
    graph: Callable[[int], list[Tensor]], count: int
) -> None:
    def calls(size: int) -> int:
        made = graph(size)

        def work() -> None:
            forget_programs()
            prepare(made, threads=1)

        return count_calls(work)

    few, many = calls(count), calls(2 * count)
    assert many < 2.25 * few
