"""A device in use: its lanes, their timelines, its memory and limits.

    DeviceContext  --compute, copy-->  lanes  --timeline-->  TimelineSignal

Values of a timeline are given out in order, one for each work. A value that is reserved by hand
(`next_timeline`) is a work that is over when `signal_completion` says so, and the lane waits for
it: nothing behind it can be taken for done before.
"""

from __future__ import annotations

import math
import time
import weakref
from dataclasses import dataclass
from typing import Any

from semel.errors import DeviceError, OutOfMemoryError, PlanError, TimedOutError
from semel.executor.hazards import DeviceTable
from semel.executor.lane import Call, ExecutorLane, TimelineValue
from semel.executor.transfer import Staging
from semel.ir.fields import take, take_int, take_timeout
from semel.ir.types import TensorType, as_dtype, as_shape
from semel.locks import make_lock
from semel.plan.row import COMPUTE, COPY
from semel.runtime.buffer import Buffer
from semel.runtime.device import Device
from semel.runtime.memory import Memory
from semel.runtime.spec import DeviceSpec
from semel.runtime.timeline import TimelineSignal

#: How long `reset` waits for what is under way if nobody says otherwise.
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a device has: participants of a run, CPUs of the host, bytes of memory (None: nobody
    knows)."""

    threads: int
    cpus: tuple[int, ...]
    memory_bytes: int | None


class DeviceAllocator:
    """Memory of one device, up to a limit of all that is allocated here."""

    def __init__(self, device: Device, limit_bytes: int | None) -> None:
        self._device, self.limit_bytes = device, limit_bytes
        self._lock = make_lock()
        self._blocks: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def used_bytes(self) -> int:
        """What was allocated here and is still in use."""
        return sum(block.size_bytes for block in list(self._blocks) if block.is_alive)

    def allocate(self, size_bytes: int) -> Memory:
        """A zeroed block; an OutOfMemoryError beyond the limit."""
        wanted = take_int("DeviceAllocator", "size_bytes", size_bytes)
        if wanted < 0:
            raise PlanError("DeviceAllocator", f"size_bytes must not be negative, got {wanted}.")
        with self._lock:
            if self.limit_bytes is not None:
                left = self.limit_bytes - self.used_bytes
                if wanted > left:
                    raise OutOfMemoryError(self._device.name, wanted, left)
            memory = self._device.allocate(wanted)
            self._blocks.add(memory)
        return memory


class DeviceContext:
    """One device of an executor."""

    def __init__(
        self, spec: DeviceSpec, device: Device, memory_limit: int | None, lock: Any
    ) -> None:
        """`lock` is the executor's: whoever has it and finds room in a lane can rely on that."""
        self.spec, self.device = spec, device
        #: What the device goes by.
        self.name = str(spec)
        #: Kernels, plans and functions, in order; copies, beside them.
        self.compute = ExecutorLane(self.name, COMPUTE, device.cpus, lock)
        self.copy = ExecutorLane(self.name, COPY, device.cpus, lock)
        self.allocator = DeviceAllocator(device, memory_limit)
        #: Who touched which memory of the device; for the executor.
        self.table = DeviceTable()
        #: For copies that go through the host's memory, which its copy lane does one by one.
        self.staging = Staging()
        self._reserved: dict[tuple[str, int], TimelineSignal] = {}
        self._lock = lock

    def __repr__(self) -> str:
        lanes = "; ".join(lane.describe() for lane in self.lanes)
        return f"DeviceContext({self.spec}: {lanes})"

    @property
    def lanes(self) -> tuple[ExecutorLane, ExecutorLane]:
        """What runs work in order: `compute`, then `copy`."""
        return self.compute, self.copy

    def lane(self, name: str = COMPUTE) -> ExecutorLane:
        """The lane of that name, `compute` or `copy`."""
        known = {COMPUTE: self.compute, COPY: self.copy}
        if name not in known:
            raise PlanError(
                self.name, f"lane must be one of {', '.join(known)}, got {name!r}.", lane=name
            )
        return known[name]

    def timeline(self, lane: str = COMPUTE) -> TimelineSignal:
        """What the lane reaches as its work is over."""
        return self.lane(lane).timeline

    @property
    def limits(self) -> DeviceLimits:
        """What it has, and what is free now."""
        limit, free = self.allocator.limit_bytes, self.device.free_bytes()
        left = None if limit is None else limit - self.allocator.used_bytes
        known = [size for size in (left, free) if size is not None]
        memory = min(known) if known else None
        return DeviceLimits(self.device.default_threads(), self.device.cpus, memory)

    def allocate(self, shape: Any, dtype: Any) -> Buffer:
        """A zeroed buffer of its memory, within the limit."""
        where = "DeviceContext.allocate"
        kind = TensorType(as_shape(shape, where), as_dtype(dtype, where))
        size = kind.num_bytes
        if not isinstance(size, int):
            raise PlanError(where, f"dims must be ints, got {kind}.")
        return Buffer.window(self.allocator.allocate(size), 0, size, kind, self.name)

    # ------------------------------------------------------------ values by hand

    def current_timeline(self, lane: str = COMPUTE) -> int:
        """The last value that was given out; whether it is reached, its timeline says."""
        return self.lane(lane).num_submitted

    def next_timeline(self, lane: str = COMPUTE) -> TimelineValue:
        """Reserve the next value for work that the lane does not do.

        What is submitted behind it waits for `signal_completion`.
        """
        found = self.lane(lane)
        done = TimelineSignal(f"{found.name}: signal_completion")
        while True:
            with self._lock:
                if not found.is_full:
                    waits = [(done, 1)]
                    value = found.submit_call(
                        Call("reserved by next_timeline", _nothing), waits, ()
                    )
                    self._reserved[lane, int(value)] = done
                    return value
            found.wait_for_room()

    def signal_completion(
        self, value: int, lane: str = COMPUTE, *, error: BaseException | None = None
    ) -> None:
        """The work of a reserved value is over, well or with this error."""
        self.lane(lane)  # refuses a name that is none
        where = "signal_completion"
        number = take_int(where, "value", value)
        if error is not None:
            take(where, "error", BaseException, error)
        with self._lock:
            done = self._reserved.pop((lane, number), None)
        if done is None:
            raise PlanError(
                self.name,
                f"value {number} of its {lane} lane must be reserved, and signalled once.",
                hint="next_timeline() reserves one; work of the lane signals its own.",
                value=number,
            )
        if error is not None:
            done.note_failure(1, error)
        done.set(1)

    def wait_for(self, value: int, timeout: float | None = None, lane: str = COMPUTE) -> None:
        """Wait until that value is reached; what its work raised is raised."""
        found, number = self.lane(lane), take_int("wait_for", "value", value)
        found.timeline.check(number)
        found.wait(number, timeout)

    def reset(self, timeout: float = PATIENCE_S) -> None:
        """Give up what its lanes are at, which fails with a DeviceError; what follows goes on.

        So do values that were reserved by hand and not signalled, and all that was submitted to
        its lanes and waits for a signal that is no lane's. What waits for other lanes goes on
        waiting: they can be reset themselves. The device is asked to let go of what hangs on it.
        Functions of Python cannot be ended: if one takes longer than `timeout`, a
        TimedOutError names it.
        """
        limit = take_timeout("DeviceContext.reset", timeout)
        until = math.inf if limit is None else time.monotonic() + limit
        under_way = [(lane, lane.timeline.value + 1) for lane in self.lanes]
        self._fail_reserved()
        for lane in self.lanes:
            lane.let_go()
        self.device.reset()
        late = [
            lane.describe()
            for lane, value in under_way
            if value <= lane.num_submitted and not lane.give_up(value, until)
        ]
        if late:
            raise TimedOutError(
                f"{self.spec}: reset", f"must be done within {timeout} s: {'; '.join(late)}."
            )

    def _fail_reserved(self) -> None:
        with self._lock:
            reserved, self._reserved = self._reserved, {}
        for (lane, value), done in reserved.items():
            name = self.lane(lane).name
            why = f"was reset before value {value} was signalled."
            done.note_failure(1, DeviceError(name, why, device=str(self.spec), value=value))
            done.set(1)

    def close(self) -> None:
        """Take no more work."""
        for lane in self.lanes:
            lane.close()


def _nothing() -> None:
    """The lane's part in work that is done elsewhere."""
