"""Graphs between dequantised and quantised numbers: computed on the bytes, with the same steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.test_quantise import random_bytes

import semel
from semel import Tensor, Variable
from semel.ir.graph import Graph
from semel.passes import run_passes

Array = np.ndarray[Any, np.dtype[Any]]


def ops_of(output: Tensor) -> dict[str, set[str]]:
    """The ops that are left of a graph, each with the dtypes of its results."""
    found: dict[str, set[str]] = {}
    for node in run_passes(Graph((output.node,)), verify=True).nodes:
        found.setdefault(node.op.name, set()).add(node.type.dtype.name)
    return found


def steps_apart(got: Array, exact: Array, zero: int) -> None:
    """`got` are the steps of exact floats; halves may go either way, within float32's rounding."""
    info = np.iinfo(got.dtype)
    assert got.shape == exact.shape
    wanted = np.clip(np.rint(exact) + zero, info.min, info.max).astype(np.int64)
    differ = wanted != got
    halfway = np.abs(np.abs(exact - np.trunc(exact)) - 0.5) < 1e-4 * np.maximum(1, np.abs(exact))
    assert np.abs(wanted - got).max(initial=0) <= 1
    assert not (differ & ~halfway).any()


def quantised(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(random_bytes(rng, dtype, shape))


# ------------------------------------------------------------ products

CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 5, 7, 6), (9, 5, 3, 3), {}),
    "padded": ((1, 8, 6, 7), (20, 8, 3, 3), {"padding": 1}),
    "strided": ((1, 3, 9, 11), (16, 3, 3, 3), {"padding": 1, "stride": 2}),
    "dilated": ((1, 4, 11, 9), (8, 4, 3, 3), {"padding": 2, "dilation": 2}),
    "pointwise": ((2, 24, 5, 5), (40, 24, 1, 1), {}),
    "grouped": ((1, 8, 6, 6), (12, 4, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((1, 20, 7, 6), (20, 1, 3, 3), {"padding": 1, "groups": 20}),
    "depthwise, twice": ((1, 6, 7, 6), (12, 1, 5, 5), {"padding": 2, "stride": 2, "groups": 6}),
    "one axis": ((2, 6, 19), (10, 6, 5), {"padding": 2}),
}


#: dtype and zero point of the image, and of the filters.
BYTES = (("uint8", 17, "int8", 0), ("int8", -5, "int8", 0), ("uint8", 128, "uint8", 130))
KINDS = [(name, BYTES[i % 3]) for i, name in enumerate(CONVS)]
KINDS += [(name, kind) for name in ("padded", "depthwise") for kind in BYTES]


@pytest.mark.parametrize(("name", "kind"), dict.fromkeys(KINDS))
def test_a_convolution_is_one_of_bytes(name: str, kind: tuple[str, int, str, int]) -> None:
    shape, filters, options = CONVS[name]
    dtype, zero, weights, weight_zero = kind
    rng = np.random.default_rng(0)
    x, w = random_bytes(rng, dtype, shape), random_bytes(rng, weights, filters)
    scales = rng.uniform(1e-3, 2e-3, filters[0]).astype(np.float32)
    bias = rng.integers(-20000, 20000, filters[0]).astype(np.int32)
    t = Tensor.input("x", shape, dtype)
    wide = Tensor(w).dequantize_linear(scales, np.full(filters[0], weight_zero, weights), axis=0)
    b = Tensor(bias).dequantize_linear(scales * np.float32(0.1), axis=0)
    y = t.dequantize_linear(np.float32(0.1), np.asarray(zero, dtype)).conv(wide, b, **options)
    out = y.relu().quantize_linear(np.float32(0.37), np.asarray(3, dtype))
    left = ops_of(out)
    assert "float32" not in left.get("matmul", set()) | left.get("reduce_sum", set())
    assert "div" not in left, "the scale of the result is part of the factors"
    plan = out.prepare()
    wanted = Tensor(x.astype(np.int64) - zero).conv(
        Tensor(w.astype(np.int64) - weight_zero), **options
    )
    over = (-1, *[1] * (len(shape) - 2))
    factor = (np.float64(np.float32(0.1)) * scales / np.float32(0.37)).reshape(over)
    exact = (wanted.numpy() + bias.reshape(over)) * factor
    steps_apart(plan(x=x), np.maximum(exact, 0), 3)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_keeps_its_weights_as_bytes_and_takes_any_number_of_rows(threads: int) -> None:
    rng = np.random.default_rng(1)
    m = Variable("m", 1, 40)
    w = random_bytes(rng, "int8", (96, 70))
    scales = rng.uniform(1e-3, 2e-3, 70).astype(np.float32)
    bias = rng.standard_normal(70).astype(np.float32)
    x = Tensor.input("x", (m, 96), "uint8").dequantize_linear(0.02, 113)
    y = x @ Tensor(w).dequantize_linear(scales, axis=1) + Tensor(bias)
    plan = y.quantize_linear(0.05, np.uint8(128)).prepare(threads=threads)
    assert plan.explain().memory.weights_bytes < 2 * w.size
    for rows in (1, 3, 4, 5, 29, 40):
        a = random_bytes(rng, "uint8", (rows, 96))
        total = (a.astype(np.int64) - 113) @ w.astype(np.int64)
        exact = (total * (np.float32(0.02) * scales.astype(np.float64)) + bias) / np.float32(0.05)
        steps_apart(plan(x=a), exact, 128)
    assert plan.compile_count == 1


@pytest.mark.parametrize("b_dtype", ["int8", "uint8"])
def test_both_operands_may_be_computed_and_the_result_stay_a_float(b_dtype: str) -> None:
    rng = np.random.default_rng(2)
    a, b = random_bytes(rng, "uint8", (3, 13, 20)), random_bytes(rng, b_dtype, (3, 17, 20))
    left = Tensor.input("a", a.shape, "uint8").dequantize_linear(0.1, 100)
    right = Tensor.input("b", b.shape, b_dtype).dequantize_linear(0.2, 3)
    y = left @ right.mT
    assert ops_of(y)["matmul_integer"] == {"int32"}
    total = (a.astype(np.int64) - 100) @ (b.astype(np.int64) - 3).transpose(0, 2, 1)
    exact = total * (np.float64(np.float32(0.1)) * np.float32(0.2))
    np.testing.assert_allclose(y.prepare()(a=a, b=b), exact, rtol=1e-6)


def test_scales_of_rows_leave_the_product_too() -> None:
    rng = np.random.default_rng(3)
    a, b = random_bytes(rng, "int8", (9, 12)), random_bytes(rng, "int8", (12, 5))
    scales = rng.uniform(0.1, 1, 9).astype(np.float32)
    x = Tensor.input("a", a.shape, "int8").dequantize_linear(scales, axis=0)
    y = x @ Tensor(b).dequantize_linear(0.5)
    assert "matmul_integer" in ops_of(y)
    exact = (a.astype(np.int64) @ b.astype(np.int64)) * scales[:, None] * 0.5
    np.testing.assert_allclose(y.prepare()(a=a), exact, rtol=1e-6)


def test_scales_that_depend_on_k_and_sums_that_could_wrap_stay_floats() -> None:
    rng = np.random.default_rng(4)
    b = quantised(rng, "int8", (12, 5)).dequantize_linear(0.5)
    x = Tensor.input("x", (9, 12), "int8")
    by_k = x.dequantize_linear(np.linspace(0.1, 1, 12).astype(np.float32), axis=1) @ b
    assert ops_of(by_k)["matmul"] == {"float32"}
    blocks = quantised(rng, "int8", (12, 5)).dequantize_linear(
        np.ones((3, 5), np.float32), axis=0, block_size=4
    )
    assert ops_of(x.dequantize_linear(0.1) @ blocks)["matmul"] == {"float32"}
    long = Tensor.input("x", (2, 40_000), "int8").dequantize_linear(0.1)
    assert ops_of(long @ long.mT)["matmul"] == {"float32"}
    floats = Tensor.input("x", (9, 12)) @ b
    assert ops_of(floats)["matmul"] == {"float32"}


def test_zero_points_and_scales_may_come_with_a_run() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((17, 48)).astype(np.float32)
    w = random_bytes(rng, "int8", (48, 40))
    q, scale, zero = Tensor.input("x", x.shape).dynamic_quantize_linear()
    y = q.dequantize_linear(scale, zero) @ Tensor(w).dequantize_linear(0.01)
    assert "matmul_integer" in ops_of(y)
    step = np.float32(x.max() - x.min()) / np.float32(255)
    origin = np.rint(-x.min() / step)
    bytes_ = np.clip(np.rint(x / step) + origin, 0, 255)
    exact = ((bytes_ - origin) @ w.astype(np.float64)) * (np.float64(step) * np.float32(0.01))
    np.testing.assert_allclose(y.prepare()(x=x), exact, rtol=1e-5, atol=1e-4)


# ------------------------------------------------------------ what is no product


@pytest.mark.parametrize("zero", [0, 7])
def test_pools_views_and_joints_of_one_scale_are_of_the_bytes(zero: int) -> None:
    rng = np.random.default_rng(6)
    a, b = (random_bytes(rng, "uint8", (1, 8, 9, 9)) for _ in range(2))
    left, right = (
        Tensor.input(n, a.shape, "uint8").dequantize_linear(0.1, zero) for n in ("a", "b")
    )
    y = semel.concat([left, right], 1).max_pool(3, 2, 1).permute(0, 2, 3, 1).reshape(25, 16)
    out = y.quantize_linear(0.1, np.uint8(zero))
    assert all("float32" not in dtypes for dtypes in ops_of(out).values())
    wide = np.pad(np.concatenate([a, b], 1), [(0, 0), (0, 0), (1, 1), (1, 1)])
    seen = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))[:, :, ::2, ::2]
    wanted = seen.max((-2, -1)).transpose(0, 2, 3, 1).reshape(25, 16)
    np.testing.assert_array_equal(out.prepare()(a=a, b=b), wanted)


