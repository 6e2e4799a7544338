"""Graphs that are deeper than Python's stack: nothing on the way to a plan recurs into operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor

DEPTH = 1100
ONES = np.ones((4, 16), np.float32)


def moved_weights(x: Tensor) -> Tensor:
    w = Tensor(np.ones((300, 16), np.float32))
    for _ in range(DEPTH):
        w = w.flip(0).pad(((1, 0), (0, 0)))[1:]
    return x + (w + 1)[:4]


def scaled(x: Tensor) -> Tensor:
    for _ in range(DEPTH):
        x = x * 1.0001
    x = (x @ Tensor(np.eye(16, dtype=np.float32))).softmax(-1)
    for _ in range(DEPTH):
        x = x * 0.9999
    return x @ Tensor(np.eye(16, dtype=np.float32))


def products_of_bytes(x: Tensor) -> Tensor:
    """Their sums of columns ask what weights determine, and rows are not determined."""
    w = Tensor(np.eye(16, dtype=np.int8))
    for _ in range(DEPTH // 10):
        rows = (x * 3).round().clip(0, 200).cast("uint8").cast("int32") - 3
        columns = rows.swapaxes(0, 1)[:16].pad(((0, 0), (0, 12))).clip(-100, 100).cast("int8")
        x = (rows @ (w + columns).cast("int8").cast("int32")).cast("float32") * 0.1
        for _ in range(9):
            x = x + 1
    return x


def body(x: Tensor) -> Tensor:
    def step(v: Tensor) -> Tensor:
        for i in range(DEPTH):
            v = (v * 0.5 + i % 3).sin() if i % 2 else v + 1.0
        return v

    return semel.while_loop(lambda v: v.sum() > -1000, step, x, max_trips=2)


@pytest.mark.parametrize("make", [moved_weights, scaled, products_of_bytes, body])
def test_a_deep_graph_is_prepared(make: Any) -> None:
    x = Tensor.input("x", ONES.shape, "float32")
    found = make(x).prepare(threads=1)(x=ONES)
    assert found.shape == ONES.shape and np.isfinite(found).all()
