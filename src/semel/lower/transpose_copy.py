"""Copies that turn axes around: read along one axis, write along another.

    loops (rest..., along, ..., column) around { b[.. + column] = f(a[.. + along + column*pitch]) }
    -->
    for vector along `along`: for block of columns: a vector per column, turned as it is stored

A vector along the columns would gather its lanes from as many cache lines, and the next row
would come back for the same lines. Vectors along the axis that the operand has innermost are
read straight; a block of them, one per column, is turned in registers as it is stored
(`codegen.cpu.turned_stores`). Blocks follow each other along the columns, so that stores run
through memory line by line: loads that miss overlap, stores wait for each other. Nothing but the
order of elements changes.

Where some operands lie along the columns and others do not (`x + x.T`), or the work is dear, the
others are turned into scratch, block by block, and the kernel reads them from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from semel.ir.expr import (
    Dim,
    Index,
    atoms,
    ceildiv,
    linear_coefficient,
    lower_bound,
    minimum,
    product,
    substitute,
    upper_bound,
)
from semel.kernel import ir
from semel.kernel.conditions import Conditions, assume, follows_from
from semel.kernel.ir import Buffer, Statement, Value, statement_values, walk_values
from semel.kernel.rewrite import ValueMap, map_statements, substitute_indices
from semel.lower.lowered import Names, split_rows

#: Elements of a tile, and at most so many of them side by side: the lines that they are read
#: from, one each, stay in the first-level cache until all of a line is read.
TILE = 16384
WIDE = 256
#: More work than this is repeated for every column of a block at too high a price in code.
MAX_VALUES = 40
#: Of a register of 16 lanes, a half turns blocks well, a quarter does not.
LEAST_LANES = 8
#: Fewer columns than this are interleaved, whole; it is as many as shuffles are worth.
FEW = 8
#: Rows and columns of a block that is turned into scratch: 16 KiB of float32.
SIDE = 64
#: Operands that are turned into scratch for one kernel: more of them do not fit the cache.
MAX_STAGED = 2
#: What a machine divides for.
_DEAR = {"div", "sqrt"}
#: What conditions are made of that depend on indices alone.
_OF_INDICES = {"const", "index", "and", "or", "not", *ir.COMPARISONS}


def find_turn(
    loops: Sequence[Index], body: Sequence[Statement], lanes: int
) -> tuple[Index, int] | None:
    """The loop to take vectors along instead of the last one, if operands lie that way, and of
    how many lanes: of a loop that is shorter than a register, a half or a quarter of one."""
    if len(loops) < 2 or not all(isinstance(s, ir.Store) and s.guard is None for s in body):
        return None
    column = loops[-1]
    values = _values_of(body)
    if len(values) > MAX_VALUES or any(v.op in ir.MATH for v in values):
        return None
    loads = [v.data[1] for v in values if v.op == "load"]
    for along in reversed(loops[:-1]):
        fitting = _fitting(along.extent, lanes)
        if fitting < min(lanes, LEAST_LANES):
            continue
        steps = [(linear_coefficient(at, along), linear_coefficient(at, column)) for at in loads]
        gains = any(a == 1 and c not in (0, 1) for a, c in steps)
        if gains and all(a in (0, 1) for a, _ in steps) and _has_room(column, body, fitting):
            return along, fitting
    return None


def _power_of_two(count: int) -> int:
    """The largest one that is not larger."""
    return 1 << (count.bit_length() - 1) if count else 0


def _values_of(body: Sequence[Statement]) -> list[Value]:
    return list(walk_values([v for s in body for v in statement_values(s)]))


def _has_room(column: Index, body: Sequence[Statement], lanes: int) -> bool:
    """Whether blocks of columns can be turned, or all of the few columns interleaved."""
    count = column.extent
    if isinstance(count, int) and count < min(_copies(body, lanes), LEAST_LANES):
        return 2 <= count <= FEW
    high = upper_bound(count)
    return high is None or high >= min(_copies(body, lanes), LEAST_LANES)


def _copies(body: Sequence[Statement], lanes: int) -> int:
    """Columns at once: as many as a register holds of the widest element stored."""
    widest = max(s.buffer.dtype.size_bytes for s in body if isinstance(s, ir.Store))
    return max(min(lanes, lanes * 4 // widest), 2)


def tile_turned(
    loops: Sequence[Index], along: Index, body: tuple[Statement, ...], names: Names, lanes: int
) -> tuple[Index, tuple[Statement, ...]]:
    """The tile and its statements: blocks along both axes, at one index of the others."""
    column = loops[-1]
    rest = [i for i in loops[:-1] if i is not along]
    copies, wide = _copies(body, lanes), WIDE
    high = upper_bound(column.extent)
    if high is not None and high < copies:
        copies = high if high < min(copies, LEAST_LANES) else _power_of_two(high)
    if isinstance(column.extent, int):
        wide = min(-(-column.extent // copies) * copies, WIDE)
    tall = TILE // wide // lanes * lanes
    across, down = ceildiv(column.extent, wide), ceildiv(along.extent, tall)
    tile = Index("tile", product(i.extent for i in rest) * across * down)
    row, place = tile // (across * down), tile % (across * down)
    left, first = (place // down) * wide, (place % down) * tall
    right, last = minimum(left + wide, column.extent), minimum(first + tall, along.extent)
    down_axis = _Axis(along, first, last, lanes, tall // lanes)
    turned = _Turned(down_axis, _Axis(column, left, right, copies, wide // copies), names)
    return tile, substitute_indices(turned.statements(body), split_rows(row, rest))


def find_staged(
    loops: Sequence[Index], body: Sequence[Statement], lanes: int
) -> tuple[Index, list[Value]] | None:
    """The loop that some operands lie along, and what is loaded from them, where others lie
    straight or the work is dear: then the vectors run along the last loop all the same."""
    if len(loops) < 2 or not all(isinstance(s, ir.Store) and s.guard is None for s in body):
        return None
    column = loops[-1]
    for along in reversed(loops[:-1]):
        highs = [upper_bound(i.extent) for i in (along, column)]
        if any(high is not None and high < min(lanes, LEAST_LANES) for high in highs):
            continue
        far = [v for v in _values_of(body) if v.op == "load" and _is_far(v, along, column)]
        if 0 < len(far) <= MAX_STAGED:
            return along, far
    return None


def _is_far(load: Value, along: Index, column: Index) -> bool:
    """Whether a load reads straight along a loop that is not the last one."""
    if load.args or load.data[0].access != "r":
        return False
    at = load.data[1]
    step, others = linear_coefficient(at, along), linear_coefficient(at, column)
    return step == 1 and others not in (0, 1, None)


def tile_staged(
    loops: Sequence[Index],
    along: Index,
    far: Sequence[Value],
    body: tuple[Statement, ...],
    names: Names,
    lanes: int,
) -> tuple[Index, list[Buffer], tuple[Statement, ...]]:
    """The tile, its scratch, and its statements: blocks of far operands are turned into scratch,
    from where vectors along the columns read them."""
    column, rest = loops[-1], [i for i in loops[:-1] if i is not along]
    across, down = (ceildiv(i.extent, SIDE) for i in (column, along))
    tile = Index("tile", product(i.extent for i in rest) * across * down)
    row, place = tile // (across * down), tile % (across * down)
    left, first = (place // down) * SIDE, (place % down) * SIDE
    right, last = minimum(left + SIDE, column.extent), minimum(first + SIDE, along.extent)
    # A step that ends where the range does begins before the block: there is room for it.
    tall, wide = (_fitting(i.extent, lanes) for i in (along, column))
    pitch = SIDE + wide
    here = (along - first + tall) * pitch + (column - left + wide)
    scratch: list[Buffer] = []
    near: dict[Value, Value] = {}
    copies: list[Statement] = []
    for load in far:
        dtype = load.data[0].dtype
        buffer = Buffer(f"s{len(scratch)}", dtype, (SIDE + tall) * pitch, "s")
        scratch.append(buffer)
        near[load] = ir.load(buffer, here)
        copies_at_once = min(wide, tall, max(lanes * 4 // dtype.size_bytes, 2))
        axes = (
            _Axis(along, first, last, tall, SIDE // tall),
            _Axis(column, left, right, copies_at_once, SIDE // copies_at_once),
        )
        copies += _Turned(*axes, names).statements((ir.Store(buffer, here, load),))
    computed = map_statements(body, ValueMap(lambda value: near.get(value, value)))
    inner: tuple[Statement, ...] = (ir.Loop(column, left, right, computed, lanes),)
    statements = (*copies, ir.Loop(along, first, last, inner))
    return tile, scratch, substitute_indices(statements, split_rows(row, rest))


def _fitting(extent: Dim, lanes: int) -> int:
    """Lanes of a register, or of half of one, that a loop fills."""
    high = upper_bound(extent)
    return lanes if high is None else min(lanes, _power_of_two(high))


def _same_in_columns(body: Sequence[Statement], column: Index) -> tuple[Value, ...]:
    """The largest values that no column changes, if anything dear is in one."""
    varying: set[Value] = set()
    values = _values_of(body)
    for value in values:
        place = value.data if value.op == "index" else value.data[1] if value.op == "load" else 0
        if column in atoms(place) or not varying.isdisjoint(value.args):
            varying.add(value)
    used = {a for v in values if v in varying for a in v.args if a not in varying}
    used |= {s.value for s in body if isinstance(s, ir.Store) and s.value not in varying}
    found = tuple(v for v in values if v in used and v.args and v.dtype.is_float)
    return found if any(v.op in _DEAR for v in walk_values(found)) else ()


@dataclass(frozen=True)
class _Axis:
    """A loop of which a tile takes [start, stop), in at most `most` steps of `size`."""

    loop: Index
    start: Dim
    stop: Dim
    size: int
    most: int

    @property
    def is_enough(self) -> Value | None:
        """Whether there is a whole step; None if there always is."""
        low = lower_bound(self.loop.extent)
        if low is not None and low >= self.size:
            return None
        return ir.index(self.loop.extent) >= ir.index(self.size)

    def begin(self, step: Index, names: Names) -> tuple[Dim, tuple[Statement, ...]]:
        """Where a step begins, and what binds that.

        What is left in the end is a whole step too, that ends where the range does: it stores
        some elements a second time, as they are.
        """
        begin = self.start + step * self.size
        if self.loop.extent % self.size == 0:
            return begin, ()
        bound = Index(names("s"), self.loop.extent - self.size + 1)
        return bound, (ir.Bind(bound, ir.index(minimum(begin, self.stop - self.size))),)

    def over(self, step: Index, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The body for every step."""
        return (ir.Loop(step, 0, ceildiv(self.stop - self.start, self.size), body),)


