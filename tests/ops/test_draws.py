"""Draws: their distributions by counts, their orders, and what keys say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import semel
from semel import GraphError, Tensor, Variable

KEY = semel.key(3)
COUNT = 20000


def test_numbers_have_their_distributions() -> None:
    chances = Tensor(np.full(COUNT, 0.3, np.float32))
    normal, uniform, exponential, coins = semel.prepare(
        [
            Tensor.normal(2, 0.5, COUNT, key=KEY),
            Tensor.uniform(-1, 3, (COUNT,), key=KEY, dtype="float64"),
            Tensor.exponential(2.0, COUNT, key=KEY),
            chances.bernoulli(key=KEY),
        ]
    )()
    assert abs(normal.mean() - 2) < 0.02 and abs(normal.std() - 0.5) < 0.02
    assert -1 <= uniform.min() < uniform.max() < 3 and abs(uniform.mean() - 1) < 0.05
    assert exponential.min() >= 0 and abs(exponential.mean() - 2) < 0.05
    assert set(coins.tolist()) == {0.0, 1.0} and abs(coins.mean() - 0.3) < 0.02
    assert uniform.dtype == np.float64 and coins.dtype == np.float32


def test_parameters_broadcast() -> None:
    drawn = Tensor.normal([[0.0], [1000.0]], [1.0, 2.0, 3.0], key=KEY).numpy()
    assert drawn.shape == (2, 3) and (drawn[1] > 900).all() and (drawn[0] < 100).all()
    assert Tensor.uniform([0.0, 10.0], [1.0, 11.0], (5, 2), key=KEY).shape == (5, 2)


def test_classes_come_as_often_as_they_weigh() -> None:
    weights = Tensor([1.0, 0.0, 3.0, 6.0])
    with_replacement = weights.multinomial(COUNT, True, key=KEY)
    pairs = Tensor(np.tile([1.0, 0.0, 3.0, 6.0], (COUNT, 1))).multinomial(2, key=KEY)
    chosen = Tensor.choice([5, 6, 7], COUNT, p=[0.5, 0.5, 0.0], key=KEY)
    one_of = Tensor(np.tile(np.log([1.0, 3.0, 6.0]), (COUNT, 1)))
    drawn, both, picked, hard = semel.prepare(
        [with_replacement, pairs, chosen, one_of.gumbel_softmax(hard=True, key=KEY)]
    )()
    want = np.array([0.1, 0, 0.3, 0.6])
    assert np.abs(np.bincount(drawn, minlength=4) / COUNT - want).max() < 0.02
    assert np.abs(np.bincount(both[:, 0], minlength=4) / COUNT - want).max() < 0.02
    assert (both[:, 0] != both[:, 1]).all() and not (both == 1).any()
    after_three = both[both[:, 0] == 3, 1]  # of weights 1 and 3
    assert abs((after_three == 2).mean() - 0.75) < 0.02
    assert abs((picked == 5).mean() - 0.5) < 0.02 and not (picked == 7).any()
    assert np.abs(hard.mean(0) - [0.1, 0.3, 0.6]).max() < 0.02 and (hard.sum(1) == 1).all()


def test_orders_have_every_number_once() -> None:
    n = Variable("n", 1, 50)
    key = Tensor.input("key", (2,), "uint32")
    rows = Tensor.input("rows", (n, 2), "int64")
    plan = semel.prepare([Tensor.randperm(n, key=key), rows.shuffle(key=key)])
    words = np.array([1, 2], np.uint32)
    for count in (1, 7, 50):
        given = np.stack([np.arange(count), np.arange(count) * 10], 1)
        order, shuffled = plan(rows=given, key=words)
        assert sorted(order) == list(range(count))
        np.testing.assert_array_equal(shuffled, given[order])
    assert (plan(rows=given, key=words)[0] == order).all()
    assert (plan(rows=given, key=words + 1)[0] != order).any()
    assert sorted(semel.permutation(5, key=KEY).tolist()) == [0, 1, 2, 3, 4]


def test_every_order_of_three_is_as_likely() -> None:
    keys = semel.split_key(KEY, 300)
    drawn = semel.prepare([Tensor.randperm(3, key=keys[i]) for i in range(300)])()
    counts = np.unique([tuple(order) for order in drawn], axis=0, return_counts=True)[1]
    assert len(counts) == 6 and counts.min() > 25


def test_choice_without_replacement() -> None:
    assert sorted(Tensor.choice(6, (2, 3), False, key=KEY).numpy().ravel()) == list(range(6))
    columns = Tensor.choice([[1, 2, 3]], 2, False, axis=1, key=KEY).numpy()
    assert columns.shape == (1, 2) and len(set(columns[0])) == 2


W = Tensor.input("w", (3,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: W.multinomial(4), r"\[multinomial\] num_samples must be at most the 3 classes"),
        (lambda: Tensor(1.0).multinomial(1), r"\[multinomial\] needs weights along an axis"),
        (lambda: Tensor.choice(3, 4, False), r"\[choice\] without replacement there are 3"),
        (lambda: Tensor.choice(W, 2, p=[0.5, 0.5]), r"\[choice\] p must have shape \[3\]"),
        (lambda: W.gumbel_softmax(0), r"\[gumbel_softmax\] tau must be a number > 0, got 0"),
        (lambda: Tensor.normal(W, shape=(2,)), r"\[normal\] shapes must broadcast"),
        (lambda: Tensor.uniform(dtype="int32"), r"\[uniform\] dtype must be a float"),
    ],
)
def test_mistakes_with_draws(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()
