"""Elementwise and reducing groups to loops.

    Group(kind="loops") --lower_loops--> Kernel

A group without reductions is one loop nest over the root's elements. With
reductions it is, for every row (the loops that all reductions keep), a sequence
of *phases*, each a loop over what is reduced or over the row's own elements:

    softmax    for row: { max loop; exp-and-sum loop, keeping exp in scratch; scale loop }

A value that is dear and wanted by several phases is kept: in scratch, or in the
output that stores it anyway. If the innermost axis is reduced the phases' innermost
loops are vectors (row mode), else one vector loop over the innermost kept axis
surrounds them all (column mode).

Tiles: rows are dealt out in blocks large enough to be worth a claim, columns in
blocks of whole vectors. What one element's value is never depends on the tile.

One idea: one way to turn groups into loops; row mode and column mode share the phases and what is
kept between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from semel.ir.expr import (
    Dim,
    Index,
    ceildiv,
    linear_coefficient,
    maximum,
    minimum,
    product,
    substitute,
    sum_dims,
    upper_bound,
)
from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.ir.target import Target
from semel.ir.types import INT32, INT64, DType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Kernel, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.kernel.shared_lanes import RUN, widest_total
from semel.lower.column_reduce import ROWS, four_rows, is_worth_streaming, run_sums, stream_columns
from semel.lower.evaluate import Evaluator, combine_of, value_atoms, wanted_at
from semel.lower.lowered import (
    Lowered,
    Names,
    finish_kernel,
    make_buffers,
    merge_loops,
    split_rows,
)
from semel.lower.planes import Planes, find_planes
from semel.lower.split_concat import Span, find_parts
from semel.lower.transpose_copy import find_staged, find_turn, tile_staged, tile_turned
from semel.lower.windows import block_places, can_block, split_at_tests
from semel.ops.index_maps import Indices, flat_index
from semel.ops.state import stored_at, stored_shape
from semel.passes.decompose import adds_runs, is_longer_than_a_run
from semel.schedule.group import DEAR, Group
from semel.schedule.names import kernel_name
from semel.schedule.products import summed_product, views_below

#: Elements of work in one tile: some microseconds, small beside what a wake-up costs.
TILE_ELEMENTS = 16384
#: Rows shorter than this come in by themselves.
SHORT_ROW = 64
#: Above this a row of an elementwise kernel is cut into blocks of columns.
LONG_ROW = 1 << 16
#: Windows (3x3, 5x5) are reduced without a loop: counting would cost more than adding.
MAX_UNROLLED = 32


@dataclass
class _Phase:
    """One loop of a row: the reductions it computes, or the outputs it stores."""

    loops: list[Index]
    at: Indices
    reduces: list[Node]
    stores: list[Node]
    start: Dim = 0
    stop: Dim | None = None
    body: list[Statement] = field(default_factory=list)

    @property
    def rows(self) -> Indices:
        """The index with the phase's own loops left out: the row it works on."""
        return tuple(0 if i in self.loops else i for i in self.at)


def lower_loops(group: Group, target: Target) -> Lowered:
    """The kernel of an elementwise or reducing group."""
    return _Lowering(group, target).run()


