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
from semel.ops.index_maps import Indices, contraction_index, flat_index
from semel.schedule.group import Group

#: Rows that lie a multiple of this apart compete for the same sets of the cache.
ALIASING_BYTES = 2048
CACHE_LINE_BYTES = 64
#: Up to so many rows a contraction is bound by memory, not by arithmetic.
SKINNY_ROWS = 4


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """How much of the result lives in registers, and how much one tile covers.

    `heights` are the row blocks, tallest first, and `tallest` the most rows that still
    fit if there are no more than that; `lanes` the columns of one panel; `rows`
    and `panels` what a tile of the kernel covers.
    """

    heights: tuple[int, ...]
    tallest: int
    lanes: int
    rows: int
    panels: int


def register_tile(target: Target, bits: int = 32) -> RegisterTile:
    """The tile that fills the registers without spilling, for accumulators of `bits`."""
    lanes = 2 * target.vector_bits // max(bits, 32)
    if target.vector_bits == 512:
        return RegisterTile((12, 4, 2, 1), 14, lanes, 24, 4)
    return RegisterTile((6, 2, 1), 6, lanes, 24, 8)


def _fitted(shape: RegisterTile, rows: Dim) -> RegisterTile:
    """`shape` with blocks that divide a known number of rows, if blocks no lower do.

    Images are often multiples of 7 wide: no rest is left to run in low blocks. Lower blocks
    would read every panel more often and cost more than the rest does.
    """
    if not isinstance(rows, int) or rows <= shape.tallest:
        return shape
    for height in range(shape.tallest, shape.heights[0] - 1, -1):
        if rows % height:
            continue
        blocks = shape.rows // shape.heights[0]
        return replace(shape, heights=(height,), rows=blocks * height)
    return shape


def lower_contract(group: Group, target: Target) -> Lowered:
    """The kernel of a matmul with what follows it."""
    return _Lowering(group, target).run()


