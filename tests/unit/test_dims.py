"""Conditions, truncating division and broadcasting of dims: Python's arithmetic is the truth."""

from __future__ import annotations

import itertools
from math import trunc

import pytest

from semel.errors import GraphError
from semel.ir.dims import (
    absolute,
    broadcast_dims,
    ceildiv,
    equal,
    less,
    less_equal,
    may_stretch_to,
    negate,
    select,
    truncdiv,
    truncmod,
)
from semel.ir.expr import Dim, Fn, Variable, bounds, evaluate, maximum, minimum

V, W = Variable("v", -4, 5), Variable("w", -3, 4)
N, M, K = Variable("n", 0, 9), Variable("m", 1, 9), Variable("k", 3)


def test_conditions_and_divisions_of_either_sign() -> None:
    for v, w in itertools.product(range(-4, 6), range(-3, 5)):
        at = {V: v, W: w}

        def value(dim: Dim, at: dict[Variable, int] = at) -> int:
            return evaluate(dim, at)

        assert value(equal(V, W)) == (v == w)
        assert value(less(V, W)) == (v < w)
        assert value(less_equal(V, W)) == (v <= w)
        assert value(negate(V)) == (v == 0)
        assert value(absolute(V)) == abs(v)
        assert value(select(less(V, W), V * 2, W + 7)) == (v * 2 if v < w else w + 7)
        assert value(select(V, 1, W)) == (1 if v else w)
        assert value(ceildiv(V, 3)) == -(-v // 3)
        for divisor, number in ((W, w), (3, 3), (-3, -3), (W + 4, w + 4), (W - 5, w - 5)):
            if number:
                quotient = trunc(v / number)
                assert value(truncdiv(V, divisor)) == quotient
                assert value(truncmod(V, divisor)) == v - number * quotient


def test_what_ranges_decide_is_decided() -> None:
    assert (equal(N, -1), equal(N + 1, N), equal(N, N), less(N, 0), less(M, 1)) == (0, 0, 1, 0, 0)
    assert (less(N, 10), less_equal(N, 9), select(less(N, 10), M, K)) == (1, 1, M)
    assert (truncdiv(N, 2), truncmod(N, 2)) == (N // 2, N % 2)
    with pytest.raises(GraphError, match="division of v by zero"):
        truncdiv(V, 0)


def test_a_choice_lies_between_what_it_chooses_from() -> None:
    assert bounds(select(equal(N, 1), M, N)) == (0, 9)
    assert bounds(equal(V, W)) == (0, 1)
    low, high = bounds(select(equal(N, 1), K, 5))  # without a maximum
    assert low == 3
    assert high is None


def test_the_size_that_dims_broadcast_to() -> None:
    assert broadcast_dims([]) == broadcast_dims([1, 1]) == 1
    assert broadcast_dims([1, N, 1]) == N
    assert broadcast_dims([M, 5]) == 5
    assert broadcast_dims([M, K, 1]) == K  # which is never 1
    both = broadcast_dims([M, N])
    assert both == broadcast_dims([N, M])
    for n, m in [(0, 1), (0, 0), (1, 1), (1, 4), (4, 1), (4, 4)]:
        if m:
            assert evaluate(both, {N: n, M: m}) == (n if m == 1 else m)
    positive = Variable("p", 1, 4)
    assert broadcast_dims([M, positive]) == maximum(M, positive)


def test_dims_that_depend_on_each_other_do_not_stretch() -> None:
    part = maximum(minimum(M + N, 9) - N, 0)
    assert broadcast_dims([M, part]) == M
    assert broadcast_dims([part, M]) == part
    assert not may_stretch_to(part, M)
    assert not may_stretch_to(K, M)  # never 1
    assert may_stretch_to(M, N)
    assert may_stretch_to(M, 5)
    both = broadcast_dims([M, N])
    assert may_stretch_to(M, both)
    assert may_stretch_to(both, N * 0 + 5)


def test_broadcasting_again_gives_the_same_dim() -> None:
    other = Variable("o", 0, 9)
    for pair in ((M, N), (M, Variable("p", 1, 4)), (N, other)):
        both = broadcast_dims(pair)
        assert isinstance(both, Fn) or "max" in str(both)
        assert broadcast_dims([both, pair[0]]) == both
        assert broadcast_dims([pair[1], both]) == both
        assert broadcast_dims([both, 7]) == 7
    three = broadcast_dims([broadcast_dims([N, M]), other])
    assert three == broadcast_dims([other, N, M])
