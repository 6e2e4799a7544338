"""Everything that can be wrong with a program on its buffers, before anything runs.

    Program x buffers  --check_plan-->  PlanParts, or a typed error

What follows from the checks is written down on the way: rows completed from their kernels'
signatures, dependencies as positions, the schedule order, the variables of all rows together, and
the guards without which an amount could not be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from semel.errors import (
    CustomFunctionError,
    PlanError,
    UnsupportedError,
)
from semel.ir.expr import (
    Variable,
    is_nonnegative,
    upper_bound,
    variables,
)
from semel.ir.types import INT64
from semel.plan.dependencies import find_fences, resolve_dependencies, topological_order
from semel.plan.guards import all_guards
from semel.plan.hazards import overlap
from semel.plan.lanes import LaneChecker, check_lanes
from semel.plan.parts import BlockKey, PlanParts
from semel.plan.program import (
    WEIGHTS,
    InTermsOf,
    PlanIO,
    PlanVariable,
    Program,
    bounded_variables,
)
from semel.plan.row import RuntimeVar
from semel.plan.rows import (
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedKernel,
    PreparedOp,
    PreparedRebind,
    PreparedSignal,
    PreparedWait,
)
from semel.plan.scope import RowScope
from semel.plan.tree import Placed, map_rows, walk
from semel.plan.variables import (
    all_variables,
    check_fixed,
    check_late,
    check_loops,
    check_reserved,
)
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction, custom_function_names, find_custom_function
from semel.runtime.device import Device
from semel.runtime.timeline import TimelineSignal


def check_plan(
    program: Program,
    buffers: Sequence[Buffer],
    device: Device,
    threads: int,
    declared: Sequence[PlanVariable] | None = None,
) -> PlanParts:
    """The parts of a plan that runs the program on these buffers.

    `declared` are the program's variables with first values and capacities, if not its own.
    """
    declared = program.variables if declared is None else declared
    checker = _Checker(program, buffers)
    rows = map_rows(program.rows, checker.complete)
    placed = tuple(walk(rows))
    order = _Order(program.after, program.device)
    order.take(None, rows, 0)
    _check_run_order(program.run_order, order.blocks[None])
    unknown = sorted(program.after.keys() - order.edges.keys())
    if unknown:
        message = (
            f"must name rows of the program, of which there are {len(placed)}, got {unknown[0]}."
        )
        raise PlanError("after", message)
    counters = check_loops(placed)
    plan_variables, late = all_variables(program, declared, placed, counters)
    check_late(program, placed)
    check_lanes(program, placed)
    functions = _functions(placed)
    bounded = bounded_variables(plan_variables, late)
    scope = RowScope({**bounded, **counters}, functions, buffers)
    _check_sizes(placed, scope, counters, buffers)
    _check_constants(program, placed, scope)
    _check_io(program, bounded, buffers)
    # A maximum that is only a capacity may grow: it proves nothing.
    exact = {v.variable.name: v.variable for v in (*plan_variables, *late)}
    proving = scope if exact == bounded else RowScope({**exact, **counters}, functions, buffers)
    guards, guards_at = all_guards(program, placed, plan_variables, late, proving)
    parts = PlanParts(
        program=program,
        device=device,
        buffers=tuple(buffers),
        placed=placed,
        blocks=order.blocks,
        after=tuple(order.edges[i] for i in range(len(placed))),
        variables=plan_variables,
        late=late,
        guards=guards,
        guards_at=guards_at,
        threads=threads,
        functions=functions,
    )
    parts.keep_scope(scope)
    return parts


# ---------------------------------------------------------------- rows


class _Checker:
    """Looks at one row after the other."""

    def __init__(self, program: Program, buffers: Sequence[Buffer]) -> None:
        self._buffers = buffers
        self._places = LaneChecker(program.device, buffers)
        self._signals: dict[str, TimelineSignal] = {}
        self._variables = [v.variable.name for v in program.variables]

    def complete(self, row: PreparedOp) -> PreparedOp:
        """The checked row, with the fields that follow from the buffers filled in."""
        where = f"op {row.id}"
        for index in row.buffer_indices:
            check_index(where, index, len(self._buffers))
        row = self._places.complete(where, row)
        match row:
            case PreparedKernel():
                return self._complete_kernel(where, row)
            case PreparedCopy():
                self._check_copy(where, row)
            case PreparedBufferView():
                self._check_view(where, row)
            case PreparedCustomFunction():
                self._check_custom(where, row)
            case PreparedSignal() | PreparedWait():
                self._check_timed(where, row)
            case PreparedRebind():
                self._check_rebind(where, row)
            case _:
                row.check(where, [self._buffers[i].type for i in row.buffer_indices])
        return row

    def _check_timed(self, where: str, row: PreparedSignal | PreparedWait) -> None:
        """A name stands for one signal: reports and files know no more of it."""
        if row.buffer_indices:
            raise PlanError(where, f"a {row.kind} has no buffers.", op=row.id)
        if isinstance(row, PreparedSignal) and not row.signal.is_free:
            raise row.signal.refusal()
        known = self._signals.setdefault(row.signal.name, row.signal)
        if known is not row.signal:
            raise PlanError(
                where,
                f"each signal needs a name of its own, got '{row.signal.name}' for two.",
                op=row.id,
            )

    def _check_rebind(self, where: str, row: PreparedRebind) -> None:
        for variable, index in zip(row.variables, row.buffer_indices, strict=True):
            check_reserved(where, variable.name)
            buffer = self._buffers[index]
            if buffer.dtype != INT64 or buffer.type.num_elements != 1:
                raise PlanError(
                    where,
                    f"'{variable.name}' must come from a buffer of one int64, got {buffer.type}.",
                    op=row.id,
                    variable=variable.name,
                )

    def _check_custom(self, where: str, op: PreparedCustomFunction) -> None:
        where = f"{where} ({op.kind})"
        function = find_custom_function(op.kind)
        if function is None:
            known = ", ".join(custom_function_names()) or "none"
            raise UnsupportedError(
                where,
                f"custom function '{op.kind}' must be registered; known: {known}.",
                hint=f"It has {len(op.buffer_indices)} buffers and attrs={op.attrs!r}.",
                kind=op.kind,
                op=op.id,
            )
        check_fixed(where, op.fixedvars, op.runtime_vars)
        names = [*op.fixedvars, *(v.name for v in op.runtime_vars), *self._variables]
        types = [self._buffers[i].type for i in op.buffer_indices]
        try:
            function.access(len(op.buffer_indices), op.attrs)
            if function.check is not None:
                function.check(op.attrs, types, list(dict.fromkeys(names)))
        except CustomFunctionError as error:
            error.seen_at(where, op=op.id, kind=op.kind)
            raise
        except Exception as error:
            message = f"is called wrongly: {type(error).__name__}: {error}"
            raise CustomFunctionError(where, message, op=op.id, kind=op.kind) from error

    def _complete_kernel(self, where: str, op: PreparedKernel) -> PreparedKernel:
        signature = op.kernel.signature
        where = f"{where} ({op.name})"
        op.kernel.check_loaded()
        if not op.output_indices:
            raise PlanError(where, "must have at least one output index.", op=op.id)
        if len(set(op.output_indices)) != len(op.output_indices):
            raise PlanError(where, f"output indices repeat: {op.output_indices}.", op=op.id)
        for position in op.output_indices:
            if not 0 <= position < len(op.buffer_indices):
                raise PlanError(
                    where,
                    f"output indices must be positions among its {len(op.buffer_indices)} "
                    f"buffers, got {position}.",
                    op=op.id,
                    index=position,
                )
        if len(op.buffer_indices) != len(signature.buffers):
            raise PlanError(
                where,
                f"must have {len(signature.buffers)} buffers, got {len(op.buffer_indices)}.",
                op=op.id,
            )
        self._check_arguments(where, op)
        runtime_vars = op.runtime_vars or tuple(RuntimeVar.of(v) for v in signature.variables)
        for what, given in (("runtime_vars", runtime_vars), ("vals", op.vals)):
            if len(given) != len(signature.variables) and not (what == "vals" and not given):
                raise PlanError(
                    where,
                    f"must have {len(signature.variables)} {what}, got {len(given)}.",
                    op=op.id,
                )
        check_fixed(where, op.fixedvars, runtime_vars)
        if runtime_vars == op.runtime_vars and not op.buffer_ptrs and not op.buffer_ids:
            return op
        return replace(op, runtime_vars=runtime_vars, buffer_ptrs=(), buffer_ids=())

    def _check_arguments(self, where: str, op: PreparedKernel) -> None:
        """Each buffer as the kernel wants it, and no written one under another's bytes."""
        ranges = [self._buffers[i].byte_range for i in op.buffer_indices]
        for position, spec in enumerate(op.kernel.signature.buffers):
            buffer = self._buffers[op.buffer_indices[position]]
            if "w" in spec.access and position not in op.output_indices:
                raise PlanError(
                    where, f"writes '{spec.name}', so {position} must be an output index.", op=op.id
                )
            if buffer.dtype != spec.dtype:
                raise PlanError(
                    where, f"'{spec.name}' must be {spec.dtype}, got {buffer.dtype}.", op=op.id
                )
            if position not in op.output_indices:
                continue
            for other, where_other in enumerate(ranges):
                if other != position and overlap(ranges[position], where_other):
                    raise PlanError(
                        where,
                        f"'{spec.name}' is written, so its bytes must be its own; they overlap "
                        f"argument {other}.",
                        hint="A kernel that works in place takes the buffer once, as rw.",
                        op=op.id,
                    )

    def _check_copy(self, where: str, op: PreparedCopy) -> None:
        if len(op.buffer_indices) != 2:
            raise PlanError(
                where, f"a copy needs two buffers (dst, src), got {len(op.buffer_indices)}."
            )
        sizes = [self._buffers[i].capacity_bytes for i in op.buffer_indices]
        if sizes[0] != sizes[1]:
            raise PlanError(
                where, f"dst and src must have the same size, got {sizes[0]} and {sizes[1]} bytes."
            )

    def _check_view(self, where: str, op: PreparedBufferView) -> None:
        if len(op.buffer_indices) != 2:
            raise PlanError(
                where, f"a view needs two buffers (out, base), got {len(op.buffer_indices)}."
            )
        out, base = (self._buffers[i].byte_range for i in op.buffer_indices)
        start = base[1] + op.byte_offset
        if op.byte_offset < 0 or op.byte_size < 0 or start + op.byte_size > base[2]:
            raise PlanError(
                where,
                f"[{op.byte_offset}, {op.byte_offset + op.byte_size}) must lie within base's "
                f"{base[2] - base[1]} bytes.",
                op=op.id,
            )
        if out != (base[0], start, start + op.byte_size):
            raise PlanError(
                where,
                f"out must be (storage {base[0]}, [{start}, {start + op.byte_size})), "
                f"got (storage {out[0]}, [{out[1]}, {out[2]})).",
            )


