"""Rows in order: side by side where they are short, digit by digit where they are long."""

from __future__ import annotations

import numpy as np
import pytest

from semel import Tensor, Variable
from semel.devices import lacking
from semel.ir.target import named_target
from semel.ir.types import DTYPES
from semel.lower.sort import MANY_ROWS, SHORT, SHORT_IF_MANY, SHORT_OF_MANY

LENGTHS = [0, 1, 2, 3, 15, 16, 17, 100, SHORT, SHORT + 1, 1000, SHORT_OF_MANY, SHORT_OF_MANY + 1]
#: What the host can run, from little to much.
RUNNABLE = [
    name
    for name in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")
    if not lacking("cpu", named_target(name))
]
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
    tensor, want = Tensor.input("x", x.shape), _order(x, 1, descending)
    np.testing.assert_array_equal(tensor.argsort(-1, descending).prepare()(x=x), want)
    values = tensor.sort(-1, descending).prepare()(x=x)
    assert values.tobytes() == np.take_along_axis(x, want, 1).tobytes()


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "int32", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 90), (5, 128), (8, 37), (16, 64), (33, 260), (2, 9, 70)])
def test_any_machine(target: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Lanes are as many as rows and registers allow; rows that do not fill a vector are there."""
    x = _data(dtype, shape, 4)
    want = _order(x, -1, True)
    tensor = Tensor.input("x", x.shape, dtype)
    order, values = (
        t.prepare(target=target)(x=x) for t in (tensor.argsort(-1, True), tensor.sort(-1, True))
    )
    np.testing.assert_array_equal(order, want)
    assert values.tobytes() == np.take_along_axis(x, want, -1).tobytes()


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
    want = _order(x, axis, False)
    np.testing.assert_array_equal(one, want)
    np.testing.assert_array_equal(one, two)
    values = Tensor.input("x", shape).sort(axis).prepare()(x=x)
    assert values.tobytes() == np.take_along_axis(x, want, axis).tobytes()


@pytest.mark.parametrize("most", [SHORT, SHORT_IF_MANY, 2000, None])
def test_a_length_that_varies(most: int | None) -> None:
    n, rows = Variable("n", 0, most), Variable("rows", 0, 40)
    tensor = Tensor.input("x", (rows, n))
    plan, values = tensor.argsort(-1).prepare(), tensor.sort(-1).prepare()
    for length in [k for k in (0, 1, 5, 64, 500, 1023, 1500) if most is None or k <= most]:
        for count in (1, 8, 13):
            x = _data("float32", (count, length), length)
            want = _order(x, 1, False)
            np.testing.assert_array_equal(plan(x=x), want)
            assert values(x=x).tobytes() == np.take_along_axis(x, want, 1).tobytes()


def test_one_long_row() -> None:
    x = _data("int64", (100_003,), 5)
    np.testing.assert_array_equal(
        Tensor.input("x", x.shape, "int64").argsort(0, True).prepare()(x=x), _order(x, 0, True)
    )


@pytest.mark.parametrize("length", [300, 70_000])
@pytest.mark.parametrize("odd", [-0.0, np.nan, 0.0])
def test_zeros_and_nan_stay_as_they_stood(length: int, odd: float) -> None:
    """Their keys do not tell them apart: what is equal keeps its order, and every bit."""
    x = np.random.default_rng(2).standard_normal((2, length), dtype=np.float32)
    x[0, ::3], x[0, 1::6] = odd, 0.0
    x.view(np.uint32)[0, 4::60] = 0xFFC01234  # a NaN of its own
    for descending in (False, True):
        want = np.take_along_axis(x, _order(x, 1, descending), 1)
        got = Tensor.input("x", x.shape).sort(-1, descending).prepare()(x=x)
        assert got.tobytes() == want.tobytes()