def _heights(shape: RegisterTile, rows: Dim) -> tuple[int, ...]:
    """The row blocks worth having for so many rows: one block if they all fit."""
    if not isinstance(rows, int):
        return shape.heights
    if rows <= shape.tallest:
        return (max(rows, 1),)
    return tuple(h for h in shape.heights if h <= rows)


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
        self.staged: tuple[Buffer, int, Dim] | None = None

    def run(self) -> Lowered:
        rows = self.node.type.shape[-2]
        tall = _fitted(register_tile(self.target, self.accumulator.bits), rows)
        tiles = self._tiles(tall)
        if isinstance(rows, int) or (lower_bound(rows) or 0) > SKINNY_ROWS:
            tile = Index("tile", tiles)
            body = self._body(tile, tall)
        else:
            tile, body = self._by_rows(rows, tiles, tall)
        depth = self.node.inputs[0].type.shape[-1]
        is_bare = self.group.root is self.node
        kernel = finish_kernel(
            "matmul" if is_bare else f"matmul_{self.group.root.op.name}",
            list(self.buffers.values()),
            [self.staged[0]] if self.staged else [],
            tile,
            body,
            self.checks,
            flops=self.node.type.num_elements * depth * 2,
            notes=[repr(n) for n in self.group.inside],
        )
        return Lowered(kernel, tuple(self.buffers), self.group)

    def _by_rows(
        self, rows: Dim, tall_tiles: Dim, tall: RegisterTile
    ) -> tuple[Index, tuple[Statement, ...]]:
        """Two variants in one kernel, chosen by the number of rows at each run.

        A few rows are bound by reading the right operand: one panel a tile, so that all
        threads read. Both variants add in the order of k and agree bit for bit.
        """
        skinny = replace(tall, heights=tall.heights[1:], panels=1)
        is_tall = minimum(maximum(rows - SKINNY_ROWS, 0), 1)
        extent = tall_tiles * is_tall + self._tiles(skinny) * (1 - is_tall)
        tile = Index("tile", extent)
        limit = ir.index(SKINNY_ROWS)
        few = ir.If(ir.index(rows) <= limit, self._body(tile, skinny))
        many = ir.If(ir.index(rows) > limit, self._body(tile, tall))
        return tile, (few, many)

    def _tiles(self, shape: RegisterTile) -> Dim:
        """How many tiles cover the result."""
        *batch, rows, columns = self.node.type.shape
        column_blocks = ceildiv(ceildiv(columns, shape.lanes), shape.panels)
        return product(batch) * ceildiv(rows, shape.rows) * column_blocks

    def _body(self, tile: Index, shape: RegisterTile) -> tuple[Statement, ...]:
        """One tile: some panels of columns times a block of rows of one batch entry."""
        *batch, row, column = self.at
        outer = [i for i in batch if isinstance(i, Index)]
        rows, columns = self.node.type.shape[-2:]
        row_blocks = ceildiv(rows, shape.rows)
        panels = ceildiv(columns, shape.lanes)
        column_blocks = ceildiv(panels, shape.panels)
        if self._shares_right():
            # Neighbouring tiles take the same panels, which stay in the cache, with other rows.
            entries = product(i.extent for i in outer) * row_blocks
            block, rest = tile // entries, tile % entries
        else:
            block, rest = tile % column_blocks, tile // column_blocks
        first_row, entry = (rest % row_blocks) * shape.rows, rest // row_blocks
        first_panel = block * shape.panels
        last_row = minimum(first_row + shape.rows, rows)
        staging = self._stage_left(first_row, last_row, shape)
        body = self._rows(row, first_row, last_row, shape)
        if isinstance(column, Index):
            last_panel = minimum(first_panel + shape.panels, panels)
            body = self._columns(column, first_panel, last_panel, shape, body)
        return substitute_indices((*staging, *body), split_rows(entry, outer))

    def _stage_left(
        self, first_row: Dim, last_row: Dim, shape: RegisterTile
    ) -> tuple[Statement, ...]:
        """Copy the tile's rows of the left operand to scratch, if their stride is a bad one.

        Rows a multiple of a page apart fall into the same few sets of the first-level cache
        and push each other out; in scratch they lie an odd number of lines apart.
        """
        *batch, row, _ = self.at
        left = self.node.inputs[0]
        depth = left.type.shape[-1]
        self.staged = None
        if not isinstance(row, Index) or not isinstance(depth, int) or self.checks:
            return ()
        k = Index(self.names("k"), depth)
        evaluate = Evaluator(self.loadable, {}, [], self.names)
        value = evaluate(left, (*batch, row, k))
        if evaluate.prelude or value.op != "load" or value.args:
            return ()
        stride = linear_coefficient(value.data[1], row)
        size_bytes = value.dtype.size_bytes
        if not isinstance(stride, int) or stride == 0 or stride * size_bytes % ALIASING_BYTES:
            return ()
        pitch = depth + CACHE_LINE_BYTES // size_bytes
        buffer = Buffer("s0", value.dtype, shape.rows * pitch, "s")
        self.staged = (buffer, pitch, first_row)
        here = Index(self.names("r"), row.extent)
        copy = ir.Store(buffer, (here - first_row) * pitch + k, value)
        inner = substitute_indices([copy], {row: here})
        lanes = self.target.vector_bits // 32
        return (ir.Loop(here, first_row, last_row, (ir.Loop(k, 0, depth, inner, lanes),)),)

    def _shares_right(self) -> bool:
        """Whether all batch entries multiply by the same right operand."""
        *batch, _, column = self.at
        evaluate = Evaluator(self.loadable, {}, [], Names())
        depth = Names().index("k", self.node.inputs[0].type.shape[-1])
        value = evaluate(self.node.inputs[1], (*batch, depth, column))
        return value_atoms(value).isdisjoint(i for i in batch if isinstance(i, Index))

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
        whole = isinstance(extent, int) and extent % lanes == 0
        stop = lanes if whole else minimum(lanes, extent - panel * lanes)
        return (ir.Loop(panel, first, last, (ir.Loop(lane, 0, stop, inner, lanes),)),)

    def _rows(self, row: Dim, first: Dim, last: Dim, shape: RegisterTile) -> tuple[Statement, ...]:
        """Blocks of rows from `first` to `last`, tallest first."""
        if not isinstance(row, Index):
            return tuple(self._block({}, 1))
        result: list[Statement] = []
        start = first
        for height in _heights(shape, row.extent):
            count = (last - start) // height
            block = Index(self.names("m"), row.extent // height + 1)
            base = start + block * height
            body = tuple(self._block({row: base}, height))
            result.append(ir.Loop(block, 0, count, body))
            start = start + count * height
        return tuple(result)

    def _block(self, rows: dict[Index, Dim], height: int) -> list[Statement]:
        """`height` rows: their accumulators, the loop over k, and their stores."""
        total = Local(self.names("c"), self.accumulator, (height,))
        lane = Index(self.names("u"), height)
        here = {index: base + lane for index, base in rows.items()}
        depth = self.node.inputs[0].type.shape[-1]
        loops: list[Dim] = []

        def fresh(extent: Dim) -> Dim:
            loops.append(self.names.index("k", extent))
            return loops[-1]

        inner = contraction_index(self.node, fresh)
        combine = "or" if self.accumulator == BOOL else "fma"
        statements: list[Statement] = [ir.Declare(total, start_value(combine, total.dtype))]
        step = self._unrolled(lane, height, self._step(total, lane, inner, combine), here)
        if depth != 0:
            for loop in reversed(loops):
                if isinstance(loop, Index):
                    step = (ir.Loop(loop, 0, loop.extent, step),)
            statements += step
        statements += self._unrolled(lane, height, self._stores(total, lane), here)
        return statements

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
        if self.staged is not None:
            buffer, pitch, first_row = self.staged
            a = ir.cast(ir.load(buffer, (row - first_row) * pitch + inner), total.dtype)
        else:
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
