"""Random operators: other numbers than other runtimes have, from our own keys.

With a `seed` the numbers are the same in every run; without one they are those of the graph's own
key, which every run leaves behind for the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semel.frontends.onnx.node import Converter, Node
from semel.ir.types import FLOAT32, INT32
from semel.tensor.tensor import Tensor


def key_of(node: Node) -> Tensor:
    """The key that a node draws from."""
    seed = node.attr("seed")
    if seed is None:
        return node.walk.next_key()
    return Tensor.key(int(np.float32(seed).view(np.uint32)))


def _shape(node: Node) -> tuple[Any, ...]:
    return node.value().shape if node.op.endswith("Like") else tuple(node.attr("shape"))


def _dtype(node: Node) -> Any:
    return node.dtype_attr("dtype", node.value().dtype if node.op.endswith("Like") else FLOAT32)


def _normal(node: Node) -> Tensor:
    mean, deviation = node.number("mean", 0.0), node.number("scale", 1.0)
    return Tensor.normal(mean, deviation, _shape(node), key=key_of(node), dtype=_dtype(node))


def _uniform(node: Node) -> Tensor:
    low, high = node.number("low", 0.0), node.number("high", 1.0)
    return Tensor.uniform(low, high, _shape(node), key=key_of(node), dtype=_dtype(node))


def _bernoulli(node: Node) -> Tensor:
    chance = node.tensor()
    drawn = chance.cast(FLOAT32).bernoulli(key=key_of(node))
    return drawn.cast(node.dtype_attr("dtype", chance.dtype))


def _multinomial(node: Node) -> Tensor:
    """Classes by their logits."""
    weights, count = node.tensor().cast(FLOAT32).softmax(-1), node.attr("sample_size", 1)
    drawn = weights.multinomial(count, replacement=True, key=key_of(node))
    return drawn.cast(node.dtype_attr("dtype", INT32))


CONVERTERS: dict[str, Converter] = {
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "RandomNormal": _normal,
    "RandomNormalLike": _normal,
    "RandomUniform": _uniform,
    "RandomUniformLike": _uniform,
}
