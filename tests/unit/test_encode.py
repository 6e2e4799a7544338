"""Kernels and dims as bytes: nothing is lost, and nothing unknown is accepted."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel import Tensor
from semel.errors import GraphError
from semel.ir.encode import DimReader, DimWriter
from semel.ir.expr import Dim, Index, Variable, floordiv, maximum, minimum, mod
from semel.ir.signature import CheckInfo
from semel.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT64
from semel.kernel.encode import decode_kernel, encode_kernel
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
    walk_values,
    with_args,
)
from semel.kernel.text import format_kernel

N, M = Variable("n", 0, 64), Variable("m", 1)
ROW, STEP, TURN, J = Index("row", N), Index("i", 8), Index("u", 2), Index("j", N + 1)


def full_kernel(*stored: Value) -> Kernel:
    """Every statement and every kind of value, some shared; stores `stored` besides."""
    out, source = Buffer("out", FLOAT32, N * 8 + 64, "w"), Buffer("in", FLOAT32, N * 8, "r")
    where = Buffer("where", INT64, N, "r")
    scratch = Buffer("scratch", FLOAT64, 8 * M, "s")
    total, best, place = (Local("total", FLOAT32, (2, 4)), Local("b", FLOAT32), Local("p", INT64))
    x = load(source, ROW * 8 + STEP)
    guarded = load(source, J, op("lt", index(J), index(N)), const(FLOAT32, -0.0))
    wide = cast(x, FLOAT64) * 3.0
    body: tuple[Statement, ...] = (
        Declare(total, const(FLOAT32, math.inf)),
        Declare(best, x),
        Declare(place, index(ROW + 1)),
        Loop(
            STEP,
            0,
            8,
            (
                Reduce((total,), "fma", (x, guarded), (STEP % 2, 3)),
                Reduce((best, place), "argmax", (x, index(STEP))),
                Store(scratch, STEP, wide, op("ne", x, x)),
            ),
            lanes=8,
        ),
        Loop(TURN, 0, 2, (Assign(total, fma(x, x, 1.0), (TURN, 0)),), unroll=True),
        Check(op("lt", load(where, ROW), index(N)), 1, load(where, ROW)),
        Bind(J, op("max", load(where, ROW), const(INT64, 0))),
        Prefetch(source, J + 64),
        If(op("lt", index(ROW), index(M)), (Store(out, ROW, local(total, (0, 1))),)),
        Store(out, ROW, select(op("lt", x, guarded), x, bitcast(cast(x, INT32), FLOAT32))),
        *(Store(Buffer("out", FLOAT32, N * 8 + 64, "w"), 0, cast(v, FLOAT32)) for v in stored),
    )
    return Kernel(
        "everything",
        (out, source, where),
        (scratch,),
        (N, M),
        ROW,
        N,
        body,
        checks=(CheckInfo("take", "index", N),),
        flops=N * M * 16,
        bytes=floordiv(N * 8, 3),
        notes=("a note",),
    )


def same(kernel: Kernel) -> Kernel:
    """The kernel read back, which must be the one that was written."""
    found = decode_kernel(encode_kernel(kernel))
    assert found == kernel
    assert found.notes == kernel.notes
    assert format_kernel(found) == format_kernel(kernel)
    assert encode_kernel(found) == encode_kernel(kernel)
    return found


def test_every_statement_and_value_comes_back() -> None:
    same(full_kernel())


def test_shared_values_stay_shared() -> None:
    x = load(Buffer("in", FLOAT32, N * 8, "r"), ROW)
    for _ in range(60):
        x = x * x  # 2**60 loads if it were written as a tree
    kernel = replace(full_kernel(), body=(Store(full_kernel().buffers[0], 0, x),))
    found = decode_kernel(encode_kernel(kernel))
    store = found.body[0]
    assert isinstance(store, Store) and len(list(walk_values([store.value]))) == 61


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64])
@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 0.1])
def test_floats_keep_their_bits(dtype: Any, number: float) -> None:
    value = const(dtype, number)
    found = same(full_kernel(value))
    store = found.body[-1]
    assert isinstance(store, Store)
    (read,) = (v for v in walk_values([store.value]) if v.op == "const")
    assert struct.pack("<d", read.data) == struct.pack("<d", value.data)


def test_integers_and_bools_come_back() -> None:
    limits = [const(UINT64, 2**64 - 1), const(INT64, -(2**63)), const(BOOL, True)]
    same(full_kernel(*limits))


def test_what_is_not_simplified_stays_so() -> None:
    x, y = (load(Buffer("in", FLOAT32, N * 8, "r"), at) for at in (0, 1))
    chosen = select(op("lt", x, y), x, y)
    same(full_kernel(with_args(chosen, (const(BOOL, True), x, y))))


def test_kernels_of_the_compiler_come_back() -> None:
    n = Variable("n", 1, 40)
    x, i = Tensor.input("x", (n, 24), "float32"), Tensor.input("i", (n,), "int64")
    w = Tensor(np.ones((24, 24), np.float32))
    plan = semel.prepare(
        [
            (x @ w).gelu().softmax(-1),
            x.cast("bfloat16").sum(0),
            semel.take(w, i, axis=0).argmax(-1),
            x.reshape(n * 4, 6).sort(-1),
        ]
    )
    assert len(plan.kernels) >= 4
    for kernel in plan.kernels:
        found = decode_kernel(kernel.encoded)
        assert format_kernel(found) == kernel.text
        assert encode_kernel(found) == kernel.encoded


def test_every_field_of_the_kernel_ir_is_known() -> None:
    """A field that is added to the IR must be added to the encoding too."""
    known: dict[type, str] = {
        Kernel: "name buffers scratch variables tile tiles body checks flops bytes notes",
        Loop: "index start stop body lanes unroll",
        Declare: "local init",
        Assign: "local value at",
        Reduce: "locals combine values at",
        Bind: "index value",
        Store: "buffer at value guard",
        Prefetch: "buffer at",
        Check: "ok code value",
        If: "condition body",
        Buffer: "name dtype size access",
        Local: "name dtype copies",
    }
    for kind, names in known.items():
        assert {f.name for f in fields(kind)} == set(names.split()), kind


def _set(path: str, value: Any) -> Callable[[Any], None]:
    *where, last = [int(k) if k.isdigit() else k for k in path.split(".")]

    def change(form: Any) -> None:
        for key in where:
            form = form[key]
        form[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("body.0.0", "goto"),
        _set("body.0.1", 99),
        _set("values.0.0", "system"),
        _set("values.0", ["add", "float32", 3, 4]),
        _set("memory.0.3", "x"),
        _set("locals.0.1", "float31"),
        _set("tile", 0),
        _set("dims", []),
        _set("body", None),
        _set("checks", [["take"]]),
        lambda form: form.pop("values"),
    ],
)
def test_an_unknown_form_is_refused(change: Callable[[Any], Any]) -> None:
    form = json.loads(encode_kernel(full_kernel()))
    change(form)
    with pytest.raises(GraphError, match=r"^\[decode\]"):
        decode_kernel(json.dumps(form).encode())


def test_what_is_not_json_is_refused() -> None:
    for data in (b"", b"\xff\xfe", b"[" * 100_000, b"3"):
        with pytest.raises(GraphError, match="must have its known form"):
            decode_kernel(data)


_LEAVES: list[Dim] = [N, M, ROW, STEP, J, 0, 1, -3, 7]
_COMBINE: list[Callable[[Dim, Dim], Dim]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: floordiv(a, 5 if isinstance(b, int) else b + 1),
    lambda a, b: mod(a, 12 if isinstance(b, int) else b + 1),
    minimum,
    maximum,
]
_DIMS = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: st.builds(lambda f, a, b: f(a, b), st.sampled_from(_COMBINE), inner, inner),
    max_leaves=8,
)


@given(st.lists(_DIMS, max_size=4))
def test_dims_come_back_equal(dims: list[Dim]) -> None:
    writer = DimWriter()
    references = json.loads(json.dumps(writer.all(dims)))
    reader = DimReader(json.loads(json.dumps(writer.entries)))
    assert reader.all(references) == tuple(dims)
    assert [str(d) for d in reader.all(references)] == [str(d) for d in dims]
