"""JAX: every row is jitted, its inputs are on the device, and a run waits for the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.rows import PASSES, Inputs

VERSION = jax.__version__
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def setup(threads: int) -> None:
    """XLA sizes its pool by the cores it sees: the driver pins the process for one thread."""


def _row(function: Callable[..., Any]) -> Callable[[Inputs], Pair]:
    def build(arrays: Inputs) -> Pair:
        compiled = jax.jit(function)
        values = [jax.device_put(array) for array in arrays.values()]

        def run() -> Any:
            return compiled(*values).block_until_ready()

        return run, lambda: np.asarray(run())

    return build


def _call_add(arrays: Inputs) -> Pair:
    compiled = jax.jit(jnp.add)
    x, y = arrays["x"], arrays["y"]

    def run() -> Any:
        return np.asarray(compiled(x, y))

    return run, run


def _chain(x: Any, weights: Any) -> Any:
    for i in range(weights.shape[0]):
        x = jax.nn.relu(x @ weights[i])
    return x


def _means(x: Any) -> Any:
    for i in range(PASSES):
        x = (x + x.mean(i % 2, keepdims=True)) * 0.5
    return x


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    distance = x - x.mean(-1, keepdims=True)
    variance = jnp.square(distance).mean(-1, keepdims=True)
    return distance * jax.lax.rsqrt(variance + 1e-5) * weight + bias


BUILD: dict[str, Callable[[Inputs], Pair]] = {
    "tiny_add": _row(jnp.add),
    "call_add": _call_add,
    "call_jit": _call_add,
    "chain": _row(_chain),
    "unfusable": _row(_means),
    "softmax": _row(lambda x: jax.nn.softmax(x, -1)),
    "layer_norm": _row(_layer_norm),
    "gelu": _row(lambda x: jax.nn.gelu(x, approximate=False)),
    "sum": _row(jnp.sum),
    "tanh": _row(lambda a, b, c, d: jnp.tanh(a * b + c) * d),
}
