"""Contractions to register-tiled loops.

    Group(kind="contract") --lower_contract--> Kernel

A tile is a block of rows times a block of columns of the result. Inside it a
vector loop walks the columns, and blocks of rows keep one accumulator per row in
registers over the whole of k; what follows the contraction (bias, activation,
residual) is computed on the accumulators before their only store. Rows that do
not fill a block run in smaller blocks, the last ones singly.

Every element adds its products in the order of k in one accumulator, whatever
block it falls into, so that all tilings agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from semel.ir.expr import (
    Dim,
    Index,
    ceildiv,
    linear_coefficient,
    lower_bound,
    maximum,
    minimum,
    product,
    substitute,
    upper_bound,
)
from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.ir.target import Target
from semel.ir.types import BOOL
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement
from semel.kernel.rewrite import substitute_indices
from semel.lower.evaluate import Evaluator, start_value, value_atoms, wanted_at
from semel.lower.lowered import Lowered, Names, finish_kernel, make_buffers, split_rows
from semel.ops.contract import PanelWidth
from semel.ops.index_maps import Indices, contraction_index, flat_index
from semel.schedule.group import Group

#: An operand smaller than this stays in the cache: fetching ahead would only cost.
SMALL_BYTES = 1 << 19
#: Up to so many rows a contraction is bound by memory, not by arithmetic.
SKINNY_ROWS = 4
#: So far ahead of their use such contractions ask for their right operand.
STEPS_AHEAD = 32


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """How much of the result lives in registers, and how much one tile covers.

    `heights` are the row blocks, tallest first; `lanes` the columns of one panel; `rows` and
    `panels` what a tile of the kernel covers.
    """

    heights: tuple[int, ...]
    lanes: int
    rows: int
    panels: int


@dataclass(frozen=True, slots=True)
class _Tile:
    """Where the tile that is being lowered begins."""

    shape: RegisterTile
    first_row: Dim
    first_panel: Dim


def register_tile(target: Target, bits: int = 32, columns: Dim | None = None) -> RegisterTile:
    """The tile that fills the registers without spilling, for accumulators of `bits`.

    Wide and low beats narrow and tall: a row's element is brought into a register once for
    all vectors of the block, and instructions other than fma are what a busy core lacks
    slots for. A narrower tile is taken where panels of the wide one would be mostly padding.
    """
    lane = target.lanes(max(bits, 32))
    vectors = 4 if target.vector_registers == 32 else 2
    while isinstance(columns, int) and vectors > 1:
        padded = -(-columns // (lane * vectors)) * lane * vectors
        if padded - columns <= columns // 8:
            break
        vectors //= 2
    tallest = (24 if target.vector_registers == 32 else 12) // vectors
    heights = (tallest, *(h for h in (4, 2, 1) if h < tallest))
    return RegisterTile(heights, lane * vectors, 24, max(1, 64 // (lane * vectors)))


def panel_width(target: Target) -> PanelWidth:
    """How wide the panels of a contraction are, for packing and scheduling to agree with."""
    return lambda columns, bits: register_tile(target, bits, columns).lanes


def lower_contract(group: Group, target: Target) -> Lowered:
    """The kernel of a matmul with what follows it."""
    return _Lowering(group, target).run()


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Rows cut into blocks, and blocks into tiles.

    A known number of rows is cut evenly, into blocks of two neighbouring heights of which
    the first `taller` have one row more: a last block of a row or two could not keep the
    arithmetic units busy. An unknown number of rows is cut into tiles of `per_tile` rows,
    and those into blocks of falling `heights`.
    """

    rows: Dim
    heights: tuple[int, ...]
    per_tile: int
    count: int = 0
    taller: int = 0

    @property
    def tiles(self) -> Dim:
        return ceildiv(self.count or self.rows, self.per_tile)

    def first_row(self, tile: Dim) -> Dim:
        """Where a tile's rows begin."""
        first = tile * self.per_tile
        return first * self.heights[-1] + minimum(first, self.taller) if self.count else first

    def of_tile(self, tile: Dim) -> Iterator[tuple[int, Dim, Dim, Callable[[Dim], Dim]]]:
        """Height, first and last block, and the first row of a block, for each height."""
        first, last = tile * self.per_tile, minimum((tile + 1) * self.per_tile, self.count)
        if self.count:
            low, taller = self.heights[-1], self.taller
            if taller:
                yield low + 1, first, minimum(last, taller), lambda block: block * (low + 1)
            if taller < self.count:
                yield low, maximum(first, taller), last, lambda block: block * low + taller
            return
        start, left = first, minimum(first + self.per_tile, self.rows) - first
        for height in self.heights:
            begin, size = start, height
            yield height, 0, left // height, lambda block, b=begin, h=size: b + block * h  # type: ignore[misc]
            start, left = start + left // height * height, left % height


