"""Dims that are numbers of the data: sizes and bounds, checked in every run, with one compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.errors import GraphError, IndexRangeError
from semel.ir.dims import maximum
from semel.tensor.late import item_dim

N = Variable("n", 0, 30)
X = np.arange(30, dtype=np.float32)


def number(name: str = "k", dtype: str = "int64") -> Tensor:
    return Tensor.input(name, (), dtype)


def one(value: int, dtype: str = "int64") -> Any:
    return np.array(value, dtype)


def test_sizes_of_every_kind() -> None:
    x = Tensor.input("x", (N,))
    k = item_dim(number() + 1, limit=8)
    outputs = [
        x.pad(((0, 8),))[: 2 * k].reshape(2, k),
        x[:1].broadcast_to(k),
        x[N - maximum(N - k, 0) :],
        semel.arange(k),
        semel.arange(0.0, k, 0.5),
        x.sum() * semel.ones(k, 2).sum(),
        semel.concat([semel.zeros(3, k), Tensor.input("y", (3, 2))], 1),
    ]
    plan = semel.prepare(outputs, threads=1)
    y = np.ones((3, 2), np.float32)
    for n, size in ((20, 5), (20, 8), (1, 0), (7, 1), (20, 3)):
        a = X[:n]
        padded = np.pad(a, (0, 8))[: 2 * size]
        if len(padded) < 2 * size:
            continue
        got = plan(x=a, y=y, k=one(size - 1))
        want = [
            padded.reshape(2, size),
            np.broadcast_to(a[:1], size),
            a[n - max(n - size, 0) :],
            np.arange(size),
            np.arange(0, size, 0.5),
            a.sum() * size * 2,
            np.concatenate([np.zeros((3, size)), y], 1),
        ]
        for have, wanted in zip(got, want, strict=True):
            assert have.shape == np.shape(wanted)
            np.testing.assert_allclose(have, wanted, rtol=1e-5)
    assert plan.compile_count == 1


@pytest.mark.parametrize("step", [1, -1, 2])
def test_bounds_of_slices_of_either_sign(step: int) -> None:
    x = Tensor.input("x", (N,))
    first = item_dim(number("a"), limit=40, least=-40)
    last = item_dim(number("b", "int32"), limit=40, least=-40)
    plan = semel.prepare(x[first:last:step], threads=1)
    for n in (0, 1, 9):
        for a in (-40, -9, -1, 0, 3, 9, 40):
            for b in (-10, -2, 0, 5, 12):
                got = plan(x=X[:n], a=one(a), b=one(b, "int32"))
                np.testing.assert_array_equal(got, X[:n][a:b:step], err_msg=f"{n=} {a=} {b=}")


def test_bounds_are_clamped_as_those_of_slices_are() -> None:
    x = Tensor.input("x", (N,))
    first, last = (item_dim(number(k), N, least=-N - 1, clamp=True) for k in "ab")
    plan = semel.prepare([x[first:last], x[last:first:-1]], threads=1)
    ends = (-(2**63), -7, -3, 0, 4, 6, 2**63 - 1)
    for n, a, b in [(n, a, b) for n in (0, 6) for a in ends for b in ends]:
        forward, backward = plan(x=X[:n], a=one(a), b=one(b))
        np.testing.assert_array_equal(forward, X[:n][a:b])
        np.testing.assert_array_equal(backward, X[:n][b:a:-1])
    assert item_dim(2**63 - 1, 9, clamp=True) == 9


def test_a_number_out_of_range_ends_the_run_and_the_next_one_is_right() -> None:
    k = item_dim(number(), limit=N, where="expand")
    plan = semel.prepare(Tensor.input("x", (N,))[:1].broadcast_to(k), threads=1)
    assert plan(x=X[:6], k=one(6)).shape == (6,)
    for wrong in (-1, 7, 2**40, -(2**63)):
        with pytest.raises(IndexRangeError, match=rf"\[expand\] .*size.*\[0, 7\), got {wrong}"):
            plan(x=X[:6], k=one(wrong))
        assert plan(x=X[:6], k=one(2)).shape == (2,)


def test_one_number_with_two_limits() -> None:
    k = number()
    small, large = item_dim(k, limit=4), item_dim(k, limit=9)
    assert small != large
    assert item_dim(k, limit=4) == small
    plan = semel.prepare([semel.arange(small), semel.arange(large)], threads=1)
    assert [len(r) for r in plan(k=one(3))] == [3, 3]
    with pytest.raises(IndexRangeError, match=r"\[0, 5\), got 6"):
        plan(k=one(6))


def test_memory_is_for_the_limit() -> None:
    def arena(limit: int) -> int:
        k = item_dim(number(), limit=limit)
        order = Tensor.input("x", (1,)).broadcast_to(k).cumsum(0)
        return semel.prepare((order * order.flip(0)).sort(), threads=1).memory.arena_bytes

    small, large = arena(1000), arena(100_000)
    assert 50 * small < large < 200 * small


def test_what_is_known_is_a_number() -> None:
    assert item_dim(Tensor([5]), limit=9) == 5
    assert item_dim(-3, limit=9, least=-4) == -3
    with pytest.raises(GraphError, match=r"\[reshape\] a size must lie in \[0, 9\], got 10"):
        item_dim(10, limit=9, where="reshape")
    with pytest.raises(GraphError, match=r"a size must be one integer, got f32\[\]"):
        item_dim(Tensor.input("x", ()), limit=9)
    with pytest.raises(GraphError, match=r"a size must be one integer, got i64\[2\]"):
        item_dim(Tensor.input("x", (2,), "int64"), limit=9)
