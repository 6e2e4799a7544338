"""The kernel verifier finds what is certainly wrong, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from semel.ir.expr import Index, Variable, ceildiv, minimum
from semel.ir.signature import CheckInfo
from semel.ir.types import BOOL, FLOAT32, FLOAT64, INT32, INT64
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
    const,
    index,
    load,
    local,
    op,
)
from semel.kernel.values import _make
from semel.kernel.verify import verify_kernel

N = Variable("n", 1, 64)
T = Index("t", N)
K, J = Index("i", 8), Index("j", 8)
OUT, IN = Buffer("out", FLOAT32, N * 8, "w"), Buffer("in", FLOAT32, N * 8, "r")
TMP = Buffer("tmp", FLOAT32, 8, "s")
X = load(IN, T * 8 + K)
ACC = Local("acc", FLOAT32)
ONE = const(FLOAT32, 1.0)
ZERO = const(INT64, 0)
YES = const(BOOL, True)


def verify(*body: Statement, **fields: Any) -> list[str]:
    given = {"buffers": (OUT, IN), "scratch": (TMP,), "checks": (CheckInfo("op", "index", 8),)}
    return verify_kernel(
        Kernel(name="k", variables=(N,), tile=T, tiles=N, body=body, **(given | fields))
    )


def test_a_correct_kernel_has_no_violations() -> None:
    body = (
        Declare(ACC, const(FLOAT32, 0.0)),
        Loop(K, 0, 8, (Store(TMP, K, op("exp", X)), Reduce((ACC,), "add", (X,))), lanes=8),
        Loop(J, 0, 8, (Prefetch(IN, T * 8 + 999),
                       Store(OUT, T * 8 + J, load(TMP, J) / local(ACC))), lanes=8),
        Check(index(T) < 3, 1, index(T)),
        If(index(T) < 3, (Store(OUT, T * 8, ONE),)),
    )  # fmt: skip
    assert verify(*body) == []


def test_tails_and_blocks_are_not_reported() -> None:
    block = Index("block", ceildiv(N, 8))
    i = Index("i", 8)
    flat = Buffer("flat", FLOAT32, N, "w")
    stop = minimum(8, N - block * 8)
    kernel = Kernel(
        "k", (flat,), (), (N,), block, ceildiv(N, 8),
        (Loop(i, 0, stop, (Store(flat, block * 8 + i, ONE),), lanes=8),),
    )  # fmt: skip
    assert verify_kernel(kernel) == []


def raw(name: str, dtype: Any, *args: Value) -> Value:
    """A value no constructor would make."""
    return _make(name, dtype, args)


def store(value: Value) -> Store:
    return Store(OUT, T, value)


COPIES = Local("copies", FLOAT32, (2,))
WRONG: list[tuple[tuple[Statement, ...], str]] = [
    ((Store(IN, T, ONE),), "store to 'in', which is read-only"),
    ((Store(OUT, T, const(FLOAT64, 1.0)),), "store to 'out': must be float32, got float64"),
    ((Store(OUT, T, ONE, ONE),), "guard is not bool"),
    ((Store(OUT, K, ONE),), "store to 'out': index 'i' is not in scope"),
    ((Store(OUT, Variable("m", 1, 2), ONE),), "'m' is no variable of the kernel"),
    ((Store(Buffer("what", FLOAT32, 1, "w"), 0, ONE),), "buffer 'what' is not declared"),
    ((Store(OUT, -1, ONE),), "index -1 is outside"),
    ((Store(OUT, N * 8, ONE),), "index 8*n is outside"),
    ((Loop(K, 0, 8, (Store(OUT, T * 8 + K + 1, ONE),)),), "is outside [0, 8*n)"),
    ((Loop(K, 0, 8, (Store(TMP, K - 1, ONE),)),), "is outside [0, 8)"),
    ((store(load(TMP, 0)),), "load from 'tmp', which holds nothing yet"),
    ((store(load(OUT, 0)),), "load from 'out', which holds nothing yet"),
    ((store(load(IN, T, ONE, ONE)),), "guard and other have dtypes"),
    ((store(local(ACC)),), "local 'acc' is used before it is declared"),
    ((Loop(K, 0, 8, (Declare(ACC, ONE),)), store(local(ACC))), "used before it is declared"),
    ((Declare(ACC, const(INT32, 1)),), "declaration of 'acc': must be float32"),
    ((Assign(ACC, ONE),), "local 'acc' is used before it is declared"),
    ((Declare(ACC, ONE), Loop(K, 0, 8, (Assign(ACC, X),), lanes=8)), "from several vector lanes"),
    ((Reduce((ACC,), "add", (ONE,)),), "local 'acc' is used before it is declared"),
    ((Declare(ACC, ONE), Reduce((ACC,), "avg", (ONE,))), "unknown combine 'avg'"),
    ((Declare(ACC, ONE), Reduce((ACC,), "argmax", (ONE,))), "takes (locals, values) (2, 2)"),
    ((Declare(ACC, ONE), Reduce((ACC,), "add", (ZERO,))), "reduce into 'acc': must be float32"),
    ((Declare(COPIES, ONE), Assign(COPIES, ONE)), "has copies (2,), is used with ()"),
    ((Declare(COPIES, ONE), Assign(COPIES, ONE, (2,))), "copy 2 is outside [0, 2)"),
    ((Declare(COPIES, ONE), Assign(COPIES, ONE, (T,))), "which is not unrolled"),
    ((Loop(K, 0, 8, (If(YES, ()),), lanes=8),), "if inside a vector loop"),
    ((Loop(K, 0, 8, (Loop(J, 0, 8, (), lanes=8),), lanes=8),), "vector loop inside a vector loop"),
    ((Loop(K, 0, T, (), unroll=True),), "loop 'i' is unrolled, but its trip count is t"),
    ((Loop(K, 0, 9, ()),), "loop 'i' runs past its extent 8"),
    ((Loop(K, -1, 8, ()),), "loop 'i' starts below 0"),
    ((Loop(K, 0, 8, (Loop(K, 0, 8, ()),)),), "index 'i' is defined twice"),
    ((Loop(K, 0, 8, (), lanes=0),), "lanes must be a power of 2"),
    ((Bind(K, ONE),), "bind of 'i' to a float32 value"),
    ((Check(ONE, 1, ZERO),), "check 1: condition is float32, not bool"),
    ((Check(YES, 2, ZERO),), "check 2 has no entry"),
    ((Check(YES, 0, ZERO),), "check 0 has no entry"),
    ((Check(YES, 1, ONE),), "check 1: reports a float32 value"),
    ((If(ONE, ()),), "if: condition is float32"),
    ((store(raw("add", FLOAT32, ONE, ZERO)),), "add of [float32, int64] gives float32"),
    ((store(raw("add", FLOAT32, ONE)),), "add takes 2 operands, got 1"),
    ((store(raw("nope", FLOAT32, ONE)),), "unknown op 'nope'"),
    ((store(raw("lt", FLOAT32, ONE, ONE)),), "lt of [float32, float32] gives float32"),
    ((store(op("shl", ONE, ONE)),), "shl is not defined for float32"),
    ((Check(YES, 1, op("div", ZERO, ZERO)),), "div is not defined for int64"),
    ((Check(YES, 1, op("exp", ZERO)),), "exp is not defined for int64"),
    ((store(raw("bitcast", FLOAT32, ZERO)),), "bitcast of int64 to float32"),
    ((store(raw("select", FLOAT32, ONE, ONE, ONE)),), "select of [float32, float32, float32]"),
    ((store(_make("index", FLOAT32, (), T)),), "index value is float32"),
    ((Prefetch(IN, K),), "prefetch of 'in': index 'i' is not in scope"),
]


@pytest.mark.parametrize(("body", "message"), WRONG, ids=[m for _, m in WRONG])
def test_each_violation_is_found(body: tuple[Statement, ...], message: str) -> None:
    found = verify(*body)
    assert any(message in violation for violation in found), found


def test_headers_are_checked() -> None:
    assert "buffer 'out' is declared twice" in verify(buffers=(OUT, OUT))
    assert "written buffers must come before read ones" in verify(buffers=(IN, OUT))
    assert any("access must be s" in v for v in verify(scratch=(IN,), buffers=(OUT,)))
    assert any("access must be r, w or rw" in v for v in verify(buffers=(TMP,), scratch=()))
    wrong = Buffer("wrong", FLOAT32, T, "r")
    assert "size of 'wrong': index 't' is not in scope" in verify(buffers=(OUT, wrong))


def test_all_violations_are_reported() -> None:
    assert len(verify(Store(IN, T, ONE), Store(OUT, -1, ONE), Bind(K, ONE))) == 3


def test_guards_excuse_an_index() -> None:
    guard = index(T) < 0
    assert verify(Loop(K, 0, 8, (Store(OUT, T * 8 + K + 1, ONE, guard),))) == []
    assert verify(If(guard, (Loop(K, 0, 8, (Store(OUT, T * 8 + K + 1, ONE),)),))) == []


def test_code_that_never_runs_may_have_any_index() -> None:
    empty = Index("empty", 0)
    assert verify(Loop(K, 3, 3, (Store(OUT, -1, ONE),))) == []
    nothing = Buffer("nothing", FLOAT32, 0, "w")
    body = (Loop(empty, 0, 8, (Store(nothing, empty, ONE),)),)
    assert verify_kernel(Kernel("k", (nothing,), (), (), Index("t", 0), 0, body)) == []
