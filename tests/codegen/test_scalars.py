"""Every scalar op of the kernel IR, as machine code, gives what the interpreter gives.

All dtypes, tricky values, scalar loops and vector loops of several widths, with and without
a masked rest. The interpreter is the definition; `tests/ops` ties it to NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from tests.codegen.machine import Array, Native, every_target

from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import compile_ir
from semel.ir.expr import Dim, Index, Variable
from semel.ir.target import target_for
from semel.ir.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from semel.kernel.interpret import evaluate_value
from semel.kernel.ir import (
    ARITHMETIC,
    COMPARISONS,
    Buffer,
    Kernel,
    Loop,
    Store,
    Value,
    bitcast,
    cast,
    load,
    op,
    select,
)

INTEGERS = (INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
DTYPES = (BOOL, *INTEGERS, *FLOATS)
TARGETS = every_target()
SIZES = (0, 1, 7, 16, 33, 100)
N = Variable("n", 0, None)

_FLOAT_ONLY = {"div", "sqrt"}
_INTEGER_ONLY = {"idiv", "imod", "and", "or", "xor", "not", "shl", "shr"}
_BOOL_OPS = ("add", "mul", "min", "max", "and", "or", "xor", "not")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def operations(dtype: DType) -> list[str]:
    if dtype == BOOL:
        return list(_BOOL_OPS)
    # `ldexp` and `scale` take whole numbers only and have a test of their own.
    banned = {"ldexp", "scale"} | (_INTEGER_ONLY if dtype.is_float else _FLOAT_ONLY)
    rounding = () if dtype.is_float else ("floor", "ceil", "trunc", "rint")
    return [name for name in ARITHMETIC if name not in banned and name not in rounding]


def tricky(dtype: DType) -> Array:
    """Values at which arithmetic goes wrong."""
    if dtype == BOOL:
        return np.array([False, True])
    if dtype.is_integer:
        low, high = int(dtype.lowest), int(dtype.highest)
        near = (low, low + 1, -128, -33, -2, -1, 0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 100,
                high // 2, high // 2 + 1, high - 1, high)  # fmt: skip
        return np.array(sorted({v for v in near if low <= v <= high}), dtype.numpy)
    info = np.finfo(np.float64) if dtype == FLOAT64 else None
    half = {FLOAT16: 2049.0, BFLOAT16: 257.0}.get(dtype, 16777217.0)
    near_float = [
        0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, 3.0, 127.5, 255.9, -128.9, 32767.9,
        65504.0, 65519.9, 65520.0, 2147483648.0, -2147483904.0, 4294967296.0, 9.3e18, -9.3e18,
        1.9e19, 1e-40, -1e-40, 6e-8, 2.9e-8, 1e-45, 3.4e38, -3.4e38, half, 1 + 2**-11 + 2**-25,
        1 + 2**-8 + 2**-20, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf, np.nan,
    ]  # fmt: skip
    if info is not None:
        near_float += [1e-310, -5e-324, 1e308, 1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-40]
    return np.array(near_float).astype(dtype.numpy)


def pairs(dtype: DType) -> tuple[Array, Array, Array]:
    """Every pair of tricky values, and a third operand for fma and select."""
    values = tricky(dtype)
    a, b = (np.ascontiguousarray(x).reshape(-1) for x in np.meshgrid(values, values))
    c = np.resize(np.roll(values, 5), a.shape)
    # At least one full vector of every width and a rest.
    repeats = -(-137 // a.size)
    return np.tile(a, repeats), np.tile(b, repeats), np.tile(np.ascontiguousarray(c), repeats)


def loop_kernel(values: list[Value], sources: list[Buffer], lanes: int, size: Dim) -> Kernel:
    """One loop that stores every value to a buffer of its own."""
    i = Index("i", size)
    outputs = [Buffer(f"o{k}", v.dtype, size, "w") for k, v in enumerate(values)]
    body = tuple(Store(b, i, v) for b, v in zip(outputs, values, strict=True))
    loop = Loop(i, 0, size, body, lanes)
    variables = () if isinstance(size, int) else (N,)
    return Kernel(
        "loop", (*outputs, *sources), (), variables, Index("tile", 1), 1, (loop,)
    )  # fmt: skip


def check_values(
    labels: list[str], values: list[Value], leaves: dict[Value, Array], target_name: str,
    lanes: int, sizes: tuple[int, ...], *, is_fixed: bool = False,
) -> None:  # fmt: skip
    """Machine code for all `values` at once, at every size, against the interpreter."""
    target = TARGETS[target_name]
    sources = [v.data[0] for v in leaves]
    arrays = [np.ascontiguousarray(a) for a in leaves.values()]
    expected = [np.broadcast_to(evaluate_value(v, leaves), arrays[0].shape) for v in values]
    native = None if is_fixed else Native(loop_kernel(values, sources, lanes, N), target)
    for size in sizes:
        run = native or Native(loop_kernel(values, sources, lanes, size), target)
        # A guard element after the end shows stores past it.
        outputs = [np.full(size + 1, 1, v.dtype.numpy) for v in values]
        run.run([*outputs, *arrays], {"n": size})
        for label, value, got, want in zip(labels, values, outputs, expected, strict=True):
            assert got[size] == 1, f"{label} stores past its end"
            _same(f"{label} {value.dtype} size {size}", got[:size], want[:size],
                  value.op in ("min", "max"))  # fmt: skip


def _same(what: str, got: Array, want: Array, zeros_mix: bool) -> None:
    if got.dtype.kind not in "fV" and got.dtype.name != "bfloat16":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(wide_got, wide_want, err_msg=what)
    if not zeros_mix:  # which of 0.0 and -0.0 is the larger is nobody's business
        zero = wide_want == 0
        np.testing.assert_array_equal(
            np.signbit(wide_got[zero]), np.signbit(wide_want[zero]), err_msg=f"{what}, zeros"
        )


def inputs(dtype: DType) -> tuple[list[Value], dict[Value, Array]]:
    i = Index("i", N)
    arrays = pairs(dtype)
    loads = [load(Buffer(name, dtype, N, "r"), i) for name in "abc"]
    return loads, dict(zip(loads, arrays, strict=True))


@pytest.mark.parametrize("lanes", [1, 0], ids=["scalar", "vector"])
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_is_the_interpreters(dtype: DType, target_name: str, lanes: int) -> None:
    loads, leaves = inputs(dtype)
    names = operations(dtype)
    values = [op(name, *loads[: ARITHMETIC[name]]) for name in names]
    values += [op(name, *loads[:2]) for name in COMPARISONS]
    values.append(select(op("lt", *loads[:2]), loads[2], loads[0]))
    labels = [*names, *COMPARISONS, "select"]
    total = len(leaves[loads[0]])
    lanes = lanes or 2 * TARGETS[target_name].vector_bits // 32
    check_values(labels, values, leaves, target_name, lanes, (*SIZES, total))


@pytest.mark.parametrize("lanes", [1, 0], ids=["scalar", "vector"])
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversions_are_the_interpreters(source: DType, target_name: str, lanes: int) -> None:
    i = Index("i", N)
    x = load(Buffer("a", source, N, "r"), i)
    data = np.resize(tricky(source), 141)
    goals = [d for d in DTYPES if d != source]
    values = [cast(x, d) for d in goals]
    labels = [f"cast {source} to" for _ in goals]
    same_size = [d for d in goals if d.bits == source.bits and source != BOOL and d != BOOL]
    values += [bitcast(x, d) for d in same_size]
    labels += [f"bitcast {source} to" for _ in same_size]
    lanes = lanes or 2 * TARGETS[target_name].vector_bits // 32
    check_values(labels, values, {x: data}, target_name, lanes, (*SIZES, 141))


@pytest.mark.parametrize("lanes", [16, 32, 64, 128])
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("source", [FLOAT16, FLOAT32, FLOAT64], ids=str)
def test_whole_registers_of_narrow_integers(source: DType, target_name: str, lanes: int) -> None:
    """What is too large, too small or no number, at every place of what is packed."""
    i = Index("i", N)
    x = load(Buffer("a", source, N, "r"), i)
    data = np.resize(tricky(source), 421)
    goals = (INT8, INT16, UINT8, UINT16)
    values, labels = [cast(x, d) for d in goals], [f"cast {source} to" for _ in goals]
    check_values(labels, values, {x: data}, target_name, lanes, (lanes, 100, 256, 421))


@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("dtype", [BOOL, INT8, INT64, FLOAT16, FLOAT32, FLOAT64], ids=str)
def test_fixed_sizes_are_the_interpreters(dtype: DType, target_name: str) -> None:
    for size, factor in product((1, 7, 16, 33, 100), (1, 4)):
        i = Index("i", size)
        arrays = [a[:size] for a in pairs(dtype)]
        loads = [load(Buffer(name, dtype, size, "r"), i) for name in "abc"]
        values = [op("max", loads[0], loads[1]), op("eq", loads[1], loads[2])]
        lanes = factor * TARGETS[target_name].vector_bits // 32
        leaves = dict(zip(loads, arrays, strict=True))
        check_values(["max", "eq"], values, leaves, target_name, lanes, (size,), is_fixed=True)


@pytest.mark.parametrize("lanes", [1, 16, 32])
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_scaling_by_powers_of_two_rounds_once(dtype: DType, target_name: str, lanes: int) -> None:
    lowest, highest = (-160, 130) if dtype == FLOAT32 else (-1090, 1030)
    powers = np.arange(lowest, highest + 1)
    numbers = np.array([1.0, -1.0, 0.70710678, 1.4142135, 1.9999999, -0.5, 0.0, np.inf, np.nan])
    p, n = (np.ascontiguousarray(a).reshape(-1) for a in np.meshgrid(numbers, powers))
    i = Index("i", N)
    loads = [load(Buffer(name, dtype, N, "r"), i) for name in "pn"]
    leaves = dict(zip(loads, (p.astype(dtype.numpy), n.astype(dtype.numpy)), strict=True))
    check_values(["ldexp"], [op("ldexp", *loads)], leaves, target_name, lanes, (7, 33, p.size))


@pytest.mark.parametrize("lanes", [1, 16, 32])
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_scaling_by_one_factor(dtype: DType, target_name: str, lanes: int) -> None:
    mantissa, bias = (23, 127) if dtype == FLOAT32 else (52, 1023)
    powers = np.arange(-bias, bias + 1)
    numbers = np.array([1.0, 0.70710678, 1.4142135, 1.9999999, 0.0, np.nan]) * 2.0 ** -(
        mantissa + 2
    )
    shifted = powers + (1.5 * 2.0**mantissa + bias)
    p, s = (np.ascontiguousarray(a).reshape(-1) for a in np.meshgrid(numbers, shifted))
    i = Index("i", N)
    loads = [load(Buffer(name, dtype, N, "r"), i) for name in "ps"]
    leaves = dict(zip(loads, (p.astype(dtype.numpy), s.astype(dtype.numpy)), strict=True))
    check_values(["scale"], [op("scale", *loads)], leaves, target_name, lanes, (7, 33, p.size))


def test_rounding_to_half_happens_once() -> None:
    """Values that rounding first to float32 would put on the wrong side of a tie."""
    x = load(Buffer("a", FLOAT64, N, "r"), Index("i", N))
    # Just above a tie of float16 and of bfloat16, by less than float32 can tell.
    above = np.array([1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-40, -1 - 2**-11 - 2**-40])
    data = np.resize(above, 40)
    for name in TARGETS:
        check_values(
            ["f64 to f16", "f64 to bf16"], [cast(x, FLOAT16), cast(x, BFLOAT16)], {x: data},
            name, 16, (40,),
        )  # fmt: skip


def test_a_target_without_fused_multiply_computes_it() -> None:
    target = target_for("x86_64", ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"))
    for dtype in (FLOAT32, FLOAT64):
        loads, _ = inputs(dtype)
        kernel = loop_kernel([op("fma", *loads)], [v.data[0] for v in loads], 4, N)
        compile_ir(emit_kernel(kernel, target, "k"), target)  # refuses calls
