"""Rotary positions against their definition: a complex number for each pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.together import Together

import semel
from semel import GraphError, Tensor, Variable

X = np.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype(np.float32)


def turned(x: np.ndarray, places: Any, size: int, interleaved: bool, base: float) -> np.ndarray:
    rates = base ** (-np.arange(0, size, 2) / size)
    angles = np.asarray(places, np.float64)[..., None] * rates
    part = x[..., :size].astype(np.float64)
    half = size // 2
    a, b = (
        (part[..., ::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    )
    z = (a + 1j * b) * np.exp(1j * angles)
    both = (np.stack([z.real, z.imag], -1).reshape(part.shape)
            if interleaved else np.concatenate([z.real, z.imag], -1))  # fmt: skip
    return np.concatenate([both, x[..., size:]], -1).astype(x.dtype)


def test_both_layouts_turn_by_the_position() -> None:
    cases, x = Together(), Tensor(X)
    each = np.arange(10).reshape(2, 1, 5)
    for interleaved in (False, True):
        for size in (8, 4):
            ways: list[tuple[float, Any]] = [(1e4, np.arange(5)), (500.0, each), (1e4, 1000)]
            for base, places in ways:
                found = x.rope(places, base=base, size=size, interleaved=interleaved)
                cases.add("", found, turned(X, places, size, interleaved, base))
    cases.add("usual", x.rope(), turned(X, np.arange(5), 8, False, 1e4))
    cases.add("scaled", x.rope(scale=0.25), turned(X, np.arange(5) / 4, 8, False, 1e4))
    angles = np.arange(40)[:, None] * 1e4 ** (-np.arange(0, 8, 2) / 8)
    cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    cases.add("tables", x.rope(each, cos=cos, sin=sin), turned(X, each, 8, False, 1e4))
    cases.add("rows", x.rope(cos=cos[:5], sin=sin[:5]), turned(X, np.arange(5), 8, False, 1e4))
    cases.check()


def test_half_floats_are_rounded_once() -> None:
    got = Tensor(X.astype(np.float16)).rope([100, 200, 300, 400, 500])
    want = turned(X.astype(np.float16), np.arange(100, 501, 100), 8, False, 1e4)
    assert got.dtype.name == "float16"
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-3, atol=2e-3)


def test_length_and_position_may_be_symbolic() -> None:
    n, past = Variable("n", 1, 64), Variable("past", 0, 1000)
    x = Tensor.input("x", (3, n, 8))
    keys = Tensor.input("keys", (past,))
    plan = semel.prepare([x.rope(Tensor.arange(n) + past), keys])
    for count, start in [(5, 0), (2, 777)]:
        rows = X[0, :, :count]
        got = plan(x=rows, keys=np.zeros(start, np.float32))[0]
        want = turned(rows, start + np.arange(count), 8, False, 1e4)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Tensor([1.0, 2.0]).rope(), r"\[rope\] needs \(..., length, depth\)"),
        (lambda: Tensor(X).rope(size=3), r"size must be an even number in \[2, 8\]"),
        (lambda: Tensor(X).rope(size=10), r"size must be an even number in \[2, 8\]"),
        (lambda: Tensor(X).rope(cos=X[0, 0, :, :4]), "needs both tables"),
        (lambda: Tensor(X).rope(np.zeros((4, 1, 1, 5))), "positions must broadcast"),
        (lambda: Tensor(X).rope(np.zeros(4)), "shapes must broadcast"),
        (lambda: Tensor(X).rope(cos=X, sin=X), "shapes must broadcast"),
    ],
)
def test_mistakes_with_positions(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()
