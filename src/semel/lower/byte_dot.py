"""Contractions of bytes to loops of dot products.

    Group(contract="matmul_words") --lower_words--> Kernel

A tile is a block of rows times some panels of columns. Its rows of the left operand are
first written to scratch, byte by byte, with whatever stands in front of them (a change of
sign, quantisation), and with zeros up to a whole word; from there a row is read four k at
a time, as one word for all columns. Accumulators of 32 bits stay in registers over all of k
and what follows (scales, bias, requantisation) is computed on them before the only store.

Integer sums may be taken in any order: low blocks add neighbouring words to accumulators
of their own, so that one does not wait for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
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
)
from semel.ir.target import Target
from semel.ir.types import INT16, INT32
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.contraction import Contraction
from semel.lower.evaluate import Evaluator, value_atoms
from semel.lower.lowered import Lowered, Names, finish_kernel, split_rows
from semel.lower.register_tiles import cut_panels
from semel.lower.stage import stage_rows
from semel.ops.index_maps import contraction_index
from semel.schedule.group import SKINNY_ROWS, Group
from semel.schedule.names import kernel_name

#: Sides of a block of sums in tile registers, the rows of a kernel's tile of such blocks, and
#: how many words of k one step takes.
BLOCK = 32
TILE_ROWS = 32
BLOCK_WORDS = 16
#: Rows of scratch lie an odd number of cache lines apart, so that none push each other out.
_LINE_BYTES = 64
#: Accumulators per row of low blocks, so that about eight chains are under way.
_CHAINS = {1: 4, 2: 2}


@dataclass(frozen=True, slots=True)
class WordTile:
    """Row blocks that fit the registers, tallest first, and what one tile covers."""

    heights: tuple[int, ...]
    lanes: int
    rows: int
    panels: int


def word_tile(target: Target) -> WordTile:
    """The tile for the target's registers; halves of words take registers of their own."""
    lanes = target.word_lanes
    if target.vector_bits == 512:
        return WordTile((12, 4, 2, 1), lanes, 48, 4)
    heights = (4, 2, 1) if target.byte_dot == "pairs" else (6, 2, 1)
    return WordTile(heights, lanes, 24, 8)


def lower_words(group: Group, target: Target) -> Lowered:
    """The kernel of a matmul_words with what stands in front of it and follows it."""
    return _Lowering(group, target).run()