def check_index(where: str, index: int, num_buffers: int) -> int:
    """The index, if there is such a buffer."""
    if not 0 <= index < num_buffers:
        raise PlanError(
            where,
            f"buffer index must lie in [0, {num_buffers}), got {index}.",
            index=index,
            num_buffers=num_buffers,
        )
    return index


def _functions(placed: Sequence[Placed]) -> dict[str, CustomFunction]:
    """The custom functions that rows name, as registered now."""
    rows = (p.row for p in placed)
    kinds = {row.kind for row in rows if isinstance(row, PreparedCustomFunction)}
    found = {kind: find_custom_function(kind) for kind in sorted(kinds)}
    return {kind: function for kind, function in found.items() if function is not None}


# ---------------------------------------------------------------- order


class _Order:
    """Each list of rows in schedule order, and what each row must follow, by position."""

    def __init__(self, given: Mapping[int, tuple[int, ...]], device: str) -> None:
        self._given, self._device = given, device
        self.blocks: dict[BlockKey, tuple[int, ...]] = {}
        self.edges: dict[int, tuple[int, ...]] = {}

    def take(self, key: BlockKey, block: Sequence[PreparedOp], start: int) -> int:
        """Order a list whose first row has position `start`; the position after its last."""
        positions: list[int] = []
        for row in block:
            positions.append(start)
            start += 1
            for number, body in enumerate(row.bodies):
                start = self.take((positions[-1], number), body, start)
        place = {position: i for i, position in enumerate(positions)}
        given = [_instances(block[i], self._given.get(p, ()), place) for p, i in place.items()]
        edges = [
            tuple(dict.fromkeys((*own, *fences)))
            for own, fences in zip(
                resolve_dependencies(block, given), find_fences(block, self._device), strict=True
            )
        ]
        self.blocks[key] = tuple(positions[i] for i in topological_order(block, edges))
        for position, found in zip(positions, edges, strict=True):
            self.edges[position] = tuple(positions[i] for i in found)
        return start


