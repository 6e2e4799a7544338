"""softmax(scores) @ values, streamed over blocks of keys.

    Group(contract="softmax_matmul") --lower_attention--> Kernel

A tile is one batch entry (a head) and a block of queries. For each block of keys:
the scores (with the contraction that makes them, if it is fused) go to a small
scratch in the first-level cache; each row's running maximum, sum and accumulators
are brought up to date; weights times values is added to the accumulators. The
score matrix never exists in memory.

Blocks of keys are taken in order and have one size, so the result does not depend on
threads or tiles. A row with no allowed key gives 0/0, as softmax does.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.ir.expr import Dim, Index, ceildiv, minimum, product
from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.evaluate import Evaluator, wanted_at
from semel.lower.lowered import Lowered, Names, finish_kernel, make_buffers, split_rows
from semel.lower.register_tiles import register_tile
from semel.ops.index_maps import Indices, flat_index
from semel.schedule.group import Group

#: Queries of one tile and keys of one block: their scores stay in the first-level cache.
QUERIES = 48
KEYS = 64


def lower_attention(group: Group, target: Target) -> Lowered:
    """The kernel of a softmax_matmul with the contraction and masks in front of it."""
    return _Lowering(group, target).run()


class _Lowering:
    def __init__(self, group: Group, target: Target) -> None:
        assert group.contract is not None
        self.group, self.target = group, target
        self.node: Node = group.contract
        self.names = Names()
        self.buffers = make_buffers(group.outputs, group.reads)
        self.loadable = {n: b for n, b in self.buffers.items() if n not in group.outputs}
        self.checks: list[CheckInfo] = []
        self.dtype = self.node.type.dtype.compute
        self.tile_shape = register_tile(target, self.dtype.bits, 2 * target.lanes(self.dtype.bits))
        self.root_loops: Indices = tuple(self.names.index("i", d) for d in group.root.type.shape)
        *self.batch, self.row, self.column = wanted_at(
            self.node, group.outputs, self.loadable, self.root_loops
        )
        self.keys = self.node.inputs[1].type.shape[-2]
        self.width = self.node.type.shape[-1]
        self.first_row: Dim = 0
        self.scores = self._scratch("s0", QUERIES * KEYS)
        self.totals = self._scratch("s1", QUERIES * self.width)
        self.top = self._scratch("s2", QUERIES)
        self.sum = self._scratch("s3", QUERIES)
        self.decay = self._scratch("s4", QUERIES)

    def _scratch(self, name: str, size: Dim) -> Buffer:
        return Buffer(name, self.dtype, size, "s")

    # ------------------------------------------------------------ the kernel

    def run(self) -> Lowered:
        outer = [i for i in self.batch if isinstance(i, Index)]
        rows = self.node.type.shape[-2]
        blocks = ceildiv(rows, QUERIES)
        tile = Index("tile", product(i.extent for i in outer) * blocks)
        self.first_row = (tile % blocks) * QUERIES
        self.rows = minimum(QUERIES, rows - self.first_row)
        body = [*self._reset(), *self._key_blocks(), *self._finish()]
        split = split_rows(tile // blocks, outer)
        kernel = finish_kernel(
            "attention",
            list(self.buffers.values()),
            [self.scores, self.totals, self.top, self.sum, self.decay],
            tile,
            substitute_indices(body, split),
            self.checks,
            flops=self._flops(),
            notes=[repr(n) for n in self.group.inside],
        )
        return Lowered(kernel, tuple(self.buffers), self.group)

    def _flops(self) -> Dim:
        pairs = product(self.node.inputs[0].type.shape)
        depth: Dim = self.group.scores.inputs[0].type.shape[-1] if self.group.scores else 0
        return pairs * (self.width * 2 + depth * 2 + 20)

    def _const(self, value: float) -> Value:
        return ir.const(self.dtype, value)

    def _reset(self) -> list[Statement]:
        row = Index(self.names("r"), QUERIES)
        clear = self._over_columns(
            lambda e: [ir.Store(self.totals, row * self.width + e, self._const(0))]
        )
        first = (
            ir.Store(self.top, row, self._const(-float("inf"))),
            ir.Store(self.sum, row, self._const(0)),
        )
        return [ir.Loop(row, 0, self.rows, (*first, *clear))]

    def _over_columns(self, body: Callable[[Dim], list[Statement]]) -> list[Statement]:
        """A vector loop over the value columns."""
        if self.width == 1:
            return body(0)
        column = Index(self.names("e"), self.width)
        lanes = self.target.vector_bits // 32
        return [ir.Loop(column, 0, self.width, tuple(body(column)), lanes)]

    def _key_blocks(self) -> list[Statement]:
        if self.keys == 0:
            return []
        block = Index(self.names("b"), ceildiv(self.keys, KEYS))
        first_key = block * KEYS
        count = minimum(KEYS, self.keys - first_key)
        body = [
            *self._score_block(first_key, count),
            *self._soften(count),
            *self._add_values(first_key, count),
        ]
        return [ir.Loop(block, 0, block.extent, tuple(body))]

    # ------------------------------------------------------------ scores

    def _score_block(self, first_key: Dim, count: Dim) -> list[Statement]:
        lane = Index(self.names("n"), KEYS)
        rows = self._row_blocks(
            lambda base, height: self._score_rows(base, height, first_key + lane, lane)
        )
        lanes = self.tile_shape.lanes
        return [ir.Loop(lane, 0, count, tuple(rows), lanes)]

    def _row_blocks(self, body: Callable[[Dim, int], list[Statement]]) -> list[Statement]:
        """Blocks of rows of falling height; `body` gets the first row (within the tile)."""
        result: list[Statement] = []
        start: Dim = 0
        for height in self.tile_shape.heights:
            count = (self.rows - start) // height
            block = Index(self.names("m"), QUERIES // height + 1)
            result.append(ir.Loop(block, 0, count, tuple(body(start + block * height, height))))
            start = start + count * height
        return result

    def _score_rows(self, base: Dim, height: int, key: Dim, lane: Index) -> list[Statement]:
        copy = Index(self.names("u"), height)
        here = base + copy
        inner = self.group.scores
        if inner is None:
            value, prelude = self._score(here, key, {})
            store = ir.Store(self.scores, here * KEYS + lane, value)
            return list(self._repeat(copy, height, [*prelude, store]))
        total = Local(self.names("c"), self.dtype, (height,))
        depth = inner.inputs[0].type.shape[-1]
        k = self.names.index("k", depth)
        step = self._repeat(copy, height, self._dot(total, copy, here, key, k))
        result: list[Statement] = [ir.Declare(total, self._const(0))]
        result += [ir.Loop(k, 0, depth, step)] if isinstance(k, Index) else list(step)
        known = {inner: ir.cast(ir.local(total, (copy,)), inner.type.dtype)}
        value, prelude = self._score(here, key, known)
        store = ir.Store(self.scores, here * KEYS + lane, value)
        return [*result, *self._repeat(copy, height, [*prelude, store])]

    def _repeat(self, copy: Index, height: int, body: list[Statement]) -> tuple[Statement, ...]:
        if height == 1:
            return substitute_indices(body, {copy: 0})
        return (ir.Loop(copy, 0, height, tuple(body), unroll=True),)

    def _query(self, here: Dim) -> Dim:
        """The row of the whole tensor for a row of the tile."""
        return self.first_row + here if isinstance(self.row, Index) else 0

    def _dot(self, total: Local, copy: Index, here: Dim, key: Dim, k: Dim) -> list[Statement]:
        assert self.group.scores is not None
        left, right = self.group.scores.inputs
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        a = ir.cast(evaluate(left, (*self.batch, self._query(here), k)), self.dtype)
        b = ir.cast(evaluate(right, (*self.batch, k, key)), self.dtype)
        return [*evaluate.prelude, ir.Reduce((total,), "fma", (a, b), (copy,))]

    def _score(
        self, here: Dim, key: Dim, known: dict[Node, Value]
    ) -> tuple[Value, list[Statement]]:
        evaluate = Evaluator(self.loadable, known, self.checks, self.names)
        value = evaluate(self.node.inputs[0], (*self.batch, self._query(here), key))
        return ir.cast(value, self.dtype), evaluate.prelude

    # ------------------------------------------------------------ softmax

    def _soften(self, count: Dim) -> list[Statement]:
        """Scores to weights; the running maximum, sum and decay of every row."""
        row = Index(self.names("r"), QUERIES)
        lane, again = Index(self.names("n"), KEYS), Index(self.names("n"), KEYS)
        lanes = self.target.vector_bits // 32
        top, total = Local(self.names("c"), self.dtype), Local(self.names("c"), self.dtype)
        score = ir.load(self.scores, row * KEYS + lane)
        lowest = self._const(-float("inf"))
        # A row that has seen no allowed key keeps 0 as its reference point.
        base = ir.select(ir.local(top).eq(lowest), self._const(0), ir.local(top))
        weight = ir.op("exp", ir.load(self.scores, row * KEYS + again) - base)
        decay = ir.op("exp", ir.load(self.top, row) - base)
        body: tuple[Statement, ...] = (
            ir.Declare(top, ir.load(self.top, row)),
            ir.Loop(lane, 0, count, (ir.Reduce((top,), "max", (score,)),), lanes),
            ir.Store(self.decay, row, decay),
            ir.Store(self.top, row, ir.local(top)),
            ir.Declare(total, self._const(0)),
            ir.Loop(
                again,
                0,
                count,
                (
                    ir.Reduce((total,), "add", (weight,)),
                    ir.Store(self.scores, row * KEYS + again, weight),
                ),
                lanes,
            ),
            ir.Store(
                self.sum,
                row,
                ir.fma(ir.load(self.sum, row), ir.load(self.decay, row), ir.local(total)),
            ),
        )
        return [ir.Loop(row, 0, self.rows, body)]

    # ------------------------------------------------------------ values

    def _add_values(self, first_key: Dim, count: Dim) -> list[Statement]:
        def rows(column: Dim) -> list[Statement]:
            return self._row_blocks(
                lambda base, height: self._value_rows(base, height, first_key, count, column)
            )

        if self.width == 1:
            return rows(0)
        lanes = self.tile_shape.lanes
        column = Index(self.names("e"), self.width)
        return [ir.Loop(column, 0, self.width, tuple(rows(column)), lanes)]

    def _value_rows(
        self, base: Dim, height: int, first_key: Dim, count: Dim, column: Dim
    ) -> list[Statement]:
        copy = Index(self.names("u"), height)
        here = base + copy
        total = Local(self.names("c"), self.dtype, (height,))
        key = Index(self.names("t"), KEYS)
        place = here * self.width + column
        old = ir.load(self.totals, place) * ir.load(self.decay, here)
        evaluate = Evaluator(self.loadable, {}, self.checks, self.names)
        values = evaluate(self.node.inputs[1], (*self.batch, first_key + key, column))
        weight = ir.load(self.scores, here * KEYS + key)
        step = ir.Reduce((total,), "fma", (weight, ir.cast(values, self.dtype)), (copy,))
        return [
            ir.Declare(total, self._const(0)),
            *self._repeat(copy, height, [ir.Assign(total, old, (copy,))]),
            ir.Loop(key, 0, count, (*evaluate.prelude, *self._repeat(copy, height, [step]))),
            *self._repeat(copy, height, [ir.Store(self.totals, place, ir.local(total, (copy,)))]),
        ]

    def _finish(self) -> list[Statement]:
        row = Index(self.names("r"), QUERIES)
        inverse = self._const(1) / ir.load(self.sum, row)

        def store(column: Dim) -> list[Statement]:
            value = ir.load(self.totals, row * self.width + column) * inverse
            known = {self.node: ir.cast(value, self.node.type.dtype)}
            evaluate = Evaluator(self.loadable, known, self.checks, self.names)
            stores: list[Statement] = []
            for output in self.group.outputs:
                result = evaluate(output, self.root_loops)
                where = flat_index(self.root_loops, output.type.shape)
                stores.append(ir.Store(self.buffers[output], where, result))
            moved: dict[Index, Dim] = {}
            if isinstance(self.row, Index):
                moved[self.row] = self._query(row)
            if isinstance(self.column, Index):
                moved[self.column] = column
            return list(substitute_indices([*evaluate.prelude, *stores], moved))

        return [ir.Loop(row, 0, self.rows, tuple(self._over_columns(store)))]
