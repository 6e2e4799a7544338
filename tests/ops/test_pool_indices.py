"""max_pool_with_indices: the maxima of max_pool, and where they stand, as ONNX counts."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semel
from semel import GraphError, Tensor, Variable

Array = np.ndarray[Any, Any]
Pads = list[tuple[int, int]]


def np_indices(
    x: Array, sizes: list[int], strides: list[int], pads: Pads, dilations: list[int]
) -> Array:
    """Element by element: the first largest one inside; NaN is larger than all."""
    space = x.shape[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(sizes, dilations, strict=True)]
    rows = zip(space, spans, strides, pads, strict=True)
    places = [(n + sum(p) - span) // s + 1 for n, span, s, p in rows]
    result = np.zeros((*x.shape[:2], *places), np.int64)
    for at in np.ndindex(*result.shape):
        best = None
        for step in product(*map(range, sizes)):
            where = tuple(
                at[2 + a] * strides[a] - pads[a][0] + step[a] * dilations[a]
                for a in range(len(space))
            )
            if any(not 0 <= i < n for i, n in zip(where, space, strict=True)):
                continue
            value = x[at[:2] + where]
            if best is None or value > best or (np.isnan(value) and not np.isnan(best)):
                best = value
                result[at] = np.ravel_multi_index(at[:2] + where, x.shape)
    return result


def run(x: Array, *arguments: Any, **options: Any) -> list[Array]:
    pooled = Tensor.input("x", x.shape, x.dtype).max_pool_with_indices(*arguments, **options)
    result: list[Array] = semel.prepare(list(pooled))(x=x)
    return result


@st.composite
def pools(draw: Any) -> tuple[tuple[int, ...], list[int], list[int], Pads, list[int]]:
    count = draw(st.integers(1, 3))
    sizes, strides, dilations = (
        [draw(st.integers(1, most)) for _ in range(count)] for most in (3, 3, 2)
    )
    pads = [(draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in sizes]
    space = tuple(draw(st.integers(6, 9)) for _ in range(count))
    return space, sizes, strides, pads, dilations


@settings(max_examples=15, deadline=None)
@given(pools(), st.integers(0, 1 << 20))
def test_the_first_maximum_of_every_window_is_found(pool: Any, seed: int) -> None:
    space, sizes, strides, pads, dilations = pool
    x = np.random.default_rng(seed).integers(-3, 3, (2, 3, *space)).astype(np.float32)
    top, where = run(x, sizes, strides, pads, dilations)
    np.testing.assert_array_equal(where, np_indices(x, sizes, strides, pads, dilations))
    np.testing.assert_array_equal(top, x.reshape(-1)[where])


@pytest.mark.parametrize("value", [-np.inf, np.nan], ids=str)
def test_padding_never_wins_and_nan_does(value: float) -> None:
    x = np.full((1, 2, 4, 5), -np.inf, np.float32)
    x[0, 1, 2, 3] = value
    top, where = run(x, 3, 2, 1)
    np.testing.assert_array_equal(where, np_indices(x, [3, 3], [2, 2], [(1, 1)] * 2, [1, 1]))
    np.testing.assert_array_equal(top, x.reshape(-1)[where])


def test_integers_as_low_as_padding_have_a_place() -> None:
    x = np.full((1, 1, 3, 3), -128, np.int8)
    _, where = run(x, 2, 1, 1)
    np.testing.assert_array_equal(where, np_indices(x, [2, 2], [1, 1], [(1, 1)] * 2, [1, 1]))


def test_column_major_counts_the_first_axis_fastest() -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 6, 5)).astype(np.float32)
    _, rows = run(x, 2)
    _, columns = run(x, 2, column_major=True)
    n, c, h, w = np.unravel_index(rows, x.shape)
    np.testing.assert_array_equal(columns, (n * 3 + c) * 30 + w * 6 + h)


def test_a_last_window_that_is_partly_there_counts_in_ceil_mode() -> None:
    x = np.arange(7, dtype=np.float32).reshape(1, 1, 7)
    top, where = run(x, 3, 3, ceil_mode=True)
    assert top.tolist() == [[[2, 5, 6]]] and where.tolist() == [[[2, 5, 6]]]


def test_one_plan_serves_every_image() -> None:
    n, h = Variable("n", 1, 3), Variable("h", 4, 12)
    pooled = Tensor.input("x", (n, 2, h, h)).max_pool_with_indices(3, 2, "same")
    plan = semel.prepare(list(pooled))
    for batch, side in ((1, 4), (3, 7), (2, 12)):
        x = np.random.default_rng(side).standard_normal((batch, 2, side, side)).astype(np.float32)
        top, where = plan(x=x)
        np.testing.assert_array_equal(top, x.reshape(-1)[where])
        fixed = run(x, 3, 2, "same")
        np.testing.assert_array_equal(where, fixed[1])
    assert plan.compile_count == 1


def test_a_window_of_padding_only_is_refused() -> None:
    x = Tensor.input("x", (1, 1, 4, 4))
    with pytest.raises(GraphError, match="smaller than the window of 2") as caught:
        x.max_pool_with_indices(2, 1, 2)
    assert str(caught.value) == (
        "[max_pool_with_indices] padding must be smaller than the window of 2 elements, got 2."
    )
