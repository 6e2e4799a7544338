"""A lane of a device as an executor uses it, and the values that its timeline reaches.

    lane.submit_run(plan, needs, follows)  -->  TimelineValue: wait(), done(), exception()

The work is done by a `NativeLane`. This one knows what is under way by name, for those who wait
in vain, and gives values that know their signal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from semel.errors import DeviceError, TimedOutError
from semel.executor.hazards import Wait
from semel.runtime.native_lane import CallWork, LanePlan, NativeLane
from semel.runtime.timeline import LAST_FAILED, VALUE, TimelineSignal

#: How often work that is to be given up is asked again: it may not have begun before.
_ASK_AGAIN_S = 0.005


class Call(CallWork):
    """A function that an executor was given, or what it does for itself.

    It holds no buffers but those of its function: who keeps its failure keeps it, too.
    """

    __slots__ = ("_moved", "kind", "touched_bytes")

    def __init__(
        self,
        name: str,
        function: Callable[[], object],
        kind: str = "function",
        moved: Callable[[], int] | None = None,
    ) -> None:
        """`moved` says afterwards how many bytes it has copied."""
        super().__init__(function, name)
        self.kind, self._moved = kind, moved
        #: Bytes that it says it reads, and those that it writes; to be set by who asks for them.
        self.touched_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes that it has read and those that it has written, as far as anybody knows."""
        return self.touched_bytes if self._moved is None else 2 * self._moved()


class TimelineValue(int):
    """A value of a lane's timeline: reached when the work that it stands for is over.

    It is an `int`, and knows its signal. A failure belongs to it: who waits gets the error.
    """

    lane: ExecutorLane

    def __new__(cls, value: int, lane: ExecutorLane) -> TimelineValue:
        made = int.__new__(cls, value)
        made.lane = lane
        return made

    def __repr__(self) -> str:
        return f"TimelineValue({int(self)} of {self.lane.name})"

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # elsewhere it is a number

    @property
    def signal(self) -> TimelineSignal:
        """What reaches it."""
        return self.lane.timeline

    def done(self) -> bool:
        """Whether the work is over, well or not."""
        return self.lane.timeline.value >= self

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the work is over; what it raised is raised. None: for ever, 0: not at all."""
        self.lane.wait(self, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the work raised, or None; waits like `wait`."""
        self.lane.await_end(self, timeout)
        return self.lane.timeline.failure(self)


class ExecutorLane:
    """One lane of a device."""

    __slots__ = ("__weakref__", "device", "name", "native", "timeline")

    def __init__(self, device: str, lane: str, cpus: Sequence[int], lock: threading.RLock) -> None:
        """`lock` is the executor's, through which all submissions come."""
        self.device, self.name = device, f"{device}/{lane}"
        self.native = NativeLane(self.name, cpus, lock)
        #: At n when the n-th work is over.
        self.timeline = self.native.timeline

    def __repr__(self) -> str:
        return f"ExecutorLane({self.describe()})"

    @property
    def num_submitted(self) -> int:
        """The value of the last work."""
        return self.native.num_submitted

    @property
    def num_pending(self) -> int:
        return self.native.num_pending

    def describe(self) -> str:
        """Where it stands, for people."""
        reached, last = self.timeline.value, self.num_submitted
        if reached >= last:
            return f"{self.name} is done with all {last}"
        name = self.native.name_of(reached + 1)
        missing = " and ".join(
            f"{signal.name} ({signal.value} of {value})"
            for signal, value in self.native.missing(reached + 1)
        )
        waits = f", which waits for {missing}" if missing else ""
        return f"{self.name} is at {name!r} ({reached + 1} of {last}){waits}"

    # ------------------------------------------------------------ submitting

    def submit_run(
        self, plan: LanePlan, needs: Sequence[Wait], follows: Sequence[Wait]
    ) -> TimelineValue:
        """Execute a plan after these; a failure of what it needs is its own."""
        return TimelineValue(self.native.submit_run(plan, needs, follows), self)

    def submit_call(
        self, call: Call, needs: Sequence[Wait], follows: Sequence[Wait]
    ) -> TimelineValue:
        """Call a function after these, on a thread of Python; otherwise alike."""
        return TimelineValue(self.native.submit_work(call, needs, follows), self)

    @property
    def is_full(self) -> bool:
        """Whether who submits has to wait for room."""
        return self.native.is_full

    def wait_for_room(self) -> None:
        """Wait until there is some."""
        self.native.wait_for_room()

    # ------------------------------------------------------------ waiting

    def await_end(self, value: int, timeout: float | None = None) -> None:
        """Wait until that work is over, well or not."""
        if self.timeline.value >= value:
            return
        try:
            self.native.await_end(value, timeout)
        except TimedOutError as error:
            raise TimedOutError(
                self.name,
                f"must reach {int(value)} within {timeout} s: {self.describe()}.",
                signal=self.timeline.name,
                value=int(value),
            ) from error

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Wait until that work is over; what it raised is raised."""
        words = self.timeline.words
        if words[VALUE] < value:
            if timeout is None:
                self.native.await_end(value)
            else:
                self.await_end(value, timeout)
        if words[LAST_FAILED] >= value:
            error = self.timeline.failure(value)
            if error is not None:
                raise error

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in the middle of work of this lane."""
        return self.native.is_inside

    def let_go(self) -> None:
        """Let all fail that waits for a signal which is no lane's: nobody may ever set it."""

        def why(value: int, signal: TimelineSignal, wanted: int) -> DeviceError:
            return DeviceError(
                self.name,
                f"was reset while {self.native.name_of(value)!r} waited for {wanted} of signal "
                f"'{signal.name}', which is at {signal.value}.",
                device=self.device,
                value=value,
                signal=signal.name,
            )

        self.native.let_go(why)

    def give_up(self, value: int, until: float) -> bool:
        """Let the work of that value fail if it is under way; whether it is no more by then."""
        name = self.native.name_of(value)
        why = DeviceError(
            self.name, f"was reset in the middle of {name!r}.", device=self.device, value=value
        )
        while self.native.give_up(value, why):
            if time.monotonic() >= until:
                return False
            with suppress(TimedOutError):
                self.native.await_end(value, _ASK_AGAIN_S)
        return True

    def close(self) -> None:
        """Take no more work; what was submitted is still done."""
        self.native.close()
