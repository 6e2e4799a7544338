"""ExecutionPlanBuilder: the one way to make a plan.

    buffers + Prepared* records + variables, guards, inputs, outputs  --build()-->  ExecutionPlan

`build()` checks everything that can be wrong before anything runs, resolves dependencies,
and derives the order that bytes demand. Operations keep the order in which they were added
unless a dependency says otherwise; with unique ids a dependency may point forward. That is
the *schedule order*: of two operations that share bytes, the earlier one runs first. A build
that fails changes nothing: put right what it names and build again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from semel.errors import (
    CustomFunctionError,
    PlanError,
    ReleasedError,
    UnsupportedError,
    VariableError,
)
from semel.ir.expr import Dim, Index, Variable, substitute, upper_bound, variables
from semel.ir.fields import take, take_dim, take_int, take_ints, take_threads, take_value
from semel.ir.types import TensorType
from semel.plan.amounts import MOST_TILES, Amount, Guard, settle
from semel.plan.dependencies import resolve_dependencies, topological_order
from semel.plan.link import KernelBinder
from semel.plan.loops import PlanLoop, check_counters, counters, fence_dependencies, find_loops
from semel.plan.parts import PlanParts
from semel.plan.plan import ExecutionPlan
from semel.plan.prepared import (
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedEnd,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    RuntimeVar,
)
from semel.plan.state import PlanIO, PlanVariable
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction, custom_function_names, find_custom_function
from semel.runtime.device import check_device, find_device

#: Variables that the runtime owns: kernels learn who they are from their lane.
RESERVED_VARIABLES = frozenset({"core_id"})


class ExecutionPlanBuilder:
    """Collects buffers and operations; `build()` consumes it."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = check_device("builder", device)
        self._buffers: list[Buffer] = []
        self._ast_to_buffer: dict[int, int] = {}
        self._alias_ids: list[int] = []
        self._outputs: tuple[int, ...] | None = None
        self._ops: list[PreparedOp] = []
        self._instance_deps: list[tuple[int, ...]] = []
        self._variables: dict[str, PlanVariable] = {}
        self._guards: list[Guard] = []
        self._io: dict[str, list[PlanIO]] = {"input": [], "output": []}
        self._is_built = False

    # ------------------------------------------------------------ collecting

    def add_buffer(self, ast_id: int | None, buffer: Buffer) -> int:
        """Add a buffer under a node's id, if it has one; its index. Equal ones are not merged."""
        self._check_open("add_buffer")
        self._check_buffer("add_buffer", buffer)
        key = None if ast_id is None else take_int("add_buffer", "ast_id", ast_id)
        self._buffers.append(buffer)
        if key is not None:
            self._ast_to_buffer[key] = len(self._buffers) - 1
        return len(self._buffers) - 1

    def map_buffer(self, ast_id: int, index: int) -> None:
        """Let another id name the buffer at `index`."""
        self._check_open("map_buffer")
        key = take_int("map_buffer", "ast_id", ast_id)
        self._ast_to_buffer[key] = self._checked_index("map_buffer", index)

    def replace_buffer(self, index: int, buffer: Buffer) -> None:
        """Use another buffer in the place of the one at `index`."""
        self._check_open("replace_buffer")
        self._check_buffer("replace_buffer", buffer)
        self._buffers[self._checked_index("replace_buffer", index)] = buffer

    def set_output_buffer(self, index: int) -> None:
        """The plan has one output; replaces what was set before."""
        self.set_output_buffers([index])

    def set_output_buffers(self, indices: Sequence[int]) -> None:
        """The plan's outputs, in order; replaces what was set before."""
        self._check_open("set_output_buffers")
        self._outputs = take_ints("set_output_buffers", "indices", indices)

    def add_kernel(self, kernel: PreparedKernel) -> int:
        """Add a kernel call; its position."""
        return self.add_op(kernel)

    def add_op(self, op: PreparedOp) -> int:
        """Add an operation; its position, which instance dependencies refer to."""
        return self.add_op_with_instance_dependencies(op, ())

    def add_op_with_instance_dependencies(self, op: PreparedOp, positions: Iterable[int]) -> int:
        """Add an operation that must follow those at `positions`, besides its `dependencies`."""
        self._check_open("add_op")
        if not isinstance(op, PreparedOp):
            raise PlanError("add_op", f"must be a Prepared* record, got {type(op).__name__}.")
        after = take_ints(f"op {op.id}", "positions", positions)
        self._ops.append(op)
        self._instance_deps.append(after)
        return len(self._ops) - 1

    def add_alias_ids(self, ids: Iterable[int]) -> None:
        """Further ids that the release callbacks are told about."""
        self._check_open("add_alias_ids")
        self._alias_ids += take_ints("add_alias_ids", "ids", ids)

    def declare_variable(
        self, variable: Variable, initial: int | None = None, *, capacity: int | None = None
    ) -> None:
        """Make a variable known, with its bounds and, if given, its first value.

        `capacity` is what the buffers are made for if the variable has no maximum.
        """
        where = "declare_variable"
        self._check_open(where)
        name = take(where, "variable", Variable, variable).name
        _check_reserved(where, name)
        if initial is not None:
            initial = take_value(where, f"the first value of '{name}'", initial)
            _check_bounds(RuntimeVar.of(variable), initial)
        if capacity is not None:
            capacity = take_value(where, f"the capacity of '{name}'", capacity)
        self._variables[name] = PlanVariable(variable, initial, capacity)

    def add_guard(self, expr: Dim, message: str) -> None:
        """`expr` must be 0 at every bind, else a VariableError with `message`."""
        self._check_open("add_guard")
        take("add_guard", "message", str, message)
        self._guards.append((take_dim("add_guard", "expr", expr), message))

    def declare_input(self, name: str, index: int, type: TensorType) -> None:
        """The buffer at `index` is the input `name`; its shape may depend on variables."""
        self._declare("input", name, index, type)

    def declare_output(self, name: str, index: int, type: TensorType) -> None:
        """The buffer at `index` is the output `name`."""
        self._declare("output", name, index, type)

    def _declare(self, kind: str, name: str, index: int, type: TensorType) -> None:
        where = f"declare_{kind}"
        self._check_open(where)
        take(where, "name", str, name)
        take(where, "type", TensorType, type)
        if any(other.name == name for other in self._io[kind]):
            raise PlanError("builder", f"{kind} names must be distinct, got '{name}' twice.")
        self._io[kind].append(PlanIO(name, self._checked_index(where, index), type))

    def _check_open(self, where: str) -> None:
        if self._is_built:
            raise PlanError(
                where,
                "build() was already called.",
                hint="A plan does not change: make another builder for another plan.",
            )

    def _checked_index(self, where: str, index: Any) -> int:
        found = take_int(where, "buffer index", index)
        if not 0 <= found < len(self._buffers):
            raise PlanError(
                where,
                f"buffer index must lie in [0, {len(self._buffers)}), got {found}.",
                index=found,
                num_buffers=len(self._buffers),
            )
        return found

    def _check_buffer(self, where: str, buffer: Buffer) -> None:
        if not isinstance(buffer, Buffer):
            raise PlanError(where, f"must be a Buffer, got {type(buffer).__name__}.")
        if buffer.device != self.device:
            raise PlanError(
                where,
                f"the buffer must lie on {self.device}, it lies on {buffer.device}.",
                hint="A plan runs on one device: copy it there first.",
                device=buffer.device,
            )
        if not buffer.memory.is_alive:
            raise ReleasedError(where, "the buffer's memory was released.")

    # ------------------------------------------------------------ building

    def build(
        self, *, threads: int | None = None, order: Sequence[int] | None = None
    ) -> ExecutionPlan:
        """Check everything and make the plan. `threads`: participants, the caller included.

        `order` are the positions of all operations in the order in which they are to be
        taken up: any order that keeps dependencies and hazards; others are an OrderError.
        """
        self._check_open("builder")
        device = find_device(self.device)
        given = take_threads("build", threads)
        threads = device.default_threads() if given is None else given
        for index, buffer in enumerate(self._buffers):
            self._check_buffer(f"buffer {index}", buffer)
        ops = [self._complete(op) for op in self._ops]
        outputs = self._checked_outputs()
        loops = find_loops(ops)
        after = [
            tuple(dict.fromkeys((*own, *fences)))
            for own, fences in zip(
                resolve_dependencies(ops, self._instance_deps),
                fence_dependencies(ops),
                strict=True,
            )
        ]
        check_counters(ops, loops)
        plan_variables = self._checked_variables(ops, loops)
        bounded = {v.variable.name: v.as_bounded() for v in plan_variables}
        self._check_sizes(ops, KernelBinder({**bounded, **counters(loops)}), counters(loops))
        self._check_io(bounded)
        guards = self._all_guards(ops, loops, plan_variables)
        schedule = tuple(topological_order(ops, after))
        plan = ExecutionPlan(
            PlanParts(
                device=device,
                buffers=tuple(self._buffers),
                ast_to_buffer=dict(self._ast_to_buffer),
                alias_ids=tuple(self._alias_ids),
                ops=tuple(ops),
                after=tuple(after),
                order=schedule,
                outputs=tuple(outputs),
                variables=plan_variables,
                guards=guards,
                input_io=tuple(self._io["input"]),
                output_io=tuple(self._io["output"]),
                threads=threads,
                run_order=None if order is None else _checked_order(order, len(ops)),
                functions=_functions(ops),
            )
        )
        self._is_built = True
        return plan

    def _complete(self, op: PreparedOp) -> PreparedOp:
        """The checked operation, with the fields that follow from the buffers filled in."""
        where = f"op {op.id}"
        for index in op.buffer_indices:
            self._checked_index(where, index)
        match op:
            case PreparedKernel():
                return self._complete_kernel(where, op)
            case PreparedCopy():
                self._check_copy(where, op)
            case PreparedBufferView():
                self._check_view(where, op)
            case PreparedCustomFunction():
                self._check_custom(where, op)
            case PreparedLoop() | PreparedEnd():
                if op.buffer_indices:
                    raise PlanError(where, "a loop has no buffers of its own.", op=op.id)
        return op

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
        _check_fixed(where, op.fixedvars, op.runtime_vars)
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
        where = f"{where} ({signature.name})"
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
        if op.device != self.device:
            raise PlanError(where, f"device must be {self.device}, got {op.device}.", op=op.id)
        self._check_arguments(where, op)
        runtime_vars = op.runtime_vars or tuple(RuntimeVar.of(v) for v in signature.variables)
        for what, given in (("runtime_vars", runtime_vars), ("vals", op.vals)):
            if len(given) != len(signature.variables) and not (what == "vals" and not given):
                raise PlanError(
                    where,
                    f"must have {len(signature.variables)} {what}, got {len(given)}.",
                    op=op.id,
                )
        _check_fixed(where, op.fixedvars, runtime_vars)
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
                if other != position and _overlap(ranges[position], where_other):
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

    def _checked_outputs(self) -> list[int]:
        declared = [io.index for io in self._io["output"]]
        outputs = declared if self._outputs is None else list(self._outputs)
        if self._buffers and not outputs:
            raise PlanError("builder", "output buffers must be set.")
        for index in outputs:
            self._checked_index("set_output_buffers", index)
        later = iter(outputs)
        if not all(index in later for index in declared):  # each found after the one before
            raise PlanError(
                "builder",
                f"declared outputs must be set in the same order, got buffers {declared} from "
                f"declare_output and {outputs} from set_output_buffers.",
                hint="Where all outputs are declared, set_output_buffers is not needed.",
            )
        return outputs

    # ------------------------------------------------------------ variables

    def _checked_variables(
        self, ops: Sequence[PreparedOp], loops: Sequence[PlanLoop]
    ) -> tuple[PlanVariable, ...]:
        """All variables of the plan by name, declared or seen by an operation."""
        found, late = dict(self._variables), counters(loops)
        for name in late.keys() & found.keys():
            raise PlanError("builder", f"'{name}' counts a loop and cannot be declared.")
        for op in ops:
            if isinstance(op, (PreparedKernel, PreparedCustomFunction)):
                initial = op.vals if isinstance(op, PreparedKernel) else ()
                for i, var in enumerate(op.runtime_vars):
                    if var.name not in op.fixedvars and var.name not in late:
                        value = initial[i] if initial else None
                        _merge(found, f"op {op.id}", var, value)
        used = [expr for expr, _ in self._guards]
        for expr, message in self._guards:
            _check_guard(expr, message)
        used += [dim for ios in self._io.values() for io in ios for dim in io.type.shape]
        used += [loop.trip for loop in loops]
        for dim in used:
            for variable in variables(dim):
                if variable.name in late:
                    raise PlanError("builder", f"{dim} must not depend on a loop's counter.")
                _merge(found, str(dim), RuntimeVar.of(variable), None)
        return tuple(found[name] for name in sorted(found))

    def _check_sizes(
        self, ops: Sequence[PreparedOp], binder: KernelBinder, late: Mapping[str, Variable]
    ) -> None:
        """Every buffer must hold what its kernel touches at the variables' maxima."""
        for op in ops:
            if isinstance(op, PreparedKernel):
                _check_fixed_work(op, binder, late)
                sizes = binder.bind(op).sizes_bytes
                for position, (index, size) in enumerate(
                    zip(op.buffer_indices, sizes, strict=True)
                ):
                    most, held = upper_bound(size), self._buffers[index].capacity_bytes
                    if most is None or most > held:
                        spec = op.kernel.signature.buffers[position]
                        raise PlanError(
                            f"op {op.id} ({op.kernel.name})",
                            f"buffer {index} must hold {spec.size} x {spec.dtype} of '{spec.name}' "
                            f"({'unbounded' if most is None else f'{most} bytes'} at the "
                            f"variables' maxima), it has {held} bytes.",
                        )

    def _all_guards(
        self,
        ops: Sequence[PreparedOp],
        loops: Sequence[PlanLoop],
        plan_variables: Sequence[PlanVariable],
    ) -> tuple[Guard, ...]:
        """The guards that were added, and those without which an amount could not be used."""
        # A maximum that is only a capacity may grow: it proves nothing.
        exact = {v.variable.name: v.variable for v in plan_variables}
        binder = KernelBinder({**exact, **counters(loops)})
        amounts = [Amount("guard", message, expr, is_count=False) for expr, message in self._guards]
        amounts += [
            Amount(f"{kind} '{io.name}'", f"axis {axis}", dim)
            for kind, ios in self._io.items()
            for io in ios
            for axis, dim in enumerate(io.type.shape)
        ]
        amounts += [Amount(f"op {ops[loop.begin].id}", "trip", loop.trip) for loop in loops]
        amounts = [replace(a, value=_in_terms_of(exact, a.value)) for a in amounts]
        for op in ops:
            if isinstance(op, PreparedKernel):
                where, bound = f"op {op.id} ({op.kernel.name})", binder.bind(op)
                amounts.append(Amount(where, "tiles", bound.tiles, most=MOST_TILES))
                amounts += [Amount(where, "size", size) for size in bound.sizes_bytes]
        divisions, counts = settle(amounts, {v.variable.name: v.top for v in plan_variables})
        own = {expr for expr, _ in self._guards}  # a plan from a file has them already
        return (
            *(guard for guard in divisions if guard[0] not in own),
            *self._guards,
            *(guard for guard in counts if guard[0] not in own),
        )

    def _check_io(self, bounded: Mapping[str, Variable]) -> None:
        """Declared inputs and outputs must fit their buffers at every value."""
        for kind, ios in self._io.items():
            for io in ios:
                where, buffer = f"{kind} '{io.name}'", self._buffers[io.index]
                if io.type.dtype != buffer.dtype:
                    raise PlanError(where, f"must be {buffer.dtype}, got {io.type.dtype}.")
                most = upper_bound(_in_terms_of(bounded, io.type.num_bytes))
                if most is None or most > buffer.capacity_bytes:
                    raise PlanError(
                        where,
                        f"{io.type} must fit its buffer of {buffer.capacity_bytes} bytes, it takes "
                        f"{'any number' if most is None else most}.",
                    )
            _check_shared(kind, ios)


