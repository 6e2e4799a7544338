"""A reshape that joins what a permute has brought together: loops over the axes, no divisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.lowering import lower_graph

import semel
from semel import Graph, Tensor, Variable
from semel.ir.expr import Dim, linear_coefficient, product
from semel.kernel import ir
from semel.kernel.ir import walk_statements, walk_values


@st.composite
def _joins(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """A shape, the order of its axes, and where those are cut into axes of a result."""
    rank = draw(st.integers(2, 5))
    shape = tuple(draw(st.sampled_from([1, 2, 3, 5, 16, 17, 33])) for _ in range(rank))
    order = tuple(draw(st.permutations(range(rank))))
    cuts = sorted(draw(st.sets(st.integers(1, rank - 1), max_size=rank - 1)))
    return shape, order, [0, *cuts, rank]


@given(_joins(), st.booleans(), st.booleans())
def test_every_element_arrives(
    join: tuple[tuple[int, ...], tuple[int, ...], list[int]], is_any: bool, is_computed: bool
) -> None:
    shape, order, cuts = join
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    dims = tuple(Variable(f"d{k}", 1, 64) for k in range(len(shape))) if is_any else shape
    turned = Tensor.input("x", dims).permute(order)
    ends = list(pairwise(cuts))

    def joined(sizes: Sequence[Dim]) -> list[Dim]:
        return [product(sizes[start:stop]) for start, stop in ends]

    y = turned.reshape(tuple(joined(turned.shape)))
    y = y * 2 + 1 if is_computed else y
    wanted = data.transpose(order)
    wanted = wanted.reshape([int(str(n)) for n in joined(wanted.shape)])
    np.testing.assert_array_equal(y.prepare()(x=data), wanted * 2 + 1 if is_computed else wanted)


@pytest.mark.parametrize("is_any", [False, True])
def test_nothing_is_divided_for_an_element(is_any: bool) -> None:
    b, h, s = (Variable(n, 1, 64) for n in "bhs") if is_any else (3, 12, 50)
    heads = Tensor.input("x", (b, h, s, 64)).permute(0, 2, 1, 3).reshape(b, s, h * 64)
    for y in (heads, heads * 2 + 1):
        _, kernels = lower_graph([y])
        body = kernels[-1].kernel.body
        loops = [it for it in walk_statements(body) if isinstance(it, ir.Loop) and it.lanes > 1]
        assert loops
        for loop in loops:
            assert {linear_coefficient(at, loop.index) for at in _addresses(loop)} == {1}


def _addresses(loop: ir.Loop) -> Iterator[Dim]:
    """Where a loop's statements read and write."""
    for statement in walk_statements(loop.body):
        if isinstance(statement, ir.Store):
            yield statement.at
        for value in walk_values(ir.statement_values(statement)):
            if value.op == "load":
                yield value.data[1]


def test_a_last_axis_that_fills_no_register_is_walked_as_it_is() -> None:
    x = Tensor.input("x", (1, 16, 2, 2, 28, 28))
    y = x.permute(0, 1, 4, 2, 5, 3).reshape(1, 16, 56, 56)  # pixels that are shuffled
    data = np.random.default_rng(1).standard_normal((1, 16, 2, 2, 28, 28)).astype(np.float32)
    wanted = data.transpose(0, 1, 4, 2, 5, 3).reshape(1, 16, 56, 56)
    np.testing.assert_array_equal(y.prepare()(x=data), wanted)


_Made = Callable[[Tensor], Tensor]

#: What a product's elements go through, and what joins its axes on the way.
_JOINED: dict[str, _Made] = {
    "heads": lambda y: y.permute(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1),
    "heads, and more": lambda y: (
        (y * 2).permute(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1).relu() + 1
    ),
    "planes": lambda y: y.permute(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1).permute(0, 2, 1),
    "columns first": lambda y: y.permute(0, 3, 1, 2).reshape(y.shape[0], -1, y.shape[2]),
    "all": lambda y: y.permute(2, 1, 0, 3).reshape(-1),
}


@pytest.mark.parametrize("is_any", [False, True])
@pytest.mark.parametrize("name", _JOINED)
def test_a_product_is_stored_where_its_axes_are_joined(name: str, is_any: bool) -> None:
    b, s = (Variable("b", 1, 8), Variable("s", 1, 64)) if is_any else (2, 21)
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(d).astype(np.float32) for d in [(2, 5, 21, 17), (2, 5, 17, 24)])
    products = Tensor.input("x", (b, 5, s, 17)) @ Tensor.input("y", (b, 5, 17, 24))
    joined = _JOINED[name](products)
    assert len(lower_graph([joined])[1]) == 1
    plan = joined.prepare()
    apart = _JOINED[name](Tensor(products.prepare()(x=x, y=y))).numpy()
    np.testing.assert_array_equal(plan(x=x, y=y), apart)


