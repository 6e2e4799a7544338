"""From operations to rows: what each touches, which run together, how each is called.

    ops + buffers + variables  --link_ops-->  LinkedOps (steps, rows)

This is the one place that turns Prepared* records into the runner's terms. Symbolic
quantities of a kernel are renamed to the plan's variables once per (kernel, variables) and
shared by all its calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semel.errors import OrderError, PlanError
from semel.ir.abi import RowKind
from semel.ir.expr import Dim, Variable, substitute, upper_bound
from semel.plan.hazards import Access, OpAccess, conflict_kind, find_conflicts, form_steps
from semel.plan.loops import PlanLoop, find_loops
from semel.plan.prepared import (
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedEnd,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
)
from semel.runtime.bases import FIXED
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction
from semel.runtime.optable import TableLoop, TableRow, TableStep

_COPY_TILE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """A kernel's symbolic quantities in the plan's variables."""

    values: tuple[Dim, ...]
    tiles: Dim
    flops: Dim
    bytes: Dim
    tile_bytes: tuple[Dim | None, ...]
    sizes_bytes: tuple[Dim, ...]
    scratch_bytes: Dim


class KernelBinder:
    """Renames kernels' variables to the plan's; each distinct combination once."""

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        self._variables = variables
        self._known: dict[tuple[object, ...], BoundKernel] = {}

    def names(self, op: PreparedKernel) -> dict[Variable, Dim]:
        """For each variable of the kernel, what it stands for in the plan."""
        return {
            own: op.fixedvars[var.name] if var.name in op.fixedvars else self._variables[var.name]
            for own, var in zip(op.kernel.signature.variables, op.runtime_vars, strict=True)
        }

    def values(self, op: PreparedCustomFunction) -> tuple[Dim, ...]:
        """The values behind the variables of a native custom function."""
        return tuple(
            op.fixedvars[var.name] if var.name in op.fixedvars else self._variables[var.name]
            for var in op.runtime_vars
        )

    def bind(self, op: PreparedKernel) -> BoundKernel:
        """The kernel of `op` in the plan's variables."""
        key = (id(op.kernel), op.runtime_vars, *sorted(op.fixedvars.items()))
        if key not in self._known:
            self._known[key] = self._bind(op)
        return self._known[key]

    def _bind(self, op: PreparedKernel) -> BoundKernel:
        names, signature = self.names(op), op.kernel.signature
        specs = signature.buffers
        return BoundKernel(
            values=tuple(names[v] for v in signature.variables),
            tiles=substitute(signature.tiles, names),
            flops=substitute(signature.flops, names),
            bytes=substitute(signature.bytes, names),
            tile_bytes=tuple(
                None
                if s.tile_stride is None
                else substitute(s.tile_stride, names) * s.dtype.size_bytes
                for s in specs
            ),
            sizes_bytes=tuple(substitute(s.size, names) * s.dtype.size_bytes for s in specs),
            scratch_bytes=substitute(signature.scratch_bytes, names),
        )


@dataclass(frozen=True, slots=True)
class LinkedOps:
    """`steps` of segments of positions; `row_ops[r]` is the position behind row r.

    `order` has every position in the order in which operations are taken up; views, which have
    no row, stand as early as what they must follow allows. `before[i]` are the positions that
    must come before i: dependencies, and the nearest operations that it shares bytes with.
    `bases` has the number of the base of each buffer that can move.
    """

    steps: list[list[list[int]]]
    row_ops: list[int]
    order: tuple[int, ...]
    rows: list[TableRow]
    table_steps: list[TableStep]
    before: list[tuple[int, ...]]
    loops: tuple[PlanLoop, ...]
    table_loops: list[TableLoop]
    bases: dict[int, int]


