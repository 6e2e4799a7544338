"""Code for few elements, and for what is under a condition: no more than it needs, where it needs
it."""

from __future__ import annotations

import pytest

from semel.codegen.emit import emit_kernel
from semel.ir.expr import Dim, Index, Variable
from semel.ir.target import named_target
from semel.ir.types import FLOAT32
from semel.kernel import ir
from semel.kernel.ir import Buffer, If, Kernel, Loop, Statement, Store

N = Variable("n", 1, None)
TILE, LANE = Index("tile", N), Index("i", 400)
X, Y = Buffer("x", FLOAT32, 16 * N, "r"), Buffer("y", FLOAT32, 16 * N, "w")


def text(*body: Statement) -> str:
    kernel = Kernel("k", (Y, X), (), (N,), TILE, N, body)
    return emit_kernel(kernel, named_target("x86-64-v4"), "k")


def copy(stop: Dim) -> Loop:
    store = Store(Y, 16 * TILE + LANE, ir.load(X, 16 * TILE + LANE))
    return Loop(LANE, 0, stop, (store,), 16)


@pytest.mark.parametrize(("extent", "stores"), [(16, 0), (17, 0), (18, 1), (400, 1)])
def test_few_elements_are_one_masked_vector(extent: int, stores: int) -> None:
    few = Index("few", extent)
    found = text(ir.Bind(few, ir.index(N % extent)), copy(few))
    assert found.count("call void @llvm.masked.store") == 1
    assert found.count("store <16 x float>") == stores


def test_what_only_a_condition_needs_is_computed_under_it() -> None:
    body = (Store(Y, TILE * (N + 5), ir.load(X, TILE * (N + 3))),)
    before, under = text(If(ir.index(TILE) < ir.index(3), body)).split("\nthen_", 1)
    assert " mul nsw i64 " not in before
    assert " mul nsw i64 " in under


def test_what_is_known_around_the_loop_of_a_condition_stays_there() -> None:
    row = Index("row", 9)
    body = (Store(Y, TILE * (N + 5) + row, ir.load(X, row)),)
    loop = Loop(row, 0, 9, (If(ir.index(row) < ir.index(3), body),))
    before, _ = text(loop).split("\nloop_", 1)[1].split("\nthen_", 1)
    assert " mul nsw i64 " in before.split("\nloop_", 1)[0]
