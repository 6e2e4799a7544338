"""Rows in order: side by side where they are short, digit by digit where they are long."""

from __future__ import annotations

import numpy as np
import pytest

from semel import Tensor, Variable
from semel.ir.types import DTYPES
from semel.lower.sort import MANY_ROWS, SHORT, SHORT_OF_MANY

LENGTHS = [0, 1, 2, 3, 15, 16, 17, SHORT, SHORT + 1, 100, SHORT_OF_MANY, SHORT_OF_MANY + 1, 1000]
KINDS = [d.name for d in DTYPES]


def _data(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Numbers of which many are equal, and the odd ones."""
    kind = next(d for d in DTYPES if d.name == dtype)
    rng = np.random.default_rng(seed)
    if kind.is_float:
        x = rng.standard_normal(shape).round(1)
        odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 6e4])
        x = np.where(rng.random(shape) < 0.2, rng.choice(odd, shape), x)
        return x.astype(kind.numpy)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    low, high = int(kind.lowest), int(kind.highest)
    wide = np.int64 if kind.is_narrow else kind.numpy
    x = rng.integers(low, high, shape, dtype=wide, endpoint=True)
    few = rng.choice(np.array([low, high, 0, 1], wide), shape)
    return np.where(rng.random(shape) < 0.5, few, x).astype(kind.numpy)


def _order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """NumPy's stable order; NaN comes last in either direction."""
    wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x
    _, ranks = np.unique(wide, return_inverse=True)  # NaNs are one value, the largest
    ranks = ranks.reshape(x.shape)
    if descending:
        is_nan = np.isnan(wide) if wide.dtype.kind == "f" else np.zeros(x.shape, bool)
        ranks = np.where(is_nan, ranks, -ranks)
    return np.argsort(ranks, axis, kind="stable")


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rows", [1, MANY_ROWS + 3])
@pytest.mark.parametrize("descending", [False, True])
def test_any_length(length: int, rows: int, descending: bool) -> None:
    x = _data("float32", (rows, length), length)
    plan = Tensor.input("x", x.shape).argsort(-1, descending).prepare()
    np.testing.assert_array_equal(plan(x=x), _order(x, 1, descending))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("length", [50, 700])
@pytest.mark.parametrize("descending", [False, True])
def test_any_dtype(dtype: str, length: int, descending: bool) -> None:
    x = _data(dtype, (9, length), 7)
    tensor = Tensor.input("x", x.shape, dtype)
    plan = tensor.argsort(-1, descending).prepare()
    want = _order(x, 1, descending)
    np.testing.assert_array_equal(plan(x=x), want)
    got = tensor.sort(-1, descending).prepare()(x=x)
    assert got.tobytes() == np.take_along_axis(x, want, 1).tobytes()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 40, 3), (3, 600, 2), (70, 2, 9)])
def test_any_axis(axis: int, shape: tuple[int, ...]) -> None:
    x = _data("float32", shape, 3)
    one, two = (
        Tensor.input("x", shape).argsort(axis).prepare(threads=threads)(x=x) for threads in (1, 2)
    )
    np.testing.assert_array_equal(one, _order(x, axis, False))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("most", [SHORT, 2000, None])
def test_a_length_that_varies(most: int | None) -> None:
    n, rows = Variable("n", 0, most), Variable("rows", 0, 40)
    plan = Tensor.input("x", (rows, n)).argsort(-1).prepare()
    for length in (0, 1, 5, 63, 64) + (() if most == SHORT else (65, 1023, 1500)):
        for count in (1, 8, 13):
            x = _data("float32", (count, length), length)
            np.testing.assert_array_equal(plan(x=x), _order(x, 1, False))


def test_one_long_row() -> None:
    x = _data("int64", (100_003,), 5)
    np.testing.assert_array_equal(
        Tensor.input("x", x.shape, "int64").argsort(0, True).prepare()(x=x), _order(x, 0, True)
    )
