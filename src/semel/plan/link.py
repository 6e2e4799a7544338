"""From rows to steps: what each touches, which run together, how each is called.

    PlanParts  --link_rows-->  LinkedRows (steps with jump targets, rows of the native table)

The tree of rows becomes one flat list of steps. Each list of rows is cut into steps by itself; a
row with bodies is alone in its step, and the steps of its bodies follow it, up to one that leads
back or on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from semel.errors import OrderError
from semel.ir.abi import RowKind
from semel.ir.expr import Dim, ceildiv
from semel.ir.fields import NO_LIMIT
from semel.plan.hazards import (
    Access,
    ByteRange,
    OpAccess,
    conflict_kind,
    find_conflicts,
    form_steps,
    overlap,
)
from semel.plan.parts import BlockKey, PlanParts
from semel.plan.row import Row
from semel.plan.rows import (
    PreparedBranch,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    PreparedRebind,
    PreparedSignal,
    PreparedWait,
)
from semel.plan.tree import Placed
from semel.runtime.bases import FIXED, Place
from semel.runtime.linked import FlatProgram
from semel.runtime.optable import TableHeld, TableInput, TableLoop, TableRebind, TableRow, TableStep

_COPY_TILE_BYTES = 256 << 10


class Meeting(PreparedWait):
    """A row at which the caller's lane comes back to Python, to begin or to end with the others."""

    __slots__ = ()


@dataclass(slots=True)
class LinkedRows:
    """`steps` of segments of positions; `row_ops[r]` is the position behind table row r.

    `order` has every position in the order in which rows are taken up; views, which have
    no row, stand as early as what they must follow allows. `before[i]` are the positions that
    must come before i: dependencies, and the nearest rows that it shares bytes with; of the first
    rows of a body, the row that it belongs to. `bases` has
    the number of the base of each buffer that can move: those of inputs, outputs and params, and of
    states whose next value is made in a second buffer. `waits` are, for rows that wait for rows
    of other lanes, the positions of those.
    """

    steps: list[list[list[int]]] = field(default_factory=list)
    row_ops: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    rows: list[TableRow] = field(default_factory=list)
    table_steps: list[TableStep] = field(default_factory=list)
    table_loops: list[TableLoop] = field(default_factory=list)
    table_rebinds: list[TableRebind] = field(default_factory=list)
    before: list[tuple[int, ...]] = field(default_factory=list)
    bases: dict[int, int] = field(default_factory=dict)
    waits: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def shown_steps(self) -> list[list[list[int]]]:
        """The steps without those that only lead elsewhere: each row once."""
        first: dict[int, list[list[int]]] = {}
        for step in self.steps:
            first.setdefault(step[0][0], step)
        return list(first.values())

    def as_flat(self, parts: PlanParts, marks: Sequence[Dim]) -> FlatProgram:
        """What a device links; `marks` are expressions whose largest values are kept."""
        known = parts.variables
        return FlatProgram(
            variables=tuple(v.variable for v in known),
            bounds=tuple((v.variable.min, NO_LIMIT if v.top is None else v.top) for v in known),
            initial=tuple(v.initial for v in known),
            guards=tuple(expr for expr, _ in parts.guards),
            inputs=(
                *(TableInput(io.name, io.type.shape) for io in parts.input_io),
                # Of a state only whether it is valid, which is told like what was written.
                *(TableInput(state.name, ()) for state in parts.states),
                # And whether all params are there.
                *([TableInput("params", ())] if parts.program.params else []),
            ),
            rows=tuple(self.rows),
            steps=tuple(self.table_steps),
            loops=tuple(self.table_loops),
            rebinds=tuple(self.table_rebinds),
            marks=tuple(marks),
            bases=tuple(parts.buffers[index].address for index in self.bases),
            threads=parts.threads,
            scratch_bytes=parts.scope.scratch_bytes(parts.ops),
            held=tuple(TableHeld(v.variable, v.next) for v in known if v.next is not None),
            flips=tuple(
                (self.bases[s.index], self.bases[s.other])
                for s in parts.states
                if s.other is not None
            ),
        )


def link_rows(parts: PlanParts) -> LinkedRows:
    """Steps and flat rows."""
    return Linker(parts).link()


