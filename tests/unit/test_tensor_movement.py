"""Movement along every axis, counted from either end, is NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semel import GraphError, Tensor
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate

ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)  # no two dims agree
OTHER = ARRAY + 100


def reference(tensor: Tensor) -> np.ndarray:
    return evaluate(Graph((tensor.node,)), {})[0]


ALONG: dict[str, tuple[Callable[[int], Tensor], Callable[[int], Any]]] = {
    "concat": (lambda a: Tensor.concat([ARRAY, OTHER], a),
               lambda a: np.concatenate([ARRAY, OTHER], a)),
    "repeat": (lambda a: Tensor(ARRAY).repeat(3, a), lambda a: np.repeat(ARRAY, 3, a)),
    "roll": (lambda a: Tensor(ARRAY).roll(1, a), lambda a: np.roll(ARRAY, 1, a)),
    "flip": (lambda a: Tensor(ARRAY).flip(a), lambda a: np.flip(ARRAY, a)),
    "narrow": (lambda a: Tensor(ARRAY).narrow(a, 1, 1), lambda a: np.take(ARRAY, [1], a)),
    "unbind": (lambda a: Tensor(ARRAY).unbind(a)[1], lambda a: np.take(ARRAY, 1, a)),
    "split": (lambda a: Tensor(ARRAY).split([1], a)[1],
              lambda a: np.split(ARRAY, [1], a)[1]),
    "moveaxis": (lambda a: Tensor(ARRAY).moveaxis(a, 1), lambda a: np.moveaxis(ARRAY, a, 1)),
}  # fmt: skip


@pytest.mark.parametrize("axis", range(-3, 3))
@pytest.mark.parametrize("name", ALONG)
def test_along_every_axis(name: str, axis: int) -> None:
    run, numpy_function = ALONG[name]
    np.testing.assert_array_equal(reference(run(axis)), numpy_function(axis), strict=True)


@pytest.mark.parametrize("axis", range(-4, 4))
def test_stack_makes_an_axis_anywhere(axis: int) -> None:
    got = reference(Tensor.stack([ARRAY, OTHER, ARRAY], axis))
    np.testing.assert_array_equal(got, np.stack([ARRAY, OTHER, ARRAY], axis), strict=True)
    alone = reference(Tensor.stack([ARRAY], axis))
    np.testing.assert_array_equal(alone, np.stack([ARRAY], axis), strict=True)


@pytest.mark.parametrize("axis", [-5, 4])
def test_stack_counts_axes_of_its_result(axis: int) -> None:
    with pytest.raises(GraphError, match=r"\[stack\] axis must lie in \[-4, 4\), got axis="):
        Tensor.stack([ARRAY, OTHER], axis)


def test_stack_promotes_and_takes_numbers() -> None:
    assert reference(Tensor.stack([1, 2.5])).tolist() == [1, 2.5]
    mixed = reference(Tensor.stack([np.array([1, 2], np.int8), np.array([0.5, 1], np.float16)], 1))
    assert mixed.dtype == np.float16
    assert mixed.tolist() == [[1, 0.5], [2, 1]]


@pytest.mark.parametrize("sizes", [[3], [0, 3], [3, 0], [1, 0, 2], [0, 0, 3, 0], [1, 1, 1]])
def test_split_takes_pieces_of_any_size(sizes: list[int]) -> None:
    pieces = Tensor(ARRAY).split(split_size=sizes, axis=1)
    wanted = np.split(ARRAY, np.cumsum(sizes)[:-1], 1)
    assert [p.shape for p in pieces] == [w.shape for w in wanted]
    for piece, want in zip(pieces, wanted, strict=True):
        np.testing.assert_array_equal(reference(piece), want, strict=True)


@pytest.mark.parametrize("sizes", [[], [2], [4], [3, 1], [-1, 4], [4, -1], [2, -1, 2]])
def test_split_refuses_sizes_that_do_not_fill_the_axis(sizes: list[int]) -> None:
    with pytest.raises(GraphError, match=r"\[split\] sizes must add up to 3, got"):
        Tensor(ARRAY).split(split_size=sizes, axis=1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 6, 7])
def test_equal_pieces_end_with_the_rest(length: int, size: int) -> None:
    x = np.arange(length * 2, dtype=np.float32).reshape(length, 2)
    pieces = [reference(p).tolist() for p in Tensor(x).split(split_size=size)]
    assert pieces == [x[at : at + size].tolist() for at in range(0, max(length, 1), size)]
    chunks = [reference(p).tolist() for p in Tensor(x).chunk(size)]
    width = max(-(-length // size), 1)
    assert chunks == [x[at : at + width].tolist() for at in range(0, max(length, 1), width)]
    assert len(chunks) <= size


@pytest.mark.parametrize("size", [0, -1])
def test_a_piece_has_at_least_one_element(size: int) -> None:
    with pytest.raises(GraphError, match=rf"\[split\] split_size must be > 0, got {size}"):
        Tensor(ARRAY).split(split_size=size)
    with pytest.raises(GraphError, match=r"\[chunk\] the number of chunks must be > 0, got"):
        Tensor(ARRAY).chunk(size)
