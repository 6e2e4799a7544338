"""Operands whose dims must agree: sizes that differ are refused, however their products compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.errors import GraphError, VariableError

N, M, P, Q = (Variable(name, 1, 8) for name in "nmpq")


def data(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("equation", ["ij,ij->", "ij,ij->ij", "ij,ij->j", "ij,ij->i", "ij,ji->i"])
def test_labels_of_einsum_have_one_size(equation: str) -> None:
    x, y = Tensor.input("x", (N, M)), Tensor.input("y", (P, Q))
    plan = semel.prepare(semel.einsum(equation, x, y), threads=1)
    a, (right, wrong) = data(2, 3), (data(2, 3), data(3, 2))
    if "ji" in equation:
        right, wrong = wrong, right
    np.testing.assert_allclose(plan(x=a, y=right), np.einsum(equation, a, right), rtol=1e-5)
    with pytest.raises(VariableError, match=r"dim . must be [nm], got [pq] in f32"):
        plan(x=a, y=wrong)


def test_einsum_contracts_each_label_for_itself() -> None:
    x, y = Tensor.input("x", (2, N, M)), Tensor.input("y", (P, Q, 3))
    plan = semel.prepare(semel.einsum("aij,ijb->ab", x, y), threads=1)
    a, b = data(2, 2, 3), data(2, 3, 3)
    np.testing.assert_allclose(plan(x=a, y=b), np.einsum("aij,ijb->ab", a, b), rtol=1e-5)
    with pytest.raises(VariableError, match=r"dim . must be"):
        plan(x=a, y=data(3, 2, 3))


def test_a_diagonal_in_einsum_is_that_of_a_square() -> None:
    plan = semel.prepare(semel.einsum("ii->i", Tensor.input("x", (N, M))), threads=1)
    a = data(4, 4)
    np.testing.assert_array_equal(plan(x=a), np.diagonal(a))
    with pytest.raises(VariableError, match=r"dim . must be"):
        plan(x=data(2, 3))


def test_a_fixed_and_a_symbolic_size_of_a_label_agree_at_run_time() -> None:
    x = Tensor.input("x", (N, 4))
    plan = semel.prepare(semel.einsum("ij,jk->ik", x, x), threads=1)
    a = data(4, 4)
    np.testing.assert_allclose(plan(x=a), a @ a, rtol=1e-5)
    with pytest.raises(VariableError, match="dim 0 must be 4, got n in f32"):
        plan(x=data(3, 4))


@pytest.mark.parametrize("targets", [2, 5, 1])
def test_every_row_has_a_target(targets: int) -> None:
    classes = np.zeros(targets, np.int64)
    with pytest.raises(GraphError, match=r"target must have shape \[4\], got i64"):
        Tensor(data(4, 3)).cross_entropy(Tensor(classes))
    x, c = Tensor.input("x", (N, 3)), Tensor.input("c", (P,), "int64")
    plan = semel.prepare(x.cross_entropy(c), threads=1)
    assert plan(x=data(4, 3), c=np.zeros(4, np.int64)) > 0
    with pytest.raises(VariableError, match="dim 0 must be n, got p in i64"):
        plan(x=data(4, 3), c=classes)


def test_targets_of_an_axis_in_the_middle() -> None:
    with pytest.raises(GraphError, match=r"target must have shape \[2,4\], got i64\[2,3\]"):
        Tensor(data(2, 5, 4)).cross_entropy(Tensor(np.zeros((2, 3), np.int64)), axis=1)


ALONG: list[Callable[[Any, Any], Any]] = [
    lambda x, i: x.take_along_axis(i, 0),
    lambda x, i: x.T.take_along_axis(i.T, 1).T,
]


@pytest.mark.parametrize("take", ALONG)
def test_take_along_axis_takes_no_part_of_an_axis(take: Callable[[Any, Any], Any]) -> None:
    x, i = Tensor.input("x", (N, M)), Tensor.input("i", (P, Q), "int64")
    plan = semel.prepare(take(x, i), threads=1)
    a, at = data(2, 3), np.array([[0, 1, 0], [1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(plan(x=a, i=at), np.take_along_axis(a, at, 0))
    with pytest.raises(VariableError, match=r"dim . must be 1 or"):
        plan(x=a, i=np.ascontiguousarray(at[:, :2]))
