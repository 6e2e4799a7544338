"""Contractions to register-tiled loops.

    Group(kind="contract") --lower_contract--> Kernel

A tile is a block of rows times a block of columns of the result. Inside it a
vector loop walks the columns, and blocks of rows keep one accumulator per row in
registers over the whole of k; what follows the contraction (bias, activation,
residual) is computed on the accumulators before their only store. Rows that do
not fill a block run in smaller blocks, the last ones singly.

Every element adds its products in the order of k in one accumulator, whatever
block it falls into, so that all tilings agree bit for bit.

One idea: one kernel in its forms, which must add in the same order, so that they are read beside
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from semel.ir.expr import (
    Dim,
    Index,
    atoms,
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
from semel.ir.target import Target
from semel.ir.types import BOOL
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value, walk_values
from semel.kernel.rewrite import ValueMap, map_statements, substitute_indices
from semel.lower.contraction import Contraction
from semel.lower.evaluate import Evaluator, value_atoms
from semel.lower.lowered import Lowered, Names, finish_kernel, split_rows
from semel.lower.register_tiles import (
    Level,
    RegisterTile,
    RowBlocks,
    cut_columns,
    cut_panels,
    cut_rows,
    register_tile,
)
from semel.lower.stage import (
    WIDENED_ROWS,
    Site,
    StagedRows,
    WidePanel,
    reads_left,
    stage_left,
    wide_panel,
    widen_panel,
    widens,
)
from semel.lower.taps import find_taps
from semel.ops.index_maps import Indices, contraction_index
from semel.ops.narrow_weights import block_sizes, is_word
from semel.ops.state import stored_at
from semel.schedule.group import SKINNY_ROWS, Group
from semel.schedule.names import kernel_name

#: An operand smaller than this stays in the cache: fetching ahead would only cost.
SMALL_BYTES = 1 << 19
#: So many rows give every thread tiles enough, even if a tile takes all columns.
MANY_ROWS = 192
#: So many rows have blocks of nearly full height by themselves.
RUN_ROWS = 20
#: Bytes of sums that one row keeps at least: narrow panels are read side by side, as two streams.
ROW_BYTES = 128
#: Steps of k that blocks of so many rows run without a jump.
STEPS_AT_ONCE = 4
HOT_HEIGHT = 5
#: Steps of one part of a deep contraction, and rows of its tiles, whose sums wait in scratch.
PART_STEPS = 512
DEEP_ROWS = 72


@dataclass(frozen=True, slots=True)
class _Tile:
    """Where the tile that is being lowered begins."""

    shape: RegisterTile
    first_row: Dim
    first_panel: Dim
    rows: int
    is_skinny: bool


@dataclass(frozen=True, slots=True)
class _Variant:
    """The tile for so many rows, `first` to `last`; one row passes `beside` panels at once."""

    shape: RegisterTile
    first: int
    last: int | None
    beside: int = 1


@dataclass(frozen=True, slots=True)
class _Beside:
    """How many vectors of columns a block's rows pass at once, so many columns apart.

    If they are cut, lanes of the last one have no column: they store nothing.
    """

    count: int = 1
    pitch: int = 0
    is_cut: bool = False


_ALONE = _Beside()


@dataclass(frozen=True, slots=True)
class _At:
    """The element of a block that is under way: its row, and the copy of the accumulator."""

    row: Dim
    copy: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class _Steps:
    """The loops over k with their ends, and k itself."""

    loops: tuple[tuple[Index, Dim], ...]
    inner: Dim

    @property
    def indices(self) -> list[Index]:
        return [index for index, _ in self.loops]


def contract_tile(group: Group, target: Target) -> RegisterTile:
    """The tile that `lower_contract` takes unless it is given one."""
    return _Lowering(group, target).tall()


def lower_contract(group: Group, target: Target, tile: RegisterTile | None = None) -> Lowered:
    """The kernel of a matmul with what follows it, cut into `tile` or what `target` suggests."""
    return _Lowering(group, target).run(tile)


def _runs(at: Dim, inner: Dim, pitch: int, loops: list[Index]) -> bool:
    """Whether consecutive steps of the contraction read places `pitch` elements apart."""
    return all(linear_coefficient(at - inner * pitch, k) == 0 for k in loops)


def _is_small(buffer: Buffer) -> bool:
    size = upper_bound(buffer.size)
    return size is not None and size * buffer.dtype.size_bytes < SMALL_BYTES


class _Lowering(Contraction):
    def __init__(self, group: Group, target: Target) -> None:
        super().__init__(group, target)
        dtype = self.node.type.dtype
        self.accumulator = dtype.compute
        *batch, row, _ = (i if isinstance(i, Index) else None for i in self.at)
        entries = [i for i in batch if i is not None]
        own = [row] if row is not None else []
        self.shares_right = self._shares_right(entries)
        #: All batch entries that multiply by the same matrix are rows of one tall product, but for
        #: those whose results do not follow each other where rows are stored side by side.
        together = [*entries, *own] if self.shares_right else own
        apart = self._stored_apart(together)
        self.entries = together[:apart] if self.shares_right else entries
        self.row_loops = together[apart:]
        self.rows = product(i.extent for i in self.row_loops)
        self.depth = self.node.inputs[0].type.shape[-1]
        self.parts: tuple[int, ...] = ()
        #: How many of the first loop over k make a part; 0 if a part is one pass of outer loops.
        self.part_steps = 0
        self.scratch: Buffer | None = None
        self.tile: _Tile | None = None
        self.beside = _ALONE
        #: Rows of the tallest blocks; many rows have no others but those one row lower.
        self.tallest = 0
        vector = target.lanes(32)
        self.site = Site(self.node, self.at, self.loadable, self.checks, self.names, vector)
        self.staged: StagedRows | None = None
        self.wide: WidePanel | None = None
        self.taps = find_taps(self.node, self.at, self.loadable, self.row_loops)

    def run(self, given: RegisterTile | None) -> Lowered:
        tall, least = given or self.tall(), lower_bound(self.rows) or 0
        if least > SKINNY_ROWS:
            self.parts = self._deep_parts(tall)
            tall = replace(tall, rows=DEEP_ROWS) if self.parts else tall
        tile, body = self._by_rows(self._variants(tall))
        depth = self.node.inputs[0].type.shape[-1]
        kernel = finish_kernel(
            kernel_name(self.group),
            list(self.buffers.values()),
            [
                *([self.scratch] if self.scratch else []),
                *(s.buffer for s in (self.staged, self.wide) if s),
            ],
            tile,
            body,
            self.checks,
            flops=self.node.type.num_elements * depth * 2,
            notes=[repr(n) for n in self.group.inside],
        )
        return Lowered(kernel, tuple(self.buffers), self.group)

    def tall(self) -> RegisterTile:
        """The register tile; a matrix that stays in the cache is walked whole by every tile.

        Results are then written row by row, as they lie. A larger one goes panel by panel.
        """
        depth, columns = self.node.inputs[1].type.shape[-2:]
        shape = register_tile(self.target, self.accumulator.bits, columns)
        if widens(self.site, self.rows):
            shape = replace(shape, rows=WIDENED_ROWS)
        size = upper_bound(depth * columns * self.node.inputs[1].type.dtype.size_bytes)
        many = isinstance(self.rows, int) and self.rows >= MANY_ROWS
        if not many or size is None or size > self.target.l2_bytes // 4:
            return shape
        return replace(shape, panels=max(1, -(-(upper_bound(columns) or 1) // shape.lanes)))

    def _variants(self, tall: RegisterTile) -> list[_Variant]:
        """How so many rows are cut, for all numbers of rows that there may be.

        A few rows are bound by reading the right operand: one panel a tile, so that all threads
        read, or for one row some panels side by side. Where there may be many, too, low blocks are
        all that a few rows need, unless many widen their weights first. All variants add in the
        order of k and agree bit for bit.
        """
        few = replace(tall, height=min(tall.height, SKINNY_ROWS), panels=1)
        beside = self._beside(tall)
        one = replace(few, height=1, panels=beside)
        least, most = lower_bound(self.rows) or 0, upper_bound(self.rows)
        every = [_Variant(one, 0, 1, beside)] if beside > 1 else []
        first = 2 if every else 0
        if widens(self.site, self.rows) or (most is not None and most <= SKINNY_ROWS):
            every.append(_Variant(few, first, SKINNY_ROWS))
            first = SKINNY_ROWS + 1
        every.append(_Variant(tall, first, None))
        return [
            v
            for v in every
            if (v.last is None or least <= v.last) and (most is None or v.first <= most)
        ]

    def _by_rows(self, variants: Sequence[_Variant]) -> tuple[Index, tuple[Statement, ...]]:
        """The variants in one kernel, of which each run takes the one for its rows."""
        if len(variants) == 1:
            tile = Index("tile", self._tiles(variants[0].shape))
            return tile, self._body(tile, variants[0])
        extents = (self._tiles(v.shape) * self._is_within(v) for v in variants)
        tile, rows = Index("tile", sum(extents, start=0)), ir.index(self.rows)
        body: list[Statement] = []
        for variant in variants:
            inner = self._body(tile, variant)
            if variant.last is not None:
                inner = (ir.If(rows <= ir.index(variant.last), inner),)
            if variant is not variants[0]:
                inner = (ir.If(rows > ir.index(variant.first - 1), inner),)
            body += inner
        return tile, tuple(body)

    def _is_within(self, variant: _Variant) -> Dim:
        """1 if the rows are this variant's, else 0."""

        def is_above(count: int) -> Dim:
            return minimum(maximum(self.rows - count, 0), 1)

        reached = is_above(variant.first - 1) if variant.first else 1
        return reached if variant.last is None else reached - is_above(variant.last)

    def _beside(self, shape: RegisterTile) -> int:
        """How many panels a single row passes at once.

        The sums of one narrow panel wait for a line of memory after the other, and one stream is
        less than a core can read. Wide panels are lines enough.
        """
        columns = self.at[-1]
        if not isinstance(columns, Index) or not isinstance(columns.extent, int):
            return 1
        if shape.lanes.bit_count() != 1:
            return 1  # its vectors are side by side already
        return max(1, ROW_BYTES // (shape.lanes * self.accumulator.size_bytes))

    def _tiles(self, shape: RegisterTile) -> Dim:
        """How many tiles cover the result."""
        column_blocks = ceildiv(ceildiv(self.node.type.shape[-1], shape.lanes), shape.panels)
        entries = product(i.extent for i in self.entries)
        return entries * cut_rows(shape, self.rows).tiles * column_blocks

    def _body(self, tile: Index, variant: _Variant) -> tuple[Statement, ...]:
        """One tile: some panels of columns times a block of rows of one batch entry."""
        shape = variant.shape
        blocks = cut_rows(shape, self.rows, max(lower_bound(self.rows) or 0, variant.first))
        column_blocks = ceildiv(ceildiv(self.node.type.shape[-1], shape.lanes), shape.panels)
        if self.shares_right:
            # Neighbouring tiles take the same panels, which stay in the cache, with other rows.
            tiles = blocks.tiles * product(i.extent for i in self.entries)
            group, rest = tile // tiles, tile % tiles
        else:
            group, rest = tile % column_blocks, tile // column_blocks
        number, entry = rest % blocks.tiles, rest // blocks.tiles
        most = blocks.per_tile * blocks.height
        first, is_skinny = blocks.first_row(number), variant.last is not None
        self.tile = _Tile(shape, first, group * shape.panels, most, is_skinny)
        if self.parts:
            self.scratch = Buffer("s0", self.accumulator, most * shape.lanes, "s")
        staging = self._stage(number, blocks, shape)
        body = self._panels(group, number, blocks, variant)
        return substitute_indices((*staging, *body), split_rows(entry, self.entries))

    def _panels(
        self, group: Dim, number: Dim, blocks: RowBlocks, variant: _Variant
    ) -> tuple[Statement, ...]:
        """The rows of a tile times its panels: side by side where there are enough, else singly."""
        column, shape, beside = self.at[-1], variant.shape, variant.beside
        if not isinstance(column, Index):
            return self._rows(number, blocks)
        first = group * shape.panels
        last = minimum(first + shape.panels, ceildiv(column.extent, shape.lanes))
        if beside == 1:
            return self._columns(column, first, last, shape, number, blocks)
        assert isinstance(column.extent, int)
        whole, rest = divmod(column.extent, shape.lanes * beside)
        body = self._rows(number, blocks, _Beside(beside, shape.lanes))
        panel, lane = Index(self.names("p"), whole), Index(self.names("n"), shape.lanes)
        inner = substitute_indices(body, {column: panel * beside * shape.lanes + lane})
        vector = ir.Loop(lane, 0, shape.lanes, inner, shape.lanes)
        together = ir.Loop(panel, group, minimum(group + 1, whole), (vector,))
        if not rest:
            return (together,)
        first = maximum(first, whole * beside)
        alone = self._columns(column, first, last, shape, number, blocks)
        return (together, *alone) if whole else alone

    def _stage(self, number: Dim, blocks: RowBlocks, shape: RegisterTile) -> tuple[Statement, ...]:
        """What must be computed before the tile's rows can pass its panels (`lower.stage`)."""
        assert self.tile is not None
        wide = not self.tile.is_skinny and widens(self.site, self.rows, self.part_steps > 0)
        steps = self._part_depth() if self.parts else self.depth
        self.wide = wide_panel(self.site, shape.lanes, steps) if wide else None
        if self.depth == 0 or reads_left(self.site):
            return ()
        last = minimum(blocks.first_row(number + 1), self.rows)
        first, most = self.tile.first_row, self.tile.rows
        self.staged, body = stage_left(self.site, self.row_loops, most, first, last)
        return body

    def _stored_apart(self, loops: Sequence[Index]) -> int:
        """How many of these loops are left out, so that each block of rows is stored as runs.

        Images that have their channels first: a block of rows that are all of one image can be
        turned in registers before it is stored.
        """
        root = self.group.root
        at = stored_at(root, self.group.place(root, self.root_loops))
        pitch: Dim = 1
        for count in range(len(loops), 0, -1):
            if linear_coefficient(at, loops[count - 1]) != pitch:
                return count if (lower_bound(pitch) or 0) >= RUN_ROWS else 0
            pitch = pitch * loops[count - 1].extent
        return 0

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
        number: Dim,
        blocks: RowBlocks,
    ) -> tuple[Statement, ...]:
        """A loop over panels around vector loops over the columns of one.

        Column n is lane n % lanes of panel n // lanes: in these terms a packed operand's
        address is affine, so that its panels are read as they lie.
        """
        lanes, extent = shape.lanes, column.extent
        if isinstance(extent, int) and extent <= lanes:
            return tuple(self._whole_panel(column, 0, extent, shape, number, blocks))
        panel = Index(self.names("p"), ceildiv(extent, lanes))
        start = panel * lanes
        if not isinstance(extent, int):
            lane = Index(self.names("n"), lanes)
            inner = substitute_indices(self._rows(number, blocks), {column: start + lane})
            stop = minimum(lanes, extent - start)
            return (ir.Loop(panel, first, last, (ir.Loop(lane, 0, stop, inner, lanes),)),)
        loops: list[Statement] = []
        for count, begin, end in cut_panels(extent, lanes, first, last):
            body = tuple(self._whole_panel(column, start, count, shape, number, blocks))
            loops.append(ir.Loop(panel, begin, end, body))
        return tuple(loops)

    def _whole_panel(
        self,
        column: Index,
        start: Dim,
        count: int,
        shape: RegisterTile,
        number: Dim,
        blocks: RowBlocks,
    ) -> Iterator[Statement]:
        """All k of a panel's columns, which are widened in scratch first if that is to be.

        Of a deep contraction they are widened part by part, and all rows pass a part.
        """
        cut = partial(self._panel, column, start, count, shape)
        if self.wide is None:
            yield from cut(lambda beside: self._rows(number, blocks, beside))
            return
        if not self.parts:
            steps = self._steps()
            yield from widen_panel(self.site, self.wide, start, count, steps.loops, steps.inner)
            yield from cut(lambda beside: self._rows(number, blocks, beside))
            return
        part = self.names.index("q", self.parts[0])
        assert isinstance(part, Index)
        self.wide = replace(self.wide, first=part * self._part_depth())
        steps = self._steps((part,))
        widened = widen_panel(self.site, self.wide, start, count, steps.loops, steps.inner)

        def adding(base: Dim, height: int) -> list[Statement]:
            return self._part(base, height, self._steps((part,)))

        yield from cut(lambda beside: self._each_block(number, blocks, self._clear, beside))
        sums = cut(lambda beside: self._each_block(number, blocks, adding, beside))
        yield ir.Loop(part, 0, part.extent, (*widened, *sums))
        yield from cut(
            lambda beside: self._each_block(number, blocks, self._restore_results, beside)
        )

    def _panel(
        self,
        column: Index,
        start: Dim,
        count: int,
        shape: RegisterTile,
        rows: Callable[[_Beside], tuple[Statement, ...]],
    ) -> Iterator[Statement]:
        """`count` columns from `start` on, as many vectors at once as there are.

        Lanes without a column may do all but store, and load what is not there, if nothing asks.
        """
        asks = any(n.op.gathers or n.op.may_fail for n in self.group.inside)
        bits, joined = self.accumulator.bits, not asks and self.wide is None
        for span in cut_columns(self.target, bits, shape.lanes, count, joined=joined):
            lane = Index(self.names("n"), span.start + span.count)
            beside = _Beside(span.beside, span.lanes, span.is_cut)
            inner = substitute_indices(rows(beside), {column: start + lane})
            yield ir.Loop(lane, span.start, span.start + span.count, inner, span.lanes)

    def _rows(
        self, tile: Dim, blocks: RowBlocks, beside: _Beside = _ALONE
    ) -> tuple[Statement, ...]:
        """A loop over the blocks of each height; a deep contraction walks them once per part."""
        if not self.parts:
            return self._each_block(
                tile,
                blocks,
                lambda base, height: [
                    *self._sums(base, height, self._steps()),
                    *self._results(base, height),
                ],
                beside,
            )
        outer = tuple(self.names.index("q", extent) for extent in self.parts)
        first = self._each_block(tile, blocks, self._clear, beside)
        body = self._each_block(
            tile,
            blocks,
            lambda base, height: self._part(base, height, self._steps(outer), outer[0]),
            beside,
        )
        for part in reversed(outer):
            assert isinstance(part, Index)
            body = (ir.Loop(part, 0, part.extent, body),)
        return (*first, *body, *self._each_block(tile, blocks, self._restore_results, beside))

    def _each_block(
        self,
        tile: Dim,
        blocks: RowBlocks,
        make: Callable[[Dim, int], list[Statement]],
        beside: _Beside,
    ) -> tuple[Statement, ...]:
        self.beside = beside
        result: list[Statement] = []
        self.tallest = blocks.height
        for level in blocks.of_tile(tile):
            block = Index(self.names("m"), blocks.count)
            base, bound = self._first_row(blocks, level, block)
            body = make(base, level.height)
            result.append(ir.Loop(block, level.first, level.last, (*bound, *body)))
        return tuple(result)

    def _first_row(
        self, blocks: RowBlocks, level: Level, block: Index
    ) -> tuple[Dim, tuple[Statement, ...]]:
        """Where a block begins, and what binds that.

        Behind an unknown number of taller blocks it has a name of its own: a sum of as many terms
        as there are heights would stand in every address of the block.
        """
        first = block * level.height + level.offset
        if isinstance(level.offset, int):
            return first, ()
        row = Index(self.names("r"), blocks.rows - level.height + 1)
        return row, (ir.Bind(row, ir.index(first)),)

    # ------------------------------------------------------------ depth

    def _deep_parts(self, shape: RegisterTile) -> tuple[int, ...]:
        """The loops that a contraction is cut into whose panels would not stay in the cache.

        A part's panel does, and accumulators wait in scratch between parts, so that every
        element still adds in the order of k.
        """
        right_node = self.node.inputs[1]
        right, depth = right_node.type, right_node.type.shape[-2]
        if not isinstance(depth, int) or not isinstance(self.rows, int):
            return ()
        if self.accumulator == BOOL:
            return ()
        if depth * shape.lanes * right.dtype.size_bytes <= self.target.l2_bytes // 2:
            return ()
        loops: list[Dim] = []

        def note(extent: Dim) -> Dim:
            loops.append(extent)
            return Index("k", extent)

        contraction_index(self.node, note)
        if len(loops) > 1 and block_sizes(right_node, depth) is None:
            return tuple(e for e in loops[:-1] if isinstance(e, int))
        assert isinstance(loops[0], int)
        self.part_steps = max(1, PART_STEPS * loops[0] // depth)
        return (-(-loops[0] // self.part_steps),)

    def _part_depth(self) -> int:
        """How many k a part of a contraction of one walk over k has."""
        assert isinstance(self.depth, int)
        blocks = block_sizes(self.node.inputs[1], self.depth)
        within = 1 if blocks is None else product(blocks[1:])
        assert isinstance(within, int)
        return self.part_steps * within

    def _steps(self, outer: tuple[Dim, ...] = ()) -> _Steps:
        """Fresh loops over k, or over the part of it that `outer` picks."""
        loops: list[tuple[Index, Dim]] = []
        waiting = list(outer)

        def fresh(extent: Dim) -> Dim:
            if waiting and self.part_steps:
                first = waiting.pop() * self.part_steps
                index = Index(self.names("k"), self.part_steps)
                loops.append((index, minimum(self.part_steps, extent - first)))
                return first + index
            if waiting:
                return waiting.pop(0)
            step = self.names.index("k", extent)
            if isinstance(step, Index):
                loops.append((step, extent))
            return step

        inner = contraction_index(self.node, fresh)
        return _Steps(tuple(loops), inner)

    # ------------------------------------------------------------ blocks

    def _sums(self, base: Dim, height: int, steps: _Steps) -> list[Statement]:
        """`height` rows: their accumulators and the loop over k."""
        combine = "or" if self.accumulator == BOOL else "fma"
        return [self._declare(height, combine), *self._adding(base, height, steps, combine)]

    def _declare(self, height: int, combine: str = "fma") -> Statement:
        """Accumulators of a block, fresh ones."""
        copies = (height, self.beside.count) if self.beside.count > 1 else (height,)
        self.total = Local(self.names("c"), self.accumulator, copies)
        return ir.Declare(self.total, ir.start_value(combine, self.accumulator))

    def _adding(self, base: Dim, height: int, steps: _Steps, combine: str) -> tuple[Statement, ...]:
        if self.depth == 0:
            return ()
        body = self._unrolled(base, height, lambda at: self._step(self.total, at, steps, combine))
        hints = self._ahead(base, height, steps)
        is_hot = self.target.vector_bits == 512 and height >= max(HOT_HEIGHT, self.tallest - 1)
        loops = list(steps.loops)
        has_words = block_sizes(self.node.inputs[1], self.depth) is not None
        if has_words and self.wide is None and len(loops) > 1 and is_word(loops[-1][1]):
            # The numbers of a word: it is read once for all of them.
            index, count = loops.pop()
            hints = list(substitute_indices(hints, {index: 0}))
            body = (ir.Loop(index, 0, count, body, unroll=True),)
        needed: tuple[Dim, Dim] = (0, 0)
        if self.taps is not None and not self.parts:
            needed = self.taps.needed(base, height)
        for index, extent in reversed(loops):
            is_tap = needed != (0, 0) and index is loops[0][0]
            start, stop = needed if is_tap else (0, extent)
            body = (
                self._stepped(index, stop, hints, body)
                if is_hot and not is_tap
                else (ir.Loop(index, start, stop, (*hints, *body)),)
            )
            hints, is_hot = [], False
        return (*hints, *body)

    def _stepped(
        self,
        index: Index,
        stop: Dim,
        hints: Sequence[Statement],
        body: tuple[Statement, ...],
    ) -> tuple[Statement, ...]:
        """The loop over k, several steps at a time.

        A core that another thread shares has no slots to spare for counting. Where registers
        are tight the compiler would load the next step's operands early, and spill.
        """
        if isinstance(stop, int) and stop < 2 * STEPS_AT_ONCE:
            return (ir.Loop(index, 0, stop, (*hints, *body)),)
        count = stop // STEPS_AT_ONCE
        several = Index(self.names("k"), count)
        one = Index(self.names("o"), STEPS_AT_ONCE)
        inner = substitute_indices(body, {index: several * STEPS_AT_ONCE + one})
        unrolled = ir.Loop(one, 0, STEPS_AT_ONCE, inner, unroll=True)
        first = substitute_indices(hints, {index: several * STEPS_AT_ONCE})
        loops: list[Statement] = [ir.Loop(several, 0, count, (*first, unrolled))]
        if not isinstance(stop, int) or stop % STEPS_AT_ONCE:
            loops.append(ir.Loop(index, count * STEPS_AT_ONCE, stop, body))
        return tuple(loops)

    def _results(self, base: Dim, height: int) -> tuple[Statement, ...]:
        return self._stored(base, height, lambda at: ir.local(self.total, at.copy))

    def _stored(
        self, base: Dim, height: int, total: Callable[[_At], Value]
    ) -> tuple[Statement, ...]:
        """What follows the contraction, from sums on: rows that are stored side by side are a
        block, which can be turned in registers."""
        return self._unrolled(base, height, lambda at: self.stores(total(at)), by_columns=True)

    def _waiting(self, at: _At) -> tuple[Buffer, Dim]:
        """Where the sum of a row and a column waits for the next part."""
        assert self.tile is not None and self.scratch is not None
        lanes = self.tile.shape.lanes
        return self.scratch, (at.row - self.tile.first_row) * lanes + self.at[-1] % lanes

    def _clear(self, base: Dim, height: int) -> list[Statement]:
        zero = ir.start_value("fma", self.accumulator)
        return [*self._unrolled(base, height, lambda at: [ir.Store(*self._waiting(at), zero)])]

    def _part(self, base: Dim, height: int, steps: _Steps, tap: Dim = 0) -> list[Statement]:
        """Add one part of k, which may be a tap, to the sums that wait in scratch."""
        declare, total = self._declare(height), self.total

        def take(at: _At) -> list[Statement]:
            return [ir.Assign(total, ir.load(*self._waiting(at)), at.copy)]

        def keep(at: _At) -> list[Statement]:
            return [ir.Store(*self._waiting(at), ir.local(total, at.copy))]

        added: list[Statement] = [
            declare,
            *self._unrolled(base, height, take),
            *self._adding(base, height, steps, "fma"),
            *self._unrolled(base, height, keep),
        ]
        if self.taps is None or self.part_steps:
            return added
        begin, end = self.taps.needed(base, height)
        once = Index(self.names("t"), self.taps.count)
        return [ir.Loop(once, maximum(begin, tap), minimum(end, tap + 1), tuple(added))]

    def _restore_results(self, base: Dim, height: int) -> list[Statement]:
        return [*self._stored(base, height, lambda at: ir.load(*self._waiting(at)))]

    def _ahead(self, base: Dim, height: int, steps: _Steps) -> list[Statement]:
        """Hints, one line at a time, for what the tiles after this one read first."""
        assert self.tile is not None
        # A few rows read every panel once, in order: the hardware is faster without hints.
        many = isinstance(self.rows, int) or height >= min(self.tallest - 1, SKINNY_ROWS + 1)
        if not isinstance(self.at[-1], Index) or self.tile.is_skinny or not many:
            return []
        if self.parts:
            return list(self._next_part(self.at[-1], base, height, steps))
        return [
            *self._next_panels(self.at[-1], base, height, steps),
            *self._next_rows(self.at[-1], base, height, steps),
        ]

    def _next_part(
        self, column: Index, base: Dim, height: int, steps: _Steps
    ) -> Iterator[Statement]:
        """The part of the panel that follows comes in while all rows pass this one."""
        assert self.tile is not None
        lanes, loops = self.tile.shape.lanes, steps.indices
        found = self._plain_load(self.node.inputs[1], (*self.at[:-2], steps.inner, column))
        if found is None or not _runs(found[1], steps.inner, lanes, loops):
            return
        length = product(i.extent for i in loops)
        rows = self.tile.rows
        start = substitute(found[1], {**dict.fromkeys(loops, 0), column: column // lanes * lanes})
        past = (base - self.tile.first_row + rows) * length * lanes // rows
        step = steps.inner - substitute(steps.inner, dict.fromkeys(loops, 0))
        yield ir.Prefetch(found[0], start + past + step * -(-lanes * height // rows))

    def _next_panels(
        self, column: Index, base: Dim, height: int, steps: _Steps
    ) -> Iterator[Statement]:
        """The next panels come in while all rows pass the present ones, evenly over the steps."""
        assert self.tile is not None
        lanes, panels = self.tile.shape.lanes, self.tile.shape.panels
        inner, loops = steps.inner, steps.indices
        found = self._plain_load(self.node.inputs[1], (*self.at[:-2], inner, column))
        if found is None or not self.shares_right or not _runs(found[1], inner, lanes, loops):
            return
        if isinstance(column.extent, int) and column.extent <= lanes * panels:
            return  # there are no others
        following = (column // lanes + panels) * lanes
        there = substitute(found[1], {**dict.fromkeys(loops, 0), column: following})
        past = base * self.depth * lanes // self.rows
        pace = (lanes * height + self.rows - 1) // self.rows
        yield ir.Prefetch(found[0], there + past + inner * pace)

    def _next_rows(
        self, column: Index, base: Dim, height: int, steps: _Steps
    ) -> Iterator[Statement]:
        """The next tile's rows come in while the present ones pass the panels."""
        assert self.tile is not None
        tile, shape = self.tile, self.tile.shape
        inner, loops, depth = steps.inner, steps.indices, self.depth
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
        # Narrow weights are widened as they are read: of several, those that k walks along.
        inner = atoms(where[-2] if node is self.node.inputs[1] else where[-1])
        loads = [
            v for v in walk_values([value]) if v.op == "load" and atoms(v.data[1]).issuperset(inner)
        ]
        if evaluate.prelude or len(loads) != 1 or loads[0].args:
            return None
        buffer, at = loads[0].data
        return None if _is_small(buffer) else (buffer, at)

    def _unrolled(
        self,
        base: Dim,
        height: int,
        make: Callable[[_At], list[Statement]],
        *,
        by_columns: bool = False,
    ) -> tuple[Statement, ...]:
        """What `make` says of an element, for all rows of a block and all columns side by side.

        Row by row, or all rows `by_columns`.
        """
        lane, count = Index(self.names("u"), height), self.beside.count
        column = Index(self.names("u"), count) if count > 1 else None
        at = _At(base + lane, (lane,) if column is None else (lane, column))
        moved = split_rows(at.row, self.row_loops)
        if column is not None:
            assert isinstance(self.at[-1], Index)
            moved = {**moved, self.at[-1]: self.at[-1] + column * self.beside.pitch}
        body = substitute_indices(make(at), moved)

        def of_rows(body: Sequence[Statement]) -> tuple[Statement, ...]:
            if height == 1:
                return substitute_indices(body, {lane: 0})
            return (ir.Loop(lane, 0, height, tuple(body), unroll=True),)

        if column is None:
            return of_rows(body)
        cut = self._of_columns(body, column, count - 1) if self.beside.is_cut else ()
        whole = count - bool(cut)
        if by_columns:
            return (
                ir.Loop(column, 0, whole, of_rows(body), unroll=True),
                *(of_rows(cut) if cut else ()),
            )
        return of_rows((ir.Loop(column, 0, whole, body, unroll=True), *cut))

    def _of_columns(
        self, body: Sequence[Statement], copy: Index, last: int
    ) -> tuple[Statement, ...]:
        """The last copy of what is done for columns: where there is none, nothing is stored, nor
        loaded that does not surely exist, as the padding of a packed panel does."""
        column = self.at[-1]
        assert isinstance(column, Index) and self.tile is not None
        pitch, lanes = self.beside.pitch, self.tile.shape.lanes
        is_there = ir.index(column + last * pitch) < ir.index(column.extent)
        panel, lane = Index("p", ceildiv(column.extent, lanes)), Index("n", pitch)

        def leaf(value: Value) -> Value:
            if value.op != "load" or value.args or column not in atoms(value.data[1]):
                return value
            buffer, at = value.data
            place = substitute(at, {column: panel * lanes + lane})
            least = [lower_bound(d) for d in (place, buffer.size - 1 - place)]
            if all(n is not None and n >= 0 for n in least):
                return value
            return ir.load(buffer, at, is_there, ir.const(value.dtype, 0))

        def guarded(s: Statement) -> Statement:
            if not isinstance(s, ir.Store) or s.buffer.access == "s":
                return s
            return replace(s, guard=is_there if s.guard is None else s.guard & is_there)

        own = map_statements(substitute_indices(body, {copy: last}), ValueMap(leaf))
        return tuple(guarded(s) for s in own)

    def _step(self, total: Local, at: _At, steps: _Steps, combine: str) -> list[Statement]:
        *batch, row, column = self.at
        inner = steps.inner
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        left, right = self.node.inputs
        staged, wide = self.staged, self.wide
        a = staged.load(at.row, inner) if staged else evaluate(left, (*batch, row, inner))
        b = wide.load(inner, column) if wide else evaluate(right, (*batch, inner, column))
        a, b = ir.cast(a, total.dtype), ir.cast(b, total.dtype)
        values = (a & b,) if combine == "or" else (a, b)
        return [*evaluate.prelude, ir.Reduce((total,), combine, values, at.copy)]
