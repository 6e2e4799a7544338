"""NumPy, the way one writes it: outputs are fresh arrays."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.permuted import FIRST, JOINED, SPACE
from benchmarks.rows import PASSES, SIDE, Inputs
from benchmarks.slow_paths import SORTS, STEPS, TOPKS, dequantised, life, quantised, rolls

VERSION = np.__version__
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def setup(threads: int) -> None:
    """The driver has limited the threads of its BLAS through the environment."""


def _row(function: Callable[..., Any]) -> Callable[[Inputs], Pair]:
    def build(arrays: Inputs) -> Pair:
        values = list(arrays.values())

        def run() -> Any:
            return function(*values)

        return run, run

    return build


def _chain(x: Any, weights: Any) -> Any:
    for weight in weights:
        x = np.maximum(x @ weight, 0)
    return x


def _means(x: Any) -> Any:
    for i in range(PASSES):
        x = (x + x.mean(axis=i % 2, keepdims=True)) * np.float32(0.5)
    return x


def _softmax(x: Any) -> Any:
    weights = np.exp(x - x.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    distance = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt(np.square(distance).mean(-1, keepdims=True) + np.float32(1e-5))
    return distance * scale * weight + bias


def _tanh(a: Any, b: Any, c: Any, d: Any) -> Any:
    return np.tanh(a * b + c) * d


def _new_number(function: Callable[[Any, int], Any]) -> Callable[[Inputs], Pair]:
    """A row that computes `function(x, i)` with another i each time."""

    def build(arrays: Inputs) -> Pair:
        x, numbers = arrays["x"], cycle(range(SIDE))
        return (lambda: function(x, next(numbers))), (lambda: function(x, 2))

    return build


def _best(k: int) -> Callable[[Any], Any]:
    return lambda x: -np.sort(np.partition(-x, k - 1, -1)[:, :k], -1)


def _again(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for _ in range(STEPS):
            x = step(x)
        return x

    return run


# No gelu: NumPy has no erf.
BUILD: dict[str, Callable[[Inputs], Pair]] = {
    "tiny_add": _row(np.add),
    "call_add": _row(np.add),
    "call_jit": _row(np.add),
    "chain": _row(_chain),
    "unfusable": _row(_means),
    "eager_sum": _new_number(lambda x, i: (x * i).sum().item()),
    "eager_element": _new_number(lambda x, i: float(x[i, 4])),
    "eager_data": _row(lambda x, y: x.copy() + y),
    "softmax": _row(_softmax),
    "layer_norm": _row(_layer_norm),
    "sum": _row(np.sum),
    "tanh": _row(_tanh),
    **{
        name: _row(lambda x, order=order, joined=joined: x.transpose(order).reshape(joined))
        for name, (_, order, joined) in JOINED.items()
    },
    "turned": _row(lambda x: x.T.copy()),
    "turned_add": _row(lambda x: x + x.T),
    "upsample_add": _row(lambda x, y: x.repeat(2, 2).repeat(2, 3) + y),
    "permuted_mean": _row(lambda x: x.transpose(FIRST).mean(SPACE)),
    "permuted_squares": _row(lambda x: np.square(x.transpose(0, 2, 1)).sum(-1)),
    **dict.fromkeys(SORTS, _row(lambda x: np.sort(x, -1))),
    **{name: _row(_best(k)) for name, (_, _, k) in TOPKS.items()},
    "life": _row(life),
    "life_loop": _row(_again(life)),
    "rolls": _row(rolls),
    "rolls_loop": _row(_again(rolls)),
    "quantise": _row(quantised),
    "dequantise": _row(dequantised),
}
