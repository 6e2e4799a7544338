"""Weights of models: arrays from a seed for those without a checkpoint, tensors over new arrays.

    shapes by name, seed  --draw-->  arrays by name

Matrices and kernels are scaled by the size of their sums, so that activations keep their
size through many layers; scales lie near 1, shifts near 0, variances are positive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from semel.tensor.handle import constant
from semel.tensor.tensor import Tensor

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Arrays by name, or tensors: a `Tensor.param` can be replaced in the plan.
Weights: TypeAlias = "Mapping[str, Any]"


def draw(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Array]:
    """A float32 array for every shape; the same seed gives the same arrays."""
    rng = np.random.default_rng(seed)
    return {name: _one(rng, name, shape) for name, shape in shapes.items()}


def sealed(array: Array) -> Tensor:
    """A tensor over an array that was made for it: nobody else holds it, so it is not copied."""
    return constant(array)


def joined(parts: Sequence[Any]) -> Tensor:
    """Several weights, arrays or tensors, one after the other: params stay params."""
    if any(isinstance(part, Tensor) for part in parts):
        return Tensor.concat(list(parts), 0)
    return sealed(np.concatenate(parts))


def _one(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    noise = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("running_var"):
        return np.abs(noise) * np.float32(0.2) + np.float32(0.8)
    if len(shape) == 1:
        is_scale = name.endswith("weight")
        return noise * np.float32(0.05) + np.float32(1.0 if is_scale else 0.0)
    return noise * np.float32(math.sqrt(1 / math.prod(shape[1:])))
