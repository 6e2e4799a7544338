"""Random keys: reading and writing by index does what NumPy does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from semel import Tensor
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate


def reference(tensor: Tensor) -> np.ndarray:
    return evaluate(Graph((tensor.node,)), {})[0]


def random_item(rng: random.Random, size: int, index_shape: tuple[int, ...]) -> Any:
    """A slice, an integer, an index array or a mask for one axis."""
    bounds = [None, *range(-size - 1, size + 2)]
    data = np.random.default_rng(rng.randrange(1 << 30))
    match rng.choice(("slice", "slice", "int", "array", "mask")):
        case "slice":
            step = rng.choice((None, 1, 2, -1, -2, 3))
            return slice(rng.choice(bounds), rng.choice(bounds), step)
        case "int":
            return rng.randrange(-size, size)
        case "array":
            stretched = tuple(n if rng.random() < 0.7 else 1 for n in index_shape)
            return data.integers(-size, size, stretched[rng.randint(0, len(stretched)) :])
        case _:
            return data.random(size) < 0.5


def random_key(rng: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    index_shape = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
    key: list[Any] = []
    for size in shape:
        if rng.random() < 0.15:
            key.append(None)
        if rng.random() < 0.15:
            key.append(Ellipsis)
            break
        key.append(random_item(rng, size, index_shape))
    return tuple(key)


@pytest.mark.parametrize("seed", range(40))
def test_random_keys_read_and_write_as_in_numpy(seed: int) -> None:
    rng = random.Random(seed)
    tried = 0
    while tried < 10:
        shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))
        key = random_key(rng, shape)
        array = np.random.default_rng(seed).random(shape, np.float32)
        try:
            want = array[key]
        except IndexError:  # masks and arrays that do not broadcast
            continue
        tried += 1
        got = reference(Tensor(array)[key])
        assert got.shape == want.shape, key
        np.testing.assert_array_equal(got, want, err_msg=str(key))

        value = np.random.default_rng(seed + 1).random(want.shape, np.float32)
        written, tensor = array.copy(), Tensor(array)
        written[key] = value
        tensor[key] = value
        np.testing.assert_array_equal(reference(tensor), written, err_msg=str(key))
