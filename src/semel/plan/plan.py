"""ExecutionPlan: a program on its memory; executes in one native call.

    PlanParts (checked)  -->  ExecutionPlan  --execute()-->  outputs

`execute()` is hot: one lock, one call without arguments, one test. All else happens at link
time, in the runner, or behind the test (`plan.resolve`): refused variables, failed checks, host
calls, starting the pool, and coming back now and then so that signals are seen. Runs of one plan
are serialised; a run inside a run is an error. Outputs can be read only while they are those of
the last execute.

One idea: the public face of a plan, long by its docstrings; what is more than a few lines lies in
the room that it serves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from semel.errors import (
    InputError,
    PlanError,
)
from semel.ir.fields import (
    take,
    take_callback,
    take_int,
    take_switch,
    take_threads,
)
from semel.ir.listed import public_names
from semel.plan.bindings import check_array
from semel.plan.calls import Calls
from semel.plan.cloning import parts_again, take_over
from semel.plan.engine import Engine
from semel.plan.errors import (
    as_values,
    find_io,
    named_inputs,
    no_buffer,
)
from semel.plan.fetch import needed_rows
from semel.plan.limits import RunLimits
from semel.plan.link import levels
from semel.plan.param_files import choose_params, param_of_bytes, read_source
from semel.plan.params import with_params
from semel.plan.parts import PlanMemory, PlanParts
from semel.plan.pickled import restore_plan
from semel.plan.program import Program
from semel.plan.release import passing_nodes
from semel.plan.report.describe import (
    describe_plan,
)
from semel.plan.report.explain import Explanation, explain_plan
from semel.plan.report.extent import ExtentReport, report_extents
from semel.plan.report.html import html_block
from semel.plan.report.profile import ProfileReport
from semel.plan.report.profiled import run_profiled
from semel.plan.rows import (
    PreparedCustomFunction,
    PreparedKernel,
    PreparedOp,
    PreparedSignal,
    PreparedWait,
)
from semel.plan.saving import pack, save_to
from semel.plan.states import PlanStates
from semel.plan.store import ProgramStore
from semel.plan.table import Signature, Table, named_outputs, param_table, table_now
from semel.plan.tree import as_it_is, map_rows, walk
from semel.runtime.buffer import Array, Buffer, read_arrays
from semel.runtime.casting import check_casting
from semel.runtime.hold import alone
from semel.runtime.kernel import CachedKernel
from semel.runtime.timeline import TimelineSignal

R = TypeVar("R")
#: Variables by name.
Values: TypeAlias = Mapping[str, int] | Iterable[tuple[str, int]]

#: Members that the package uses, and people need not be offered.
_OURS = frozenset({"calls", "engine", "replicate"})


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

    What people see of a plan: many short members, each of which asks or uses the engine. The
    package itself goes to `engine`, and to `calls` for runs with arrays.
    Made by `ExecutionPlanBuilder`, which gives it buffers, or from a compiled program by
    `instantiate`, with a store that can grow.

    One idea: the face of a plan; the members are those that people know, each a few lines.
    """

    def __init__(self, parts: PlanParts, store: ProgramStore | None = None) -> None:
        self.engine = Engine(parts, store)
        #: Runs with arrays: people call the plan, or a CompiledGraph.
        self.calls = Calls(self.engine)
        self._hold = self.engine.hold
        self.compile_count = parts.program.compile_count
        self.memory_limit = None if store is None else store.options.memory_limit

    def __dir__(self) -> list[str]:
        return public_names(self, _OURS)

    def __repr__(self) -> str:
        if self.engine.state.is_released:
            return f"ExecutionPlan({self.device}, released)"
        values = self.engine.state.values_now()
        return describe_plan(self.engine.parts, values, self.memory.peak_bytes, self.signature)

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
        return self.engine.parts.device.name

    @property
    def target(self) -> str:
        """The name of the machine that its code was made for; empty if it calls no code of ours."""
        target = self.engine.parts.program.target
        return "" if target is None else target.name

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers by index."""
        return self.engine.parts.buffers

    @property
    def prepared_ops(self) -> tuple[PreparedOp, ...]:
        """The operations in the order they were added, as they are now.

        A kernel call has the current values of its variables as `vals` (none if one was never
        bound; of a loop's counter, where it stands), and where its buffers lie as `buffer_ptrs`
        and `buffer_ids`: bound arrays and grown memory show.
        """
        with self.engine.lock:
            state = self.engine.state
            values = {**state.values_now(), **state.run.iterations}
            buffers = () if state.is_released else self.engine.parts.buffers
            rows = map_rows(self.engine.parts.rows, lambda row: as_it_is(row, buffers, values))
            return tuple(placed.row for placed in walk(rows))

    @property
    def prepared_kernels(self) -> tuple[PreparedKernel, ...]:
        """The kernel calls among the operations, as they are now."""
        return tuple(op for op in self.prepared_ops if isinstance(op, PreparedKernel))

    @property
    def kernels(self) -> tuple[CachedKernel, ...]:
        """The distinct kernels, in order of first use."""
        return self.engine.parts.program.kernels

    @property
    def ast_to_buffer_map(self) -> dict[int, int]:
        """Node id to buffer index."""
        return dict(self.engine.parts.ast_to_buffer)

    @property
    def num_outputs(self) -> int:
        """How many arrays a run gives back."""
        return len(self.engine.parts.outputs)

    @property
    def output_buffer_idx(self) -> int:
        """Index of the first output's buffer."""
        if not self.engine.parts.outputs:
            raise PlanError("plan", "has no outputs.")
        return self.engine.parts.outputs[0]

    @property
    def output_buffer(self) -> Buffer | Any:
        """The first output; None if the plan has none, which only one built by hand can."""
        return self.output_buffer_at(0)

    @property
    def output_buffers(self) -> list[Buffer]:
        """The outputs in order."""
        return [self.engine.parts.buffers[i] for i in self.engine.parts.outputs]

    def output_buffer_at(self, index: int) -> Buffer | None:
        """The output at `index`, or None past the end."""
        outputs, at = self.engine.parts.outputs, take_int("output_buffer_at", "index", index)
        return self.engine.parts.buffers[outputs[at]] if 0 <= at < len(outputs) else None

    def buffer(self, what: Any) -> Buffer | None:
        """The buffer of an input, an output or what is kept, by its name.

        Or of a tensor (anything with `.id`) or a node id: None if that has no buffer.
        """
        if isinstance(what, str):
            return self._named_buffer(what)
        key = getattr(what, "id", what)
        index = self.engine.parts.ast_to_buffer.get(take_int("buffer", "a tensor's id", key))
        return None if index is None else self.engine.parts.buffers[index]

    def _named_buffer(self, name: str) -> Buffer:
        parts = self.engine.parts
        outputs = named_outputs(parts.output_io, parts.outputs, parts.buffers)
        known = {io.name: io.index for io in (*outputs, *parts.input_io)}
        known = dict(self.program.kept) | known
        if name not in known:
            raise no_buffer(name, known)
        return parts.buffers[known[name]]

    @property
    def kept(self) -> dict[str, Buffer]:
        """What `prepare(keep=...)` asked for, by name: readable after each run, like outputs."""
        return {name: self.engine.parts.buffers[index] for name, index in self.program.kept}

    @property
    def inputs(self) -> Table:
        """What goes in, by name and in the order of the graph, read by anything or not."""
        return table_now("input", self.engine.parts.input_io, self.engine)

    @property
    def outputs(self) -> Table:
        """What comes out, by name and in order."""
        parts = self.engine.parts
        named = named_outputs(parts.output_io, parts.outputs, parts.buffers)
        return table_now("output", named, self.engine)

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
        engine = self.engine
        engine.state.check_alive()
        return engine.io_address

    @property
    def variables(self) -> dict[str, int | None]:
        """Current values by name; None: never bound, or late and not found out by a good run."""
        values = self.engine.state.values_now()
        known = (*self.engine.parts.variables, *self.engine.parts.late)
        return {v.variable.name: values.get(v.variable.name) for v in known}

    @property
    def extents(self) -> dict[str, int]:
        """What inputs and outputs are read and written up to, by the names of their dims."""
        values = self.engine.state.bound_values()
        return {name: values[name] for name in self.program.extents}

    @alone
    def set_extent(self, name: str, value: int) -> None:
        """Let runs read and write only so much along the dim of that name, until told otherwise.

        Nothing is computed for the rest: rows of outputs behind it stay as they were. A plan has
        extents if it was prepared with one: `graph.prepare(extent="rows")`.
        """
        checked = take("set_extent", "name", str, name)
        self.engine.set_extent(checked, take_int("set_extent", "value", value))

    @alone
    def extent_report(self) -> ExtentReport:
        """How much of the work of a run at the largest extents is done at those of now."""
        self.engine.state.check_alive()
        values = self.engine.state.values_now()
        return report_extents(self.engine.parts, self.engine.linked, values)

    @property
    def states(self) -> PlanStates:
        """What is kept between runs, by name: to read, write, reset, truncate, snapshot."""
        return PlanStates(self.engine)

    @property
    def signals(self) -> dict[str, TimelineSignal]:
        """The signals that its rows reach or wait for, by name."""
        rows = self.engine.parts.ops
        timed = (r for r in rows if isinstance(r, (PreparedSignal, PreparedWait)))
        return {row.signal.name: row.signal for row in timed}

    @property
    def threads(self) -> int:
        """Participants of an execute at most."""
        return self.engine.parts.threads

    @property
    def steps(self) -> list[list[list[int]]]:
        """How it runs: steps of segments of positions in `prepared_ops`; barriers between steps."""
        return self.engine.linked.shown_steps()

    @property
    def op_order(self) -> tuple[int, ...]:
        """Positions in the order in which operations are taken up; views have their place too."""
        return tuple(self.engine.linked.order)

    @property
    def op_dependencies(self) -> list[tuple[int, ...]]:
        """For each operation the positions it must follow: declared, found from bytes, around."""
        return list(self.engine.linked.before)

    @property
    def op_levels(self) -> list[list[int]]:
        """Positions by the longest chain of dependencies before them."""
        return levels(self.engine.linked, self.engine.parts.placed)

    @property
    @alone
    def num_barriers(self) -> int:
        """How often the participants of one run wait for each other, at the current variables."""
        state = self.engine.state
        state.check_alive()
        self.engine.ways.use(self.engine, None)
        # What only goes on by itself is bound at the next run: outputs are those of the last one.
        if state.run.is_dirty and not (state.run.is_valid and state.is_as_bound()):
            self.engine.commit()
        return state.run.count_steps()[2]

    @property
    def memory(self) -> PlanMemory:
        """What the plan holds, in bytes."""
        return self.engine.memory

    @property
    def program(self) -> Program:
        """What the plan does: values, rows, variables, guards."""
        return self.engine.program

    @program.setter
    def program(self, program: Program) -> None:
        """Another one with the same rows may explain them better."""
        self.engine.program = program

    @property
    def growths(self) -> int:
        """How often the memory was planned again for larger variables."""
        return self.engine.growths

    # ------------------------------------------------------------ running

    def execute(self) -> None:
        """Run with the current inputs and variables. Hot: allocates nothing."""
        engine = self.engine
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
        self._hold.alone(RunLimits(timeout, fetch).begin(self.engine))

    @alone
    def rows_for(self, fetch: Iterable[str]) -> tuple[int, ...]:
        """What a run for these outputs does: positions of outermost rows in `prepared_ops`."""
        self.engine.state.check_alive()
        wanted = RunLimits(fetch=fetch).outputs(self.engine)
        return tuple(sorted(needed_rows(self.engine.parts, wanted or ())))

    def cancel(self) -> None:
        """End the run that is under way before its next step: it raises a `CancelledError`.

        To be called from another thread or a signal handler, or by a custom function. A run that is
        at its last step is over as usual; if nothing runs, nothing happens. A plan that runs
        inside of this one, like any custom function, is not interrupted.
        """
        self.engine.cancel()

    def execute_with_vars(self, values: Values | None = None, /, **named: int) -> None:
        """Bind variables and run. Checks everything first; values stay for later runs.

        They are given by name, as a mapping or as pairs: every keyword is a variable.
        """
        self._hold.alone(self.engine.run_with, as_values(values, named))

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
        self.engine.state.check_alive()
        wanted = RunLimits(fetch=fetch).outputs(self.engine)
        known = as_values(values, {})
        return run_profiled(self.engine, known, wanted, count, with_limits=limits)

    def explain(self) -> Explanation:
        """Which nodes became which kernels and why, buffers, steps, what variables change."""
        with self.engine.lock:
            return explain_plan(
                self.engine.parts,
                self.engine.linked,
                self.memory,
                self.engine.state.values_now(),
                self.compile_count,
                self.signature.shortened(),
            )

    def __call__(self, /, *array: Any, **inputs: Any) -> Any:
        """Copy the inputs in, bind variables from their shapes, run, return copies of the outputs.

        One array, or a tuple in output order. Inputs go by name; where there is one only, it needs
        none: `plan(array)`.
        """
        if array:
            inputs = named_inputs(array, inputs, self.engine.parts.input_io)
        return self.calls(inputs)

    # ------------------------------------------------------------ arrays without a copy

    def bind_input(self, name: str, array: Array) -> None:
        """Let the plan read the input from `array` itself at each run, until `unbind`.

        If the array overlaps what the plan writes, it is copied in before each run instead. Another
        array of the same shape in the place of one costs next to nothing; the plan holds both.
        """
        engine = self.engine  # like `Hold.alone`, in place: two arrays that take turns
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
        self._hold.alone(self._bind, name, array, False)

    def bind_output(self, name: str, array: Array) -> None:
        """Let the plan write the output to `array` itself at each run, until `unbind`.

        If the array overlaps anything that the plan uses, it is copied out after each run; one that
        shares memory with the array of another output is refused.
        """
        engine = self.engine  # as in `bind_input`
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
        self._hold.alone(self._bind, name, array, True)

    def _bind(self, name: str, array: Array, is_output: bool) -> None:
        engine = self.engine
        engine.state.check_alive()
        ios = engine.parts.output_io if is_output else engine.parts.input_io
        io = find_io("output" if is_output else "input", ios, name)
        checked = check_array(io, array, is_output=is_output)
        if is_output:
            engine.bindings.check_apart(io, checked)
        else:
            engine.ensure_capacity(engine.state.solve({name: checked.shape}))
        engine.rebind(lambda: engine.bind_array(io, checked, is_output))

    @alone
    def unbind(self, name: str | None = None, *, is_output: bool | None = None) -> None:
        """Go back to the plan's own buffer for that input or output, or for all.

        An input must then be written again; an output is there after the next execute. An input
        and an output may have one name: both are meant, unless `is_output` says which.
        """
        self.engine.state.check_alive()
        names = [io.name for io in (*self.engine.parts.input_io, *self.engine.parts.output_io)]
        if name is not None and name not in names:
            known = ", ".join(names) or "none"
            raise InputError("plan", f"has no input or output '{name}'; known: {known}.", name=name)
        self.engine.rebind(lambda: self.engine.unbind(name, is_output))

    # ------------------------------------------------------------ params

    @property
    def params(self) -> Table:
        """The params by name: their types, and how often each was replaced (`version`)."""
        return param_table(self.program.params)

    def missing_params(self) -> tuple[str, ...]:
        """The params that were declared without data and must be set before the first run."""
        return self.engine.parts.program.missing_params

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
        engine = self.engine
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
        self.engine.state.check_alive()
        wanted = self.engine.parts.threads if given is None else given
        made = ExecutionPlan(*parts_again(self.engine, wanted, _cloned))
        take_over(self.engine, made.engine)
        made.compile_count = self.compile_count
        return made

    replicate = clone

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

        A loaded plan has the code that it runs, and can be saved with that alone: where its file
        had more, `targets` must say so.

        `about` is for who wraps a plan in something of their own: JSON that the file has beside it.
        """
        save_to(path, self.engine, targets, about)

    def pack(self) -> bytes:
        """The contents of a file of this plan."""
        return pack(self.engine)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a plan is what its file would hold."""
        return restore_plan, (self.pack(), self.threads, self.memory_limit)

    # ------------------------------------------------------------ releasing

    @alone
    def release_intermediate_buffers(self, f: Callable[[int], object] | None = None) -> None:
        """Give the memory of intermediates and scratch back; a later execute takes it again.

        `f` is called with the id of every node whose buffer is no output. In a plan built by
        hand, an intermediate is what each run writes before it reads it and no other plan holds.
        """
        take_callback("release_intermediate_buffers", f)
        self.engine.state.check_alive()
        self.engine.discard_intermediates()
        if f is not None:
            for ast_id in passing_nodes(self.engine.parts):
                f(ast_id)

    @alone
    def release_all_buffers(self, f: Callable[[int], object] | None = None) -> None:
        """Give all memory back; the plan and its buffers cannot be used any more.

        Buffers whose memory another plan uses stay as they are, for that plan.
        """
        take_callback("release_all_buffers", f)
        self.engine.state.check_alive()
        self.calls.forget()
        self.engine.release()
        for ast_id in (*self.engine.parts.ast_to_buffer, *self.engine.parts.alias_ids):
            if f is not None:
                f(ast_id)


def _cloned(op: PreparedOp) -> PreparedOp:
    """An operation for a clone of its plan: a plan inside is cloned too."""
    if isinstance(op, PreparedCustomFunction) and isinstance(op.attrs, ExecutionPlan):
        return replace(op, attrs=op.attrs.clone())
    return op
