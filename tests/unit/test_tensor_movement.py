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
    "split": (lambda a: Tensor(ARRAY).split([1, ARRAY.shape[a] - 1], a)[1],
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