def _cut(shape: RegisterTile, rows: Dim) -> _Blocks:
    if not isinstance(rows, int):
        return _Blocks(rows, shape.heights, shape.rows)
    count = max(1, -(-rows // shape.heights[0]))
    low, taller = divmod(rows, count)
    most = max(1, shape.rows // shape.heights[0])
    per_tile = -(-count // -(-count // most))
    return _Blocks(rows, (low,), per_tile, count, taller)


def _runs(at: Dim, inner: Dim, pitch: int, loops: list[Index]) -> bool:
    """Whether consecutive steps of the contraction read places `pitch` elements apart."""
    return all(linear_coefficient(at - inner * pitch, k) == 0 for k in loops)


def _is_small(buffer: Buffer) -> bool:
    size = upper_bound(buffer.size)
    return size is not None and size * buffer.dtype.size_bytes < SMALL_BYTES


class _Lowering:
    def __init__(self, group: Group, target: Target) -> None:
        assert group.contract is not None
        self.group, self.target = group, target
        self.node: Node = group.contract
        self.names = Names()
        self.buffers = make_buffers(group.outputs, group.reads)
        self.loadable = {n: b for n, b in self.buffers.items() if n not in group.outputs}
        self.checks: list[CheckInfo] = []
        self.root_loops: Indices = tuple(self.names.index("i", d) for d in group.root.type.shape)
        dtype = self.node.type.dtype
        self.accumulator = dtype.compute
        self.at = wanted_at(self.node, group.outputs, self.loadable, self.root_loops)
        *batch, row, _ = (i if isinstance(i, Index) else None for i in self.at)
        entries = [i for i in batch if i is not None]
        own = [row] if row is not None else []
        #: All batch entries that multiply by the same matrix are rows of one tall product.
        self.shares_right = self._shares_right(entries)
        self.entries = [] if self.shares_right else entries
        self.row_loops = [*entries, *own] if self.shares_right else own
        self.rows = product(i.extent for i in self.row_loops)
        self.tile: _Tile | None = None

    def run(self) -> Lowered:
        tall, least = self._tall(), lower_bound(self.rows) or 0
        skinny = replace(tall, heights=tuple(h for h in tall.heights if h <= SKINNY_ROWS), panels=1)
        if least > SKINNY_ROWS or isinstance(self.rows, int):
            shape = tall if least > SKINNY_ROWS else skinny
            tile = Index("tile", self._tiles(shape))
            body = self._body(tile, shape)
        else:
            tile, body = self._by_rows(tall, skinny)
        depth = self.node.inputs[0].type.shape[-1]
        is_bare = self.group.root is self.node
        kernel = finish_kernel(
            "matmul" if is_bare else f"matmul_{self.group.root.op.name}",
            list(self.buffers.values()),
            [],
            tile,
            body,
            self.checks,
            flops=self.node.type.num_elements * depth * 2,
            notes=[repr(n) for n in self.group.inside],
        )
        return Lowered(kernel, tuple(self.buffers), self.group)

    def _tall(self) -> RegisterTile:
        """The register tile, with as many panels as leave room for rows in the cache."""
        depth, columns = self.node.inputs[1].type.shape[-2:]
        shape = register_tile(self.target, self.accumulator.bits, columns)
        size = (upper_bound(depth) or 1) * shape.lanes * self.node.inputs[1].type.dtype.size_bytes
        fitting = self.target.l2_bytes // 2 // max(size, 1)
        return replace(shape, panels=max(1, min(shape.panels, fitting)))

    def _by_rows(
        self, tall: RegisterTile, skinny: RegisterTile
    ) -> tuple[Index, tuple[Statement, ...]]:
        """Two variants in one kernel, chosen by the number of rows at each run.

        A few rows are bound by reading the right operand: one panel a tile, so that all
        threads read. Both variants add in the order of k and agree bit for bit.
        """
        is_tall = minimum(maximum(self.rows - SKINNY_ROWS, 0), 1)
        extent = self._tiles(tall) * is_tall + self._tiles(skinny) * (1 - is_tall)
        tile = Index("tile", extent)
        rows, limit = ir.index(self.rows), ir.index(SKINNY_ROWS)
        few = ir.If(rows <= limit, self._body(tile, skinny))
        many = ir.If(rows > limit, self._body(tile, tall))
        return tile, (few, many)

    def _tiles(self, shape: RegisterTile) -> Dim:
        """How many tiles cover the result."""
        column_blocks = ceildiv(ceildiv(self.node.type.shape[-1], shape.lanes), shape.panels)
        entries = product(i.extent for i in self.entries)
        return entries * _cut(shape, self.rows).tiles * column_blocks

    def _body(self, tile: Index, shape: RegisterTile) -> tuple[Statement, ...]:
        """One tile: some panels of columns times a block of rows of one batch entry."""
        column = self.at[-1]
        blocks = _cut(shape, self.rows)
        panels = ceildiv(self.node.type.shape[-1], shape.lanes)
        column_blocks = ceildiv(panels, shape.panels)
        if self.shares_right:
            # Neighbouring tiles take the same panels, which stay in the cache, with other rows.
            group, rest = tile // blocks.tiles, tile % blocks.tiles
        else:
            group, rest = tile % column_blocks, tile // column_blocks
        number, entry = rest % blocks.tiles, rest // blocks.tiles
        first_panel = group * shape.panels
        self.tile = _Tile(shape, blocks.first_row(number), first_panel)
        body = self._rows(number, blocks)
        if isinstance(column, Index):
            last_panel = minimum(first_panel + shape.panels, panels)
            body = self._columns(column, first_panel, last_panel, shape, body)
        return substitute_indices(body, split_rows(entry, self.entries))

    def _shares_right(self, entries: Sequence[Index]) -> bool:
        """Whether all batch entries multiply by the same right operand."""
        *batch, _, column = self.at
        evaluate = Evaluator(self.loadable, {}, [], Names())
        depth = Names().index("k", self.node.inputs[0].type.shape[-1])
        value = evaluate(self.node.inputs[1], (*batch, depth, column))
        return value_atoms(value).isdisjoint(entries)

    def _columns(
        self,
        column: Index,
        first: Dim,
        last: Dim,
        shape: RegisterTile,
        body: tuple[Statement, ...],
    ) -> tuple[Statement, ...]:
        """A loop over panels around a vector loop over the columns of one.

        Column n is lane n % lanes of panel n // lanes: in these terms a packed operand's
        address is affine, so that its panels are read as they lie.
        """
        lanes, extent = shape.lanes, column.extent
        lane = Index(self.names("n"), lanes)
        if isinstance(extent, int) and extent <= lanes:
            inner = substitute_indices(body, {column: lane})
            return (ir.Loop(lane, 0, extent, inner, lanes),)
        panel = Index(self.names("p"), ceildiv(extent, lanes))
        inner = substitute_indices(body, {column: panel * lanes + lane})
        if not isinstance(extent, int):
            stop = minimum(lanes, extent - panel * lanes)
            return (ir.Loop(panel, first, last, (ir.Loop(lane, 0, stop, inner, lanes),)),)
        whole, rest = divmod(extent, lanes)
        loops = [
            ir.Loop(panel, first, minimum(last, whole), (ir.Loop(lane, 0, lanes, inner, lanes),))
        ]
        if rest:
            few = tuple(self._rest(lane, rest, inner))
            loops.append(ir.Loop(panel, maximum(first, whole), last, few))
        return tuple(loops)

    def _rest(self, lane: Index, rest: int, body: tuple[Statement, ...]) -> Iterator[Statement]:
        """The columns of a panel that is not full: as many vectors at once as are left."""
        vector = self.target.lanes(max(self.accumulator.bits, 32))
        start = 0
        for lanes in (2 * vector, vector):
            stop = start + (rest - start) // lanes * lanes
            yield ir.Loop(lane, start, stop, body, lanes)
            start = stop
        yield ir.Loop(lane, start, rest, body, vector)

    def _rows(self, tile: Dim, blocks: _Blocks) -> tuple[Statement, ...]:
        """A loop over the blocks of each height."""
        result: list[Statement] = []
        for height, first, last, row in blocks.of_tile(tile):
            block = Index(self.names("m"), self.rows // height + 1)
            body = tuple(self._block(row(block), height))
            result.append(ir.Loop(block, first, last, body))
        return tuple(result)

    def _block(self, base: Dim, height: int) -> list[Statement]:
        """`height` rows: their accumulators, the loop over k, and their stores."""
        total = Local(self.names("c"), self.accumulator, (height,))
        lane = Index(self.names("u"), height)
        here = split_rows(base + lane, self.row_loops)
        depth = self.node.inputs[0].type.shape[-1]
        loops: list[Dim] = []

        def fresh(extent: Dim) -> Dim:
            loops.append(self.names.index("k", extent))
            return loops[-1]

        inner = contraction_index(self.node, fresh)
        combine = "or" if self.accumulator == BOOL else "fma"
        statements: list[Statement] = [ir.Declare(total, start_value(combine, total.dtype))]
        step = self._unrolled(lane, height, self._step(total, lane, inner, combine), here)
        inside = [i for i in loops if isinstance(i, Index)]
        step = (*self._ahead(base, height, inner, inside), *step)
        if depth != 0:
            for loop in reversed(loops):
                if isinstance(loop, Index):
                    step = (ir.Loop(loop, 0, loop.extent, step),)
            statements += step
        statements += self._unrolled(lane, height, self._stores(total, lane), here)
        return statements

    def _ahead(self, base: Dim, height: int, inner: Dim, loops: list[Index]) -> list[Statement]:
        """Hints, one line at a time, for what the tiles after this one read first."""
        if not isinstance(self.at[-1], Index):
            return []
        return [
            *self._next_panels(self.at[-1], base, height, inner, loops),
            *self._next_rows(self.at[-1], base, height, inner, loops),
        ]

    def _next_panels(
        self, column: Index, base: Dim, height: int, inner: Dim, loops: list[Index]
    ) -> Iterator[Statement]:
        """The next panels come in while all rows pass the present ones, evenly over the steps.

        Few rows read each panel once, as fast as memory gives it: some steps ahead.
        """
        assert self.tile is not None
        lanes, panels = self.tile.shape.lanes, self.tile.shape.panels
        found = self._plain_load(self.node.inputs[1], (*self.at[:-2], inner, column))
        if found is None or not self.shares_right or not _runs(found[1], inner, lanes, loops):
            return
        if height <= SKINNY_ROWS and self.tile.shape.heights[0] <= SKINNY_ROWS:
            yield ir.Prefetch(found[0], found[1] + STEPS_AHEAD * lanes)
            return
        if isinstance(column.extent, int) and column.extent <= lanes * panels:
            return  # there are no others
        following = (column // lanes + panels) * lanes
        there = substitute(found[1], {**dict.fromkeys(loops, 0), column: following})
        depth = self.node.inputs[0].type.shape[-1]
        past = base * depth * lanes // self.rows
        pace = (lanes * height + self.rows - 1) // self.rows
        yield ir.Prefetch(found[0], there + past + inner * pace)

    def _next_rows(
        self, column: Index, base: Dim, height: int, inner: Dim, loops: list[Index]
    ) -> Iterator[Statement]:
        """The next tile's rows come in while the present ones pass the panels."""
        assert self.tile is not None
        tile, shape = self.tile, self.tile.shape
        depth = self.node.inputs[0].type.shape[-1]
        row = Index(self.names("r"), self.rows)
        where = tuple(
            substitute(i, split_rows(row, self.row_loops)) for i in (*self.at[:-1], inner)
        )
        found = self._plain_load(self.node.inputs[0], where)
        if found is None or not _runs(found[1], inner, 1, loops):
            return
        if linear_coefficient(found[1], row) != depth:
            return
        there = substitute(found[1], {**dict.fromkeys(loops, 0), row: tile.first_row + shape.rows})
        past = (column // shape.lanes - tile.first_panel) * shape.rows + base - tile.first_row
        pace = -(-height // shape.panels)
        yield ir.Prefetch(found[0], there + past * depth // shape.panels + inner * pace)

    def _plain_load(self, node: Node, where: Indices) -> tuple[Buffer, Dim] | None:
        """The buffer and the place that `node[where]` is read from, if that is all it takes."""
        evaluate = Evaluator(self.loadable, {}, [], Names())
        value = evaluate(node, where)
        while value.op == "cast":
            (value,) = value.args
        if evaluate.prelude or value.op != "load" or value.args:
            return None
        buffer, at = value.data
        return None if _is_small(buffer) else (buffer, at)

    def _unrolled(
        self, lane: Index, height: int, body: list[Statement], here: dict[Index, Dim]
    ) -> tuple[Statement, ...]:
        inner = substitute_indices(body, here)
        if height == 1:
            return substitute_indices(inner, {lane: 0})
        return (ir.Loop(lane, 0, height, inner, unroll=True),)

    def _step(self, total: Local, lane: Index, inner: Dim, combine: str) -> list[Statement]:
        *batch, row, column = self.at
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        left, right = self.node.inputs
        a = ir.cast(evaluate(left, (*batch, row, inner)), total.dtype)
        b = ir.cast(evaluate(right, (*batch, inner, column)), total.dtype)
        values = (a & b,) if combine == "or" else (a, b)
        return [*evaluate.prelude, ir.Reduce((total,), combine, values, (lane,))]

    def _stores(self, total: Local, lane: Index) -> list[Statement]:
        known = {self.node: ir.cast(ir.local(total, (lane,)), self.node.type.dtype)}
        evaluate = Evaluator(self.loadable, known, self.checks, self.names)
        stores: list[Statement] = []
        for output in self.group.outputs:
            value = evaluate(output, self.root_loops)
            where = flat_index(self.root_loops, output.type.shape)
            stores.append(ir.Store(self.buffers[output], where, value))
        return [*evaluate.prelude, *stores]
