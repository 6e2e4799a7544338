"""One element, one order of addition: sizes, variables, variants and threads agree bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.ir.graph import Node, make_node
from semel.ops.elementwise import BINARY, UNARY
from semel.passes import fold
from semel.tensor.handle import wrap

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
    for size in SIZES[name == "gram" :]:  # a matmul fixed at one column is another kernel
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
    pair = (Tensor.input("x", (n, 96), "float32") @ Tensor(weight[:, -2:].copy())).prepare()
    assert bits(pair(x=x)) == bits(whole[:, -2:].copy())  # one column would be a sum of products
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


# ---------------------------------------------------------------- fused and not, known and given


def depthwise(x: Tensor) -> Tensor:
    image = x.reshape(1, 7, 10, x.shape[0])
    return image.conv2d(Tensor(WEIGHT[:7, :9].copy().reshape(7, 1, 3, 3)), groups=7)


#: Products that go into sums, and what else a kernel of several ops could round otherwise.
FUSED: dict[str, Function] = FUNCTIONS | {
    "squares": lambda x: (x * x).sum(1),
    "squares_of_all": lambda x: (x * x).sum(),
    "products": lambda x: (x * x.exp()).sum(1),
    "moved_products": lambda x: (x * 3).T.reshape(7, -1).sum(0),
    "rms_norm": lambda x: x.rms_norm(),
    "a_product_and_its_sum": lambda x: (x * x.tanh()) / (x * x.tanh()).sum(1, keepdims=True),
    "a_sum_of_products": lambda x: x * x + x * 0.7 - x,
    "depthwise": depthwise,
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_and_unfused_kernels_give_the_same_bits(name: str) -> None:
    x = RNG.standard_normal((29, 70)).astype(np.float32)
    y = FUSED[name](Tensor.input("x", x.shape, "float32"))
    fused, single = y.prepare(fusion=True), y.prepare(fusion=False)
    assert bits(fused(x=x)) == bits(single(x=x))


def test_a_sum_of_products_is_the_same_whoever_else_reads_them() -> None:
    x = RNG.standard_normal((29, 70)).astype(np.float32)
    given = Tensor.input("x", x.shape, "float32")
    product = given * given
    alone = product.sum(1).prepare()(x=x)
    both = semel.prepare([product, product.sum(1)])
    kept = product.sum(1).prepare(keep={"product": product})
    assert bits(both(x=x)[1]) == bits(alone)
    assert bits(kept(x=x)) == bits(alone)
    exact = (x.astype(np.float64) ** 2).sum(1)
    assert np.abs(alone - exact).max() < 2e-5


def _elementwise(name: str, x: Tensor) -> Tensor:
    """An op by its name, on floats."""
    operands = (x.node,) if name in UNARY else (x.node, (x[::-1] * 0.5).node)
    return wrap(make_node(name, operands))


def _one_nan(array: Array) -> Array:
    """The sign and the payload of a NaN are the processor's."""
    if array.dtype.kind in "biu":
        return array
    return np.where(np.isnan(array), np.asarray(np.nan, array.dtype), array)


#: What floats have no use for.
BITS = ("not", "and", "or", "xor", "shl", "shr")
OPS = [name for name in (*UNARY, *BINARY) if name not in BITS]
KNOWN: dict[str, Function] = {
    **{name: partial(_elementwise, name) for name in OPS},
    **FUSED,
}


@pytest.mark.parametrize("name", KNOWN)
def test_constants_params_and_inputs_give_the_same_bits(name: str) -> None:
    """Folded by the compiler, made by a recipe, computed by a run."""
    dtypes = ("float32", "float64", "float16", "bfloat16") if name not in FUSED else ("float32",)
    for dtype in dtypes:
        x = Tensor(RNG.standard_normal((29, 70)).astype(np.float32) * 3).cast(dtype).numpy()
        found = [
            KNOWN[name](Tensor(x)).prepare()(),
            KNOWN[name](Tensor.param("x", x)).prepare()(),
            KNOWN[name](Tensor.input("x", x.shape, dtype)).prepare()(x=x),
        ]
        assert len({bits(_one_nan(each)) for each in found}) == 1, dtype


@pytest.mark.parametrize("n", [2, 7, 19, 40])
def test_one_column_has_the_bits_that_it_has_among_others(n: int) -> None:
    """A sum down one column only is added as those down all of them are."""
    x, data = Tensor.input("x", (n, n)), RNG.standard_normal((n, n)).astype(np.float32)
    columns = {
        "sum": x.exp().sum(0)[:1],
        "log_softmax": x.log_softmax(0)[:, 0],
        "max": x.max(0)[1:2],
    }
    wanted = {"sum": x.exp().sum(0), "log_softmax": x.log_softmax(0), "max": x.max(0)}
    sums, softmax, maxima = semel.prepare(wanted, threads=1, fusion=False)(x=data)
    want = [bits(each) for each in (sums[:1], softmax[:, 0], maxima[1:2])]
    for fusion in (True, False):
        found = semel.prepare(columns, threads=1, fusion=fusion)(x=data)
        assert [bits(each) for each in found] == want


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -1.0])
def test_powers_that_are_known_are_those_that_are_given(dtype: str, exponent: float) -> None:
    x = Tensor(RNG.standard_normal((29, 70)).astype(np.float32) * 3).cast(dtype).numpy()
    given = Tensor.input("x", x.shape, dtype)
    by = Tensor.param("by", np.full(x.shape, exponent, x.dtype))
    known, replaced = (given**exponent).prepare()(x=x), (given**by).prepare()(x=x)
    assert bits(_one_nan(known)) == bits(_one_nan(replaced))


def test_the_compiler_interprets_what_is_small_and_runs_kernels_for_the_rest() -> None:
    """The same bits on both sides of the limit, by different ways."""
    small = RNG.standard_normal(100).astype(np.float32)
    large = np.tile(small, fold.SMALL_BYTES // small.nbytes + 1)
    kinds = [_folded(Tensor(array).exp()) for array in (small, large)]
    assert [node.op.name for node in kinds] == ["constant", "stored"]
    folded, made = (Tensor(array).exp().prepare()() for array in (small, large))
    assert bits(folded) == bits(made[:100])


def _folded(tensor: Tensor) -> Node:
    return fold.fold_node(tensor.node)
