"""Processors without fma and without float16 casts: the same numbers, by other instructions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_by_machine, run_kernels
from tests.codegen.machine import Array, Native

from semel import Tensor
from semel.devices.cpu.toolchain import host_target
from semel.ir.expr import Index, Variable
from semel.ir.target import Target, target_for
from semel.ir.types import FLOAT32, FLOAT64, DType, as_dtype
from semel.kernel.ir import Buffer, Kernel, Loop, Store, load, op

BASE = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
PLAIN = target_for("x86_64", BASE)
pytestmark = pytest.mark.skipif(
    not {*BASE, "fma"} <= set(host_target().features), reason="needs x86-64 with fma to compare"
)
N = Variable("n", 0, None)
RNG = np.random.default_rng(2)


def run(output: Tensor, **inputs: Array) -> Array:
    graph, kernels = lower_graph([output], PLAIN)
    return run_kernels(graph, kernels, inputs, {}, run_by_machine(PLAIN))[0]


def test_the_target_has_neither() -> None:
    assert not PLAIN.has_fma and not PLAIN.has_f16_casts


def test_every_float16_is_widened_exactly() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    found = run(Tensor.input("x", every.shape, "float16").cast("float32"), x=every)
    with np.errstate(invalid="ignore"):
        expected = every.astype(np.float32)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(expected))


def test_float32_rounds_to_the_nearest_float16() -> None:
    every = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (every[:-1] + every[1:]) / 2
    ends = np.array([65504, 65519.99, 65520, 65536, 1e30, np.inf, np.nan, 2**-25, 1e-30])
    some = np.concatenate(
        [every, between, np.nextafter(between, np.float32(0)), np.nextafter(between, every[1:]),
         ends.astype(np.float32)]
    )  # fmt: skip
    some = np.concatenate([some, -some])
    found = run(Tensor.input("x", some.shape).cast("float16"), x=some)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = some.astype(np.float16)
    is_nan = np.isnan(some)
    assert np.array_equal(found[~is_nan].view(np.uint16), expected[~is_nan].view(np.uint16))
    assert np.isnan(found[is_nan]).all()


def fma(target: Target, a: Array, b: Array, c: Array) -> Array:
    dtype = as_dtype(a.dtype)
    buffers = [Buffer(name, dtype, N, "r") for name in "abc"]
    out, index = Buffer("out", dtype, N, "w"), Index("i", N)
    store = Store(out, index, op("fma", *(load(buffer, index) for buffer in buffers)))
    kernel = Kernel(
        "fma", (out, *buffers), (), (N,), Index("tile", 1), 1, (Loop(index, 0, N, (store,), 8),)
    )
    found = np.empty_like(a)
    Native(kernel, target).run([found, a, b, c], {"n": a.size})
    return found


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_fma_rounds_once(dtype: DType) -> None:
    """Also where the sum cancels, lies on a tie, or is far smaller than its terms."""
    count = 20_000
    a, b, c = (
        (RNG.standard_normal(count) * 2.0 ** RNG.integers(-30, 30, count)).astype(dtype.numpy)
        for _ in range(3)
    )
    c[: count // 2] = -(a * b)[: count // 2]  # leaves the error of the product
    near = slice(count // 4, count // 2)
    c[near] = np.nextafter(c[near], c[near] * 2)
    a[-100:], b[-100:] = 1 + 2.0**-12, 1 + 2.0**-12  # ties and near ties
    results = [fma(target, a, b, c) for target in (host_target(), PLAIN)]
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_fma_of_zeros_infinities_and_what_overflows(dtype: DType) -> None:
    info = np.finfo(dtype.numpy)
    sizes = [0, 1, 3, 1 / 3, 1 - info.eps, float(info.max), float(info.max) / 3, np.inf, np.nan]
    signed = np.array([*sizes, *np.negative(sizes)], dtype.numpy)
    a, b, c = (np.ascontiguousarray(x.ravel()) for x in np.meshgrid(signed, signed, signed))
    by_one, by_many = (fma(target, a, b, c) for target in (host_target(), PLAIN))
    is_number = ~np.isnan(by_one)
    np.testing.assert_array_equal(by_many, by_one)
    assert by_one[is_number].tobytes() == by_many[is_number].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_products_of_matrices(dtype: str) -> None:
    x, y = Tensor.input("x", (29, 40), dtype), Tensor.input("y", (40, 37), dtype)
    a, b = (RNG.standard_normal(s).astype(x.dtype.numpy) for s in ((29, 40), (40, 37)))
    found = run(x @ y, x=a, y=b).astype(np.float64)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    unit = {"float64": 2**-52, "float32": 2**-23}.get(dtype, 2**-7)
    bound = 80 * min(unit, 2**-23) * (np.abs(wide_a) @ np.abs(wide_b))
    exact = wide_a @ wide_b
    assert np.all(np.abs(found - exact) <= bound + (unit if unit > 2**-23 else 0) * abs(exact))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["exp", "log", "sin", "tan", "tanh", "erf", "sigmoid"])
def test_math_functions_stay_accurate(name: str, dtype: str) -> None:
    """They use fma for exact errors of products, which come out without it too."""
    spread = 10.0 ** RNG.uniform(-5, 5, 5000)
    data = np.concatenate(
        [RNG.standard_normal(5000) * spread, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, 5e-324]]
    )
    with np.errstate(over="ignore"):
        data = data.astype(dtype)
    by_fma = getattr(Tensor(data), name)().numpy()
    found = run(getattr(Tensor.input("x", data.shape, dtype), name)(), x=data)
    finite = np.isfinite(by_fma)
    assert np.array_equal(found[~finite], by_fma[~finite], equal_nan=True)
    units = np.abs(found[finite] - by_fma[finite]) / np.spacing(np.abs(by_fma[finite]))
    assert units.max() <= 3
