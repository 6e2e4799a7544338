"""Quantised numbers and their products, exactly as int64 arithmetic has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semel
from semel import GraphError, Tensor, Variable
from semel.ir.expr import upper_bound
from semel.ir.graph import Graph
from semel.passes import run_passes

Array = np.ndarray[Any, np.dtype[Any]]
BYTES = ("int8", "uint8")


def random_bytes(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Whole range, with the extremes often: those are what saturates by mistake."""
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    extreme = rng.random(shape) < 0.3
    data[extreme] = rng.choice([info.min, info.max], int(extreme.sum()))
    return data


def exact(a: Array, b: Array, a_zero: Any = 0, b_zero: Any = 0) -> Array:
    left = a.astype(np.int64) - np.asarray(a_zero).astype(np.int64)
    right = b.astype(np.int64) - np.asarray(b_zero).astype(np.int64)
    return (left @ right).astype(np.int32)


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_product_of_no_bytes_is_zero(is_constant: bool) -> None:
    a, b = np.ones((8, 0), np.int8), np.ones((0, 1), np.int8)
    x = Tensor.input("a", a.shape, "int8")
    w = Tensor(b) if is_constant else Tensor.input("b", b.shape, "int8")
    plan = x.matmul_integer(w).prepare()
    got = plan(a=a) if is_constant else plan(a=a, b=b)
    np.testing.assert_array_equal(got, np.zeros((8, 1), np.int32))