class _Lowering:
    """One idea: the state of one lowering, and a method for each step of it."""

    def __init__(self, group: Group, target: Target) -> None:
        self.group, self.target = group, target
        self.names = Names()
        self.buffers = make_buffers(group.outputs, group.reads)
        self.checks: list[CheckInfo] = []
        self.known: dict[Node, Value] = {}
        self.kept: dict[Node, Buffer] = {}
        self.stored: set[Node] = set()
        self.scratch: list[Buffer] = []
        self.planes: Planes | None = None
        self.prelude: list[Statement] = []
        self.root_loops: Indices = tuple(self.names.index("i", d) for d in group.shape)
        self.outer, self.inner = self._split_loops()
        self.is_partial = any(n.attrs.chunk is not None for n in group.reduces)

    # ------------------------------------------------------------ structure

    def _split_loops(self) -> tuple[list[Index], list[Index]]:
        """The root's loops: those that reductions keep, and those that run in phases."""
        pairs = zip(self.root_loops, self.group.loops, strict=True)
        outer: list[Index] = []
        inner: list[Index] = []
        for mine, original in pairs:
            if isinstance(mine, Index):
                keeps = self.group.outer is None or original in self.group.outer
                (outer if keeps else inner).append(mine)
        return outer, inner

    def run(self) -> Lowered:
        is_whole = self.group.reduces or self.group.walk is not None
        parts = None if is_whole else find_parts(self.group, self.root_loops)
        if parts is not None:
            return Lowered(self._in_parts(*parts), tuple(self.buffers), self.group)
        phases = self._phases()
        if self._can_stream(phases):
            return Lowered(self._stream(phases), tuple(self.buffers), self.group)
        self._choose_kept(phases)
        self.planes = self._find_planes(phases[0])
        rows: list[Statement] = []
        for phase in phases:
            rows += self._lower_phase(phase)
        body = [*self.prelude, *rows]
        if self.planes is not None:
            kernel = self._finished(*self._in_planes(self.planes, tuple(body)))
            return Lowered(kernel, tuple(self.buffers), self.group, has_lanes=True)
        loops, statements = merge_loops(self.outer, body, self.names)
        kernel = self._finished(*self._tiled(loops, statements))
        return Lowered(kernel, tuple(self.buffers), self.group)

    def _find_planes(self, phase: _Phase) -> Planes | None:
        """Where the operand of windows that run along their places waits in scratch."""
        windows = [n for n in self.group.inside if n.op.slides]
        if not self._has_windows or not self._is_column_mode or self.inner:
            return None
        if len(windows) != 1 or len(self.group.reduces) != 1 or not self.outer:
            return None
        if any(n.op.gathers or n.op.may_fail for n in self.group.inside):
            return None
        (operand,), loadable = windows[0].inputs, self._loadable
        at = wanted_at(operand, phase.reduces[0].inputs, loadable, phase.at)
        return find_planes(operand, at, self.outer, phase.loops, loadable, self.names)

    def _in_planes(
        self, planes: Planes, body: tuple[Statement, ...]
    ) -> tuple[Index, tuple[Statement, ...]]:
        """The kernel by bands of a plane, each staged before its places are computed."""
        assert can_block(self.outer, body) or len(self.outer) == 1
        self.scratch.append(planes.scratch)
        evaluate = Evaluator(self._loadable, {}, self.checks, self.names)
        return planes.tiled(self.outer, body, evaluate, self.names, self.target, TILE_ELEMENTS)

    def _in_parts(self, axis: int, spans: Sequence[Span]) -> Kernel:
        """One nest per part of a concatenation; each part has tiles of its own."""
        pieces: list[tuple[Index, tuple[Statement, ...]]] = []
        for start, size in spans:
            along = self.names.index("i", size)
            at = tuple(start + along if d == axis else i for d, i in enumerate(self.root_loops))
            loops = [along if d == axis else i for d, i in enumerate(self.root_loops)]
            evaluate = Evaluator(self._loadable, {}, self.checks, self.names)
            stores: list[Statement] = [
                ir.Store(self.buffers[n], stored_at(n, at), evaluate(n, at))
                for n in updates_last(self.group.outputs)
            ]
            body = [*evaluate.prelude, *stores]
            named = [i for i in loops if isinstance(i, Index)]
            pieces.append(self._tiled(*merge_loops(named, body, self.names)))
        tile = Index("tile", sum_dims(t.extent for t, _ in pieces))
        first: Dim = 0
        statements: list[Statement] = []
        for own, piece in pieces:
            here = ir.index(tile)
            inside = (here >= ir.index(first)) & (here < ir.index(first + own.extent))
            statements.append(ir.If(inside, substitute_indices(piece, {own: tile - first})))
            first = first + own.extent
        return self._finished(tile, tuple(statements))

    def _can_stream(self, phases: list[_Phase]) -> bool:
        """Whether the group is one long reduction along an outer axis and what follows it."""
        if not self._is_column_mode or not self.outer or not self.group.reduces:
            return False
        if self.inner or self.is_partial:
            return False
        if len(phases[0].reduces) != len(self.group.reduces) or len(phases[0].loops) != 1:
            return False
        kinds = [ir.COMBINES[combine_of(n)] for n in self.group.reduces]
        if any(k.num_locals > 1 for k in kinds) or any(map(adds_runs, self.group.reduces)):
            return False
        return is_worth_streaming(phases[0].loops[0].extent, self.outer[-1].extent)

    def _stream(self, phases: list[_Phase]) -> Kernel:
        phase = phases[0]
        evaluate = Evaluator(self._loadable, self.known, self.checks, self.names)
        updates: list[Statement] = []
        finals: list[Statement] = []
        for node in phase.reduces:
            locals_, _, update = self._accumulate(node, phase, evaluate)
            updates += update
            self.known[node] = ir.cast(ir.local(locals_[-1]), node.type.dtype)
        finish = Evaluator(self._loadable, self.known, self.checks, self.names)
        for node in updates_last(self.group.outputs):
            is_reduced = node in phase.reduces
            at = self._kept_index(node) if is_reduced else self.group.place(node, self.root_loops)
            where = stored_at(node, at)
            finals.append(ir.Store(self.buffers[node], where, finish(node, at)))
        before = len(evaluate.prelude)
        body = [*evaluate.prelude, *updates, *finish.prelude, *finals]
        loops, merged = merge_loops(self.outer, body, self.names)
        split = before + len(updates)
        tile, self.scratch, statements = stream_columns(
            loops,
            phase.loops[0],
            merged[:before],
            [s for s in merged[before:split] if isinstance(s, ir.Reduce)],
            merged[split:],
            self.names,
            self._lanes,
        )
        return self._finished(tile, statements)

    def _phases(self) -> list[_Phase]:
        phases: list[_Phase] = []
        for level in self._levels():
            phases += [self._reduce_phase(reduces) for reduces in self._sharing_a_loop(level)]
        finals = [n for n in self.group.outputs if n not in self.group.reduces]
        if finals:
            phases.append(_Phase(list(self.inner), self.root_loops, [], finals))
        return phases

    def _levels(self) -> list[list[Node]]:
        """Reductions in an order in which each comes after those it needs."""
        depth: dict[Node, int] = {}
        reach: dict[Node, int] = {}
        for node in self.group.inside:
            below = max((reach.get(n, -1) for n in node.inputs), default=-1)
            if node in self.group.reduces:
                depth[node] = below + 1
                reach[node] = below + 1
            else:
                reach[node] = below
        count = max(depth.values(), default=-1) + 1
        return [[n for n in self.group.reduces if depth[n] == k] for k in range(count)]

    def _sharing_a_loop(self, reduces: Sequence[Node]) -> list[list[Node]]:
        """Reductions of one level that walk the same elements share one loop."""
        groups: dict[object, list[Node]] = {}
        for node in reduces:
            axes = node.attrs.axes
            key = (node.inputs[0].type.shape, axes, self._kept_index(node), adds_runs(node))
            groups.setdefault(key, []).append(node)
        return list(groups.values())

    def _reduce_phase(self, reduces: list[Node]) -> _Phase:
        node = reduces[0]
        shape = node.inputs[0].type.shape
        axes = node.attrs.axes
        kept = self._kept_index(node)
        at = tuple(
            self.names.index("r", shape[d]) if d in axes else kept[d] for d in range(len(shape))
        )
        loops = [i for d, i in enumerate(at) if d in axes and isinstance(i, Index)]
        phase = _Phase(loops, at, reduces, [])
        if self.is_partial and loops:
            chunk, which = node.attrs.chunk, kept[node.attrs.axis]
            phase.start = which * chunk
            phase.stop = minimum(which * chunk + chunk, shape[node.attrs.axis])
        return phase

    def _kept_index(self, node: Node) -> Indices:
        """The index of a reduction's result in terms of the row's loops."""
        mine = dict(zip(self.group.loops, self.root_loops, strict=True))
        return tuple(0 if i == 0 else mine[i] for i in self.group.rows[node])

    # ------------------------------------------------------------ values kept between phases

    def _choose_kept(self, phases: Sequence[_Phase]) -> None:
        """Dear values, and values stored anyway, that several phases want at every element."""
        reached = [self._reached(p) for p in phases]
        for node in reversed(self.group.inside):
            wanting = [p for p, nodes in zip(phases, reached, strict=True) if node in nodes]
            if len(wanting) < 2 or node in self.group.reduces:
                continue
            if any(node.type.shape != self._phase_shape(p) for p in wanting):
                continue
            # Another order of the rows: a phase would read what another row has stored.
            if len({p.rows for p in wanting}) > 1:
                continue
            if node in self.group.outputs:
                self.kept[node] = self._reread(node)
            elif self._own_work(node) >= DEAR and not self._is_below_kept(node, wanting):
                buffer = self._room_for(node, wanting[0])
                if buffer is not None:
                    self.kept[node] = buffer

    def _room_for(self, node: Node, phase: _Phase) -> Buffer | None:
        """Memory for a kept value: scratch for one row, or the root's own elements.

        In column mode many rows are under way at once and scratch would not stay in the
        cache, so a value lives where the root will overwrite it, or is computed again.
        """
        root = self.group.root
        if not self._is_column_mode:
            size = product(i.extent for i in phase.loops)
            buffer = Buffer(f"s{len(self.scratch)}", node.type.dtype, size, "s")
            self.scratch.append(buffer)
            return buffer
        is_free = root not in self.kept and self.buffers[root] not in self.kept.values()
        if is_free and root not in self.group.reduces and node.type == root.type:
            return self._reread(root)
        return None

    def _reread(self, node: Node) -> Buffer:
        """The output's buffer, which later phases read back."""
        old = self.buffers[node]
        new = Buffer(old.name, old.dtype, old.size, "rw")
        self.buffers[node] = new
        return new

    def _phase_shape(self, phase: _Phase) -> tuple[Dim, ...]:
        if phase.reduces:
            return phase.reduces[0].inputs[0].type.shape
        return self.group.shape

    def _reached(self, phase: _Phase) -> set[Node]:
        """Nodes computed in a phase; reductions of earlier phases are known by then."""
        found: set[Node] = set()
        stack = [n.inputs[0] for n in phase.reduces] + list(phase.stores)
        inside = set(self.group.inside)
        while stack:
            node = stack.pop()
            if node in found or node not in inside or node in self.group.reduces:
                continue
            found.add(node)
            stack.extend(node.inputs)
        return found

    def _own_work(self, node: Node) -> int:
        """The work of one element, down to loads, reductions and other kept values."""
        inside = set(self.group.inside)
        total, stack, seen = 0, [node], set()
        while stack:
            current = stack.pop()
            if current in seen or current not in inside or current in self.group.reduces:
                continue
            if current is not node and current in self.kept:
                continue
            seen.add(current)
            total += current.op.cost
            stack.extend(current.inputs)
        return total

    def _is_below_kept(self, node: Node, wanting: Sequence[_Phase]) -> bool:
        """Whether every phase but the first reaches the node only through kept ones."""
        inside = set(self.group.inside)
        for phase in wanting[1:]:
            stack = [n.inputs[0] for n in phase.reduces] + list(phase.stores)
            seen: set[Node] = set()
            while stack:
                current = stack.pop()
                if current is node:
                    return False
                if current in seen or current not in inside or current in self.kept:
                    continue
                seen.add(current)
                if current not in self.group.reduces:
                    stack.extend(current.inputs)
        return True

    # ------------------------------------------------------------ one phase

    def _lower_phase(self, phase: _Phase) -> list[Statement]:
        evaluate = self._evaluator(phase)
        declarations: list[Statement] = []
        statements: list[Statement] = []
        results: list[tuple[Node, Value]] = []
        for node in phase.reduces:
            locals_, declare, update = self._accumulate(node, phase, evaluate)
            declarations += declare
            statements += update
            results.append((node, _found(locals_, node.type.dtype)))
        for node in sorted(updates_last(phase.stores), key=self._lends_room):
            if node in self.stored:
                continue
            at = self.group.place(node, phase.at)
            value = evaluate(node, at)
            if node not in self.stored:
                where = stored_at(node, at)
                statements.append(ir.Store(self.buffers[node], where, value))
                self.stored.add(node)
        self.stored |= self._newly
        body = self._hoist_prelude(evaluate.prelude) + self._keeps + statements
        if not body:
            return []
        loops, merged = list(phase.loops), tuple(body)
        if not any(map(_order_counts, phase.reduces)):
            loops, merged = merge_loops(phase.loops, body, self.names)
        nest = self._nest(loops, merged, phase)
        after: list[Statement] = []
        for node, value in results:
            self.known[node] = value
            if node in self.group.outputs:
                where = flat_index(self._kept_index(node), node.type.shape)
                after.append(ir.Store(self.buffers[node], where, value))
        return [*declarations, *nest, *after]

    def _lends_room(self, node: Node) -> bool:
        """Whether an output's elements hold another value until they are stored: then last."""
        buffer = self.buffers[node]
        return any(n is not node and b is buffer for n, b in self.kept.items())

    @property
    def _loadable(self) -> dict[Node, Buffer]:
        """What other kernels and callers have written."""
        return {n: b for n, b in self.buffers.items() if n not in self.group.outputs}

    def _evaluator(self, phase: _Phase) -> Evaluator:
        self._keeps: list[Statement] = []
        values: dict[Node, Value] = {}
        evaluate = Evaluator(self._loadable, self.known, self.checks, self.names)

        def kept(node: Node, at: Indices) -> Value | None:
            staged = None if self.planes is None else self.planes.element(node, at)
            if staged is not None or node not in self.kept or at != phase.at:
                return staged
            buffer = self.kept[node]
            is_scratch = buffer.access == "s"
            row = _position(phase.loops) if is_scratch else flat_index(phase.at, node.type.shape)
            if node in values:
                return values[node]
            if node in self.stored:
                return ir.load(buffer, row)
            values[node] = self._compute(evaluate, node, at)
            self._keeps.append(ir.Store(buffer, row, values[node]))
            newly.add(node)
            return values[node]

        newly: set[Node] = set()
        evaluate.kept = kept
        self._newly = newly
        return evaluate

    def _compute(self, evaluate: Evaluator, node: Node, at: Indices) -> Value:
        """The node's own value, past the rule that would look it up."""
        lookup, evaluate.kept = evaluate.kept, lambda n, i: None if n is node else lookup(n, i)
        try:
            return evaluate._evaluate(node, at, None)
        finally:
            evaluate.kept = lookup

    def _accumulate(
        self, node: Node, phase: _Phase, evaluate: Evaluator
    ) -> tuple[list[Local], list[Statement], list[Statement]]:
        """The locals of a reduction, their declaration, and the step of the loop."""
        operand = node.inputs[0]
        kind = combine_of(node)
        dtype = operand.type.dtype.compute
        at = phase.at
        value = ir.cast(evaluate(operand, at), dtype)
        product = summed_product(node)
        best = Local(self.names("a"), dtype)
        declare: list[Statement] = [ir.Declare(best, ir.start_value(kind, dtype))]
        if kind in ("argmax", "argmin"):
            axis = node.attrs.axes[0]
            places = _places(dtype, operand.type.shape[axis])
            position = Local(self.names("a"), places)
            declare.append(ir.Declare(position, ir.const(places, places.highest)))
            place = ir.cast(ir.index(at[axis]), places)
            step = ir.Reduce((best, position), kind, (value, place))
            return [best, position], declare, [step]
        if product is not None:
            factors = value.args
            if value.op != "mul":  # it is read from memory here, for another reason
                *_, (_, below) = views_below(node, at)
                factors = tuple(evaluate(n, below) for n in product.inputs)
            return [best], declare, [ir.Reduce((best,), "fma", factors)]
        return [best], declare, [ir.Reduce((best,), kind, (value,))]

    def _hoist_prelude(self, prelude: list[Statement]) -> list[Statement]:
        """Bind and Check statements that only depend on the row go before all phases."""
        stays: list[Statement] = []
        row_known = set(self.outer) | {s.index for s in self.prelude if isinstance(s, ir.Bind)}
        for statement in prelude:
            used = frozenset().union(*(value_atoms(v) for v in ir.statement_values(statement)))
            uses_local = any(
                v.op == "local" for v in ir.walk_values(ir.statement_values(statement))
            )
            if used <= row_known and not uses_local:
                self.prelude.append(statement)
                if isinstance(statement, ir.Bind):
                    row_known.add(statement.index)
            else:
                stays.append(statement)
        return stays

    def _nest(
        self, loops: list[Index], body: tuple[Statement, ...], phase: _Phase
    ) -> tuple[Statement, ...]:
        """The phase's loops around its body, innermost last."""
        if not loops:
            return body
        unrolled = self._unrolled(loops, phase)
        *outer, last = loops
        if phase.stop is not None:
            body = self._run(last, body, phase, phase.start, phase.stop)
        elif self._has_runs(last, body, phase, is_alone=not outer):
            body = self._in_runs(last, body, phase)
        else:
            body = self._run(last, body, phase, 0, last.extent, last in unrolled)
        for loop in reversed(outer):
            body = (ir.Loop(loop, 0, loop.extent, body, unroll=loop in unrolled),)
        return body

    def _unrolled(self, loops: Sequence[Index], phase: _Phase) -> set[Index]:
        """The innermost loops of a window, as many as are worth repeating."""
        found: set[Index] = set()
        trips: Dim = 1
        for loop in reversed(loops if len(loops) > 1 and self._is_column_mode else ()):
            trips = trips * loop.extent
            if phase.stop is not None or not isinstance(trips, int) or trips > MAX_UNROLLED:
                break
            found.add(loop)
        is_all = len(found) == len(loops)
        return found if is_all or self._has_windows else set()

    def _run(
        self,
        loop: Index,
        body: tuple[Statement, ...],
        phase: _Phase,
        start: Dim,
        stop: Dim,
        unroll: bool = False,
    ) -> tuple[Statement, ...]:
        """Elements [start, stop) of the innermost loop; a run starts at a multiple of four."""
        if any(adds_runs(n) for n in phase.reduces):
            return (ir.Loop(loop, start, stop, body),)
        if not self._is_column_mode:
            return (ir.Loop(loop, start, stop, body, self._lanes),)
        if not _goes_by_fours(body):
            return (ir.Loop(loop, start, stop, body, unroll=unroll),)
        return self._by_fours(loop, body, start, stop, unroll)

    def _by_fours(
        self, loop: Index, body: tuple[Statement, ...], start: Dim, stop: Dim, unroll: bool
    ) -> tuple[Statement, ...]:
        """Four rows at a time, so that one addition need not wait for the last."""
        block = Index(self.names("q"), loop.extent // ROWS)
        stores = [s for s in body if not isinstance(s, ir.Reduce)]
        steps = [
            *(
                s
                for offset in range(ROWS)
                for s in substitute_indices(stores, {loop: block * ROWS + offset})
            ),
            *(four_rows(s, loop, block) for s in body if isinstance(s, ir.Reduce)),
        ]
        main = ir.Loop(block, start // ROWS, stop // ROWS, tuple(steps), unroll=unroll)
        rest = ir.Loop(loop, stop // ROWS * ROWS, stop, body, unroll=unroll)
        return tuple(each for each in (main, rest) if each.start != each.stop)

    def _has_runs(
        self, loop: Index, body: tuple[Statement, ...], phase: _Phase, *, is_alone: bool
    ) -> bool:
        """Whether sums along a loop are taken in runs: by what it may be, not what it is.

        Columns of several axes are added as one.
        """
        is_sum = widest_total(ir.Loop(loop, 0, loop.extent, body)) is not None
        is_taken = is_sum and not any(adds_runs(n) for n in phase.reduces)
        return (
            is_taken
            and is_longer_than_a_run(loop.extent)
            and (is_alone or not self._is_column_mode)
        )

    def _in_runs(
        self, loop: Index, body: tuple[Statement, ...], phase: _Phase
    ) -> tuple[Statement, ...]:
        """A run after the other, each with sums of its own, which are added in order.

        In rows the vector loop adds its lanes' sum to what there is; columns say so themselves.
        """
        run = Index(self.names("q"), ceildiv(loop.extent, RUN))
        start = run * RUN
        stop = minimum(start + RUN, loop.extent)
        before: list[Statement] = []
        after: list[Statement] = []
        if self._is_column_mode:
            body, before, after = run_sums(body, self.names)
        inner = self._run(loop, body, phase, start, stop)
        return (ir.Loop(run, 0, run.extent, (*before, *inner, *after)),)

    # ------------------------------------------------------------ vectors and tiles

    @property
    def _lanes(self) -> int:
        return self.target.vector_bits // 32

    @property
    def _is_column_mode(self) -> bool:
        """Whether one vector loop over kept columns surrounds the phases."""
        if not self.group.reduces:
            return True
        node = self.group.reduces[0]
        shape = node.inputs[0].type.shape
        axes = node.attrs.axes
        last = max((d for d, n in enumerate(shape) if n != 1), default=-1)
        return last >= 0 and last not in axes

    def _tiled(
        self, loops: list[Index], body: tuple[Statement, ...]
    ) -> tuple[Index, tuple[Statement, ...]]:
        """The loops dealt out to tiles."""
        if not loops:
            return Index("tile", 1), body
        if self._is_column_mode:
            if self._has_windows and can_block(loops, body):
                return block_places(loops, body, self.names, self.target, TILE_ELEMENTS)
            turn = None if self.group.reduces else find_turn(loops, body, self._lanes)
            if turn is not None:
                return tile_turned(loops, turn[0], body, self.names, turn[1])
            staged = None if self.group.reduces else find_staged(loops, body, self._lanes)
            if staged is not None and not self.scratch:
                tile, self.scratch, body = tile_staged(
                    loops, *staged, body, self.names, self._lanes
                )
                return tile, body
            return self._tile_columns(loops, body)
        return self._tile_rows(loops, body)

    @property
    def _has_windows(self) -> bool:
        has_window = any(n.op.slides for n in self.group.inside)
        return has_window and bool(self.group.reduces) and not self.is_partial

    def _finished(self, tile: Index, statements: tuple[Statement, ...]) -> Kernel:
        return finish_kernel(
            kernel_name(self.group),
            list(self.buffers.values()),
            self.scratch,
            tile,
            statements,
            self.checks,
            flops=self._flops(),
            notes=[repr(n) for n in self.group.inside],
        )

    def _flops(self) -> Dim:
        total: Dim = 0
        for node in self.group.inside:
            shape = node.inputs[0].type.shape if node.op.kind == "reduce" else stored_shape(node)
            total = total + product(shape) * node.op.cost
        return total

    def _row_work(self) -> int:
        """Elements of one row, at the variables' maxima."""
        sizes = [upper_bound(product(i.extent for i in self.inner)) or 1]
        for node in self.group.reduces:
            total = node.inputs[0].type.num_elements
            rows = product(i.extent for i in self.outer)
            sizes.append(upper_bound(total // rows if rows != 0 else 1) or 1)
        return max(sizes)

    def _tile_rows(
        self, loops: list[Index], body: tuple[Statement, ...]
    ) -> tuple[Index, tuple[Statement, ...]]:
        rows = product(i.extent for i in loops)
        if len(loops) == 1:
            body = _prefetch_next_row(loops[0], body)
        return self._block_rows(loops, rows, body, self._row_work())

    def _block_rows(
        self, loops: list[Index], rows: Dim, body: tuple[Statement, ...], work: int
    ) -> tuple[Index, tuple[Statement, ...]]:
        """Several rows a tile, so that a tile is worth claiming."""
        block = max(1, TILE_ELEMENTS // max(work, 1))
        high = upper_bound(rows)
        if high is not None:
            block = min(block, max(high, 1))
        tile = Index("tile", ceildiv(rows, block))
        if block == 1:
            return tile, substitute_indices(body, split_rows(tile, loops))
        start = tile * block
        stop = minimum(start + block, rows)
        return tile, self._rows_between(loops, rows, start, stop, body)

    def _rows_between(
        self,
        loops: list[Index],
        rows: Dim,
        start: Dim,
        stop: Dim,
        body: tuple[Statement, ...],
    ) -> tuple[Statement, ...]:
        """Rows [start, stop), counted by the last of their loops: a short one is not worth the
        divisions that its place in all loops would be found by."""
        *outer, last = loops
        if not outer:
            row = Index("row", rows)
            return (ir.Loop(row, start, stop, substitute_indices(body, {last: row})),)
        line, width = Index("row", product(i.extent for i in outer)), last.extent
        lines = substitute_indices(body, split_rows(line, outer))
        first = maximum(start - line * width, 0)
        end = minimum(stop - line * width, width)
        inner = split_at_tests(last, first, end, lines, self.names, 1)
        return (ir.Loop(line, start // width, ceildiv(stop, width), inner),)

    def _tile_columns(
        self, loops: list[Index], body: tuple[Statement, ...]
    ) -> tuple[Index, tuple[Statement, ...]]:
        """Vectors over the innermost loop; long rows are cut into blocks of columns."""
        column, rest = loops[-1], loops[:-1]
        lanes = self._lanes
        work = max(self._row_work(), 1)
        length = upper_bound(column.extent)
        rows = product(i.extent for i in rest)
        if rest and not self.group.reduces and length is not None and length <= LONG_ROW:
            inner = split_at_tests(column, 0, column.extent, body, self.names, lanes)
            return self._block_rows(rest, rows, inner, length)
        block = max(TILE_ELEMENTS // work, 4 * lanes) // lanes * lanes
        blocks = ceildiv(column.extent, block)
        tile = Index("tile", rows * blocks)
        start = (tile % blocks) * block if rest else tile * block
        stop = minimum(start + block, column.extent)
        if rest:
            body = substitute_indices(body, split_rows(tile // blocks, rest))
        return tile, (ir.Loop(column, start, stop, body, lanes),)


def updates_last(outputs: Sequence[Node]) -> list[Node]:
    """A kernel that updates a state in place stores to it when nothing else wants to read it."""
    return sorted(outputs, key=lambda node: node.op.kind == "update")


def _places(dtype: DType, extent: Dim) -> DType:
    """What holds the place of an extreme: as wide as the values, if all places fit."""
    most = upper_bound(extent)
    is_small = dtype.bits <= 32 and most is not None and most < INT32.highest
    return INT32 if is_small else INT64


def _found(locals_: Sequence[Local], dtype: DType) -> Value:
    """What a reduction leaves: the total, or the place of the best.

    Where nothing beats what all begin with, all elements equal it, and the first is the best.
    """
    *values, last = locals_
    found = ir.local(last)
    if values:
        is_first = found.eq(ir.const(last.dtype, last.dtype.highest))
        found = ir.select(is_first, ir.const(last.dtype, 0), found)
    return ir.cast(found, dtype)


def _order_counts(node: Node) -> bool:
    """Whether another order of addition gives other bits: its axes say it, not where data lies."""
    rule = node.op.combiner
    assert rule is not None
    return node.inputs[0].type.dtype.is_float and rule(node.attrs).rounds


def _goes_by_fours(body: tuple[Statement, ...]) -> bool:
    """Whether a loop adds to accumulators, in ways that may be regrouped, and may store.

    Sizes must not matter here, nor what is stored: a variable and a fixed size, and a sum with
    what it adds in a kernel of its own or not, give the same bits.
    """
    sums = [s for s in body if isinstance(s, ir.Reduce)]
    others = [s for s in body if not isinstance(s, ir.Reduce)]
    is_plain = all(isinstance(s, ir.Store) for s in others)
    return bool(sums) and is_plain and all(ir.COMBINES[s.combine].num_locals == 1 for s in sums)


def _prefetch_next_row(row: Index, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """While the second loop of a row computes, bring in what the first loop of the next reads.

    The first loop streams from memory and the others find the row in the cache: without
    this the memory would idle while they compute.
    """
    loops = [s for s in body if isinstance(s, ir.Loop) and s.lanes > 1]
    if len(loops) < 2 or loops[0].index.extent != loops[1].index.extent:
        return body
    length = upper_bound(loops[0].index.extent)
    if length is not None and length < SHORT_ROW:
        return body
    first, busy = loops[0], loops[1]
    hints: dict[Statement, None] = {}
    for value in ir.walk_values([v for s in first.body for v in ir.statement_values(s)]):
        if value.op != "load" or value.data[0].access != "r":
            continue
        buffer, at = value.data
        step, along = linear_coefficient(at, row), linear_coefficient(at, first.index)
        if step not in (None, 0) and along == 1:
            there = substitute(at, {first.index: busy.index})
            hints[ir.Prefetch(buffer, there + step)] = None
    ahead = replace(busy, body=(*hints, *busy.body))
    return tuple(ahead if s is busy else s for s in body)


def _position(loops: Sequence[Index]) -> Dim:
    """The place of an element in its row's scratch."""
    return flat_index(tuple(loops), tuple(i.extent for i in loops))
