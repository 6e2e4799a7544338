"""Functions made of others, against references of float64 and NumPy, special values included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.against_numpy import Array, agree, check, run, same

import semel
from semel import GraphError, Tensor, Variable

R = np.random.default_rng(5)
ODD = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2.5, -1e308, 5e-324])
WIDE = R.normal(size=300) * 10.0 ** R.uniform(-280, 280, 300)


def each(function: Callable[[float], float], x: Array) -> Array:
    return np.array([function(float(v)) for v in x])


def ulps(got: Array, want: Array) -> float:
    return float(np.max(np.abs(got - want) / np.spacing(np.abs(want))))


def test_erfc() -> None:
    x = np.concatenate([R.uniform(-6, 26, 1000), np.linspace(-0.6, 0.6, 301)])
    assert ulps(run(semel.erfc(x)), each(math.erfc, x)) <= 5
    np.testing.assert_array_equal(run(semel.erfc([np.inf, -np.inf, 0.0, 40.0])), [0, 2, 1, 0])
    narrow = np.linspace(-3, 9, 400, dtype=np.float32)
    assert ulps(run(semel.erfc(narrow)), each(math.erfc, narrow).astype(np.float32)) <= 1


def test_erfinv() -> None:
    x = np.concatenate([R.uniform(-1, 1, 500), 10.0 ** -R.uniform(0, 300, 50)])
    found = run(semel.erfinv(x))
    # As exact as erf can tell; beyond, erfc of the result is what was asked for.
    np.testing.assert_allclose(each(math.erf, found), x, rtol=1e-14)
    near = 1 - 10.0 ** -R.uniform(1, 15, 200)
    np.testing.assert_allclose(each(math.erfc, run(semel.erfinv(near))), 1 - near, rtol=2e-14)
    ends = run(semel.erfinv([1.0, -1.0, 2.0, np.nan, 0.0, -0.0]))
    np.testing.assert_array_equal(ends, [np.inf, -np.inf, np.nan, np.nan, 0, 0])


def test_lgamma_and_digamma() -> None:
    x = np.concatenate([R.uniform(0.01, 30, 400), 10.0 ** R.uniform(-10, 300, 100),
                        R.uniform(-20, 0, 200), [1, 2, 3]])  # fmt: skip
    want = each(math.lgamma, x)
    assert np.max(np.abs(run(semel.lgamma(x)) - want) / np.maximum(1, np.abs(want))) < 2e-14
    ends = run(semel.lgamma([0.0, -1, np.inf, -np.inf, np.nan, 1, 2]))
    np.testing.assert_array_equal(ends, [np.inf, np.inf, np.inf, np.inf, np.nan, 0, 0])
    narrow = np.linspace(0.1, 12, 300, dtype=np.float32)
    np.testing.assert_allclose(
        run(semel.lgamma(narrow)), each(math.lgamma, narrow), rtol=2e-7, atol=1e-9
    )
    # Each is 1/x more than the one before; and the first is known.
    y = np.concatenate([R.uniform(0.1, 40, 200), R.uniform(-9, 0, 100)])
    step = run(semel.digamma(y + 1)) - run(semel.digamma(y))
    np.testing.assert_allclose(step, 1 / y, rtol=1e-12, atol=1e-11)
    assert abs(run(semel.digamma(np.array(1.0))) + 0.5772156649015329) < 1e-15
    ends = run(semel.digamma([0.0, -1, np.inf, np.nan]))
    np.testing.assert_array_equal(ends, [-np.inf, np.nan, np.inf, np.nan])


def test_roots_and_angles() -> None:
    assert ulps(run(semel.cbrt(WIDE)), np.cbrt(WIDE)) <= 2
    same("cbrt", np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 8, -27]))
    narrow = R.normal(size=200).astype(np.float32)
    assert ulps(run(semel.cbrt(narrow)), np.cbrt(narrow.astype(np.float64)).astype(np.float32)) <= 1
    for name in ("sinc", "deg2rad", "rad2deg", "degrees", "radians"):
        same(name, R.uniform(-9, 9, 200))
    assert run(semel.sinc([0.0, 1.0, -7.0])).tolist() == [1, 0, 0]
    x = np.concatenate([R.uniform(0.01, 0.99, 200), 10.0 ** -R.uniform(0.1, 300, 50)])
    np.testing.assert_allclose(
        run(semel.logit(x)), np.log(x) - np.log1p(-x), rtol=1e-13, atol=1e-15
    )
    np.testing.assert_array_equal(run(semel.logit([0.0, 1.0, 2.0])), [-np.inf, np.inf, np.nan])
    check(semel.logit([0.0, 1.0], eps=0.25), [-math.log(3), math.log(3)])


PAIRS = ["hypot", "logaddexp", "logaddexp2", "fmax", "fmin", "heaviside", "nextafter"]


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two(name: str) -> None:
    grids = [grid.ravel() for grid in np.meshgrid(ODD, ODD)]
    for dtype in (np.float64, np.float32):
        with np.errstate(over="ignore"):
            odd = [grid.astype(dtype) for grid in grids]
        same(name, *odd, rtol=1e-5)
    a, b = R.normal(size=(2, 300)) * 5
    same(name, a, b, rtol=1e-14)
    same(name, a, 1.5)
    if name != "nextafter":
        same(name, WIDE, WIDE[::-1], rtol=1e-14)
    if name in ("fmax", "fmin"):
        same(name, np.arange(5), 3)


def test_integers() -> None:
    i, j = R.integers(-1000, 1000, (2, 60))
    i[:3], j[:2] = 0, 0
    for name in ("gcd", "lcm"):
        same(name, i, j)
        same(name, i.astype(np.int32), 12)
        same(name, np.abs(i).astype(np.uint16), np.uint16(8))
    with pytest.raises(GraphError, match=r"\[gcd\] needs integers, got f32\[1\] and f32\[1\]"):
        semel.gcd([1.0], [2.0])


def test_signs_and_numbers() -> None:
    for name in ("signbit", "isposinf", "isneginf"):
        same(name, ODD)
        if name == "signbit":
            same(name, np.array([-1, 0, 1]))
    same("nan_to_num", ODD)
    same("nan_to_num", ODD, nan=1.0, posinf=2.0, neginf=-2.0)
    same("nan_to_num", ODD[:7].astype(np.float16))
    same("nan_to_num", np.arange(3))
    np.testing.assert_array_equal(run(semel.xlogy([0.0, 0, 2], [0.0, np.nan, 1])), [0, np.nan, 0])


def test_generated_code_gives_the_same() -> None:
    x = Tensor.input("x", (Variable("n", 1, 500),))
    functions: dict[str, tuple[Callable[[Any], Tensor], Callable[[Any], Any]]] = {
        "erfc": (semel.erfc, lambda a: each(math.erfc, a)),
        "erfinv": (lambda t: t.erf().erfinv(), lambda a: a),
        "lgamma": (semel.lgamma, lambda a: each(math.lgamma, a)),
        "cbrt": (semel.cbrt, np.cbrt),
        "hypot": (lambda t: t.hypot(3.0), lambda a: np.hypot(a, np.float32(3))),
        "gcd": (lambda t: (t * 9).int().gcd(6), lambda a: np.gcd((a * 9).astype(np.int32), 6)),
    }
    values = [R.uniform(0.1, 2, n).astype(np.float32) for n in (200, 1)]
    agree(functions, x, values, rtol=3e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ldexp_rounds_once(dtype: str) -> None:
    info = np.finfo(dtype)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, info.smallest_subnormal, info.max, info.tiny, 1e-30]
    x = np.array([*odd, *R.normal(size=40)], np.float64).astype(dtype)[:, None]
    powers = [0, 1, -1, 14, -20, 126, -140, 200, -277, 1023, -1022, -1060, 1100, -2098, 2098, 9999]
    exponents = np.array([*powers, *R.integers(-1100, 1100, 60)], np.int32)
    with np.errstate(all="ignore"):
        want = np.ldexp(x, exponents)
    found = run(semel.ldexp(x, Tensor(exponents).cast(dtype) if dtype != "float16" else exponents))
    np.testing.assert_array_equal(found.astype(dtype), want)
    assert semel.ldexp(0.0, 200).item() == 0
    assert semel.ldexp(1e-30, 200).item() == float(np.ldexp(np.float32(1e-30), 200))
