"""Medians and quantiles, reductions without NaN, means, covariances: as NumPy has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.against_numpy import Array, agree, check, run, same

import semel
from semel import GraphError, Tensor, Variable
from semel.tensor.statistics import _METHODS

R = np.random.default_rng(7)
X = R.normal(size=(5, 6)).astype(np.float32)
GAPS = X.copy()
GAPS[1, 2] = GAPS[3] = np.nan
ENDLESS = X.copy()
ENDLESS[0, :2], ENDLESS[1, 0] = np.inf, -np.inf
WHOLE = (X * 10).astype(np.int64)
AXES: tuple[Any, ...] = (None, 0, -1, (0, 1))
QUANTILES: tuple[Any, ...] = (0.3, [0, 0.25, 0.5, 1], np.array([[0.1, 0.9]]))


@pytest.mark.parametrize(
    "name",
    [
        "median",
        "nanmedian",
        "nansum",
        "nanprod",
        "nanmax",
        "nanmin",
        "nanmean",
        "nanvar",
        "nanstd",
        "ptp",
    ],
)
def test_reductions(name: str) -> None:
    for x in (X, GAPS, ENDLESS, WHOLE):
        for axis in AXES:
            same(name, x, axis=axis, keepdims=axis == 0)
    check(getattr(Tensor(X), name)(dim=1, keepdim=True), getattr(np, name)(X, 1, keepdims=True))


def test_places_and_running_results_without_nan() -> None:
    gaps = GAPS.copy()
    gaps[3, 1] = 2
    for axis in (None, 0, 1):
        for name in ("nancumsum", "nancumprod"):
            same(name, gaps, axis, rtol=1e-5)
    for axis in (None, 1):
        same("nanargmax", gaps, axis)
        same("nanargmin", gaps, axis, keepdims=True)
    assert run(semel.nanargmax(GAPS, 1))[3] == 0
    same("nanvar", GAPS, 1, ddof=1)
    same("nanstd", X, 0, ddof=2)


@pytest.mark.parametrize("method", _METHODS)
def test_what_lies_between_elements(method: str) -> None:
    q = np.linspace(0, 1, 21)
    for count in (1, 2, 5, 6):
        same("quantile", np.arange(float(count)) ** 2, q, method=method)
    same("quantile", X.astype(np.float64), [0.2, 0.7], axis=1, method=method)
    same("nanquantile", GAPS.astype(np.float64), [0.2, 0.7], axis=1, method=method)


def test_quantiles() -> None:
    for q in QUANTILES:
        for axis in AXES:
            same("quantile", X, q, axis=axis, keepdims=axis == 0, rtol=1e-5)
            same("nanquantile", GAPS, q, axis=axis, keepdims=axis == -1, rtol=1e-5)
            same("quantile", GAPS, q, axis=axis, rtol=1e-5)
    same("percentile", X, [10, 90], axis=0, rtol=1e-5)
    same("nanpercentile", GAPS, 30, axis=0, rtol=1e-5)
    check(Tensor(X).percentile(50, dim=1, interpolation="lower"),
          np.percentile(X, 50, axis=1, method="lower"))  # fmt: skip
    assert semel.quantile([np.inf, np.inf], 0.3).item() == np.inf  # NumPy has no way between them
    late = Tensor([0.5, 2.0]) * 1.0  # known to a run only
    np.testing.assert_array_equal(run(semel.quantile([1.0, 3.0], late)), [2, np.nan])


def test_symbolic_sizes_have_medians() -> None:
    x = Tensor.input("x", (Variable("n", 0, 100), 3))
    functions: dict[str, tuple[Callable[[Any], Tensor], Callable[[Any], Any]]] = {
        "median": (lambda t: t.median(0), lambda a: np.median(a, 0)),
        "quantile": (lambda t: t.quantile([0.2, 0.5], 0), lambda a: _quantile(a, [0.2, 0.5])),
        "nanquantile": (lambda t: t.nanquantile(0.3, 0), lambda a: _quantile(a, 0.3)),
        "cov": (lambda t: t.cov(rowvar=False), lambda a: np.cov(a, rowvar=False)),
        "nanmean": (lambda t: t.nanmean(), np.nanmean),
    }  # fmt: skip
    agree(functions, x, [R.normal(size=(n, 3)).astype(np.float32) for n in (7, 2, 0, 40)])


def _quantile(a: Array, q: Any) -> Array:
    if len(a):
        return np.asarray(np.quantile(a, q, axis=0))
    return np.full((*np.shape(q), 3), np.nan)


def test_means_and_relations() -> None:
    weights = R.uniform(size=6).astype(np.float32)
    for axis in (None, 0, 1):
        same("average", X, axis)
        same("average", X, axis, np.abs(X))
        same("average", X, axis, np.abs(X), returned=True)
    same("average", X, 1, weights, keepdims=True)
    same("average", WHOLE, 0, [1, 2, 3, 4, 5])
    same("average", X, 1, returned=True)
    for options in ({}, {"rowvar": False}, {"bias": True}, {"ddof": 0}):
        same("cov", X, rtol=1e-4, **options)
    for args in ((X,), (X[0],), (X, X * 2 + 1)):
        same("cov", *args, rtol=1e-4)
        same("corrcoef", *args, rtol=1e-4)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: semel.quantile(X, 1.5), r"\[quantile\] q must lie in \[0, 1\], got 1\.5"),
    (lambda: semel.percentile(X, [5, 101]), r"\[percentile\] q must lie in \[0, 100\], got \[5\.0"),
    (lambda: semel.quantile(X, 0.5, method="cubic"),
     r"\[quantile\] method must be one of linear, lower, .*, got 'cubic'"),
    (lambda: semel.median(X, 2), r"\[median\] axis must lie in \[-2, 2\), got axis=2"),
    (lambda: semel.average(X, None, [1, 2]),
     r"\[average\] weights must have the shape of f32\[5,6\], or one axis .* axis=None"),
    (lambda: semel.cov(X[None]), r"\[cov\] needs at most 2 axes, got f32\[1,5,6\]"),
])  # fmt: skip
def test_what_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()
