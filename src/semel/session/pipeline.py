"""Runs that are begun now and over later, in order, on a thread of their own.

    commit_no_wait(inputs)  -->  RunTicket: result(), done(), await

Inputs are checked and copied when a run is begun, into sets of arrays that runs take turns with:
the caller may overwrite what it gave at once. Runs are done in the order in which they were begun,
by one `Lane`, and what they do to states follows that order. At most `depth` of them are not over;
the next one waits for room. Everything else that is asked of the compiled graph takes its place
after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from semel.locks import make_lock
from semel.runtime.buffer import Array
from semel.runtime.lane import Lane, Ticket

R = TypeVar("R")
#: Arrays by name, in memory of the pipeline.
Staged = dict[str, Array]
#: Errors that are kept for `sync_pending`, where nobody asks tickets; each holds frames.
_MOST_UNSEEN = 16


class RunTicket(Generic[R]):
    """A run that was begun: what it gives back, or what went wrong, once it is over."""

    __slots__ = ("_pipeline", "_ticket")

    def __init__(self, pipeline: Pipeline, ticket: Ticket[R]) -> None:
        self._pipeline, self._ticket = pipeline, ticket

    def __repr__(self) -> str:
        return f"RunTicket({'done' if self.done() else 'pending'})"

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._ticket.done()

    def result(self, fetch: Iterable[str] | None = None, timeout: float | None = None) -> Any:
        """What the run gave back, or those outputs of it; what it raised is raised again.

        Without a timeout, a run that has not begun is done right here if it is the next one.
        """
        try:
            outputs: Any = self._ticket.result(timeout)
        except BaseException as error:
            self._pipeline.has_seen(error)
            raise
        return outputs if fetch is None else outputs.only(fetch)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the run raised, or None; waits like `result`."""
        error = self._ticket.exception(timeout)
        if error is not None:
            self._pipeline.has_seen(error)
        return error

    def __await__(self) -> Generator[Any, None, R]:
        """For `asyncio`: the loop goes on meanwhile."""
        try:
            return (yield from self._ticket.__await__())
        except BaseException as error:
            self._pipeline.has_seen(error)
            raise


class Pipeline:
    """The runs of one compiled graph that are under way."""

    def __init__(self, name: str, depth: int) -> None:
        self._lane = Lane(name, depth)
        self._lock = make_lock()
        self._free: deque[Staged] = deque(maxlen=depth)
        self._unseen: list[BaseException] = []

    @property
    def is_idle(self) -> bool:
        """Whether no run is under way."""
        return self._lane.is_idle

    def submit(
        self, arrays: Mapping[str, Array], work: Callable[[Mapping[str, Array]], R]
    ) -> RunTicket[R]:
        """Do `work(copies of the arrays)` after all that was begun before."""
        staged = self._stage(arrays)

        def run() -> R:
            try:
                return work(staged)
            except BaseException as error:
                self._note(error)
                raise
            finally:
                self._free.append(staged)

        return RunTicket(self, self._lane.submit(run))

    def _stage(self, arrays: Mapping[str, Array]) -> Staged:
        """Copies of the arrays, in memory that was used before if it fits."""
        try:
            used = self._free.popleft()
        except IndexError:
            used = {}
        staged: Staged = {}
        for name, array in arrays.items():
            place = used.get(name)
            if place is None or place.shape != array.shape or place.dtype != array.dtype:
                staged[name] = array.copy()
            else:
                place[...] = array
                staged[name] = place
        return staged

    def settle(self) -> None:
        """Wait until all that was begun so far is over; errors stay with their tickets."""
        if self._lane.is_idle:
            return
        last = self._lane.last()
        if last is not None:
            last.exception()

    def sync(self) -> None:
        """Wait like `settle`; the first error that nobody has seen is raised."""
        self.settle()
        with self._lock:
            unseen, self._unseen = self._unseen, []
        if unseen:
            raise unseen[0]

    def _note(self, error: BaseException) -> None:
        """Nobody has seen this yet. Of many, the first ones are kept, and the last."""
        with self._lock:
            del self._unseen[_MOST_UNSEEN - 1 :]
            self._unseen.append(error)

    def has_seen(self, error: BaseException) -> None:
        """The error of a run was given to somebody."""
        with self._lock:
            self._unseen = [other for other in self._unseen if other is not error]

    def stream(
        self, begin: Callable[[Any], RunTicket[R]], input_sets: Iterable[Any], depth: int
    ) -> Iterator[R]:
        """What each run gives back, in order; the following ones are under way meanwhile."""
        waiting: deque[RunTicket[R]] = deque()
        for inputs in input_sets:
            waiting.append(begin(inputs))
            if len(waiting) >= depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
