"""Math functions as machine code: dense samples of float32, every vector width.

`tests/unit/test_math.py` measures the formulas; here the machine runs them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.codegen.machine import Array, Native, every_target
from tests.codegen.test_scalars import N, loop_kernel

from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import assembly, compile_ir
from semel.ir.expr import Index
from semel.ir.target import AVX2, AVX512, target_for
from semel.ir.types import FLOAT32, FLOAT64, DType
from semel.kernel.interpret import evaluate_value
from semel.kernel.ir import MATH, Buffer, Value, load, op
from semel.kernel.math import expand_math

TARGETS = every_target()
HOST = next(iter(TARGETS))
#: In units of the last place of float32.
BOUNDS = {"sqrt": 0.5, "exp": 2, "log": 2, "sin": 2, "cos": 2, "exp2": 2, "log2": 2}
STRIDE = 1021  # a prime: 4.2 million of all bit patterns
_erf = np.frompyfunc(math.erf, 1, 1)
REFERENCE: dict[str, Callable[..., Any]] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "decay": np.exp,
    "erf": lambda x: np.asarray(_erf(x)).astype(np.float64),
    "sigmoid": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x))),
}  # fmt: skip
UNARY = sorted(name for name, count in MATH.items() if count == 1 and name != "gelu")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def function(name: str, dtype: DType, target_name: str) -> tuple[Value, list[Value], Native]:
    i = Index("i", N)
    count = MATH.get(name, 1)
    loads = [load(Buffer("xy"[k], dtype, N, "r"), i) for k in range(count)]
    value = expand_math(op(name, *loads))
    target = TARGETS[target_name]
    kernel = loop_kernel([value], [v.data[0] for v in loads], target.vector_bits // 32, N)
    return value, loads, Native(kernel, target)


@pytest.mark.parametrize("name", [*UNARY, "sqrt"])
def test_float32_functions_hold_their_bound_over_all_bit_patterns(name: str) -> None:
    stride = STRIDE * 16 if name == "erf" else STRIDE
    x = np.arange(0, 1 << 32, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, np.linspace(-20, 20, 100_001, dtype=np.float32)])
    x = -np.abs(x) if name == "decay" else x  # of what is not positive
    got = np.empty_like(x)
    function(name, FLOAT32, HOST)[2].run([got, x], {"n": x.size})
    exact = np.asarray(REFERENCE.get(name, getattr(np, name, None))(x.astype(np.float64)))  # type: ignore[misc]
    rounded = exact.astype(np.float32)
    odd = ~(np.isfinite(rounded) & np.isfinite(got))
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    # The last number before infinity may go either way.
    edge = odd & ~same & (np.abs(exact) < 3.5e38) & (np.abs(exact) > 3.4028e38)
    assert (same | edge)[odd].all(), f"{name}({x[odd & ~same][:5]}) = {got[odd & ~same][:5]}"
    unit = np.spacing(np.maximum(np.abs(rounded), np.float32(2.0**-126))).astype(np.float64)
    error = np.where(odd, 0, np.abs(got.astype(np.float64) - exact) / unit)
    worst = int(error.argmax())
    bound = BOUNDS.get(name, 4)
    assert error[worst] <= bound, f"{name}({x[worst]!r}): {error[worst]:.2f} ulp"


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("target_name", list(TARGETS)[1:] or [HOST])
def test_every_vector_width_gives_the_interpreters_bits(target_name: str, dtype: DType) -> None:
    rng = np.random.default_rng(5)
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, 88.9, -104, 3e5, 0.5])
    wide = np.concatenate([special, rng.normal(size=150) * 9])
    x, y = wide.astype(dtype.numpy), rng.permutation(wide).astype(dtype.numpy)
    for name, count in MATH.items():
        value, loads, native = function(name, dtype, target_name)
        args = [x, y][:count]
        got = np.empty_like(x)
        native.run([got, *args], {"n": x.size})
        want = evaluate_value(value, dict(zip(loads, args, strict=True)))
        np.testing.assert_array_equal(got, want, err_msg=name)


def run_pow(x: Array, y: Array) -> Array:
    got = np.empty_like(x)
    function("pow", FLOAT32, HOST)[2].run([got, x, y], {"n": x.size})
    return got


def test_pow_holds_its_bound_on_a_dense_sample() -> None:
    rng = np.random.default_rng(6)
    x = np.exp(rng.normal(size=400_000) * 8).astype(np.float32)
    y = (rng.normal(size=400_000) * rng.choice([0.1, 1, 9], 400_000)).astype(np.float32)
    got = run_pow(x, y)
    exact = np.power(x.astype(np.float64), y.astype(np.float64))
    usual = (exact > 1.2e-38) & (exact < 3.4e38)
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    error = np.abs(got.astype(np.float64) - exact)[usual] / unit[usual]
    assert error.max() <= 4


def test_pow_of_special_values_is_numpys() -> None:
    values = np.array([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e30,
                       -1e30, 1e-30, 16777216, 16777217], np.float32)  # fmt: skip
    x, y = (np.ascontiguousarray(a).reshape(-1) for a in np.meshgrid(values, values))
    want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(run_pow(x, y), want, rtol=5e-7)


@pytest.mark.parametrize(
    ("dtype", "lanes"),
    [(FLOAT32, 16), (FLOAT32, 32), (FLOAT32, 64), (FLOAT64, 8), (FLOAT64, 16), (FLOAT64, 32)],
    ids=str,
)
def test_wide_registers_scale_in_one_instruction_each(dtype: DType, lanes: int) -> None:
    """AVX-512 multiplies by a power of two: once for every register of the loop, at every width."""
    target = target_for("x86_64", ("avx", *AVX2, *AVX512))
    value = load(Buffer("x", dtype, N, "r"), Index("i", N))
    kernel = loop_kernel([expand_math(op("exp", value))], [value.data[0]], lanes, N)
    text = emit_kernel(kernel, target, "f")
    compile_ir(text, target)  # refuses calls
    wide = f"<{64 // dtype.size_bytes} x {'float' if dtype is FLOAT32 else 'double'}>"
    calls = [line for line in text.splitlines() if "call" in line and ".scalef.p" in line]
    assert len(calls) > lanes * dtype.size_bytes // 64  # those of the rest besides
    assert all(f"call {wide}" in line for line in calls)
    name = "vscalefps" if dtype is FLOAT32 else "vscalefpd"
    found = re.findall(rf"{name}\s.*%zmm", assembly(text, target))
    assert len(found) > lanes * dtype.size_bytes // 64


@pytest.mark.parametrize(("dtype", "lanes"), [(FLOAT32, 8), (FLOAT64, 4), (FLOAT32, 1)], ids=str)
def test_narrow_loops_scale_by_factors(dtype: DType, lanes: int) -> None:
    target = target_for("x86_64", ("avx", *AVX2, *AVX512))
    value = load(Buffer("x", dtype, N, "r"), Index("i", N))
    kernel = loop_kernel([expand_math(op("exp", value))], [value.data[0]], lanes, N)
    text = emit_kernel(kernel, target, "f")
    assert ".scalef." not in text
    compile_ir(text, target)