@dataclass(frozen=True)
class _Turned:
    """The statements of a tile; where an axis is shorter than a step they go one by one."""

    along: _Axis
    column: _Axis
    names: Names

    def statements(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        asked = [it for it in (self.along.is_enough, self.column.is_enough) if it is not None]
        if not asked:
            return self._blocks(body)
        enough = reduce(and_, asked)
        few = ir.op("not", enough)
        return ir.If(enough, self._blocks(body)), ir.If(few, self._one_by_one(body))

    def _one_by_one(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        for axis in (self.column, self.along):
            own = Index(self.names("w"), axis.loop.extent)
            inner = substitute_indices(body, {axis.loop: own})
            body = (ir.Loop(own, axis.start, axis.stop, inner),)
        return body

    def _blocks(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """For every vector of the one axis all columns of the tile."""
        row, block = (Index(self.names("q"), axis.most) for axis in (self.along, self.column))
        down, bind_row = self.along.begin(row, self.names)
        across, bind_block = self.column.begin(block, self.names)
        facts = self._facts(body)
        same = () if facts else _same_in_columns(body, self.column.loop)
        if same:
            inner = self._column_blocks(body, same, down, (across, bind_block, block))
            return self.along.over(row, (*bind_row, *inner))
        if facts:
            inside = reduce(and_, [self._holds(fact, down, across) for fact in facts])
            inner = (
                ir.If(inside, self._block(assume(body, follows_from(facts)), down, across)),
                ir.If(ir.op("not", inside), self._block(body, down, across)),
            )
        else:
            inner = self._block(body, down, across)
        columns = self.column.over(block, (*bind_block, *inner))
        return self.along.over(row, (*bind_row, *columns))

    def _column_blocks(
        self,
        body: tuple[Statement, ...],
        same: Sequence[Value],
        down: Dim,
        columns: tuple[Dim, tuple[Statement, ...], Index],
    ) -> tuple[Statement, ...]:
        """All columns for one vector of rows, and before them what these have in common."""
        across, bind_block, block = columns
        lane = Index(self.names("v"), self.along.size)
        kept = {value: ir.Local(self.names("l"), value.dtype) for value in same}
        declared = substitute_indices(
            tuple(ir.Declare(kept[value], value) for value in same), {self.along.loop: down + lane}
        )
        known = ValueMap(lambda value: ir.local(kept[value]) if value in kept else value)
        stores = self._stores(map_statements(body, known), down + lane, across)
        inner = self.column.over(block, (*bind_block, *stores))
        return (ir.Loop(lane, 0, lane.extent, (*declared, *inner), self.along.size),)

    def _block(self, body: tuple[Statement, ...], down: Dim, across: Dim) -> tuple[Statement, ...]:
        """A vector per column, for every statement."""
        lane = Index(self.names("v"), self.along.size)
        stores = self._stores(body, down + lane, across)
        return (ir.Loop(lane, 0, lane.extent, stores, self.along.size),)

    def _stores(self, body: tuple[Statement, ...], row: Dim, across: Dim) -> tuple[Statement, ...]:
        copy = Index(self.names("u"), self.column.size)
        moved = substitute_indices(body, {self.along.loop: row, self.column.loop: across + copy})
        return tuple(ir.Loop(copy, 0, copy.extent, (s,), unroll=True) for s in moved)

    def _facts(self, body: Sequence[Statement]) -> tuple[Dim, ...]:
        """What is >= 0 wherever anything is loaded, if a whole block can be asked for it.

        Beside padding these are its borders. Blocks inside of them need no masks.
        """
        guards = {v.args[0] for v in _values_of(body) if v.op == "load" and v.args}
        if not guards or any(v.op not in _OF_INDICES for v in walk_values(list(guards))):
            return ()
        conditions = Conditions()
        first, *others = (conditions.facts(guard) for guard in guards)
        common = [fact for fact in first if all(fact in other for other in others)]
        return tuple(fact for fact in common if self._is_straight(fact))

    def _is_straight(self, fact: Dim) -> bool:
        steps = (linear_coefficient(fact, axis.loop) for axis in (self.along, self.column))
        return all(isinstance(step, int) for step in steps)

    def _holds(self, fact: Dim, down: Dim, across: Dim) -> Value:
        """Whether it is >= 0 in all of a block: then it is in the worst corner."""
        corner: dict[Index, Dim] = {}
        for axis, begin in ((self.along, down), (self.column, across)):
            step = linear_coefficient(fact, axis.loop)
            assert isinstance(step, int)
            corner[axis.loop] = begin if step >= 0 else begin + axis.size - 1
        return ir.index(substitute(fact, corner)) >= ir.index(0)