@pytest.mark.parametrize("is_any", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_groups_of_a_convolution_are_stored_in_order(last: bool, is_any: bool) -> None:
    n, h, w = (Variable(v, 1, 40) for v in "nhw") if is_any else (2, 9, 13)
    rng = np.random.default_rng(4)
    image = rng.standard_normal((2, 24, 9, 13)).astype(np.float32)
    weight, bias = rng.standard_normal((60, 6, 3, 3)), rng.standard_normal(60)
    weight, bias = weight.astype(np.float32), bias.astype(np.float32)
    x = Tensor.input("x", (n, h, w, 24) if last else (n, 24, h, w))
    seen = x.permute(0, 3, 1, 2) if last else x
    y = seen.conv2d(weight, bias, padding=1, groups=4).relu()
    y = y.permute(0, 2, 3, 1) if last else y
    plan = y.prepare()
    assert len(plan.kernels) == 2  # the padding, and the rest
    found = plan(x=image.transpose(0, 2, 3, 1) if last else image)
    found = found.transpose(0, 3, 1, 2) if last else found
    for group in range(4):
        inputs, outputs = slice(6 * group, 6 * group + 6), slice(15 * group, 15 * group + 15)
        alone = Tensor(image[:, inputs]).conv2d(weight[outputs], bias[outputs], padding=1).relu()
        np.testing.assert_allclose(found[:, outputs], alone.numpy(), rtol=1e-4, atol=1e-4)


def test_products_of_bytes_are_stored_where_their_axes_are_joined() -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 255, (2, 3, 19, 40)).astype(np.uint8)
    w = rng.integers(-128, 127, (2, 3, 40, 24)).astype(np.int8)
    y = Tensor.input("x", (2, 3, 19, 40), "uint8").cast("int32") @ Tensor(w).cast("int32")
    y = y.permute(0, 2, 1, 3).reshape(2, 19, 72)
    wanted = (x.astype(np.int32) @ w.astype(np.int32)).transpose(0, 2, 1, 3).reshape(2, 19, 72)
    np.testing.assert_array_equal(y.prepare()(x=x), wanted)


@pytest.mark.parametrize("is_any", [False, True])
def test_heads_of_an_attention_are_stored_joined(is_any: bool) -> None:
    s = Variable("s", 1, 64) if is_any else 30
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((2, 3, 30, 32)).astype(np.float32) for _ in range(3))
    tensors = [Tensor.input(name, (2, 3, s, 32)) for name in "qkv"]
    y = (tensors[0] @ tensors[1].mT).softmax(-1) @ tensors[2]
    joined = y.permute(0, 2, 1, 3).reshape(2, s, 96)
    assert len(lower_graph([joined])[1]) == 1
    apart = y.prepare()(q=q, k=k, v=v).transpose(0, 2, 1, 3).reshape(2, 30, 96)
    np.testing.assert_array_equal(joined.prepare()(q=q, k=k, v=v), apart)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_who_joins_a_kernel_is_stored_by_its_own_shape(order: tuple[int, ...]) -> None:
    """Kernels of one shape of loops are joined, also where it is the shape of some roots only."""
    x, data = Tensor.input("x", (31, 31)), np.arange(961, dtype=np.float32).reshape(31, 31)
    outputs = [x + 1, x.T.reshape(961) * 2, x.T * 3]
    wanted = [data + 1, data.T.reshape(961) * 2, data.T * 3]
    found = semel.prepare([outputs[k] for k in order])(x=data)
    for k, array in zip(order, found, strict=True):
        np.testing.assert_array_equal(array, wanted[k])


@pytest.mark.parametrize("is_first", [False, True])
def test_a_part_of_a_state_is_stored_beside_axes_that_a_reshape_joins(is_first: bool) -> None:
    """The part has the shape of the loops; the state, in which it lies, has another one."""
    g = Graph("part")
    x, s = g.input("x", (31, 31)), g.state("s", (64, 40))
    if is_first:
        s.update(x * 3, (33, 9))
    g.output("y", x.T.reshape(961) * 2)
    if not is_first:
        s.update(x * 3, (33, 9))
    data = np.arange(961, dtype=np.float32).reshape(31, 31)
    plan = g.prepare()
    np.testing.assert_array_equal(plan(x=data), data.T.reshape(961) * 2)
    wanted = np.zeros((64, 40), np.float32)
    wanted[33:, 9:] = data * 3
    np.testing.assert_array_equal(plan.states.read("s"), wanted)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_rows_that_a_permute_joined_are_one_kernel(name: str) -> None:
    """A reduction keeps rows of the root's own shape: these stay the loops."""
    rows = Tensor.input("x", (40, 12, 64)).permute(1, 0, 2).reshape(480, 64)
    y = rows.softmax(-1) if name == "softmax" else rows.layer_norm()
    assert len(y.prepare().kernels) == 1
