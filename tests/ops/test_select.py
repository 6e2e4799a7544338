"""The first of an order, found by the bests of blocks: as the whole order has it, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.ir.expr import Dim
from semel.ir.types import DTYPES
from semel.tensor.select import LEAST_LENGTH, first_places, order_of

KINDS = [d.name for d in DTYPES]


def _few(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Few different numbers, so that ties cross blocks, and the odd ones in runs of some length."""
    kind = next(d for d in DTYPES if d.name == dtype)
    rng = np.random.default_rng(seed)
    if kind.is_float:
        usual = rng.choice(np.array([-2.0, -0.5, 0.5, 2.0]), shape)
        odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40])
        runs = np.repeat(rng.choice(odd, shape), 5, axis=-1)[..., : shape[-1]]
        return np.where(rng.random(shape) < 0.4, runs, usual).astype(kind.numpy)
    if dtype == "bool":
        return rng.random(shape) < 0.1
    wide = np.int64 if kind.is_narrow else kind.numpy
    few = np.array([int(kind.lowest), int(kind.highest), 0, 1], wide)
    return rng.choice(few, shape).astype(kind.numpy)


def _both(x: np.ndarray, k: int, axis: int, largest: bool) -> tuple[list[np.ndarray], Tensor]:
    """What topk says, and what the whole order does."""
    tensor = Tensor.input("x", x.shape, x.dtype.name)
    whole = order_of(tensor, axis, largest).narrow(axis, 0, k)
    outputs = [*tensor.topk(k, axis, largest), tensor.take_along_axis(whole, axis), whole]
    return list(semel.prepare(outputs, threads=1)(x=x)), outputs[1]


def _orders(tensor: Tensor) -> list[Dim]:
    """How long the axes are that are put in order."""
    graph = semel.ir.graph.Graph((tensor.node,), ("y",))
    return [n.type.shape[n.attrs.axis] for n in graph.nodes if n.op.name == "argsort"]


def _check(x: np.ndarray, k: int, axis: int = -1, largest: bool = True) -> list[Dim]:
    (values, places, want, order), tensor = _both(x, k, axis % x.ndim, largest)
    np.testing.assert_array_equal(places, order)
    assert values.tobytes() == want.tobytes()
    return _orders(tensor)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("largest", [True, False])
def test_any_dtype(dtype: str, largest: bool) -> None:
    found = _check(_few(dtype, (3, 1001), 5), 7, largest=largest)
    assert all(length != 1001 for length in found)


@pytest.mark.parametrize("length", [LEAST_LENGTH - 1, LEAST_LENGTH, 1000, 4099])
@pytest.mark.parametrize("k", [1, 7, 60])
@pytest.mark.parametrize("largest", [True, False])
def test_any_length(length: int, k: int, largest: bool) -> None:
    for rows in (1, 9):
        _check(_few("float32", (rows, length), length + k), k, largest=largest)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.97, 1.0])
def test_blocks_of_nothing_but_nan(share: float) -> None:
    """They come after blocks whose best is the least number there is."""
    rng = np.random.default_rng(3)
    for least in (-np.inf, np.inf):
        x = np.where(rng.random((4, 600)) < share, np.nan, least).astype(np.float32)
        x[1, :590] = np.nan
        for largest in (True, False):
            _check(x, 6, largest=largest)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_axis(axis: int) -> None:
    shape = [3, 2, 5]
    shape[axis] = 500
    _check(_few("float32", tuple(shape), axis), 4, axis)


def test_as_numpy_orders() -> None:
    """Beside the kernels of an order: against NumPy's."""
    x = np.random.default_rng(8).integers(-40, 40, (6, 3000)).astype(np.float32)
    values, places = (t.numpy() for t in Tensor(x).topk(20))
    want = np.argsort(-x, -1, kind="stable")[:, :20]
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_of_the_run(threads: int) -> None:
    """Rows and k of the run are selected by; a length of the run is put in order as a whole."""
    rows, k, n = Variable("rows", 1, 20), Variable("k", 1, 12), Variable("n", 12, 2000)
    fixed = Tensor.input("x", (rows, 900)).topk(k)
    free = Tensor.input("x", (rows, n)).topk(k)
    assert all(length != 900 for length in _orders(fixed[1]))
    assert _orders(free[1]) == [n]
    for outputs, lengths in ((fixed, (900,)), (free, (12, 500))):
        told = Tensor.input("told", (k,))
        plan = semel.prepare([*outputs, told.sum()], threads=threads)
        for length in lengths:
            for count, first in ((1, 1), (7, 12)):
                x = _few("float32", (count, length), length)
                got = plan(x=x, told=np.ones(first, np.float32))
                (_, _, want, order), _ = _both(x, first, 1, True)
                np.testing.assert_array_equal(got[1], order)
                np.testing.assert_array_equal(got[0], want)


def test_order_is_given_even_unasked() -> None:
    x = Tensor(np.random.default_rng(4).permutation(900))
    assert x.topk(4, sorted=False)[0].tolist() == [899, 898, 897, 896]


def test_none_of_them() -> None:
    assert first_places(Tensor.input("x", (4, 1000)), 1, True, 0).shape == (4, 0)


def test_draws_without_replacement_are_the_first_of_a_race() -> None:
    weights = np.random.default_rng(1).random((3, 2000))
    chosen = Tensor(weights).multinomial(5, replacement=False, key=semel.key(7)).numpy()
    assert all(len(set(row)) == 5 for row in chosen.tolist())