@pytest.mark.parametrize("b_dtype", BYTES)
@pytest.mark.parametrize("a_dtype", BYTES)
@pytest.mark.parametrize("is_constant", [True, False])
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_products_of_bytes_are_exact(
    a_dtype: str, b_dtype: str, is_constant: bool, data: st.DataObject
) -> None:
    rows = data.draw(st.sampled_from([1, 2, 3, 5, 8, 12, 13, 29, 49]))
    depth = data.draw(st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 16, 63, 64, 130, 257]))
    columns = data.draw(st.sampled_from([1, 2, 15, 16, 31, 32, 33, 64, 65, 100]))
    zeros = data.draw(st.sampled_from(["none", "numbers", "arrays"]))
    threads = data.draw(st.sampled_from([1, 2]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    a, b = random_bytes(rng, a_dtype, (rows, depth)), random_bytes(rng, b_dtype, (depth, columns))
    a_zero: Any = None
    b_zero: Any = None
    if zeros == "numbers":
        a_zero, b_zero = (int(random_bytes(rng, d, ())[()]) for d in (a_dtype, b_dtype))
    elif zeros == "arrays":
        a_zero = random_bytes(rng, a_dtype, (rows,))
        b_zero = random_bytes(rng, b_dtype, (columns,))
    x = Tensor.input("a", a.shape, a_dtype)
    w = Tensor(b) if is_constant else Tensor.input("b", b.shape, b_dtype)
    plan = x.matmul_integer(w, a_zero, b_zero).prepare(threads=threads)
    got = plan(a=a) if is_constant else plan(a=a, b=b)
    rows_zero = 0 if a_zero is None else np.reshape(a_zero, (-1, 1))
    np.testing.assert_array_equal(got, exact(a, b, rows_zero, 0 if b_zero is None else b_zero))


@pytest.mark.parametrize("a_dtype", BYTES)
@pytest.mark.parametrize("depth", [64, 67])
def test_one_plan_serves_all_rows_with_one_or_two_threads(a_dtype: str, depth: int) -> None:
    rng = np.random.default_rng(1)
    m = Variable("m", 1, 200)
    b = random_bytes(rng, "int8", (depth, 70))
    x = Tensor.input("a", (m, depth), a_dtype)
    plans = [x.matmul_integer(b, 3, -4).prepare(threads=t) for t in (1, 2)]
    for rows in (1, 2, 3, 4, 5, 7, 12, 13, 25, 47, 48, 49, 200):
        a = random_bytes(rng, a_dtype, (rows, depth))
        for plan in plans:
            np.testing.assert_array_equal(plan(a=a), exact(a, b, 3, -4), str(rows))
    assert [plan.compile_count for plan in plans] == [1, 1]  # each has constants of its own


@pytest.mark.parametrize("b_dtype", BYTES)
def test_the_contracted_size_may_be_a_variable(b_dtype: str) -> None:
    rng = np.random.default_rng(2)
    k, n = Variable("k", 0, 100), Variable("n", 1, 50)
    a, b = Tensor.input("a", (9, k), "uint8"), Tensor.input("b", (k, n), b_dtype)
    plan = a.matmul_integer(b, 7, 5).prepare()
    for depth, columns in ((1, 1), (4, 33), (7, 50), (64, 20), (99, 31), (0, 3)):
        x, y = random_bytes(rng, "uint8", (9, depth)), random_bytes(rng, b_dtype, (depth, columns))
        np.testing.assert_array_equal(plan(a=x, b=y), exact(x, y, 7, 5))


@pytest.mark.parametrize("shapes", [((2, 3, 5, 9), (9, 33)), ((3, 9, 20), (3, 20, 34))])
@pytest.mark.parametrize("is_constant", [True, False])
def test_batches_multiply_entry_by_entry(shapes: Any, is_constant: bool) -> None:
    rng = np.random.default_rng(3)
    a, b = random_bytes(rng, "int8", shapes[0]), random_bytes(rng, "uint8", shapes[1])
    x = Tensor.input("a", a.shape, "int8")
    w = Tensor(b) if is_constant else Tensor.input("b", b.shape, "uint8")
    plan = x.matmul_integer(w, -9, 128).prepare(threads=2)
    got = plan(a=a) if is_constant else plan(a=a, b=b)
    np.testing.assert_array_equal(got, exact(a, b, -9, 128))


def test_operands_may_be_transposed_views() -> None:
    rng = np.random.default_rng(4)
    a, b = random_bytes(rng, "uint8", (40, 13)), random_bytes(rng, "int8", (70, 40))
    plan = Tensor.input("a", a.shape, "uint8").mT.matmul_integer(Tensor(b).mT, 2).prepare()
    np.testing.assert_array_equal(plan(a=a), exact(a.T, b.T, 2))


def test_the_same_thing_written_in_32_bits_is_the_same_kernel() -> None:
    rng = np.random.default_rng(5)
    b = Tensor(random_bytes(rng, "int8", (64, 96)))
    x = Tensor.input("a", (20, 64), "uint8")
    by_hand = (x.cast("int32") - 7) @ (b.cast("int32") - 3)
    by_method = x.matmul_integer(b, 7, 3)
    assert by_hand.node is by_method.node
    a = random_bytes(rng, "uint8", (20, 64))
    np.testing.assert_array_equal(by_hand.prepare()(a=a), exact(a, b.numpy(), 7, 3))


def test_zero_points_that_depend_on_k_are_left_as_written() -> None:
    rng = np.random.default_rng(6)
    a, b = random_bytes(rng, "int8", (6, 8)), random_bytes(rng, "int8", (8, 40))
    zero = np.arange(8, dtype=np.int32)
    plan = (
        (Tensor.input("a", a.shape, "int8").cast("int32") - Tensor(zero)) @ Tensor(b).cast("int32")
    ).prepare()
    np.testing.assert_array_equal(plan(a=a), exact(a, b, zero))


def test_scale_bias_and_activation_are_computed_on_the_accumulators() -> None:
    rng = np.random.default_rng(7)
    a, b = random_bytes(rng, "uint8", (33, 64)), random_bytes(rng, "int8", (64, 96))
    scale, bias = np.asarray(rng.random(96), np.float32), rng.standard_normal(96).astype(np.float32)
    x = Tensor.input("a", a.shape, "uint8")
    y = x.matmul_integer(b, 128).cast("float32") * Tensor(scale) + Tensor(bias)
    plan = y.relu().prepare()
    expected = np.maximum(exact(a, b, 128).astype(np.float32) * scale + bias, 0)
    np.testing.assert_allclose(plan(a=a), expected, rtol=1e-6, atol=1e-4)
    assert len(plan.steps) == 1


def test_several_rows_of_quantised_floats_are_one_chain() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((17, 48)).astype(np.float32)
    w = rng.standard_normal((48, 40)).astype(np.float32)
    w_scale = np.abs(w).max(0) / 127
    q = np.clip(np.rint(w / w_scale), -128, 127).astype(np.int8)
    t = Tensor.input("x", x.shape)
    y, scale, zero = t.dynamic_quantize_linear()
    out = y.matmul_integer(q, zero).cast("float32") * (scale * Tensor(w_scale.astype(np.float32)))
    got, steps, step, origin = semel.prepare([out, y, scale, zero])(x=x)
    assert np.abs((steps.astype(np.float32) - origin) * step - x).max() <= 0.5001 * step
    exact = (steps.astype(np.int64) - origin) @ q.astype(np.int64)
    np.testing.assert_allclose(got, exact * (step * w_scale.astype(np.float32)), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_quantising_rounds_halves_to_even_and_saturates(dtype: str) -> None:
    x = np.array([[-1e9, -2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 126.4, 1e9]], np.float32)
    zero = np.asarray(3, dtype)
    info = np.iinfo(dtype)
    expected = np.clip(np.rint(x.astype(np.float64) / 0.5) + 3, info.min, info.max).astype(dtype)
    got = Tensor(x).quantize_linear(0.5, zero).numpy()
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_along_an_axis_go_there_and_back(axis: int) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((6, 10)).astype(np.float32)
    size = x.shape[axis]
    scale = (np.asarray(rng.random(size), np.float32) + 0.1) / 50
    zero = rng.integers(-5, 5, size).astype(np.int8)
    wide = (size, 1) if axis == 0 else (1, size)
    quantised = Tensor(x).quantize_linear(scale, zero, axis=axis)
    expected = np.clip(np.rint(x / scale.reshape(wide)) + zero.reshape(wide), -128, 127)
    np.testing.assert_array_equal(quantised.numpy(), expected.astype(np.int8))
    back = quantised.dequantize_linear(scale, zero, axis=axis).numpy()
    np.testing.assert_allclose(
        back, (expected - zero.reshape(wide)) * scale.reshape(wide), rtol=1e-6
    )


def test_scales_of_blocks_are_repeated_for_their_elements() -> None:
    rng = np.random.default_rng(10)
    q = random_bytes(rng, "int8", (12, 5))
    scale = rng.random((3, 5)).astype(np.float32)
    zero = random_bytes(rng, "int8", (3, 5))
    got = Tensor(q).dequantize_linear(scale, zero, axis=0, block_size=4).numpy()
    wide = (np.repeat(v, 4, axis=0).astype(np.float64) for v in (zero, scale))
    zeros, scales = wide
    np.testing.assert_allclose(got, (q - zeros) * scales, rtol=1e-6)


def test_wide_integers_are_dequantised_exactly() -> None:
    q = np.array([2**30 + 1, -(2**30)], np.int32)
    got = Tensor(q).dequantize_linear(np.float64(0.5), np.int32(2**30), axis=0).numpy()
    np.testing.assert_array_equal(got, np.array([0.5, -(2.0**30)], np.float32))


@pytest.mark.parametrize("values", [[0.0, 2.0, -3.0, -2.5, 1.34, 0.5], [0.0, 0.0], [1.0, 2.0, 2.1]])
def test_dynamic_quantisation_covers_the_range_and_zero(values: list[float]) -> None:
    x = np.array(values, np.float32)
    y, scale, zero = (t.numpy() for t in Tensor(x).dynamic_quantize_linear())
    low, high = min(x.min(), 0), max(x.max(), 0)
    step = np.float32(high - low) / np.float32(255) or np.float32(1)
    assert scale == pytest.approx(step)
    assert zero == np.clip(np.rint(-low / step), 0, 255)
    np.testing.assert_array_equal(y, np.clip(np.rint(x / step) + zero, 0, 255).astype(np.uint8))


def test_a_quantised_product_is_quantised_again() -> None:
    rng = np.random.default_rng(11)
    a, b = random_bytes(rng, "uint8", (9, 20)), random_bytes(rng, "uint8", (20, 33))
    x = Tensor.input("a", a.shape, "uint8")
    y = x.qlinear_matmul(0.02, 113, b, 0.01, 114, 0.05, np.uint8(118))
    factor = np.float32(0.02) * np.float32(0.01) / np.float32(0.05)
    wide = np.rint(exact(a, b, 113, 114).astype(np.float32) * factor) + 118
    np.testing.assert_array_equal(y.prepare()(a=a), np.clip(wide, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("padding", [0, 1])
def test_convolutions_of_bytes_are_exact(groups: int, padding: int) -> None:
    rng = np.random.default_rng(12)
    x = random_bytes(rng, "uint8", (2, 4, 7, 6))
    w = random_bytes(rng, "int8", (8, 4 // groups, 3, 3))
    t = Tensor.input("x", x.shape, "uint8")
    plan = t.conv_integer(w, 11, None, padding=padding, stride=2, groups=groups).prepare()
    edge = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    wide = np.pad(x.astype(np.int64) - 11, edge)
    want = Tensor(wide).conv(Tensor(w.astype(np.int64)), stride=2, groups=groups).numpy()
    np.testing.assert_array_equal(plan(x=x), want.astype(np.int32))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_zero_points_of_filters_ask_each_byte_once(stride: int, channels_last: bool) -> None:
    """What a zero point asks of windows is the sum of pixels that were summed before."""
    rng = np.random.default_rng(4)
    n = Variable("n", 3, 20)
    x, w = random_bytes(rng, "uint8", (2, 24, 9, 9)), random_bytes(rng, "uint8", (8, 24, 3, 3))
    given = Tensor.input("x", (2, 24, 9, n), "uint8")
    image = given.permute(0, 2, 3, 1).permute(0, 3, 1, 2) if channels_last else given
    wide = image.conv_integer(w, None, 50, padding=1, stride=stride)
    plan = wide.prepare(threads=1)
    for width in (9, 4):
        part = x[..., :width]
        padded = np.pad(part.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        windows = windows[:, :, ::stride, ::stride]
        wanted = np.einsum("bchwij,ocij->bohw", windows, w.astype(np.int64) - 50)
        np.testing.assert_array_equal(plan(x=part), wanted)
    graph = run_passes(Graph((wide.node,)))
    added = [node.inputs[0].type for node in graph.nodes if node.op.name == "reduce_sum"]
    most = [upper_bound(kind.num_elements) for kind in added]
    assert most and all(number and number <= 2 * 24 * 11 * 22 for number in most)


def test_what_is_no_byte_is_refused() -> None:
    x = Tensor.input("x", (4, 4), "int16")
    with pytest.raises(GraphError, match="int8 or uint8"):
        x.matmul_integer(np.zeros((4, 4), np.int8))
    b = Tensor.input("b", (4, 4), "int8")
    with pytest.raises(GraphError, match="zero point"):
        b.matmul_integer(np.zeros((4, 4), np.int8), np.zeros(3, np.int8))
    with pytest.raises(GraphError, match="whole number"):
        b.matmul_integer(np.zeros((4, 4), np.int8), 0.5)
    with pytest.raises(GraphError, match="needs integers"):
        Tensor.input("f", (4,)).dequantize_linear(0.5)
    with pytest.raises(GraphError, match="along axis"):
        b.dequantize_linear(np.ones(3, np.float32))
    with pytest.raises(GraphError, match=r"need numbers of shape \[1, 4\]"):
        b.dequantize_linear(np.ones((2, 4), np.float32), axis=0, block_size=5)


def test_large_products_are_the_same_for_one_and_two_threads() -> None:
    rng = np.random.default_rng(13)
    a, b = random_bytes(rng, "int8", (130, 300)), random_bytes(rng, "int8", (300, 700))
    x = Tensor.input("a", a.shape, "int8")
    expected = exact(a, b, 1, 2)
    for threads in (1, 2):
        plan = x.matmul_integer(b, 1, 2).prepare(threads=threads)
        for _ in range(3):
            np.testing.assert_array_equal(plan(a=a), expected)


_LOAD = """
import sys
import numpy as np
from semel import load_plan
a = np.arange(40 * 64, dtype=np.int64).reshape(40, 64).astype(np.uint8)
np.save(sys.argv[2], load_plan(sys.argv[1])(a=a))
"""


def test_a_saved_product_runs_in_a_process_that_compiles_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(14)
    b = random_bytes(rng, "int8", (64, 96))
    plan = Tensor.input("a", (40, 64), "uint8").matmul_integer(b).prepare()
    plan.save(tmp_path / "product.plan")
    paths = [str(tmp_path / "product.plan"), str(tmp_path / "result.npy")]
    subprocess.run([sys.executable, "-c", _LOAD, *paths], check=True, timeout=240)
    a = np.arange(40 * 64, dtype=np.int64).reshape(40, 64).astype(np.uint8)
    np.testing.assert_array_equal(np.load(paths[1]), exact(a, b))
