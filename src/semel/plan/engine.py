"""What runs a plan: the linked program, the values of its variables, and memory that may move.

    PlanParts x ProgramStore | None  --Engine-->  run, bind, grow, attach arrays

`ExecutionPlan` is what people see; this is what it is made of. Everything here happens in the
middle of one operation on the plan (`semel.runtime.hold`), so that nothing is locked.

Invariants: variables, shapes and tables change together or not at all. While memory moves
(`state.is_moving`) nothing can run; a change that is interrupted leaves a plan that says so.

One idea: what must change together lies together: each method leaves variables, tables and memory
agreeing.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from semel.config import settings
from semel.errors import DeviceError, InternalError, OutOfMemoryError, VariableError
from semel.ir.fields import NO_LIMIT
from semel.ir.types import TensorType
from semel.plan.adopt import adopt_buffers
from semel.plan.bindings import Bindings
from semel.plan.errors import as_value
from semel.plan.extents import check_extent, fill_part, names_in
from semel.plan.kept import spoil_states
from semel.plan.lanes import is_laned
from semel.plan.limits import TimeLimit
from semel.plan.link import LinkedRows, link_rows
from semel.plan.pages import pages_of
from semel.plan.parts import PlanMemory, PlanParts
from semel.plan.plan_state import PlanState
from semel.plan.program import WEIGHTS, PlanIO, Program
from semel.plan.release import passing_ranges
from semel.plan.report.told import tell_growth
from semel.plan.resolve import INTERRUPTED, check_limits, resolve_code
from semel.plan.rows import PreparedWait
from semel.plan.split import link_lanes
from semel.plan.store import ProgramStore
from semel.plan.stuck import give_up
from semel.plan.submitted import came_back
from semel.plan.ways import Way, Ways, going_back
from semel.plan.weights import Weight
from semel.plan.writers import find_writers
from semel.runtime.allocator import allocate
from semel.runtime.buffer import Array
from semel.runtime.custom import FunctionOwner
from semel.runtime.device import find_device
from semel.runtime.events import LoggedRun
from semel.runtime.laned import LanedExecutable, link_program
from semel.runtime.linked import Executable, FlatProgram
from semel.runtime.memory import Memory


class Engine:
    """One plan's parts, state and executable. `enter` runs it and says why it came back.

    One idea: all changes of a running plan, which only together keep the invariants above.
    """

    def __init__(self, parts: PlanParts, store: ProgramStore | None) -> None:
        self.parts, self.store = parts, store
        #: What the plan does. Another one with the same rows may explain them better.
        self.program: Program = parts.program
        self.index = {v.variable.name: i for i, v in enumerate(parts.variables) if v.next is None}
        num_kept = len(parts.states) + bool(parts.program.params)
        self.state = PlanState(parts.variables, parts.input_io, parts.late, num_kept)
        self.state.request_capacity = weakref.WeakMethod(self.ensure_capacity)
        self.hold = self.state.hold
        self.lock = self.hold.lock
        self.growths = 0
        named = {io.index for io in parts.input_io} | set(parts.outputs) if store is None else ()
        self._lowest = min((parts.buffers[i].address for i in named), default=0)
        #: Of the run that is under way, if its time is limited.
        self.limit: TimeLimit | None = None
        self._owner: FunctionOwner | None = None
        self._failures = 0  # runs that were begun and did not end well, as far as states know
        executable = link_program(parts.device, self._flatten())
        self.ways = Ways(Way(executable, self.linked))
        self.state.run = executable.state
        self.state.keep_all()
        self._note_params()
        adopt_buffers(parts, self.state, self.writers)
        self.bindings = Bindings(parts.buffers, parts.written, self.state, parts.late)
        if any(state.rows and state.rows.table for state in parts.states):
            self.bindings.prepare = weakref.WeakMethod(self._hand_out_blocks)
        self._is_poisoned = "poison" in settings().debug
        self.set_enter()
        _engines.add(self)

    @property
    def executable(self) -> Executable:
        """What the next run runs, and the last one ran: all of the plan, or part of it."""
        return self.ways.now.executable

    def set_enter(self) -> None:
        """Enter runs as the way in use and the bound arrays need.

        `own_enter` is that of this way, `enter` always that of the whole plan.
        """
        plain = self._poisoned if self._is_poisoned else self.executable.call
        is_silent = self.bindings.is_silent
        self.own_enter = plain if is_silent else partial(self.bindings.run, plain)
        self.enter = self.own_enter if self.ways.is_whole else going_back(self)

    @property
    def memory(self) -> PlanMemory:
        """What the plan holds, in bytes."""
        scratch = sum(way.executable.scratch_bytes for way in self.ways)
        if self.store is not None:
            return replace(self.store.memory, scratch_bytes=scratch)
        buffers = self.parts.buffers
        held = {b.memory.id: b.memory.size_bytes for b in buffers}
        owned = {buffers[i].memory.id for i in self.parts.own}
        return PlanMemory(
            weights_bytes=sum(size for id, size in held.items() if id not in owned),
            io_bytes=sum(size for id, size in held.items() if id in owned),
            scratch_bytes=scratch,
        )

    @property
    def own_bytes(self) -> int:
        """What the plan holds for itself, as `memory` says it, without the rest of that."""
        if self.store is None:
            return self.memory.own_bytes
        return self.store.own_bytes + self.executable.scratch_bytes

    # ------------------------------------------------------------ running

    def run(self, enter: Callable[[], int] | None = None) -> None:
        """One run, by the plan's own entry or another, in the middle of an operation."""
        enter = self.enter if enter is None else enter
        try:
            code = enter()
            if code:
                self.resolve(code, enter)
        except BaseException:
            self.abandon()
            raise

    def run_limited(self, limit: TimeLimit | None, wanted: frozenset[int] | None) -> None:
        """One run for these outputs, or all.

        It is given up at the first step for which there is no time left.
        """
        self.ways.use(self, wanted)
        if limit is None:
            self.run(self.own_enter)
            return
        try:
            self.limit = limit
            self.executable.limit(limit.left())
            self.run(self.own_enter)
        finally:
            self.limit = None
            self.executable.limit(None)

    def cancel(self) -> None:
        """Let a run that is under way end before its next step; from any thread."""
        self.executable.ask_back()
        for row in self.parts.ops:
            if isinstance(row, PreparedWait):
                row.signal.nudge()

    def run_with(self, values: Mapping[str, int]) -> None:
        """Bind variables, and run."""
        try:
            self.bind(values)
        except BaseException:
            self.abandon()
            raise
        self.run()

    def commit(self) -> None:
        """Let the runner check the pending values and take them over, without a run.

        Outputs stay readable if nothing changed: cursors may have gone on, though.
        """
        could_read = self.state.run.is_valid
        self.run(self.executable.bind)
        if could_read and not self.state.run.is_valid:
            self.state.note_void("variables changed")

    def _hand_out_blocks(self) -> None:
        """Let sequences have blocks for the rows that the run is about to append."""
        for pages in pages_of(self):
            pages.reserve_for_run()

    def run_logged(self) -> LoggedRun:
        """One run with an entry that takes times; what happened in it."""
        self.bindings.before_run()
        with self.executable.log() as log:
            self.run(log.enter)
        self.bindings.after_run()
        return log.logged()

    def resolve(self, code: int, enter: Callable[[], int]) -> None:
        """Act on what the executable returned until it says OK, or raise."""
        while code:
            resolve_code(self, code)
            check_limits(self)
            code = enter()

    # ------------------------------------------------------------ runs on lanes

    @property
    def name(self) -> str:
        """What the plan is called, for people."""
        return self.parts.program.name or "plan"

    @property
    def header(self) -> int:
        """Where the header of a native run lies that is all there is to a run; else 0."""
        executable = self.ways.now.executable
        return executable.header if self.enter is executable.call else 0

    def came_back(self, code: int) -> bool:
        """Do what a run on a lane came back for; whether it goes on then."""
        return came_back(self, code)

    def ask_back(self) -> None:
        """Let a run come back before its next step, to be given up."""
        self.cancel()

    # ------------------------------------------------------------ ends of runs

    def abandon(self) -> None:
        """In an `except`: an unfinished run is over, refused values are forgotten."""
        try:
            give_up(self, sys.exception())
        finally:
            self.forget_run()
            if self._owner is not None:
                self._owner.give_up()

    def forget_run(self, before: int | None = None) -> None:
        """An unfinished run, which came `before` a step, is over: the next entry begins one."""
        if self.state.is_released:
            return
        run = self.state.run
        if run.is_busy:
            has_lanes = isinstance(self.executable, LanedExecutable)
            before = None if has_lanes else run.progress[0]  # other lanes may be further
            run.reset()
        if run.is_dirty:
            run.forget_pending()
            self.state.version += 1
        if self.parts.states:
            self._note_failures(before)

    def _note_failures(self, before: int | None = None) -> None:
        """A run that was begun and did not end well has spoilt what it was updating in place.

        If it is known to have come back `before` a step, and was given up: only what it had
        reached by then.
        """
        run = self.state.run
        if run.attempts - run.generation != self._failures:
            self._failures = run.attempts - run.generation
            spoil_states(self, before)

    def _poisoned(self) -> int:
        """The entry of SEMEL_DEBUG=poison: stale memory is NaN, so that reading it shows."""
        if not self.state.is_released and not self.state.run.is_busy:
            self._fill_stale_memory()
        return self.executable.call()

    def _fill_stale_memory(self) -> None:
        self.executable.fill_scratch(0xFF)
        for memory in self.arena():
            memory.fill(0xFF)
        for io in self.parts.output_io if self.store else ():
            buffer = self.parts.buffers[io.index]
            if io.index in self.state.unwritten:
                continue
            if not io.part:
                buffer.memory.fill(0xFF, buffer.offset, buffer.offset + buffer.capacity_bytes)
            else:  # the rest is what earlier runs have left, and stays
                fill_part(buffer, io, self.state.pending_values())
        for keeper in self.state.inputs.values():
            buffer = self.parts.buffers[keeper.index]
            start = buffer.offset + keeper.recorded_bytes()
            if not keeper.is_bound:
                buffer.memory.fill(0xFF, start, buffer.offset + buffer.capacity_bytes)

    # ------------------------------------------------------------ variables and room for them

    def bind(self, values: Mapping[str, int]) -> None:
        """Put values into the pending area; the runner checks and commits them."""
        self.state.check_alive()
        index, state = self.index, self.state
        if state.partial:
            state.forget_short(values)
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
                if name in self.state.held_values():
                    raise VariableError(
                        "plan",
                        f"'{name}' is kept between runs and goes on by itself, nobody binds it.",
                        hint="plan.states.truncate() and reset() take it back.",
                        variable=name,
                    )
                if any(v.variable.name == name for v in self.parts.late):
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

    def set_extent(self, name: str, value: int) -> None:
        """Let runs read and write so much of inputs and outputs that have the extent."""
        self.state.check_alive()
        # Without cursors: whether there is room is for the run to say.
        held, known = self.state.held_values(), self.state.bound_values()
        check_extent(self.parts, name, value, {n: v for n, v in known.items() if n not in held})
        if any(name in names_in(kind) for kind in self._shown_types()):
            self.state.void("the extent changed")
        self.state.forget_short({name: value})
        self.set_values({name: value})
        self.state.version += 1

    def _shown_types(self) -> Iterator[TensorType]:
        """The types of what can be read after a run."""
        yield from (io.type for io in self.parts.output_io)
        yield from (self.parts.program.values[i].type for _, i in self.parts.program.kept)

    def set_values(self, values: Mapping[str, int]) -> None:
        """Take over values that are known to be good."""
        for name, value in values.items():
            self.state.run.set_value(self.index[name], value)
        self.state.run.mark_dirty()

    def ensure_capacity(self, values: Mapping[str, int]) -> None:
        """Grow the memory if a variable without a maximum goes beyond its capacity."""
        wanted: dict[str, int] = {}
        for plan_variable in self.parts.variables:
            name, top = plan_variable.variable.name, plan_variable.top
            if plan_variable.variable.max is None and top is not None:
                wanted[name] = top
                if values.get(name, 0) > top:
                    wanted[name] = max(values[name], 2 * top)
        if any(wanted[name] != self._top(name) for name in wanted):
            self._grow(wanted, values)

    def _top(self, name: str) -> int | None:
        return self.parts.variables[self.index[name]].top

    def _grow(self, capacities: Mapping[str, int], values: Mapping[str, int]) -> None:
        """Re-plan memory; doubled capacities first, and less if those are refused.

        What variables may become that nobody asked for is given up last: a capacity of many
        images is no reason to refuse a large one.
        """
        exact = {n: max(self._top(n) or 0, values.get(n, 0)) for n in capacities}
        needed = {n: values.get(n, exact[n]) for n in exact}
        self.executable.rest()
        self.bindings.detach()
        try:
            self.state.is_moving = True
            used = self._resize_to((capacities, exact, needed))
            self.parts = replace(
                self.parts,
                variables=tuple(
                    replace(v, capacity=used.get(v.variable.name, v.capacity))
                    for v in self.parts.variables
                ),
            )
            self.relink()
        finally:
            self.check_moved()
        self.growths += 1
        tell_growth(values, used, self.memory.peak_bytes)

    def _resize_to(self, attempts: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
        """Make memory for the first of these capacities that there is room for."""
        store = self.store
        if store is None:
            raise InternalError("plan", "has a capacity but no way to grow.")
        for number, capacities in enumerate(attempts, 1):
            try:
                store.resize(capacities, self.parts)
            except OutOfMemoryError:  # which says so before anything moves
                if number == len(attempts):
                    self.attach()
                    raise
            else:
                return capacities
        raise InternalError("plan", "has no capacities to try.")

    def relink(self) -> None:
        """Make new tables after the buffers moved; variables and written shapes carry over."""
        self.ways.forget(self)
        self.state.void("memory grew")
        self.executable.relink(self._flatten())
        self.ways.relinked(self.linked)
        self.state.run = self.executable.state
        self.state.version += 1
        self.attach()

    def _flatten(self) -> FlatProgram:
        """Steps and rows on the memory that there is now."""
        parts = self.parts
        # The rows hold raw addresses: the bytes must outlive a release by whoever shares them.
        self.pins = [buffer.memory.pin() for buffer in parts.buffers]
        for memory in {b.memory.id: b.memory for b in parts.buffers}.values():
            memory.hold(self)
        # A compiled plan writes what it declares: nothing needs to be kept of that.
        self.writers = find_writers(parts) if self.store is None else None
        self.linked, flat = self.link(parts)
        return flat

    def link(self, parts: PlanParts) -> tuple[LinkedRows, FlatProgram]:
        """The rows of these parts, which are all of the plan's or some, as a device links them."""
        linked, marks = link_rows(parts), () if self.writers is None else self.writers.marks
        if is_laned(parts.rows, parts.program.device):
            return link_lanes(parts, linked, marks)
        return linked, linked.as_flat(parts, marks)

    @property
    def io_address(self) -> int:
        """Where the block with all inputs and outputs begins; what offsets count from."""
        store = self.store
        return self._lowest if store is None else store.io[store.program.device].address

    def arena(self) -> tuple[Memory, ...]:
        """Memory of intermediates."""
        return () if self.store is None else tuple(self.store.arena.values())

    def use_function(self, kind: str, owner: FunctionOwner) -> None:
        """Let rows of that kind call `owner`, who is told of runs given up and weights replaced."""
        known = self.parts.functions
        own = replace(known[kind], owner=owner)
        self.parts = replace(self.parts, functions={**known, kind: own})
        self._owner = owner

    # ------------------------------------------------------------ weights

    def take_weights(self, program: Program, changed: Mapping[int, Weight]) -> None:
        """Read these weights, by value, from the next run on; `program` is the one with them."""
        try:
            self.state.is_moving = True
            buffers = self.parts.buffers
            found = {name: find_device(name) for name in {buffers[i].device for i in changed}}
            for index, weight in changed.items():
                self.place(index, weight.on(found[buffers[index].device]))
            if self.program is self.parts.program:
                self.program = program
            else:  # one that says more to people
                self.program = replace(self.program, values=program.values, params=program.params)
            self.parts = replace(self.parts, program=program)
            if self.store is not None:
                self.store.program = program
            self._note_params()
            self.state.version += 1
            self.state.is_moving = False
        finally:
            self.check_moved()
        if self._owner is not None:
            self._owner.take_weights()

    def _note_params(self) -> None:
        """Runs are refused natively as long as a param is missing, like those on invalid states."""
        if self.parts.program.params:
            is_missing = bool(self.parts.program.missing_params)
            self.state.set_kept(len(self.parts.states), not is_missing)

    def place(self, index: int, memory: Memory) -> None:
        """Let a buffer that has a base lie where this memory begins, from the next run on."""
        buffer = self.parts.buffers[index]
        buffer.memory.let_go(self)
        memory.hold(self)
        self.pins[index] = memory.pin()
        buffer.move(memory, 0, buffer.capacity_bytes)
        self.state.run.set_base(self.linked.bases[index], buffer.address)

    def show(self, index: int, address: int) -> None:
        """Let the next run find a buffer that has a base at an address that the caller keeps."""
        self.state.run.set_base(self.linked.bases[index], address)

    # ------------------------------------------------------------ arrays in the place of memory

    def rebind(self, change: Callable[[], None]) -> None:
        """Change what is bound; outputs of earlier runs are void."""
        self.state.void("arrays were bound or unbound")
        self.state.version += 1
        try:
            self.state.is_moving = True
            self.bindings.detach()
            change()
            self.attach()
        finally:
            self.check_moved()

    def bind_array(self, io: PlanIO, array: Array, is_output: bool) -> None:
        """Read an input from an array, or write an output; while nothing is attached."""
        self.bindings.add(io, array, is_output=is_output)
        if not is_output:
            keeper = self.state.inputs[io.name]
            keeper.record(array.shape)
            keeper.is_bound = True

    def unbind(self, name: str | None, is_output: bool | None) -> None:
        """Forget the arrays of that name, or all; to be called while nothing is attached."""
        for binding in self.bindings.remove(name, is_output):
            if not binding.is_output:
                keeper = self.state.inputs[binding.io.name]
                keeper.is_bound = False
                keeper.forget()

    def discard_intermediates(self) -> None:
        """Give back what holds nothing between two runs."""
        for way in self.ways:
            way.executable.discard_scratch()
        for memory in self.arena():
            memory.discard()
        if self.store is None:
            self._discard_passing()

    def _discard_passing(self) -> None:
        """Of a plan built by hand, which has no arena."""
        held = {buffer.memory.id: buffer.memory for buffer in self.parts.buffers}
        for storage, start, end in passing_ranges(self.parts):
            if not held[storage].is_held_beside(self):
                held[storage].discard(start, end)

    def attach(self) -> None:
        """Put the bound arrays where they belong, and enter runs the way they need."""
        try:
            self.state.is_moving = True
            self.bindings.attach(self._io_bases())
            self.set_enter()
            self.state.is_moving = False
        finally:
            self.check_moved()

    def _io_bases(self) -> dict[int, int]:
        """The bases that arrays can be bound to; those of states move when runs succeed."""
        halves = {index for s in self.parts.states for index in (s.index, s.other)}
        return {index: base for index, base in self.linked.bases.items() if index not in halves}

    def check_moved(self) -> None:
        """A signal that comes while memory moves leaves nothing that could be used safely."""
        if self.state.is_moving and not self.state.is_released:
            self.ways.stop()
            self.state.give_up(INTERRUPTED)

    def release(self) -> None:
        """Give all memory back, but for what other plans use."""
        self.executable.rest()
        self.bindings.detach()
        self.bindings.remove(None)
        self.ways.forget(self)
        self.set_enter()
        self.ways.stop()
        self.state.give_up("its buffers were released.")
        gone = allocate(0)
        for buffer, value in zip(self.parts.buffers, self.parts.program.values, strict=True):
            is_last = buffer.memory.let_go(self)
            if value.place in WEIGHTS:
                buffer.move(gone, 0, 0)
            elif is_last:
                buffer.memory.release()
                buffer.move(gone, 0, 0)
            elif getattr(buffer.keeper, "state", None) is self.state:
                buffer.keep(None)
        for memory in (gone, *self.arena()):
            if memory.let_go(self):
                memory.release()
        self.pins = []

    # ------------------------------------------------------------ forks

    def after_fork(self) -> None:
        """In the child: no workers, and no operation of a thread that is not there any more.

        An operation of the forking thread goes on here as in the parent. What another thread
        was in the middle of is over, and may have left inputs half written.
        """
        state, elsewhere = self.state, self.hold.belongs_elsewhere()
        if elsewhere:
            self.hold.renew()
        if state.is_released:
            return
        for way in self.ways:
            way.executable.after_fork()
        if elsewhere and state.is_moving:
            self.ways.stop()
            state.give_up("another thread changed its memory when the process forked.")
        elif elsewhere:
            state.void("the process was forked")
            with suppress(DeviceError):  # runs say so, too, and the other plans are to follow
                self.executable.rest()
            state.run.reset()
            state.run.forget_pending()
            if self.parts.states:
                self._note_failures()
            for keeper in state.inputs.values():
                if not keeper.is_bound:
                    keeper.forget()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
