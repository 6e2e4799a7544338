"""Every op's type rule: what it accepts, and the words with which it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import semel.ops  # noqa: F401  (registers the ops)
from semel.errors import GraphError
from semel.ir.expr import LateVariable, Variable
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
    UINT32,
    DType,
    TensorType,
)
from semel.ops.attrs import (
    ArgsortAttrs,
    AttentionAttrs,
    CastAttrs,
    CheckIndexAttrs,
    CompactAttrs,
    ConcatAttrs,
    CondAttrs,
    ConstantAttrs,
    ExpandAttrs,
    FrameAttrs,
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
    PositionsAttrs,
    RandomBitsAttrs,
    ReduceAttrs,
    ReducePartialAttrs,
    ReshapeAttrs,
    ScalarAttrs,
    ScanAttrs,
    ScatterAttrs,
    SelectAttrs,
    SliceAttrs,
    StateAttrs,
    StoredAttrs,
    UpdateAttrs,
    UpdateRowsAttrs,
    WindowAttrs,
)
from semel.ops.bodies import body_operand
from semel.ops.elementwise import BINARY, COMPARISONS, UNARY

N = Variable("n", 1, 64)
M = Variable("m", 1, 64)


def tensor(dtype: DType, *shape: Any) -> Node:
    name = f"{dtype.short}_" + "_".join(str(d) for d in shape)
    return make_node("input", (), InputAttrs(name, TensorType(shape, dtype)))


def f32(*shape: Any) -> Node:
    return tensor(FLOAT32, *shape)


def stored(*shape: int) -> Storage:
    return Storage(np.zeros(shape, np.float32))


LATE = LateVariable("late0", 0, 8, 8)
MASK = [tensor(BOOL, 8), tensor(INT64, 2), tensor(INT64)]
LINES = make_node("group_rows", (tensor(INT64, 4),), GroupRowsAttrs(2, 8))
ONE_EACH = GroupedMatmulAttrs(1, 4)

_STATE = body_operand(0, TensorType((3,), FLOAT32))
NEGATE = Graph((make_node("neg", (_STATE,)),))
THEN = Graph((make_node("neg", (body_operand(1, TensorType((3,), FLOAT32)),)),))
_SO = make_node("scalar", (), ScalarAttrs(True, BOOL))
WHILE = LoopAttrs(N, Graph((*NEGATE.outputs, _SO)), 1, (), 0, has_condition=True)
NESTED = Graph((make_node("loop", (_STATE,), LoopAttrs(N, NEGATE, 1, (), 0)),))
WIDEN = Graph((make_node("cast", (_STATE,), CastAttrs(FLOAT64)),))
WIDEN_THEN = Graph((make_node("cast", (THEN.outputs[0],), CastAttrs(FLOAT64)),))

# (op, operands, attrs, words of the message)
ROWS = UpdateRowsAttrs(0, "lengths", 2)
REFUSED: list[tuple[str, list[Node], Any, str]] = [
    ("stored", [], StoredAttrs(Graph((f32(3),))), "of no inputs, got f32[3]"),
    ("state", [], StateAttrs("", TensorType((4,), FLOAT32)), "needs a name"),
    ("state", [], StateAttrs("s", TensorType((N,), FLOAT32)), "must be numbers, got f32[n]"),
    ("state", [], StateAttrs("s", TensorType((4,), INT32), stored(4)), "first value must be i32"),
    ("update", [f32(4, 3), f32(4)], UpdateAttrs((0, 0)), "must have its dtype and rank"),
    ("update", [f32(4), f32(3)], UpdateAttrs((2,)), "must end at or before 4 along axis 0"),
    ("update", [f32(4, 3), f32(4)], UpdateAttrs((0, 0), (2, 3)), "of 4 new elements, got (2, 3)"),
    ("update_rows", [f32(4, 3), f32(2), tensor(INT64, 2)], ROWS, "must have its dtype and rank"),
    ("update_rows", [f32(4, 3), f32(2, 3), f32(2)], ROWS, "needs int64 places of the rows"),
    ("frame", [], FrameAttrs("", TensorType((4,), FLOAT32)), "needs a name"),
    ("input", [], InputAttrs("", TensorType((4,), FLOAT32)), "needs a name"),
    ("input", [], InputAttrs("x", TensorType((4,), FLOAT32), None, (2, 2)), "has its rank"),
    ("input", [], InputAttrs("x", TensorType((4,), FLOAT32), None, (5,)), "lies inside, got (5,)"),
    ("constant", [], ConstantAttrs(stored(3), TensorType((4,), FLOAT32)), "must match its type"),
    ("param", [], ParamAttrs("w", stored(4), TensorType((4,), INT32)), "must match its type"),
    ("where", [f32(4), f32(4), f32(4)], None, "needs a bool condition, got f32[4]"),
    ("where", [tensor(BOOL, 4), f32(4), tensor(INT8, 4)], None, "one dtype, got f32[4], i8[4]"),
    ("where", [tensor(BOOL, 3), f32(4), f32(4)], None, "got 3 in b1[3] and 4 in f32[4]"),
    ("cast", [f32(4), f32(4)], CastAttrs(INT8), "needs 1 operands, got 2"),
    ("bitcast", [f32(4)], CastAttrs(INT8), "one width, got f32[4] and int8"),
    ("iota", [], IotaAttrs((4,), 1, INT64), "axis must lie in [0, 1), got axis=1"),
    ("iota", [], IotaAttrs((-4,), 0, INT64), "dims must be >= 0, got (-4)"),
    ("random_bits", [f32(2)], RandomBitsAttrs((4,)), "key must be u32[2], got f32[2]"),
    ("random_bits", [tensor(UINT32, 3)], RandomBitsAttrs((4,)), "key must be u32[2], got u32[3]"),
    ("check_index", [f32(4)], CheckIndexAttrs(4, "take"), "an integer dtype, got f32[4]"),
    ("reshape", [f32(4, 3)], ReshapeAttrs((5,)), "got 12 in f32[4,3] and 5 in f32[5]"),
    ("reshape", [f32(4 * N)], ReshapeAttrs((4 * N + 1,)), "number of elements must stay"),
    ("permute", [f32(4, 3)], PermuteAttrs((0, 0)), "an order of (0, 1) for f32[4,3], got (0, 0)"),
    ("expand", [f32(4, 3)], ExpandAttrs((4, 6)), "dim 1 must be 1 or stay, got 3 in f32[4,3]"),
    ("expand", [f32(4)], ExpandAttrs((4, 6)), "one entry per axis of f32[4], got (4, 6)"),
    (
        "stretch",
        [f32(4, 3)],
        ExpandAttrs((4, 6)),
        "dim 1 must be 1 or 6 to broadcast, got 3 in f32[4,3]",
    ),
    ("agree", [f32(4, 1)], ExpandAttrs((4, 6)), "dim 1 must be 6, got 1 in f32[4,1]"),
    ("slice", [f32(4)], SliceAttrs((1,), (4,), (1,)), "start=1, size=4, step=1"),
    ("slice", [f32(4)], SliceAttrs((2,), (4,), (-1,)), "must lie in [0, 4)"),
    ("slice", [f32(4)], SliceAttrs((0,), (4,), (0,)), "steps must not be 0, got (0)"),
    ("slice", [f32(4)], SliceAttrs((0, 0), (4,), (1,)), "starts needs one entry per axis"),
    ("slice", [f32(N)], SliceAttrs((0,), (65,), (1,)), "must lie in [0, n)"),
    ("pad", [f32(4), f32(1)], PadAttrs((1,), (1,)), "fill must have shape (), got f32[1]"),
    ("pad", [f32(4), f32()], PadAttrs((-1,), (1,)), "pads must be >= 0, got -1 for axis 0"),
    ("pad", [f32(4), tensor(INT8)], PadAttrs((1,), (1,)), "one dtype, got f32[4], i8[]"),
    ("concat", [], ConcatAttrs(0), "at least one operand"),
    ("concat", [f32(4, 3), f32(4, 2)], ConcatAttrs(0), "got 3 in f32[4,3] and 2 in f32[4,2]"),
    ("concat", [f32(4, 3), f32(4)], ConcatAttrs(0), "one rank, got f32[4,3], f32[4]"),
    ("concat", [f32(4)], ConcatAttrs(1), "axis must lie in [0, 1), got axis=1 for f32[4]"),
    ("gather", [f32(4), tensor(INT32, 2)], GatherAttrs(0), "must be int64, got i32[2]"),
    ("gather", [f32(4), tensor(INT64, 2)], GatherAttrs(1), "axis must lie in [0, 1)"),
    ("take_along", [f32(4, 3), tensor(INT64, 2, 4)], GatherAttrs(0), "got 4 in i64[2,4] and 3"),
    ("take_along", [f32(4, 3), tensor(INT64, 2)], GatherAttrs(0), "one rank, got f32[4,3], i64[2]"),
    ("reduce_sum", [f32(4, 3)], ReduceAttrs((2,)), "axis must lie in [0, 2), got axis=2"),
    ("reduce_sum", [f32(4, 3)], ReduceAttrs((1, 0)), "ascend without repeats, got axes=(1, 0)"),
    ("reduce_sum", [tensor(BOOL, 4)], ReduceAttrs((0,)), "an integer or a float dtype, got b1[4]"),
    ("reduce_prod", [tensor(BOOL, 4)], ReduceAttrs((0,)), "an integer or a float dtype, got b1[4]"),
    ("reduce_max", [f32(4, 0)], ReduceAttrs((1,)), "no elements: axes (1,) of f32[4,0] have 0"),
    ("reduce_min", [f32(4, 0)], ReduceAttrs((1,)), "no elements: axes (1,) of f32[4,0] have 0"),
    ("reduce_or", [f32(4)], ReduceAttrs((0,)), "needs a bool dtype, got f32[4]"),
    ("reduce_and", [f32(4)], ReduceAttrs((0,)), "needs a bool dtype, got f32[4]"),
    ("reduce_argmax", [f32(4, 3)], ReduceAttrs((0, 1)), "exactly one axis, got axes=(0, 1)"),
    ("reduce_argmin", [f32(4, 0)], ReduceAttrs((1,)), "no elements"),
    ("reduce_partial", [f32(4)], ReducePartialAttrs(0, 0, "sum"), "chunk must be >= 1, got 0"),
    ("reduce_partial", [f32(4)], ReducePartialAttrs(0, 2, "xor"), "got 'xor'"),
    (
        "matmul",
        [f32(4, 3), f32(4, 3)],
        None,
        "inner dims must agree, got 3, the last of f32[4,3], and 4",
    ),
    ("matmul", [f32(2, 4, 3), f32(3, 3, 4)], None, "batch dims 0 must agree, got 2"),
    ("matmul", [f32(3), f32(3)], None, "rank >= 2, got f32[3] and f32[3]"),
    ("matmul", [f32(4, 3), tensor(INT8, 3, 4)], None, "one dtype, got f32[4,3], i8[3,4]"),
    (
        "softmax_matmul",
        [f32(4, 3), f32(4, 3)],
        AttentionAttrs(),
        "inner dims must agree, got 3, the last of f32[4,3]",
    ),
    (
        "softmax_matmul",
        [tensor(INT32, 2, 3), tensor(INT32, 3, 4)],
        AttentionAttrs(),
        "operands must be floats",
    ),
    (
        "softmax_matmul",
        [f32(2, 4, 3), f32(2, 3, 5), tensor(INT32, 2)],
        AttentionAttrs(),
        "lengths must be int64, one per batch entry",
    ),
    (
        "softmax_matmul",
        [f32(2, 4, 3), f32(2, 3, 5), tensor(INT64, 3)],
        AttentionAttrs(),
        "batch dims 0 must agree, got 2",
    ),
    (
        "softmax_matmul",
        [f32(4, 3), f32(3, 5)],
        AttentionAttrs(from_length=True),
        "from_length needs lengths",
    ),
    ("matmul_integer", [tensor(INT8, 4, 3), f32(3, 4)], None, "a 8-bit integer operand, got f32"),
    ("matmul_integer", [tensor(INT8, 4, 3), tensor(INT8, 4, 3)], None, "inner dims must agree"),
    ("matmul_integer", [tensor(INT8, 3), tensor(INT8, 3)], None, "rank >= 2, got i8[3]"),
    ("matmul_words", [tensor(INT8, 4, 9), tensor(INT32, 2, 4)], None, "needs 3 words of k, got 2"),
    ("matmul_words", [tensor(INT8, 4, 9), tensor(INT8, 3, 4)], None, "a 32-bit integer operand"),
    ("matmul_small_words", [tensor(INT8, 4, 9), tensor(INT32, 2, 4)], None, "needs 3 words of k"),
    ("window", [f32(4)], WindowAttrs((0,), (3,), (1,), (2,)), "a window of 5 must fit axis 0"),
    ("window", [f32(4)], WindowAttrs((0,), (3,), (0,), (1,)), "must be >= 1"),
    ("window", [f32(4)], WindowAttrs((0,), (3, 3), (1,), (1,)), "one size, stride and dilation"),
    ("window", [f32(4)], WindowAttrs((1,), (3,), (1,), (1,)), "axis must lie in [0, 1)"),
    ("move", [f32(4)], MoveAttrs(""), "must name a device"),
    ("move", [f32(4), f32(4)], MoveAttrs("cpu"), "1 operand"),
    ("scan", [f32(4)], ScanAttrs(1, "sum"), "axis must lie in [0, 1)"),
    ("scan", [f32(4)], ScanAttrs(0, "or"), "got 'or'"),
    ("argsort", [f32(4)], ArgsortAttrs(1), "axis must lie in [0, 1)"),
    ("sort", [f32(4)], ArgsortAttrs(1), "axis must lie in [0, 1)"),
    ("compact", MASK, CompactAttrs(N, 4), "needs a late variable"),
    ("compact", [f32(8), *MASK[1:]], CompactAttrs(LATE, 4), "needs bool [n], int64 [runs] and"),
    ("compact", MASK, CompactAttrs(LATE, 3), "needs one start per 3 of b1[8], got i64[2]"),
    ("count_true", [f32(8)], None, "needs a mask of bool, got f32[8]"),
    ("count_true", [tensor(BOOL)], None, "needs a mask of bool, got b1[]"),
    ("positions", [MASK[0], MASK[2]], PositionsAttrs(N), "needs a late variable as the size"),
    ("positions", [MASK[0], MASK[1]], PositionsAttrs(LATE), "as an int64 [], got i64[2]"),
    ("select", [f32(8), f32(8), MASK[2]], SelectAttrs(LATE, 0), "needs a mask of bool"),
    ("select", [f32(8), MASK[0], MASK[2]], SelectAttrs(LATE, 1), "axis must lie in [0, 1)"),
    ("select", [f32(8), tensor(BOOL, 8, 2), MASK[2]], SelectAttrs(LATE, 0), "no more axes than"),
    ("select", [f32(3, 7), MASK[0], MASK[2]], SelectAttrs(LATE, 1), "the dims of its axes, got b1"),
    ("scatter", [f32(4, 3), tensor(INT64, 2), f32(3, 3)], ScatterAttrs("set"), "one update per"),
    ("scatter", [f32(4, 3), tensor(INT64, 2), f32(2, 4)], ScatterAttrs("set"), "one length"),
    ("scatter", [f32(4, 3), tensor(INT32, 2), f32(2, 3)], ScatterAttrs("set"), "int64 indices"),
    ("scatter", [f32(4, 3), tensor(INT64, 2), f32(2, 3)], ScatterAttrs("xor"), "got 'xor'"),
    ("group_rows", [tensor(INT32, 4)], GroupRowsAttrs(2, 8), "int64 of one axis, got i32[4]"),
    ("group_rows", [tensor(INT64, 4, 1)], GroupRowsAttrs(2, 8), "one axis, got i64[4,1]"),
    ("group_rows", [tensor(INT64, 4)], GroupRowsAttrs(2, 0), "block must be >= 1, got 0"),
    ("grouped_matmul", [f32(4, 3), f32(3, 2), LINES], ONE_EACH, "needs x [S, K], w [E, K, N]"),
    ("grouped_matmul", [f32(4, 3), f32(2, 5, 2), LINES], ONE_EACH, "inner dims must agree, got 3"),
    (
        "grouped_matmul",
        [f32(5, 3), f32(2, 3, 2), LINES],
        ONE_EACH,
        "one group per row, got 4 for 5",
    ),
    ("grouped_matmul", [f32(4, 3), tensor(INT8, 2, 3, 2), LINES], ONE_EACH, "one dtype"),
    ("grouped_matmul", [f32(4, 3), f32(2, 3, 2), tensor(INT64, 4, 2)], ONE_EACH, "from group_rows"),
    (
        "grouped_matmul",
        [f32(4, 3), f32(2, 3, 2), LINES],
        GroupedMatmulAttrs(0, 0),
        "repeat must be",
    ),
    (
        "loop",
        [f32(4)],
        LoopAttrs(N, NEGATE, 1, (), 0),
        "operand 0 of the body is f32[3], got f32[4]",
    ),
    ("loop", [], LoopAttrs(N, NEGATE, 1, (), 0), "1 states and 0 stacked values for 0 operands"),
    ("loop", [f32(3)], LoopAttrs(N, NEGATE, 1, (), 1), "output must lie in [0, 1), got 1"),
    ("loop", [f32(3)], LoopAttrs(N, WIDEN, 1, (), 0), "begins as f32[3] and becomes f64[3]"),
    ("loop", [f32(3), f32()], WHILE, "the condition must be b1[], got f32[]"),
    ("loop", [f32(3), tensor(BOOL)], LoopAttrs(N, NEGATE, 1, (), 0, 0, True), "and a condition"),
    ("loop", [f32(3)], LoopAttrs(N, NESTED, 1, (), 0), "above those of loops inside, at least 1"),
    ("cond", [], CondAttrs(NEGATE, NEGATE, 0), "the predicate must be b1[], got nothing"),
    ("cond", [f32(3)], CondAttrs(NEGATE, NEGATE, 0), "the predicate must be b1[], got f32[3]"),
    ("cond", [tensor(BOOL)], CondAttrs(NEGATE, NEGATE, 0), "operand 0 of the body is f32[3], got"),
    ("cond", [tensor(BOOL), f32(3)], CondAttrs(THEN, WIDEN_THEN, 0), "got f32[3] and f64[3]"),
    ("cond", [tensor(BOOL), f32(3)], CondAttrs(THEN, THEN, 1), "output must lie in [0, 1), got 1"),
    ("cond", [tensor(BOOL), f32(4)], CondAttrs(THEN, THEN, 0), "is f32[3], got f32[4]"),
]


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "words"),
    REFUSED,
    ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED)],
)
def test_malformed_node_is_refused(op: str, operands: list[Node], attrs: Any, words: str) -> None:
    with pytest.raises(GraphError, match=r"^\[") as caught:
        make_node(op, operands, attrs)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"[{op}] ")


@pytest.mark.parametrize("op", UNARY)
def test_unary_op_wants_one_operand_of_its_domain(op: str) -> None:
    with pytest.raises(GraphError, match="needs 1 operands, got 2"):
        make_node(op, [f32(4), f32(4)])
    wrong = tensor(FLOAT32, 4) if op == "not" else tensor(BOOL, 4)
    with pytest.raises(GraphError, match=r"dtype, got (f32|b1)\[4\]"):
        make_node(op, [wrong])


@pytest.mark.parametrize("op", BINARY)
def test_binary_op_wants_one_dtype_and_one_shape(op: str) -> None:
    kind = INT32 if op in ("and", "or", "xor", "shl", "shr") else FLOAT32
    with pytest.raises(GraphError, match=r"one dtype, got \w+\[4\], i8\[4\]"):
        make_node(op, [tensor(kind, 4), tensor(INT8, 4)])
    with pytest.raises(GraphError, match=r"dims 1 must agree, got 4 .* and 5 "):
        make_node(op, [tensor(kind, 3, 4), tensor(kind, 3, 5)])
    with pytest.raises(GraphError, match="one rank"):
        make_node(op, [tensor(kind, 4), tensor(kind, 1, 4)])
    with pytest.raises(GraphError, match=r"dims 0 must agree, got n .* and n \+ 1 "):
        make_node(op, [tensor(kind, N), tensor(kind, N + 1)])
    result = make_node(op, [tensor(kind, N, 4), tensor(kind, M, 4)])
    assert result.type == TensorType((N, 4), BOOL if op in COMPARISONS else kind)


def test_every_op_is_refused_at_least_once() -> None:
    covered = {row[0] for row in REFUSED} | set(UNARY) | set(BINARY) | {"scalar"}
    assert covered == set(OPS)


ACCEPTED: list[tuple[str, list[Node], Any, TensorType]] = [
    ("loop", [f32(3), tensor(BOOL)], WHILE, TensorType((3,), FLOAT32)),
    ("loop", [f32(3), tensor(BOOL)], replace(WHILE, output=1), TensorType((), INT64)),
    ("loop", [f32(3)], LoopAttrs(N, NESTED, 1, (), 0, level=1), TensorType((3,), FLOAT32)),
    ("cond", [tensor(BOOL), f32(3)], CondAttrs(THEN, THEN, 0), TensorType((3,), FLOAT32)),
    ("loop", [f32(3)], LoopAttrs(N, NEGATE, 1, (), 0), TensorType((3,), FLOAT32)),
    ("loop", [f32(3)], LoopAttrs(N, NEGATE, 0, (True,), 0), TensorType((N, 3), FLOAT32)),
    ("isnan", [f32(4)], None, TensorType((4,), BOOL)),
    ("cast", [f32(N)], CastAttrs(BFLOAT16), TensorType((N,), BFLOAT16)),
    ("bitcast", [tensor(FLOAT16, 4)], CastAttrs(BFLOAT16), TensorType((4,), BFLOAT16)),
    ("iota", [], IotaAttrs((N, 3), 1, INT32), TensorType((N, 3), INT32)),
    ("random_bits", [tensor(UINT32, 2)], RandomBitsAttrs((N,)), TensorType((N,), UINT32)),
    ("check_index", [tensor(INT8, 4)], CheckIndexAttrs(N, "take"), TensorType((4,), INT64)),
    ("reshape", [f32(N, 4)], ReshapeAttrs((2 * N, 2)), TensorType((2 * N, 2), FLOAT32)),
    ("permute", [f32(N, 4)], PermuteAttrs((1, 0)), TensorType((4, N), FLOAT32)),
    ("expand", [f32(1, 4)], ExpandAttrs((N, 4)), TensorType((N, 4), FLOAT32)),
    ("stretch", [f32(1, N)], ExpandAttrs((N, 5)), TensorType((N, 5), FLOAT32)),
    ("agree", [f32(1, N)], ExpandAttrs((N, 5)), TensorType((N, 5), FLOAT32)),
    ("slice", [f32(N)], SliceAttrs((N - 1,), (N,), (-1,)), TensorType((N,), FLOAT32)),
    ("pad", [f32(N), f32()], PadAttrs((1,), (M,)), TensorType((N + M + 1,), FLOAT32)),
    ("concat", [f32(N, 4), f32(M, 4)], ConcatAttrs(0), TensorType((N + M, 4), FLOAT32)),
    ("gather", [f32(5, N), tensor(INT64, 2, 3)], GatherAttrs(0), TensorType((2, 3, N), FLOAT32)),
    ("take_along", [f32(5, 4), tensor(INT64, 2, 4)], GatherAttrs(0), TensorType((2, 4), FLOAT32)),
    ("reduce_max", [f32(4, 0)], ReduceAttrs((1,), False), TensorType((4, 1), FLOAT32)),
    ("reduce_max", [f32(0, 0)], ReduceAttrs((1,)), TensorType((0, 1), FLOAT32)),
    ("reduce_argmax", [f32(4, N)], ReduceAttrs((1,)), TensorType((4, 1), INT64)),
    ("reduce_partial", [f32(33)], ReducePartialAttrs(0, 16, "sum"), TensorType((3,), FLOAT32)),
    ("matmul", [f32(2, N, 3), f32(2, 3, M)], None, TensorType((2, N, M), FLOAT32)),
    ("scan", [f32(4, N)], ScanAttrs(1, "max"), TensorType((4, N), FLOAT32)),
    ("argsort", [f32(4, N)], ArgsortAttrs(1), TensorType((4, N), INT64)),
    ("sort", [f32(4, N)], ArgsortAttrs(1), TensorType((4, N), FLOAT32)),
    ("compact", MASK, CompactAttrs(LATE, 4), TensorType((LATE,), INT64)),
    ("count_true", MASK[:1], None, TensorType((), INT64)),
    ("positions", [tensor(BOOL, N, 2), MASK[2]], PositionsAttrs(LATE), TensorType((LATE,), INT64)),
    (
        "select",
        [f32(3, N, 8, 5), tensor(BOOL, N, 8), MASK[2]],
        SelectAttrs(LATE, 1),
        TensorType((3, LATE, 5), FLOAT32),
    ),
]


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "expected"),
    ACCEPTED,
    ids=[f"{r[0]}-{i}" for i, r in enumerate(ACCEPTED)],
)
def test_type_is_inferred(op: str, operands: list[Node], attrs: Any, expected: TensorType) -> None:
    assert make_node(op, operands, attrs).type == expected


def test_scalars_are_equal_by_their_bits() -> None:
    def scalar(value: Any, dtype: DType) -> Node:
        return make_node("scalar", (), ScalarAttrs(value, dtype))

    kept = [scalar(0.0, FLOAT32), scalar(-0.0, FLOAT32), scalar(1, INT32), scalar(True, BOOL)]
    kept += [scalar(1.0, FLOAT32), scalar(1.0, FLOAT64), scalar(float("nan"), FLOAT32)]
    assert len({id(n) for n in kept}) == len(kept)
    assert scalar(float("nan"), FLOAT32) is kept[-1]
    assert scalar(1, FLOAT32) is kept[4]


def test_scalar_is_rounded_to_its_dtype() -> None:
    assert ScalarAttrs(0.1, FLOAT32).value == float(np.float32(0.1))
    assert ScalarAttrs(300, INT8).value == 44
    assert ScalarAttrs(-1, UINT32).value == 2**32 - 1
    assert ScalarAttrs(1e9, FLOAT16).value == float("inf")
    with pytest.raises(GraphError, match=r"must be a whole number, got 1\.5"):
        ScalarAttrs(1.5, INT8)
