"""ExecutionPlan: buffers, variables and a native op table; executes in one native call.

    PlanParts (checked by the builder)  -->  ExecutionPlan  --execute()-->  outputs

`execute()` is hot: one lock, one call without arguments, one test. All else happens at link
time, in the runner, or on the slow path behind the test (`_resolve`): refused variables,
failed checks, host calls, starting the pool, and coming back now and then so that signals
are seen. Runs of one plan are serialised; a run inside a run is an error.

Invariants: variables, shapes and tables change together or not at all. Outputs can be read
only while they are those of the last execute.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from semel.config import settings
from semel.errors import (
    CustomFunctionError,
    InputError,
    InternalError,
    OutOfMemoryError,
    PlanError,
    SemelError,
    VariableError,
)
from semel.ir.abi import Code
from semel.ir.expr import evaluate, variables
from semel.ir.fields import NO_LIMIT, take_callback, take_int, take_threads
from semel.ir.types import TensorType
from semel.plan.bindings import Bindings, check_array
from semel.plan.direct import LENT_FROM_BYTES, DirectCall
from semel.plan.file.write import PlanImage, pack_plan, save_plan, take_image
from semel.plan.link import levels, link_rows
from semel.plan.parts import PlanMemory, PlanParts
from semel.plan.pickled import restore_plan
from semel.plan.program import PlanIO, Program
from semel.plan.refusals import (
    as_value,
    as_values,
    find_io,
    guard_error,
    late_error,
    names_error,
    status_error,
    variable_error,
    written_error,
)
from semel.plan.release import passing_ranges
from semel.plan.report.describe import describe_arena, describe_ops, describe_plan
from semel.plan.report.explain import Explanation, explain_plan
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import RunInfo, merge_runs
from semel.plan.report.told import tell_growth
from semel.plan.rows import (
    KernelNotes,
    PreparedCustomFunction,
    PreparedKernel,
    PreparedOp,
    as_it_is,
    map_rows,
    walk,
)
from semel.plan.stale import Writer
from semel.plan.state import (
    ConstantKeeper,
    IntermediateKeeper,
    OutputKeeper,
    PlainKeeper,
    PlainOutputKeeper,
    PlanState,
    is_answered_for,
)
from semel.plan.store import ProgramStore, fork_buffers
from semel.plan.writers import find_writers
from semel.runtime.allocator import allocate
from semel.runtime.buffer import Array, Buffer, as_array
from semel.runtime.custom import call_on_host
from semel.runtime.events import LoggedRun
from semel.runtime.hold import alone
from semel.runtime.kernel import CachedKernel
from semel.runtime.linked import Executable, FlatProgram
from semel.runtime.memory import Memory

R = TypeVar("R")
#: Variables by name.
Values: TypeAlias = Mapping[str, int] | Iterable[tuple[str, int]]

_INTERRUPTED = "a change of its memory was interrupted."


class ExecutionPlan:
    """A computation bound to its memory; run it as often as you like.

    Made by `ExecutionPlanBuilder`, which gives it buffers, or from a compiled program by
    `instantiate`, with a store that can grow.
    """

    def __init__(self, parts: PlanParts, store: ProgramStore | None = None) -> None:
        self._parts, self._store = parts, store
        #: What the plan does. Another one with the same rows may explain them better.
        self.program: Program = parts.program
        self.compile_count = parts.program.compile_count
        self.memory_limit = None if store is None else store.options.memory_limit
        self._index = {v.variable.name: i for i, v in enumerate(parts.variables)}
        self._state = PlanState(parts.variables, parts.input_io, parts.late)
        self._state.request_capacity = weakref.WeakMethod(self._ensure_capacity)
        self._hold = self._state.hold
        self._lock = self._hold.lock
        self._fast: _FastCall | None = None
        self.growths = 0
        self._executable: Executable = parts.device.link(self._flatten())
        self._state.run = self._executable.state
        self._adopt_buffers()
        self._bindings = Bindings(parts.buffers, parts.written, self._state, parts.late)
        self._plain_enter = (
            self._poisoned if "poison" in settings().debug else self._executable.call
        )
        self._enter = self._plain_enter
        _plans.add(self)

    def __repr__(self) -> str:
        if self._state.is_released:
            return f"ExecutionPlan({self.device}, released)"
        values = self._state.current_values()
        return describe_plan(self._parts, values, self.memory.peak_bytes)

    # ------------------------------------------------------------ accessors

    @property
    def device(self) -> str:
        return self._parts.device.name

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers by index."""
        return self._parts.buffers

    @property
    def prepared_ops(self) -> tuple[PreparedOp, ...]:
        """The operations in the order they were added, as they are now.

        A kernel call has the current values of its variables as `vals` (none if one was never
        bound; of a loop's counter, where it stands), and where its buffers lie as `buffer_ptrs`
        and `buffer_ids`: bound arrays and grown memory show.
        """
        with self._lock:
            values = self._values_with_counters()
            buffers = () if self._state.is_released else self._parts.buffers
            rows = map_rows(self._parts.rows, lambda row: as_it_is(row, buffers, values))
            return tuple(placed.row for placed in walk(rows))

    def _values_with_counters(self) -> dict[str, int]:
        return {**self._state.current_values(), **self._state.run.iterations}

    @property
    def prepared_kernels(self) -> tuple[PreparedKernel, ...]:
        """The kernel calls among the operations, as they are now."""
        return tuple(op for op in self.prepared_ops if isinstance(op, PreparedKernel))

    @property
    def kernels(self) -> tuple[CachedKernel, ...]:
        """The distinct kernels, in order of first use."""
        return self._parts.program.kernels

    @property
    def ast_to_buffer_map(self) -> dict[int, int]:
        """Node id to buffer index."""
        return dict(self._parts.ast_to_buffer)

    @property
    def num_outputs(self) -> int:
        return len(self._parts.outputs)

    @property
    def output_buffer_idx(self) -> int:
        """Index of the first output's buffer."""
        if not self._parts.outputs:
            raise PlanError("plan", "has no outputs.")
        return self._parts.outputs[0]

    @property
    def output_buffer(self) -> Buffer | Any:
        """The first output; None if the plan has none, which only one built by hand can."""
        return self.output_buffer_at(0)

    @property
    def output_buffers(self) -> list[Buffer]:
        """The outputs in order."""
        return [self._parts.buffers[i] for i in self._parts.outputs]

    def output_buffer_at(self, index: int) -> Buffer | None:
        """The output at `index`, or None past the end."""
        outputs, at = self._parts.outputs, take_int("output_buffer_at", "index", index)
        return self._parts.buffers[outputs[at]] if 0 <= at < len(outputs) else None

    def buffer(self, tensor_or_id: Any) -> Buffer | None:
        """The buffer of a tensor (anything with `.id`) or of a node id; None if it has none."""
        key = getattr(tensor_or_id, "id", tensor_or_id)
        index = self._parts.ast_to_buffer.get(take_int("buffer", "a tensor's id", key))
        return None if index is None else self._parts.buffers[index]

    @property
    def kept(self) -> dict[str, Buffer]:
        """What `prepare(keep=...)` asked for, by name: readable after each run, like outputs."""
        return {name: self._parts.buffers[index] for name, index in self.program.kept}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(io.name for io in self._parts.input_io)

    @property
    def variables(self) -> dict[str, int | None]:
        """Current values by name; None: never bound, or late and not found out by a good run."""
        values = self._state.current_values()
        known = (*self._parts.variables, *self._parts.late)
        return {v.variable.name: values.get(v.variable.name) for v in known}

    @property
    def threads(self) -> int:
        """Participants of an execute at most."""
        return self._parts.threads

    @property
    def steps(self) -> list[list[list[int]]]:
        """How it runs: steps of segments of positions in `prepared_ops`; barriers between steps."""
        return self._linked.shown_steps()

    @property
    def op_order(self) -> tuple[int, ...]:
        """Positions in the order in which operations are taken up; views have their place too."""
        return tuple(self._linked.order)

    @property
    def op_dependencies(self) -> list[tuple[int, ...]]:
        """For each operation the positions it must follow: declared, or found from bytes."""
        return list(self._linked.before)

    @property
    def op_levels(self) -> list[list[int]]:
        """Positions by the longest chain of dependencies before them."""
        return levels(self._linked.before, self._linked.order)

    @property
    @alone
    def num_barriers(self) -> int:
        """How often the participants of one run wait for each other, at the current variables."""
        self._state.check_alive()
        if self._state.run.is_dirty:
            self._commit()
        return self._state.run.count_steps()[2]

    @property
    def memory(self) -> PlanMemory:
        """What the plan holds, in bytes."""
        scratch = self._executable.scratch_bytes
        if self._store is not None:
            return replace(self._store.memory, scratch_bytes=scratch)
        buffers = self._parts.buffers
        held = {b.memory.id: b.memory.size_bytes for b in buffers}
        owned = {buffers[i].memory.id for i in self._parts.own}
        return PlanMemory(
            weights_bytes=sum(size for id, size in held.items() if id not in owned),
            io_bytes=sum(size for id, size in held.items() if id in owned),
            scratch_bytes=scratch,
        )

    # ------------------------------------------------------------ running

    def execute(self) -> None:
        """Run with the current inputs and variables. Hot: allocates nothing."""
        with self._lock:
            hold = self._hold
            if hold.is_held:
                raise hold.refusal()
            try:
                hold.is_held = True
                code = self._enter()
                if code:
                    self._resolve(code, self._enter)
            except BaseException:
                self._abandon()
                raise
            finally:
                hold.is_held = False

    def execute_with_vars(self, values: Values | None = None, /, **named: int) -> None:
        """Bind variables and run. Checks everything first; values stay for later runs.

        They are given by name, as a mapping or as pairs: every keyword is a variable.
        """
        self._hold.alone(self._run_with, as_values(values, named))

    def _run_with(self, values: Mapping[str, int]) -> None:
        try:
            self._bind(values)
        except BaseException:
            self._abandon()
            raise
        self._run()

    def _commit(self) -> None:
        """Let the runner check the pending values and take them over, without a run."""
        self._run(self._executable.bind)

    def _run(self, enter: Callable[[], int] | None = None) -> None:
        """One run, by the plan's own entry or another, in the middle of an operation."""
        enter = self._enter if enter is None else enter
        try:
            code = enter()
            if code:
                self._resolve(code, enter)
        except BaseException:
            self._abandon()
            raise

    def execute_with_vars_profiled(
        self, values: Values | None = None, /, **named: int
    ) -> ProfileReport:
        """Bind variables like `execute_with_vars()`, run, and report every operation."""
        return self.execute_profiled(as_values(values, named))

    @alone
    def execute_profiled(
        self, values: Values | None = None, /, *, limits: bool = True, iterations: int = 1
    ) -> ProfileReport:
        """Run like `execute()`, with these variables if any, and report every operation.

        Lanes, times and rates: times are taken by the runner itself. With `limits`, rates are
        compared with what the machine reaches at best, which is measured once per process, after
        the run. With several `iterations`, as many runs are made: the report shows the one that
        was over first, and for each operation the least time that any of them took.
        """
        count = take_int("execute_profiled", "iterations", iterations)
        if count < 1:
            raise PlanError("execute_profiled", f"iterations must be >= 1, got {count}.")
        self._state.check_alive()
        try:
            self._bind(as_values(values, {}))
        except BaseException:
            self._abandon()
            raise
        # Bound first: only then is it known how many events there can be.
        self._commit()
        return self._report([self._run_logged() for _ in range(count)], limits)

    def _run_logged(self) -> LoggedRun:
        """One run with an entry that takes times; what happened in it."""
        self._bindings.before_run()
        with self._executable.log() as log:
            self._run(log.enter)
        self._bindings.after_run()
        return log.logged()

    def _report(self, runs: list[LoggedRun], with_limits: bool) -> ProfileReport:
        parts, values = self._parts, self._state.current_values()
        limits = parts.device.limits(parts.threads) if with_limits else None
        run = RunInfo(
            parts.device.name,
            parts.threads,
            values,
            *runs[-1].steps,
            self.memory.arena_bytes,
            describe_arena(parts, self._linked, values),
            limits,
            len(runs),
            max(logged.dropped for logged in runs),
        )
        ops = describe_ops(parts, self._linked, values)
        return ProfileReport(merge_runs(ops, [logged.events for logged in runs], limits), run)

    def explain(self) -> Explanation:
        """Which nodes became which kernels and why, buffers, steps, what variables change."""
        with self._lock:
            return explain_plan(
                self._parts,
                self._linked,
                self.memory,
                self._state.current_values(),
                self.compile_count,
            )

    def __call__(self, /, **inputs: Any) -> Any:
        """Copy the inputs in, bind variables from their shapes, run, return copies of the outputs.

        One array, or a tuple in output order.
        """
        result = self._hold.alone(self._call_again, inputs)
        if result is None:
            # Before the plan is held: an array may come from a buffer of this plan.
            arrays = self._as_arrays(inputs)
            result = self._hold.alone(self._call_slowly, arrays)
        return result

    def _call_again(self, inputs: Mapping[str, Any]) -> Any:
        """Run if all is as in the last call but the numbers; None if something is not."""
        fast = self._fast
        if fast is None or fast.version != self._state.version:
            return None
        slots = fast.inputs
        if len(inputs) != len(slots):
            return None
        for name, value in inputs.items():
            slot = slots.get(name)
            if slot is None or type(value) is not np.ndarray:
                return None
            _, shape, dtype = slot
            if value.shape != shape or value.dtype != dtype:
                return None
        for name, value in inputs.items():
            slots[name][0][...] = value
        self._run()
        return fast.copies()

    def _as_arrays(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        slots = self._state.inputs
        if not inputs.keys() <= slots.keys():
            raise names_error(set(inputs), set(slots))
        return {
            name: as_array(value, slots[name].type.dtype, f"input '{name}'")
            for name, value in inputs.items()
        }

    def _call_slowly(self, arrays: Mapping[str, Array]) -> Any:
        """Any shapes: check names, solve variables, grow if needed, then run and remember."""
        self._state.check_alive()
        slots, bound = self._state.inputs, self._bindings.input_shapes()
        if arrays.keys() != slots.keys() - bound.keys():
            raise names_error(set(arrays), slots.keys() - bound.keys())
        shapes = {name: array.shape for name, array in arrays.items()}
        values = self._state.solve({**shapes, **bound})
        self._ensure_capacity(values)
        self._commit_shapes(shapes, values)
        try:
            for name, array in arrays.items():
                self._parts.buffers[slots[name].index].put(array)
        except BaseException:  # a handler's: what is there is of another shape
            for name in arrays:
                slots[name].forget()
            raise
        self._run()
        if not self._parts.device.is_host:
            found = [buffer.peek(buffer.readable_shape()) for buffer in self.output_buffers]
            return found[0] if len(found) == 1 else tuple(found)
        self._fast = self._remember_call(arrays)
        return self._fast.copies()

    def _commit_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int]
    ) -> None:
        """Take over written shapes and variables together, or neither."""
        recorded = self._state.run.recorded
        before = recorded.copy()
        try:
            for name, shape in shapes.items():
                self._state.inputs[name].record(shape)
            if values:
                self._bind(values)
            if self._state.run.is_dirty:
                self._commit()
        except BaseException:
            recorded[:] = before
            self._state.run.mark_dirty()  # the runner may have taken the values over
            raise

    def _remember_call(self, arrays: Mapping[str, Array]) -> _FastCall:
        slots, buffers = self._state.inputs, self._parts.buffers
        views = {
            name: (buffers[slots[name].index].array(a.shape), a.shape, a.dtype)
            for name, a in arrays.items()
        }
        for buffer in self.output_buffers:
            buffer.readable_shape()  # refuses what this run did not write
        outputs = [self._copier(i) for i in self._parts.outputs]
        single = outputs[0] if len(outputs) == 1 else None
        return _FastCall(self._state.version, views, outputs, single)

    def _copier(self, index: int) -> Callable[[], Array]:
        """A way to copy an output after each run at the same variables."""
        buffer = self._parts.buffers[index]
        if self._has_late_shape(index):
            return lambda: buffer.array(buffer.readable_shape()).copy()
        return buffer.array(buffer.shape).copy

    def _has_late_shape(self, index: int) -> bool:
        """Whether only a run says how large an output is."""
        late = {v.variable.name for v in self._parts.late}
        kinds = (io.type for io in self._parts.output_io if io.index == index)
        return bool(late) and any(
            v.name in late for k in kinds for d in k.shape for v in variables(d)
        )

    # ------------------------------------------------------------ binding

    def _bind(self, values: Mapping[str, int]) -> None:
        """Put values into the pending area; the runner checks and commits them."""
        self._state.check_alive()
        index, state = self._index, self._state
        if len(values) == 1:  # the hot path of a decode loop: nothing is built on the way
            ((name, value),) = values.items()
            if name in index and type(value) is int and -NO_LIMIT <= value <= NO_LIMIT:
                run = state.run
                run.pending[index[name]] = value
                run.dirty[0] = 1
                state.version += 1
                return
        checked: list[tuple[int, int]] = []
        for name, value in values.items():
            if name not in index:
                known = ", ".join(index) or "none"
                if any(v.variable.name == name for v in self._parts.late):
                    raise VariableError(
                        "plan",
                        f"'{name}' is found out by each run, nobody binds it.",
                        variable=name,
                    )
                raise VariableError(
                    "plan", f"has no variable '{name}'; known: {known}.", variable=name
                )
            is_plain = type(value) is int and -NO_LIMIT <= value <= NO_LIMIT
            checked.append((index[name], value if is_plain else as_value(name, value)))
        for i, number in checked:
            state.run.pending[i] = number
        state.run.mark_dirty()
        state.version += 1

    def _ensure_capacity(self, values: Mapping[str, int]) -> None:
        """Grow the memory if a variable without a maximum goes beyond its capacity."""
        wanted: dict[str, int] = {}
        for plan_variable in self._parts.variables:
            name, top = plan_variable.variable.name, plan_variable.top
            if plan_variable.variable.max is None and top is not None:
                wanted[name] = top
                if values.get(name, 0) > top:
                    wanted[name] = max(values[name], 2 * top)
        if any(wanted[name] != self._top(name) for name in wanted):
            self._grow(wanted, values)

    def _top(self, name: str) -> int | None:
        return self._parts.variables[self._index[name]].top

    def _grow(self, capacities: Mapping[str, int], values: Mapping[str, int]) -> None:
        """Re-plan memory; doubled capacities first, the exact ones if those are refused."""
        exact = {n: max(self._top(n) or 0, values.get(n, 0)) for n in capacities}
        self._bindings.detach()
        try:
            self._state.is_moving = True
            used = self._resize_to(capacities, exact)
            self._parts = replace(
                self._parts,
                variables=tuple(
                    replace(v, capacity=used.get(v.variable.name, v.capacity))
                    for v in self._parts.variables
                ),
            )
            self._relink()
        finally:
            self._check_moved()
        self.growths += 1
        tell_growth(values, used, self.memory.peak_bytes)

    def _check_moved(self) -> None:
        """A signal that comes while memory moves leaves nothing that could be used safely."""
        if self._state.is_moving:
            self._executable.stop()
            self._state.give_up(_INTERRUPTED)

    def _resize_to(
        self, capacities: Mapping[str, int], exact: Mapping[str, int]
    ) -> Mapping[str, int]:
        store = self._store
        if store is None:
            raise InternalError("plan", "has a capacity but no way to grow.")
        try:
            try:
                store.resize(capacities, self._parts)
            except OutOfMemoryError:
                store.resize(exact, self._parts)
                return exact
        except OutOfMemoryError:  # which says so before anything moves
            self._attach()
            raise
        return capacities

    # ------------------------------------------------------------ arrays without a copy

    @alone
    def bind_input(self, name: str, array: Array) -> None:
        """Let the plan read the input from `array` itself at each run, until `unbind`.

        If the array overlaps what the plan writes, it is copied in before each run instead.
        """
        self._state.check_alive()
        io = find_io("input", self._parts.input_io, name)
        checked = check_array(io, array, is_output=False)
        self._ensure_capacity(self._state.solve({name: checked.shape}))
        self._rebind(lambda: self._bind_input(io, checked))

    def _bind_input(self, io: PlanIO, array: Array) -> None:
        self._bindings.add(io, array, is_output=False)
        keeper = self._state.inputs[io.name]
        keeper.record(array.shape)
        keeper.is_bound = True

    @alone
    def bind_output(self, name: str, array: Array) -> None:
        """Let the plan write the output to `array` itself at each run, until `unbind`.

        If the array overlaps anything that the plan uses, it is copied out after each run.
        """
        self._state.check_alive()
        io = find_io("output", self._parts.output_io, name)
        checked = check_array(io, array, is_output=True)
        self._rebind(lambda: self._bindings.add(io, checked, is_output=True))

    @alone
    def unbind(self, name: str | None = None) -> None:
        """Go back to the plan's own buffer for that input or output, or for all.

        An input must then be written again; an output is there after the next execute.
        """
        self._state.check_alive()
        names = [io.name for io in (*self._parts.input_io, *self._parts.output_io)]
        if name is not None and name not in names:
            known = ", ".join(names) or "none"
            raise InputError("plan", f"has no input or output '{name}'; known: {known}.", name=name)
        self._rebind(lambda: self._forget(name))

    def _forget(self, name: str | None) -> None:
        for binding in self._bindings.remove(name):
            if not binding.is_output:
                keeper = self._state.inputs[binding.io.name]
                keeper.is_bound = False
                keeper.forget()

    @property
    def staged(self) -> list[str]:
        """Names of the bound arrays that are copied at each run because they overlap."""
        return self._bindings.staged()

    def _rebind(self, change: Callable[[], None]) -> None:
        """Change what is bound; outputs of earlier runs are void."""
        self._state.void("arrays were bound or unbound")
        self._fast = None
        try:
            self._state.is_moving = True
            self._bindings.detach()
            change()
            self._attach()
        finally:
            self._check_moved()

    def _attach(self) -> None:
        try:
            self._state.is_moving = True
            self._bindings.attach(self._linked.bases)
            plain = self._plain_enter
            self._enter = partial(self._bindings.run, plain) if self._bindings else plain
            self._state.is_moving = False
        finally:
            self._check_moved()

    @alone
    def direct_call(self, names: Sequence[str]) -> DirectCall:
        """A short way to run this plan, whose shapes are all fixed: see plan/direct.py.

        The inputs are given in the order of `names`.
        """
        self._state.check_alive()
        buffers, keepers = self._parts.buffers, self._state.inputs
        slots: list[tuple[Array, int | None]] = []
        for name in names:
            keeper = keepers[name]
            view = buffers[keeper.index].array(keeper.shape_now())
            is_lent = view.nbytes >= LENT_FROM_BYTES and keeper.index not in self._parts.outputs
            slots.append((view, self._linked.bases[keeper.index] if is_lent else None))
            keeper.record(view.shape)
        outputs = [self._copier(i) for i in self._parts.outputs]
        return DirectCall(self, slots, outputs, self._state.run)

    # ------------------------------------------------------------ clones

    @alone
    def clone(self, *, threads: int | None = None) -> ExecutionPlan:
        """A plan of its own over the same kernels and constants, which may run at the same time.

        It starts with copies of the inputs and with the same variables; its outputs are void
        until it runs. In a plan built by hand, buffers that are neither written nor declared
        as inputs count as constants and are shared.
        """
        given = take_threads("clone", threads)
        self._state.check_alive()
        wanted = self._parts.threads if given is None else given
        made = self._again(wanted, self._store.again()) if self._store else self._fork(wanted)
        made._take_over(self)
        return made

    replicate = clone

    def _again(self, threads: int, store: ProgramStore) -> ExecutionPlan:
        """Another plan of the same program, with memory of its own."""
        made = replace(self._parts, buffers=store.buffers, threads=threads)
        return ExecutionPlan(made, store)

    def _fork(self, threads: int) -> ExecutionPlan:
        """Another plan on copies of the buffers that it was given."""
        self._bindings.detach()
        try:
            parts = self._parts
            buffers = fork_buffers(parts.buffers, sorted(parts.own))
        finally:
            self._attach()
        rows = map_rows(parts.rows, _cloned)
        program, placed = replace(parts.program, rows=rows), tuple(walk(rows))
        made = replace(parts, program=program, placed=placed, buffers=buffers, threads=threads)
        return ExecutionPlan(made)

    def _take_over(self, source: ExecutionPlan) -> None:
        """Start with the variables and inputs of another plan of the same program."""
        values = source._state.bound_values()
        self._ensure_capacity(values)
        for name, keeper in source._state.inputs.items():
            shape = keeper.recorded_shape()
            if shape is not None:
                bound = source._bindings.input_array(name)
                array = source._parts.buffers[keeper.index].peek(shape) if bound is None else bound
                self._parts.buffers[keeper.index].put(array)
                self._state.inputs[name].record(shape)
        self._set_values(values)
        self._state.run.set_marks(dict(enumerate(source._state.run.marks)))
        self.compile_count = source.compile_count

    # ------------------------------------------------------------ inside another plan

    @property
    def signature(self) -> dict[str, TensorType]:
        """What goes in and comes out, in order: "input 'x'" or "output 0", and its type."""
        parts = self._parts
        declared = {io.index: io.type for io in parts.output_io}
        outputs = (declared.get(i, parts.buffers[i].type) for i in parts.outputs)
        return {f"input '{io.name}'": io.type for io in parts.input_io} | {
            f"output {i}": kind for i, kind in enumerate(outputs)
        }

    @alone
    def run_between(
        self,
        values: Mapping[str, int],
        read: Callable[[str, tuple[int, ...]], Array],
        write: Callable[[int, Array], None],
    ) -> None:
        """Run as one operation: inputs from `read(name, shape)`, outputs to `write(i, array)`.

        The shapes are those at `values`, and at the variables as they are where it has none.
        """
        self._state.check_alive()
        values = {name: value for name, value in values.items() if name in self._index}
        known = {**self._state.bound_values(), **values}
        arrays = {io: read(io.name, _shape_at(io, known)) for io in self._parts.input_io}
        for io, array in arrays.items():
            self._state.inputs[io.name].begin_write(array.shape)
            self._parts.buffers[io.index].put(array)
            self._state.inputs[io.name].end_write(array.shape)
        self._run_with(values)
        for i, buffer in enumerate(self.output_buffers):
            write(i, buffer.peek(buffer.shape))

    # ------------------------------------------------------------ the slow path

    def _resolve(self, code: int, enter: Callable[[], int]) -> None:
        """Act on what the runner returned until it says OK, or raise."""
        while code:
            if code not in _GOING_ON:
                refuse = _REFUSALS.get(code)
                if refuse is None:
                    raise InternalError("runner", f"returned code {code}.")
                refuse(self)
            else:
                if code == Code.HOST_CALL:
                    self._on_host_call()
                # Returning to Python was the point: pending signals have been handled on the way.
                self._executable.go_on(code)
            code = enter()

    def _abandon(self) -> None:
        """After an exception: an unfinished run is over, refused values are forgotten."""
        if self._state.is_released:
            return
        run = self._state.run
        if run.is_busy:
            run.reset()
        if run.is_dirty:
            run.forget_pending()
            self._state.version += 1

    def _on_busy(self) -> None:
        raise self._hold.refusal()

    def _on_released(self) -> None:
        self._state.check_alive()
        # Interrupted a second time, after the entry was told and before the state was.
        self._state.give_up(_INTERRUPTED)
        self._state.check_alive()

    def _on_variable(self) -> None:
        i, run = self._state.run.error_index, self._state.run
        if i >= len(self._parts.variables):
            late = self._parts.late[i - len(self._parts.variables)].variable
            raise late_error(self._parts.bounded[late.name], run.value(i))
        value, known = run.pending[i], self._parts.variables[i].variable
        if known.max is None and value > known.min and self._store is not None:
            self._ensure_capacity({known.name: value})
            return
        raise variable_error(known, value)

    def _on_guard(self) -> None:
        raise guard_error(self._parts, self._state)

    def _on_input(self) -> None:
        raise written_error(self._parts, self._state)

    def _on_status(self) -> None:
        position = self._linked.row_ops[self._state.run.error_index]
        op, counted = self._parts.ops[position], self._counters_at(position)
        raise status_error(op, self._notes(position), self._parts.scope, self._state, counted)

    def _notes(self, position: int) -> KernelNotes:
        row = self.program.walk()[position].row
        return row.notes if isinstance(row, PreparedKernel) else KernelNotes()

    def _on_host_call(self) -> None:
        position = self._linked.row_ops[self._state.run.error_index]
        op = self._parts.ops[position]
        if not isinstance(op, PreparedCustomFunction):
            raise InternalError("runner", "came back for a row that is no host call.")
        late, known = self._state.late_values(), self._parts.late_at(position)
        values = {**self._counters_at(position), **{name: late[name] for name in known}}
        self._call_host(op, values)

    def _counters_at(self, position: int) -> dict[str, int]:
        """The counters of the loops around an operation, at the iteration that the run is in."""
        iterations = self._state.run.iterations
        loops = self._parts.placed[position].loops
        return {loop.counter: iterations[loop.counter] for loop in loops}

    def _call_host(self, op: PreparedCustomFunction, here: Mapping[str, int]) -> None:
        """Call a custom function; the workers have left, and the plan cannot be changed.

        `here` are the values that variables have at this place of the run only.
        """
        buffers = [self._parts.buffers[i] for i in op.buffer_indices]
        values = {**self._state.bound_values(), **here, **op.fixedvars}
        try:
            call_on_host(
                self._parts.functions[op.kind],
                op.attrs,
                buffers,
                [b.shape for b in buffers],
                values,
                [v.name for v in op.runtime_vars],
            )
        except SemelError as error:
            error.seen_at(f"op {op.id} ({op.kind})", op=op.id, kind=op.kind)
            raise
        except Exception as error:
            raise CustomFunctionError(
                f"op {op.id} ({op.kind})",
                f"raised {type(error).__name__}: {error}.",
                op=op.id,
                kind=op.kind,
            ) from error

    def _poisoned(self) -> int:
        """The entry of SEMEL_DEBUG=poison: stale memory is NaN, so that reading it shows."""
        if not self._state.is_released and not self._state.run.is_busy:
            self._fill_stale_memory()
        return self._executable.call()

    def _fill_stale_memory(self) -> None:
        self._executable.fill_scratch(0xFF)
        for memory in self._arena():
            memory.fill(0xFF)
        for io in self._parts.output_io if self._store else ():
            buffer = self._parts.buffers[io.index]
            buffer.memory.fill(0xFF, buffer.offset, buffer.offset + buffer.capacity_bytes)
        for keeper in self._state.inputs.values():
            buffer = self._parts.buffers[keeper.index]
            start = buffer.offset + keeper.recorded_bytes()
            if not keeper.is_bound:
                buffer.memory.fill(0xFF, start, buffer.offset + buffer.capacity_bytes)

    def _arena(self) -> tuple[Memory, ...]:
        """Memory of intermediates."""
        return () if self._store is None else (self._store.arena,)

    # ------------------------------------------------------------ linking

    def _adopt_buffers(self) -> None:
        """Let every buffer answer to this plan's variables and validity, as its place says."""
        parts, state = self._parts, self._state
        for io in parts.input_io:
            parts.buffers[io.index].keep(state.inputs[io.name])
        is_input = {io.index for io in parts.input_io}
        for io in parts.output_io:
            if io.index not in is_input:
                parts.buffers[io.index].keep(OutputKeeper(state, io.type, self._writing(io.index)))
        if self._store is None:
            self._adopt_given()
            return
        named = {*is_input, *parts.outputs, *(index for _, index in parts.program.kept)}
        for i, (buffer, value) in enumerate(zip(parts.buffers, parts.program.values, strict=True)):
            if i not in named and value.place in _KEEPERS:
                buffer.keep(_KEEPERS[value.place](state, value.type))
        for _, index in parts.program.kept:
            if not is_answered_for(parts.buffers[index]):
                kind = parts.program.values[index].type
                parts.buffers[index].keep(OutputKeeper(state, kind))

    def _adopt_given(self) -> None:
        for index in self._parts.outputs:
            buffer = self._parts.buffers[index]
            if not is_answered_for(buffer):
                buffer.keep(PlainOutputKeeper(self._state, buffer.type, self._writing(index)))
        for buffer in self._parts.buffers:
            if buffer.keeper is None and buffer.whole is None:
                buffer.keep(PlainKeeper(self._hold, buffer.type))

    def _writing(self, index: int) -> tuple[Writer, ...]:
        """Who writes a buffer, if a run may write less of it than another.

        A compiled plan writes what it declares.
        """
        return () if self._store is not None else self._writers.writers.get(index, ())

    def _relink(self) -> None:
        """Make new tables after the buffers moved; variables and written shapes carry over."""
        self._state.void("memory grew")
        self._executable.relink(self._flatten())
        self._state.run = self._executable.state
        self._state.version += 1
        self._fast = None
        self._attach()

    def _flatten(self) -> FlatProgram:
        """Steps and rows on the memory that there is now."""
        parts = self._parts
        # The rows hold raw addresses: the bytes must outlive a release by whoever shares them.
        self._pins = [buffer.memory.pin() for buffer in parts.buffers]
        for memory in {b.memory.id: b.memory for b in parts.buffers}.values():
            memory.hold(self)
        self._linked = link_rows(parts)
        self._writers = find_writers(parts)
        return self._linked.as_flat(parts, self._writers.marks)

    # ------------------------------------------------------------ saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan with its code and constants to one file for `semel.load_plan`.

        Of a compiled plan, buffers and bound variables are not part of it. A plan built by
        hand is saved as it is now, with the contents of its buffers and the values of its
        variables; custom functions go by their names. The file appears whole or not at all.
        """
        self.pass_source(lambda source: save_plan(source, self._parts.device.device_code(), path))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a plan is what its file would hold."""
        return restore_plan, (self.pack(), self.threads, self.memory_limit)

    def pack(self) -> bytes:
        """The contents of a file of this plan."""
        return self.pass_source(lambda it: pack_plan(it, self._parts.device.device_code()))

    def pass_source(self, write: Callable[[Program | PlanImage], R]) -> R:
        """`write(what a file of this plan is made from)`; it cannot run or change meanwhile.

        A program never changes, so that a compiled plan can be written at any time.
        """
        if self._store is not None:
            return write(self.program)
        result: R = self._hold.alone(self._pass_image, write)
        return result

    def _pass_image(self, write: Callable[[Program | PlanImage], R]) -> R:
        self._state.check_alive()
        self._bindings.detach()
        try:
            inputs = self._state.inputs
            bound = {name: self._bindings.input_array(name) for name in inputs}
            image = take_image(
                self._parts,
                self._state.bound_values(),
                {name: keeper.recorded_shape() for name, keeper in inputs.items()},
                {name: array for name, array in bound.items() if array is not None},
                tuple(self._state.run.marks),
            )
            return write(image)
        finally:
            self._attach()

    @alone
    def resume(
        self,
        values: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        marks: Sequence[int] = (),
    ) -> None:
        """For plans from files: go on with these variables and with inputs written in these shapes.

        All are within bounds; guards and shapes are compared at the next run. `marks` say how much
        of the outputs earlier runs wrote.
        """
        self._state.run.set_marks(
            dict(enumerate(min(m, NO_LIMIT) for m in marks[: len(self._writers.marks)]))
        )
        for name, shape in shapes.items():
            self._state.inputs[name].record(shape)
        self._set_values(values)

    def _set_values(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            self._state.run.set_value(self._index[name], value)
        self._state.run.mark_dirty()

    # ------------------------------------------------------------ releasing

    @alone
    def release_intermediate_buffers(self, f: Callable[[int], object] | None = None) -> None:
        """Give the memory of intermediates and scratch back; a later execute takes it again.

        `f` is called with the id of every node whose buffer is no output. In a plan built by
        hand, an intermediate is what each run writes before it reads it and no other plan holds.
        """
        take_callback("release_intermediate_buffers", f)
        self._state.check_alive()
        kept = {self._parts.buffers[i].byte_range for i in self._parts.outputs}
        self._executable.discard_scratch()
        for memory in self._arena():
            memory.discard()
        if self._store is None:
            self._discard_passing()
        if f is not None:
            for ast_id, index in self._parts.ast_to_buffer.items():
                if self._parts.buffers[index].byte_range not in kept:
                    f(ast_id)
            outputs = {
                ast_id
                for ast_id, index in self._parts.ast_to_buffer.items()
                if self._parts.buffers[index].byte_range in kept
            }
            for ast_id in self._parts.alias_ids:
                if ast_id not in outputs:
                    f(ast_id)

    def _discard_passing(self) -> None:
        held = {buffer.memory.id: buffer.memory for buffer in self._parts.buffers}
        for storage, start, end in passing_ranges(self._parts):
            if not held[storage].is_held_beside(self):
                held[storage].discard(start, end)

    @alone
    def release_all_buffers(self, f: Callable[[int], object] | None = None) -> None:
        """Give all memory back; the plan and its buffers cannot be used any more.

        Buffers whose memory another plan uses stay as they are, for that plan.
        """
        take_callback("release_all_buffers", f)
        self._state.check_alive()
        self._bindings.detach()
        self._bindings.remove(None)
        self._enter = self._plain_enter
        self._executable.stop()
        self._state.give_up("its buffers were released.")
        self._fast = None
        gone = allocate(0)
        constants = {} if self._store is None else self._store.constants
        shared = {memory.id for memory in constants.values()}
        for buffer in self._parts.buffers:
            is_last = buffer.memory.let_go(self)
            if buffer.memory.id in shared:
                buffer.move(gone, 0, 0)
            elif is_last:
                buffer.memory.release()
                buffer.move(gone, 0, 0)
            elif getattr(buffer.keeper, "state", None) is self._state:
                buffer.keep(None)
        for memory in (gone, *self._arena()):
            if memory.let_go(self):
                memory.release()
        self._pins = []
        for ast_id in (*self._parts.ast_to_buffer, *self._parts.alias_ids):
            if f is not None:
                f(ast_id)

    def _after_fork(self) -> None:
        """In the child: no workers, and no operation of a thread that is not there any more.

        An operation of the forking thread goes on here as in the parent. What another thread
        was in the middle of is over, and may have left inputs half written.
        """
        state, elsewhere = self._state, self._hold.belongs_elsewhere()
        if elsewhere:
            self._hold.renew()
        if state.is_released:
            return
        self._executable.after_fork()
        if elsewhere and state.is_moving:
            self._executable.stop()
            state.give_up("another thread changed its memory when the process forked.")
        elif elsewhere:
            state.void("the process was forked")
            state.run.reset()
            state.run.forget_pending()
            for keeper in state.inputs.values():
                if not keeper.is_bound:
                    keeper.forget()


def _shape_at(io: PlanIO, values: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input at these values of variables."""
    try:
        return tuple(evaluate(dim, values) for dim in io.type.shape)
    except KeyError as error:
        raise VariableError("plan", f"input '{io.name}' needs {error}, never bound.") from None


def _cloned(op: PreparedOp) -> PreparedOp:
    """An operation for a clone of its plan: a plan inside is cloned too."""
    if isinstance(op, PreparedCustomFunction) and isinstance(op.attrs, ExecutionPlan):
        return replace(op, attrs=op.attrs.clone())
    return op


@dataclass(slots=True)
class _FastCall:
    """What the last `plan(**inputs)` looked like; good while the state's version is the same."""

    version: int
    inputs: dict[str, tuple[Array, tuple[int, ...], np.dtype[Any]]]
    outputs: list[Callable[[], Array]]
    single: Callable[[], Array] | None

    def copies(self) -> Any:
        """The outputs as fresh arrays: one, or a tuple."""
        if self.single is not None:
            return self.single()
        return tuple([copy() for copy in self.outputs])


#: Who answers for the buffers of a compiled plan that are neither input nor output.
_KEEPERS = {"arena": IntermediateKeeper, "constant": ConstantKeeper}

#: Why a run comes back in the middle.
_GOING_ON = frozenset({Code.HOST_CALL, Code.START_POOL, Code.AGAIN})

#: What is said where a run cannot go on; a variable that needs more memory may have got it.
_REFUSALS: dict[int, Callable[[ExecutionPlan], None]] = {
    Code.BUSY: ExecutionPlan._on_busy,
    Code.RELEASED: ExecutionPlan._on_released,
    Code.VARIABLE: ExecutionPlan._on_variable,
    Code.GUARD: ExecutionPlan._on_guard,
    Code.INPUT: ExecutionPlan._on_input,
    Code.STATUS: ExecutionPlan._on_status,
}

_plans: weakref.WeakSet[ExecutionPlan] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for plan in list(_plans):
        plan._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
