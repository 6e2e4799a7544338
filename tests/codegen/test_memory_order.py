"""A value is what it was when its statement ran: stores in between are seen, by every executor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.codegen.machine import Native, runnable_targets

from semel.ir.expr import Index
from semel.ir.types import FLOAT32, INT64
from semel.kernel import ir
from semel.kernel.interpret import interpret
from semel.kernel.ir import Buffer, Declare, If, Kernel, Local, Loop, Reduce, Statement, Store

OUT = Buffer("out", FLOAT32, 40, "rw")
ROW = Buffer("row", FLOAT32, 40, "s")
IN = Buffer("in", FLOAT32, 40, "r")
K, J = Index("i", 40), Index("j", 3)
TOTAL = Local("total", FLOAT32)


def loaded(buffer: Buffer, i: Index | int) -> ir.Value:
    return ir.load(buffer, i) + 1.0


def twice(lanes: int) -> tuple[Statement, ...]:
    """Each step reads what the step before stored."""
    bump = Store(OUT, K, loaded(OUT, K))
    start = Store(OUT, K, ir.load(IN, K))
    return (Loop(K, 0, 40, (start, bump, bump, bump), lanes),)


def reduced_after_store(lanes: int) -> tuple[Statement, ...]:
    value = loaded(ROW, K)
    return (
        Loop(K, 0, 40, (Store(ROW, K, ir.load(IN, K)),), lanes),
        Declare(TOTAL, ir.const(FLOAT32, 0)),
        Loop(K, 0, 40, (Store(ROW, K, value), Reduce((TOTAL,), "add", (value,))), lanes),
        Loop(K, 0, 40, (Store(OUT, K, ir.load(ROW, K) + ir.local(TOTAL)),), lanes),
    )


def carried_by_a_loop(lanes: int) -> tuple[Statement, ...]:
    """The value is known before the loop, and another one in its second iteration."""
    first = loaded(OUT, 0)
    return (
        Store(OUT, 0, ir.load(IN, 0)),
        Store(OUT, 1, first),
        Loop(J, 0, 3, (Store(OUT, J + 2, first), Store(OUT, 0, first))),
        Loop(K, 5, 40, (Store(OUT, K, ir.load(IN, K)),), lanes),
    )


def known_before_a_loop(lanes: int) -> tuple[Statement, ...]:
    """Nothing is stored between the first use of the value and the loop that changes it."""
    first = loaded(OUT, 0)
    return (
        Store(OUT, 0, ir.load(IN, 3)),
        Store(ROW, 0, first),
        Loop(J, 0, 3, (Store(ROW, J + 1, first), Store(OUT, 0, first))),
        Store(OUT, 1, first),
        Loop(K, 4, 40, (Store(ROW, K, ir.load(IN, K)),), lanes),
        Loop(K, 2, 40, (Store(OUT, K, ir.load(ROW, K - 2)),), lanes),
    )


def under_a_condition(lanes: int) -> tuple[Statement, ...]:
    first = loaded(OUT, 0)
    seven = ir.load(IN, 7) > ir.const(FLOAT32, 0)
    return (
        Loop(K, 0, 40, (Store(OUT, K, ir.load(IN, K)),), lanes),
        Store(OUT, 1, first),
        If(seven, (Store(OUT, 0, ir.const(FLOAT32, 9)),)),
        Store(OUT, 2, first),
    )


@pytest.mark.parametrize("target_name", runnable_targets())
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize(
    "body",
    [twice, reduced_after_store, carried_by_a_loop, known_before_a_loop, under_a_condition],
)
def test_stores_are_seen_by_later_statements(
    body: Callable[[int], tuple[Statement, ...]], lanes: int, target_name: str
) -> None:
    kernel = Kernel("k", (OUT, IN), (ROW,), (), Index("tile", 1), 1, body(lanes))
    data = np.arange(40, dtype=np.float32)
    got, want = np.zeros(40, np.float32), np.zeros(40, np.float32)
    interpret(kernel, [want, data.copy()], {})
    Native(kernel, runnable_targets()[target_name]).run([got, data.copy()])
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_locals_are_read_when_their_statement_runs() -> None:
    count = Local("count", INT64)
    out = Buffer("out", INT64, 4, "w")
    step = ir.local(count) + ir.local(count)
    body = (
        Declare(count, ir.const(INT64, 1)),
        Store(out, 0, step),
        ir.Assign(count, step),
        Store(out, 1, step),
        Loop(J, 0, 3, (ir.Assign(count, step),)),
        Store(out, 2, step),
        Store(out, 3, ir.local(count)),
    )
    kernel = Kernel("k", (out,), (), (), Index("tile", 1), 1, body)
    got = np.zeros(4, np.int64)
    Native(kernel, next(iter(runnable_targets().values()))).run([got])
    assert got.tolist() == [2, 4, 32, 16]
