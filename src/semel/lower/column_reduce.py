"""Long reductions along an outer axis, streamed row by row.

    for block of columns: { clear accumulators; for row: accumulators += row; finish }

Keeping accumulators in registers would read a few cache lines of every row and
come back for the next ones; keeping them in scratch reads each row of the block
once, in the order it lies. Four rows go in at a time, so that the accumulators are
loaded and stored once for four additions.

Every column takes its rows in blocks of four, then the rest one by one, whether
its accumulators live here or in registers (`loops`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from semel.ir.expr import Dim, Index, ceildiv, minimum, product, upper_bound
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import ValueMap, map_statements, substitute_indices
from semel.kernel.shared_lanes import RUN, joining
from semel.lower.lowered import Names, split_rows
from semel.passes.decompose import is_longer_than_a_run

#: Columns of one block: a few kilobytes of every row, with accumulators in the first-level cache.
BLOCK = 1024
#: Rows taken at once.
ROWS = 4


def stream_columns(
    columns: Sequence[Index],
    along: Index,
    prelude: Sequence[Statement],
    updates: Sequence[ir.Reduce],
    finals: Sequence[Statement],
    names: Names,
    lanes: int,
) -> tuple[Index, list[Buffer], tuple[Statement, ...]]:
    """The tile, scratch and body for `updates` along one axis, then `finals` per column.

    `prelude` is what the updates rely on: indices read from memory and their checks.
    """
    column, rest = columns[-1], list(columns[:-1])
    blocks = ceildiv(column.extent, BLOCK)
    tile = Index("tile", product(i.extent for i in rest) * blocks)
    start = (tile % blocks) * BLOCK
    stop = minimum(start + BLOCK, column.extent)
    totals = {
        u.locals[0]: Buffer(f"s{i}", u.locals[0].dtype, BLOCK, "s") for i, u in enumerate(updates)
    }

    def sweep(body: Sequence[Statement]) -> ir.Loop:
        own = Index(names("v"), column.extent)
        return ir.Loop(own, start, stop, substitute_indices(body, {column: own}), lanes)

    place = column - start

    def clear(buffers: Mapping[Local, Buffer]) -> ir.Loop:
        return sweep(
            [
                ir.Store(buffers[u.locals[0]], place, ir.start_value(u.combine, u.locals[0].dtype))
                for u in updates
            ]
        )

    def add(buffers: Mapping[Local, Buffer], first: Dim, last: Dim) -> list[Statement]:
        """Rows [first, last), four at a time, then the rest."""
        single = [_add_rows(u, buffers[u.locals[0]], place, along, None) for u in updates]
        row = [*prelude, *(s for g in single for s in g)]
        if prelude:  # indices from memory are bound once per row: rows go in one by one
            return [ir.Loop(along, first, last, (sweep(row),))]
        whole = last // ROWS
        block = Index(names("q"), along.extent // ROWS)
        several = [_add_rows(u, buffers[u.locals[0]], place, along, block) for u in updates]
        return [
            ir.Loop(block, first // ROWS, whole, (sweep([s for g in several for s in g]),)),
            ir.Loop(along, whole * ROWS, last, (sweep(row),)),
        ]

    scratch = list(totals.values())
    if is_longer_than_a_run(along.extent):
        parts = {
            u.locals[0]: Buffer(f"s{len(scratch) + i}", u.locals[0].dtype, BLOCK, "s")
            for i, u in enumerate(updates)
        }
        scratch += parts.values()
        run = Index(names("q"), ceildiv(along.extent, RUN))
        rows = add(parts, run * RUN, minimum(run * RUN + RUN, along.extent))
        joined = [s for u in updates for s in _join_run(u, totals, parts, place)]
        sums: list[Statement] = [ir.Loop(run, 0, run.extent, (clear(parts), *rows, sweep(joined)))]
    else:
        sums = add(totals, 0, along.extent)
    body = [clear(totals), *sums, sweep(_read_totals(finals, totals, place))]
    result = substitute_indices(body, split_rows(tile // blocks, rest))
    return tile, scratch, result


def run_sums(
    body: Sequence[Statement], names: Names
) -> tuple[tuple[Statement, ...], list[Statement], list[Statement]]:
    """The body with sums of its own, what stands before a run of it, and what adds them up."""
    before: list[Statement] = []
    after: list[Statement] = []
    own: list[Statement] = []
    for statement in body:
        if not isinstance(statement, ir.Reduce) or len(statement.locals) > 1:
            own.append(statement)
            continue
        part = Local(names("a"), statement.locals[0].dtype)
        before.append(ir.Declare(part, ir.start_value(statement.combine, part.dtype)))
        own.append(replace(statement, locals=(part,)))
        combine = joining(statement.combine)
        after.append(ir.Reduce(statement.locals, combine, (ir.local(part),)))
    return tuple(own), before, after


def _join_run(
    update: ir.Reduce, totals: Mapping[Local, Buffer], parts: Mapping[Local, Buffer], place: Dim
) -> list[Statement]:
    """Add what a run has found to what there is."""
    local = update.locals[0]
    sum_ = Local(f"{local.name}_all", local.dtype)
    return [
        ir.Declare(sum_, ir.load(totals[local], place)),
        ir.Reduce((sum_,), joining(update.combine), (ir.load(parts[local], place),)),
        ir.Store(totals[local], place, ir.local(sum_)),
    ]


def _add_rows(
    update: ir.Reduce, total: Buffer, place: Dim, along: Index, block: Index | None
) -> list[Statement]:
    """Load an accumulator, add the rows of `block` (or one row), store it."""
    before = update.locals[0]
    name = f"{before.name}_{'one' if block is None else 'four'}"
    sum_ = Local(name, total.dtype)
    step = update if block is None else four_rows(update, along, block)
    return [
        ir.Declare(sum_, ir.load(total, place)),
        ir.Reduce((sum_,), step.combine, step.values),
        ir.Store(total, place, ir.local(sum_)),
    ]


def four_rows(update: ir.Reduce, along: Index, block: Index) -> ir.Reduce:
    """The update for rows 4*block to 4*block+3: joined in pairs, then added once.

    Wherever a reduction runs along an outer axis its rows are added this way, so that
    all lowerings agree bit for bit.
    """
    rows = []
    for offset in range(ROWS):
        (moved,) = substitute_indices([update], {along: block * ROWS + offset})
        assert isinstance(moved, ir.Reduce)
        rows.append(moved.values)
    if update.combine == "fma":
        pairs = [ir.op("fma", *rows[i + 1], rows[i][0] * rows[i][1]) for i in (0, 2)]
        return ir.Reduce(update.locals, "add", (pairs[0] + pairs[1],))
    kind = update.combine
    pairs = [_joined(kind, rows[i][0], rows[i + 1][0]) for i in (0, 2)]
    return ir.Reduce(update.locals, kind, (_joined(kind, pairs[0], pairs[1]),))


def _joined(kind: str, a: Value, b: Value) -> Value:
    if kind in ("fastmax", "fastmin"):
        better = b > a if kind == "fastmax" else b < a
        return ir.select(better, b, a)
    return ir.op(kind, a, b)


def _read_totals(
    finals: Sequence[Statement], totals: dict[Local, Buffer], place: Dim
) -> tuple[Statement, ...]:
    """The final statements with accumulators read back from scratch."""

    def leaf(value: Value) -> Value:
        if value.op == "local" and value.data[0] in totals:
            return ir.load(totals[value.data[0]], place)
        return value

    return map_statements(finals, ValueMap(leaf))


def is_worth_streaming(rows: Dim, columns: Dim) -> bool:
    """Whether there are so many rows and columns that reading them in order pays."""
    high_rows, high_columns = upper_bound(rows), upper_bound(columns)
    is_long = high_rows is None or high_rows >= 16 * ROWS
    return is_long and (high_columns is None or high_columns >= BLOCK // 4)