def levels(linked: LinkedRows, placed: Sequence[Placed]) -> list[list[int]]:
    """Rows by the longest chain of predecessors before them; ascending in each level.

    What follows a row with bodies comes after all that is inside it.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i in linked.order:
        around = [each.position for each in placed[i].around]
        done = (first[j] if j in around else last[j] for j in linked.before[i])
        first[i] = last[i] = 1 + max(done, default=-1)
        for outer in around:
            last[outer] = max(last[outer], first[i])
    result: list[list[int]] = [[] for _ in range(max(first.values(), default=-1) + 1)]
    for i in sorted(first):
        result[first[i]].append(i)
    return result


class Linker:
    """Walks the blocks and writes steps down."""

    def __init__(self, parts: PlanParts) -> None:
        self._parts, self._ops, self.scope = parts, parts.ops, parts.scope
        params = (recipe.value for recipe in parts.program.recipes)
        ios = (io.index for io in (*parts.input_io, *parts.output_io))
        movable = dict.fromkeys((*ios, *params))
        for state in parts.states:
            if state.other is not None:
                movable.update(dict.fromkeys((state.index, state.other)))
        bases = {index: number for number, index in enumerate(movable)}
        self._made = LinkedRows(before=[()] * len(parts.ops), bases=bases)
        self._accesses = [self._access(i) for i in range(len(parts.ops))]
        self._join_insides()

    def link(self) -> LinkedRows:
        self._block(None, self._parts.run_order)
        return self._made

    # ------------------------------------------------------------ blocks

    def _block(self, key: BlockKey, run_order: Sequence[int] | None = None) -> None:
        """The steps of one list of rows. Hazards are those of its schedule order.

        `run_order` is any order that keeps them, and is then the one to run in; without one,
        rows that conflict with nothing may move ahead to fill a step.
        """
        order, after = self._parts.blocks[key], self._parts.after
        with_rows = [i for i in order if self._has_row(i)]
        # One row has nothing to meet: programs of one kernel are made and dropped all the time.
        conflicts: dict[int, dict[int, bool]] = {i: {} for i in with_rows}
        if len(with_rows) > 1:
            conflicts = find_conflicts(self._accesses, with_rows)
        before = {i: tuple(sorted({*after[i], *conflicts.get(i, ())})) for i in order}
        for i, found in before.items():
            self._made.before[i] = found or self._entered_from(key)
        if run_order is not None:
            self._check_order(run_order)
        taken = order if run_order is None else run_order
        steps = form_steps(
            self._accesses,
            [i for i in taken if self._has_row(i)],
            conflicts,
            keep_order=run_order is not None,
        )
        row_ops = [i for step in steps for segment in step for i in segment]
        views = _Views(row_ops, taken, before)
        for step in steps:
            self._made.order += views.up_to(step)
            self._step(step)
        self._made.order += views.rest()

    def _entered_from(self, key: BlockKey) -> tuple[int, ...]:
        """What the first rows of a list follow: the row that it is in, or the test before it."""
        if key is None:
            return ()
        position, number = key
        is_tested = isinstance(self._ops[position], PreparedLoop) and number == 1
        test = self._parts.blocks[position, 0] if is_tested else ()
        return tuple(sorted(test)) or (position,)

    def _step(self, step: list[list[int]]) -> None:
        first = step[0][0]
        row = self._ops[first]
        own_steps = STEPS.get(type(row))
        if own_steps is not None:
            own_steps(self, first, row)
            return
        kind = self._kind(row)
        rows = [self._row(self._ops[i], kind) for segment in step for i in segment]
        self.add(kind, step, rows)

    def add(self, kind: RowKind, step: list[list[int]], rows: Sequence[TableRow]) -> int:
        """One more step; its number."""
        made = self._made
        made.steps.append(step)
        made.row_ops += [i for segment in step for i in segment]
        made.rows += rows
        made.table_steps.append(TableStep(tuple(map(len, step)), kind))
        return len(made.table_steps) - 1

    def loop(self, position: int, row: PreparedLoop) -> None:
        made, ends = self._made, [[position]]
        number = len(made.table_loops)
        made.table_loops.append(TableLoop(row.counter_variable, 0, 0))
        first = self.add(RowKind.LOOP, ends, [TableRow(RowKind.LOOP, 0, (), (), row.trip)])
        if row.buffer_indices:
            self._block((position, 0))
            leave = self._control(RowKind.BRANCH, position, self.places(row))
        self._block((position, 1))
        last = self.add(RowKind.END, ends, [TableRow(RowKind.END, 0, (), (), row.trip)])
        if row.buffer_indices:
            self._lead(leave)
        made.table_loops[number] = TableLoop(row.counter_variable, first, last)

    def branch(self, position: int, row: PreparedBranch) -> None:
        """The condition leads on to `then` or behind it; the end of `then` behind `orelse`."""
        otherwise = self._control(RowKind.BRANCH, position, self.places(row))
        self._block((position, 0))
        if row.orelse:
            over = self._control(RowKind.JUMP, position)
            self._lead(otherwise)
            self._block((position, 1))
            self._lead(over)
        else:
            self._lead(otherwise)

    def _control(self, kind: RowKind, position: int, places: tuple[Place, ...] = ()) -> int:
        """A step with a row that leads elsewhere; its number."""
        return self.add(kind, [[position]], [TableRow(kind, 0, places, (), 1)])

    def _lead(self, step: int) -> None:
        """Let a step lead to where the next one will be."""
        steps = self._made.table_steps
        steps[step] = replace(steps[step], target=len(steps))

    def rebind(self, position: int, row: PreparedRebind) -> None:
        number = self._control(RowKind.REBIND, position, self.places(row))
        known = [self._parts.bounded[v.name] for v in row.variables]
        bounds = tuple((v.min, NO_LIMIT if v.max is None else v.max) for v in known)
        guards = self._parts.guards_at.get(position, ())
        self._made.table_rebinds.append(TableRebind(number, tuple(known), bounds, guards))

    def places(self, row: PreparedOp) -> tuple[Place, ...]:
        """Where the buffers of a row lie: a base, or none, and bytes from there."""
        buffers, bases = self._parts.buffers, self._made.bases
        return tuple(
            (bases[b], 0) if b in bases else (FIXED, buffers[b].address) for b in row.buffer_indices
        )

    def _row(self, row: PreparedOp, kind: RowKind) -> TableRow:
        buffers, scope = self._parts.buffers, self.scope
        own = [buffers[b] for b in row.buffer_indices]
        places = self.places(row)
        match row:
            case PreparedKernel():
                bound = scope.bind(row)
                return TableRow(
                    RowKind.KERNEL,
                    row.kernel.address,
                    places,
                    bound.values,
                    bound.tiles,
                    bound.flops,
                    bound.bytes,
                    is_serial=not row.kernel.host_parallel_safe,
                )
            case PreparedCopy():
                size = own[0].capacity_bytes if row.size is None else scope.dim(row.size)
                tiles = _copy_tiles(size, *(buffer.byte_range for buffer in own))
                return TableRow(
                    RowKind.COPY,
                    0,
                    places,
                    (),
                    tiles,
                    bytes=2 * size,
                    size_bytes=size,
                    tile_bytes=own[0].capacity_bytes if tiles == 1 else _COPY_TILE_BYTES,
                )
            case PreparedCustomFunction() if kind is not RowKind.HOST_CALL:
                address = scope.function(row).address
                return TableRow(RowKind.KERNEL, address, places, scope.values(row), 1)
            case PreparedSignal() | PreparedWait():
                return TableRow(kind, row.signal.address, (), (row.value,), 1)
            case _:
                return TableRow(RowKind.HOST_CALL, 0, (), (), 1)

    # ------------------------------------------------------------ what rows touch

    def _has_row(self, i: int) -> bool:
        return self._ops[i].has_work

    def _kind(self, row: PreparedOp) -> RowKind:
        """What the runner does at a step of the row, which has no bodies."""
        match row:
            case Meeting():
                return RowKind.HOST_CALL
            case PreparedSignal():
                return RowKind.SIGNAL
            case PreparedWait():
                return RowKind.WAIT
            case PreparedCustomFunction():
                is_kernel = self.scope.function(row).convention == "kernel"
                return RowKind.KERNEL if is_kernel else RowKind.HOST_CALL
            case _:
                return RowKind.KERNEL

    def _access(self, i: int) -> OpAccess:
        row, buffers, after = self._ops[i], self._parts.buffers, self._predecessors(i)
        touched = tuple(
            Access(*buffers[use.index].byte_range, "w" in use.access, use.tile_bytes)
            for use in row.uses(self.scope)
            if use.access
        )
        match row:
            case PreparedKernel():
                is_alone = not row.kernel.host_parallel_safe
                return OpAccess(touched, self.scope.bind(row).tiles, after, is_alone)
            case PreparedCopy():
                dst, src = (buffers[b].byte_range for b in row.buffer_indices)
                size = dst[2] - dst[1] if row.size is None else self.scope.dim(row.size)
                return OpAccess(touched, _copy_tiles(size, dst, src), after)
            case _:
                is_alone = row.is_fence or type(row) in STEPS
                is_alone = is_alone or self._kind(row) is RowKind.HOST_CALL
                return OpAccess(touched, 1, after, is_alone)

    def _join_insides(self) -> None:
        """A row touches what is inside it; from the last one on, so that insides are complete."""
        for placed in reversed(self._parts.placed):
            if placed.around:
                outer = placed.around[-1].position
                own, inner = self._accesses[outer], self._accesses[placed.position]
                joined = tuple(
                    Access(a.storage, a.start, a.end, a.is_write) for a in inner.accesses
                )
                self._accesses[outer] = OpAccess(
                    tuple(dict.fromkeys((*own.accesses, *joined))), 1, own.after, is_alone=True
                )

    def _predecessors(self, i: int) -> tuple[int, ...]:
        """Explicit predecessors that have rows: a view stands for its own predecessors."""
        found: dict[int, None] = {}
        stack = list(self._parts.after[i])
        while stack:
            j = stack.pop()
            if self._has_row(j):
                found[j] = None
            else:
                stack += self._parts.after[j]
        return tuple(found)

    def _check_order(self, run_order: Sequence[int]) -> None:
        """Every predecessor must come first; an OrderError names an edge that is broken."""
        place = {op: i for i, op in enumerate(run_order)}
        for i in run_order:
            for j in self._made.before[i]:
                if place[j] > place[i]:
                    kind = conflict_kind(self._accesses[j], self._accesses[i])
                    reason = f"{kind} hazard" if kind else "dependency"
                    raise OrderError(
                        "order",
                        f"operation {j} must come before {i} ({reason}), it comes after.",
                        before=j,
                        after=i,
                        reason=reason,
                    )


class _Views:
    """Rows without work, each where all before it are done."""

    def __init__(
        self, row_ops: Sequence[int], taken: Sequence[int], before: Mapping[int, tuple[int, ...]]
    ) -> None:
        has_row = set(row_ops)
        self._place = {i: p for p, i in enumerate(taken)}
        self._left = [i for i in taken if i not in has_row]
        self._before, self._done = before, set[int]()

    def up_to(self, step: Sequence[Sequence[int]]) -> list[int]:
        """The rows of a step in order, and the views that can come before each."""
        found: list[int] = []
        for i in (i for segment in step for i in segment):
            for view in [v for v in self._left if self._place[v] < self._place[i]]:
                if self._done >= set(self._before[view]):
                    found.append(view)
                    self._left.remove(view)
                    self._done.add(view)
            found.append(i)
            self._done.add(i)
        return found

    def rest(self) -> list[int]:
        """The views that nothing follows."""
        return self._left


def _copy_tiles(size: Dim, dst: ByteRange, src: ByteRange) -> Dim:
    """Overlapping ranges are copied in one piece: only then is the order of bytes right."""
    if overlap(dst, src) or dst[2] - dst[1] <= _COPY_TILE_BYTES:
        return 1
    return ceildiv(size, _COPY_TILE_BYTES)


#: The rows that are steps of their own, alone in each of them, and who writes these steps.
STEPS: dict[type[Row], Callable[[Linker, int, Any], object]] = {
    PreparedLoop: Linker.loop,
    PreparedBranch: Linker.branch,
    PreparedRebind: Linker.rebind,
}