def _check_run_order(run_order: Sequence[int] | None, rows: Sequence[int]) -> None:
    if run_order is not None and sorted(run_order) != sorted(rows):
        raise PlanError(
            "order", f"must name each of the {len(rows)} operations once, got {list(run_order)}."
        )


def _instances(row: PreparedOp, after: Sequence[int], place: Mapping[int, int]) -> tuple[int, ...]:
    """Positions that a row must follow, as places in its own list."""
    for position in after:
        if position not in place:
            raise PlanError(
                f"op {row.id}",
                f"depends on position {position}, there are {', '.join(map(str, place))}.",
                op=row.id,
                dependency=position,
            )
    return tuple(place[position] for position in after)


# ---------------------------------------------------------------- amounts


def _check_sizes(
    placed: Sequence[Placed],
    scope: RowScope,
    counters: Mapping[str, Variable],
    buffers: Sequence[Buffer],
) -> None:
    """Every buffer must hold what its kernel touches at the variables' maxima."""
    for row in (p.row for p in placed):
        if isinstance(row, PreparedCopy):
            _check_copied_size(row, scope, counters, buffers)
        if not isinstance(row, PreparedKernel):
            continue
        _check_fixed_work(row, scope, counters)
        sizes = scope.bind(row).sizes_bytes
        for position, (index, size) in enumerate(zip(row.buffer_indices, sizes, strict=True)):
            most, held = upper_bound(size), buffers[index].capacity_bytes
            if most is None or most > held:
                spec = row.kernel.signature.buffers[position]
                raise PlanError(
                    f"op {row.id} ({row.name})",
                    f"buffer {index} must hold {spec.size} x {spec.dtype} of '{spec.name}' "
                    f"({'unbounded' if most is None else f'{most} bytes'} at the "
                    f"variables' maxima), it has {held} bytes.",
                )


