"""CompiledGraph: what a graph became, to run by name in every way that a caller may want.

    Session.compile(graph)  -->  CompiledGraph{plan}  --run, run_raw, run_slots, ...-->  outputs

Every entry point is a way to take inputs and a way to read outputs around one method, `_go`: so
defaults, handles, feeds, extents, states and pending tickets mean the same on all of them. The
work is done by the plan, and there is no other way to it.

Operations on the plan that belong together hold its lock, which a thread may take again.

One idea: the public face of a compiled graph: all entry points, beside each other because they must
mean the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from semel.errors import InputError
from semel.graph.routers import Router
from semel.ir.fields import MemoryLimit, take, take_arrays, take_int
from semel.ir.listed import public_names
from semel.loading import plan_from_bytes
from semel.locks import make_lock
from semel.plan.limits import RunLimits
from semel.plan.plan import ExecutionPlan
from semel.plan.readers import Reader
from semel.plan.report.explain import Explanation
from semel.plan.report.extent import ExtentReport
from semel.plan.snapshot import Snapshot
from semel.plan.states import PlanStates
from semel.plan.table import Signature, Table
from semel.runtime.buffer import Array
from semel.runtime.free import HOST_DEVICE
from semel.session.capabilities import Capabilities, find_capabilities
from semel.session.capture import RouterCapture
from semel.session.extent import (
    ActiveExtent,
    largest,
    plan_with_extent,
    read_extent,
    set_extent,
)
from semel.session.handles import HandleInfo, Handles
from semel.session.moe import MoeMembers
from semel.session.options import Options
from semel.session.outputs import Outputs, as_names
from semel.session.pipeline import Pipeline, RunTicket
from semel.session.readers import Into, Wanted
from semel.session.residency import ExpertResidency, Residency, residency_for
from semel.session.values import (
    as_input,
    by_position,
    from_bytes,
    given,
    missing_inputs,
    unknown_input,
)

R = TypeVar("R")
NOTHING: Mapping[str, str] = MappingProxyType({})


class Request(NamedTuple, Generic[R]):
    """What is asked of one run; `feeds` of handles are for this run alone."""

    reader: Reader[R]
    wanted: Wanted
    timeout: float | None = None
    feeds: Mapping[str, str] = NOTHING
    variables: Mapping[str, int] | None = None


class CompiledGraph(MoeMembers):
    """A graph that is compiled: see `ExecutableGraph` for what each member promises.

    One idea: one member for each entry point that callers of other runtimes expect, each around
    `_go`.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        options: Options | None = None,
        routers: Sequence[Router] = (),
        experts: ExpertResidency | Residency | None = None,
    ) -> None:
        """`experts` is how a plan with its experts in a file has them, or those of its original."""
        self.options = options or Options()
        self.routers = tuple(routers)
        self._capture: RouterCapture | None = None
        self._experts: Residency | None = None
        if isinstance(experts, ExpertResidency):
            self._experts = Residency.of(plan, self.routers, experts)
        elif experts is not None:
            self._experts = experts.clone(plan)
        self._pipeline: Pipeline | None = None
        self._making = make_lock()
        self._use(plan, Handles(plan, plan.program.defaults))

    def _use(self, plan: ExecutionPlan, handles: Handles) -> None:
        """Run on this plan from now on, with these handles of it."""
        self.plan, self._handles = plan, handles
        self._calls, self._table, self._lock = plan.calls, plan.inputs, plan.lock
        self._slots = self._calls.slots
        self._dtypes = {name: entry.dtype.numpy for name, entry in self._table.items()}
        #: The shapes by which the last run that was begun was judged.
        self._good_shapes: dict[str, tuple[int, ...]] = {}
        self._note_handles()
        self._known: dict[tuple[str, ...] | None, Wanted] = {None: Wanted(plan.outputs)}
        self._all = self._known[None]
        self._slot_reader: Reader[Any] = self._all.slots
        if self._experts is not None:
            self._slot_reader = self._experts.reader(self._all.slots)

    def __dir__(self) -> list[str]:
        return public_names(self)

    def __repr__(self) -> str:
        return f"CompiledGraph({self.signature.shortened()}, {self.plan.device})"

    def _repr_html_(self) -> str:
        return self.plan._repr_html_()

    # ------------------------------------------------------------ what it is

    @property
    def inputs(self) -> Table:
        """What runs are given, in order."""
        return self.plan.inputs

    @property
    def outputs(self) -> Table:
        """What runs give back, in order."""
        return self.plan.outputs

    @property
    def params(self) -> Table:
        """The weights that can be replaced."""
        return self.plan.params

    @property
    def states(self) -> PlanStates:
        """What is kept between runs."""
        return self.plan.states

    @property
    def signature(self) -> Signature:
        """What goes in and what comes out; `str()` is one line."""
        return self.plan.signature

    @property
    def arena_ptr(self) -> int:
        """The address that the offsets of inputs and outputs count from."""
        return self.plan.arena_ptr

    # ------------------------------------------------------------ runs

    def run(
        self,
        *args: Any,
        out: Any = None,
        fetch: Iterable[str] | None = None,
        timeout: float | None = None,
        variables: Mapping[str, int] | None = None,
        **named: Any,
    ) -> Outputs:
        """Run with these inputs; copies of the outputs, by name and by order.

        Inputs are given by position, by name, or as one mapping. With `out`, outputs are written
        to those arrays, which are returned. With `fetch`, only these outputs are computed and
        returned, in that order. A run that takes longer than `timeout` seconds ends at a step with
        a `TimedOutError`. `variables` are values of those that no shape gives; one that is left out
        stays as it is.
        """
        wanted = self._wanted(fetch)
        reader = wanted.copies if out is None else Into(wanted, self.outputs, out)
        if variables is not None and not isinstance(variables, Mapping):
            raise InputError("run", f"variables must map names to numbers, got {variables!r}.")
        request = Request(reader, wanted, timeout, variables=variables)
        return self._go(given(self._table, args, named), request)

    __call__ = run

    def run_raw(
        self,
        *args: Any,
        fetch: Iterable[str] | None = None,
        timeout: float | None = None,
        **named: Any,
    ) -> Outputs:
        """Run; views of the outputs where they lie, which raise once another run has begun."""
        wanted = self._wanted(fetch)
        return self._go(given(self._table, args, named), Request(wanted.borrowed, wanted, timeout))

    def run_slots(self, inputs: Sequence[Any] = ()) -> tuple[tuple[int, int], ...]:
        """Run with the inputs in order; where each output lies: (bytes behind `arena_ptr`, bytes).

        The lowest overhead. The bytes are good until the next run; inputs that have a handle or
        a default may be None.
        """
        everything, pipeline = self._all, self._pipeline
        is_plain = self._is_plain and (pipeline is None or pipeline.is_idle)
        kind = type(inputs)
        if is_plain and (kind is list or kind is tuple):
            return self._slots(inputs, self._slot_reader)
        if not isinstance(inputs, (list, tuple)):
            raise InputError("run_slots", f"takes a list of arrays, got {type(inputs).__name__}.")
        found = {n: v for n, v in by_position(self._table, inputs).items() if v is not None}
        return self._go(found, Request(everything.slots, everything))

    def run_typed(
        self,
        inputs: Mapping[str, Any],
        *,
        fetch: Iterable[str] | None = None,
        timeout: float | None = None,
    ) -> Outputs:
        """Run on bytes: inputs are `(bytes, dtype)`, with a shape if it does not follow.

        Outputs come back as `(data, dtype, shape)`, bit for bit.
        """
        wanted = self._wanted(fetch)
        arrays = {
            name: from_bytes(self._table[name], value, self.options.casting)
            for name, value in given(self._table, (inputs,), {}).items()
        }
        return self._go(arrays, Request(wanted.bytes, wanted, timeout))

    def cancel(self) -> None:
        """End the run that is under way before its next step, with a `CancelledError`.

        To be called from another thread. If nothing runs, nothing happens.
        """
        self.plan.cancel()

    def _wanted(self, fetch: Iterable[str] | None) -> Wanted:
        if fetch is None:
            return self._all
        names = as_names(fetch)
        found = self._known.get(names)
        if found is None:
            found = self._known[names] = Wanted(self.outputs, names)
        return found

    def _go(self, inputs: Mapping[str, Any], request: Request[R]) -> R:
        """The one way to run: what every entry point comes to, after what is pending."""
        self._settle()
        return self._go_now(inputs, request)

    def _go_now(self, inputs: Mapping[str, Any], request: Request[R]) -> R:
        if not self._handles:
            return self._call(inputs, request)
        arrays = self._as_arrays(inputs)  # now: a view of an output is stale once arrays move
        with self._lock:
            instead = {name: a for name, a in arrays.items() if self._handles.has_value(name)}
            others = {name: a for name, a in arrays.items() if name not in instead}
            with self._handles.around(instead, request.feeds):
                return self._call(others, request)

    def _call(self, inputs: Mapping[str, Any], request: Request[R]) -> R:
        reader, capture, experts = request.reader, self._capture, self._experts
        if capture is not None:
            reader = capture.reader(reader)
        limits, sticky = self._limits(request), self.options.sticky
        values, accept = request.variables, self._accept
        if experts is None:
            return self._calls.run(inputs, reader, values, limits, sticky=sticky, accept=accept)
        with self._lock:
            reader = experts.reader(reader, None if limits is None else limits.fetch)
            return self._calls.run(inputs, reader, values, limits, sticky=sticky, accept=accept)

    def _limits(self, request: Request[Any]) -> RunLimits | None:
        wanted = request.wanted
        if wanted.is_all:
            return None if request.timeout is None else RunLimits(timeout=request.timeout)
        if request.timeout is not None or self._handles or request.feeds:
            return self._limits_for(request)
        found = self._limits_of.get(wanted)
        if found is None:
            found = self._limits_of[wanted] = self._limits_for(request)
        return found

    def _limits_for(self, request: Request[Any]) -> RunLimits:
        """What feeds a handle is wanted too, whoever reads it, and what is captured."""
        fed = (*self._handles.fed, *request.feeds.values())
        captured = () if self._capture is None else self._capture.names
        return RunLimits(request.timeout, (*request.wanted.names, *fed, *captured))

    def _accept(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Arrays of all inputs that a run must be given, of their dtypes."""
        arrays = self._as_arrays(inputs)
        if len(arrays) < len(self._table):
            missing = [name for name in self._table if name not in arrays]
            needed = self.plan.calls.without_value(missing, sticky=self.options.sticky)
            if needed:
                raise missing_inputs(self._table, needed)
        return arrays

    def _as_arrays(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Arrays of these inputs' dtypes."""
        dtypes, arrays = self._dtypes, {}
        for name, value in inputs.items():
            if name not in dtypes:
                raise unknown_input(self._table, name)
            if type(value) is np.ndarray and value.dtype == dtypes[name]:
                arrays[name] = value
            else:
                arrays[name] = as_input(self._table[name], value, self.options.casting)
        return arrays

    # ------------------------------------------------------------ asynchronous runs

    def commit_no_wait(
        self,
        *args: Any,
        fetch: Iterable[str] | None = None,
        timeout: float | None = None,
        **named: Any,
    ) -> RunTicket[Outputs]:
        """Begin a run and return at once: see `semel.session.pipeline`.

        Inputs are checked and copied before it returns. It waits where `depth` runs are not over.
        """
        wanted = self._wanted(fetch)
        request = Request(wanted.copies, wanted, timeout)
        self._limits(request)  # judges the timeout
        inputs = given(self._table, args, named)
        if self.options.sticky and len(inputs) < len(self._table):
            self._settle()  # what is left out may be what a run gives that is under way
        arrays = self._accept(inputs)
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != self._good_shapes:
            self.plan.calls.check_shapes(shapes)
            self._good_shapes = shapes
        return self._lane().submit(arrays, lambda staged: self._go_now(staged, request))

    def sync_pending(self) -> None:
        """Wait for all runs that were begun; the first error that nobody saw is raised."""
        if self._pipeline is not None:
            self._pipeline.sync()

    def run_pipelined(self, input_sets: Iterable[Any]) -> list[Outputs]:
        """As many runs as there are sets of inputs, under way one after the other.

        A set is a mapping, or arrays in order. All that they gave is returned, in order.
        """
        return list(self.stream(input_sets))

    def stream(self, input_sets: Iterable[Any]) -> Iterator[Outputs]:
        """Like `run_pipelined`, with each run's outputs as soon as they are there."""
        if not isinstance(input_sets, Iterable):
            raise InputError(
                "stream", f"must be given sets of inputs, got {type(input_sets).__name__}."
            )

        def begin(inputs: Any) -> RunTicket[Outputs]:
            is_in_order = isinstance(inputs, (tuple, list))
            return self.commit_no_wait(*inputs) if is_in_order else self.commit_no_wait(inputs)

        return self._lane().stream(begin, input_sets, self.options.depth)

    def _lane(self) -> Pipeline:
        found = self._pipeline
        if found is None:  # without the plan's lock, which a run has for as long as it takes
            with self._making:
                found = self._pipeline = self._pipeline or Pipeline(
                    self.plan.name or "graph", self.options.depth
                )
        return found

    def _settle(self) -> None:
        """Wait for what was begun before."""
        if self._pipeline is not None:
            self._pipeline.settle()

    # ------------------------------------------------------------ handles

    def bind_handle(self, name: str, data: Any) -> bool:
        """Give a state, or an input, a value that stays; runs may still be given another.

        True, or an error: of an unknown name, another dtype or shape.
        """
        self.bind_handles({take("bind_handle", "name", str, name): data})
        return True

    def bind_handles(self, values: Mapping[str, Any]) -> None:
        """Several at once: states that share a cursor are given equally many rows together."""
        self._settle()
        with self._lock:
            every = take_arrays("bind_handles", values)
            states = {name: data for name, data in every.items() if name in self.plan.states}
            inputs = {name: data for name, data in every.items() if name not in states}
            for name in inputs:
                if name not in self._table:
                    raise self._no_handle(name)
            arrays = self._as_arrays(inputs)
            self._handles.check(arrays)
            if states:
                self.plan.states.write(states)
            self._handles.bind(arrays)
            self._note_handles()

    def read_handle(self, name: str, rows: Any = None) -> Array:
        """A copy of what a state, or the handle of an input, holds now; only these rows of it."""
        take("read_handle", "name", str, name)
        self._settle()
        with self._lock:
            if name in self.plan.states:
                return self.plan.states.read(name, rows)
            if name not in self._table:
                raise self._no_handle(name)
            return self._handles.read(name, rows)

    def unbind(self, name: str) -> None:
        """Forget the handle of an input, and what feeds it."""
        take("unbind", "name", str, name)
        self._settle()
        with self._lock:
            self._handles.unbind(name)
            self._note_handles()

    def _note_handles(self) -> None:
        """Whether inputs go as they are to the plan, all of them and nothing else."""
        options = self.options
        is_strict = options.casting == "exact" and not options.sticky
        self._is_plain = is_strict and not self._handles and self._capture is None
        self._good_shapes = {}
        #: Those of runs without handles and a time limit, for some outputs.
        self._limits_of: dict[Wanted, RunLimits] = {}

    def handles(self) -> dict[str, HandleInfo]:
        """All states, and all inputs that have a value of their own."""
        states = {
            info.name: HandleInfo(info.name, "state", info.type, info.nbytes)
            for info in self.plan.states.values()
        }
        return {**states, **self._handles.infos()}

    def set_gpu_handle_feed(self, handle: str, output_index: int) -> bool:
        """Let an output be the value of an input's handle after each run; nothing is copied.

        Dtype and shape must be the same, which is checked here. True, or an error.
        """
        self._settle()
        with self._lock:
            self._handles.feed(_feed_name(handle), self._output_name(output_index))
        return True

    def run_feed_gpu_handle(
        self, inputs: Mapping[str, Any], handle: str, output_index: int
    ) -> Array:
        """Run with such a feed for this run alone; a copy of that output, and of no other."""
        output = self._output_name(output_index)
        self._handles.check_feed(_feed_name(handle), output)
        wanted = self._wanted((output,))
        found = given(self._table, (inputs,), {})
        (result,) = self._go(found, Request(wanted.copies, wanted, feeds={handle: output}))
        return result  # type: ignore[no-any-return]  # an array

    def has_gpu_handle(self, name: str) -> bool:
        """Whether there is a state of that name, or an input with a value of its own."""
        take("has_gpu_handle", "name", str, name)
        return name in self.plan.states or name in self._handles

    # On the CPU the device's memory is the host's: the same members under both names.
    bind_gpu_handle, read_gpu_handle = bind_handle, read_handle

    def _output_name(self, index: int) -> str:
        return self.outputs[take_int("feed", "output_index", index)].name

    def _no_handle(self, name: str) -> InputError:
        states, inputs = ", ".join(self.plan.states) or "none", ", ".join(self._table) or "none"
        return InputError(
            "handle", f"must be of a state ({states}) or an input ({inputs}), got {name!r}."
        )

    # ------------------------------------------------------------ extents

    def set_active_extent(self, extent: ActiveExtent | None) -> None:
        """Let runs process the first `actual` of `upper` rows, exactly; with None all of them.

        It stays until told otherwise. Arrays have `upper` rows; those from `actual` on are not
        read, and those of outputs stay as they were.

        A graph that was compiled without an `extent` is compiled for its only symbolic dim, once,
        by the first extent that is set. Its arrays have `upper` rows from then on; params, states
        and handles stay.
        """
        self._settle()
        with self._lock:
            if extent is None or self.plan.program.extents:
                set_extent(self.plan, extent)
            else:
                change = None if self._experts is None else self._experts.change
                self._go_on_with(plan_with_extent(self.plan, extent, change))

    def _go_on_with(self, plan: ExecutionPlan) -> None:
        """Let another plan take the place of this one, which is not used any more."""
        handles = Handles(plan, plan.program.defaults)
        self._handles.copy_to(handles)
        before = self.plan
        if self._experts is not None:
            self._experts = self._experts.moved_to(plan)
        self._use(plan, handles)
        before.release_all_buffers()

    @property
    def extent(self) -> ActiveExtent | None:
        """The active extent; None if runs process everything."""
        return read_extent(self.plan)

    @contextmanager
    def active_extent(self, actual: int | None) -> Iterator[None]:
        """Inside, runs process so many rows; then as many as before, whatever happened."""
        before = self.extent
        self.set_active_extent(None if actual is None else (actual, largest(self.plan)))
        try:
            yield
        finally:
            self.set_active_extent(before)

    def extent_report(self) -> ExtentReport:
        """How much of the work of a full run is done at the active extent."""
        return self.plan.extent_report()

    # ------------------------------------------------------------ params

    def set_param(self, name: str, data: Any) -> None:
        """Replace a param by a copy of `data`, from the next run on."""
        self._settle()
        self.plan.set_param(name, data)

    def set_params(self, arrays: Mapping[str, Any]) -> None:
        """Replace several params at once, all or none."""
        self._settle()
        self.plan.set_params(arrays)

    def set_param_typed(self, name: str, data: Any, dtype: Any) -> None:
        """Replace a param by these bytes of that dtype, which must be as many as it takes."""
        self._settle()
        self.plan.set_param_typed(name, data, dtype, casting=self.options.casting)

    def load_params(
        self, source: Mapping[str, Any] | str | os.PathLike[str], *, strict: bool = True
    ) -> None:
        """Replace params by the arrays of a mapping or of a .safetensors file, all or none.

        If `strict`, these must be all params and nothing else.
        """
        self._settle()
        self.plan.load_params(source, strict=strict, casting=self.options.casting)

    def missing_params(self) -> tuple[str, ...]:
        """The params that were declared without data and must be set before the first run."""
        return self.plan.missing_params()

    # ------------------------------------------------------------ states

    def truncate(self, rows: int, cursor: str | None = None) -> None:
        """Let only the first `rows` of what was appended be valid."""
        self._settle()
        self.plan.states.truncate(rows, cursor)

    def reset(self, name: str | None = None) -> None:
        """Go back to the first values."""
        self._settle()
        self.plan.states.reset(name)

    def snapshot(self) -> Snapshot:
        """What all states hold now."""
        self._settle()
        return self.plan.states.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot."""
        self._settle()
        self.plan.states.restore(snapshot)

    def copy_state_from(self, other: CompiledGraph, rows: int | None = None) -> None:
        """Go on from the states of another graph, whose room may differ: their first `rows`."""
        take("copy_state_from", "other", CompiledGraph, other)._settle()
        self._settle()
        self.plan.states.copy_rows_from(other.plan.states, rows)

    # ------------------------------------------------------------ another one

    def clone(self) -> CompiledGraph:
        """One of its own over the same code and weights, which goes on from here."""
        self._settle()
        with self._lock:
            made = CompiledGraph(self.plan.clone(), self.options, self.routers, self._experts)
            self._handles.copy_to(made._handles)
            made._capture = None if self._capture is None else self._capture.fresh()
            made._note_handles()
            return made

    clone_box = fork = clone

    # ------------------------------------------------------------ saving

    def save(self, path: str | os.PathLike[str], *, targets: Sequence[str] | None = None) -> None:
        """Write it to one file for `semel.load`: code, params as they are now, and options.

        What belongs to this one is not part of it: what states hold (`snapshot()` has that),
        handles, extents, capture and who is resident. `targets` are names of machines, as in
        `ExecutionPlan.save`.
        """
        self._settle()
        routers = [asdict(router) for router in self.routers]
        experts = None if self._experts is None else self._experts.asked.as_record()
        about = {"options": asdict(self.options), "routers": routers, "experts": experts}
        self.plan.save(path, targets=targets, about=about)
        if self._experts is not None:
            self._experts.forget_files()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, it is what its file would hold."""
        self._settle()
        if self._experts is None:
            return CompiledGraph, (self.plan, self.options, self.routers)
        plan, asked = self.plan, self._experts.asked
        how = plan.pack(), plan.threads, plan.memory_limit
        self._experts.forget_files()
        return restore_resident, (*how, self.options, self.routers, asked)

    def explain(self) -> Explanation:
        """What each node became, what moves how many bytes, memory, steps, and why."""
        return self.plan.explain()

    def capabilities(self) -> Capabilities:
        """What can be done with it."""
        return find_capabilities(self.plan, self.options, self.routers, self._experts is not None)


def restore_resident(
    data: bytes,
    threads: int,
    memory_limit: MemoryLimit,
    options: Options,
    routers: tuple[Router, ...],
    asked: ExpertResidency,
) -> CompiledGraph:
    """The compiled graph of a pickle whose experts are in a file, which is written here."""
    asked = replace(asked, path=None)
    place = residency_for("unpickle", HOST_DEVICE, asked)
    plan = plan_from_bytes(data, threads, memory_limit, lambda program, _: place(program, routers))
    return CompiledGraph(plan, options, routers, asked)


def _feed_name(handle: Any) -> str:
    return take("feed", "handle", str, handle)
