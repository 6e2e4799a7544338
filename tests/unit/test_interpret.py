"""The interpreter of kernel IR: what every op and every statement means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from semel.errors import InternalError
from semel.ir.expr import Index, Variable
from semel.ir.signature import CheckInfo
from semel.ir.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT64,
    DType,
)
from semel.kernel.interpret import evaluate_value, interpret
from semel.kernel.ir import (
    Assign,
    Bind,
    Buffer,
    Check,
    Declare,
    If,
    Kernel,
    Local,
    Loop,
    Prefetch,
    Reduce,
    Statement,
    Store,
    Value,
    bitcast,
    cast,
    const,
    fma,
    index,
    load,
    local,
    op,
    select,
)

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def leaf(dtype: DType, name: str = "x") -> Value:
    return load(Buffer(name, dtype, 1, "r"), 0)


def apply(name: str, dtype: DType, *args: Any) -> list[Any]:
    leaves = [leaf(dtype, f"x{i}") for i in range(len(args))]
    value = op(name, *leaves)
    arrays = [np.array(a, dtype.numpy) for a in args]
    result: list[Any] = evaluate_value(value, dict(zip(leaves, arrays, strict=True))).tolist()
    return result


def convert(values: list[Any], source: DType, target: DType) -> Array:
    x = leaf(source)
    return evaluate_value(cast(x, target), {x: np.array(values, source.numpy)})


# ---------------------------------------------------------------- values


def test_integers_wrap() -> None:
    assert apply("add", INT8, [127, -128], [1, -1]) == [-128, 127]
    assert apply("mul", UINT8, [16], [17]) == [16]
    assert apply("neg", INT8, [-128]) == [-128]
    assert apply("abs", INT8, [-128, -3]) == [-128, 3]
    assert apply("fma", INT8, [100], [2], [1]) == [-55]


def test_integer_division_rounds_down_and_is_total() -> None:
    assert apply("idiv", INT32, [7, -7, 7, -7, 5, -(2**31)], [2, 2, -2, -2, 0, -1]) == [
        3, -4, -4, 3, 0, -(2**31),
    ]  # fmt: skip
    assert apply("imod", INT32, [7, -7, 7, -7, 5, -(2**31)], [2, 2, -2, -2, 0, -1]) == [
        1, 1, -1, -1, 0, 0,
    ]  # fmt: skip
    assert apply("idiv", UINT8, [200, 9], [3, 0]) == [66, 0]
    assert apply("imod", UINT8, [200, 9, 9], [3, 0, 1]) == [2, 0, 0]


def test_shifts_past_the_width_empty_the_word() -> None:
    assert apply("shl", INT32, [1, 1, 1, 1], [31, 32, -1, 40]) == [-(2**31), 0, 0, 0]
    assert apply("shr", INT32, [-8, -8, -8, 8], [1, 32, -1, 99]) == [-4, -1, -1, 0]
    assert apply("shr", UINT8, [255, 255], [7, 8]) == [1, 0]


def test_bools_add_as_or_and_multiply_as_and() -> None:
    a, b = [True, True, False, False], [True, False, True, False]
    assert apply("add", BOOL, a, b) == apply("or", BOOL, a, b) == [True, True, True, False]
    assert apply("mul", BOOL, a, b) == apply("and", BOOL, a, b) == [True, False, False, False]
    assert apply("xor", BOOL, a, b) == [False, True, True, False]
    assert apply("not", BOOL, a) == [False, False, True, True]


def test_max_and_min_propagate_nan() -> None:
    assert all(math.isnan(v) for v in apply("max", FLOAT32, [math.nan, 1.0], [1.0, math.nan]))
    assert all(math.isnan(v) for v in apply("min", FLOAT64, [math.nan, 1.0], [1.0, math.nan]))


def test_rint_rounds_half_to_even() -> None:
    assert apply("rint", FLOAT32, [0.5, 1.5, 2.5, -0.5]) == [0.0, 2.0, 2.0, -0.0]


def test_float_to_integer_casts_truncate_and_saturate() -> None:
    values = [1.9, -1.9, 300.0, -300.0, math.inf, -math.inf, math.nan]
    assert convert(values, FLOAT32, INT8).tolist() == [1, -1, 127, -128, 127, -128, 0]
    assert convert(values, FLOAT32, UINT8).tolist() == [1, 0, 255, 0, 255, 0, 0]
    assert convert([2.0**63, -(2.0**63), 1e300], FLOAT64, INT64).tolist() == [
        2**63 - 1, -(2**63), 2**63 - 1,
    ]  # fmt: skip
    assert convert([2.0**64, 2.0**63, -1.0], FLOAT64, UINT64).tolist() == [2**64 - 1, 2**63, 0]


def test_other_casts() -> None:
    assert convert([300, -1], INT32, UINT8).tolist() == [44, 255]
    assert convert([0.0, 0.5, math.nan, -0.0], FLOAT32, BOOL).tolist() == [False, True, True, False]
    assert convert([True, False], BOOL, FLOAT32).tolist() == [1.0, 0.0]
    assert convert([70000.0, 2049.0], FLOAT32, FLOAT16).tolist() == [math.inf, 2048.0]


def test_half_types_round_once_per_op() -> None:
    for dtype in (FLOAT16, BFLOAT16):
        a = np.array([1.0, 3.0, 0.1], dtype.numpy)
        b = np.array([0.001, 1e-4, 0.3], dtype.numpy)
        x, y = leaf(dtype, "x"), leaf(dtype, "y")
        got = evaluate_value(x * y + x, {x: a, y: b})
        product = (a.astype(np.float32) * b.astype(np.float32)).astype(dtype.numpy)
        expected = (product.astype(np.float32) + a.astype(np.float32)).astype(dtype.numpy)
        assert (got.view(np.uint16) == expected.view(np.uint16)).all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_fma_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=400).astype(dtype.numpy) for _ in range(2))
    c = (-(a * b) * (1 + rng.normal(size=400) * 1e-6)).astype(dtype.numpy)
    c[:50] *= dtype.numpy.type(1e-30)
    a[100:150] *= dtype.numpy.type(1e-38)
    x, y, z = (leaf(dtype, n) for n in "xyz")
    got = evaluate_value(fma(x, y, z), {x: a, y: b, z: c})
    exact = [
        Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
        for p, q, r in zip(a, b, c, strict=True)
    ]
    for value, want in zip(got, exact, strict=True):
        error = abs(Fraction(float(value)) - want)
        for neighbour in (np.nextafter(value, np.inf), np.nextafter(value, -np.inf)):
            assert error <= abs(Fraction(float(neighbour)) - want)


def test_fma_of_extremes() -> None:
    x, y, z = (leaf(FLOAT64, n) for n in "xyz")
    a = np.array([1e300, 1e300, 5e-324, math.inf, 0.0, 1e308])
    b = np.array([1e300, 1e10, 0.5, 0.0, -1.0, 1e308])
    c = np.array([0.0, -1e308, 5e-324, 1.0, -0.0, -math.inf])
    got = evaluate_value(fma(x, y, z), {x: a, y: b, z: c}).tolist()
    assert got[0] == math.inf and got[1] == math.inf and got[2] == 1e-323
    assert math.isnan(got[3]) and got[5] == -math.inf
    assert got[4] == 0.0 and math.copysign(1, got[4]) == -1


def test_select_and_bitcast() -> None:
    x = leaf(FLOAT32)
    value = select(x > 0.0, bitcast(x, INT32), const(INT32, -1))
    assert evaluate_value(value, {x: [1.0, -1.0]}).tolist() == [0x3F800000, -1]


def test_undefined_ops_are_our_bug() -> None:
    with pytest.raises(InternalError, match=r"\[interpret\] op 'idiv' is not defined for float32"):
        apply("idiv", FLOAT32, [1.0], [2.0])


# ---------------------------------------------------------------- kernels

N = Variable("n", 1, 16)
T = Index("t", 1)


def kernel(
    body: tuple[Statement, ...],
    buffers: tuple[Buffer, ...],
    scratch: tuple[Buffer, ...] = (),
    tile: Index = T,
    **fields: Any,
) -> Kernel:
    return Kernel("k", buffers, scratch, (N,), tile, tile.extent, body, **fields)


def test_rows_are_normalised_through_scratch() -> None:
    rows, i, j = Index("r", 3), Index("i", N), Index("j", N)
    out, source = Buffer("out", FLOAT32, 3 * N, "w"), Buffer("in", FLOAT32, 3 * N, "r")
    kept = Buffer("kept", FLOAT32, N, "s")
    best, total = Local("best", FLOAT32), Local("total", FLOAT32)
    x = load(source, rows * N + i)
    body = (
        Declare(best, const(FLOAT32, -math.inf)),
        Loop(i, 0, N, (Reduce((best,), "max", (x,)),), lanes=4),
        Declare(total, const(FLOAT32, 0.0)),
        Loop(i, 0, N, (
            Store(kept, i, op("exp", x - local(best))),
            Reduce((total,), "add", (op("exp", x - local(best)),)),
        ), lanes=4),
        Loop(j, 0, N, (Store(out, rows * N + j, load(kept, j) / local(total)),), lanes=4),
    )  # fmt: skip
    softmax = kernel(body, (out, source), (kept,), tile=rows)
    data = np.random.default_rng(0).normal(size=15).astype(np.float32)
    result = np.empty(15, np.float32)
    assert interpret(softmax, [result, data], {"n": 5}) == []
    e = np.exp(data.reshape(3, 5) - data.reshape(3, 5).max(1, keepdims=True))
    np.testing.assert_allclose(result.reshape(3, 5), e / e.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("combine", ["argmax", "argmin"])
def test_arg_reductions_take_the_first_best_and_nan_first(combine: str) -> None:
    out, source = Buffer("out", INT64, 1, "w"), Buffer("in", FLOAT32, 6, "r")
    best, where = Local("best", FLOAT32), Local("where", INT64)
    i = Index("i", 6)
    start = const(FLOAT32, -math.inf if combine == "argmax" else math.inf)
    body = (
        Declare(best, start),
        Declare(where, const(INT64, 0)),
        Loop(i, 0, 6, (Reduce((best, where), combine, (load(source, i), index(i))),), lanes=2),
        Store(out, 0, local(where)),
    )
    cases = [[1, 5, 2, 5, 0, 0], [1, math.nan, 9, math.nan, 0, 0], [math.inf] * 6, [-math.inf] * 6]
    for case in cases:
        data, result = np.array(case, np.float32), np.zeros(1, np.int64)
        interpret(kernel(body, (out, source)), [result, data], {"n": 1})
        assert result[0] == getattr(np, combine)(data)


def test_fast_maxima_pass_over_nan() -> None:
    out, source = Buffer("out", FLOAT32, 2, "w"), Buffer("in", FLOAT32, 4, "r")
    high, low = Local("high", FLOAT32), Local("low", FLOAT32)
    i = Index("i", 4)
    x = load(source, i)
    body = (
        Declare(high, const(FLOAT32, -math.inf)),
        Declare(low, const(FLOAT32, math.inf)),
        Loop(i, 0, 4, (Reduce((high,), "fastmax", (x,)), Reduce((low,), "fastmin", (x,)))),
        Store(out, 0, local(high)),
        Store(out, 1, local(low)),
    )
    result = np.zeros(2, np.float32)
    data = np.array([1, math.nan, 3, -2], np.float32)
    interpret(kernel(body, (out, source)), [result, data], {"n": 1})
    assert result.tolist() == [3.0, -2.0]


def test_unrolled_copies_fma_and_assign() -> None:
    out, source = Buffer("out", FLOAT32, 2, "w"), Buffer("in", FLOAT32, 6, "r")
    sums = Local("sums", FLOAT32, (2,))
    u, k = Index("u", 2), Index("k", 3)
    x = load(source, u * 3 + k)
    body = (
        Declare(sums, const(FLOAT32, 1.0)),
        Loop(k, 0, 3, (Loop(u, 0, 2, (Reduce((sums,), "fma", (x, x), (u,)),), unroll=True),)),
        Assign(sums, local(sums, (1,)) * 10.0, (1,)),
        Loop(u, 0, 2, (Store(out, u, local(sums, (u,))),), unroll=True),
    )
    result = np.zeros(2, np.float32)
    interpret(kernel(body, (out, source)), [result, np.arange(6, dtype=np.float32)], {"n": 1})
    assert result.tolist() == [1 + 0 + 1 + 4, 10 * (1 + 9 + 16 + 25)]


def test_gather_binds_checks_and_guards() -> None:
    out, where = Buffer("out", FLOAT32, 3, "w"), Buffer("where", INT64, 3, "r")
    table = Buffer("table", FLOAT32, 4, "r")
    i, row = Index("i", 3), Index("row", 4)
    raw = load(where, i)
    ok = op("and", raw >= 0, raw < 4)
    body = (
        Loop(i, 0, 3, (
            Check(ok, 1, raw),
            Bind(row, select(ok, raw, const(INT64, 0))),
            Prefetch(table, row + 100),
            Store(out, i, load(table, row, ok, const(FLOAT32, -1.0))),
        )),
    )  # fmt: skip
    gather = kernel(body, (out, where, table), checks=(CheckInfo("gather", "index", 4),))
    result = np.zeros(3, np.float32)
    table_data = np.array([10, 11, 12, 13], np.float32)
    failed = interpret(gather, [result, np.array([2, 7, -1]), table_data], {"n": 1})
    assert failed == [(1, 7), (1, -1)]
    assert result.tolist() == [12.0, -1.0, -1.0]


def test_guarded_loads_and_stores_do_not_touch_memory() -> None:
    out, source = Buffer("out", FLOAT32, 2, "w"), Buffer("in", FLOAT32, 2, "r")
    i = Index("i", 4)
    inside = index(i) < 2
    value = load(source, i, inside, const(FLOAT32, 0.0))
    body = (Loop(i, 0, 4, (Store(out, i, value + 1.0, inside),), lanes=4),)
    result = np.zeros(2, np.float32)
    interpret(kernel(body, (out, source)), [result, np.ones(2, np.float32)], {"n": 1})
    assert result.tolist() == [2.0, 2.0]


def test_if_runs_its_body_only_where_the_condition_holds() -> None:
    out = Buffer("out", INT64, 4, "rw")
    tile = Index("t", 4)
    body = (If(index(tile).eq(2), (Store(out, tile, const(INT64, 7)),)),)
    result = np.zeros(4, np.int64)
    interpret(kernel(body, (out,), tile=tile), [result], {"n": 1})
    assert result.tolist() == [0, 0, 7, 0]


OUT, IN = Buffer("out", FLOAT32, 2, "w"), Buffer("in", FLOAT32, 2, "r")
SCRATCH = Buffer("tmp", FLOAT32, 2, "s")
ONE = const(FLOAT32, 1.0)
LOCAL = Local("acc", FLOAT32)
ROW = Index("row", 2)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (Store(OUT, 2, ONE), r"\[k\] 'out'\[2\] must lie in \[0, 2\), got 2"),
        (Store(OUT, 0, load(IN, -1)), r"'in'\[-1\] must lie"),
        (Store(OUT, 0, load(SCRATCH, 1)), r"reads 'tmp'\[1\], which no store has filled"),
        (Store(OUT, 0, load(OUT, 1)), r"reads 'out'\[1\]"),
        (Store(OUT, 0, local(LOCAL)), "uses 'acc' before it is declared"),
        (Reduce((LOCAL,), "add", (ONE,)), "uses 'acc' before it is declared"),
        (Bind(ROW, const(INT64, 2)), r"'row' must be bound in \[0, 2\), got 2"),
        (Store(OUT, ROW, ONE), "before it has a value"),
    ],
)
def test_what_a_correct_kernel_never_does_raises(statement: Statement, message: str) -> None:
    buffers = [np.zeros(2, np.float32), np.zeros(2, np.float32)]
    with pytest.raises(InternalError, match=message):
        interpret(kernel((statement,), (OUT, IN), (SCRATCH,)), buffers, {"n": 1})


def test_scratch_does_not_survive_a_tile() -> None:
    tile = Index("t", 2)
    first = index(tile).eq(0)
    body = (If(first, (Store(SCRATCH, 0, ONE),)), Store(OUT, tile, load(SCRATCH, 0)))
    with pytest.raises(InternalError, match="no store has filled"):
        interpret(kernel(body, (OUT,), (SCRATCH,), tile), [np.zeros(2, np.float32)], {"n": 1})


def test_wrong_buffers_raise() -> None:
    with pytest.raises(InternalError, match="takes 2 buffers, got 1"):
        interpret(kernel((), (OUT, IN)), [np.zeros(2, np.float32)], {"n": 1})
    with pytest.raises(InternalError, match="'out' must be a flat float32"):
        interpret(kernel((), (OUT,)), [np.zeros(2, np.float64)], {"n": 1})