def _in_terms_of(known: Mapping[str, Variable], value: Dim) -> Dim:
    """The expression over the plan's variables, whose bounds are what all its users allow."""
    return substitute(value, {v: known[v.name] for v in variables(value)})


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


def _check_fixed_work(
    op: PreparedKernel, binder: KernelBinder, late: Mapping[str, Variable]
) -> None:
    """Chunks are cut at the bind, so iterations differ in what they touch and not in how much."""
    bound = binder.bind(op)
    amounts = (bound.tiles, bound.flops, bound.bytes, bound.scratch_bytes, *bound.sizes_bytes)
    for amount in amounts if late else ():
        if any(v.name in late for v in variables(amount)):
            raise PlanError(
                f"op {op.id} ({op.kernel.name})",
                f"tiles and sizes must not depend on a loop's counter, got {amount}.",
                op=op.id,
            )


def _overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    return a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2])


def _functions(ops: Sequence[PreparedOp]) -> dict[str, CustomFunction]:
    """The custom functions that the operations name, as registered now."""
    kinds = {op.kind for op in ops if isinstance(op, PreparedCustomFunction)}
    found = {kind: find_custom_function(kind) for kind in sorted(kinds)}
    return {kind: function for kind, function in found.items() if function is not None}


def _checked_order(order: Any, num_ops: int) -> tuple[int, ...]:
    found = take_ints("build", "order", order)
    if sorted(found) != list(range(num_ops)):
        raise PlanError(
            "order", f"must name each of the {num_ops} operations once, got {list(found)}."
        )
    return found


