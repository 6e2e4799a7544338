"""What is measured: one record per row, with its inputs, its reference and its bar.

    name  --ROWS-->  Row

A row says nothing of how a peer computes it; `benchmarks/peers` has one file per peer with
one function per row. A peer without a function for a row is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.decode import DECODE_ROWS
from benchmarks.models import MODEL_ROWS
from benchmarks.permuted import PERMUTED_ROWS
from benchmarks.quantised import QUANTISED_ROWS
from benchmarks.row import Array, Bar, Inputs, Row, make_inputs
from benchmarks.slow_paths import SLOW_ROWS

__all__ = ["ROWS", "Array", "Bar", "Inputs", "Row", "make_inputs"]

CHAIN = 50  # pairs of matmul and relu
PASSES = 100  # alternating row and column means
SIDE = 16


def _normal(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        return {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}

    return make


def _chain_inputs(rng: np.random.Generator) -> Inputs:
    """Scaled so that values keep their size through fifty layers."""
    weights = rng.standard_normal((CHAIN, SIDE, SIDE), dtype=np.float32) * (2 / SIDE) ** 0.5
    x = rng.standard_normal((SIDE, SIDE), dtype=np.float32)
    return {"x": x, "weights": weights.astype(np.float32)}


def _chain(inputs: Inputs) -> Array:
    x = inputs["x"]
    for weight in inputs["weights"]:
        x = np.maximum(x @ weight, 0)
    return x


def _means(x: Array) -> Array:
    for i in range(PASSES):
        x = (x + x.mean(axis=i % 2, keepdims=True)) * np.float32(0.5)
    return x


def _symbolic(inputs: Inputs) -> Array:
    steps = np.arange(SIDE, dtype=np.float32)[:, None]
    return _means(inputs["x"][None, :] + steps)


def _softmax(inputs: Inputs) -> Array:
    x = inputs["x"].astype(np.float64)
    weights = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _layer_norm(inputs: Inputs) -> Array:
    x = inputs["x"].astype(np.float64)
    distance = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((distance**2).mean(-1, keepdims=True) + 1e-5)
    return np.asarray(distance * scale * inputs["weight"] + inputs["bias"])


def _gelu(inputs: Inputs) -> Array:
    """By a polynomial for erf good to 1.5e-7, since NumPy has none."""
    x = inputs["x"].astype(np.float64)
    z = np.abs(x) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    poly = 0.254829592 + t * (
        -0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))
    )
    erf = np.sign(x) * (1 - poly * t * np.exp(-z * z))
    return np.asarray(x * 0.5 * (1 + erf))


def _tanh(inputs: Inputs) -> Array:
    return np.asarray(np.tanh(inputs["a"] * inputs["b"] + inputs["c"]) * inputs["d"])


def _new_form(name: str, title: str) -> Row:
    """A graph that no process has seen, of kernels that it has."""
    return Row(
        name,
        title,
        "eager",
        _normal(x=(64, 64)),
        lambda i: np.asarray((i["x"].astype(np.float64) * 2 + 1).sum()),
        Bar("1 ms", (("time", "", 1e-3),)),
        tolerance=1e-3,
    )


def _sum(inputs: Inputs) -> Array:
    return np.asarray(inputs["x"].sum(dtype=np.float64))


_MEGA = 1 << 20
_EAGER = Bar("100 us", (("time", "", 100e-6),))
_AS_BEST = Bar("as the best peer", (("best", "", 1.0),))
_UNDER_BEST = Bar("0.9x the best peer", (("best", "", 0.9),))

ROWS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row(
            "tiny_add",
            "one add [4]+[4]",
            "calls",
            _normal(x=(4,), y=(4,)),
            lambda i: i["x"] + i["y"],
            Bar("1.2 us", (("time", "", 1.2e-6),)),
        ),
        Row(
            "call_add",
            "plan(x=.., y=..), [4]+[4]",
            "calls",
            _normal(x=(4,), y=(4,)),
            lambda i: i["x"] + i["y"],
            Bar("6 us", (("time", "", 6e-6),)),
        ),
        Row(
            "call_jit",
            "f(x, y), [4]+[4], jitted",
            "calls",
            _normal(x=(4,), y=(4,)),
            lambda i: i["x"] + i["y"],
            Bar("5 us", (("time", "", 5e-6),)),
        ),
        Row(
            "chain",
            "(16x16 matmul, relu) x 50",
            "calls",
            _chain_inputs,
            _chain,
            Bar("20 us", (("time", "", 20e-6),)),
            tolerance=1e-3,
        ),
        Row(
            "unfusable",
            "100 kernels that cannot fuse",
            "calls",
            _normal(x=(SIDE, SIDE)),
            lambda i: _means(i["x"]),
            Bar("one add + 2 us", (("row", "tiny_add", 2e-6),)),
        ),
        Row(
            "symbolic",
            "100 kernels over a variable",
            "calls",
            _normal(x=(SIDE,)),
            _symbolic,
            Bar("", ()),
        ),
        Row(
            "rebind",
            "the same, rebound every time",
            "calls",
            _normal(x=(SIDE,)),
            _symbolic,
            Bar("not rebound + 1 us", (("row", "symbolic", 1e-6),)),
        ),
        Row(
            "eager_sum",
            "(a * i).sum().item(), new i",
            "eager",
            _normal(x=(64, 64)),
            lambda i: np.asarray((i["x"].astype(np.float64) * 2).sum()),
            _EAGER,
            tolerance=1e-3,
        ),
        Row(
            "eager_element",
            "float(a[i, 4]), new i",
            "eager",
            _normal(x=(64, 64)),
            lambda i: i["x"][2, 4],
            _EAGER,
        ),
        Row(
            "eager_data",
            "(Tensor(new) + b).numpy()",
            "eager",
            _normal(x=(64, 64), y=(64,)),
            lambda i: i["x"] + i["y"],
            _EAGER,
        ),
        Row(
            "eager_node",
            "np.add(t, t): a node",
            "eager",
            _normal(x=(4,)),
            lambda i: i["x"] + i["x"],
            Bar("10 us", (("time", "", 10e-6),)),
        ),
        _new_form("eager_form", "a new form, kernels cached"),
        _new_form("eager_prepare", "prepare of a new form, kernels cached"),
        Row(
            "softmax",
            "softmax [1024,1024]",
            "elementwise",
            _normal(x=(1024, 1024)),
            _softmax,
            _UNDER_BEST,
            statistic="p10",
        ),
        Row(
            "layer_norm",
            "layer norm [1024,768]",
            "elementwise",
            _normal(x=(1024, 768), weight=(768,), bias=(768,)),
            _layer_norm,
            _UNDER_BEST,
            statistic="p10",
        ),
        Row(
            "gelu",
            "gelu (erf), 4M floats",
            "elementwise",
            _normal(x=(4 * _MEGA,)),
            _gelu,
            _UNDER_BEST,
            traffic=2 * 4 * 4 * _MEGA,
            bound="copy",
            statistic="p10",
        ),
        Row(
            "sum",
            "sum of 16M floats",
            "elementwise",
            _normal(x=(16 * _MEGA,)),
            _sum,
            _AS_BEST,
            tolerance=2e-4,
            traffic=4 * 16 * _MEGA,
            bound="read",
            statistic="p10",
        ),
        Row(
            "tanh",
            "(a*b+c).tanh()*d, 4M",
            "elementwise",
            _normal(a=(2048, 2048), b=(2048,), c=(2048, 1), d=(2048, 2048)),
            _tanh,
            _AS_BEST,
            traffic=3 * 4 * 4 * _MEGA,
            bound="copy",
            statistic="p10",
        ),
        *PERMUTED_ROWS,
        *SLOW_ROWS,
        *MODEL_ROWS,
        *QUANTISED_ROWS,
        *DECODE_ROWS,
    )
}
