"""Rewrites that need numbers to see that they are wrong: each with one that tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.ir.graph import Graph
from semel.passes import run_passes

Array = np.ndarray[Any, np.dtype[Any]]


def data(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# ---------------------------------------------------------------- division by powers of two


@pytest.mark.parametrize("exponent", [-24, -20, -16, -15, -3, 3, 14, 15])
def test_half_numbers_divided_by_powers_of_two(exponent: int) -> None:
    """1 / 2**-20 is infinite in float16, while quotients by it are not."""
    x = np.array([0.0, 2.0**-24, -(2.0**-20), 2.0**-14, 1.5, -1000], np.float16)
    result = Tensor.input("x", x.shape, "float16") / 2.0**exponent
    with np.errstate(over="ignore"):
        want = (x.astype(np.float32) / np.float32(2.0**exponent)).astype(np.float16)
    np.testing.assert_array_equal(semel.prepare(result, threads=1)(x=x), want)


@pytest.mark.parametrize(("divisor", "op"), [(2.0**-14, "mul"), (-8.0, "mul"), (3.0, "div")])
def test_only_exact_reciprocals_multiply(divisor: float, op: str) -> None:
    result = Tensor.input("x", (4,), "float16") / divisor
    names = {n.op.name for n in run_passes(Graph((result.node,))).nodes}
    assert op in names and not {"mul", "div"} - {op} & names


# ---------------------------------------------------------------- random bits


@pytest.mark.parametrize("word", [0, 7])
def test_a_key_of_equal_words_gives_different_bits(word: int) -> None:
    """The words of such a key are one repeated number; the bits are not."""
    key = Tensor.full((2,), word, dtype="uint32")
    got = semel.prepare(Tensor.rand((64,), key=key), threads=1)()
    assert len(np.unique(got)) > 60
    other = semel.prepare(Tensor.rand((64,), key=Tensor.key(word << 32 | word)), threads=1)()
    np.testing.assert_array_equal(got, other)


# ---------------------------------------------------------------- values kept between phases


@pytest.mark.parametrize("stored", [False, True])
def test_rows_of_sums_that_meet_other_rows(stored: bool) -> None:
    """Each row is reduced, and every row reads the sums of all: columns become rows."""
    x = data(1, 16, 16)
    w = Tensor.input("x", x.shape).exp()
    turned = w.sum(1).reshape(1, 16) + w
    got = semel.prepare([turned, w] if stored else [turned], threads=1)(x=x)
    e = np.exp(x)
    np.testing.assert_allclose(got[0] if stored else got, e.sum(1).reshape(1, 16) + e, rtol=1e-5)