def _check_reserved(where: str, name: str) -> None:
    if name in RESERVED_VARIABLES:
        raise VariableError(
            where,
            f"'{name}' is reserved for the runtime.",
            hint="A kernel finds its participant in its lane; a fixed value goes to fixedvars.",
            variable=name,
        )


def _check_fixed(where: str, fixed: Mapping[str, int], runtime_vars: Iterable[RuntimeVar]) -> None:
    """Fixed values of the operation's variables must lie within their bounds."""
    known = {var.name: var for var in runtime_vars}
    for name, value in fixed.items():
        if name in known:
            _check_bounds(known[name], value, where)


def _check_guard(expr: Dim, message: str) -> None:
    if isinstance(expr, Index) or any(isinstance(v, Index) for v in variables(expr)):
        raise PlanError("add_guard", f"must be over variables, got {expr} ({message}).")


def _check_bounds(var: RuntimeVar, value: int, where: str = "builder") -> None:
    if value < var.min_val or (var.max_val is not None and value > var.max_val):
        top = "..." if var.max_val is None else var.max_val
        raise VariableError(
            where,
            f"'{var.name}' must lie in [{var.min_val}, {top}], got {value}.",
            variable=var.name,
            value=value,
        )


def _merge(
    found: dict[str, PlanVariable], where: str, var: RuntimeVar, initial: int | None
) -> None:
    """Add what one operation says about a variable; bounds are met, first values must agree."""
    _check_reserved(where, var.name)
    old = found.get(var.name)
    if old is None:
        variable = Variable(var.name, var.min_val, var.max_val)
        old = PlanVariable(variable, None)
    low = max(old.variable.min, var.min_val)
    tops = [t for t in (old.variable.max, var.max_val) if t is not None]
    high = min(tops) if tops else None
    if high is not None and high < low:
        raise PlanError(where, f"the bounds of '{var.name}' exclude each other.")
    if initial is not None and old.initial is not None and initial != old.initial:
        raise PlanError(
            where, f"'{var.name}' must start with one value, got {old.initial} and {initial}."
        )
    merged = PlanVariable(
        Variable(var.name, low, high),
        old.initial if initial is None else initial,
        old.capacity,
    )
    if merged.initial is not None:
        _check_bounds(RuntimeVar.of(merged.variable), merged.initial)
    found[var.name] = merged
