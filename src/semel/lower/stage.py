"""Operands of a contraction that are computed once per tile and kept in scratch.

    value at (row, k)      --stage_left-->   rows of a left operand that is computed
    value at (k, column)   --widen_panel-->  a panel of weights that are narrow in memory

A contraction reads an element of its left operand once for every panel of columns, and one
of its right operand once for every block of rows. What is not simply there to be read (a
gather of rows, a scale, a change of sign, a widening) is written to scratch first, in
vectors, so that it is computed once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semel.ir.expr import Dim, Index, ceildiv, product
from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.kernel import ir
from semel.kernel.ir import Buffer, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.evaluate import Evaluator, value_atoms
from semel.lower.lowered import Names, split_rows
from semel.ops.index_maps import Indices, contraction_index
from semel.ops.narrow_weights import is_widened, is_word
from semel.schedule.group import SKINNY_ROWS

#: Elements of a cache line, for those of four bytes.
_LINE_ELEMENTS = 16
#: Rows of a tile whose weights are widened in scratch, and the most k that fit there.
WIDENED_ROWS = 96
_WIDENED_DEPTH = 4096


@dataclass(frozen=True)
class Site:
    """The contraction whose operands are staged: where it is wanted, and what can be loaded."""

    node: Node
    at: Indices
    buffers: Mapping[Node, Buffer]
    checks: list[CheckInfo]
    names: Names
    lanes: int  # of one vector register


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of the left operand from `first` on, in scratch."""

    buffer: Buffer
    pitch: Dim
    first: Dim

    def load(self, row: Dim, inner: Dim) -> Value:
        """Element k = `inner` of a row, numbered as in the whole operand."""
        return ir.load(self.buffer, (row - self.first) * self.pitch + inner)


@dataclass(frozen=True, slots=True)
class WidePanel:
    """The columns of one panel for all k, or for those from `first` on, in scratch."""

    buffer: Buffer
    lanes: int
    first: Dim = 0

    def load(self, inner: Dim, column: Dim) -> Value:
        """Row k = `inner` of a column, numbered as in the whole operand."""
        at = (inner - self.first) * self.lanes + column % self.lanes
        return ir.load(self.buffer, at)


def reads_left(site: Site) -> bool:
    """Whether the left operand is simply there to be read."""
    names = Names()
    evaluate = Evaluator(site.buffers, {}, [], names)
    inner = contraction_index(site.node, lambda extent: names.index("k", extent))
    value = evaluate(site.node.inputs[0], (*site.at[:-1], inner))
    return not evaluate.prelude and value.op == "load"


def stage_left(
    site: Site, loops: Sequence[Index], rows: int, first: Dim, last: Dim
) -> tuple[StagedRows, tuple[Statement, ...]]:
    """Rows [first, last) of the left operand, at most `rows`, numbered along `loops`."""
    left = site.node.inputs[0]
    depth = left.type.shape[-1]
    k = site.names.index("k", depth)
    evaluate = Evaluator(site.buffers, {}, site.checks, site.names)
    value = evaluate(left, (*site.at[:-1], k))
    # Rows an odd number of lines apart do not push each other out of the cache.
    pitch = ceildiv(depth, 2 * _LINE_ELEMENTS) * 2 * _LINE_ELEMENTS + _LINE_ELEMENTS
    staged = StagedRows(Buffer("s1", value.dtype, rows * pitch, "s"), pitch, first)
    here = Index(site.names("r"), product(i.extent for i in loops)) if loops else 0
    body = stage_rows(
        staged.buffer, (here - first) * pitch + k, value, evaluate.prelude, (k,), site.lanes
    )
    if not isinstance(here, Index):
        return staged, body
    inner = substitute_indices(body, split_rows(here, loops))
    return staged, (ir.Loop(here, first, last, inner),)


def widens(site: Site, rows: Dim, in_parts: bool = False) -> bool:
    """Whether many rows read weights that are narrow in memory: widened once a tile then.

    All of k must fit the scratch, unless it is walked in parts.
    """
    right = site.node.inputs[1]
    depth = right.type.shape[-2]
    is_skinny = isinstance(rows, int) and rows <= SKINNY_ROWS
    is_short = isinstance(depth, int) and depth > 0 and (in_parts or depth <= _WIDENED_DEPTH)
    return is_short and isinstance(site.at[-1], Index) and not is_skinny and is_widened(right)


def wide_panel(site: Site, lanes: int, steps: Dim) -> WidePanel:
    """Scratch for so many k of a panel of `lanes` columns."""
    right = site.node.inputs[1].type
    return WidePanel(Buffer("s2", right.dtype.compute, steps * lanes, "s"), lanes)


def widen_panel(
    site: Site,
    panel: WidePanel,
    first: Dim,
    count: int,
    loops: Sequence[tuple[Index, Dim]],
    inner: Dim,
) -> tuple[Statement, ...]:
    """`count` columns from `first` on, for k = `inner` of all `loops`, as accumulators want them.

    The numbers of a word are taken apart side by side, so that it is read once.
    """
    lane = Index(site.names("n"), panel.lanes)
    evaluate = Evaluator(site.buffers, {}, site.checks, site.names)
    value = evaluate(site.node.inputs[1], (*site.at[:-2], inner, first + lane))
    at = (inner - panel.first) * panel.lanes + lane
    store = ir.Store(panel.buffer, at, ir.cast(value, panel.buffer.dtype))
    body: tuple[Statement, ...] = (*evaluate.prelude, store)
    outer = list(loops)
    if len(outer) > 1 and is_word(outer[-1][1]):
        index, stop = outer.pop()
        body = (ir.Loop(index, 0, stop, body, unroll=True),)
    body = (ir.Loop(lane, 0, count, body, site.lanes),)
    for index, stop in reversed(outer):
        body = (ir.Loop(index, 0, stop, body),)
    return body


def stage_rows(
    buffer: Buffer,
    at: Dim,
    value: Value,
    prelude: Sequence[Statement],
    loops: Sequence[Dim],
    lanes: int,
) -> tuple[Statement, ...]:
    """buffer[at] = value for all of `loops`, the last one in vectors of `lanes`.

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
            body = (ir.Loop(loop, 0, loop.extent, body, 1 if position else lanes),)
    return body if changes else (*prelude, *body)
