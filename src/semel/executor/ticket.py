"""Plans that are submitted, and what became of their runs.

    Submitter.submit_alone()  -->  a value of the lane's timeline  -->  Ticket: done(), result()

A `Submitter` is what an executor knows of a plan. If nobody has touched the plan's memory since its
last submission, the next one looks at nothing else: that is the way of a loop over one plan.

Without inputs of its own a run leaves its outputs in the plan, where the next run overwrites them:
`Ticket.result()` reads them there, and refuses to if they may be another run's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from semel.errors import StaleError
from semel.executor.hazards import Access, DeviceTable, Storage, User, Wait, count_bytes
from semel.executor.lane import ExecutorLane, TimelineValue
from semel.plan.plan import ExecutionPlan
from semel.plan.readers import Copies
from semel.runtime.timeline import LAST_FAILED, VALUE


class Submitter:
    """A plan on its device's lane: what it touches, and how often it ran."""

    def __init__(
        self, plan: ExecutionPlan, lane: ExecutorLane, table: DeviceTable, kind: str = "plan"
    ) -> None:
        self.lane, self._table = lane, table
        #: What it is, for reports.
        self.kind = kind
        # Not the plan: who knows this one forgets it when the plan is gone.
        self.engine = plan.engine
        self.hold = self.engine.hold
        self.lock = self.hold.lock
        self.words, self._post = lane.timeline.words, lane.native.post
        self._holder = lane.native.holder
        self.user = User(lane)
        #: By device; found anew when the plan's memory has moved.
        self.accesses: Mapping[str, list[Access]] = {}
        self._linked: object = None
        #: Whether all that it touches lies on its own device.
        self._is_single = False
        #: Versions of what it touches, as they were when it was last looked at.
        self._seen: list[tuple[Storage, int]] = []
        self._num_fences = -1
        #: Who wrote what it reads, and was not known to have done well.
        self._sources: list[User] = []
        #: How many runs the plan will have done after the last submission, if none fails.
        self.generation = 0
        #: How to copy the outputs, for this version of the plan.
        self._copies: Callable[[], Any] = tuple
        self._version = -1

    @property
    def has_moved(self) -> bool:
        """Whether the plan's memory lies elsewhere than when it was last looked at."""
        return self._linked is not self.engine.linked

    def take(self, accesses: Mapping[str, list[Access]], *, is_single: bool) -> None:
        """Note what the plan touches now."""
        self.accesses, self._is_single = accesses, is_single
        self._linked = self.engine.linked

    @property
    def num_bytes(self) -> int:
        """Bytes that a run reads and those that it writes, weights aside."""
        return count_bytes(self.accesses)

    def note(self, seen: Iterable[Storage], sources: list[User]) -> None:
        """Remember what a submission has looked at."""
        self._seen = [(storage, storage.version) for storage in seen]
        self._num_fences, self._sources = self._table.num_fences, sources

    def submit_alone(self) -> int:
        """One more run if all is on one device, and nobody has touched it since the last; else 0.

        Hot. To be called with the plan's lock and the executor's.
        """
        engine, user = self.engine, self.user
        if (
            self._linked is not engine.linked
            or self._sources
            or not self._is_single
            or self._num_fences != self._table.num_fences
        ):
            return 0
        for storage, version in self._seen:
            if storage.version != version:
                return 0
        hold, holder = self.hold, self._holder
        if hold.lane is not holder and (hold.is_held or hold.lane is not None):
            return 0
        lane, last = self.lane, user.value
        # Before the run: it may be over before we look again.
        is_over = last <= self.words[VALUE]
        generation = engine.state.run.generation if is_over else self.generation
        try:
            value = self._post(engine, hold)
            user.value = value or last
        except BaseException:
            user.value = lane.num_submitted  # interrupted: too late a value is as good
            raise
        if value:
            self.generation = generation + 1
        return value

    def known_needs(self) -> list[Wait]:
        """What a run still needs that finds nothing changed since the last submission."""
        self._sources = [user for user in self._sources if not user.is_known_good]
        return [(user.lane.timeline, user.value) for user in self._sources]

    def count(self) -> None:
        """One more run is to be submitted."""
        if self.user.is_over:
            self.generation = self.engine.state.run.generation
        self.generation += 1

    def outputs_of(self, number: int, generation: int) -> Any:
        """The outputs of the run with that value, which is over, as `plan(...)` gives them.

        A StaleError unless they are certainly in the plan. Hot.
        """
        hold, state = self.hold, self.engine.state
        with self.lock:  # `Hold.alone`, in place to save the calls
            # The run is the last one if nobody has used the plan since.
            if hold.is_held and hold.lane is self._holder and hold.value == number:
                hold.lane = None
            else:
                if hold.is_held:
                    hold.settle()
                if self.user.value != number or state.run.generation != generation:
                    raise _stale()
            try:
                hold.is_held = True
                if self._version != state.version:
                    self._copies, self._version = Copies().prepare(self.engine), state.version
                return self._copies()
            finally:
                hold.is_held = False


class Ticket:
    """A run of a plan on its device's lane."""

    __slots__ = ("_generation", "_number", "_plan", "_result", "_submitter")

    _result: Any

    def __init__(
        self, plan: ExecutionPlan, submitter: Submitter, number: int, generation: int
    ) -> None:
        self._plan, self._submitter, self._number = plan, submitter, number
        self._generation, self._result = generation, _NOT_KEPT

    def __repr__(self) -> str:
        return f"Ticket({self.value!r}, {'done' if self.done() else 'pending'})"

    @property
    def value(self) -> TimelineValue:
        """Reached when the run is over."""
        return TimelineValue(self._number, self._submitter.lane)

    def done(self) -> bool:
        """Whether the run is over, well or not."""
        return self._submitter.lane.timeline.value >= self._number

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the run is over; what it raised is raised."""
        self._submitter.lane.wait(self._number, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the run raised, or None; waits like `result`."""
        return self.value.exception(timeout)

    def result(self, timeout: float | None = None) -> Any:
        """The outputs, as `plan(...)` gives them: one array, or a tuple in output order.

        Without inputs of its own the run's outputs are in the plan, until that runs again.
        """
        submitter, number, words = self._submitter, self._number, self._submitter.words
        if words[VALUE] < number or number <= words[LAST_FAILED]:
            submitter.lane.wait(number, timeout)
        if self._result is _NOT_KEPT:
            self._result = submitter.outputs_of(number, self._generation)
        return self._result


class KeptTicket(Ticket):
    """A run with inputs of its own: it keeps what it gave."""

    __slots__ = ()

    def begin(self, number: int) -> None:
        """Note which value it is a ticket for."""
        self._number = int(number)

    def keep(self, result: Any) -> None:
        """Note what the run gave."""
        self._result = result


def _stale() -> StaleError:
    return StaleError(
        "Ticket",
        "its run's outputs are gone: the plan ran again, or may have.",
        hint="Ask for the result before the next run, or submit with inputs= to keep it.",
    )


_NOT_KEPT = object()
