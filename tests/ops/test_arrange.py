"""Products, differences, elements in other places, and tensors from nothing: as NumPy has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.against_numpy import agree, check, same

import semel
from semel import GraphError, Tensor, Variable

R = np.random.default_rng(1)
X, Y = R.normal(size=(2, 4, 5))
I = R.integers(-9, 9, (4, 5))  # noqa: E741
CUBE = R.normal(size=(2, 3, 4))
Array = np.ndarray[Any, Any]


def test_differences() -> None:
    for x in (X, I, X > 0):
        for n in (0, 1, 2, 6):
            same("diff", x, n, 0)
            same("diff", x, n)
    same("diff", X, prepend=1, append=Y)
    same("diff", X, axis=0, prepend=Y[:2])
    same("ediff1d", I, to_end=[1, 2], to_begin=9)
    same("ediff1d", X)
    for options in ({}, {"axis": 0}, {"axis": (0, 1)}, {"edge_order": 2}):
        same("gradient", X, **options)
        same("gradient", X, 2.0, **options)
    for order in (1, 2):
        same("gradient", X, [0, 1, 2.5, 4], np.arange(5) ** 1.5, edge_order=order)
    same("gradient", X[:2, :2])
    same("gradient", X, 2.0, np.arange(5) ** 1.5)
    same("trapezoid", X)
    same("trapezoid", X, dx=0.5, axis=0)
    same("trapezoid", X, np.arange(4) ** 2.0, axis=0)
    same("trapezoid", X, Y, axis=0)
    for name in ("cumulative_sum", "cumulative_prod"):
        same(name, X, axis=0)
        same(name, I, axis=1, include_initial=True)
        same(name, X[0], include_initial=True)


def test_products() -> None:
    same("inner", X, Y)
    same("inner", CUBE, X[:, :4])
    same("inner", X[0], Y[0])
    same("inner", 2.0, X)
    same("vdot", X, Y)
    same("vecdot", X, Y[0])
    same("tensordot", X, Y)
    same("tensordot", X, Y, axes=0)
    same("tensordot", X[0], Y[0], 1)
    same("tensordot", CUBE, X, axes=([2], [0]))
    same("tensordot", CUBE, R.normal(size=(3, 2, 6)), axes=([0, 1], [1, 0]))
    a, b = R.normal(size=(2, 4, 3))
    same("cross", a, b)
    same("cross", a, b[0])
    check(semel.cross(a.T, b.T, dim=0), np.cross(a, b).T)
    for pair in ((X, Y), (X[0], Y[0]), (CUBE, X), (I, I[0]), (2, X)):
        same("kron", *pair)


def test_equality_of_all() -> None:
    gaps = np.array([0.0, np.nan, 1])
    for other in (X + 1e-9, Y):
        same("allclose", X, other)
    for equal_nan in (False, True):
        same("allclose", gaps, gaps, equal_nan=equal_nan)
        same("array_equal", gaps, gaps, equal_nan=equal_nan)
        same("isclose", gaps, gaps, equal_nan=equal_nan)
    for other in (X, Y, X[0], I):
        same("array_equal", X, other)
    same("array_equal", I, I + 0.0)


def test_turned() -> None:
    for k in range(-1, 5):
        same("rot90", X, k)
        same("rot90", CUBE, k, (2, 0))
    for name in ("fliplr", "flipud"):
        same(name, X)


def test_left_out_and_put_in() -> None:
    same("append", X, Y)
    same("append", X, Y, 0)
    same("append", X[0], 3)
    for place in (0, 2, -1, [0, 2], [1, -1], slice(1, 3), slice(None, None, 2)):
        same("delete", X, place, 1)
        same("insert", X, place, 7, 1)
    same("delete", X, 3)
    same("delete", X, X[0] > 0, 1)
    same("insert", X, 1, Y[0], 0)
    same("insert", X, [1, 3], Y[:2], 0)
    same("insert", X, 4, 9, 0)
    same("insert", X, 1, Y[:, 0], 1)
    same("insert", X, 2, 99)
    same("insert", X, [2], Y[:, :1], 1)
    same("insert", X[0], 1, [7, 8])
    same("diagflat", X[:2, :2], 1)


def _put(x: Array, *args: Any) -> Array:
    changed = x.copy()
    np.put_along_axis(changed, *args)
    return changed


def test_one_of_several() -> None:
    order = np.argsort(X, 1)[:, :2]
    for args in ((order, 9.0, 1), (order[:1], Y[:1, :2], 1), (order[0], np.array([8.0, 9]), None)):
        check(semel.put_along_axis(X, *args), _put(X, *args))
    same("select", [X > 1, X > 0], [X, I], -1)
    same("select", [X > 1, X > 0], [X, Y])
    k = R.integers(0, 3, (4, 5))
    same("choose", k, [X, Y, I])
    for mode in ("wrap", "clip"):
        same("choose", k + 1, [X, Y, I[0]], mode=mode)
    same("extract", X > 0, X)
    same("compress", [True, False, True, True], X, axis=0)
    same("compress", [0, 1, 1], X, axis=1)
    check(semel.partition(X, 2, 0), np.sort(X, 0))
    check(semel.argpartition(X, [1, -1]), np.argsort(X))


def test_from_nothing() -> None:
    for options in ({}, {"endpoint": False}):
        same("linspace", 0, 2, 5, **options)
        same("logspace", 0, 2, 7, dtype="float64", **options)
        for ends in ((1, 1000), (-2, -50)):
            same("geomspace", *ends, 4, dtype="float64", **options)
    same("logspace", 0, 2, 7, base=2.0, dtype="float64")
    same("identity", 3)
    same("tril_indices", 4)
    same("tril_indices", 3, -1, 5)
    same("triu_indices", 4, 1, 6)
    assert semel.empty_like(I).dtype == semel.int64


def test_sizes_may_be_symbolic() -> None:
    x = Tensor.input("x", (Variable("n", 3, 50), 3), "float64")
    functions: dict[str, tuple[Callable[[Any], Tensor], Callable[[Any], Any]]] = {
        "diff": (lambda t: t.diff(2, 0), lambda a: np.diff(a, 2, 0)),
        "delete": (lambda t: t.delete(-1, 0), lambda a: np.delete(a, -1, 0)),
        "insert": (lambda t: t.insert(2, 5, 0), lambda a: np.insert(a, 2, 5, 0)),
        "kron": (lambda t: t.kron([1.0, 2.0]), lambda a: np.kron(a, [1.0, 2.0])),
        "tensordot": (lambda t: t.tensordot(t, ((0,), (0,))),
                      lambda a: np.tensordot(a, a, ((0,), (0,)))),
        "rot90": (semel.rot90, np.rot90),
        "gradient": (lambda t: t.gradient(axis=0), lambda a: np.gradient(a, axis=0)),
        "cross": (lambda t: t.cross([1.0, 2.0, 3.0]), lambda a: np.cross(a, [1.0, 2.0, 3.0])),
    }  # fmt: skip
    agree(functions, x, [R.normal(size=(n, 3)) for n in (6, 3, 40)])


@pytest.mark.parametrize(("call", "message"), [
    (lambda: semel.diff(X, -1), r"\[diff\] n must be >= 0, got -1"),
    (lambda: semel.gradient(X[:1]), r"\[gradient\] axis 0 must have 2 elements or more"),
    (lambda: semel.gradient(X, 1, 2, 3), r"\[gradient\] needs one spacing, or one for each of 2"),
    (lambda: semel.gradient(X, edge_order=3), r"\[gradient\] edge_order must be 1 or 2, got 3"),
    (lambda: semel.gradient(X, X), r"\[gradient\] places must have one axis"),
    (lambda: semel.inner(X, Y[:, :3]), r"\[inner\] summed dims must agree, got 5 and 3"),
    (lambda: semel.tensordot(X, Y, 3), r"\[tensordot\] axes must lie in \[0, 2\], got 3"),
    (lambda: semel.tensordot(X, Y, ((0,), (0, 1))), r"\[tensordot\] axes must come in pairs"),
    (lambda: semel.tensordot(X, Y, (0, 1, 0)), r"\[tensordot\] axes must be a number or a pair"),
    (lambda: semel.cross(X, Y), r"\[cross\] axis 1 must have size 3, got f64\[4,5\]"),
    (lambda: semel.rot90(X, 1, (0, 0)), r"\[rot90\] axes must be two different ones, got \(0, 0\)"),
    (lambda: semel.fliplr(X[0]), r"\[fliplr\] needs at least 2 axes, got f64\[5\]"),
    (lambda: semel.flipud(1.0), r"\[flipud\] needs at least 1 axis, got f32"),
    (lambda: semel.delete(X, 5, 1), r"\[delete\] places must lie in \[-5, 5\), got \[5\]"),
    (lambda: semel.delete(X, Tensor.input("i", (1,), "int64"), 1), r"\[delete\] places must be kn"),
    (lambda: semel.insert(X, 9, 0, 1), r"\[insert\] index must lie in \[-5, 5\], got 9"),
    (lambda: semel.put_along_axis(X, [0], 1), r"\[put_along_axis\] indices must have the rank of"),
    (lambda: semel.select([X > 0], []), r"\[select\] needs as many choices as conditions, got 0"),
    (lambda: semel.choose(I, [X], "up"), r"\[choose\] mode must be 'raise', 'clip' or 'wrap'"),
    (lambda: semel.compress([X[0] > 0], X, 1), r"\[compress\] condition must have one axis"),
    (lambda: semel.partition(X, 5), r"\[partition\] kth must lie in \[-5, 5\), got 5"),
    (lambda: semel.cumulative_sum(X), r"\[cumulative_sum\] axis must be given for f64\[4,5\]"),
    (lambda: semel.geomspace(-1, 1), r"\[geomspace\] start and stop must be numbers of one sign"),
    (lambda: semel.logspace(0, 1, -1), r"\[logspace\] num must be an int >= 0, got -1"),
])  # fmt: skip
def test_what_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()
