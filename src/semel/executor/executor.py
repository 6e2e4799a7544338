"""Work on any mix of devices, at the same time, in the order that bytes demand.

    executor.submit(plan), execute_kernel(device, f), execute_transfer(src, dst, ...)
        -->  a lane of the device  -->  TimelineValue

A submission returns at once. Each device has two lanes, for computing and for copies; a lane does
its work in order, and work of different lanes waits for each other only where it touches the same
bytes (`semel.executor.hazards`) or says so (`after=`). All waits are for work that was submitted
before, so that no two can wait for each other.

A failure belongs to its value: who waits for it gets the error, work that reads what it should
have written fails with it, everything else goes on.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from types import TracebackType
from typing import Any, Self

from semel.errors import PlanError, TimedOutError
from semel.executor.context import DeviceContext
from semel.executor.hazards import (
    Access,
    Edges,
    Storage,
    User,
    Wait,
    accesses_of,
    count_bytes,
)
from semel.executor.kernels import KernelPlans
from semel.executor.lane import Call, ExecutorLane, TimelineValue
from semel.executor.profile import Recorder
from semel.executor.ticket import KeptTicket, Submitter, Ticket
from semel.executor.transfer import Transfer, TransferRecord
from semel.ir.fields import (
    NO_LIMIT,
    take,
    take_int,
    take_items,
    take_memory_limit,
    take_timeout,
)
from semel.locks import make_lock
from semel.plan.footprint import BufferUse, as_uses, footprint_of
from semel.plan.plan import ExecutionPlan
from semel.plan.report.profile import ProfileReport
from semel.plan.rows import PreparedKernel
from semel.runtime.buffer import Buffer, as_array, read_arrays
from semel.runtime.kernel import CachedKernel
from semel.runtime.links import SyncStrategy, choose_strategy
from semel.runtime.registry import DeviceRegistry
from semel.runtime.spec import DeviceSpec
from semel.runtime.timeline import TimelineSignal

#: How long `synchronize_all` waits if nobody says otherwise.
PATIENCE_S = 60.0
#: Transfers whose records are kept.
_MOST_TRANSFERS = 256

AnyDevice = str | DeviceSpec
#: What work may be told to come after.
Predecessor = TimelineValue | Ticket | tuple[TimelineSignal, int]


class UnifiedExecutor:
    """Devices that work side by side. `with UnifiedExecutor() as executor:` waits at the end.

    >>> plan = (Tensor.input("x", (2,)) * 3).prepare(device="cpu:1")
    >>> with semel.UnifiedExecutor() as executor:
    ...     context = executor.add_device("cpu:1")
    ...     ticket = executor.submit(plan, inputs={"x": np.ones(2, np.float32)})
    ...     ticket.result().tolist()
    [3.0, 3.0]
    """

    def __init__(self, registry: DeviceRegistry | None = None) -> None:
        self.registry = DeviceRegistry() if registry is None else registry
        take("UnifiedExecutor", "registry", DeviceRegistry, self.registry)
        self._lock = make_lock()
        self._contexts: dict[str, DeviceContext] = {}
        #: By the plan's id, until the plan is gone: a weak dictionary would cost as much as a run.
        self._submitters: dict[int, Submitter] = {}
        self._kernels = KernelPlans()
        self._is_closed = False
        #: What was copied last: how, how much, how fast.
        self.transfers: deque[TransferRecord] = deque(maxlen=_MOST_TRANSFERS)
        #: Submissions that needed no look at what others do.
        self.num_fast = 0
        self._recorder: Recorder | None = None

    def __repr__(self) -> str:
        lanes = [lane.describe() for lane in self._lanes()]
        return f"UnifiedExecutor({'; '.join(lanes) or 'no devices'})"

    # ------------------------------------------------------------ devices

    @property
    def num_submitted(self) -> int:
        """All submissions to all lanes."""
        return sum(lane.num_submitted for lane in self._lanes())

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """The devices in use."""
        return tuple(context.spec for context in self._contexts.values())

    def add_device(self, device: AnyDevice, *, memory_limit: int | None = None) -> DeviceContext:
        """Take a device into use; one that is stays as it is.

        `memory_limit` bounds the bytes that its context's allocator gives out.
        """
        spec = DeviceSpec.parse(device, "add_device")
        limit = take_memory_limit("add_device", memory_limit)
        with self._lock:
            self._check_open()
            found = self._contexts.get(str(spec))
            if found is None:
                opened = self.registry.open(spec)
                found = self._contexts[str(spec)] = DeviceContext(spec, opened, limit, self._lock)
                if self._recorder is not None:
                    self._recorder.watch(found.lanes)
            elif limit is not None and limit != found.allocator.limit_bytes:
                raise PlanError(
                    "add_device",
                    f"{spec} has the memory limit {found.allocator.limit_bytes} already, "
                    f"and keeps it, got {limit}.",
                    device=str(spec),
                )
        return found

    def context(self, device: AnyDevice) -> DeviceContext | None:
        """The context of a device; None if it is not in use."""
        return self._contexts.get(str(DeviceSpec.parse(device, "context")))

    def context_mut(self, device: AnyDevice) -> DeviceContext | None:
        """The same object as `context`."""
        return self.context(device)

    def _context(self, where: str, device: AnyDevice) -> DeviceContext:
        if type(device) is str and device in self._contexts:  # the name that it goes by
            return self._contexts[device]
        spec = DeviceSpec.parse(device, where)
        found = self._contexts.get(str(spec))
        if found is None:
            known = ", ".join(self._contexts) or "none"
            raise PlanError(
                where,
                f"{spec} must be in use by the executor; in use: {known}.",
                hint=f"add_device('{spec}') first.",
                device=str(spec),
            )
        return found

    @staticmethod
    def sync_strategy(source: AnyDevice, target: AnyDevice) -> SyncStrategy:
        """How bytes get from one device to the other: the two are asked what they can do."""
        registry = DeviceRegistry()
        return choose_strategy(registry.open(source), registry.open(target))

    def single_device_check(self, buffers: Iterable[Buffer]) -> DeviceSpec | None:
        """The device that all of them lie on; None if there are several, or no buffers.

        Work on one device looks at that device's memory alone, and a plan that is submitted again
        looks at nothing if nobody has touched its memory meanwhile.
        """
        devices = {b.device for b in take_items("single_device_check", "buffers", Buffer, buffers)}
        return DeviceSpec(devices.pop()) if len(devices) == 1 else None

    # ------------------------------------------------------------ submitting

    def submit(
        self,
        plan: ExecutionPlan,
        after: Iterable[Predecessor] = (),
        *,
        inputs: Mapping[str, Any] | None = None,
    ) -> Ticket:
        """Execute a plan on its device's lane, after what touches the same bytes, and `after`.

        The plan is the lane's until the run is over: who uses it meanwhile waits. With `inputs`,
        which are copied at once, the run is `plan(**inputs)` and the ticket keeps its outputs.
        """
        submitter = self._submitters.get(id(plan))
        if submitter is not None and not after and inputs is None:
            with submitter.lock, self._lock:
                value = 0 if self._is_closed else submitter.submit_alone()
                if value:
                    self.num_fast += 1
                    return Ticket(plan, submitter, value, submitter.generation)
        take("submit", "plan", ExecutionPlan, plan)
        waits = _waits("submit", after)
        return self._run(plan, waits) if inputs is None else self._run_with(plan, waits, inputs)

    def execute_kernel(
        self,
        device: AnyDevice,
        work: ExecutionPlan | CachedKernel | PreparedKernel | Callable[[], object],
        *,
        reads: Iterable[Buffer] | None = None,
        writes: Iterable[Buffer] | None = None,
        buffers: Sequence[Buffer] = (),
        values: Mapping[str, int] | None = None,
        after: Iterable[Predecessor] = (),
    ) -> TimelineValue:
        """Do work on the device's compute lane; the value that its timeline has then.

        A plan, or a kernel on `buffers` (with `values` of its variables), runs natively. Anything
        else that can be called runs on a thread of Python; if it says neither what it `reads`
        nor what it `writes`, nothing else is done on the device meanwhile.
        """
        context = self._context("execute_kernel", device)
        waits = _waits("execute_kernel", after)
        is_kernel = isinstance(work, (CachedKernel, PreparedKernel))
        if is_kernel or isinstance(work, ExecutionPlan):
            _refuse_given("functions", reads=reads, writes=writes)
        if not is_kernel:
            _refuse_given("kernels", buffers=buffers or None, values=values or None)
        if isinstance(work, (CachedKernel, PreparedKernel)):
            with self._lock:
                work = self._kernels.plan(context.name, work, buffers, values or {})
        if isinstance(work, ExecutionPlan):
            if work.device != context.name:
                raise PlanError(
                    "execute_kernel",
                    f"the plan must be one of {context.spec}, it is one of {work.device}.",
                    device=work.device,
                )
            return (self._run(work, waits) if waits else self.submit(work)).value
        if not callable(work):
            raise PlanError(
                "execute_kernel", f"needs a plan, a kernel or a function, got {work!r:.60}."
            )
        uses = None if reads is None and writes is None else _uses(reads or (), writes or ())
        return self._call(context.compute, Call(_name(work), work), uses, waits)

    def execute_transfer(
        self,
        src: Buffer,
        dst: Buffer,
        src_device: AnyDevice | None = None,
        dst_device: AnyDevice | None = None,
        *,
        after: Iterable[Predecessor] = (),
    ) -> TimelineValue:
        """Copy a buffer on the copy lane of the destination; the value that its timeline has then.

        Where the devices are not given they are those of the buffers. `transfers` tells how it was
        done.
        """
        where = "execute_transfer"
        source = self._lies_on(where, "src", take(where, "src", Buffer, src), src_device)
        target = self._lies_on(where, "dst", take(where, "dst", Buffer, dst), dst_device)
        transfer = Transfer(src, dst, choose_strategy(source.device, target.device))
        record = self.transfers.append
        call = Call(
            transfer.name,
            lambda: record(transfer.run(target.staging)),
            "copy",
            lambda: transfer.num_bytes,
        )
        return self._call(target.copy, call, as_uses([src], [dst]), _waits(where, after))

    def _lies_on(
        self, where: str, what: str, buffer: Buffer, device: AnyDevice | None
    ) -> DeviceContext:
        """The context of a buffer's device, which must be the one that is named."""
        context = self._context(where, buffer.device if device is None else device)
        if buffer.device != context.name:
            raise PlanError(
                where,
                f"{what} must lie on {context.spec}, it lies on {buffer.device}.",
                device=buffer.device,
            )
        return context

    # ------------------------------------------------------------ one way to a lane

    def _run(self, plan: ExecutionPlan, waits: Sequence[Wait]) -> Ticket:
        """A native run. The plan's lock comes first: whoever is inside a run may submit, too."""
        while True:
            with plan.lock, self._lock:
                self._check_open()
                submitter = self._submitters.get(id(plan)) or self._meet(plan)
                lane = submitter.lane
                if not lane.is_full:
                    return self._run_now(plan, submitter, waits)
            lane.wait_for_room()

    def _meet(self, plan: ExecutionPlan) -> Submitter:
        """Look at a plan that was not submitted before."""
        context = self._context("submit", plan.device)
        kind = "kernel" if self._kernels.has(plan) else "plan"
        made = Submitter(plan, context.compute, context.table, kind)
        self._submitters[id(plan)] = made
        if self._recorder is not None:
            self._recorder.meet(made)
        weakref.finalize(plan, self._submitters.pop, id(plan), None).atexit = False
        return made

    def _run_now(self, plan: ExecutionPlan, submitter: Submitter, waits: Sequence[Wait]) -> Ticket:
        edges, lane, user = self._order_run(submitter), submitter.lane, submitter.user
        submitter.count()
        before = lane.num_submitted
        try:
            needs = [*submitter.known_needs(), *waits]
            value = lane.submit_run(plan, needs, edges.follows)
        finally:
            if not _settle(lane, user, before, edges):
                del self._submitters[id(plan)]
        return Ticket(plan, submitter, value, submitter.generation)

    def _order_run(self, submitter: Submitter) -> Edges:
        """What a run must come after."""
        if submitter.has_moved:
            uses = footprint_of(submitter.engine.parts)
            device = self.single_device_check(use.buffer for use in uses)
            is_single = not uses or (device is not None and str(device) == submitter.lane.device)
            submitter.take(accesses_of(uses), is_single=is_single)
        edges = Edges(submitter.lane)
        seen = self._touch(submitter.user, submitter.accesses, edges)
        submitter.note(seen, edges.sources)
        return edges

    def _call(
        self,
        lane: ExecutorLane,
        call: Call,
        uses: Sequence[BufferUse] | None,
        waits: Sequence[Wait],
    ) -> TimelineValue:
        """A function on a lane; without `uses`, nothing else is done on its device meanwhile."""
        accesses = None if uses is None else accesses_of(uses)
        while True:
            with self._lock:
                self._check_open()
                if not lane.is_full:
                    return self._call_now(lane, call, accesses, waits)
            lane.wait_for_room()

    def _call_now(
        self,
        lane: ExecutorLane,
        call: Call,
        accesses: Mapping[str, Sequence[Access]] | None,
        waits: Sequence[Wait],
    ) -> TimelineValue:
        user, edges = User(lane), Edges(lane)
        before = lane.num_submitted
        if self._recorder is not None:
            call.touched_bytes = count_bytes(accesses or {})
        try:
            self._touch(user, accesses or {}, edges)
            if accesses is None:
                context = self._contexts[lane.device]
                context.table.close_off(user, context.lanes, edges)
            return lane.submit_call(call, (*edges.needs, *waits), edges.follows)
        finally:
            _settle(lane, user, before, edges)

    def _touch(
        self, user: User, accesses: Mapping[str, Sequence[Access]], edges: Edges
    ) -> list[Storage]:
        """Record what work touches, on whichever devices, and find what it must come after."""
        home, seen = user.lane.device, {}
        tables = {device: self._context("submit", device).table for device in accesses}
        self._contexts[home].table.enter(user, edges, is_guest=False)
        for device, table in tables.items():
            if device != home:
                table.enter(user, edges, is_guest=True)
            for access in accesses[device]:
                storage = table.touch(user, access, edges)
                seen[id(storage)] = storage
        return list(seen.values())

    def _run_with(
        self, plan: ExecutionPlan, waits: Sequence[Wait], inputs: Mapping[str, Any]
    ) -> Ticket:
        """A run with inputs of its own, which are copied now; the ticket keeps the outputs."""
        context = self._context("submit", plan.device)
        arrays = _staged(plan, inputs)
        submitter = Submitter(plan, context.compute, context.table)
        ticket = KeptTicket(plan, submitter, 0, 0)

        def run() -> None:
            ticket.keep(plan(**arrays))

        with plan.lock:
            uses = footprint_of(submitter.engine.parts)
        call = Call(submitter.engine.name, run, "plan")
        ticket.begin(self._call(context.compute, call, uses, waits))
        return ticket

    # ------------------------------------------------------------ waiting

    def _lanes(self) -> list[ExecutorLane]:
        return [lane for context in self._contexts.values() for lane in context.lanes]

    def synchronize_all(self, timeout: float | None = PATIENCE_S) -> None:
        """Wait until all that was submitted so far is over, on all devices.

        What is late is named in a TimedOutError. If anything failed that nobody has seen, the
        first of those errors is raised.
        """
        self._await_all("synchronize_all", timeout)
        self._raise_unseen()

    def _await_all(self, where: str, timeout: float | None) -> None:
        """Wait until all that was submitted so far is over, well or not."""
        limit = take_timeout(where, timeout)
        until = None if limit is None else time.monotonic() + limit
        wanted = [(lane, lane.num_submitted) for lane in self._lanes()]
        for lane, _ in wanted:
            if lane.is_inside:
                raise PlanError(
                    where,
                    f"is called in the middle of work of {lane.name}, which would wait for itself.",
                    hint="Call it on another thread.",
                )
        late = [lane.describe() for lane, value in wanted if not _reaches(lane, value, until)]
        if late:
            raise TimedOutError(
                where, f"must be done within {timeout} s: {'; '.join(late)}.", late=late
            )

    def _raise_unseen(self) -> None:
        """Raise the first failure that nobody has seen; what failed with it is seen too."""
        timelines = [lane.timeline for lane in self._lanes()]
        unseen = [
            (each.order, timeline, each) for timeline in timelines for each in timeline.unseen()
        ]
        if unseen:
            _, timeline, first = min(unseen, key=itemgetter(0))
            timeline.failure(first.value)
            raise first.error

    # ------------------------------------------------------------ looking inside

    @contextmanager
    def profile(self, timeout: float | None = PATIENCE_S) -> Iterator[ProfileReport]:
        """A report of all that is submitted inside of `with executor.profile() as report:`.

        It is that of a plan's profile, with a record for each submission and a track for each
        lane, and filled at the end of the block, which waits until the work is over, well or not.
        """
        with self._lock:
            if self._recorder is not None:
                raise PlanError(
                    "profile", "is under way already: one report at a time for an executor."
                )
            recorder = self._recorder = Recorder(self._submitters.values())
            recorder.watch(self._lanes())
        try:
            yield recorder.report
            self._await_all("profile", timeout)
        finally:
            with self._lock:
                self._recorder = None
                recorder.stop()
            recorder.finish()

    # ------------------------------------------------------------ ending

    def close(self, timeout: float | None = PATIENCE_S) -> None:
        """Take no more work, and wait for what was submitted, like `synchronize_all`."""
        with self._lock:
            self._is_closed = True
            contexts = list(self._contexts.values())
        for context in contexts:
            context.close()
        self.synchronize_all(timeout)

    def _check_open(self) -> None:
        if self._is_closed:
            raise PlanError("UnifiedExecutor", "is closed and takes no more work.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except BaseException:
            if error is None:  # else that one is what went wrong first
                raise


def _settle(lane: ExecutorLane, user: User, before: int, edges: Edges) -> bool:
    """Note when the user is done; one that was not submitted after all stands for others."""
    is_submitted = lane.num_submitted > before
    if is_submitted:
        user.value = lane.num_submitted
    else:
        edges.give_up(user)
    return is_submitted


def _reaches(lane: ExecutorLane, value: int, until: float | None) -> bool:
    """Wait for a value, well or not, up to that time."""
    try:
        left = None if until is None else max(until - time.monotonic(), 0.0)
        lane.await_end(value, left)
    except TimedOutError:
        return False
    return True


def _waits(where: str, after: Iterable[Any]) -> list[Wait]:
    """What work is told to come after, as waits."""
    found: list[Wait] = []
    if not isinstance(after, Iterable):
        raise _no_predecessor(where, after)
    for each in after:
        if isinstance(each, Ticket):
            found.append((each.value.signal, int(each.value)))
        elif isinstance(each, TimelineValue):
            found.append((each.signal, int(each)))
        elif isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], TimelineSignal):
            number = take_int(where, "after", each[1])
            if not -NO_LIMIT <= number <= NO_LIMIT:
                raise _no_predecessor(where, each)
            each[0].check(number)
            found.append((each[0], number))
        else:
            raise _no_predecessor(where, each)
    return found


def _no_predecessor(where: str, found: object) -> PlanError:
    return PlanError(
        where,
        "after must be a list of values and tickets of submissions, or of (signal, value) pairs, "
        f"got {found!r:.60}.",
        hint="A number alone does not say whose it is.",
    )


def _staged(plan: ExecutionPlan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of inputs, as arrays of their dtypes: what the caller gave may change at once."""
    arrays = read_arrays("submit", inputs)
    for name, array in arrays.items():
        arrays[name] = as_array(array, plan.inputs[name].dtype, f"input '{name}'").copy()
    return arrays


def _uses(reads: Iterable[Any], writes: Iterable[Any]) -> tuple[BufferUse, ...]:
    where = "execute_kernel"
    return as_uses(
        take_items(where, "reads", Buffer, reads), take_items(where, "writes", Buffer, writes)
    )


def _refuse_given(kind: str, **given: Any) -> None:
    """Refuse arguments that are for another kind of work: nothing would be done with them."""
    found = [name for name, value in given.items() if value is not None]
    if found:
        raise PlanError(
            "execute_kernel",
            f"{' and '.join(found)} must be given for {kind} alone.",
            hint="Plans and kernels say themselves what they read and write.",
        )


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__name__)
