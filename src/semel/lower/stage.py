"""Rows of an operand, computed once per tile and kept in scratch.

    value at (row, k)  --stage_rows-->  loops that store it to scratch

A contraction reads an element of its left operand once for every panel of columns. What is
not simply there to be read (a gather of rows, a scale, a change of sign) is written to
scratch first, in vectors along k, so that it is computed once for all panels of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.ir.expr import Dim, Index
from semel.kernel import ir
from semel.kernel.ir import Buffer, Statement, Value
from semel.lower.evaluate import value_atoms


def stage_rows(
    buffer: Buffer,
    at: Dim,
    value: Value,
    prelude: Sequence[Statement],
    loops: Sequence[Dim],
    lanes: int,
    stop: Dim | None = None,
) -> tuple[Statement, ...]:
    """buffer[at] = value for all of `loops`, the last one in vectors of `lanes`, up to `stop`.

    What the value relies on (an index and its check) stands in front of the loops if it
    does not change in them.
    """
    inside = [i for i in loops if isinstance(i, Index)]
    changes = any(
        not value_atoms(v).isdisjoint(inside) for s in prelude for v in ir.statement_values(s)
    )
    store = ir.Store(buffer, at, value)
    body: tuple[Statement, ...] = (*prelude, store) if changes else (store,)
    for position, loop in enumerate(reversed(loops)):
        if isinstance(loop, Index):
            end = loop.extent if position or stop is None else stop
            body = (ir.Loop(loop, 0, end, body, 1 if position else lanes),)
    return body if changes else (*prelude, *body)
