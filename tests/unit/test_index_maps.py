"""Index arithmetic of views: what one reshape takes apart, another puts together."""

from __future__ import annotations

import pytest

from semel.ir.expr import Dim, Index, Variable, product
from semel.ir.types import Shape
from semel.ops.index_maps import flat_index, reshape_index, reshape_runs

N, H, W = Variable("n", 1, 8), Variable("h", 1, 8), Variable("w", 1, 8)


@pytest.mark.parametrize(
    "space", [(2, 14, 14), (3, 2, 5, 7), (N, 14, 14), (N, H, W), (2, 1, W, 3)], ids=str
)
def test_a_merged_index_read_through_the_split_shape_is_itself(space: Shape) -> None:
    total: Dim = product(space)
    row, column = Index("row", total), Index("column", 64)
    at = reshape_index((row, column), (total, 64), (*space, 64))
    assert flat_index(at, (*space, 64)) == row * 64 + column


def test_runs_are_the_shortest_that_hold_the_same_elements() -> None:
    assert list(reshape_runs((2, 3, 4), (6, 2, 2))) == [(0, 2, 0, 1), (2, 3, 1, 3)]
    assert list(reshape_runs((N, 4), (N, 2, 2))) == [(0, 1, 0, 1), (1, 2, 1, 3)]
    assert list(reshape_runs((6,), (1, 6))) == [(0, 0, 0, 1), (0, 1, 1, 2)]
