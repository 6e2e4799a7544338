"""Random programs of arrays and numbers: a result does not depend on which numbers were known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.compiler import eager

SHAPE = (40, 24)
ARRAYS = np.random.default_rng(0).random((3, *SHAPE), np.float32) + np.float32(0.25)
#: What algebra knows, and what it does not.
NUMBERS = (0.0, -0.0, 1.0, 2.0, 0.5, 4.0, -1.0, 3.0, 0.1)

Make = Callable[[Iterator[float]], Tensor]


def whole(x: Tensor) -> Tensor:
    return x if x.shape == SHAPE else x.expand(SHAPE)


def number() -> Make:
    return lambda given: Tensor(np.float32(next(given)))


def draw(r: random.Random, depth: int) -> Make:
    """A program; it takes its numbers in the order in which it is written."""
    if depth == 0:
        at = r.randrange(len(ARRAYS))
        return r.choice([lambda given: Tensor(ARRAYS[at])] * 2 + [number()])
    kinds = [_binary] * 9 + [_unary, _sum, _sum, _sum, _choice, _product, _branch, _loop, _loop]
    return r.choice(kinds)(r, depth - 1)


_OPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a.abs() ** b,
    lambda a, b: a.maximum(b),
]


def _binary(r: random.Random, depth: int) -> Make:
    op, a, b = r.choice(_OPS), draw(r, depth), r.choice([number(), draw(r, depth)])
    return lambda given: op(a(given), b(given))


def _unary(r: random.Random, depth: int) -> Make:
    op, a = r.choice([Tensor.exp, Tensor.neg, Tensor.tanh, Tensor.rint]), draw(r, depth)
    return lambda given: op(a(given))


def _sum(r: random.Random, depth: int) -> Make:
    """A sum, of a product more often than not, and of what numbers do to it."""
    a, b, axis = draw(r, depth), draw(r, depth), r.randrange(2)
    ops, is_product = r.choices(_OPS, k=r.randrange(3)), r.random() < 0.7

    def make(given: Iterator[float]) -> Tensor:
        x = whole(a(given))
        x = x * b(given) if is_product else x
        for op in ops:
            x = op(x, number()(given))
        return x.sum(axis, keepdims=True)

    return make


def _choice(r: random.Random, depth: int) -> Make:
    a, b, c = draw(r, depth), draw(r, depth), r.choice([number(), draw(r, depth)])
    return lambda given: (c(given) > number()(given)).where(a(given), b(given))


def _product(r: random.Random, depth: int) -> Make:
    a, b = draw(r, depth), draw(r, depth)
    return lambda given: (whole(a(given)) @ whole(b(given)).T).sum(1, keepdims=True) / 40


def _branch(r: random.Random, depth: int) -> Make:
    a, b = draw(r, depth), draw(r, depth)

    def make(given: Iterator[float]) -> Tensor:
        x, y, n, m = whole(a(given)), whole(b(given)), number()(given), number()(given)
        found: Tensor = semel.cond(n > m, lambda: x * y, lambda: x * n)
        return found

    return make


def _loop(r: random.Random, depth: int) -> Make:
    a, b, trip = draw(r, depth), r.choice([number(), draw(r, depth)]), r.randrange(3)
    ops: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda h, y: h + y,
        lambda h, y: h * y,
        lambda h, y: h.abs() ** y,
        lambda h, y: (h * h * y).sum(0, keepdims=True) / 40 + h,
    ]
    op = r.choice(ops)

    def make(given: Iterator[float]) -> Tensor:
        x, y = whole(a(given)), b(given)
        (last,), _ = Tensor.loop(trip, [x], lambda _, h: ([op(h[0], y)], []))
        return last

    return make


def _numbers(seed: int) -> Iterator[float]:
    r = random.Random(seed)
    while True:
        yield r.choice(NUMBERS)


def _value(program: Make, seed: int) -> Any:
    return whole(program(_numbers(seed))).numpy()


@pytest.mark.parametrize("seed", range(40))
def test_what_was_known_does_not_change_a_bit(seed: int) -> None:
    r = random.Random(seed)
    program = draw(r, r.randrange(1, 5))
    seeds = range(4)
    known = []
    for k in seeds:
        eager.forget_eager()  # compiled for these numbers
        known.append(_value(program, k))
    eager.forget_eager()
    for k in reversed(seeds):
        _value(program, k)
    for k in seeds:
        got, want = _value(program, k), known[k]
        np.testing.assert_array_equal(got, want)
        real = got == got
        np.testing.assert_array_equal(np.signbit(got[real]), np.signbit(want[real]))