def test_other_scales_are_requantised_and_bounds_that_say_nothing_go() -> None:
    rng = np.random.default_rng(7)
    a = random_bytes(rng, "uint8", (6, 40))
    x = Tensor.input("a", a.shape, "uint8").dequantize_linear(0.1, 20)
    there = x.relu().quantize_linear(0.13, np.uint8(0))
    left = ops_of(there)
    assert not {"div", "max"} & left.keys()
    steps_apart(there.prepare()(a=a), (a.astype(np.int64) - 20) * (np.float32(0.1) / 0.13), 0)
    kept = x.relu().quantize_linear(0.13, np.uint8(5))
    assert "max" in ops_of(kept)
    exact = np.maximum((a.astype(np.int64) - 20) * (np.float32(0.1) / np.float64(0.13)), 0)
    steps_apart(kept.prepare()(a=a), exact, 5)


def test_sums_of_two_scales_divide_nothing() -> None:
    rng = np.random.default_rng(8)
    a, b = random_bytes(rng, "uint8", (6, 40)), random_bytes(rng, "int8", (6, 40))
    x = Tensor.input("a", a.shape, "uint8").dequantize_linear(0.1, 20)
    y = Tensor.input("b", b.shape, "int8").dequantize_linear(0.07)
    out = (x + y).clip(0, 6).quantize_linear(6 / 255, np.uint8(0))
    assert not {"div", "max", "min"} & ops_of(out).keys()
    exact = (a.astype(np.int64) - 20) * np.float64(np.float32(0.1)) + b * np.float64(
        np.float32(0.07)
    )
    steps_apart(out.prepare()(a=a, b=b), exact / np.float32(6 / 255), 0)


