"""Random keys: reading and writing by index does what NumPy does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from semel import GraphError, Tensor, Variable, VariableError
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate


def reference(tensor: Tensor) -> np.ndarray:
    return evaluate(Graph((tensor.node,)), {})[0]


def random_item(rng: random.Random, size: int, index_shape: tuple[int, ...]) -> Any:
    """A slice, an integer, an index array or a mask for one axis."""
    bounds = [None, *range(-size - 1, size + 2)]
    data = np.random.default_rng(rng.randrange(1 << 30))
    match rng.choice(("slice", "slice", "int", "array", "mask", "badmask")):
        case "slice":
            step = rng.choice((None, 1, 2, -1, -2, 3))
            return slice(rng.choice(bounds), rng.choice(bounds), step)
        case "int":
            return rng.randrange(-size, size)
        case "array":
            stretched = tuple(n if rng.random() < 0.7 else 1 for n in index_shape)
            return data.integers(-size, size, stretched[rng.randint(0, len(stretched)) :])
        case "mask":
            return data.random(size) < 0.5
        case _:
            return data.random(max(size + rng.choice((-1, 0, 1)), 1)) < 0.5


def random_key(rng: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Items for some leading and some trailing axes, an ellipsis perhaps for none between."""
    index_shape = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
    key: list[Any] = []
    axis = 0
    while axis < len(shape):
        if rng.random() < 0.15:
            key.append(None)
        if axis + 1 < len(shape) and rng.random() < 0.1:
            data = np.random.default_rng(rng.randrange(1 << 30))
            key.append(data.random(shape[axis : axis + 2]) < 0.5)
            axis += 2
            continue
        key.append(random_item(rng, shape[axis], index_shape))
        axis += 1
    if rng.random() < 0.6:
        at = rng.randint(0, len(key))
        gone = rng.choice((0, 0, 1, 2))
        key[at : at + gone] = [Ellipsis]
    return tuple(key)


def random_value(rng: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    """Something that broadcasts to the shape, or has axes of size 1 in front of it."""
    dims = tuple(n if rng.random() < 0.7 else 1 for n in shape)
    if shape:
        dims = rng.choice((shape, dims, dims[rng.randint(0, len(dims)) :], (1, *dims)))
    return np.random.default_rng(rng.randrange(1 << 30)).random(dims, np.float32)


@pytest.mark.parametrize("seed", range(40))
def test_random_keys_read_and_write_as_in_numpy(seed: int) -> None:
    check_random_keys(seed)


def check_random_keys(seed: int) -> None:
    rng = random.Random(seed)
    tried = 0
    while tried < 20:
        shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 5)))
        key = random_key(rng, shape)
        array = np.random.default_rng(seed).random(shape, np.float32)
        try:
            want = array[key]
        except IndexError:  # masks of another length, arrays that do not broadcast
            with pytest.raises(GraphError, match="getitem"):
                Tensor(array)[key]
            with pytest.raises(GraphError, match="setitem"):
                Tensor(array)[key] = 0
            continue
        tried += 1
        got = reference(Tensor(array)[key])
        assert got.shape == want.shape, key
        np.testing.assert_array_equal(got, want, err_msg=str(key))

        value = random_value(rng, want.shape)
        written, tensor = array.copy(), Tensor(array)
        # Broadcast here: NumPy refuses axes in front for a single mask.
        fits = value.reshape(value.shape[max(value.ndim - want.ndim, 0) :])
        written[key] = np.broadcast_to(fits, want.shape)
        tensor[key] = value
        np.testing.assert_array_equal(reference(tensor), written, err_msg=str(key))


def test_an_ellipsis_for_no_axis_separates_indices() -> None:
    """As in NumPy, where the result of separated index arrays goes to the front."""
    array = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    key = (slice(None), [2, 0], ..., 0, 4)
    assert array[key].shape == (2, 2)
    np.testing.assert_array_equal(Tensor(array)[key].numpy(), array[key])
    np.testing.assert_array_equal(Tensor(array)[:, [2, 0], 0, 4].numpy(), array[:, [2, 0], 0, 4])
    value = np.array([[1, 2], [3, 4]], np.float32)
    tensor = Tensor(array)
    tensor[key] = value
    array[key] = value
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("length", [2, 4])
def test_a_mask_behind_an_ellipsis_has_the_length_of_its_axis(length: int) -> None:
    x = Tensor.input("x", (2, 3))
    mask = np.ones(length, bool)
    message = rf"a mask must have the shape of its axes, got \[{length}\] of \[2,3\]"
    with pytest.raises(GraphError, match=message):
        x[..., mask]
    with pytest.raises(GraphError, match=message):
        x[..., mask] = 0


def test_a_computed_mask_has_the_shape_of_its_axes() -> None:
    """It neither stretches nor makes the tensor grow."""
    x, row = Tensor.input("x", (4, 1)), Tensor.input("row", (1,))
    with pytest.raises(GraphError, match=r"mask must have shape \[4\], got b1\[1\]"):
        x[row > 0] = 0
    with pytest.raises(GraphError, match=r"only dims of size 1 broadcast, got f32\[3\] to \[1\]"):
        x[x[:, 0] > 0] = np.ones(3, np.float32)
    n, m = Variable("n", 1, 4), Variable("m", 1, 4)
    y = Tensor.input("y", (n,))
    y[Tensor.input("mask", (m,), "bool")] = 7
    data = {"y": np.arange(3, dtype=np.float32), "mask": np.array([True, False, True])}
    assert evaluate(Graph((y.node,)), data)[0].tolist() == [7, 1, 7]
    with pytest.raises(VariableError, match="must"):
        evaluate(Graph((y.node,)), data | {"mask": np.ones(2, bool)})


@pytest.mark.parametrize(
    "source", [np.ones((3, 2)), np.ones((2, 1)), np.ones((6,)), np.ones((3, 3)), 1.0], ids=np.shape
)
def test_index_add_takes_one_slice_per_index_and_nothing_else(source: Any) -> None:
    x = Tensor.input("x", (4, 3))
    with pytest.raises(GraphError, match=r"\[index_add\] source must have shape \[2,3\], got"):
        x.index_add(0, [0, 1], source)
    with pytest.raises(GraphError, match=r"\[index_add\] index must be 1-D, got i64\[1,2\]"):
        x.index_add(0, [[0, 1]], np.ones((2, 3)))


def test_index_add_leaves_dims_that_may_agree_for_the_run() -> None:
    n, m = Variable("n", 1, 8), Variable("m", 1, 8)
    x, source = Tensor.input("x", (4, n)), Tensor.input("s", (2, m))
    added = Graph((x.index_add(0, [3, 1], source).node,))
    a, s = np.zeros((4, 3), np.float32), np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    want = [[0, 0, 0], [4, 5, 6], [0, 0, 0], [1, 2, 3]]
    assert evaluate(added, {"x": a, "s": s})[0].tolist() == want
    with pytest.raises(VariableError, match="dim 1 must be n, got m in"):
        evaluate(added, {"x": a, "s": s[:, :2].copy()})


def test_a_scatter_source_smaller_than_its_index_is_refused() -> None:
    x = Tensor.input("x", (4, 3))
    with pytest.raises(GraphError, match=r"\[scatter_add\] source must not be smaller than i64"):
        x.scatter_add(0, np.zeros((2, 2), np.int64), np.ones((1, 2), np.float32))