def link_ops(
    ops: Sequence[PreparedOp],
    after: Sequence[tuple[int, ...]],
    order: Sequence[int],
    run_order: Sequence[int] | None,
    buffers: Sequence[Buffer],
    binder: KernelBinder,
    functions: Mapping[str, CustomFunction],
    movable: Sequence[int],
) -> LinkedOps:
    """Steps and rows. Hazards are those of `order`; the buffers `movable` get bases.

    `run_order` is any order that keeps them, and is then the one to run in; without one,
    operations that conflict with nothing may move ahead to fill a step.
    """
    accesses = [
        _access(op, _predecessors(i, ops, after), buffers, binder, functions)
        for i, op in enumerate(ops)
    ]
    conflicts = find_conflicts(accesses, [i for i in order if _has_row(ops[i])])
    before = [tuple(sorted({*after[i], *conflicts[i]})) for i in range(len(ops))]
    if run_order is not None:
        _check_order(run_order, accesses, before)
    taken = order if run_order is None else run_order
    with_rows = [i for i in taken if _has_row(ops[i])]
    steps = form_steps(accesses, with_rows, conflicts, keep_order=run_order is not None)
    row_ops = [i for step in steps for segment in step for i in segment]
    loops = find_loops(ops)
    bases = {index: number for number, index in enumerate(movable)}
    trips = {end: loop.trip for loop in loops for end in (loop.begin, loop.end)}
    return LinkedOps(
        steps,
        row_ops,
        _with_views(row_ops, taken, before),
        [
            _loop_row(ops[i], trips[i])
            if i in trips
            else _row(ops[i], buffers, binder, functions, bases)
            for i in row_ops
        ],
        [
            TableStep(tuple(map(len, step)), _step_kind(ops[step[0][0]], functions))
            for step in steps
        ],
        before,
        loops,
        _table_loops(loops, steps),
        bases,
    )


