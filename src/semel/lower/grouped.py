"""Grouped matmul: rows gathered by group, times the group's matrix, stored where they belong.

    Group(contract="grouped_matmul") --lower_grouped--> Kernel
    Group(opaque "group_rows") --list_rows--> the lines that it reads

A tile is one line of `group_rows`, that is some rows of one group, and some panels of
columns. It copies its rows of x into scratch, keeps blocks of them in registers over
the whole of k as `contract` does, computes what follows on the accumulators, and stores
every row at its own place. Lines past the last one in use have no rows and cost nothing;
matrices of groups without rows are never read.

Rows are rounded up to whole blocks: the lines repeat their last row there, which computes
and stores the same bits again. Every element adds its products in the order of k in one
accumulator, so that it has the bits of an ordinary matmul with its group's matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from semel.ir.expr import Dim, Index, ceildiv, linear_coefficient, maximum, minimum, substitute
from semel.ir.graph import Node
from semel.ir.target import CACHE_LINE_BYTES, Target
from semel.ir.types import BOOL, INT64
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.contraction import Contraction
from semel.lower.evaluate import Evaluator
from semel.lower.lowered import Lowered, Names, finish_kernel
from semel.lower.register_tiles import cut_columns, cut_panels, register_tile
from semel.ops.grouped import HEADER, depth_index
from semel.ops.narrow_weights import is_word
from semel.schedule.group import Group
from semel.schedule.names import kernel_name

#: Columns of a tile: copying the rows once must pay for so many.
TILE_COLUMNS = 256


def lower_grouped(group: Group, target: Target) -> Lowered:
    """The kernel of a grouped matmul with what follows it."""
    return _Lowering(group, target).run()


@dataclass(frozen=True, slots=True)
class _Part:
    """What a tile covers: a line, whose group is `here` (`after`: the next line's), and panels.

    `count` are its rows, rounded up to whole blocks.
    """

    line: Dim
    here: Index
    after: Index
    count: Dim
    first: Dim
    last: Dim


class _Lowering(Contraction):
    def __init__(self, group: Group, target: Target) -> None:
        super().__init__(group, target)
        self.row, self.column = self.at
        self.x, self.w, lines = self.node.inputs
        self.lines = self.buffers[lines]
        self.num_lines, width = lines.type.shape
        assert isinstance(width, int), "group_rows has lines of a fixed length"
        self.width, self.block = width, width - HEADER
        self.depth = self.x.type.shape[1]
        self.dtype = self.node.type.dtype.compute
        shape = register_tile(target, self.dtype.bits, self.node.type.shape[1])
        self.lanes, self.panels = shape.lanes, max(1, TILE_COLUMNS // shape.lanes)
        unit = max(shape.height // 3, 1)
        self.heights = (3 * unit, 2 * unit, unit)
        pitch = self.depth + CACHE_LINE_BYTES // self.dtype.size_bytes
        self.pitch: Dim = pitch
        #: Vectors of columns that rows pass at once, and how many columns they are apart.
        self.beside, self.distance = 1, 0
        self.rows = Buffer("s0", self.dtype, self._rounded(self.block) * pitch, "s")

    def _rounded(self, count: Dim) -> Dim:
        unit = self.heights[-1]
        return ceildiv(count, unit) * unit

    # ------------------------------------------------------------ the kernel

    def run(self) -> Lowered:
        columns = self.node.type.shape[1]
        panels = ceildiv(columns, self.lanes)
        tile = Index("tile", self.num_lines * ceildiv(panels, self.panels))
        # Neighbouring tiles take the same panels; lines of one group are neighbours.
        line, first = tile % self.num_lines, (tile // self.num_lines) * self.panels
        last = minimum(first + self.panels, panels)
        following = minimum(line + 1, self.num_lines - 1)
        groups = self.w.type.shape[0]
        here, after = Index(self.names("g"), groups), Index(self.names("g"), groups)
        count = Index(self.names("g"), self.block + 1)
        part = _Part(line, here, after, self._rounded(count), first, last)
        body: list[Statement] = [
            ir.Bind(here, ir.load(self.lines, line * self.width)),
            ir.Bind(after, ir.load(self.lines, following * self.width)),
            ir.Bind(count, ir.load(self.lines, line * self.width + 1)),
            self._gather(part),
            *self._columns(part),
        ]
        kernel = finish_kernel(
            kernel_name(self.group),
            list(self.buffers.values()),
            [self.rows],
            tile,
            body,
            self.checks,
            flops=self.node.type.num_elements * self.depth * 2,
            notes=[repr(n) for n in self.group.inside],
        )
        return Lowered(kernel, tuple(self.buffers), self.group)

    def _position(self, line: Dim, slot: Dim) -> tuple[Index, Statement]:
        """The row of the result that stands at `slot` of a line."""
        row = Index(self.names("g"), self.node.type.shape[0])
        return row, ir.Bind(row, ir.load(self.lines, line * self.width + HEADER + slot))

    def _gather(self, part: _Part) -> Statement:
        """Copy the line's rows of x to scratch, in the dtype of the accumulators."""
        slot = Index(self.names("r"), self._rounded(self.block))
        row, bind = self._position(part.line, slot)
        k = self.names.index("k", self.depth)
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        value = ir.cast(evaluate(self.x, (row // self.node.attrs.repeat, k)), self.dtype)
        copy: tuple[Statement, ...] = (
            *evaluate.prelude,
            ir.Store(self.rows, slot * self.pitch + k, value),
        )
        if isinstance(k, Index):
            copy = (ir.Loop(k, 0, self.depth, copy, self.target.vector_bits // 32),)
        return ir.Loop(slot, 0, part.count, (bind, *copy))

    def _columns(self, part: _Part) -> list[Statement]:
        """A loop over panels around a vector loop over the columns of one."""
        column = self.column
        if not isinstance(column, Index):
            return self._rows(part)
        extent, lanes = column.extent, self.lanes
        panel = Index(self.names("p"), ceildiv(extent, lanes))
        start = panel * lanes
        if not isinstance(extent, int):
            lane = Index(self.names("n"), lanes)
            inner = substitute_indices(self._rows(part), {column: start + lane})
            stop = minimum(lanes, extent - start)
            return [ir.Loop(panel, part.first, part.last, (ir.Loop(lane, 0, stop, inner, lanes),))]
        return [
            ir.Loop(panel, first, last, tuple(self._panel(part, column, start, count)))
            for count, first, last in cut_panels(extent, lanes, part.first, part.last)
        ]

    def _panel(self, part: _Part, column: Index, start: Dim, count: int) -> Iterator[Statement]:
        """`count` columns from `start` on, as many vectors at once as there are."""
        for span in cut_columns(self.target, self.dtype.bits, self.lanes, count):
            lane = Index(self.names("n"), span.start + span.count)
            self.beside, self.distance = span.beside, span.lanes
            inner = substitute_indices(self._rows(part), {column: start + lane})
            yield ir.Loop(lane, span.start, span.start + span.count, inner, span.lanes)

    def _rows(self, part: _Part) -> list[Statement]:
        """Blocks of rows, tallest first; the count is a whole number of the lowest ones."""
        result: list[Statement] = []
        start: Dim = 0
        for height in self.heights:
            blocks = (part.count - start) // height
            block = Index(self.names("m"), self._rounded(self.block) // height + 1)
            body = self._block(part, start + block * height, height)
            result.append(ir.Loop(block, 0, blocks, tuple(body)))
            start = start + blocks * height
        return result

    def _block(self, part: _Part, base: Dim, height: int) -> list[Statement]:
        """`height` rows: their accumulators, the loop over k, and their stores."""
        total = Local(self.names("c"), self.dtype, (height, self.beside))
        each = Index(self.names("u"), height), Index(self.names("u"), self.beside)
        loops: list[Dim] = []

        def fresh(extent: Dim) -> Dim:
            loops.append(self.names.index("k", extent))
            return loops[-1]

        k = depth_index(self.node, fresh)
        combine = "or" if self.dtype == BOOL else "fma"
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        a = ir.load(self.rows, (base + each[0]) * self.pitch + k)
        right = evaluate(self.w, (part.here, k, self.column))
        b = ir.cast(right, self.dtype)
        values = (a & b,) if combine == "or" else (a, b)
        add = ir.Reduce((total,), combine, values, each)
        step = self._repeat(each, [*evaluate.prelude, add])
        result: list[Statement] = [ir.Declare(total, ir.start_value(combine, total.dtype))]
        ahead = self._ahead(part, right, k, base, height) if isinstance(k, Index) else []
        body = (*ahead, *step)
        for place, loop in enumerate(reversed(loops)):
            if isinstance(loop, Index):
                is_taken_apart = not place and len(loops) > 1 and is_word(loop.extent)
                body = (ir.Loop(loop, 0, loop.extent, body, unroll=is_taken_apart),)
        result += body
        return [*result, *self._repeat(each, self._stores(total, each, part.line, base))]

    def _ahead(
        self, part: _Part, right: Value, k: Index, base: Dim, height: int
    ) -> list[Statement]:
        """Hints for the panel after this one, which come evenly while all rows pass this one.

        After the last panel of a tile comes the first one of the next line's group.
        """
        if not isinstance(self.column, Index) or right.op != "load" or right.args:
            return []
        buffer, at = right.data
        if linear_coefficient(at, k) != self.lanes:
            return []  # not packed: a panel is no straight run of memory
        panel = self.column // self.lanes
        is_last = 1 - minimum(part.last - 1 - panel, 1)
        group = part.here + (part.after - part.here) * is_last
        following = panel + 1 + (part.first - panel - 1) * is_last
        there = substitute(at, {k: 0, part.here: group, self.column: following * self.lanes})
        count = maximum(part.count, 1)
        past = base * self.depth * self.lanes // count
        pace = (self.lanes * height + count - 1) // count
        return [ir.Prefetch(buffer, there + past + k * pace)]

    def _repeat(self, each: tuple[Index, Index], body: list[Statement]) -> tuple[Statement, ...]:
        """The body for all rows of a block, and all vectors of columns side by side."""
        result, column = tuple(body), self.column
        if isinstance(column, Index):
            result = substitute_indices(result, {column: column + each[1] * self.distance})
        for copy in reversed(each):
            if copy.extent == 1:
                result = substitute_indices(result, {copy: 0})
            else:
                result = (ir.Loop(copy, 0, copy.extent, result, unroll=True),)
        return result

    def _stores(
        self, total: Local, each: tuple[Index, Index], line: Dim, base: Dim
    ) -> list[Statement]:
        row, bind = self._position(line, base + each[0])
        moved: dict[Index, Dim] = {self.row: row} if isinstance(self.row, Index) else {}
        return [bind, *substitute_indices(self.stores(ir.local(total, each)), moved)]


# ---------------------------------------------------------------- the lines


def list_rows(
    node: Node, buffers: dict[Node, Buffer], names: Names, target: Target
) -> tuple[Index, list[Buffer], tuple[Statement, ...]]:
    """Count each group's positions, give it lines, and write the positions into them."""
    old = buffers[node]
    lines = buffers[node] = Buffer(old.name, old.dtype, old.size, "rw")
    return _Lines(node, buffers[node.inputs[0]], lines, names, target).parts()


class _Lines:
    def __init__(
        self, node: Node, ids: Buffer, lines: Buffer, names: Names, target: Target
    ) -> None:
        self.ids, self.lines, self.names, self.target = ids, lines, names, target
        self.positions = node.inputs[0].type.shape[0]
        self.groups, self.block = node.attrs.groups, node.attrs.block
        self.num_lines, self.width = node.type.shape[0], node.attrs.block + HEADER
        # A graph of no groups has no legal index: nothing is counted then.
        self.counts = Buffer("s0", INT64, maximum(self.groups, 1), "s")
        self.firsts = Buffer("s1", INT64, maximum(self.groups, 1), "s")

    def parts(self) -> tuple[Index, list[Buffer], tuple[Statement, ...]]:
        body = [self._clear(), *self._count(), *self._give_lines(), self._write(), self._repeat()]
        return Index("tile", 1), [self.counts, self.firsts], tuple(body)

    def _index(self, prefix: str, extent: Dim) -> Index:
        return Index(self.names(prefix), extent)

    def _clear(self) -> Statement:
        line = self._index("b", self.num_lines)
        zero = ir.const(INT64, 0)
        header = [ir.Store(self.lines, line * self.width + i, zero) for i in range(HEADER)]
        return ir.Loop(line, 0, self.num_lines, tuple(header))

    def _count(self) -> list[Statement]:
        group, position = self._index("e", self.groups), self._index("i", self.positions)
        chosen = self._index("g", self.groups)
        one_more = ir.load(self.counts, chosen) + ir.const(INT64, 1)
        clear = ir.Store(self.counts, group, ir.const(INT64, 0))
        return [
            ir.Loop(group, 0, self.groups, (clear,)),
            self._over_positions(position, chosen, [ir.Store(self.counts, chosen, one_more)]),
        ]

    def _over_positions(self, position: Index, chosen: Index, body: list[Statement]) -> Statement:
        bind = ir.Bind(chosen, ir.load(self.ids, position))
        stop = self.positions * minimum(self.groups, 1)
        return ir.Loop(position, 0, stop, (bind, *body))

    def _give_lines(self) -> list[Statement]:
        group, count = self._index("e", self.groups), self._index("g", self.positions + 1)
        part = self._index("b", ceildiv(self.positions, self.block))
        line = self._index("g", self.num_lines)
        following = Local(self.names("l"), INT64)
        inner: tuple[Statement, ...] = (
            ir.Bind(line, ir.local(following)),
            ir.Store(self.lines, line * self.width, ir.index(group)),
            ir.Store(
                self.lines,
                line * self.width + 1,
                ir.index(minimum(count - part * self.block, self.block)),
            ),
            ir.Assign(following, ir.local(following) + ir.const(INT64, 1)),
        )
        body: tuple[Statement, ...] = (
            ir.Bind(count, ir.load(self.counts, group)),
            ir.Store(self.firsts, group, ir.local(following)),
            ir.Store(self.counts, group, ir.const(INT64, 0)),
            ir.Loop(part, 0, ceildiv(count, self.block), inner),
        )
        start = ir.Declare(following, ir.const(INT64, 0))
        return [start, ir.Loop(group, 0, self.groups, body)]

    def _write(self) -> Statement:
        position, chosen = self._index("i", self.positions), self._index("g", self.groups)
        first, seen = self._index("g", self.num_lines), self._index("g", self.positions)
        place = (first + seen // self.block) * self.width + HEADER + seen % self.block
        return self._over_positions(
            position,
            chosen,
            [
                ir.Bind(first, ir.load(self.firsts, chosen)),
                ir.Bind(seen, ir.load(self.counts, chosen)),
                ir.Store(self.lines, place, ir.index(position)),
                ir.Store(self.counts, chosen, ir.index(seen + 1)),
            ],
        )

    def _repeat(self) -> Statement:
        """Fill every line with its last position; a line of none holds its count there: 0."""
        line, count = self._index("b", self.num_lines), self._index("g", self.block + 1)
        slot, last = self._index("i", self.block), Local(self.names("l"), INT64)
        start = line * self.width
        fill = ir.Store(self.lines, start + HEADER + slot, ir.local(last))
        body: tuple[Statement, ...] = (
            ir.Bind(count, ir.load(self.lines, start + 1)),
            ir.Declare(last, ir.load(self.lines, start + HEADER - 1 + count)),
            ir.Loop(slot, count, self.block, (fill,), self.target.vector_bits // 32),
        )
        return ir.Loop(line, 0, self.num_lines, body)
