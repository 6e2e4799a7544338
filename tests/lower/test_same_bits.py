"""One element, one order of addition: sizes, variables, variants and threads agree bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semel import Tensor, Variable

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[[Tensor], Tensor]

RNG = np.random.default_rng(7)
WEIGHT = RNG.standard_normal((70, 90)).astype(np.float32)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 29, 47, 48, 49, 61, 100)


def attention(x: Tensor) -> Tensor:
    heads = x.reshape(x.shape[0], 5, 14).permute(1, 0, 2)
    return heads.scaled_dot_product_attention(heads, heads, is_causal=True)


FUNCTIONS: dict[str, Function] = {
    "matmul": lambda x: x @ Tensor(WEIGHT),
    "matmul_gelu": lambda x: (x @ Tensor(WEIGHT) + 1).gelu(),
    "gram": lambda x: x @ x.T,
    "transposed": lambda x: x.T @ x,
    "attention": attention,
    "softmax": lambda x: x.softmax(-1),
    "softmax_columns": lambda x: x.softmax(0),
    "layer_norm": lambda x: x.layer_norm(),
    "column_sums": lambda x: x.sum(0),
    "column_products": lambda x: (x * x).sum(0),
    "row_sums": lambda x: x.sum(1),
    "column_maxima": lambda x: x.max(0),
    "everything": lambda x: x.sum(),
    "running_sums": lambda x: x.cumsum(0),
}


def bits(array: Array) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_variable_gives_the_bits_of_a_fixed_size(name: str) -> None:
    function = FUNCTIONS[name]
    n = Variable("n", 1, 128)
    symbolic = [function(Tensor.input("x", (n, 70), "float32")).prepare(threads=t) for t in (1, 2)]
    for size in SIZES:
        x = RNG.standard_normal((size, 70)).astype(np.float32)
        fixed = function(Tensor.input("x", (size, 70), "float32")).prepare(threads=1)
        expected = bits(fixed(x=x))
        assert [bits(plan(x=x)) for plan in symbolic] == [expected, expected], size
    assert all(plan.compile_count <= 1 for plan in symbolic)


def test_a_row_is_the_same_in_every_variant() -> None:
    n = Variable("n", 1, 128)
    plan = FUNCTIONS["matmul_gelu"](Tensor.input("x", (n, 70), "float32")).prepare()
    x = RNG.standard_normal((128, 70)).astype(np.float32)
    whole = plan(x=x)
    for size in SIZES:
        assert bits(plan(x=x[:size])) == bits(whole[:size]), size


@pytest.mark.parametrize("columns", [256, 1000, 1500])
def test_streamed_columns_add_like_columns_in_registers(columns: int) -> None:
    n = Variable("n", 1, 500)
    plan = Tensor.input("x", (n, columns), "float32").sum(0).prepare()
    for rows in (1, 5, 9, 30, 63, 64, 65, 255):
        x = RNG.standard_normal((rows, columns)).astype(np.float32)
        fixed = Tensor.input("x", (rows, columns), "float32").sum(0).prepare()
        assert bits(plan(x=x)) == bits(fixed(x=x)), rows


@pytest.mark.parametrize("columns", [16, 40, 64, 96, 113, 200])
def test_panels_of_every_width_give_the_same_product(columns: int) -> None:
    n = Variable("n", 1, 64)
    weight = RNG.standard_normal((96, columns)).astype(np.float32)
    plan = (Tensor.input("x", (n, 96), "float32") @ Tensor(weight)).prepare()
    x = RNG.standard_normal((64, 96)).astype(np.float32)
    whole = plan(x=x)
    exact = x.astype(np.float64) @ weight.astype(np.float64)
    np.testing.assert_allclose(whole, exact, atol=2e-4)
    alone = (Tensor.input("x", (n, 96), "float32") @ Tensor(weight[:, -1:].copy())).prepare()
    assert bits(alone(x=x)) == bits(whole[:, -1:].copy())
    for size in (1, 3, 5, 24, 25, 48):
        assert bits(plan(x=x[:size])) == bits(whole[:size]), size


def test_a_deep_product_in_parts_gives_the_same_bits() -> None:
    depth = 9000  # a panel is larger than half of any second-level cache we know
    weight = RNG.standard_normal((depth, 70)).astype(np.float32)
    x = RNG.standard_normal((53, depth)).astype(np.float32)

    def product(rows: int | Variable, threads: int) -> Array:
        y = Tensor.input("x", (rows, depth), "float32") @ Tensor(weight)
        return (y + 1).relu().prepare(threads=threads)(x=x)

    whole = product(53, 1)
    exact = x.astype(np.float64) @ weight.astype(np.float64) + 1
    # 9000 roundings of sums of about 95 end some 3e-4 away, five times that in the tail.
    np.testing.assert_allclose(whole, np.maximum(exact, 0), atol=1.5e-3)
    assert bits(product(53, 2)) == bits(whole)
    assert bits(product(Variable("n", 1, 64), 1)) == bits(whole)  # in one part


def test_a_deep_convolution_in_parts_gives_the_same_bits() -> None:
    weight = RNG.standard_normal((70, 1024, 3, 3)).astype(np.float32)
    x = RNG.standard_normal((1, 1024, 5, 5)).astype(np.float32)
    image = Tensor.input("x", (1, 1024, 5, 5), "float32")
    fixed = image.conv2d(Tensor(weight), padding=1).prepare()(x=x)
    n = Variable("n", 1, 2)
    batch = Tensor.input("x", (n, 1024, 5, 5), "float32").conv2d(Tensor(weight), padding=1)
    assert bits(batch.prepare()(x=x)) == bits(fixed)


#: Sums over an axis of n elements, kept beside k others.
LONG: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x.sum(1),
    "products": lambda x: (x * x).sum(1),
    "softmax": lambda x: x.softmax(-1),
    "mean": lambda x: x.mean(1),
    "maxima": lambda x: x.max(1),
    "columns": lambda x: x.T.sum(0),
    "column_products": lambda x: (x.T * 2 * x.T).sum(0),
    "column_softmax": lambda x: x.T.softmax(0),
}


@pytest.mark.parametrize("name", LONG)
def test_long_sums_are_the_same_whatever_is_known_of_sizes(name: str) -> None:
    """Split into kernels or not: runs of 16384 elements, added in order."""
    function = LONG[name]
    n, k = Variable("n", 1, 70_000), Variable("k", 1, 40)
    shapes: list[Callable[[int, int], tuple[int | Variable, int | Variable]]] = [
        lambda rows, length: (rows, length),
        lambda rows, length: (rows, n),
        lambda rows, length: (k, length),
        lambda rows, length: (k, n),
    ]
    for rows, length in ((2, 100), (2, 16384), (3, 16385), (2, 40_000), (9, 20_000)):
        x = RNG.standard_normal((rows, length)).astype(np.float32)
        found = {
            bits(function(Tensor.input("x", shape(rows, length))).prepare(threads=1)(x=x))
            for shape in shapes
        }
        assert len(found) == 1, (rows, length)


def test_runs_of_several_axes_are_added_in_order() -> None:
    b = Variable("b", 1, 20)
    x = RNG.standard_normal((3, 2, 20_000)).astype(np.float32)
    few = Tensor.input("x", (3, 2, 20_000)).sum((0, 2)).prepare()(x=x)
    many = Tensor.input("x", (3, b, 20_000)).sum((0, 2)).prepare()(x=x)
    assert bits(few) == bits(many)
    np.testing.assert_allclose(few, x.astype(np.float64).sum((0, 2)), atol=1e-2)
