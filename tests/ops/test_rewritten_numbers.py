"""Rewrites that need numbers to see that they are wrong: each with one that tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph

import semel
from semel import Tensor, config
from semel.ir.graph import Graph
from semel.kernel import ir
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


# ---------------------------------------------------------------- indices read from memory


def gathered(kind: str) -> tuple[Tensor, Array]:
    """Rows or elements of t, chosen by an input or by what a reduction finds; and the truth."""
    x, t = ARRAYS["x"], ARRAYS["t"]
    xs, ts = Tensor.input("x", x.shape), Tensor.input("t", t.shape)
    rows, places = Tensor.input("i", (12,), "int64"), Tensor.input("j", (12, 9), "int64")
    match kind:
        case "rows by an input":
            e = np.exp(t[ARRAYS["i"]])
            return ts[rows].softmax(1) + xs, e / e.sum(1, keepdims=True) + x
        case "elements by an input":
            e = np.exp(np.take_along_axis(t, ARRAYS["j"], 1))
            want = e / e.sum(1, keepdims=True) + x
            return ts.take_along_axis(places, 1).softmax(1) + xs, want
        case "rows by a reduction":
            return xs - ts[xs.argmax(1)], x - t[x.argmax(1)]
        case _:
            best = x.argmax(1, keepdims=True)
            want = x - np.take_along_axis(t, best, 1)
            return xs - ts.take_along_axis(xs.argmax(1, keepdims=True), 1), want


ARRAYS: dict[str, Array] = {
    "x": data(2, 12, 9),
    "t": data(3, 12, 9),
    "i": np.random.default_rng(4).integers(0, 12, 12),
    "j": np.random.default_rng(5).integers(0, 9, (12, 9)),
}
#: Kind -> whether the index is read before all phases: what a reduction finds is not known there.
GATHERS = {
    "rows by an input": True,
    "elements by an input": False,
    "rows by a reduction": False,
    "elements by a reduction": False,
}


@pytest.mark.parametrize("kind", GATHERS)
def test_indices_are_read_where_they_are_known(kind: str) -> None:
    tensor, want = gathered(kind)
    graph, kernels = lower_graph([tensor])
    used = {n.attrs.name: ARRAYS[n.attrs.name] for n in graph.inputs}
    (kernel,) = [lowered.kernel for lowered in kernels]
    with config.override(verify=True):
        plan = semel.prepare(tensor, threads=1)
    np.testing.assert_allclose(plan(**used), want, rtol=1e-5, atol=1e-6)
    binds, stores = (depths(kernel.body, kind) for kind in (ir.Bind, ir.Store))
    assert binds and (max(binds) < max(stores)) == GATHERS[kind]


def depths(body: Sequence[ir.Statement], kind: type, depth: int = 0) -> list[int]:
    """How many loops are around each statement of a kind."""
    found: list[int] = []
    for statement in body:
        if isinstance(statement, kind):
            found.append(depth)
        if isinstance(statement, (ir.Loop, ir.If)):
            found += depths(statement.body, kind, depth + isinstance(statement, ir.Loop))
    return found
