"""Contractions and convolutions with dims of size 1 anywhere, and constants made of few numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.ops.windows_reference import np_conv

import semel
from semel import Tensor

Array = np.ndarray[Any, np.dtype[Any]]


def data(seed: int, *shape: int, dtype: str = "float32") -> Array:
    array = np.random.default_rng(seed).integers(-5, 6, shape)
    return array.astype(dtype)


def run(result: Tensor, x: Array) -> Any:
    return semel.prepare(result, threads=1)(x=x)


def given(x: Array) -> Tensor:
    return Tensor.input("x", x.shape, str(x.dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("batch", [(1,), (2,), (2, 1), (1, 3), (2, 3)])
def test_products_of_unit_dims(batch: tuple[int, ...], dtype: str) -> None:
    """One program with a constant right operand of every shape that fits."""
    outputs, wanted = [], []
    m, k = 3, 1
    x = data(0, *batch, m, k, dtype=dtype)
    for columns, ones in itertools.product((1, 5, 100), (0, 1, len(batch))):
        vector = data(columns, columns, dtype=dtype)
        matrix = vector.reshape(*(1,) * ones, k, columns)
        outputs.append(given(x) @ Tensor(vector).reshape(matrix.shape))
        outputs.append(given(x) @ Tensor(matrix))
        outputs.append(given(x) @ Tensor(matrix).expand(*batch, k, columns))
        wanted += [x @ matrix] * 3
    for got, want in zip(semel.prepare(outputs, threads=1)(x=x), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_batch_of_columns_times_one_number() -> None:
    x = data(1, 2, 3, 1)
    np.testing.assert_array_equal(run(given(x) @ Tensor.ones(1, 1, 1), x), x)
    number = Tensor(np.float32(3)).reshape(1, 1, 1)
    np.testing.assert_array_equal(run(given(x) @ number, x), 3 * x)
    np.testing.assert_array_equal(run(number @ given(x).mT, x), 3 * x.swapaxes(-1, -2))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [1, 100])
def test_products_of_bytes_with_unit_dims(columns: int, dtype: str) -> None:
    x = np.abs(data(2, 2, 3, 1)).astype(dtype)
    vector = np.abs(data(3, columns)).astype(dtype)
    got = run(given(x).matmul_integer(Tensor(vector).reshape(1, 1, columns)), x)
    np.testing.assert_array_equal(got, x.astype("int32") @ vector.astype("int32").reshape(1, -1))


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(
    ("batch", "channels", "filters", "groups"),
    [(1, 1, 1, 1), (2, 1, 1, 1), (1, 1, 100, 1), (2, 3, 1, 1), (1, 2, 2, 2), (2, 2, 4, 2)],
)
def test_convolutions_of_unit_dims(
    batch: int, channels: int, filters: int, groups: int, padding: int
) -> None:
    x = data(4, batch, channels, 4, 1)
    weight = data(5, filters, channels // groups, 1, 1)
    got = run(given(x).conv(Tensor(weight), padding=padding, groups=groups), x)
    want = np_conv(x, weight, padding=padding, groups=groups)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)
