"""Rows for quantised models: float ops between dequantised and quantised numbers.

    QUANTISED_ROWS: an inverted residual of a mobile network, the linear layers of a transformer,
    and a product of integers

A model is written once, in terms of `QuantisedOps`; each peer brings its own. Weights keep 7 of
their 8 bits, as is recommended where a runtime's products of bytes saturate: so all compute the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from tests.ops.windows_reference import np_conv

from benchmarks.row import Array, Bar, Inputs, Row

STEP = 0.03  # of activations
ZERO = 128
#: Of weights: the largest number that two products of bytes add up without saturating 16 bits.
LARGEST = 63
#: rows, depth, columns of the product of integers
INTEGERS = (128, 384, 1536)


class QuantisedOps(Protocol):
    """What the models are made of; weights are floats, which each quantises by `narrow`."""

    def steps(self, x: Any, zero: int = ZERO) -> Any:
        """x rounded to steps: quantised and dequantised."""

    def conv(self, x: Any, weight: Array, bias: Array, stride: int, groups: int) -> Any:
        """A convolution with dequantised weights, padded to keep its size."""

    def linear(self, x: Any, weight: Array, bias: Array) -> Any:
        """x @ weight + bias, with dequantised weights."""

    def relu(self, x: Any) -> Any: ...

    def add(self, x: Any, y: Any) -> Any: ...


def narrow(weight: Array, axis: int) -> tuple[Array, Array]:
    """The bytes of a weight and their scales, one per output along `axis`."""
    others = tuple(a for a in range(weight.ndim) if a != axis)
    scales = (np.abs(weight).max(others, keepdims=True) / LARGEST).astype(np.float32)
    return np.rint(weight / scales).astype(np.int8), scales.reshape(-1)


def whole_bias(bias: Array, scales: Array) -> tuple[Array, Array]:
    """A bias in steps of the product: that of what comes in times the weights'."""
    steps = scales * np.float32(STEP)
    return np.rint(bias / steps).astype(np.int32), steps


class NumpyOps:
    """The reference, in float64."""

    def steps(self, x: Array, zero: int = ZERO) -> Array:
        step = np.float64(np.float32(STEP))
        result: Array = (np.clip(np.rint(x / step) + zero, 0, 255) - zero) * step
        return result

    def conv(self, x: Array, weight: Array, bias: Array, stride: int, groups: int) -> Array:
        data, scales = narrow(weight, 0)
        wide = data * scales.astype(np.float64)[:, None, None, None]
        whole, steps = whole_bias(bias, scales)
        start = whole * steps.astype(np.float64)
        return np_conv(x, wide, start, stride, weight.shape[-1] // 2, 1, groups)

    def linear(self, x: Array, weight: Array, bias: Array) -> Array:
        data, scales = narrow(weight, 1)
        result: Array = x @ (data * scales.astype(np.float64)) + bias
        return result

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def add(self, x: Array, y: Array) -> Array:
        return x + y


# ---------------------------------------------------------------- models


def _weights(seed: int) -> Callable[..., tuple[Array, Array]]:
    """Makes a weight, of numbers that keep the size of what passes it, and a bias."""
    rng = np.random.default_rng(seed)

    def make(*shape: int, outputs: int, depth: int) -> tuple[Array, Array]:
        weight = rng.standard_normal(shape, dtype=np.float32) * np.float32(depth**-0.5)
        return weight, rng.standard_normal(outputs, dtype=np.float32) * np.float32(0.1)

    return make


def mobile(ops: QuantisedOps, x: Any) -> Any:
    """Wide by a pointwise convolution, a depthwise one, narrow again, and added to what came in."""
    make, (narrow_, wide) = _weights(14), (24, 144)
    x = ops.steps(x)
    y = ops.conv(x, *make(wide, narrow_, 1, 1, outputs=wide, depth=narrow_), 1, 1)
    y = ops.steps(ops.relu(y), 0)
    y = ops.steps(ops.relu(ops.conv(y, *make(wide, 1, 3, 3, outputs=wide, depth=9), 1, wide)), 0)
    y = ops.conv(y, *make(narrow_, wide, 1, 1, outputs=narrow_, depth=wide), 1, 1)
    return ops.steps(ops.add(ops.steps(y), x))


def ffn(ops: QuantisedOps, x: Any) -> Any:
    """Two linear layers with a relu between them, added to what came in."""
    make, (width, inner) = _weights(15), (384, 1536)
    x = ops.steps(x)
    y = ops.linear(x, *make(width, inner, outputs=inner, depth=width))
    y = ops.linear(ops.steps(ops.relu(y), 0), *make(inner, width, outputs=width, depth=inner))
    return ops.steps(ops.add(ops.steps(y), x))


#: name: the model, and the shape of what it takes
QUANTISED: dict[str, tuple[Callable[[QuantisedOps, Any], Any], tuple[int, ...]]] = {
    "qdq_mobile": (mobile, (1, 24, 56, 56)),
    "qdq_ffn": (ffn, (128, 384)),
}
_TITLES = {"qdq_mobile": "quantised inverted residual", "qdq_ffn": "quantised linear layers"}


def integer_weights() -> Array:
    """The right operand of the product of integers."""
    _, depth, columns = INTEGERS
    rng = np.random.default_rng(16)
    return rng.integers(-LARGEST, LARGEST, (depth, columns), endpoint=True).astype(np.int8)


def _row(name: str) -> Row:
    model, shape = QUANTISED[name]

    def inputs(rng: np.random.Generator) -> Inputs:
        return {"x": rng.standard_normal(shape, dtype=np.float32)}

    def compute(arrays: Inputs) -> Array:
        result: Array = model(NumpyOps(), arrays["x"].astype(np.float64))
        return result.astype(np.float32)

    # Some numbers lie halfway between two steps, and each runtime rounds a little before that.
    return Row(
        name, _TITLES[name], "models", inputs, compute,
        Bar("as the best peer", (("best", "", 1.0),)),
        tolerance=0.05, statistic="p10",
    )  # fmt: skip


def _integers(rng: np.random.Generator) -> Inputs:
    rows, depth, _ = INTEGERS
    return {"x": rng.integers(0, 255, (rows, depth), endpoint=True).astype(np.uint8)}


def _integer_product(arrays: Inputs) -> Array:
    wide = arrays["x"].astype(np.int64) - ZERO
    result: Array = (wide @ integer_weights().astype(np.int64)).astype(np.int32)
    return result


QUANTISED_ROWS: tuple[Row, ...] = (
    *(_row(name) for name in QUANTISED),
    Row(
        "matmul_integer", f"bytes {'x'.join(map(str, INTEGERS))}", "gemm", _integers,
        _integer_product, Bar("as the best peer", (("best", "", 1.0),)),
        statistic="p10",
    ),
)  # fmt: skip