class _Lowering(Contraction):
    def __init__(self, group: Group, target: Target) -> None:
        super().__init__(group, target)
        self.depth = self.node.inputs[0].type.shape[-1]
        self.words = self.node.inputs[1].type.shape[-2]
        *batch, row, _ = (i if isinstance(i, Index) else None for i in self.at)
        entries = [i for i in batch if i is not None]
        own = [row] if row is not None else []
        #: All batch entries that multiply by the same matrix are rows of one tall product.
        self.shares_right = self._shares_right(entries)
        self.entries = [] if self.shares_right else entries
        self.row_loops = [*entries, *own] if self.shares_right else own
        self.rows = product(i.extent for i in self.row_loops)
        self.tiled = self._tile_operand() if target.has_byte_tiles else None
        self.pitch = ceildiv(self.depth, 2 * _LINE_BYTES) * 2 * _LINE_BYTES + _LINE_BYTES
        left = self.node.inputs[0].type.dtype
        rows = TILE_ROWS if self.tiled else word_tile(target).rows
        #: Without an instruction for bytes, rows are widened to 16 bits once for all columns.
        self.is_small = self.node.op.name == "matmul_small_words"
        self.is_wide = target.byte_dot == "pairs" and not self.is_small
        #: Rows that lie in memory as the instruction takes them are read there.
        self.reads_rows = self.tiled is None and not self.is_wide and self._lies_in_words()
        self.staged = Buffer("s0", INT16 if self.is_wide else left, rows * self.pitch, "s")
        self.sums = Buffer("s1", INT32, BLOCK * BLOCK, "s")

    def run(self) -> Lowered:
        rows, tall = self.rows, word_tile(self.target)
        if self.tiled is not None:
            tall = replace(tall, rows=TILE_ROWS, panels=16)
        if isinstance(rows, int) or (lower_bound(rows) or 0) > SKINNY_ROWS:
            shape = tall if not isinstance(rows, int) or rows > SKINNY_ROWS else _skinny(tall)
            tile = Index("tile", self._tiles(shape))
            body = self._body(tile, shape)
        else:
            tile, body = self._by_rows(rows, tall)
        kernel = finish_kernel(
            kernel_name(self.group),
            list(self.buffers.values()),
            self._scratch(),
            tile,
            body,
            self.checks,
            flops=self.node.type.num_elements * self.depth * 2,
            notes=[repr(n) for n in self.group.inside],
        )
        return Lowered(kernel, tuple(self.buffers), self.group)

    def _scratch(self) -> list[Buffer]:
        if self.tiled is not None:
            return [self.staged, self.sums]
        return [] if self.reads_rows else [self.staged]

    def _lies_in_words(self) -> bool:
        """Whether the left operand is in memory, and whole words of it side by side."""
        if not isinstance(self.depth, int) or self.depth % 4 or self.words * 4 != self.depth:
            return False
        loops: list[Dim] = []

        def fresh(extent: Dim) -> Dim:
            loops.append(Index("k", extent))
            return loops[-1]

        inner = contraction_index(self.node, fresh)
        evaluate = Evaluator(self.loadable, {}, [], Names())
        value = evaluate(self.node.inputs[0], (*self.at[:-1], inner))
        if evaluate.prelude or value.op != "load" or value.args or len(loops) != 1:
            return False
        (k,) = loops
        return isinstance(k, Index) and linear_coefficient(value.data[1], k) == 1

    def _by_rows(self, rows: Dim, tall: WordTile) -> tuple[Index, tuple[Statement, ...]]:
        """Two variants in one kernel: a few rows are bound by reading the right operand."""
        skinny = _skinny(tall)
        is_tall = minimum(maximum(rows - SKINNY_ROWS, 0), 1)
        extent = self._tiles(tall) * is_tall + self._tiles(skinny) * (1 - is_tall)
        tile = Index("tile", extent)
        limit = ir.index(SKINNY_ROWS)
        few = ir.If(ir.index(rows) <= limit, self._body(tile, skinny))
        many = ir.If(ir.index(rows) > limit, self._body(tile, tall))
        return tile, (few, many)

    # ------------------------------------------------------------ tiles

    def _tiles(self, shape: WordTile) -> Dim:
        column_blocks = ceildiv(ceildiv(self.node.type.shape[-1], shape.lanes), shape.panels)
        entries = product(i.extent for i in self.entries)
        return entries * ceildiv(self.rows, shape.rows) * column_blocks

    def _body(self, tile: Index, shape: WordTile) -> tuple[Statement, ...]:
        column = self.at[-1]
        row_blocks = ceildiv(self.rows, shape.rows)
        panels = ceildiv(self.node.type.shape[-1], shape.lanes)
        if self.shares_right:
            # Neighbouring tiles take the same panels, which stay in the cache, with other rows.
            block, rest = tile // row_blocks, tile % row_blocks
        else:
            column_blocks = ceildiv(panels, shape.panels)
            block, rest = tile % column_blocks, tile // column_blocks
        first_row, entry = (rest % row_blocks) * shape.rows, rest // row_blocks
        last_row = minimum(first_row + shape.rows, self.rows)
        staging = self._stage(first_row, last_row)
        if self.tiled is not None and shape.rows == TILE_ROWS:
            panel = Index(self.names("p"), panels)
            body = self._blocks(panel, first_row, last_row)
            first_panel = block * shape.panels
            last_panel = minimum(first_panel + shape.panels, panels)
            body = (ir.Loop(panel, first_panel, last_panel, body),)
            return substitute_indices((*staging, *body), split_rows(entry, self.entries))
        body = self._rows(first_row, last_row, shape)
        if isinstance(column, Index):
            first_panel = block * shape.panels
            last_panel = minimum(first_panel + shape.panels, panels)
            body = self._columns(column, first_panel, last_panel, shape, body)
        return substitute_indices((*staging, *body), split_rows(entry, self.entries))

    def _shares_right(self, entries: Sequence[Index]) -> bool:
        """Whether all batch entries multiply by the same right operand."""
        *batch, _, column = self.at
        evaluate = Evaluator(self.loadable, {}, [], Names())
        word = Names().index("g", self.words)
        value = evaluate(self.node.inputs[1], (*batch, word, column))
        return value_atoms(value).isdisjoint(entries)

    def _columns(
        self, column: Index, first: Dim, last: Dim, shape: WordTile, body: tuple[Statement, ...]
    ) -> tuple[Statement, ...]:
        """Panels of columns; column n is lane n % lanes of panel n // lanes, as it is packed."""
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
        return tuple(
            ir.Loop(panel, begin, end, (ir.Loop(lane, 0, count, inner, lanes),))
            for count, begin, end in cut_panels(extent, lanes, first, last)
        )

    # ------------------------------------------------------------ the left operand

    def _stage(self, first_row: Dim, last_row: Dim) -> tuple[Statement, ...]:
        """The tile's rows of the left operand in scratch, with zeros up to a whole word."""
        *batch, row, _ = self.at
        if self.depth == 0 or self.reads_rows:
            return ()
        loops: list[Dim] = []

        def fresh(extent: Dim) -> Dim:
            loops.append(self.names.index("k", extent))
            return loops[-1]

        inner = contraction_index(self.node, fresh)
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        value = evaluate(self.node.inputs[0], (*batch, row, inner))
        here = Index(self.names("r"), self.rows) if self.row_loops else 0
        start = (here - first_row) * self.pitch
        value = ir.cast(value, self.staged.dtype)
        lanes = self.target.vector_bits // 32
        rows = stage_rows(self.staged, start + inner, value, evaluate.prelude, loops, lanes)
        body = (*rows, *self._padding(start))
        if not isinstance(here, Index):
            return body
        each = substitute_indices(body, split_rows(here, self.row_loops))
        return (ir.Loop(here, first_row, last_row, each),)

    def _padding(self, start: Dim) -> tuple[Statement, ...]:
        missing = self.words * 4 - self.depth
        if missing == 0:
            return ()
        zero = ir.const(self.staged.dtype, 0)
        more = Index(self.names("z"), 4 * BLOCK)
        store = ir.Store(self.staged, start + self.depth + more, zero)
        return (ir.Loop(more, 0, missing, (store,), self.target.vector_bits // 32),)

    # ------------------------------------------------------------ blocks in tile registers

    def _tile_operand(self) -> tuple[Buffer, Dim, Dim, Index, Index] | None:
        """Where tile registers find the right operand: buffer, address, pitch, panel, column.

        None unless whole runs of words and whole panels of columns are there to be read.
        """
        *batch, _, column = self.at
        lanes = word_tile(self.target).lanes
        word, panel = Index("w", self.words), Index("p", ceildiv(self.node.type.shape[-1], lanes))
        evaluate = Evaluator(self.loadable, {}, [], Names())
        lane = Index("n", lanes)
        there = panel * lanes + lane if isinstance(column, Index) else 0
        value = evaluate(self.node.inputs[1], (*batch, word, there))
        if evaluate.prelude or value.op != "load" or value.args or self.words % BLOCK_WORDS != 0:
            return None
        buffer, at = value.data
        pitch, step = linear_coefficient(at, word), linear_coefficient(at, lane)
        if pitch is None or pitch % lanes != 0 or step not in (0, 1):
            return None
        return buffer, substitute(at, {word: 0, lane: 0}), pitch, panel, lane

    def _blocks(self, panel: Index, first: Dim, last: Dim) -> tuple[Statement, ...]:
        """Rows 32 at a time, the rest 16 at a time, of one panel."""
        if not self.row_loops:
            return self._tile_block(panel, 0, 0, 16, 1)
        whole = (last - first) // BLOCK
        low = first + whole * BLOCK
        result: list[Statement] = []
        for height, start, count in (
            (BLOCK, first, whole),
            (16, low, ceildiv(last - low, 16)),
        ):
            block = Index(self.names("m"), self.rows // height + 1)
            base = start + block * height
            live = height if height == BLOCK else minimum(height, last - base)
            body = self._tile_block(panel, base, base - first, height, live)
            result.append(ir.Loop(block, 0, count, body))
        return tuple(result)

    def _tile_block(
        self, panel: Index, base: Dim, place: Dim, height: int, live: Dim
    ) -> tuple[Statement, ...]:
        """`height` rows from `base` on, whose bytes start at row `place` of the scratch."""
        assert self.tiled is not None
        buffer, at, pitch, asked, _ = self.tiled
        column = self.at[-1]
        lanes = word_tile(self.target).lanes
        dots = ir.BlockDot(
            ir.Block(self.sums, 0, BLOCK),
            ir.Block(self.staged, place * self.pitch, self.pitch),
            ir.Block(buffer, substitute(at, {asked: panel}), pitch),
            self.words,
            height,
            lanes,
            live,
        )
        here = Index(self.names("r"), height)
        lane = Index(self.names("n"), lanes)
        value = ir.load(self.sums, here * BLOCK + lane)
        to = split_rows(base + here, self.row_loops)
        stop: Dim = 1
        if isinstance(column, Index):
            to[column] = panel * lanes + lane
            stop = minimum(lanes, column.extent - panel * lanes)
            if isinstance(column.extent, int) and column.extent % lanes == 0:
                stop = lanes
        stores = substitute_indices(self.stores(value), to)
        if isinstance(column, Index):
            stores = (ir.Loop(lane, 0, stop, stores, lanes),)
        else:
            stores = substitute_indices(stores, {lane: 0})
        return (dots, ir.Loop(here, 0, live, stores))

    # ------------------------------------------------------------ blocks

    def _rows(self, first: Dim, last: Dim, shape: WordTile) -> tuple[Statement, ...]:
        if not self.row_loops:
            return tuple(self._block(0, 0, 1))
        result: list[Statement] = []
        start = first
        for height in _heights(shape, self.rows):
            count = (last - start) // height
            block = Index(self.names("m"), self.rows // height + 1)
            base = start + block * height
            body = tuple(self._block(base, base - first, height))
            result.append(ir.Loop(block, 0, count, body))
            start = start + count * height
        return tuple(result)

    def _block(self, base: Dim, place: Dim, height: int) -> list[Statement]:
        """`height` rows from `base` on, `place` in scratch: accumulators, words, stores."""
        chains = _CHAINS.get(height, 1)
        total = Local(self.names("c"), INT32, (height, chains))
        lane = Index(self.names("u"), height)
        here = split_rows(base + lane, self.row_loops)
        statements: list[Statement] = [ir.Declare(total, ir.const(INT32, 0))]
        whole = self.words // chains
        if self.depth != 0:
            group = Index(self.names("g"), whole)
            chain = Index(self.names("v"), chains)
            step = self._step(total, lane, chain, place, group * chains + chain)
            inner = self._unrolled(lane, height, step, here)
            statements.append(ir.Loop(group, 0, whole, self._unrolled(chain, chains, inner, {})))
        if self.words != whole * chains:
            rest = Index(self.names("g"), chains)
            step = self._step(total, lane, 0, place, whole * chains + rest)
            inner = self._unrolled(lane, height, step, here)
            statements.append(ir.Loop(rest, 0, self.words - whole * chains, inner))
        statements += self._unrolled(lane, height, self._stores(total, lane, chains), here)
        return statements

    def _unrolled(
        self, lane: Index, height: int, body: object, here: dict[Index, Dim]
    ) -> tuple[Statement, ...]:
        inner = substitute_indices(body, here)  # type: ignore[arg-type]
        if height == 1:
            return substitute_indices(inner, {lane: 0})
        return (ir.Loop(lane, 0, height, inner, unroll=True),)

    def _step(
        self, total: Local, lane: Index, chain: Dim, place: Dim, word: Dim
    ) -> list[Statement]:
        *batch, _, column = self.at
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        at = (place + lane) * self.pitch + 4 * word
        right = evaluate(self.node.inputs[1], (*batch, word, column))
        if self.is_wide:
            left = (ir.word(self.staged, at), ir.word(self.staged, at + 2))
            add = ir.Reduce((total,), "pairs", (*left, right), (lane, chain))
        else:
            combine = "small_dot" if self.is_small else "dot"
            word_of_row = self._word(word) if self.reads_rows else ir.word(self.staged, at)
            add = ir.Reduce((total,), combine, (word_of_row, right), (lane, chain))
        return [*evaluate.prelude, add]

    def _word(self, word: Dim) -> Value:
        """Four k of the left operand, where they lie."""
        evaluate = Evaluator(self.loadable, {}, [], Names())
        buffer, at = evaluate(self.node.inputs[0], (*self.at[:-1], 4 * word)).data
        return ir.word(buffer, at)

    def _stores(self, total: Local, lane: Index, chains: int) -> list[Statement]:
        value: Value = ir.local(total, (lane, 0))
        for chain in range(1, chains):
            value = value + ir.local(total, (lane, chain))
        return self.stores(value)


def _skinny(tall: WordTile) -> WordTile:
    return replace(tall, heights=(4, 2, 1), panels=2, rows=4)


def _heights(shape: WordTile, rows: Dim) -> tuple[int, ...]:
    if not isinstance(rows, int):
        return shape.heights
    return tuple(h for h in shape.heights if h <= rows)