def _with_views(
    row_ops: Sequence[int], order: Sequence[int], before: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """The order of the rows, with each operation that has none where all before it are done."""
    if len(row_ops) == len(order):
        return tuple(row_ops)
    place = {i: p for p, i in enumerate(order)}
    has_row = set(row_ops)
    views = [i for i in order if i not in has_row]
    found: dict[int, None] = {}
    for i in row_ops:
        ready = [v for v in views if place[v] < place[i] and found.keys() >= set(before[v])]
        found.update(dict.fromkeys((*ready, i)))
        views = [v for v in views if v not in found]
    return (*found, *views)


def _table_loops(
    loops: Sequence[PlanLoop], steps: Sequence[Sequence[Sequence[int]]]
) -> list[TableLoop]:
    """Where the loops begin and end among the steps: both ends are steps of their own."""
    at = {step[0][0]: number for number, step in enumerate(steps)}
    return [TableLoop(loop.counter, at[loop.begin], at[loop.end]) for loop in loops]


def levels(before: Sequence[tuple[int, ...]], order: Sequence[int]) -> list[list[int]]:
    """Operations by the longest chain of predecessors before them; ascending in each level."""
    depth: dict[int, int] = {}
    for i in order:
        depth[i] = 1 + max((depth[j] for j in before[i]), default=-1)
    result: list[list[int]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for i in sorted(depth):
        result[depth[i]].append(i)
    return result


def _has_row(op: PreparedOp) -> bool:
    return not isinstance(op, PreparedBufferView)


def _check_order(
    run_order: Sequence[int], accesses: Sequence[OpAccess], before: Sequence[tuple[int, ...]]
) -> None:
    """Every predecessor must come first; an OrderError names an edge that is broken."""
    place = {op: i for i, op in enumerate(run_order)}
    for i in run_order:
        for j in before[i]:
            if place[j] > place[i]:
                kind = conflict_kind(accesses[j], accesses[i])
                reason = f"{kind} hazard" if kind else "dependency"
                raise OrderError(
                    "order",
                    f"operation {j} must come before {i} ({reason}), it comes after.",
                    before=j,
                    after=i,
                    reason=reason,
                )


def scratch_bytes(ops: Sequence[PreparedOp], binder: KernelBinder) -> int:
    """What one participant needs for any kernel at any legal value."""
    most = 0
    for bound, op in ((binder.bind(op), op) for op in ops if isinstance(op, PreparedKernel)):
        top = upper_bound(bound.scratch_bytes)
        if top is None:
            raise PlanError(
                op.kernel.name, f"scratch of {bound.scratch_bytes} bytes must have an upper bound."
            )
        most = max(most, top)
    return most


def _step_kind(first: PreparedOp, functions: Mapping[str, CustomFunction]) -> RowKind:
    if isinstance(first, (PreparedLoop, PreparedEnd)):
        return _loop_kind(first)
    return RowKind.HOST_CALL if _is_hosted(first, functions) else RowKind.KERNEL


def _is_hosted(op: PreparedOp, functions: Mapping[str, CustomFunction]) -> bool:
    """Whether the runner comes back to Python for it."""
    return isinstance(op, PreparedCustomFunction) and functions[op.kind].convention != "kernel"


def _predecessors(
    i: int, ops: Sequence[PreparedOp], after: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """Explicit predecessors that have rows: a view stands for its own predecessors."""
    found: dict[int, None] = {}
    stack = list(after[i])
    while stack:
        j = stack.pop()
        if isinstance(ops[j], PreparedBufferView):
            stack += after[j]
        else:
            found[j] = None
    return tuple(found)


def _access(
    op: PreparedOp,
    after: tuple[int, ...],
    buffers: Sequence[Buffer],
    binder: KernelBinder,
    functions: Mapping[str, CustomFunction],
) -> OpAccess:
    ranges = [buffers[b].byte_range for b in op.buffer_indices]
    match op:
        case PreparedKernel():
            bound = binder.bind(op)
            accesses = tuple(
                Access(*where, position in op.output_indices, bound.tile_bytes[position])
                for position, where in enumerate(ranges)
            )
            is_alone = not op.kernel.host_parallel_safe
            return OpAccess(accesses, bound.tiles, after, is_alone)
        case PreparedCopy():
            dst, src = ranges
            tiles = _copy_tiles(dst, src)
            return OpAccess((Access(*dst, True), Access(*src, False)), tiles, after)
        case PreparedCustomFunction():
            declared = functions[op.kind].access(len(ranges), op.attrs)
            touched = tuple(
                Access(*where, "w" in how)
                for where, how in zip(ranges, declared, strict=True)
                if how
            )
            return OpAccess(touched, 1, after, is_alone=_is_hosted(op, functions))
        case PreparedLoop() | PreparedEnd():
            return OpAccess((), 1, after, is_alone=True)
        case PreparedBufferView():
            return OpAccess((), 1, after)


def _loop_kind(op: PreparedOp) -> RowKind:
    return RowKind.LOOP if isinstance(op, PreparedLoop) else RowKind.END


def _loop_row(op: PreparedOp, trip: Dim) -> TableRow:
    return TableRow(_loop_kind(op), 0, (), (), trip)


def _row(
    op: PreparedOp,
    buffers: Sequence[Buffer],
    binder: KernelBinder,
    functions: Mapping[str, CustomFunction],
    bases: Mapping[int, int],
) -> TableRow:
    own = [buffers[b] for b in op.buffer_indices]
    places = tuple(
        (bases[b], 0) if b in bases else (FIXED, buffers[b].address) for b in op.buffer_indices
    )
    match op:
        case PreparedKernel():
            bound = binder.bind(op)
            return TableRow(
                RowKind.KERNEL,
                op.kernel.address,
                places,
                bound.values,
                bound.tiles,
                bound.flops,
                bound.bytes,
                is_serial=not op.kernel.host_parallel_safe,
            )
        case PreparedCopy():
            size = own[0].capacity_bytes
            tiles = _copy_tiles(own[0].byte_range, own[1].byte_range)
            return TableRow(
                RowKind.COPY,
                0,
                places,
                (),
                tiles,
                bytes=2 * size,
                size_bytes=size,
                tile_bytes=size if tiles == 1 else _COPY_TILE_BYTES,
            )
        case PreparedCustomFunction() if not _is_hosted(op, functions):
            address = functions[op.kind].address
            return TableRow(RowKind.KERNEL, address, places, binder.values(op), 1)
        case _:
            return TableRow(RowKind.HOST_CALL, 0, (), (), 1)


def _copy_tiles(dst: tuple[int, int, int], src: tuple[int, int, int]) -> int:
    """Overlapping ranges are copied in one piece: only then is the order of bytes right."""
    overlap = dst[0] == src[0] and dst[1] < src[2] and src[1] < dst[2]
    return 1 if overlap else max(1, -(-(dst[2] - dst[1]) // _COPY_TILE_BYTES))
