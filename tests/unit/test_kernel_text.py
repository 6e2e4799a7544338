"""Kernel text: readable, complete, and blind to names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semel.ir.expr import Index, Variable
from semel.ir.types import FLOAT32, FLOAT64, INT64
from semel.kernel.ir import (
    Buffer,
    Check,
    Declare,
    If,
    Kernel,
    Local,
    Loop,
    Prefetch,
    Reduce,
    Store,
    bitcast,
    cast,
    const,
    index,
    load,
    local,
    op,
)
from semel.kernel.text import format_kernel


def row_sums(prefix: str = "", lanes: int = 4, scale: float = 2.0) -> Kernel:
    n = Variable(f"{prefix}n", 1, 128)
    rows, i = Index(f"{prefix}row", n), Index(f"{prefix}i", 8)
    out = Buffer(f"{prefix}out", FLOAT32, n, "w")
    source = Buffer(f"{prefix}in", FLOAT32, n * 8, "r")
    total = Local(f"{prefix}sum", FLOAT32)
    x = load(source, rows * 8 + i)
    body = (
        Declare(total, const(FLOAT32, 0.0)),
        Loop(i, 0, 8, (Reduce((total,), "add", (x * scale,)),), lanes=lanes),
        Store(out, rows, local(total)),
    )
    return Kernel(f"{prefix}k", (out, source), (), (n,), rows, n, body)


def test_text_reads_like_the_loops() -> None:
    assert format_kernel(row_sums(), name=True) == (
        "kernel k\n"
        "vals v0 in [1, 128]\n"
        "b0: f32[v0] w\n"
        "b1: f32[8*v0] r\n"
        "tiles i0:v0 < v0\n"
        "  var l0: f32 = f32:0.0\n"
        "  for i1:8 in [0, 8) lanes=4\n"
        "    %0 = load b1[8*i0 + i1]\n"
        "    %1 = mul f32 %0, f32:2.0\n"
        "    l0 <- add %1\n"
        "  %2 = local l0\n"
        "  b0[i0] = %2\n"
    )


def test_names_do_not_matter() -> None:
    assert format_kernel(row_sums()) == format_kernel(row_sums("zz_layer_7_"))
    assert format_kernel(row_sums(), name=True) != format_kernel(row_sums("z"), name=True)


def test_notes_and_costs_do_not_matter() -> None:
    plain = row_sums()
    assert format_kernel(plain) == format_kernel(replace(plain, flops=7, bytes=9, notes=("a",)))


def changed(**fields: Any) -> Kernel:
    return replace(row_sums(), **fields)


ROW = row_sums()
BASE = ROW.body
LOOP = BASE[1]
assert isinstance(LOOP, Loop)
OUT, IN = ROW.buffers
OTHERS = {
    "lanes": row_sums(lanes=8),
    "a constant": row_sums(scale=2.5),
    "the sign of zero": row_sums(scale=-0.0),
    "zero": row_sums(scale=0.0),
    "nan": row_sums(scale=float("nan")),
    "unroll": changed(body=(BASE[0], replace(LOOP, unroll=True), BASE[2])),
    "a bound": changed(body=(BASE[0], replace(LOOP, stop=7), BASE[2])),
    "the start": changed(body=(BASE[0], replace(LOOP, start=1), BASE[2])),
    "tiles": changed(tiles=4),
    "access": changed(buffers=(replace(OUT, access="rw"), IN)),
    "size": changed(buffers=(OUT, replace(IN, size=2048))),
    "order of buffers": changed(buffers=(IN, OUT)),
    "scratch": changed(scratch=(Buffer("tmp", FLOAT32, 8, "s"),)),
    "a statement less": changed(body=BASE[:2]),
    "a prefetch": changed(body=(Prefetch(IN, ROW.tile), *BASE)),
    "a guard": changed(body=(*BASE[:2], Store(
        OUT, ROW.tile, const(FLOAT32, 1.0), index(ROW.tile) < 3))),
    "an if": changed(body=(If(index(ROW.tile) < 3, BASE),)),
    "a check": changed(body=(Check(index(ROW.tile) < 3, 0, index(ROW.tile)), *BASE)),
    "another check": changed(body=(Check(index(ROW.tile) < 3, 1, index(ROW.tile)), *BASE)),
    "a guarded load": changed(body=(*BASE[:2], Store(
        OUT, ROW.tile, load(IN, 0, index(ROW.tile) < 3, const(FLOAT32, 1.0))))),
    "a plain load": changed(body=(*BASE[:2], Store(OUT, ROW.tile, load(IN, 0)))),
    "a cast": changed(body=(*BASE[:2], Store(
        OUT, ROW.tile, cast(cast(load(IN, 0), FLOAT64), FLOAT32)))),
    "a bitcast": changed(body=(*BASE[:2], Store(
        OUT, ROW.tile, cast(bitcast(cast(load(IN, 0), FLOAT64), INT64), FLOAT32)))),
    "swapped operands": changed(body=(*BASE[:2], Store(
        OUT, ROW.tile, op("sub", load(IN, 0), load(IN, 1))))),
    "operands": changed(body=(*BASE[:2], Store(
        OUT, ROW.tile, op("sub", load(IN, 1), load(IN, 0))))),
}  # fmt: skip


def test_everything_that_affects_the_code_affects_the_text() -> None:
    texts = {"plain": format_kernel(row_sums())}
    texts |= {what: format_kernel(kernel) for what, kernel in OTHERS.items()}
    seen: dict[str, str] = {}
    for what, text in texts.items():
        assert text not in seen, f"{what} reads like {seen.get(text)}"
        seen[text] = what


def test_which_loop_an_index_belongs_to_is_told() -> None:
    out, source = Buffer("o", FLOAT32, 16, "w"), Buffer("i", FLOAT32, 16, "r")
    t, i, j = Index("t", 1), Index("i", 4), Index("j", 4)
    texts = []
    for at in (i * 4 + j, j * 4 + i):
        inner = Loop(j, 0, 4, (Store(out, i * 4 + j, load(source, at)),))
        texts.append(
            format_kernel(Kernel("k", (out, source), (), (), t, 1, (Loop(i, 0, 4, (inner,)),)))
        )
    assert texts[0] != texts[1]


def test_text_is_the_same_every_time() -> None:
    assert len({format_kernel(row_sums()) for _ in range(3)}) == 1


@pytest.mark.parametrize("maximum", [None, 64])
def test_bounds_of_variables_are_part_of_the_text(maximum: int | None) -> None:
    n = Variable("n", 1, maximum)
    kernel = Kernel("k", (), (), (n,), Index("t", n), n, ())
    expected = f"vals v0 in [1, {'inf' if maximum is None else maximum}]"
    assert format_kernel(kernel).splitlines()[0] == expected
