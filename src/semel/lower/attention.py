"""softmax(scores) @ values, streamed over blocks of keys.

    Group(contract="softmax_matmul") --lower_attention--> Kernel

A tile is a block of queries of one batch entry; where several heads read the same keys
and values, of all of them if the queries are few. Its queries are copied to scratch
once. For each block of keys, the keys are turned in registers so that a vector holds
neighbouring keys; then, for a few queries at a time, their scores (with whatever stands
between the contraction and the softmax) go to scratch, each row's running maximum, sum
and accumulators are brought up to date, and weights times values is added to the
accumulators. The score matrix never exists in memory, nor does a turned copy of the keys.

Blocks of keys start at multiples of their size and are taken in order; every score
adds over the depth in order, every sum of weights in lanes that depend on the key alone.
Keys that a query does not see weigh exactly nothing, so that blocks without any can be left
out. So the result does not depend on threads, tiles, or how many queries there are.

One idea: one kernel, whose parts share the accumulators, the scratch and the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semel.ir.expr import (
    Dim,
    Fn,
    Index,
    atoms,
    ceildiv,
    is_positive,
    linear_coefficient,
    maximum,
    minimum,
    product,
    substitute,
    terms,
    upper_bound,
)
from semel.ir.graph import Node
from semel.ir.target import Target
from semel.ir.types import INT64, DType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value, walk_values
from semel.kernel.math.exponential import exp_at_most_one
from semel.kernel.rewrite import substitute_indices
from semel.kernel.shared_lanes import rest_lanes
from semel.lower.attention_operands import ALIASING_BYTES, KEYS, Block, Operands, Shared
from semel.lower.contraction import Contraction
from semel.lower.evaluate import Evaluator
from semel.lower.lowered import Lowered, Names, finish_kernel, split_rows
from semel.ops.index_maps import Indices
from semel.schedule.group import Group
from semel.schedule.names import kernel_name

#: Queries of one tile: how often turning a block of keys is paid for.
QUERIES = 96
#: Up to so many rows, converting values at every use is cheaper than a copy of them.
FEW_ROWS = 4


def lower_attention(group: Group, target: Target) -> Lowered:
    """The kernel of a softmax_matmul with the contraction and masks in front of it."""
    return _Lowering(group, target).run()


@dataclass(frozen=True, slots=True)
class _Row:
    """A query of the tile: statements that bind its indices, and where it lies."""

    binds: list[Statement]
    batch: Indices
    query: Dim


class _Lowering(Contraction):
    def __init__(self, group: Group, target: Target) -> None:
        super().__init__(group, target)
        self.attrs = self.node.attrs
        self.dtype = self.node.type.dtype.compute
        self.lanes = target.vector_bits // 32
        #: Partial sums of a row's weights: lane n adds keys n, n + sum_lanes, ... on every machine.
        self.sum_lanes = rest_lanes(KEYS, self.dtype.bits)
        self.panel = 2 * target.lanes(self.dtype.bits)
        *batch, self.row, self.column = self.at
        self.batch: list[Dim] = list(batch)
        self.keys = self.node.inputs[1].type.shape[-2]
        self.width = self.node.type.shape[-1]
        self.queries = self.node.type.shape[-2]
        self.depth: Dim = group.scores.inputs[0].type.shape[-1] if group.scores else 0
        self._share_heads()
        self.heights = self._heights(target.vector_registers * 3 // 8)
        self.scratch: list[Buffer] = []
        self.shared = Shared(
            self.loadable,
            self.checks,
            self.names,
            self.dtype,
            self.lanes,
            self.panel,
            self._scratch,
        )
        rows = QUERIES
        self.weights = self._scratch(self.heights[0] * KEYS)
        self.totals = self._scratch(rows * self.width)
        self.top, self.sums = self._scratch(rows), self._scratch(rows * self.sum_lanes)
        self.fresh, self.decay, self.reference = (self._scratch(self.heights[0]) for _ in range(3))
        keys = None if group.scores is None else group.scores.inputs[1]
        few = upper_bound(self.queries * self.heads)
        is_tall = few is None or few > FEW_ROWS
        self.operands = Operands(
            self.shared, keys, self.node.inputs[1], self._batch(0), is_tall=is_tall
        )
        self.query_rows: Buffer | None = None
        if group.scores is not None and not self._has_straight_queries():
            self.query_rows = self._scratch(QUERIES * self.depth)
        if self.is_mixed:
            self.places = self._scratch(rows, INT64), self._scratch(rows, INT64)

    def _scratch(self, size: Dim, dtype: DType | None = None) -> Buffer:
        buffer = Buffer(f"s{len(self.scratch)}", dtype or self.dtype, size, "s")
        self.scratch.append(buffer)
        return buffer

    # ------------------------------------------------------------ tiles

    def _share_heads(self) -> None:
        """Find out whether the last batch axis, or groups along it, read the same keys.

        `self.head` is then the index within such a group, of `self.heads` members.
        """
        self.heads = 1
        self.head = Index("head", 1)
        self.outer: list[Index] = [i for i in self.batch if isinstance(i, Index)]
        last = self.batch[-1] if self.batch else 0
        if not isinstance(last, Index) or not isinstance(last.extent, int):
            return
        shared = self._shared_reads()
        for group in self._group_sizes(shared, last):
            head, pack = Index("head", group), self.names.index("i", last.extent // group)
            place = pack * group + head
            if any(head in atoms(substitute(d, {last: place})) for d in shared):
                continue
            self.heads, self.head = group, head
            self.batch[-1] = place
            self.outer = self.outer[:-1] + ([pack] if isinstance(pack, Index) else [])
            return

    def _shared_reads(self) -> list[Dim]:
        """The addresses of everything that the queries of a tile should have in common."""
        evaluate = Evaluator(self.loadable, {}, [], Names())
        key, inner = Index("key", self.keys), Index("inner", maximum(self.depth, self.width))
        values = [evaluate(self.node.inputs[1], (*self.batch, key, inner))]
        if self.group.scores is not None:
            values.append(evaluate(self.group.scores.inputs[1], (*self.batch, inner, key)))
        if len(self.node.inputs) > 2:
            values.append(evaluate(self.node.inputs[2], tuple(self.batch)))
        values += [s.value for s in evaluate.prelude if isinstance(s, ir.Bind)]
        found = [v for v in walk_values(values) if v.op in ("load", "index")]
        return [v.data[1] if v.op == "load" else v.data for v in found]

    def _group_sizes(self, reads: list[Dim], last: Index) -> list[int]:
        """How many neighbours along the last batch axis may read the same, most first."""
        assert isinstance(last.extent, int)
        sizes = {last.extent}
        for dim in reads:
            for fn in _functions(dim):
                if fn.kind == "floordiv" and fn.args[0] == last and isinstance(fn.args[1], int):
                    sizes.add(fn.args[1])
        return sorted((s for s in sizes if s > 1 and last.extent % s == 0), reverse=True)

    @property
    def packed(self) -> Dim:
        """How many heads of a group one tile takes: all that fit beside each other."""
        if self.heads == 1:
            return 1
        return minimum(maximum(QUERIES // maximum(self.queries, 1), 1), self.heads)

    @property
    def is_mixed(self) -> bool:
        """Whether rows of a tile may belong to several heads."""
        return self.packed != 1

    def _heights(self, tallest: int) -> tuple[int, ...]:
        """Blocks of rows, tallest first: sums, two vectors a row, fill most registers."""
        rows = self.queries * self.packed
        is_whole = isinstance(rows, int) and self.heads % self.packed == 0
        if isinstance(rows, int) and is_whole and rows <= tallest:
            return (max(rows, 1),)
        return (tallest, *(h for h in (4, 2, 1) if h < tallest))

    def run(self) -> Lowered:
        row_blocks = ceildiv(self.queries, QUERIES)
        head_blocks = (self.heads + self.packed - 1) // self.packed
        entries = product(i.extent for i in self.outer)
        tile = Index("tile", entries * head_blocks * row_blocks)
        self.first_query = (tile % row_blocks) * QUERIES
        self.first_head = (tile // row_blocks % head_blocks) * self.packed
        self.span = minimum(QUERIES, self.queries - self.first_query)
        self.rows = self.span
        if self.is_mixed:
            self.rows = self.span * minimum(self.packed, self.heads - self.first_head)
        body = [*self._bind_length(), *self._reset(), *self._key_blocks(), *self._finish()]
        split = split_rows(tile // (row_blocks * head_blocks), self.outer)
        kernel = finish_kernel(
            kernel_name(self.group),
            list(self.buffers.values()),
            self.scratch,
            tile,
            substitute_indices(body, split),
            self.checks,
            flops=self._flops(),
            notes=[repr(n) for n in self.group.inside],
        )
        return Lowered(kernel, tuple(self.buffers), self.group, has_lanes=True)

    def _flops(self) -> Dim:
        pairs = product(self.node.inputs[0].type.shape)
        if self.attrs.right is not None:
            pairs = pairs // 2
        return pairs * (self.width * 2 + self.depth * 2 + 20)

    def _const(self, value: float) -> Value:
        return ir.const(self.dtype, value)

    # ------------------------------------------------------------ rows

    def _at(self, here: Dim) -> _Row:
        """Where row `here` of the tile lies in the whole tensor."""
        if not self.is_mixed:
            query = self.first_query + here if isinstance(self.row, Index) else 0
            return _Row([], self._batch(self.first_head), query)
        head, query = Index(self.names("h"), self.heads), Index(self.names("q"), self.queries)
        binds: list[Statement] = [
            ir.Bind(head, ir.load(self.places[0], here)),
            ir.Bind(query, ir.load(self.places[1], here)),
        ]
        return _Row(binds, self._batch(head), query if isinstance(self.row, Index) else 0)

    def _batch(self, head: Dim) -> Indices:
        return tuple(substitute(i, {self.head: head}) for i in self.batch)

    def _bind_length(self) -> list[Statement]:
        self.length: Dim = self.keys
        if len(self.node.inputs) < 3:
            return []
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        value = evaluate(self.node.inputs[2], self._batch(0))
        # Also where the check fails, nothing is read past the keys.
        legal = ir.op("max", ir.op("min", value, ir.index(self.keys)), ir.const(INT64, 0))
        self.length = Index(self.names("g"), self.keys + 1)
        return [*evaluate.prelude, ir.Bind(self.length, legal)]

    def _reset(self) -> list[Statement]:
        row = Index(self.names("r"), QUERIES)
        clear: list[Statement] = []
        if not self.starts_together:
            clear = self.shared.over(self.width, lambda e: [
                ir.Store(self.totals, row * self.width + e, self._const(0))
            ])  # fmt: skip
        places: list[Statement] = []
        if self.is_mixed:
            head, query = self.first_head + row // self.span, self.first_query + row % self.span
            places = [
                ir.Store(self.places[0], row, ir.index(head)),
                ir.Store(self.places[1], row, ir.index(query)),
            ]
        lane = Index(self.names("n"), self.sum_lanes)
        no_sum = ir.Store(self.sums, row * self.sum_lanes + lane, self._const(0))
        first = (
            ir.Store(self.top, row, self._const(-float("inf"))),
            ir.Loop(lane, 0, self.sum_lanes, (no_sum,), self.sum_lanes),
        )
        result: list[Statement] = [ir.Loop(row, 0, self.rows, (*places, *first, *clear))]
        return result + self._stage_queries()

    # ------------------------------------------------------------ which keys

    def _ends(self, first: Dim, last: Dim) -> tuple[Dim, Dim]:
        """The keys [low, high) that queries from `first` to `last` may see."""
        shift = self.length if self.attrs.from_length else 0
        low: Dim = 0
        high = self.length
        if self.attrs.left is not None:
            low = maximum(first + self.attrs.left + shift, 0)
        if self.attrs.right is not None:
            high = maximum(minimum(high, last + self.attrs.right + shift + 1), 0)
        return low, high

    @property
    def starts_together(self) -> bool:
        """Whether the first block of keys is the first for every row, and there is one."""
        return not self.has_band and len(self.node.inputs) < 3 and is_positive(self.keys)

    @property
    def has_band(self) -> bool:
        return self.attrs.left is not None or self.attrs.right is not None

    def _key_blocks(self) -> list[Statement]:
        if self.keys == 0:
            return []
        low, high = self._ends(self.first_query, self.first_query + self.span - 1)
        number = Index(self.names("b"), ceildiv(self.keys, KEYS))
        first = number * KEYS
        block = Block(first, maximum(low - first, 0), minimum(KEYS, high - first))
        body = [
            *self.operands.stage(block),
            *self._row_blocks(lambda base, height: self._rows_of_block(base, height, block)),
        ]
        return [ir.Loop(number, low // KEYS, ceildiv(high, KEYS), tuple(body))]

    def _row_blocks(self, body: Callable[[Dim, int], list[Statement]]) -> list[Statement]:
        """Blocks of rows of falling height; `body` gets the first row (within the tile)."""
        result: list[Statement] = []
        start: Dim = 0
        for height in self.heights:
            count = (self.rows - start) // height
            if count == 0:
                continue
            block = Index(self.names("m"), QUERIES // height + 1)
            inner = tuple(body(start + block * height, height))
            result.append(ir.Loop(block, 0, count, inner))
            start = start + count * height
        return result

    def _rows_of_block(self, base: Dim, height: int, block: Block) -> list[Statement]:
        seen = block
        if self.has_band and not self.is_mixed:
            # These rows may see less of the block than the tile does.
            query = self.first_query + base
            low, high = self._ends(query, query + height - 1)
            seen = Block(
                block.first,
                minimum(maximum(low - block.first, 0), block.count),
                maximum(minimum(high - block.first, block.count), 0),
            )
        body = [
            *self._score_rows(base, height, seen),
            *self._soften(base, height, seen),
            *self._add_values(base, height, seen),
        ]
        if seen is block:
            return body
        return [ir.If(ir.index(seen.low) < ir.index(seen.count), tuple(body))]

    # ------------------------------------------------------------ queries

    def _has_straight_queries(self) -> bool:
        """Whether rows of queries can be read where they lie.

        Rows a multiple of a page apart would push each other out of the first-level cache.
        """
        assert self.group.scores is not None
        row, inner = Index("row", self.queries), Index("inner", 2)
        value = self.shared.probe(self.group.scores.inputs[0], (*self._batch(0), row, inner))
        if self.is_mixed or value is None or value.dtype != self.dtype:
            return False
        flat = value.data[1]
        stride = linear_coefficient(flat, row)
        if not isinstance(stride, int) or linear_coefficient(flat, inner) != 1:
            return False
        return stride * value.dtype.size_bytes % ALIASING_BYTES != 0

    def _stage_queries(self) -> list[Statement]:
        if self.group.scores is None or self.query_rows is None:
            return []
        row = Index(self.names("r"), QUERIES)
        at, buffer, left = self._at(row), self.query_rows, self.group.scores.inputs[0]

        def copy(k: Dim) -> list[Statement]:
            prelude, value = self.shared.element(left, (*at.batch, at.query, k))
            return [*prelude, ir.Store(buffer, row * self.depth + k, value)]

        return [ir.Loop(row, 0, self.rows, (*at.binds, *self.shared.over(self.depth, copy)))]

    def _query(self, here: Dim, k: Dim) -> Value:
        """Element k of the query in row `here` of the tile."""
        if self.query_rows is not None:
            return ir.load(self.query_rows, here * self.depth + k)
        assert self.group.scores is not None
        at = self._at(here)
        return self.shared.element(self.group.scores.inputs[0], (*at.batch, at.query, k))[1]

    # ------------------------------------------------------------ scores

    def _score_rows(self, base: Dim, height: int, block: Block) -> list[Statement]:
        """The scores of `height` rows, from row `base` of the tile, to scratch."""
        lane = Index(self.names("n"), KEYS)
        copy = Index(self.names("u"), height)
        inner = self.group.scores
        known: dict[Node, Value] = {}
        body: list[Statement] = []
        if inner is not None:
            total = Local(self.names("c"), self.dtype, (height,))
            k = Index(self.names("k"), self.depth)
            step = self._repeat(copy, height, self._dot(total, copy, base + copy, block, lane, k))
            body += [ir.Declare(total, self._const(0)), ir.Loop(k, 0, self.depth, step)]
            known[inner] = ir.cast(ir.local(total, (copy,)), inner.type.dtype)
        row = self._at(base + copy)
        evaluate = Evaluator(self.loadable, known, self.checks, self.names)
        at = (*row.batch, row.query, block.first + lane)
        value = ir.cast(evaluate(self.node.inputs[0], at), self.dtype)
        store = ir.Store(self.weights, copy * KEYS + lane, value)
        binds = row.binds if row.batch or row.query else []
        body += self._repeat(copy, height, [*binds, *evaluate.prelude, store])
        return [ir.Loop(lane, 0, block.count, tuple(body), self._panel(height, KEYS))]

    def _panel(self, height: int, columns: Dim) -> int:
        """Lanes that give enough independent sums: few rows take wider panels.

        One row reads its values as they lie, if a panel is as wide as these.
        """
        lanes, most = self.panel, self.panel * max(1, 4 // height)
        while lanes < most and isinstance(columns, int) and 2 * lanes <= columns:
            lanes *= 2
        return lanes

    def _repeat(self, copy: Index, height: int, body: list[Statement]) -> tuple[Statement, ...]:
        if height == 1:
            return substitute_indices(body, {copy: 0})
        return (ir.Loop(copy, 0, height, tuple(body), unroll=True),)

    def _dot(
        self, total: Local, copy: Index, here: Dim, block: Block, lane: Index, k: Index
    ) -> list[Statement]:
        prelude, key = self.operands.key(block, lane, k)
        return [*prelude, ir.Reduce((total,), "fma", (self._query(here, k), key), (copy,))]

    # ------------------------------------------------------------ softmax

    def _soften(self, base: Dim, height: int, block: Block) -> list[Statement]:
        """Scores to weights; the running maximum, sums and decay of every row.

        In three steps over all rows, so that no row waits for the end of another: the
        maxima, what follows from them for all rows at once, the weights. Each lane keeps a
        sum of its own until the end.
        """
        counts = ceildiv(block.count, self.sum_lanes)
        return [
            *self._find_tops(base, height, block, counts * self.sum_lanes),
            *self._decay_rows(base, height),
            *self._over_rows(height, lambda u: self._weigh(base + u, u, counts)),
        ]

    def _over_rows(
        self, height: int, body: Callable[[Dim], list[Statement]], lanes: int = 1
    ) -> list[Statement]:
        if height == 1:
            return body(0)
        row = Index(self.names("r"), height)
        return [ir.Loop(row, 0, height, tuple(body(row)), lanes)]

    def _find_tops(self, base: Dim, height: int, block: Block, whole: Dim) -> list[Statement]:
        """The maxima, in two variants: hiding costs nothing in blocks that all rows see whole."""
        plain = self._over_rows(height, lambda u: self._find_top(base + u, u, whole))
        if not self.has_band and block.count == whole:
            return plain
        hiding = self._over_rows(height, lambda u: self._find_top_seen(base + u, u, block, whole))
        if self.has_band and self.is_mixed:
            return hiding
        query = self.first_query + base
        _, high = self._ends(query, query)
        low, _ = self._ends(query + height - 1, query + height - 1)
        sees_end = ir.index(minimum(high - block.first, block.count)) >= ir.index(whole)
        sees_all = sees_end & (ir.index(low) <= ir.index(block.first))
        return [ir.If(sees_all, tuple(plain)), ir.If(ir.op("not", sees_all), tuple(hiding))]

    def _find_top(self, here: Dim, copy: Dim, whole: Dim) -> list[Statement]:
        lane, top = Index(self.names("n"), KEYS), Local(self.names("c"), self.dtype)
        score = ir.load(self.weights, copy * KEYS + lane)
        body = (ir.Reduce((top,), "fastmax", (score,)),)
        return self._top_of(here, copy, top, ir.Loop(lane, 0, whole, body, self.sum_lanes))

    def _find_top_seen(self, here: Dim, copy: Dim, block: Block, whole: Dim) -> list[Statement]:
        """The maximum of the keys that the row sees; the others become -inf.

        Whole vectors are written back: what is read soon after a store must lie in it.
        """
        low, high, binds = block.low, block.count, list[Statement]()
        if self.has_band:
            row = self._at(here)
            first, end = self._ends(row.query, row.query)
            low, high, binds = first - block.first, minimum(end - block.first, high), row.binds
        lane, top = Index(self.names("n"), KEYS), Local(self.names("c"), self.dtype)
        sees = ir.index(lane) < ir.index(high)
        if self.attrs.left is not None:
            sees = sees & (ir.index(lane) >= ir.index(low))
        place = copy * KEYS + lane
        score = ir.load(self.weights, place, sees, self._const(-float("inf")))
        body = (ir.Reduce((top,), "fastmax", (score,)), ir.Store(self.weights, place, score))
        return [
            *binds,
            *self._top_of(here, copy, top, ir.Loop(lane, 0, whole, body, self.sum_lanes)),
        ]

    def _top_of(self, here: Dim, copy: Dim, top: Local, loop: Statement) -> list[Statement]:
        return [
            ir.Declare(top, ir.load(self.top, here)),
            loop,
            ir.Store(self.fresh, copy, ir.local(top)),
        ]

    def _decay_rows(self, base: Dim, height: int) -> list[Statement]:
        lowest, zero = self._const(-float("inf")), self._const(0)

        def row(copy: Dim) -> list[Statement]:
            old, new = ir.load(self.top, base + copy), ir.load(self.fresh, copy)
            # A row that has seen no allowed key keeps 0 as its reference point.
            here = ir.select(new.eq(lowest), zero, new)
            decay = exp_at_most_one(old - here)
            return [
                ir.Store(self.decay, copy, decay),
                ir.Store(self.reference, copy, here),
                ir.Store(self.top, base + copy, new),
            ]

        return self._over_rows(height, row, self.lanes)

    def _weigh(self, here: Dim, copy: Dim, counts: Dim) -> list[Statement]:
        total = Local(self.names("c"), self.dtype)
        lanes = self.sum_lanes
        lane, step = Index(self.names("n"), lanes), Index(self.names("j"), KEYS // lanes)
        place = copy * KEYS + step * lanes + lane
        reference = ir.load(self.reference, copy)
        weight = exp_at_most_one(ir.load(self.weights, place) - reference)
        add: tuple[Statement, ...] = (
            ir.Assign(total, ir.local(total) + weight),
            ir.Store(self.weights, place, weight),
        )
        sums = here * lanes + lane
        is_known = isinstance(counts, int)
        body: tuple[Statement, ...] = (
            ir.Declare(total, ir.load(self.sums, sums) * ir.load(self.decay, copy)),
            ir.Loop(step, 0, counts, add, unroll=is_known),
            ir.Store(self.sums, sums, ir.local(total)),
        )
        return [ir.Loop(lane, 0, lanes, body, lanes)]

    # ------------------------------------------------------------ values

    def _add_values(self, base: Dim, height: int, block: Block) -> list[Statement]:
        if self.width == 1:
            return self._value_rows(base, height, block, 0)
        column = Index(self.names("e"), self.width)
        body = self._value_rows(base, height, block, column)
        return [ir.Loop(column, 0, self.width, tuple(body), self._panel(height, self.width))]

    def _value_rows(self, base: Dim, height: int, block: Block, column: Dim) -> list[Statement]:
        copy = Index(self.names("u"), height)
        total = Local(self.names("c"), self.dtype, (height,))
        place = (base + copy) * self.width + column
        old = ir.load(self.totals, place)
        if self.starts_together:
            old = ir.load(self.totals, place, ir.index(block.first) > 0, self._const(0))
        old = old * ir.load(self.decay, copy)

        def add(key: Dim, value: Value) -> tuple[Statement, ...]:
            weight = ir.load(self.weights, copy * KEYS + key)
            step = ir.Reduce((total,), "fma", (weight, value), (copy,))
            return self._repeat(copy, height, [step])

        return [
            ir.Declare(total, self._const(0)),
            *self._repeat(copy, height, [ir.Assign(total, old, (copy,))]),
            *self.operands.over_values(block, column, add),
            *self._repeat(copy, height, [ir.Store(self.totals, place, ir.local(total, (copy,)))]),
        ]

    def _finish(self) -> list[Statement]:
        row = Index(self.names("r"), QUERIES)
        at = self._at(row)
        lane, total = Index(self.names("n"), self.sum_lanes), Local(self.names("c"), self.dtype)
        part = ir.load(self.sums, row * self.sum_lanes + lane)
        add: tuple[Statement, ...] = (
            ir.Declare(total, self._const(0)),
            ir.Loop(
                lane, 0, self.sum_lanes, (ir.Reduce((total,), "add", (part,)),), self.sum_lanes
            ),
        )
        inverse = self._const(1) / ir.local(total)
        if self.attrs.zero_if_none:
            inverse = ir.select(ir.local(total).eq(0.0), self._const(0), inverse)

        def store(column: Dim) -> list[Statement]:
            value = ir.load(self.totals, row * self.width + column) * inverse
            if self.attrs.zero_if_nan:
                value = ir.select(ir.local(total) > 0.0, value, self._const(0))
            return list(substitute_indices(self.stores(value), self._moved(at, column)))

        body = (*at.binds, *add, *self.shared.over(self.width, store))
        return [ir.Loop(row, 0, self.rows, body)]

    def _moved(self, at: _Row, column: Dim) -> dict[Index, Dim]:
        """The root's loops in terms of the tile's."""
        *batch, _, _ = self.at
        pairs = [*zip(batch, at.batch, strict=True), (self.row, at.query), (self.column, column)]
        return {index: here for index, here in pairs if isinstance(index, Index)}


def _functions(dim: Dim) -> list[Fn]:
    """Every division, remainder, minimum and maximum inside an index."""
    found: list[Fn] = []
    stack: list[Dim] = [dim]
    while stack:
        for monomial, _ in terms(stack.pop()):
            for atom in monomial:
                if isinstance(atom, Fn):
                    found.append(atom)
                    stack.extend(atom.args)
    return found
