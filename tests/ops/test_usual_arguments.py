"""Arguments and names that programs for NumPy and PyTorch use all the time: they mean the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.ops.against_numpy import check, run, same

import semel
from semel import GraphError, Tensor, Variable

F32 = np.float32
R = np.random.default_rng(7)
A = R.standard_normal((3, 4)).astype(F32)
V = R.standard_normal(5).astype(F32)
K = R.integers(-9, 9, (3, 4))
MASK = np.array([[True, False, True, True], [False, True, True, False], [True, True, False, True]])
ROW = np.array([True, False, True, True])


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "any", "all"])
@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_some_elements_take_part(name: str, axis: Any) -> None:
    for mask in (MASK, ROW):
        same(name, A, axis=axis, where=mask, rtol=1e-5)
        same(name, A, axis=axis, where=mask, keepdims=True, rtol=1e-5)
    if name in ("sum", "prod"):
        same(name, A, axis=axis, where=MASK, initial=3.0, rtol=1e-5)
        same(name, K, axis=axis, initial=2)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_have_a_beginning(name: str) -> None:
    for x in (A, K, MASK):
        same(name, x, axis=0, initial=0)
        same(name, x, axis=1, initial=1, where=MASK)
    same(name, np.zeros((0, 3), F32), axis=0, initial=-2.0)
    with pytest.raises(GraphError, match=rf"\[{name}\] of no elements.*initial="):
        getattr(semel, name)(A, where=MASK)


PADDINGS = ["edge", "reflect", "symmetric", "wrap", "constant"]


@pytest.mark.parametrize("mode", PADDINGS)
def test_what_stands_around(mode: str) -> None:
    for x, widths in [(A, 1), (A, ((2, 5), (0, 9))), (V, (11, 13)), (K, (0, 2)), (V[:1], 3)]:
        same("pad", x, widths, mode=mode)
        same("pad", x, widths, mode)
    empty = np.zeros((0, 2), F32)
    if mode != "constant":
        with pytest.raises(GraphError, match=r"\[pad\] there is nothing to repeat on axis 0"):
            semel.pad(empty, ((1, 1), (0, 0)), mode=mode)


def test_modes_of_padding_go_by_pytorchs_names_and_take_any_size() -> None:
    np.testing.assert_array_equal(
        run(Tensor(V).pad(2, mode="circular")), run(Tensor(V).pad(2, mode="wrap"))
    )
    np.testing.assert_array_equal(
        run(Tensor(V).pad(2, mode="replicate")), run(Tensor(V).pad(2, mode="edge"))
    )
    x = Tensor.input("x", (Variable("n", 0, 9),))
    plan = semel.prepare({mode: x.pad((3, 2), mode=mode) for mode in PADDINGS[:4]}, tune=False)
    for size in (1, 2, 7):
        given = V[:size] if size < 5 else np.arange(7, dtype=F32)
        for made, mode in zip(plan(given), PADDINGS, strict=False):
            np.testing.assert_array_equal(made, np.pad(given, (3, 2), mode))  # type: ignore[call-overload]
    with pytest.raises(semel.IndexRangeError, match=r"\[pad\]"):  # there is nothing to repeat
        plan(V[:0])


def test_arguments_of_numpy() -> None:
    for mode in ("wrap", "clip"):
        same("take", A, [-7, 5, 1], axis=1, mode=mode)
        same("take", A, [[99], [-99]], mode=mode)
    for kind in ("stable", "quicksort"):
        same("sort", A, axis=0, kind=kind)
        same("argsort", A, axis=1, kind=kind)
    same("repeat", A, [2], axis=1)
    same("repeat", np.zeros((0, 2), F32), [1], axis=0)
    check(semel.repeat(A, Tensor([2]), axis=0), np.repeat(A, 2, axis=0))
    angles = R.uniform(-400, 400, 7).astype(F32)
    same("interp", angles, [10.0, 350.0, 120.0], [1.0, 2.0, 3.0], period=360, rtol=1e-4)
    weights = np.array([1, 3, 0, 2])
    for options in ({"fweights": weights}, {"aweights": weights}, {"ddof": 0, "aweights": weights}):
        same("cov", A, rtol=1e-4, **options)
    same("cov", A, fweights=weights, aweights=weights * 0.5 + 1, rtol=1e-4)
    same("unwrap", np.cumsum(A * 9, 1), axis=1, rtol=1e-4)
    same("unwrap", V * 3, 1.5, period=2.0, rtol=1e-5)
    same("vander", V, 3)
    same("vander", K[0], N=3, increasing=True)
    same("bitwise_count", np.array([0, 1, -1, 255, 2**62, -(2**63)]))
    same("bitwise_count", np.array([-128, 127, -1], np.int8))
    same("isreal", A)
    same("around", A, 2)
    odd = np.array([0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 5e-324, -3e-310, 2.0**1000])
    same("modf", odd)
    mantissa, exponent = semel.frexp(odd)
    check(mantissa, np.frexp(odd)[0])
    check(exponent, np.frexp(odd)[1])
    check(semel.round(A, 1), np.round(A, 1))
    check(round(Tensor(A), 1), np.round(A, 1))


def test_where_alone_is_nonzero() -> None:
    found = semel.where(Tensor(MASK))
    for ours, theirs in zip(found, np.where(MASK), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    rows = Tensor(MASK).nonzero(as_tuple=False)
    np.testing.assert_array_equal(rows, np.argwhere(MASK))


#: Ours, and PyTorch's of the same arguments.
TORCHS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "std": (lambda x: x.std(0, unbiased=True), lambda t, x: x.std(0, unbiased=True)),
    "var": (lambda x: x.var(1, unbiased=False), lambda t, x: x.var(1, unbiased=False)),
    "add": (lambda x: x.add(x, alpha=3), lambda t, x: x.add(x, alpha=3)),
    "sub": (lambda x: x.sub(2, alpha=3), lambda t, x: x.sub(2, alpha=3)),
    **{
        mode: (
            partial(lambda mode, x: x.div(0.3, rounding_mode=mode), mode),
            partial(lambda mode, t, x: x.div(0.3, rounding_mode=mode), mode),
        )
        for mode in ("floor", "trunc")
    },
    "flatten": (
        lambda x: x.unsqueeze(0).flatten(start_dim=1, end_dim=2),
        lambda t, x: x.unsqueeze(0).flatten(start_dim=1, end_dim=2),
    ),
    "normalize": (
        lambda x: semel.normalize(x, p=1, dim=0),
        lambda t, x: t.nn.functional.normalize(x, p=1, dim=0),
    ),
    "softplus": (
        lambda x: semel.softplus(x, beta=2, threshold=1),
        lambda t, x: t.nn.functional.softplus(x, beta=2, threshold=1),
    ),
    "vector_norm": (
        lambda x: semel.linalg.vector_norm(x, dim=1, keepdim=True),
        lambda t, x: t.linalg.vector_norm(x, dim=1, keepdim=True),
    ),
    "layer_norm": (
        lambda x: semel.layer_norm(x, (4,), V[:4], V[1:], 1e-3),
        lambda t, x: t.nn.functional.layer_norm(
            x, (4,), t.from_numpy(V[:4].copy()), t.from_numpy(V[1:].copy()), 1e-3
        ),
    ),
    "layer_norm of two": (
        lambda x: semel.layer_norm(x, (3, 4)),
        lambda t, x: t.nn.functional.layer_norm(x, (3, 4)),
    ),
    "solve_triangular": (
        lambda x: semel.linalg.solve_triangular(x[:, :3], x, upper=False),
        lambda t, x: t.linalg.solve_triangular(x[:, :3].tril(), x, upper=False),
    ),
    "index_add": (
        lambda x: x.index_add(0, [0, 0], x[:2], alpha=2),
        lambda t, x: x.index_add(0, t.tensor([0, 0]), x[:2], alpha=2),
    ),
    "hardsigmoid": (semel.hardsigmoid, lambda t, x: t.nn.functional.hardsigmoid(x)),
    "softshrink": (semel.softshrink, lambda t, x: t.nn.functional.softshrink(x)),
    "hardshrink": (semel.hardshrink, lambda t, x: t.nn.functional.hardshrink(x)),
    "tanhshrink": (semel.tanhshrink, lambda t, x: t.nn.functional.tanhshrink(x)),
    "frac": (semel.frac, lambda t, x: x.frac()),
    "logcumsumexp": (lambda x: (x * 99).logcumsumexp(dim=0), lambda t, x: (x * 99).logcumsumexp(0)),
    "block_diag": (
        lambda x: semel.block_diag(x, x[0], 2.0),
        lambda t, x: t.block_diag(x, x[0], t.tensor(2.0)),
    ),
    "cartesian_prod": (
        lambda x: semel.cartesian_prod(x[0], x[1, :2]),
        lambda t, x: t.cartesian_prod(x[0], x[1, :2]),
    ),
    "combinations": (lambda x: x[0].combinations(3), lambda t, x: t.combinations(x[0], 3)),
    "repeated combinations": (
        lambda x: semel.combinations(x[0], with_replacement=True),
        lambda t, x: t.combinations(x[0], with_replacement=True),
    ),
    "adaptive_avg_pool2d": (
        lambda x: semel.adaptive_avg_pool2d(x.reshape(1, 1, 3, 4), output_size=(3, 2)),
        lambda t, x: t.nn.functional.adaptive_avg_pool2d(x.reshape(1, 1, 3, 4), (3, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCHS)
def test_arguments_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = TORCHS[name]
    want = theirs(torch, torch.from_numpy(A.copy())).numpy()
    if name == "solve_triangular":
        np.testing.assert_allclose(ours(Tensor(A)).numpy(), want, rtol=1e-3, atol=1e-4)
    else:
        check(ours(Tensor(A)), want, rtol=1e-5)


def test_integers_are_divided_towards_zero() -> None:
    torch = pytest.importorskip("torch")
    divisors = np.array([3, -2, 4, -5])
    for mode in ("trunc", "floor"):
        want = torch.from_numpy(K).div(torch.from_numpy(divisors), rounding_mode=mode)
        check(Tensor(K).div(divisors, rounding_mode=mode), want.numpy())


def test_logcumsumexp_takes_any_size() -> None:
    x = Tensor.input("x", (Variable("n", 1, 40),))
    plan = x.logcumsumexp().prepare(tune=False)
    for size in (1, 2, 31, 40):
        given = (R.standard_normal(size) * 200).astype(F32)
        np.testing.assert_allclose(plan(given), np.logaddexp.accumulate(given), rtol=1e-5)


def test_numbers_are_drawn_as_pytorch_and_numpy_write_it() -> None:
    assert semel.randint(5, (3,)).shape == (3,)
    assert semel.randint(5, size=(2, 3)).shape == (2, 3)
    assert semel.randint(2, 5, (3,)).shape == (3,)
    assert 0 <= semel.randint(5).item() < 5


def test_devices_and_dtypes_go_together() -> None:
    x = Tensor(A)
    assert x.to(dtype="float64").dtype == "float64"
    assert x.to("cpu", "float16").dtype == "float16"
    with pytest.raises(GraphError, match=r"\[to\] takes a device, got the dtype.*dtype="):
        x.to(F32)


def test_dtypes_of_pytorch_are_known() -> None:
    torch = pytest.importorskip("torch")
    x = Tensor([1, 2], dtype=torch.float32)
    assert x.dtype == torch.float32 == x.dtype
    assert x.dtype != torch.float64
    assert x.astype(torch.bfloat16).dtype == "bfloat16"
    with pytest.raises(GraphError, match=r"dtype must be one of.*torch\.complex64"):
        Tensor([1], dtype=torch.complex64)
