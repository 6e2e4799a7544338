"""Math functions: error bounds, special values, and that nothing else is left."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from semel.codegen.emit import emit_kernel
from semel.devices.cpu.elf import load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.ir.expr import Index, Variable
from semel.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType
from semel.kernel.interpret import evaluate_value, interpret
from semel.kernel.ir import (
    MATH,
    Buffer,
    Declare,
    If,
    Kernel,
    Local,
    Loop,
    Reduce,
    Store,
    Value,
    load,
    local,
    op,
    statement_values,
    walk_statements,
    walk_values,
)
from semel.kernel.math import FUNCTIONS, expand_kernel_math, expand_math

Array = np.ndarray[Any, Any]
Wide = np.longdouble
HAS_EXTENDED = np.finfo(Wide).nmant > 60

#: What is promised, in ulp of the result: float32, float64.
PROMISED = {
    "exp": (2, 2), "log": (2, 2), "sin": (2, 2), "cos": (2, 2), "exp2": (2, 2), "log2": (2, 2),
    "fmod": (0, 0),
}  # fmt: skip
UNARY = sorted(name for name, count in MATH.items() if count == 1 and name != "gelu")
BINARY = sorted(name for name, count in MATH.items() if count == 2)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64)]).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


REFERENCE: dict[str, Callable[..., Any]] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "pow": np.power,
    "erf": _erf, "sigmoid": _sigmoid, "decay": np.exp,
}  # fmt: skip


def reference(name: str, *args: Array) -> Array:
    return np.asarray(REFERENCE.get(name, getattr(np, name, None))(*args))  # type: ignore[misc]


def arguments(dtype: DType, count: int) -> list[Value]:
    return [load(Buffer("xy"[i], dtype, 1, "r"), 0) for i in range(count)]


def compute(name: str, dtype: DType, *args: Array) -> Array:
    leaves = arguments(dtype, len(args))
    value = expand_math(op(name, *leaves))
    return evaluate_value(value, dict(zip(leaves, args, strict=True)))


def errors_in_ulp(got: Array, exact: Array) -> Array:
    """Distances in units of the last place of the exact result; infinite where kinds differ."""
    info = np.finfo(got.dtype)
    rounded = exact.astype(got.dtype)
    regular = np.isfinite(rounded) & np.isfinite(got)
    exponent = np.frexp(np.where(regular & (exact != 0), exact, 1))[1] - 1
    unit = np.ldexp(Wide(1), np.maximum(exponent, info.minexp) - info.nmant)
    error = np.abs(got.astype(Wide) - exact) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(regular, error, np.where(same, 0, np.inf))
    lost_sign = (got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(rounded))
    return np.where(lost_sign, np.inf, error)


def sample(dtype: DType, count: int, seed: int) -> Array:
    """Random bit patterns, and normal numbers of several sizes."""
    rng = np.random.default_rng(seed)
    unsigned = np.uint32 if dtype is FLOAT32 else np.uint64
    patterns = rng.integers(0, 2**dtype.bits, count, dtype=unsigned).view(dtype.numpy)
    scales = rng.choice([0.01, 1, 10, 40], count)
    return np.concatenate([patterns, (rng.normal(size=count) * scales).astype(dtype.numpy)])


SPECIAL = [
    0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0,
    1e-45, -1e-45, 1e-38, 5e-324, 3.4e38, -3.4e38, 88.72, 88.73, 89.0, 89.4, 89.5, -87.4,
    -103.9, -104.1, 709.78, 709.79, 710.4, 710.5, -745.1, -745.2, 127.99, 128.0, -149.0,
    -150.0, 1024.0, -1074.0, -1075.0, 9.0, -20.0, 6.0, 1e5, 1e15, 1.5e15, 1e22, 1e30,
]  # fmt: skip


def check_bound(name: str, dtype: DType, count: int) -> None:
    dtype_index = 0 if dtype is FLOAT32 else 1
    promised = PROMISED.get(name, (4, 4))[dtype_index]
    measured = (FUNCTIONS[name].float32_ulp, FUNCTIONS[name].float64_ulp)[dtype_index]
    assert measured <= promised
    special = np.array(SPECIAL).astype(dtype.numpy)
    x = np.concatenate([sample(dtype, count, 1), special])
    args = [x]
    if MATH[name] == 2:
        other = np.concatenate([sample(dtype, count, 2), special])
        pairs = np.meshgrid(special, special)
        args = [np.concatenate([a, p.ravel()]) for a, p in zip((x, other), pairs, strict=True)]
    if name == "decay":  # of what is not positive
        args = [-np.abs(x)]
    exact = reference(name, *(a.astype(Wide) for a in args)).astype(Wide)
    errors = errors_in_ulp(compute(name, dtype, *args), exact)
    worst = int(errors.argmax())
    where = [a[worst] for a in args]
    assert errors[worst] <= min(measured + 0.15, promised), f"{name}{where}: {errors[worst]} ulp"


@pytest.mark.parametrize("name", UNARY + BINARY)
def test_float32_stays_within_its_bound(name: str) -> None:
    check_bound(name, FLOAT32, 100_000)


@pytest.mark.skipif(not HAS_EXTENDED, reason="needs a long double wider than double")
@pytest.mark.parametrize("name", UNARY + BINARY)
def test_float64_stays_within_its_bound(name: str) -> None:
    check_bound(name, FLOAT64, 4_000)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_a_decay_has_the_bits_of_exp(dtype: DType) -> None:
    unsigned = np.uint32 if dtype is FLOAT32 else np.uint64
    low = -120.0 if dtype is FLOAT32 else -800.0
    x = -np.abs(np.concatenate([sample(dtype, 100_000, 5), np.linspace(low, 0, 200_001)]))
    x = x.astype(dtype.numpy)
    once, slowly = (compute(name, dtype, x).view(unsigned) for name in ("decay", "exp"))
    assert (once == slowly).all()
    tiny = np.finfo(dtype.numpy).tiny
    assert (once.view(dtype.numpy) == 0).any() and (once.view(dtype.numpy)[x > low] < tiny).any()


@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos", "tanh", "erf"])
def test_float32_holds_over_a_stride_of_all_bit_patterns(name: str) -> None:
    patterns = np.arange(0, 2**32, 14_653, dtype=np.uint64).astype(np.uint32)
    x = patterns.view(np.float32)
    exact = reference(name, x.astype(np.float64)).astype(Wide)
    assert errors_in_ulp(compute(name, FLOAT32, x), exact).max() <= PROMISED.get(name, (4, 4))[0]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_gelu_is_exact_in_the_tails_and_close_between(dtype: DType) -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), [-1e30, -6.0, 6.0, 1e30, 0.0]])
    x = x.astype(dtype.numpy)
    phi = np.array([0.5 * math.erfc(-v * math.sqrt(0.5)) for v in x.astype(np.float64)])
    got = compute("gelu", dtype, x)
    scale = np.maximum(np.abs(x), 1)
    measured = (FUNCTIONS["gelu"].float32_ulp, FUNCTIONS["gelu"].float64_ulp)
    bound = measured[0] * 2.0**-24 if dtype is FLOAT32 else measured[1] * 2.0**-53
    assert bound <= 2.5e-7
    assert (np.abs(got - x * phi) / scale).max() <= bound
    assert compute("gelu", dtype, np.array([-100, 100], dtype.numpy)).tolist() == [0, 100]
    assert math.isnan(compute("gelu", dtype, np.array([math.nan], dtype.numpy))[0])


@pytest.mark.parametrize("name", [*UNARY, "gelu"])
def test_any_nan_stays_nan(name: str) -> None:
    payloads = np.array([0x7F800001, 0x7FC12345, 0xFFC00001, 0x7FFFFFFF, 0xFF800100], np.uint32)
    assert np.isnan(compute(name, FLOAT32, payloads.view(np.float32))).all()
    wide = (payloads.astype(np.uint64) << 32) | 0x7FF0000000000001
    assert np.isnan(compute(name, FLOAT64, wide.view(np.float64))).all()


def native(name: str, dtype: DType, lanes: int) -> Callable[..., Array]:
    """The function as machine code of the host, over whole arrays."""
    n, tile = Variable("n", 1), Index("t", 1)
    i = Index("i", n)
    buffers = tuple(Buffer(b, dtype, n, "r") for b in "xy"[: MATH[name]])
    out = Buffer("out", dtype, n, "w")
    store = Store(out, i, op(name, *(load(b, i) for b in buffers)))
    body = (Loop(i, 0, n, (store,), lanes=lanes),)
    kernel = Kernel(name, (out, *buffers), (), (n,), tile, 1, body)
    target = host_target()
    text = emit_kernel(expand_kernel_math(kernel), target, "entry")
    code = load_object(compile_ir(text, target))
    entry = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )(code.address("entry"))

    def run(*args: Array, keep: object = code) -> Array:
        result = np.empty_like(args[0])
        pointers = np.array([a.ctypes.data for a in (result, *args)], np.int64)
        values, lane = np.array([result.size], np.int64), np.zeros(64, np.int64)
        entry(lane.ctypes.data, pointers.ctypes.data, values.ctypes.data, 0, 1)
        return result

    return run


@pytest.mark.parametrize("name", [*UNARY, *BINARY, "gelu"])
def test_machine_code_gives_the_bits_of_the_interpreter(name: str) -> None:
    args = [sample(FLOAT32, 10_001, seed) for seed in range(MATH[name])]
    if name == "decay":
        args = [-np.abs(args[0])]
    got = native(name, FLOAT32, host_target().vector_bits // 32)(*args)
    expected = compute(name, FLOAT32, *args)
    both_nan = np.isnan(got) & np.isnan(expected)
    assert ((got.view(np.uint32) == expected.view(np.uint32)) | both_nan).all()


def test_powers_near_one_with_large_exponents_are_accurate() -> None:
    rng = np.random.default_rng(5)
    for dtype, spread, bound in ((FLOAT32, 1e-4, 1), (FLOAT64, 1e-8, 2)):
        if dtype is FLOAT64 and not HAS_EXTENDED:
            continue
        x = (1 + rng.normal(size=20_000) * spread).astype(dtype.numpy)
        y = (rng.normal(size=20_000) * 30 / spread).astype(dtype.numpy)
        exact = np.power(x.astype(Wide), y.astype(Wide))
        assert errors_in_ulp(compute("pow", dtype, x, y), exact).max() <= bound


def test_small_integer_powers_are_exact() -> None:
    x, y = np.meshgrid(np.arange(-12, 13, dtype=np.float32), np.arange(0, 6, dtype=np.float32))
    assert (compute("pow", FLOAT32, x.ravel(), y.ravel()) == np.power(x, y).ravel()).all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_fmod_is_exact_for_the_widest_ratios(dtype: DType) -> None:
    info = np.finfo(dtype.numpy)
    rng = np.random.default_rng(3)
    x = (rng.random(2_000) * float(info.max)).astype(dtype.numpy)
    y = (rng.integers(1, 1_000, 2_000) * float(info.smallest_subnormal)).astype(dtype.numpy)
    assert (compute("fmod", dtype, x, y) == np.fmod(x, y)).all()


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("name", UNARY)
def test_half_types_compute_in_float32_and_round_once(name: str, dtype: DType) -> None:
    x = np.random.default_rng(0).normal(size=500).astype(dtype.numpy)
    wide = compute(name, FLOAT32, x.astype(np.float32))
    assert (
        compute(name, dtype, x).view(np.uint16) == wide.astype(dtype.numpy).view(np.uint16)
    ).all()


def math_ops(values: list[Value]) -> set[str]:
    return {v.op for v in walk_values(values)} & set(MATH)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64])
def test_every_math_function_has_a_definition_without_math_functions(dtype: DType) -> None:
    assert set(FUNCTIONS) == set(MATH)
    for name, count in MATH.items():
        assert not math_ops([expand_math(op(name, *arguments(dtype, count)))])


def test_deep_chains_expand_without_recursion() -> None:
    value = arguments(FLOAT32, 1)[0]
    for _ in range(1_500):
        value = op("tanh", value) + 1.0
    assert not math_ops([expand_math(value)])


def test_shared_values_stay_shared() -> None:
    x = arguments(FLOAT32, 1)[0]
    once = op("exp", x)
    single = sum(1 for _ in walk_values([expand_math(once)]))
    double = sum(1 for _ in walk_values([expand_math(once * once + once)]))
    assert double == single + 2


def test_values_without_math_are_unchanged() -> None:
    x = arguments(FLOAT32, 1)[0]
    value = x * 2.0 + 1.0
    assert expand_math(value) is value


def test_kernels_expand_in_every_statement() -> None:
    out, source = Buffer("out", FLOAT32, 4, "w"), Buffer("in", FLOAT32, 4, "r")
    tile, i = Index("t", 1), Index("i", 4)
    total = Local("sum", FLOAT32)
    x = load(source, i)
    kernel = Kernel(
        "k", (out, source), (), (), tile, 1,
        (
            Declare(total, op("log", load(source, 0))),
            Loop(i, 0, 4, (Reduce((total,), "add", (op("exp", x),)),), lanes=4),
            If(op("tanh", load(source, 0)) > 0.0,
               (Loop(i, 0, 4, (Store(out, i, op("sin", x) + local(total)),)),)),
        ),
    )  # fmt: skip
    expanded = expand_kernel_math(kernel)
    values = [v for s in walk_statements(expanded.body) for v in statement_values(s)]
    assert not math_ops(values)
    results = []
    for version in (kernel, expanded):
        arrays = [np.zeros(4, np.float32), np.arange(1, 5, dtype=np.float32)]
        assert interpret(version, arrays, {}) == []
        results.append(arrays[0])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