def _check_copied_size(
    row: PreparedCopy,
    scope: RowScope,
    counters: Mapping[str, Variable],
    buffers: Sequence[Buffer],
) -> None:
    """Both buffers must hold what is copied, which is the same in all iterations of a loop."""
    if row.size is None:
        return
    where, size = f"op {row.id} (copy)", scope.dim(row.size)
    most, held = upper_bound(size), buffers[row.buffer_indices[0]].capacity_bytes
    if any(v.name in counters for v in variables(size)):
        raise PlanError(where, f"size must not depend on a loop's counter, got {size}.", op=row.id)
    if most is None or most > held or not is_nonnegative(size):
        raise PlanError(
            where, f"size must lie in [0, {held}], that of its buffers, got {row.size}.", op=row.id
        )


def _check_constants(program: Program, placed: Sequence[Placed], scope: RowScope) -> None:
    """Constants may lie in a file; of kernels, `check_program` has seen to it."""
    for row in (p.row for p in placed):
        for use in () if isinstance(row, PreparedKernel) else row.uses(scope):
            value = program.values[use.index]
            if "w" in use.access and value.place in WEIGHTS:
                message = f"'{value.name}' is written, it must be no constant."
                raise PlanError(f"op {row.id} ({row.name})", message, op=row.id)


def _check_fixed_work(
    row: PreparedKernel, scope: RowScope, counters: Mapping[str, Variable]
) -> None:
    """Chunks are cut at the bind, so iterations differ in what they touch and not in how much."""
    bound = scope.bind(row)
    amounts = (bound.tiles, bound.flops, bound.bytes, bound.scratch_bytes, *bound.sizes_bytes)
    for amount in amounts if counters else ():
        if any(v.name in counters for v in variables(amount)):
            raise PlanError(
                f"op {row.id} ({row.name})",
                f"tiles and sizes must not depend on a loop's counter, got {amount}.",
                op=row.id,
            )


def _check_io(program: Program, bounded: Mapping[str, Variable], buffers: Sequence[Buffer]) -> None:
    """Declared inputs and outputs must fit their buffers at every value."""
    named = InTermsOf(bounded)
    for kind, ios in (("input", program.inputs), ("output", program.outputs)):
        for io in ios:
            where, buffer = f"{kind} '{io.name}'", buffers[io.index]
            if io.type.dtype != buffer.dtype:
                raise PlanError(where, f"must be {buffer.dtype}, got {io.type.dtype}.")
            most = upper_bound(named(io.type.num_bytes))
            if most is None or most > buffer.capacity_bytes:
                raise PlanError(
                    where,
                    f"{io.type} must fit its buffer of {buffer.capacity_bytes} bytes, it takes "
                    f"{'any number' if most is None else most}.",
                )
            _check_part(where, io, named)
        _check_shared(kind, ios)


def _check_part(where: str, io: PlanIO, named: InTermsOf) -> None:
    """What is read or written of a tensor lies inside of it."""
    rest = [room - size for room, size in zip(io.type.shape, io.part, strict=False)]
    is_inside = all(is_nonnegative(named(each)) for each in rest)
    if io.part and (len(io.part) != io.type.rank or not is_inside):
        raise PlanError(where, f"a part of {io.type} must lie inside of it, got {io.part}.")


def _check_shared(kind: str, ios: Sequence[PlanIO]) -> None:
    """A buffer is one input, which is written in one shape; as several outputs, all of one type."""
    first: dict[int, PlanIO] = {}
    for io in ios:
        known = first.setdefault(io.index, io)
        where = f"{kind} '{io.name}'"
        if kind == "input" and known is not io:
            message = (
                f"must have a buffer of its own, buffer {io.index} is the input '{known.name}'."
            )
            raise PlanError(where, message)
        if known.type != io.type:
            message = f"must be {known.type} as the output '{known.name}' there, got {io.type}."
            raise PlanError(where, message)
