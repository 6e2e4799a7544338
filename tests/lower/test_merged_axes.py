"""A reshape that joins what a permute has brought together: loops over the axes, no divisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.lowering import lower_graph

from semel import Tensor, Variable
from semel.ir.expr import Dim, linear_coefficient, product
from semel.kernel import ir
from semel.kernel.ir import walk_statements, walk_values


@st.composite
def _joins(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """A shape, the order of its axes, and where those are cut into axes of a result."""
    rank = draw(st.integers(2, 5))
    shape = tuple(draw(st.sampled_from([1, 2, 3, 5, 16, 17, 33])) for _ in range(rank))
    order = tuple(draw(st.permutations(range(rank))))
    cuts = sorted(draw(st.sets(st.integers(1, rank - 1), max_size=rank - 1)))
    return shape, order, [0, *cuts, rank]


@given(_joins(), st.booleans(), st.booleans())
def test_every_element_arrives(
    join: tuple[tuple[int, ...], tuple[int, ...], list[int]], is_any: bool, is_computed: bool
) -> None:
    shape, order, cuts = join
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    dims = tuple(Variable(f"d{k}", 1, 64) for k in range(len(shape))) if is_any else shape
    turned = Tensor.input("x", dims).permute(order)
    ends = list(pairwise(cuts))

    def joined(sizes: Sequence[Dim]) -> list[Dim]:
        return [product(sizes[start:stop]) for start, stop in ends]

    y = turned.reshape(tuple(joined(turned.shape)))
    y = y * 2 + 1 if is_computed else y
    wanted = data.transpose(order)
    wanted = wanted.reshape([int(str(n)) for n in joined(wanted.shape)])
    np.testing.assert_array_equal(y.prepare()(x=data), wanted * 2 + 1 if is_computed else wanted)


@pytest.mark.parametrize("is_any", [False, True])
def test_nothing_is_divided_for_an_element(is_any: bool) -> None:
    b, h, s = (Variable(n, 1, 64) for n in "bhs") if is_any else (3, 12, 50)
    heads = Tensor.input("x", (b, h, s, 64)).permute(0, 2, 1, 3).reshape(b, s, h * 64)
    for y in (heads, heads * 2 + 1):
        _, kernels = lower_graph([y])
        body = kernels[-1].kernel.body
        loops = [it for it in walk_statements(body) if isinstance(it, ir.Loop) and it.lanes > 1]
        assert loops
        for loop in loops:
            assert {linear_coefficient(at, loop.index) for at in _addresses(loop)} == {1}


def _addresses(loop: ir.Loop) -> Iterator[Dim]:
    """Where a loop's statements read and write."""
    for statement in walk_statements(loop.body):
        if isinstance(statement, ir.Store):
            yield statement.at
        for value in walk_values(ir.statement_values(statement)):
            if value.op == "load":
                yield value.data[1]


def test_a_last_axis_that_fills_no_register_is_walked_as_it_is() -> None:
    x = Tensor.input("x", (1, 16, 2, 2, 28, 28))
    y = x.permute(0, 1, 4, 2, 5, 3).reshape(1, 16, 56, 56)  # pixels that are shuffled
    data = np.random.default_rng(1).standard_normal((1, 16, 2, 2, 28, 28)).astype(np.float32)
    wanted = data.transpose(0, 1, 4, 2, 5, 3).reshape(1, 16, 56, 56)
    np.testing.assert_array_equal(y.prepare()(x=data), wanted)
