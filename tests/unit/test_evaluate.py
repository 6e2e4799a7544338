"""The oracle against plain NumPy: every op, the defined corners, and whole graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import semel.ops  # noqa: F401  (registers the ops)
from semel.errors import IndexRangeError, InputError, VariableError
from semel.ir.expr import Variable
from semel.ir.graph import Graph, Node, Storage, make_node
from semel.ir.opdef import OPS
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
    UINT32,
    UINT64,
    DType,
    TensorType,
    as_dtype,
)
from semel.ops.attrs import (
    ArgsortAttrs,
    AttentionAttrs,
    CastAttrs,
    CheckIndexAttrs,
    ConcatAttrs,
    CondAttrs,
    ConstantAttrs,
    ExpandAttrs,
    GatherAttrs,
    GroupedMatmulAttrs,
    GroupRowsAttrs,
    InputAttrs,
    IotaAttrs,
    LoopAttrs,
    MoveAttrs,
    PadAttrs,
    ParamAttrs,
    PermuteAttrs,
    RandomBitsAttrs,
    ReduceAttrs,
    ReducePartialAttrs,
    ReshapeAttrs,
    ScalarAttrs,
    ScanAttrs,
    ScatterAttrs,
    SliceAttrs,
    UpdateAttrs,
    UpdateRowsAttrs,
    WindowAttrs,
)
from semel.ops.bodies import body_operand
from semel.ops.evaluate import evaluate, solve
from semel.ops.philox import philox

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 5)).astype(np.float32)
Y = RNG.standard_normal((3, 5)).astype(np.float32)
UNIT = RNG.uniform(-0.99, 0.99, (3, 5)).astype(np.float32)
POSITIVE = RNG.uniform(1.01, 9, (3, 5)).astype(np.float32)
INTS = RNG.integers(-9, 9, (3, 5)).astype(np.int32)
NAN, INF = float("nan"), float("inf")


def apply(op: str, arrays: list[Array], attrs: Any = None) -> Array:
    """One op on arrays, through a graph."""
    nodes = [
        make_node("input", (), InputAttrs(f"x{i}", TensorType(a.shape, as_dtype(a.dtype))))
        for i, a in enumerate(arrays)
    ]
    graph = Graph((make_node(op, nodes, attrs),))
    return evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})[0]


def array(dtype: DType, *values: Any) -> Array:
    return np.array(values).astype(dtype.numpy)


def same(actual: Array, expected: Any) -> None:
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


# ---------------------------------------------------------------- elementwise

UNARY: dict[str, tuple[Array, Callable[..., Any]]] = {
    "neg": (X, np.negative), "abs": (X, np.abs), "sign": (X, np.sign), "sqrt": (POSITIVE, np.sqrt),
    "floor": (X, np.floor), "ceil": (X, np.ceil), "trunc": (X, np.trunc), "rint": (X, np.rint),
    "decay": (-np.abs(X), np.exp),
    "exp": (X, np.exp), "exp2": (X, np.exp2), "expm1": (X, np.expm1), "log": (POSITIVE, np.log),
    "log2": (POSITIVE, np.log2), "log10": (POSITIVE, np.log10), "log1p": (POSITIVE, np.log1p),
    "sin": (X, np.sin), "cos": (X, np.cos), "tan": (X, np.tan), "asin": (UNIT, np.arcsin),
    "acos": (UNIT, np.arccos), "atan": (X, np.arctan), "sinh": (X, np.sinh), "cosh": (X, np.cosh),
    "tanh": (X, np.tanh), "asinh": (X, np.arcsinh), "acosh": (POSITIVE, np.arccosh),
    "atanh": (UNIT, np.arctanh), "erf": (X, np.vectorize(math.erf)),
    "gelu": (X, lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2),
    "sigmoid": (X, lambda x: 1 / (1 + np.exp(-x))), "isnan": (X, np.isnan), "isinf": (X, np.isinf),
}  # fmt: skip
BINARY: dict[str, tuple[Array, Array, Callable[..., Any]]] = {
    "add": (X, Y, np.add), "sub": (X, Y, np.subtract), "mul": (X, Y, np.multiply),
    "div": (X, Y, np.divide), "idiv": (X, Y, np.floor_divide), "imod": (X, Y, np.remainder),
    "fmod": (X, Y, np.fmod), "pow": (POSITIVE, Y, np.power), "max": (X, Y, np.maximum),
    "min": (X, Y, np.minimum), "atan2": (X, Y, np.arctan2), "eq": (X, Y, np.equal),
    "ne": (X, Y, np.not_equal), "lt": (X, Y, np.less), "le": (X, Y, np.less_equal),
    "gt": (X, Y, np.greater), "ge": (X, Y, np.greater_equal),
}  # fmt: skip
BITWISE: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip
#: Relative spacing of each float dtype; the truth is NumPy in float64.
EPS = {"float64": 2e-15, "float32": 2.4e-7, "float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_float_op_agrees_with_numpy(op: str, dtype: DType) -> None:
    *operands, function = UNARY[op] if op in UNARY else BINARY[op]
    arrays = [a.astype(dtype.numpy) for a in operands]
    actual = apply(op, arrays)
    expected = function(*(a.astype(np.float64) for a in arrays))
    if expected.dtype == bool:
        same(actual, expected)
        return
    assert actual.dtype == dtype.numpy
    # An absolute part of one ulp at 1 covers cancellation inside the plain formula.
    eps = EPS[dtype.name]
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=eps, atol=eps * 1e-2)


@pytest.mark.parametrize("dtype", [INT8, INT32, INT64, UINT8, UINT64], ids=str)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "max", "min", "lt", "eq", "neg", "abs"])
def test_integer_op_wraps_as_numpy(op: str, dtype: DType) -> None:
    a = array(dtype, 100, 127, 3, 0).reshape(2, 2)
    b = array(dtype, 100, 1, 5, 0).reshape(2, 2)
    operands = [a, b] if op in BINARY else [a]
    function = (BINARY if op in BINARY else UNARY)[op][-1]
    same(apply(op, operands), function(*operands))


@pytest.mark.parametrize("op", BITWISE)
def test_bitwise_op_agrees_with_numpy(op: str) -> None:
    amounts = np.abs(INTS) % 7
    same(apply(op, [INTS, amounts]), BITWISE[op](INTS, amounts))


def test_not_is_bitwise_and_logical_on_bool() -> None:
    same(apply("not", [INTS]), ~INTS)
    same(apply("not", [INTS > 0]), INTS <= 0)


def test_integer_division_rounds_down_and_is_defined_everywhere() -> None:
    a = array(INT8, 7, -7, 7, -7, 5, -128, -128)
    b = array(INT8, 2, 2, -2, -2, 0, -1, 0)
    same(apply("idiv", [a, b]), array(INT8, 3, -4, -4, 3, 0, -128, 0))
    same(apply("imod", [a, b]), array(INT8, 1, 1, -1, -1, 0, 0, 0))
    zero = array(UINT8, 0)
    same(apply("idiv", [array(UINT8, 200), zero]), zero)
    same(apply("imod", [array(UINT8, 200), zero]), zero)


def test_shift_past_the_width_is_defined() -> None:
    a = array(INT8, 3, 3, -3, 3, -3, -3)
    b = array(INT8, 1, 8, 8, -1, -1, 127)
    same(apply("shl", [a, b]), array(INT8, 6, 0, 0, 0, 0, 0))
    same(apply("shr", [a, b]), array(INT8, 1, 0, -1, 0, -1, -1))
    same(apply("shr", [array(UINT8, 200, 200), array(UINT8, 7, 8)]), array(UINT8, 1, 0))


def test_float_to_integer_truncates_and_saturates() -> None:
    x = array(FLOAT32, 1.9, -1.9, 300, -300, INF, -INF, NAN, -0.5)
    same(apply("cast", [x], CastAttrs(INT8)), array(INT8, 1, -1, 127, -128, 127, -128, 0, 0))
    same(apply("cast", [x], CastAttrs(UINT8)), array(UINT8, 1, 0, 255, 0, 255, 0, 0, 0))
    edge = array(FLOAT32, 2.0**63, -(2.0**63), 2.0**31)
    limits = np.array([2**63 - 1, -(2**63), 2**31])
    same(apply("cast", [edge], CastAttrs(INT64)), limits)
    same(
        apply("cast", [array(FLOAT64, 2.0**64)], CastAttrs(UINT64)),
        np.array([2**64 - 1], np.uint64),
    )
    half = array(FLOAT16, INF, -2.5)
    same(apply("cast", [half], CastAttrs(INT32)), array(INT32, 2**31 - 1, -2))


def test_other_casts() -> None:
    same(apply("cast", [array(INT32, 300, -1)], CastAttrs(UINT8)), array(UINT8, 44, 255))
    same(apply("cast", [array(FLOAT32, 0.5, 0, -0.0, NAN)], CastAttrs(BOOL)),
         np.array([True, False, False, True]))  # fmt: skip
    same(apply("cast", [np.array([True, False])], CastAttrs(FLOAT16)), array(FLOAT16, 1, 0))
    # Rounded once: by way of float32 this float64 would give 1.0.
    tricky = np.array([1 + 2.0**-11 + 2.0**-40])
    same(apply("cast", [tricky], CastAttrs(FLOAT16)), array(FLOAT16, 1.0009765625))
    same(
        apply("bitcast", [array(FLOAT32, 1.0)], CastAttrs(UINT32)),
        np.array([0x3F800000], np.uint32),
    )


def test_max_and_min_propagate_nan() -> None:
    a, b = array(FLOAT32, NAN, 1, NAN), array(FLOAT32, 1, NAN, NAN)
    assert np.isnan(apply("max", [a, b])).all() and np.isnan(apply("min", [a, b])).all()


def test_half_types_round_once_per_op() -> None:
    a, b = array(BFLOAT16, 1.0, 3.0), array(BFLOAT16, 2.0**-9, 7.0)
    wide = (a.astype(np.float32) / b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    same(apply("div", [a, b]), wide)


def test_where_selects() -> None:
    same(apply("where", [X > 0, X, Y]), np.where(X > 0, X, Y))


def test_gelu_keeps_precision_in_the_left_tail() -> None:
    assert apply("gelu", [np.array([-10.0])])[0] == pytest.approx(-7.619853024160527e-23, rel=1e-12)


def test_iota_counts_along_its_axis() -> None:
    expected = np.broadcast_to(np.arange(3, dtype=np.int32)[:, None], (3, 2))
    same(apply("iota", [], IotaAttrs((3, 2), 0, INT32)), expected)


def test_philox_matches_the_published_vectors() -> None:
    def words(counter: int, key: int) -> list[int]:
        column = np.array([counter], np.uint64)
        return [int(w[0]) for w in philox((column,) * 4, (key, key))]

    assert words(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert words(0xFFFFFFFF, 0xFFFFFFFF) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_random_bits_depend_on_key_and_linear_index_only() -> None:
    key = array(UINT32, 1, 2)
    flat = apply("random_bits", [key], RandomBitsAttrs((12,)))
    same(apply("random_bits", [key], RandomBitsAttrs((3, 4))), flat.reshape(3, 4))
    same(apply("random_bits", [key], RandomBitsAttrs((5,))), flat[:5])
    assert not np.array_equal(
        apply("random_bits", [array(UINT32, 2, 1)], RandomBitsAttrs((12,))), flat
    )
    assert apply("random_bits", [array(UINT32, 0, 0)], RandomBitsAttrs((1,)))[0] == 0x6627E8D5


def test_check_index_wraps_once_and_names_what_is_wrong() -> None:
    attrs = CheckIndexAttrs(4, "embedding")
    same(apply("check_index", [array(INT8, 0, -1, 3, -4)], attrs), array(INT64, 0, 3, 3, 0))
    for value in (4, -5):
        with pytest.raises(IndexRangeError, match=r"must lie in \[-4, 4\), got") as caught:
            apply("check_index", [array(INT32, 1, value)], attrs)
        error = caught.value
        assert (error.op, error.index, error.size) == ("embedding", value, 4)  # type: ignore[attr-defined]
        assert str(error) == f"[embedding] index must lie in [-4, 4), got {value}."
    with pytest.raises(IndexRangeError, match="got 18446744073709551615"):
        apply("check_index", [np.array([2**64 - 1], np.uint64)], attrs)


# ---------------------------------------------------------------- the other families

FILL = np.array(9.0, np.float32)
INDEX = np.array([[2, 0], [1, 1]])
ALONG = np.array([[0, 2, 1, 0, 2]])
TIES = np.array([3.0, NAN, 1.0, 3.0, 1.0, -INF], np.float32)
ROWS, UPDATES = np.array([2, 0, 2]), RNG.standard_normal((3, 5)).astype(np.float32)


EXPERTS = RNG.integers(-9, 9, (2, 5, 3)).astype(np.int32)


def scattered(update: Callable[[Array, Array], Array]) -> Array:
    result = X.copy()
    for row, index in enumerate(ROWS):
        result[index] = update(result[index], UPDATES[row])
    return result


#: h -> (h + x, h): sums, and what they were before.
_SUM = (body_operand(0, TensorType((2,), INT32)), body_operand(1, TensorType((2,), INT32)))
ADDING = Graph((make_node("add", _SUM), _SUM[0]))

#: h -> (2 * h, h) while 2 * h is less than x somewhere.
_OLD = body_operand(0, TensorType((2,), INT32))
_NEW = make_node("add", (_OLD, _OLD))
_SMALL = make_node("lt", (_NEW, body_operand(2, TensorType((2,), INT32))))
_GOES_ON = make_node("reshape", (make_node("reduce_or", (_SMALL,), ReduceAttrs((0,))),),
                     ReshapeAttrs(()))  # fmt: skip
GROWING = LoopAttrs(9, Graph((_NEW, _OLD, _GOES_ON)), 1, (False,), 0, 0, True)
_ONE = body_operand(1, TensorType((2,), INT32))
CHOOSING = CondAttrs(Graph((make_node("neg", (_ONE,)),)), Graph((_ONE,)), 0)

# (op, operands, attrs, expected)
CASES: list[tuple[str, list[Array], Any, Any]] = [
    ("update", [array(INT32, 1, 2, 3, 4), array(INT32, 8, 9)], UpdateAttrs((1,)),
     np.array([1, 8, 9, 4], np.int32)),
    ("update", [np.zeros((2, 3), np.int32), array(INT32, 1, 2, 3, 4)], UpdateAttrs((0, 1), (2, 2)),
     np.array([[0, 1, 2], [0, 3, 4]], np.int32)),
    ("update_rows", [array(INT32, 1, 2, 3, 4), array(INT32, 8, 9, 7), np.array([3, 0, -1])],
     UpdateRowsAttrs(0, "lengths", 3), np.array([9, 2, 3, 8], np.int32)),
    ("update_rows", [np.zeros((2, 3), np.int32), np.array([[1, 2], [3, 4]], np.int32),
                     np.array([[0, 2], [1, 3]])],
     UpdateRowsAttrs(1, "lengths", 2), np.array([[1, 0, 2], [0, 3, 0]], np.int32)),
    ("loop", [array(INT32, 0, 9), array(INT32, 1, -2)], LoopAttrs(3, ADDING, 1, (False,), 0),
     np.array([3, 3], np.int32)),
    ("loop", [array(INT32, 0, 9), array(INT32, 1, -2)], LoopAttrs(3, ADDING, 1, (False,), 1),
     np.array([[0, 9], [1, 7], [2, 5]], np.int32)),
    ("loop", [array(INT32, 0, 9), array(INT32, 1, -2)], LoopAttrs(3, ADDING, 1, (True,), 1),
     np.array([[2, 5], [1, 7], [0, 9]], np.int32)),
    ("loop", [array(INT32, 0, 9), array(INT32, 1, -2)], LoopAttrs(0, ADDING, 1, (True,), 0),
     np.array([0, 9], np.int32)),
    ("loop", [array(INT32, 1, 3), array(BOOL, True)[0], array(INT32, 5, 1)], GROWING,
     np.array([8, 24], np.int32)),
    ("loop", [array(INT32, 1, 3), array(BOOL, True)[0], array(INT32, 3, 1)],
     replace(GROWING, trip=3, output=1), np.array([[1, 3], [2, 6], [0, 0]], np.int32)),
    ("loop", [array(INT32, 1, 3), array(BOOL, True)[0], array(INT32, 99, 1)],
     replace(GROWING, trip=2, output=2), np.array(2)),
    ("loop", [array(INT32, 1, 3), array(BOOL, False)[0], array(INT32, 5, 1)],
     replace(GROWING, output=2), np.array(0)),
    ("cond", [array(BOOL, True)[0], array(INT32, 1, 2)], CHOOSING, np.array([-1, -2], np.int32)),
    ("cond", [array(BOOL, False)[0], array(INT32, 1, 2)], CHOOSING, np.array([1, 2], np.int32)),
    ("reshape", [X], ReshapeAttrs((5, 3)), X.reshape(5, 3)),
    ("reshape", [X[:1, :1]], ReshapeAttrs(()), X[0, 0]),
    ("permute", [X], PermuteAttrs((1, 0)), X.T),
    ("expand", [X[:, :1]], ExpandAttrs((3, 4)), np.repeat(X[:, :1], 4, 1)),
    ("expand", [X[:, :1]], ExpandAttrs((3, 0)), np.zeros((3, 0), np.float32)),
    ("stretch", [X[:, :1]], ExpandAttrs((3, 4)), np.repeat(X[:, :1], 4, 1)),
    ("agree", [X], ExpandAttrs((3, 5)), X),
    ("slice", [X], SliceAttrs((0, 1), (2, 2), (2, 3)), X[::2, 1::3]),
    (
        "window",
        [X],
        WindowAttrs((1,), (2,), (2,), (2,)),
        np.stack([X[:, [0, 2]], X[:, [2, 4]]], axis=1),
    ),
    (
        "softmax_matmul",
        [np.log(np.array([[1, 3], [1, 1]], np.float32)), np.array([[4], [8]], np.float32)],
        AttentionAttrs(),
        np.array([[7], [6]], np.float32),
    ),
    ("slice", [X], SliceAttrs((2, 4), (3, 3), (-1, -2)), X[::-1, ::-2]),
    ("slice", [X], SliceAttrs((0, 3), (0, 1), (1, 1)), X[:0, 3:4]),
    ("pad", [X, FILL], PadAttrs((1, 0), (0, 2)), np.pad(X, ((1, 0), (0, 2)), constant_values=9)),
    ("concat", [X, Y, X[:1]], ConcatAttrs(0), np.concatenate([X, Y, X[:1]])),
    ("concat", [X, X[:, :0]], ConcatAttrs(1), X),
    ("gather", [X, INDEX], GatherAttrs(0), X[INDEX]),
    ("gather", [X, INDEX], GatherAttrs(1), X[:, INDEX]),
    ("take_along", [X, ALONG], GatherAttrs(0), np.take_along_axis(X, ALONG, 0)),
    ("take_along", [X, INDEX], GatherAttrs(1), np.take_along_axis(X[:2], INDEX, 1)),
    ("reduce_sum", [INTS], ReduceAttrs((0, 1)), INTS.sum(keepdims=True, dtype=np.int32)),
    ("reduce_sum", [X[:, :0]], ReduceAttrs((1,)), np.zeros((3, 1), np.float32)),
    ("reduce_prod", [INTS], ReduceAttrs((1,)), INTS.prod(1, keepdims=True, dtype=np.int32)),
    ("reduce_prod", [X[:, :0]], ReduceAttrs((1,)), np.ones((3, 1), np.float32)),
    ("reduce_max", [X], ReduceAttrs((0,)), X.max(0, keepdims=True)),
    ("reduce_max", [X[:, :0]], ReduceAttrs((1,), False), np.full((3, 1), -INF, np.float32)),
    ("reduce_max", [TIES], ReduceAttrs((0,)), np.array([NAN], np.float32)),
    ("reduce_min", [INTS], ReduceAttrs((1,)), INTS.min(1, keepdims=True)),
    ("reduce_or", [X > 1], ReduceAttrs((1,)), (X > 1).any(1, keepdims=True)),
    ("reduce_and", [X > -1], ReduceAttrs((1,)), (X > -1).all(1, keepdims=True)),
    ("reduce_argmax", [X], ReduceAttrs((1,)), X.argmax(1, keepdims=True)),
    ("reduce_argmax", [TIES], ReduceAttrs((0,)), np.array([1])),
    ("reduce_argmin", [TIES[2:5]], ReduceAttrs((0,)), np.array([0])),
    ("reduce_partial", [INTS], ReducePartialAttrs(1, 2, "sum"),
     np.add.reduceat(INTS, [0, 2, 4], 1, dtype=np.int32)),
    ("reduce_partial", [X], ReducePartialAttrs(0, 2, "max"), np.maximum.reduceat(X, [0, 2], 0)),
    ("reduce_partial", [X[:0]], ReducePartialAttrs(0, 2, "min"), X[:0]),
    ("matmul", [INTS, INTS.T], None, INTS @ INTS.T),
    ("matmul_integer", [array(INT8, 100, -128)[None], array(INT8, 127, 3)[:, None]], None,
     np.array([[100 * 127 - 128 * 3]], np.int32)),
    ("matmul_words", [array(UINT8, 1, 2, 3, 4, 255)[None],
                      np.array([[0x80030201 - 2**32], [0x77777705]], np.int32)], None,
     np.array([[1 + 4 + 9 - 4 * 128 + 5 * 255]], np.int32)),
    ("matmul", [X[:, :0], X[:, :0].T], None, np.zeros((3, 3), np.float32)),
    ("matmul", [X > 0, (X > 0).T], None, ((X > 0).astype(int) @ (X > 0).T.astype(int)) > 0),
    ("matmul", [array(INT8, 100, 100)[None], array(INT8, 2, 2)[:, None]], None,
     array(INT8, -112)[None]),
    ("move", [INTS], MoveAttrs("cpu:1"), INTS),
    ("scan", [INTS], ScanAttrs(1, "sum"), INTS.cumsum(1, dtype=np.int32)),
    ("scan", [INTS], ScanAttrs(0, "prod"), INTS.cumprod(0, dtype=np.int32)),
    ("scan", [X], ScanAttrs(1, "max"), np.maximum.accumulate(X, 1)),
    ("scan", [INTS], ScanAttrs(1, "sum", True), INTS.cumsum(1, dtype=np.int32) - INTS),
    ("scan", [INTS[:1]], ScanAttrs(0, "min", True), np.full((1, 5), 2**31 - 1, np.int32)),
    ("scan", [X[:, :0]], ScanAttrs(1, "sum", True), X[:, :0]),
    ("argsort", [TIES], ArgsortAttrs(0), np.array([5, 2, 4, 0, 3, 1])),
    ("argsort", [TIES], ArgsortAttrs(0, True), np.array([0, 3, 2, 4, 5, 1])),
    ("sort", [TIES], ArgsortAttrs(0), TIES[[5, 2, 4, 0, 3, 1]]),
    ("argsort", [array(UINT8, 0, 255, 0, 255)], ArgsortAttrs(0, True), np.array([1, 3, 0, 2])),
    ("argsort", [array(INT8, -128, 127, -128)], ArgsortAttrs(0, True), np.array([1, 0, 2])),
    ("argsort", [np.array([False, True, True])], ArgsortAttrs(0, True), np.array([1, 2, 0])),
    ("scatter", [X, ROWS, UPDATES], ScatterAttrs("set"), scattered(lambda old, new: new)),
    ("scatter", [X, ROWS, UPDATES], ScatterAttrs("add"), scattered(np.add)),
    ("scatter", [X, ROWS, UPDATES], ScatterAttrs("mul"), scattered(np.multiply)),
    ("scatter", [X, ROWS, UPDATES], ScatterAttrs("max"), scattered(np.maximum)),
    ("scatter", [X, ROWS, UPDATES], ScatterAttrs("min"), scattered(np.minimum)),
    ("group_rows", [np.array([2, 0, 2, 2])], GroupRowsAttrs(3, 2),
     np.array([[0, 1, 1, 1], [2, 2, 0, 2], [2, 1, 3, 3]])),
    ("group_rows", [np.array([1, 1, 1, 1])], GroupRowsAttrs(3, 2),
     np.array([[1, 2, 0, 1], [1, 2, 2, 3], [0, 0, 0, 0]])),
    ("group_rows", [np.array([], np.int64)], GroupRowsAttrs(3, 2), np.zeros((0, 4), np.int64)),
    ("grouped_matmul", [INTS[:2], EXPERTS, np.array([[0, 1, 1, 1], [1, 1, 0, 0]])],
     GroupedMatmulAttrs(1, 2), np.stack([INTS[0] @ EXPERTS[1], INTS[1] @ EXPERTS[0]])),
    ("grouped_matmul", [INTS[:2], EXPERTS, np.array([[0, 2, 0, 3], [1, 2, 1, 2], [0, 0, 0, 0]])],
     GroupedMatmulAttrs(2, 4),
     np.stack([INTS[0] @ EXPERTS[0], *(INTS[:2] @ EXPERTS[1]), INTS[1] @ EXPERTS[0]])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "expected"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_op_agrees_with_numpy(op: str, operands: list[Array], attrs: Any, expected: Any) -> None:
    same(apply(op, operands, attrs), expected)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64], ids=str)
def test_float_sums_and_products_are_the_rounded_truth(dtype: DType) -> None:
    x = X.astype(dtype.numpy)
    wide, eps = x.astype(np.float64), EPS[dtype.name]
    for op, expected in (
        ("reduce_sum", wide.sum(1, keepdims=True)),
        ("reduce_prod", wide.prod(1, keepdims=True)),
    ):
        actual = apply(op, [x], ReduceAttrs((1,))).astype(np.float64)
        np.testing.assert_allclose(actual, expected, rtol=eps)
    product = apply("matmul", [x, x.T.copy()]).astype(np.float64)
    np.testing.assert_allclose(product, wide @ wide.T, rtol=eps, atol=eps)
    running = apply("scan", [x], ScanAttrs(1, "sum")).astype(np.float64)
    np.testing.assert_allclose(running, wide.cumsum(1), rtol=eps, atol=eps)


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("where", [X > 0, X, Y], None),
        ("pad", [X, FILL], PadAttrs((1, 0), (0, 2))),
        ("concat", [X, Y], ConcatAttrs(1)),
        ("gather", [X, INDEX], GatherAttrs(1)),
        ("reduce_max", [X], ReduceAttrs((1,))),
        ("reduce_argmin", [X], ReduceAttrs((1,))),
        ("scan", [X], ScanAttrs(1, "max")),
        ("argsort", [X], ArgsortAttrs(1, True)),
        ("sort", [X], ArgsortAttrs(1, True)),
        ("scatter", [X, ROWS, UPDATES], ScatterAttrs("set")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bfloat16_moves_and_compares_as_float32(op: str, operands: list[Array], attrs: Any) -> None:
    narrow = [a.astype(ml_dtypes.bfloat16) if a.dtype == np.float32 else a for a in operands]
    wide = [a.astype(np.float32) if a.dtype == ml_dtypes.bfloat16 else a for a in narrow]
    actual, expected = apply(op, narrow, attrs), apply(op, wide, attrs)
    same(actual.astype(expected.dtype), expected)


def test_every_op_has_a_case() -> None:
    own = {"input", "constant", "param", "stored", "state", "frame", "scalar"}
    own |= {"not", "where", "cast", "bitcast"}
    own |= {"iota", "random_bits", "check_index"}
    own |= {"compact", "count_true", "positions", "select"}  # in test_late
    own |= {"matmul_small_words"}  # in test_dots
    assert own | set(UNARY) | set(BINARY) | set(BITWISE) | {c[0] for c in CASES} == set(OPS)


# ---------------------------------------------------------------- graphs

N = Variable("n", 0, 8)
M = Variable("m", 1, 8)


def f32(name: str, *shape: Any) -> Node:
    return make_node("input", (), InputAttrs(name, TensorType(shape, FLOAT32)))


def test_leaves_give_their_data() -> None:
    type_ = TensorType((3, 5), FLOAT32)
    constant = make_node("constant", (), ConstantAttrs(Storage(X), type_))
    param = make_node("param", (), ParamAttrs("w", Storage(Y), type_))
    scalar = make_node("scalar", (), ScalarAttrs(-0.0, FLOAT32))
    total = make_node("add", [constant, param])
    results = evaluate(Graph((total, scalar)), {})
    same(results[0], X + Y)
    assert np.signbit(results[1]) and results[1].shape == ()


def test_variables_come_from_the_shapes_of_inputs() -> None:
    graph = Graph((make_node("concat", [f32("x", 2 * N + 1), f32("y", M)], ConcatAttrs(0)),))
    (result,) = evaluate(graph, {"x": np.ones(7, np.float32), "y": np.zeros(2, np.float32)})
    assert result.shape == (9,)


def test_solve_finds_one_variable_in_an_affine_dim() -> None:
    assert solve(2 * N + 1, 7) == (N, 3)
    assert solve(2 * N + 1, 8) is None
    assert solve(N * M, 8) is None
    assert solve(N // 2, 4) is None


def test_results_do_not_share_memory_with_inputs() -> None:
    x = np.ones(3, np.float32)
    (result,) = evaluate(Graph((f32("x", 3),)), {"x": x})
    result[0] = 5
    assert x[0] == 1


def test_wrong_inputs_are_named() -> None:
    graph = Graph((make_node("neg", [f32("x", N, 4)]),))
    with pytest.raises(InputError, match=r"inputs must be \['x'\], got \['y'\]"):
        evaluate(graph, {"y": np.ones((2, 4), np.float32)})
    with pytest.raises(InputError, match=r"\[x\] must be f32\[n,4\], got float64\[2, 4\]"):
        evaluate(graph, {"x": np.ones((2, 4))})
    with pytest.raises(InputError, match=r"must have shape \(2, 4\) \(f32\[n,4\]\), got \(2, 5\)"):
        evaluate(graph, {"x": np.ones((2, 5), np.float32)})


def test_variables_are_checked_before_anything_runs() -> None:
    graph = Graph((make_node("neg", [f32("x", N)]),))
    with pytest.raises(VariableError, match=r"\[n\] must lie in \[0, 8\], got 9"):
        evaluate(graph, {"x": np.ones(9, np.float32)})
    unbound = Graph((make_node("iota", (), IotaAttrs((N,), 0, INT32)),))
    with pytest.raises(VariableError, match=r"\[n\] has no value"):
        evaluate(unbound, {})
    assert evaluate(unbound, {}, {"n": 3})[0].tolist() == [0, 1, 2]


def test_a_variable_may_stand_in_attrs_alone() -> None:
    graph = Graph((make_node("slice", [f32("x", 10)], SliceAttrs((N,), (2,), (1,))),))
    (result,) = evaluate(graph, {"x": np.arange(10, dtype=np.float32)}, {"n": 5})
    assert result.tolist() == [5, 6]


def test_a_broken_guard_is_named_with_its_values() -> None:
    graph = Graph((make_node("add", [f32("x", N), f32("y", M)]),))
    with pytest.raises(VariableError, match=r"dims 0 must agree.* Found m=3, n=2\."):
        evaluate(graph, {"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)})
