"""ExecutionPlan: a program on its memory; executes in one native call.

    PlanParts (checked)  -->  ExecutionPlan  --execute()-->  outputs

`execute()` is hot: one lock, one call without arguments, one test. All else happens at link
time, in the runner, or behind the test (`plan.resolve`): refused variables, failed checks, host
calls, starting the pool, and coming back now and then so that signals are seen. Runs of one plan
are serialised; a run inside a run is an error. Outputs can be read only while they are those of
the last execute.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from semel.errors import (
    InputError,
    PlanError,
    VariableError,
)
from semel.ir.expr import evaluate
from semel.ir.fields import (
    NO_LIMIT,
    take,
    take_callback,
    take_int,
    take_items,
    take_switch,
    take_threads,
)
from semel.ir.listed import public_names
from semel.plan.again import compile_again
from semel.plan.bindings import check_array
from semel.plan.calls import Calls
from semel.plan.direct import LENT_FROM_BYTES, DirectCall
from semel.plan.engine import Engine
from semel.plan.errors import (
    as_values,
    find_io,
    named_inputs,
    no_buffer,
)
from semel.plan.fetch import needed_rows
from semel.plan.file.write import PlanImage, pack_plan, save_plan, take_image
from semel.plan.kept import follow_states
from semel.plan.limits import RunLimits
from semel.plan.link import levels
from semel.plan.param_files import choose_params, param_of_bytes, read_source
from semel.plan.params import with_params
from semel.plan.parts import PlanMemory, PlanParts
from semel.plan.pickled import restore_plan
from semel.plan.program import PlanIO, Program
from semel.plan.readers import output_copier
from semel.plan.report.describe import (
    describe_arena,
    describe_ops,
    describe_places,
    describe_plan,
)
from semel.plan.report.explain import Explanation, explain_plan
from semel.plan.report.extent import ExtentReport, report_extents
from semel.plan.report.html import html_block
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import RunInfo, makespans, merge_runs, middle
from semel.plan.rows import (
    PreparedCustomFunction,
    PreparedKernel,
    PreparedOp,
    PreparedSignal,
    PreparedWait,
)
from semel.plan.states import PlanStates
from semel.plan.store import ProgramStore, fork_buffers
from semel.plan.table import Signature, Table, io_table, named_outputs, param_table
from semel.plan.tree import as_it_is, map_rows, walk
from semel.runtime.buffer import Array, Buffer, read_arrays
from semel.runtime.casting import check_casting
from semel.runtime.custom import FunctionOwner, without_owner
from semel.runtime.device import DeviceCode
from semel.runtime.events import LoggedRun
from semel.runtime.hold import alone
from semel.runtime.kernel import CachedKernel
from semel.runtime.timeline import TimelineSignal

R = TypeVar("R")
#: Variables by name.
Values: TypeAlias = Mapping[str, int] | Iterable[tuple[str, int]]

#: Members that the package uses, and people need not be offered.
_OURS = frozenset(
    {
        "calls",
        "check_shapes",
        "direct_call",
        "exchange",
        "is_written_in_part",
        "lane_work",
        "pass_source",
        "replicate",
        "resume",
        "run_between",
        "use_function",
        "without_value",
    }
)


class ExecutionPlan:
    """A computation bound to its memory; run it as often as you like.

    >>> x = Tensor.input("x", (2, 3))
    >>> plan = x.sum(-1).prepare()
    >>> plan(x=np.ones((2, 3), np.float32)).tolist()
    [3.0, 3.0]
    >>> plan.buffer(x).copyin(np.zeros((2, 3), np.float32))
    >>> plan.execute()
    >>> plan.output_buffer.numpy().tolist()
    [0.0, 0.0]

    What people see of a plan: many short members, each of which asks or uses the engine.
    Made by `ExecutionPlanBuilder`, which gives it buffers, or from a compiled program by
    `instantiate`, with a store that can grow.
    """

    def __init__(self, parts: PlanParts, store: ProgramStore | None = None) -> None:
        self._engine = Engine(parts, store)
        #: Runs with arrays, for the package's own use: people call the plan, or a CompiledGraph.
        self.calls = Calls(self._engine)
        self._hold = self._engine.hold
        self.compile_count = parts.program.compile_count
        self.memory_limit = None if store is None else store.options.memory_limit

    def __dir__(self) -> list[str]:
        return public_names(self, _OURS)

    def __repr__(self) -> str:
        if self._engine.state.is_released:
            return f"ExecutionPlan({self.device}, released)"
        values = self._engine.state.values_now()
        return describe_plan(self._engine.parts, values, self.memory.peak_bytes, self.signature)

    def _repr_html_(self) -> str:
        tables = (self.inputs, self.outputs, self.params, self.states)
        shown = [table._repr_html_() for table in tables if table]
        return html_block(str(self.signature), shown, repr(self))

    # ------------------------------------------------------------ accessors

    @property
    def name(self) -> str:
        """What its graph is called; empty for one that has no name."""
        return self.program.name

    @property
    def lock(self) -> Any:
        """To be held around several operations that belong together; a thread may take it again."""
        return self._hold.lock

    @property
    def device(self) -> str:
        """Where it runs, by name: `cpu`, `cpu:1`, ..."""
        return self._engine.parts.device.name

    @property
    def target(self) -> str:
        """The name of the machine that its code was made for; empty if it calls no code of ours."""
        target = self._engine.parts.program.target
        return "" if target is None else target.name

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers by index."""
        return self._engine.parts.buffers

    @property
    def prepared_ops(self) -> tuple[PreparedOp, ...]:
        """The operations in the order they were added, as they are now.

        A kernel call has the current values of its variables as `vals` (none if one was never
        bound; of a loop's counter, where it stands), and where its buffers lie as `buffer_ptrs`
        and `buffer_ids`: bound arrays and grown memory show.
        """
        with self._engine.lock:
            values = self._values_with_counters()
            buffers = () if self._engine.state.is_released else self._engine.parts.buffers
            rows = map_rows(self._engine.parts.rows, lambda row: as_it_is(row, buffers, values))
            return tuple(placed.row for placed in walk(rows))

    def _values_with_counters(self) -> dict[str, int]:
        return {**self._engine.state.values_now(), **self._engine.state.run.iterations}

    @property
    def prepared_kernels(self) -> tuple[PreparedKernel, ...]:
        """The kernel calls among the operations, as they are now."""
        return tuple(op for op in self.prepared_ops if isinstance(op, PreparedKernel))

    @property
    def kernels(self) -> tuple[CachedKernel, ...]:
        """The distinct kernels, in order of first use."""
        return self._engine.parts.program.kernels

    @property
    def ast_to_buffer_map(self) -> dict[int, int]:
        """Node id to buffer index."""
        return dict(self._engine.parts.ast_to_buffer)

    @property
    def num_outputs(self) -> int:
        """How many arrays a run gives back."""
        return len(self._engine.parts.outputs)

    @property
    def output_buffer_idx(self) -> int:
        """Index of the first output's buffer."""
        if not self._engine.parts.outputs:
            raise PlanError("plan", "has no outputs.")
        return self._engine.parts.outputs[0]

    @property
    def output_buffer(self) -> Buffer | Any:
        """The first output; None if the plan has none, which only one built by hand can."""
        return self.output_buffer_at(0)

    @property
    def output_buffers(self) -> list[Buffer]:
        """The outputs in order."""
        return [self._engine.parts.buffers[i] for i in self._engine.parts.outputs]

    def output_buffer_at(self, index: int) -> Buffer | None:
        """The output at `index`, or None past the end."""
        outputs, at = self._engine.parts.outputs, take_int("output_buffer_at", "index", index)
        return self._engine.parts.buffers[outputs[at]] if 0 <= at < len(outputs) else None

    def buffer(self, what: Any) -> Buffer | None:
        """The buffer of an input, an output or what is kept, by its name.

        Or of a tensor (anything with `.id`) or a node id: None if that has no buffer.
        """
        if isinstance(what, str):
            return self._named_buffer(what)
        key = getattr(what, "id", what)
        index = self._engine.parts.ast_to_buffer.get(take_int("buffer", "a tensor's id", key))
        return None if index is None else self._engine.parts.buffers[index]

    def _named_buffer(self, name: str) -> Buffer:
        parts = self._engine.parts
        outputs = named_outputs(parts.output_io, parts.outputs, parts.buffers)
        known = {io.name: io.index for io in (*outputs, *parts.input_io)}
        known = dict(self.program.kept) | known
        if name not in known:
            raise no_buffer(name, known)
        return parts.buffers[known[name]]

    @property
    def kept(self) -> dict[str, Buffer]:
        """What `prepare(keep=...)` asked for, by name: readable after each run, like outputs."""
        return {name: self._engine.parts.buffers[index] for name, index in self.program.kept}

    @property
    def inputs(self) -> Table:
        """What goes in, by name and in the order of the graph, read by anything or not."""
        return self._io_table("input", self._engine.parts.input_io)

    @property
    def outputs(self) -> Table:
        """What comes out, by name and in order."""
        parts = self._engine.parts
        named = named_outputs(parts.output_io, parts.outputs, parts.buffers)
        return self._io_table("output", named)

    def _io_table(self, what: str, ios: Sequence[PlanIO]) -> Table:
        engine = self._engine
        with engine.lock:
            base = None if engine.state.is_released else self.arena_ptr
            return io_table(what, ios, engine.parts.buffers, engine.state.values_now(), base)

    @property
    def signature(self) -> Signature:
        """What goes in and comes out: `encoder(ids: int64[n]) -> (hidden: float32[n, 384])`."""
        return Signature(self.name, self.inputs, self.outputs)

    @property
    def arena_ptr(self) -> int:
        """The address that the offsets of inputs and outputs count from.

        It is that of one block with all inputs and outputs of a compiled plan; of one that was
        built by hand, that of the lowest buffer among them. It changes only when memory grows
        (`growths`); arrays that are bound lie where they lie, before it or behind it.
        """
        engine = self._engine
        engine.state.check_alive()
        return engine.io_address

    @property
    def variables(self) -> dict[str, int | None]:
        """Current values by name; None: never bound, or late and not found out by a good run."""
        values = self._engine.state.values_now()
        known = (*self._engine.parts.variables, *self._engine.parts.late)
        return {v.variable.name: values.get(v.variable.name) for v in known}

    @property
    def extents(self) -> dict[str, int]:
        """What inputs and outputs are read and written up to, by the names of their dims."""
        values = self._engine.state.bound_values()
        return {name: values[name] for name in self.program.extents}

    @alone
    def set_extent(self, name: str, value: int) -> None:
        """Let runs read and write only so much along the dim of that name, until told otherwise.

        Nothing is computed for the rest: rows of outputs behind it stay as they were. A plan has
        extents if it was prepared with one: `graph.prepare(extent="rows")`.
        """
        checked = take("set_extent", "name", str, name)
        self._engine.set_extent(checked, take_int("set_extent", "value", value))

    @alone
    def extent_report(self) -> ExtentReport:
        """How much of the work of a run at the largest extents is done at those of now."""
        self._engine.state.check_alive()
        values = self._engine.state.values_now()
        return report_extents(self._engine.parts, self._engine.linked, values)

    @property
    def states(self) -> PlanStates:
        """What is kept between runs, by name: to read, write, reset, truncate, snapshot."""
        return PlanStates(self._engine)

    @property
    def signals(self) -> dict[str, TimelineSignal]:
        """The signals that its rows reach or wait for, by name."""
        rows = self._engine.parts.ops
        timed = (r for r in rows if isinstance(r, (PreparedSignal, PreparedWait)))
        return {row.signal.name: row.signal for row in timed}

    @property
    def threads(self) -> int:
        """Participants of an execute at most."""
        return self._engine.parts.threads

    @property
    def steps(self) -> list[list[list[int]]]:
        """How it runs: steps of segments of positions in `prepared_ops`; barriers between steps."""
        return self._engine.linked.shown_steps()

    @property
    def op_order(self) -> tuple[int, ...]:
        """Positions in the order in which operations are taken up; views have their place too."""
        return tuple(self._engine.linked.order)

    @property
    def op_dependencies(self) -> list[tuple[int, ...]]:
        """For each operation the positions it must follow: declared, found from bytes, around."""
        return list(self._engine.linked.before)

    @property
    def op_levels(self) -> list[list[int]]:
        """Positions by the longest chain of dependencies before them."""
        return levels(self._engine.linked, self._engine.parts.placed)

    @property
    @alone
    def num_barriers(self) -> int:
        """How often the participants of one run wait for each other, at the current variables."""
        state = self._engine.state
        state.check_alive()
        self._engine.ways.use(self._engine, None)
        # What only goes on by itself is bound at the next run: outputs are those of the last one.
        if state.run.is_dirty and not (state.run.is_valid and state.is_as_bound()):
            self._engine.commit()
        return state.run.count_steps()[2]

    @property
    def memory(self) -> PlanMemory:
        """What the plan holds, in bytes."""
        return self._engine.memory

    @property
    def program(self) -> Program:
        """What the plan does: values, rows, variables, guards."""
        return self._engine.program

    @program.setter
    def program(self, program: Program) -> None:
        """Another one with the same rows may explain them better."""
        self._engine.program = program

    @property
    def growths(self) -> int:
        """How often the memory was planned again for larger variables."""
        return self._engine.growths

    # ------------------------------------------------------------ running

    def execute(self) -> None:
        """Run with the current inputs and variables. Hot: allocates nothing."""
        engine = self._engine
        with engine.lock:
            hold = engine.hold
            if hold.is_held:
                hold.settle()
            try:
                hold.is_held = True
                code = engine.enter()
                if code:
                    engine.resolve(code, engine.enter)
            except BaseException:
                engine.abandon()
                raise
            finally:
                hold.is_held = False

    @property
    def lane_work(self) -> Engine:
        """What a lane runs: see `NativeLane.submit_run`."""
        return self._engine

    def execute_limited(
        self, *, timeout: float | None = None, fetch: Iterable[str] | None = None
    ) -> None:
        """Run like `execute()`, for `timeout` seconds at most, counted from this call.

        A run that takes longer ends before its next step with a `TimedOutError`, as one does that
        fails: its outputs are void, and so are states that it was updating in place. It is late by
        the step that it is in at most: kernels and custom functions are not interrupted.

        With `fetch`, names of outputs, work that only other outputs need is skipped, and those
        cannot be read after it. States go on as in any run. What is needed is found out when these
        outputs are asked for first, and kept for the sets that were used last.
        """
        self._hold.alone(RunLimits(timeout, fetch).begin(self._engine))

    @alone
    def rows_for(self, fetch: Iterable[str]) -> tuple[int, ...]:
        """What a run for these outputs does: positions of outermost rows in `prepared_ops`."""
        self._engine.state.check_alive()
        wanted = RunLimits(fetch=fetch).outputs(self._engine)
        return tuple(sorted(needed_rows(self._engine.parts, wanted or ())))

    def cancel(self) -> None:
        """End the run that is under way before its next step: it raises a `CancelledError`.

        To be called from another thread or a signal handler, or by a custom function. A run that is
        at its last step is over as usual; if nothing runs, nothing happens. A plan that runs
        inside of this one, like any custom function, is not interrupted.
        """
        self._engine.cancel()

    def execute_with_vars(self, values: Values | None = None, /, **named: int) -> None:
        """Bind variables and run. Checks everything first; values stay for later runs.

        They are given by name, as a mapping or as pairs: every keyword is a variable.
        """
        self._hold.alone(self._engine.run_with, as_values(values, named))

    def execute_with_vars_profiled(
        self, values: Values | None = None, /, **named: int
    ) -> ProfileReport:
        """Bind variables like `execute_with_vars()`, run, and report every operation."""
        return self.execute_profiled(as_values(values, named))

    @alone
    def execute_profiled(
        self,
        values: Values | None = None,
        /,
        *,
        limits: bool = True,
        runs: int = 1,
        fetch: Iterable[str] | None = None,
    ) -> ProfileReport:
        """Run like `execute()`, with these variables if any, and report every operation.

        Lanes, times and rates: times are taken by the runner itself. With `limits`, rates are
        compared with what the machine reaches at best, which is measured once per process, after
        the run. With several `runs`, as many are made: the report shows a timeline of the one that
        took as long as half of them, and for each operation the median and the spread of all, but
        for those in which another program took its core. With `fetch`, the runs are for these
        outputs, as in `execute_limited`: what they skip has taken no time.
        """
        count = take_int("execute_profiled", "runs", runs)
        if count < 1:
            raise PlanError("execute_profiled", f"runs must be >= 1, got {count}.")
        self._engine.state.check_alive()
        wanted = RunLimits(fetch=fetch).outputs(self._engine)
        try:
            self._engine.bind(as_values(values, {}))
        except BaseException:
            self._engine.abandon()
            raise
        # Bound first: only then is it known how many events there can be.
        self._engine.commit()
        self._engine.ways.use(self._engine, wanted)
        self._engine.commit()
        logged, switches = [], []
        for _ in range(count):
            before = _times_preempted()
            logged.append(self._engine.run_logged())
            switches.append(_times_preempted() - before)
        return self._report(logged, switches, limits)

    def _report(
        self, runs: list[LoggedRun], switches: list[int], with_limits: bool
    ) -> ProfileReport:
        parts, values = self._engine.parts, self._engine.state.current_values()
        way = self._engine.ways.now
        limits = parts.device.limits(parts.threads) if with_limits else None
        events = [logged.events for logged in runs]
        took = makespans(events)
        shown = runs[middle(took)]
        run = RunInfo(
            parts.device.name,
            parts.threads,
            values,
            *runs[-1].steps,
            self.memory.arena_bytes,
            describe_arena(parts, way.linked, values),
            limits,
            len(runs),
            max(logged.dropped for logged in runs),
            way.skipped,
            shown.waits,
            shown.tracks,
            tuple(took),
            tuple(switches),
            middle(took),
            describe_places(parts),
        )
        ops = describe_ops(parts, way.linked, values)
        return ProfileReport(merge_runs(ops, events, limits, switches), run)

    def explain(self) -> Explanation:
        """Which nodes became which kernels and why, buffers, steps, what variables change."""
        with self._engine.lock:
            return explain_plan(
                self._engine.parts,
                self._engine.linked,
                self.memory,
                self._engine.state.values_now(),
                self.compile_count,
                self.signature.shortened(),
            )

    def __call__(self, /, *array: Any, **inputs: Any) -> Any:
        """Copy the inputs in, bind variables from their shapes, run, return copies of the outputs.

        One array, or a tuple in output order. Inputs go by name; where there is one only, it needs
        none: `plan(array)`.
        """
        if array:
            inputs = named_inputs(array, inputs, self._engine.parts.input_io)
        return self.calls(inputs)

    # ------------------------------------------------------------ arrays without a copy

    def bind_input(self, name: str, array: Array) -> None:
        """Let the plan read the input from `array` itself at each run, until `unbind`.

        If the array overlaps what the plan writes, it is copied in before each run instead. Another
        array of the same shape in the place of one costs next to nothing; the plan holds both.
        """
        engine = self._engine  # like `Hold.alone`, in place: two arrays that take turns
        with engine.lock:
            hold = engine.hold
            if hold.is_held:
                hold.settle()
            try:
                hold.is_held = True
                bindings = engine.bindings
                if name in bindings.inputs and bindings.swap(bindings.inputs[name], array):
                    return
            except TypeError:  # a name that is none: what it must be is said below
                engine.check_moved()
            except BaseException:
                engine.check_moved()
                raise
            finally:
                hold.is_held = False
        self._bind_input(name, array)

    def bind_output(self, name: str, array: Array) -> None:
        """Let the plan write the output to `array` itself at each run, until `unbind`.

        If the array overlaps anything that the plan uses, it is copied out after each run.
        """
        engine = self._engine  # as in `bind_input`
        with engine.lock:
            hold = engine.hold
            if hold.is_held:
                hold.settle()
            try:
                hold.is_held = True
                bindings = engine.bindings
                if name in bindings.outputs and bindings.swap(bindings.outputs[name], array):
                    return
            except TypeError:  # a name that is none: what it must be is said below
                engine.check_moved()
            except BaseException:
                engine.check_moved()
                raise
            finally:
                hold.is_held = False
        self._bind_output(name, array)

    @alone
    def _bind_input(self, name: str, array: Array) -> None:
        engine = self._engine
        engine.state.check_alive()
        io = find_io("input", engine.parts.input_io, name)
        checked = check_array(io, array, is_output=False)
        engine.ensure_capacity(engine.state.solve({name: checked.shape}))
        engine.rebind(lambda: engine.bind_input(io, checked))

    @alone
    def _bind_output(self, name: str, array: Array) -> None:
        engine = self._engine
        engine.state.check_alive()
        io = find_io("output", engine.parts.output_io, name)
        checked = check_array(io, array, is_output=True)
        engine.rebind(lambda: engine.bindings.add(io, checked, is_output=True))

    @alone
    def unbind(self, name: str | None = None, *, is_output: bool | None = None) -> None:
        """Go back to the plan's own buffer for that input or output, or for all.

        An input must then be written again; an output is there after the next execute. An input
        and an output may have one name: both are meant, unless `is_output` says which.
        """
        self._engine.state.check_alive()
        names = [io.name for io in (*self._engine.parts.input_io, *self._engine.parts.output_io)]
        if name is not None and name not in names:
            known = ", ".join(names) or "none"
            raise InputError("plan", f"has no input or output '{name}'; known: {known}.", name=name)
        self._engine.rebind(lambda: self._engine.unbind(name, is_output))

    @alone
    def exchange(self, pairs: Sequence[tuple[str, str]]) -> bool:
        """Let the arrays bound to an input and to an output change places, for each pair.

        False if an array is copied at each run, or unlike the other: then nothing has changed.
        For the package's own use: these arrays are nobody else's.
        """
        try:
            return self._engine.bindings.exchange(pairs)
        finally:
            self._engine.check_moved()

    def without_value(self, names: Iterable[str], *, sticky: bool = False) -> list[str]:
        """Which of these inputs no array is bound to; if `sticky`, and were never written.

        For the package's own use.
        """
        keepers = self._engine.state.inputs
        return [
            name
            for name in names
            if not keepers[name].is_bound
            and not (sticky and keepers[name].recorded_shape() is not None)
        ]

    def check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse shapes that arrays for these inputs cannot have, alone or together.

        Nothing changes, and it waits for no run. What does not follow from these shapes alone is
        left for the run to say. For the package's own use.
        """
        self._engine.state.solve(shapes)

    def is_written_in_part(self, output: str) -> bool:
        """Whether runs at an extent leave rows of that output as they were."""
        return any(io.name == output and io.part for io in self.program.outputs)

    @property
    def staged(self) -> list[str]:
        """Names of the bound arrays that are copied at each run because they overlap."""
        return self._engine.bindings.staged()

    @alone
    def use_function(self, kind: str, owner: FunctionOwner) -> None:
        """Let rows of that kind call `owner`, and let it know what becomes of the plan.

        For the package's own use. Clones of the plan have the function of that name again.
        """
        self._engine.use_function(kind, owner)

    @alone
    def direct_call(self, names: Sequence[str]) -> DirectCall:
        """A short way to run this plan, whose shapes are all fixed: see plan/direct.py.

        The inputs are given in the order of `names`. For the package's own use.
        """
        self._engine.state.check_alive()
        buffers, keepers = self._engine.parts.buffers, self._engine.state.inputs
        slots: list[tuple[Array, int | None]] = []
        for name in names:
            keeper = keepers[name]
            view = buffers[keeper.index].array(keeper.shape_now())
            is_lent = (
                view.nbytes >= LENT_FROM_BYTES and keeper.index not in self._engine.parts.outputs
            )
            slots.append((view, self._engine.linked.bases[keeper.index] if is_lent else None))
            keeper.record(view.shape)
        outputs = [output_copier(self._engine, i) for i in self._engine.parts.outputs]
        return DirectCall(self, slots, outputs, self._engine.state.run, self._engine.own_bytes)

    # ------------------------------------------------------------ params

    @property
    def params(self) -> Table:
        """The params by name: their types, and how often each was replaced (`version`)."""
        return param_table(self.program.params)

    def missing_params(self) -> tuple[str, ...]:
        """The params that were declared without data and must be set before the first run."""
        return self._engine.parts.program.missing_params

    def set_param(self, name: str, array: Any) -> None:
        """Replace a param by a copy of `array`, of its type, from the next execute on.

        What the plan reads of it is made again: packed, cast, folded. Clones keep what they have.
        Nothing changes if an error is raised.
        """
        self.set_params({take("set_param", "name", str, name): array})

    def set_params(self, arrays: Mapping[str, Any]) -> None:
        """Replace several params at once, by name."""
        self._hold.alone(self._take_params, read_arrays("set_params", arrays))

    @alone
    def set_param_typed(self, name: str, data: Any, dtype: Any, *, casting: str = "exact") -> None:
        """Replace a param by bytes: as many as an array of its shape and this dtype has.

        The dtype is the param's own; with `casting="same_kind"`, another one is converted.
        """
        entry = self.params[take("set_param_typed", "name", str, name)]
        check_casting("set_param_typed", casting)
        self._take_params({name: param_of_bytes(entry, data, dtype, casting)})

    def load_params(
        self,
        source: Mapping[str, Any] | str | os.PathLike[str],
        *,
        strict: bool = True,
        casting: str = "exact",
    ) -> None:
        """Replace params by the arrays of a mapping or of a .safetensors file, all or none.

        If `strict`, these must be all params and nothing else; otherwise what is not there stays
        as it is, and what is no param is left out. Of a file, large arrays are mapped where they
        are read as they are stored. ParamError says all that is wrong.
        """
        check_casting("load_params", casting)
        is_strict = take_switch("load_params", "strict", strict)
        self._hold.alone(self._load_params, read_source(source), bool(is_strict), casting)

    def _load_params(self, given: Mapping[str, Any], strict: bool, casting: str) -> None:
        self._take_params(choose_params(self.params, given, strict, casting))

    def _take_params(self, given: Mapping[str, Any]) -> None:
        engine = self._engine
        engine.state.check_alive()
        engine.take_weights(*with_params(engine.parts.program, given, engine.parts.threads))

    # ------------------------------------------------------------ clones

    @alone
    def clone(self, *, threads: int | None = None) -> ExecutionPlan:
        """A plan of its own over the same kernels and constants, which may run at the same time.

        It starts with copies of the inputs and of its states, and with the same variables; its
        outputs are void until it runs. What neither side writes of large states exists once. In a
        plan built by hand, buffers that are neither written nor declared as inputs count as
        constants and are shared.
        """
        given = take_threads("clone", threads)
        self._engine.state.check_alive()
        wanted = self._engine.parts.threads if given is None else given
        made = (
            self._again(wanted, self._engine.store.fork())
            if self._engine.store
            else self._fork(wanted)
        )
        made._take_over(self)
        return made

    replicate = clone

    def _again(self, threads: int, store: ProgramStore) -> ExecutionPlan:
        """Another plan of the same program, with memory of its own."""
        parts = self._engine.parts
        functions = {kind: without_owner(known) for kind, known in parts.functions.items()}
        made = replace(parts, buffers=store.buffers, threads=threads, functions=functions)
        return ExecutionPlan(made, store)

    def _fork(self, threads: int) -> ExecutionPlan:
        """Another plan on copies of the buffers that it was given."""
        self._engine.bindings.detach()
        try:
            parts = self._engine.parts
            buffers = fork_buffers(parts.buffers, sorted(parts.own))
        finally:
            self._engine.attach()
        rows = map_rows(parts.rows, _cloned)
        program, placed = replace(parts.program, rows=rows), tuple(walk(rows))
        made = replace(parts, program=program, placed=placed, buffers=buffers, threads=threads)
        return ExecutionPlan(made)

    def _take_over(self, source: ExecutionPlan) -> None:
        """Start with the variables and inputs of another plan of the same program."""
        held = source._engine.state.held_values()
        known = source._engine.state.bound_values()
        values = {name: value for name, value in known.items() if name not in held}
        self._engine.ensure_capacity(values)
        for name, keeper in source._engine.state.inputs.items():
            shape = keeper.recorded_shape()
            if shape is not None:
                bound = source._engine.bindings.input_array(name)
                array = (
                    source._engine.parts.buffers[keeper.index].peek(shape)
                    if bound is None
                    else bound
                )
                self._engine.parts.buffers[keeper.index].put(array)
                self._engine.state.inputs[name].record(shape)
        self._engine.state.partial.update(source._engine.state.partial)
        self._engine.set_values(values)
        follow_states(source._engine, self._engine)
        for io in self._engine.parts.output_io:
            if io.part:
                written = source._engine.parts.buffers[io.index].peek(_shape_at(io, values))
                self._engine.parts.buffers[io.index].put(written)
        self._engine.state.run.set_marks(dict(enumerate(source._engine.state.run.marks)))
        self.compile_count = source.compile_count

    # ------------------------------------------------------------ inside another plan

    @alone
    def run_between(
        self,
        values: Mapping[str, int],
        read: Callable[[str, tuple[int, ...]], Array],
        write: Callable[[int, Array], None],
    ) -> None:
        """Run as one operation: inputs from `read(name, shape)`, outputs to `write(i, array)`.

        The shapes are those at `values`, and at the variables as they are where it has none. For
        the package's own use.
        """
        self._engine.state.check_alive()
        values = {name: value for name, value in values.items() if name in self._engine.index}
        state = self._engine.state
        known = {**state.bound_values(), **state.held_values(), **values}
        arrays = {io: read(io.name, _shape_at(io, known)) for io in self._engine.parts.input_io}
        for io, array in arrays.items():
            self._engine.state.inputs[io.name].begin_write(array.shape)
            self._engine.parts.buffers[io.index].put(array)
            self._engine.state.inputs[io.name].end_write(array.shape)
        self._engine.run_with(values)
        for i, buffer in enumerate(self.output_buffers):
            write(i, buffer.peek(buffer.shape))

    # ------------------------------------------------------------ saving

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        targets: Sequence[str] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the plan with its code and constants to one file for `semel.load_plan`.

        `targets` are names of machines, as `prepare` takes them: the file then has code for each,
        and whoever loads it gets the best that runs there, with the same bits. What is equal is
        stored once; weights are stored once for each layout that the code reads them in, which
        follows the width of registers (x86-64-v3 and aarch64 have one in common).

        Of a compiled plan, buffers and bound variables are not part of it. A plan built by
        hand is saved as it is now, with the contents of its buffers and the values of its
        variables; custom functions go by their names. The file appears whole or not at all.

        `about` is for who wraps a plan in something of their own: JSON that the file has beside it.
        """
        others = () if targets is None else self._programs_for(targets)
        self.pass_source(lambda source: save_plan(source, self._device_code(), path, others, about))

    def _programs_for(self, targets: Sequence[str]) -> tuple[tuple[Program, DeviceCode], ...]:
        """The plan's graph for each target, in order, with the device's code for it."""
        if isinstance(targets, str) or not isinstance(targets, Iterable):
            raise PlanError(
                "save",
                f"targets must be a list of names of machines, got {targets!r}.",
                hint='Write targets=["x86-64-v3"].',
            )
        names = take_items("save", "each of targets", str, targets)
        program = self.program
        if program.compile_for is None or not names:
            raise PlanError(
                "save",
                "targets must be names of machines, and the plan one that was prepared here: code "
                "for several machines is made from its graph.",
                hint="Save it with `targets` where it is prepared.",
            )
        programs = [compile_again("save", program, target) for target in dict.fromkeys(names)]
        device = self._engine.parts.device
        return tuple((program, device.device_code(program.target)) for program in programs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a plan is what its file would hold."""
        return restore_plan, (self.pack(), self.threads, self.memory_limit)

    def pack(self) -> bytes:
        """The contents of a file of this plan."""
        return self.pass_source(lambda source: pack_plan(source, self._device_code()))

    def _device_code(self) -> DeviceCode:
        """The device's own code that goes with the code of the kernels."""
        parts = self._engine.parts
        return parts.device.device_code(parts.program.target)

    def pass_source(self, write: Callable[[Program | PlanImage], R]) -> R:
        """`write(what a file of this plan is made from)`; it cannot run or change meanwhile.

        A program never changes, so that a compiled plan can be written at any time. For the
        package's own use.
        """
        if self._engine.store is not None:
            return write(self.program)
        result: R = self._hold.alone(self._pass_image, write)
        return result

    def _pass_image(self, write: Callable[[Program | PlanImage], R]) -> R:
        self._engine.state.check_alive()
        self._engine.bindings.detach()
        try:
            inputs = self._engine.state.inputs
            bound = {name: self._engine.bindings.input_array(name) for name in inputs}
            image = take_image(
                self._engine.parts,
                self._engine.state.bound_values(),
                {name: keeper.recorded_shape() for name, keeper in inputs.items()},
                {name: array for name, array in bound.items() if array is not None},
                tuple(self._engine.state.run.marks),
            )
            return write(image)
        finally:
            self._engine.attach()

    @alone
    def resume(
        self,
        values: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        marks: Sequence[int] = (),
    ) -> None:
        """For plans from files: go on with these variables and with inputs written in these shapes.

        All are within bounds; guards and shapes are compared at the next run. `marks` say how much
        of the outputs earlier runs wrote. For the package's own use.
        """
        run = self._engine.state.run
        run.set_marks(dict(enumerate(min(m, NO_LIMIT) for m in marks[: len(run.marks)])))
        for name, shape in shapes.items():
            self._engine.state.inputs[name].record(shape)
        self._engine.set_values(values)

    # ------------------------------------------------------------ releasing

    @alone
    def release_intermediate_buffers(self, f: Callable[[int], object] | None = None) -> None:
        """Give the memory of intermediates and scratch back; a later execute takes it again.

        `f` is called with the id of every node whose buffer is no output. In a plan built by
        hand, an intermediate is what each run writes before it reads it and no other plan holds.
        """
        take_callback("release_intermediate_buffers", f)
        self._engine.state.check_alive()
        kept = {self._engine.parts.buffers[i].byte_range for i in self._engine.parts.outputs}
        for way in self._engine.ways:
            way.executable.discard_scratch()
        for memory in self._engine.arena():
            memory.discard()
        if self._engine.store is None:
            self._engine.discard_passing()
        if f is not None:
            for ast_id, index in self._engine.parts.ast_to_buffer.items():
                if self._engine.parts.buffers[index].byte_range not in kept:
                    f(ast_id)
            outputs = {
                ast_id
                for ast_id, index in self._engine.parts.ast_to_buffer.items()
                if self._engine.parts.buffers[index].byte_range in kept
            }
            for ast_id in self._engine.parts.alias_ids:
                if ast_id not in outputs:
                    f(ast_id)

    @alone
    def release_all_buffers(self, f: Callable[[int], object] | None = None) -> None:
        """Give all memory back; the plan and its buffers cannot be used any more.

        Buffers whose memory another plan uses stay as they are, for that plan.
        """
        take_callback("release_all_buffers", f)
        self._engine.state.check_alive()
        self.calls.forget()
        self._engine.release()
        for ast_id in (*self._engine.parts.ast_to_buffer, *self._engine.parts.alias_ids):
            if f is not None:
                f(ast_id)


def _times_preempted() -> int:
    """How often the system has taken a core away from this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


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
