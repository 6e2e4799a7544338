"""semel.linalg against NumPy: stacks, shapes, both floats, symbolic sizes, bad matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from tests.ops.together import Together

import semel
from semel import GraphError, Tensor, Variable, linalg

RNG = np.random.default_rng(0)
TOLERANCE = {"float64": 1e-11, "float32": 5e-4}
PAIR = ("float64", "float32")


def matrices(*shape: int, dtype: str = "float64") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", PAIR)
def test_elimination_is_numpys(dtype: str) -> None:
    cases = Together(TOLERANCE[dtype])
    a, b, v = matrices(2, 5, 5, dtype=dtype), matrices(5, 3, dtype=dtype), matrices(5, dtype=dtype)
    s = a @ a.swapaxes(1, 2) + np.eye(5, dtype=dtype)
    cases.add("det", linalg.det(a), np.linalg.det(a))
    for found, want in zip(linalg.slogdet(a), np.linalg.slogdet(a), strict=True):
        cases.add("slogdet", found, want)
    cases.add("inv", linalg.inv(a), np.linalg.inv(a))
    cases.add("solve", linalg.solve(a, b), np.linalg.solve(a, b))
    cases.add("a vector", linalg.solve(a, v), np.linalg.solve(a, v))
    root = np.linalg.cholesky(s)
    cases.add("cholesky", linalg.cholesky(np.tril(s)), root)
    cases.add("upper", linalg.cholesky(s, upper=True), root.swapaxes(1, 2))
    cases.add("by the root", linalg.cholesky_solve(b, root), np.linalg.solve(s, b))
    low = np.tril(a, -1) + np.eye(5, dtype=dtype)
    cases.add("triangle", linalg.solve_triangular(a, b), np.linalg.solve(np.triu(a), b))
    found = linalg.solve_triangular(a, v, lower=True, unit_diagonal=True)
    cases.add("unit", found, np.linalg.solve(low, v))
    cases.check()


@pytest.mark.parametrize("shape", [(2, 5, 5), (3, 4), (4, 3), (1, 1)])
def test_triangles_multiply_to_the_matrix(shape: tuple[int, ...]) -> None:
    a = matrices(*shape)
    p, low, up, packed, order, q, r, whole, tall, alone = semel.prepare(
        [*linalg.lu(a), *linalg.lu_factor(a), *linalg.qr(a), *linalg.qr(a, "complete"),
         linalg.qr(a, "r")]
    )()  # fmt: skip
    np.testing.assert_allclose(p @ low @ up, a, atol=1e-12)
    assert (np.abs(low) <= 1).all() and (np.sort(p, -1)[..., -1] == 1).all()
    count = min(shape[-2:])
    np.testing.assert_allclose(np.tril(packed, -1)[..., :count], np.tril(low, -1), atol=1e-12)
    rows = np.take_along_axis(a, order[..., None], -2)
    np.testing.assert_allclose(rows, low @ up, atol=1e-12)
    for mode, found in [("reduced", (q, r)), ("complete", (whole, tall))]:
        for have, want in zip(found, np.linalg.qr(a, mode), strict=True):  # type: ignore[call-overload]
            np.testing.assert_allclose(have, want, atol=1e-12)
    np.testing.assert_array_equal(alone, r)


@pytest.mark.parametrize("dtype", PAIR)
@pytest.mark.parametrize("shape", [(2, 5, 5), (3, 7, 4), (4, 6), (1, 1)])
def test_singular_values_are_numpys(shape: tuple[int, ...], dtype: str) -> None:
    a, near = matrices(*shape, dtype=dtype), TOLERANCE[dtype] / 10
    m, n = shape[-2:]
    count = min(m, n)
    u, s, vh, u2, s2, vh2, alone, inverse = semel.prepare(
        [*linalg.svd(a), *linalg.svd(a, False), linalg.svdvals(a), linalg.pinv(a)]
    )()
    want = np.linalg.svd(a, compute_uv=False)
    for values in (s, s2, alone):
        np.testing.assert_allclose(values, want, rtol=near, atol=near)
    np.testing.assert_allclose(
        (u[..., :count] * s[..., None, :]) @ vh[..., :count, :], a, atol=near
    )
    np.testing.assert_allclose((u2 * s2[..., None, :]) @ vh2, a, atol=near)
    assert u.shape[-2:] == (m, m) and vh.shape[-2:] == (n, n) and u.dtype == a.dtype
    for each in (u, vh):
        unit = np.broadcast_to(np.eye(each.shape[-1]), each.shape)
        np.testing.assert_allclose(each @ each.swapaxes(-1, -2), unit, atol=near)
    np.testing.assert_allclose(inverse, np.linalg.pinv(a), atol=near * 100)


@pytest.mark.parametrize("dtype", PAIR)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_eigenvalues_are_numpys(n: int, dtype: str) -> None:
    a, near = matrices(2, n, n, dtype=dtype), TOLERANCE[dtype] / 10
    a = a + a.swapaxes(1, 2)
    w, v, alone = semel.prepare([*linalg.eigh(np.tril(a)), linalg.eigvalsh(np.triu(a), "U")])()
    want = np.linalg.eigvalsh(a)
    np.testing.assert_allclose(w, want, atol=near)
    np.testing.assert_allclose(alone, want, atol=near)
    np.testing.assert_allclose(v * w[:, None, :] @ v.swapaxes(1, 2), a, atol=near)


def test_a_hundred_columns_stay_orthonormal() -> None:
    a = matrices(100, 100, dtype="float32")
    v, vh = semel.prepare([linalg.eigh(a)[1], linalg.svd(a)[2]])()
    for each in (v, vh):
        assert np.abs(each.astype(float) @ each.T - np.eye(100)).max() < 3e-6


def test_matrices_that_are_bad() -> None:
    """What NumPy raises for is inf or NaN, of that matrix alone; ranks may be less than full."""
    flat = matrices(6, 2) @ matrices(2, 5)
    bad = np.array([[1, np.nan], [np.nan, 2]])
    pair = np.stack([np.ones((2, 2)), np.diag([2.0, 4.0])])
    u, s, vh, rank, none, inverse, root, w, s_bad, dets, ones = semel.prepare(
        [*linalg.svd(flat), linalg.matrix_rank(flat), linalg.matrix_rank(np.zeros((3, 2))),
         linalg.inv(pair), linalg.cholesky([[1.0, 2.0], [2.0, 1.0]]), linalg.eigh(bad)[0],
         linalg.svdvals(bad), linalg.det(pair), linalg.svd(np.ones((4, 4)))[0]]
    )()  # fmt: skip
    np.testing.assert_allclose((u[:, :5] * s) @ vh, flat, atol=1e-13)
    for each in (u, ones):
        np.testing.assert_allclose(each @ each.T, np.eye(len(each)), atol=1e-13)
    assert (s[2:] < 1e-14).all() and rank == 2 and none == 0
    assert not np.isfinite(inverse[0]).any()
    np.testing.assert_allclose(inverse[1], np.diag([0.5, 0.25]))
    assert root[0].tolist() == [1, 0] and root[1, 0] == 2 and np.isnan(root[1, 1])
    assert np.isnan(w).all() and np.isnan(s_bad).all()
    np.testing.assert_allclose(dets, [0, 8])


def test_matrices_without_elements() -> None:
    for shape in [(0, 0), (2, 0, 0)]:
        a = np.zeros(shape)
        cases = Together()
        cases.add("det", linalg.det(a), np.linalg.det(a))
        cases.add("inv", linalg.inv(a), a)
        cases.add("values", linalg.svdvals(a), np.linalg.svd(a, compute_uv=False))
        cases.add("eigenvalues", linalg.eigvalsh(a), np.linalg.eigvalsh(a))
        cases.check()


def test_least_squares_and_condition_are_numpys() -> None:
    cases = Together(1e-9)
    a, b, square = matrices(6, 3), matrices(6, 2), matrices(2, 4, 4)
    for right in (b, b[:, 0]):
        for name, found, want in zip(
            ("x", "rest", "rank", "values"),
            linalg.lstsq(a, right),
            np.linalg.lstsq(a, right, rcond=None),
            strict=True,
        ):
            same: Any = np.reshape(want, cast(Any, found.shape))
            cases.add(name, found, same.astype("int64") if name == "rank" else same)
    for p in (None, 1, -1, 2, -2, np.inf, -np.inf, "fro"):
        cases.add(f"cond {p}", linalg.cond(square, p), np.linalg.cond(square, p))
    cases.check()


def test_norms_are_numpys() -> None:
    cases, x = Together(1e-10), matrices(2, 3, 4)
    for order in (None, 1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"):
        for axis in ((-2, -1), (0, 2)):
            want = np.linalg.norm(x, order, axis, keepdims=True)
            cases.add(f"{order} {axis}", linalg.norm(x, order, axis, keepdims=True), want)
        if order not in ("fro", "nuc"):
            cases.add(f"{order}", linalg.norm(x, order, 1), np.linalg.norm(x, order, 1))
    for order in (0, 3, 0.5):
        cases.add(f"{order}", linalg.norm(x[0, 0], order), np.linalg.norm(x[0, 0], order))
    cases.add("all", linalg.norm(x), np.linalg.norm(x))
    cases.add("matrix", linalg.matrix_norm(x), np.linalg.matrix_norm(x))
    cases.add("vector", linalg.vector_norm(x, ord=3), np.linalg.vector_norm(x, ord=3))
    cases.check()


def test_powers_and_products_are_numpys() -> None:
    cases, a = Together(1e-9), matrices(3, 3)
    for n in (0, 1, 5, -3):
        cases.add(f"{n}", linalg.matrix_power(a, n), np.linalg.matrix_power(a, n))
    chain = [matrices(3, 10), matrices(10, 2), matrices(2, 6), matrices(6)]
    cases.add("chain", linalg.multi_dot(chain), np.linalg.multi_dot(chain))
    values, vectors = np.linalg.eigh(a + a.T)
    for scale in (0.01, 1.0, 7.0):
        want = (vectors * np.exp(values * scale)) @ vectors.T
        found = linalg.expm((a + a.T) * scale)
        cases.add(f"exp {scale}", found / np.abs(want).max(), want / np.abs(want).max())
    cases.add("turn", linalg.expm([[0.0, -1.0], [1.0, 0.0]]).cast("float64"),
              [[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]])  # fmt: skip
    cases.tolerance = 1e-6
    cases.check()


def test_one_plan_serves_all_sizes() -> None:
    n, k = Variable("n", 1, 30), Variable("k", 1, 9)
    a, b = Tensor.input("a", (n, n), "float64"), Tensor.input("b", (n, k), "float64")
    both = a @ a.mT
    plan = semel.prepare(
        [linalg.solve(a, b), linalg.det(a), linalg.cholesky(both + Tensor.eye(n)),
         linalg.qr(b)[1].abs(), linalg.eigvalsh(both), linalg.svdvals(b), *linalg.svd(b, False)]
    )  # fmt: skip
    for rows, columns in [(4, 2), (7, 9), (1, 1), (12, 5)]:
        x, y = matrices(rows, rows), matrices(rows, columns)
        found = plan(a=x, b=y)
        count = min(rows, columns)
        wanted = [
            np.linalg.solve(x, y), np.linalg.det(x), np.linalg.cholesky(x @ x.T + np.eye(rows)),
            np.abs(np.linalg.qr(y)[1]), np.linalg.eigvalsh(x @ x.T), np.linalg.svd(y)[1],
        ]  # fmt: skip
        for have, want in zip(found, wanted, strict=False):
            np.testing.assert_allclose(have, want, rtol=1e-8, atol=1e-8)
        u, s, vh = found[len(wanted) :]
        assert u.shape == (rows, count) and vh.shape == (count, columns)
        np.testing.assert_allclose((u * s) @ vh, y, atol=1e-10)
    assert plan.compile_count == 1


def test_numpys_functions_and_other_dtypes() -> None:
    a = Tensor([[2, 0], [1, 4]])
    assert linalg.inv(a).dtype.name == "float32"
    lazy: Any = np.linalg.inv(a)  # type: ignore[call-overload, unused-ignore]
    np.testing.assert_allclose(lazy.numpy(), np.array([[0.5, 0], [-0.125, 0.25]]))
    assert linalg.det(a.cast("float16")).dtype.name == "float16"
    assert float(np.linalg.norm(a)) == pytest.approx(np.sqrt(21))


A, WIDE = Tensor.input("a", (3, 3)), Tensor.input("w", (2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linalg.inv(WIDE), r"\[inv\] needs square matrices, got f32\[2,3\]"),
        (lambda: linalg.det([1.0]), r"\[det\] needs matrices \[.., m, n\], got"),
        (lambda: linalg.solve(A, WIDE), r"\[solve\] needs a \[.., n, n\] and b \[.., n, k\] or"),
        (lambda: linalg.qr(A, "full"), r"\[qr\] mode must be reduced, complete or r, got 'full'"),
        (lambda: linalg.eigh(A, "x"), r"\[eigh\] UPLO must be 'L' or 'U', got 'x'"),
        (lambda: linalg.lstsq(WIDE, Tensor(1.0)), r"\[lstsq\] needs b \[.., m, k\] or \[.., m\]"),
        (
            lambda: linalg.matrix_power(A, cast(Any, 0.5)),
            r"\[matrix_power\] n must be an int",
        ),
        (lambda: linalg.multi_dot([A]), r"\[multi_dot\] needs at least 2 tensors"),
        (lambda: linalg.multi_dot([A, A[0], A]), r"\[multi_dot\] needs matrices, and vectors at"),
        (lambda: linalg.norm(Tensor(np.zeros((2, 2, 2))), 1), r"\[norm\] needs a vector or a mat"),
        (lambda: linalg.vector_norm(A, ord="fro"), r"\[vector_norm\] ord must be a number, inf"),
        (lambda: linalg.matrix_norm(A, 3), r"\[matrix_norm\] ord must be 'fro', 'nuc', 1, -1"),
        (lambda: linalg.matrix_norm(A, axis=(0,)), r"\[matrix_norm\] needs two axes, got \(0,\)"),
    ],
)
def test_mistakes_with_matrices(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()


def test_diagonals_and_traces_are_of_the_last_axes() -> None:
    cube = np.arange(27).reshape(3, 3, 3)
    for x in (cube, matrices(2, 4, 5)):
        for offset in (0, 1, -2):
            want = np.diagonal(x, offset, -2, -1)
            for found in (
                linalg.diagonal(x, offset=offset),
                np.linalg.diagonal(Tensor(x), offset=offset),
            ):
                np.testing.assert_array_equal(found, want)
            np.testing.assert_allclose(linalg.trace(x, offset=offset), want.sum(-1))
    assert np.linalg.trace(Tensor(cube)).tolist() == np.linalg.trace(cube).tolist()
    assert linalg.trace(cube, dtype="float32").dtype == "float32"
    assert linalg.trace(cube, axis1=0, axis2=1).tolist() == np.trace(cube).tolist()
    assert linalg.diagonal(cube, dim1=0, dim2=2).tolist() == np.diagonal(cube, 0, 0, 2).tolist()


def test_results_go_by_numpys_names() -> None:
    a = matrices(3, 3)
    s = a @ a.T
    results: list[tuple[Any, Any]] = [
        (linalg.eigh(s), np.linalg.eigh(s)),
        (linalg.qr(a), np.linalg.qr(a)),
        (linalg.slogdet(a), np.linalg.slogdet(a)),
        (linalg.svd(a), np.linalg.svd(a)),
    ]
    for ours, theirs in results:
        assert type(ours).__name__ == type(theirs).__name__
        assert ours._fields == theirs._fields
    assert semel.jit(linalg.eigh)(s).eigenvalues.shape == (3,)


def test_products_that_numpy_has_there_too() -> None:
    a, b = matrices(4, 3), matrices(4, 3)
    np.testing.assert_allclose(linalg.cross(a, b), np.linalg.cross(a, b))
    np.testing.assert_allclose(linalg.vecdot(a, b), np.linalg.vecdot(a, b))
    np.testing.assert_allclose(linalg.tensordot(a, b, axes=2), np.tensordot(a, b))


@pytest.mark.parametrize("module", [linalg, semel.fft])
def test_modules_show_their_names_and_hint_at_others(module: Any) -> None:
    assert dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError, match="Did you mean"):
        getattr(module, module.__all__[0] + "s")


def test_what_would_be_complex_is_told() -> None:
    with pytest.raises(AttributeError, match="complex: use eigh"):
        linalg.eig  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"semel\.fft\.irfft"):
        semel.fft.hfft  # type: ignore[attr-defined]  # noqa: B018


def test_stacks_of_no_matrices_have_no_singular_values() -> None:
    empty = np.zeros((0, 3, 2), np.float32)
    found = semel.prepare([*linalg.svd(empty), linalg.pinv(empty)])()
    shapes = [(0, 3, 3), (0, 2), (0, 2, 2), (0, 2, 3)]
    assert [each.shape for each in found] == shapes
