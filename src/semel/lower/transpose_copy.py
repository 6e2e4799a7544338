"""Copies that turn axes around: read along one axis, write along another.

    loops (rest..., along, ..., column) around { b[.. + column] = f(a[.. + along + column*pitch]) }
    -->
    for block of columns: vectors along `along`, one per column of the block

A vector along the columns would gather its lanes from as many cache lines, and the next row
would come back for the same lines. Vectors along the axis that the operand has innermost are
read straight; a block of them, one per column, is turned in registers as it is stored
(`codegen.cpu.turned_stores`). Nothing but the order of elements changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semel.ir.expr import (
    Dim,
    Index,
    ceildiv,
    floordiv,
    linear_coefficient,
    lower_bound,
    minimum,
    product,
    upper_bound,
)
from semel.kernel import ir
from semel.kernel.ir import Statement, Value, statement_values, walk_values
from semel.kernel.rewrite import substitute_indices
from semel.lower.lowered import Names, split_rows

#: Elements of a tile along each of the two axes.
BLOCK = 128
#: More work than this is repeated for every column of a block at too high a price in code.
MAX_VALUES = 40
#: Fewer columns than this are interleaved, whole; it is as many as shuffles are worth.
FEW = 8


def find_turn(loops: Sequence[Index], body: Sequence[Statement], lanes: int) -> Index | None:
    """The loop to take vectors along instead of the last one, if operands lie that way."""
    if len(loops) < 2 or not all(isinstance(s, ir.Store) and s.guard is None for s in body):
        return None
    column = loops[-1]
    values = list(walk_values([v for s in body for v in statement_values(s)]))
    if len(values) > MAX_VALUES or any(v.op in ir.MATH for v in values):
        return None
    loads = [v.data[1] for v in values if v.op == "load"]
    for along in reversed(loops[:-1]):
        high = upper_bound(along.extent)
        if high is not None and high < lanes:
            continue
        steps = [(linear_coefficient(at, along), linear_coefficient(at, column)) for at in loads]
        gains = any(a == 1 and c not in (0, 1) for a, c in steps)
        if gains and all(a in (0, 1) for a, _ in steps) and _has_room(column, body, lanes):
            return along
    return None


def _has_room(column: Index, body: Sequence[Statement], lanes: int) -> bool:
    """Whether blocks of columns can be turned, or all of the few columns interleaved."""
    count = column.extent
    if isinstance(count, int) and count < _copies(body, lanes):
        return 2 <= count <= FEW
    high = upper_bound(count)
    return high is None or high >= _copies(body, lanes)


def _copies(body: Sequence[Statement], lanes: int) -> int:
    """Columns at once: as many as a register holds of the widest element stored."""
    widest = max(s.buffer.dtype.size_bytes for s in body if isinstance(s, ir.Store))
    return max(min(lanes, lanes * 4 // widest), 2)


def tile_turned(
    loops: Sequence[Index], along: Index, body: tuple[Statement, ...], names: Names, lanes: int
) -> tuple[Index, tuple[Statement, ...]]:
    """The tile and its statements: a block along both axes, at one index of the others."""
    column = loops[-1]
    rest = [i for i in loops[:-1] if i is not along]
    copies = _copies(body, lanes)
    if isinstance(column.extent, int) and column.extent < copies:
        copies = wide = column.extent
        tall = BLOCK * BLOCK // copies // lanes * lanes
    else:
        wide = tall = BLOCK
    across, down = ceildiv(column.extent, wide), ceildiv(along.extent, tall)
    tile = Index("tile", product(i.extent for i in rest) * across * down)
    row, place = tile // (across * down), tile % (across * down)
    left, first = (place // down) * wide, (place % down) * tall
    right, last = minimum(left + wide, column.extent), minimum(first + tall, along.extent)
    turned = _Turned(along, column, body, names, lanes, copies)
    statements = turned.columns(left, right, first, last)
    return tile, substitute_indices(statements, split_rows(row, rest))


@dataclass(frozen=True)
class _Turned:
    """The statements of a tile, for ranges of both axes.

    A rest shorter than a block is a whole block that ends where the range does: it stores
    some elements a second time, as they are. An axis that may be shorter than a block has
    its rest under a mask, scattered.
    """

    along: Index
    column: Index
    body: tuple[Statement, ...]
    names: Names
    lanes: int
    copies: int

    def columns(self, left: Dim, right: Dim, first: Dim, last: Dim) -> list[Statement]:
        """Blocks of columns, then what is left of them."""
        copies = self.copies
        copy = Index(self.names("u"), copies)
        block = Index(self.names("b"), BLOCK // copies + 1)
        blocks = floordiv(right - left, copies)
        together = tuple(ir.Loop(copy, 0, copies, (s,), unroll=True) for s in self.body)

        def at(base: Dim) -> list[Statement]:
            return self.rows(substitute_indices(together, {self.column: base + copy}), first, last)

        result: list[Statement] = [ir.Loop(block, 0, blocks, tuple(at(left + block * copies)))]
        if self.column.extent % copies == 0:
            return result
        if _is_at_least(self.column.extent, copies):
            result.append(ir.If(_is_left((right - left) % copies), tuple(at(right - copies))))
            return result
        single = Index(self.names("w"), self.column.extent)
        inner = self.rows(substitute_indices(self.body, {self.column: single}), first, last)
        result.append(ir.Loop(single, left + blocks * copies, right, tuple(inner)))
        return result

    def rows(self, body: Sequence[Statement], first: Dim, last: Dim) -> list[Statement]:
        """Vectors along the other axis, then what is left of it."""
        lanes, along = self.lanes, self.along
        if not _is_at_least(along.extent, lanes):
            own = Index(self.names("v"), along.extent)
            return [ir.Loop(own, first, last, substitute_indices(body, {along: own}), lanes)]

        def at(base: Dim) -> tuple[Statement, ...]:
            lane = Index(self.names("v"), lanes)
            return (ir.Loop(lane, 0, lanes, substitute_indices(body, {along: base + lane}), lanes),)

        vector = Index(self.names("q"), BLOCK * BLOCK // lanes)
        count = floordiv(last - first, lanes)
        result: list[Statement] = [ir.Loop(vector, 0, count, at(first + vector * lanes))]
        if along.extent % lanes != 0:
            result.append(ir.If(_is_left((last - first) % lanes), at(last - lanes)))
        return result


def _is_at_least(extent: Dim, least: int) -> bool:
    low = lower_bound(extent)
    return low is not None and low >= least


def _is_left(rest: Dim) -> Value:
    return ir.index(rest) > ir.index(0)
