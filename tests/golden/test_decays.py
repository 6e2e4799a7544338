"""Exponentials of what is never positive: by text, and where it may be."""

from __future__ import annotations

import numpy as np
import pytest

from semel import Tensor, Variable
from semel.ir.graph import Graph
from semel.ir.text import format_graph, parse_graph
from semel.passes import run_passes
from semel.passes.decays import find_decays
from semel.tensor.realize import build_graph

X = '%0 = input "x" : f32[4,8]\n'
TOP = "%1 = reduce_max %0 {axes=(1,), propagate_nan=False} : f32[4,1]\n"


def graph_of(text: str) -> Graph:
    last = text.strip().splitlines()[-1].split(" ")[0]
    return parse_graph(f"{text}\noutput {last}")


def passed(text: str) -> str:
    return format_graph(run_passes(graph_of(text), [find_decays], verify=True))


def test_a_row_without_its_largest_decays() -> None:
    before = (
        X
        + TOP
        + "%2 = expand %1 {shape=(4, 8)} : f32[4,8]\n"
        + "%3 = sub %0 %2 : f32[4,8]\n%4 = exp %3 : f32[4,8]"
    )
    assert passed(before) == format_graph(graph_of(before.replace("= exp %", "= decay %")))


def inputs(*shape: int) -> tuple[Tensor, Tensor]:
    return Tensor.input("x", shape, "float32"), Tensor.input("y", shape, "float32")


def ops_of(tensor: Tensor) -> set[str]:
    return {n.op.name for n in run_passes(build_graph([tensor]), [find_decays]).nodes}


X4, Y4 = inputs(4, 4)
NEVER_POSITIVE = {
    "softmax": X4.softmax(-1),
    "softmax over rows": X4.softmax(0),
    "softmax over both": X4.softmax((0, 1)),
    "a variable": Tensor.input("x", (Variable("n", 1, 8), 4)).log_softmax(-1),
    "softplus": X4.softplus(),
    "logaddexp": X4.logaddexp(Y4),
    "a bell": (X4 * X4 * -0.5).exp(),
    "a divided bell": (-(X4 * X4) / 2).exp(),
    "two squares": (-(X4 * X4 + Y4 * Y4)).exp(),
    "at most 0": X4.minimum(0.0).exp(),
    "a view": (-X4.abs()).permute(1, 0).exp(),
    "the larger of two": (X4 - Y4.maximum(X4)).exp(),
}
PERHAPS_POSITIVE = {
    "anything": X4.exp(),
    "other rows' largest": (X4 - X4.max(0).reshape(4, 1)).exp(),
    "another's largest": (X4 - Y4.max(-1, keepdims=True)).exp(),
    "the least": (X4 - X4.min(-1, keepdims=True)).exp(),
    "largest or 0": X4.logsumexp(-1),
    "a quotient of zeros": (-(1.0 / -X4.minimum(0.0))).exp(),
    "at least 0": X4.maximum(0.0).exp(),
    "a product": (X4 * Y4).exp(),
    "at most 1": X4.minimum(1.0).exp(),
    "a distance": (X4.abs() - Y4.abs()).exp(),
}


@pytest.mark.parametrize("name", NEVER_POSITIVE)
def test_what_is_never_positive_decays(name: str) -> None:
    found = ops_of(NEVER_POSITIVE[name])
    assert "decay" in found and "exp" not in found


@pytest.mark.parametrize("name", PERHAPS_POSITIVE)
def test_what_may_be_positive_does_not(name: str) -> None:
    found = ops_of(PERHAPS_POSITIVE[name])
    assert "exp" in found and "decay" not in found


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_infinities_and_nan_pass(dtype: str) -> None:
    rows = np.array(
        [[0, -np.inf, 1], [np.nan, 1, 2], [-np.inf] * 3, [np.inf, 0, np.inf], [-200, 0, -800]]
    ).astype(dtype)
    x = Tensor.input("x", rows.shape, dtype)
    shifted = x - x.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        want = np.exp(rows - rows.max(-1, keepdims=True), dtype=np.float64)
    found = np.asarray(shifted.exp().prepare()(x=rows))
    np.testing.assert_allclose(found.astype(np.float64), want, rtol=2e-3, atol=1e-44)
