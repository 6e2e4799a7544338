"""Where numbers lie among others and how many lie where: as NumPy has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.against_numpy import agree, check, same

import semel
from semel import GraphError, IndexRangeError, Tensor, Variable

R = np.random.default_rng(3)
LINE = np.sort(R.integers(0, 20, 13)).astype(np.float32)
SOUGHT = np.array([-1, 0, 3, 19.5, 30, np.nan, *LINE], np.float32)
DATA = R.normal(size=400)
COUNTED = R.integers(0, 9, 30)


@pytest.mark.parametrize("side", ["left", "right"])
def test_places_among_sorted_numbers(side: str) -> None:
    mixed = R.permutation(13)
    same("searchsorted", LINE, SOUGHT, side)
    same("searchsorted", np.append(LINE, [np.nan] * 2).astype(np.float32), SOUGHT, side)
    same("searchsorted", LINE[mixed], SOUGHT, side, sorter=np.argsort(LINE[mixed]))
    same("searchsorted", LINE.astype(np.int8), np.arange(-3, 25, dtype=np.int8), side)
    same("searchsorted", np.zeros(0), SOUGHT, side)
    same("searchsorted", LINE, 4.0, side)
    check(Tensor(LINE).searchsorted(SOUGHT, right=True), np.searchsorted(LINE, SOUGHT, "right"))


def test_bins() -> None:
    for edges in (np.array([0.0, 5, 10]), np.array([10.0, 5, 0]), np.array([3.0]), np.zeros(0)):
        for right in (False, True):
            same("digitize", SOUGHT[:5], edges, right)
    for tests in (LINE, np.arange(40.0), [3, 4], 3, []):
        for invert in (False, True):
            same("isin", SOUGHT, tests, invert=invert)
    x = np.array([-1, 0, 0.5, 1, 2, 4, 5, np.nan])
    places, values = np.array([0.0, 1, 2.5, 4]), np.array([1.0, -1, 3, 2])
    same("interp", x, places, values)
    same("interp", x, places, values, left=-9, right=9)
    same("interp", x[:7], places[:1], values[:1])


def test_counts() -> None:
    check(semel.bincount(COUNTED, length=9), np.bincount(COUNTED, minlength=9))
    weights = COUNTED * 0.5
    check(semel.bincount(COUNTED, weights, length=9), np.bincount(COUNTED, weights, 9))
    np.testing.assert_array_equal(semel.bincount(COUNTED).numpy(), np.bincount(COUNTED))
    assert semel.bincount(COUNTED, minlength=12).numpy().shape == (12,)
    assert semel.bincount(np.zeros(0, np.int64)).numpy().tolist() == []
    with pytest.raises(IndexRangeError, match=r"\[bincount\]"):
        semel.bincount(COUNTED, limit=3).numpy()
    with pytest.raises(IndexRangeError, match=r"number must lie in \[0, 1048576\), got -1"):
        semel.bincount([3, -1]).numpy()
    with pytest.raises(IndexRangeError, match=r"\[bincount\] number must lie in \[0, 4\), got 4"):
        semel.bincount(COUNTED, length=4).numpy()


def test_histograms() -> None:
    settings: list[dict[str, Any]] = [
        {}, {"bins": 7}, {"bins": 5, "range": (-1, 1)}, {"density": True}, {"range": (2, 2)},
        {"bins": np.array([-1, 0, 0.5, 2])}, {"bins": np.array([0, 1, 5]), "density": True},
    ]  # fmt: skip
    for x in (DATA, DATA.astype(np.float32), COUNTED):
        for options in settings:
            same("histogram", x, **options)
    same("histogram", DATA, weights=np.abs(DATA))
    same("histogram", DATA.reshape(20, 20), 4)
    same("histogram_bin_edges", COUNTED, 3)
    same("histogram", np.zeros(0), 3)


def test_sizes_may_be_symbolic() -> None:
    x = Tensor.input("x", (Variable("n", 0, 300),), "float64")
    functions: dict[str, tuple[Callable[[Any], Tensor], Callable[[Any], Any]]] = {
        "searchsorted": (lambda t: t.sort().searchsorted([-1.0, 0.5, 3.0]),
                         lambda a: np.searchsorted(np.sort(a), [-1.0, 0.5, 3.0])),
        "histogram": (lambda t: t.histogram(5, (-2, 2))[0],
                      lambda a: np.histogram(a, 5, (-2, 2))[0]),
        "isin": (lambda t: t.isin(DATA[:40]), lambda a: np.isin(a, DATA[:40])),
        "digitize": (lambda t: t.digitize([0.0, 1.0]), lambda a: np.digitize(a, [0.0, 1.0])),
    }  # fmt: skip
    agree(functions, x, [DATA[:100], DATA[:1], DATA[:0], DATA[:255]])


def test_indices_of_several_axes() -> None:
    same("flatnonzero", DATA.reshape(20, 20) > 0)
    same("unravel_index", [0, 7, 29], (5, 6))
    for mode in ("raise", "clip", "wrap"):
        same("ravel_multi_index", ([0, 3], [5, 2]), (5, 6), mode=mode)
    same("ravel_multi_index", ([0, 9], [5, -2]), (5, 6), mode=("clip", "wrap"))
    with pytest.raises(IndexRangeError, match=r"\[unravel_index\]"):
        semel.unravel_index([6], (2, 3))


@pytest.mark.parametrize(("call", "message"), [
    (lambda: semel.searchsorted(LINE, 1, "middle"), r"\[searchsorted\] side must be 'left' or 'r"),
    (lambda: semel.searchsorted([LINE], 1), r"\[searchsorted\] the sorted tensor must have one ax"),
    (lambda: semel.digitize(LINE, [[1.0]]), r"\[digitize\] bins must have one axis, got f32"),
    (lambda: semel.bincount([0.5]), r"\[bincount\] needs integers along one axis, got f32\[1\]"),
    (lambda: semel.bincount([1], [[1]]), r"\[bincount\] weights must have the shape of i64\[1\]"),
    (lambda: semel.histogram(LINE, 0), r"\[histogram\] bins must be > 0, got 0"),
    (lambda: semel.histogram(LINE, 2, (1, 0)), r"\[histogram\] range must be two ascending"),
    (lambda: semel.histogram(LINE, [[1.0]]), r"\[histogram\] edges must have one axis"),
    (lambda: semel.interp(LINE, [], []), r"\[interp\] needs a point at least"),
    (lambda: semel.interp(LINE, 1.0, 2.0), r"\[interp\] xp and fp must have one axis"),
    (lambda: semel.ravel_multi_index(([1],), (2, 3)), r"\[ravel_multi_index\] needs an index and"),
    (lambda: semel.ravel_multi_index(([1],), (2,), "up"), r"\[ravel_multi_index\] mode must be"),
])  # fmt: skip
def test_what_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()