def test_floats_that_were_never_quantised_are_divided_as_written() -> None:
    out = (Tensor.input("x", (6, 40)) * 3.0).quantize_linear(0.13, np.uint8(5))
    assert "div" in ops_of(out)


@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16"])
def test_floats_saturate_to_narrow_integers(source: str, to: str) -> None:
    """In vectors, in their rest and one by one: the bounds, what lies beyond, and NaN as 0."""
    info = np.iinfo(to)
    edge = [info.min, info.max, info.min - 0.6, info.max + 0.6, info.max - 0.4, -0.9, 0.9, -0.0]
    far = [np.inf, -np.inf, np.nan, 1e30, -1e30, 3e9, -3e9]
    with np.errstate(over="ignore"):
        x = np.array([*edge, *far] * 3, np.float64).astype(source)
    wide = np.nan_to_num(x.astype(np.float64), posinf=1e30, neginf=-1e30)
    wanted = np.trunc(np.clip(wide, info.min, info.max)).astype(to)
    plan = Tensor.input("x", x.shape, source).cast(to).prepare()
    np.testing.assert_array_equal(plan(x=x), wanted)
    one = Tensor.input("x", (1,), source).cast(to).prepare()
    np.testing.assert_array_equal([one(x=x[i : i + 1])[0] for i in range(15)], wanted[:15])
