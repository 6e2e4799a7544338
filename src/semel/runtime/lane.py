"""A lane takes work in order, from any thread, and does it on a thread of its own.

    lane.submit(work)  -->  Ticket: done(), result(), exception(), await

The thread starts with the first work; without any it looks again and again for a moment, and then
sleeps. A ticket that has not begun is run by `result()` itself where it is the next one and the
lane is at rest. Where `depth` tickets are not over, `submit` does the next one, or waits for it.

A fork finds every queue at rest, since their locks are `make_lock`s. What a lane had not done
by then is the parent's: in the child those tickets fail, and new work gets a new thread. At the end
of the interpreter what has not begun is dropped and what runs is waited for, for a moment.

Invariants: one ticket of a lane runs at a time; the thread of a lane holds its queue and not the
lane, so that a lane that nobody holds ends once its work is done.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from semel.errors import DeviceError, PlanError, TimedOutError
from semel.ir.fields import take, take_int, take_timeout
from semel.locks import Changed, make_lock
from semel.runtime.freed import when_freed

T = TypeVar("T")

#: How long the end of the interpreter waits for work that is under way.
_PATIENCE_S = 0.5
#: How long a thread without work looks for some by itself, and how often. To wake one that sleeps
#: costs some 30 us, most of which the one who wakes it pays: both then want the interpreter.
_AWAKE_S = 2e-3
_NAP_S = 50e-6
#: How long it naps at most while callers do what they wait for themselves: to be in their way costs
#: them more than that work, where it is short.
_LONG_NAP_S = 1e-3


class Ticket(Generic[T]):
    """Work that a lane was given: what it returned or raised, once it is over."""

    __slots__ = ("__weakref__", "_error", "_is_done", "_queue", "_result", "_when_done", "_work")

    def __init__(self, queue: _Queue, work: Callable[[], T]) -> None:
        self._queue = queue
        self._work: Callable[[], T] | None = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self._is_done = False
        self._when_done: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"Ticket({self._queue.name}, {self._queue.describe(self)})"

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._is_done

    def result(self, timeout: float | None = None) -> T:
        """What the work returned; what it raised is raised again.

        Without a timeout, work that has not begun may be done right here, on this thread.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return cast(T, self._result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the work raised, or None; waits like `result`."""
        if not self._is_done and timeout is None:
            self._queue.run_here(self)
        if not self._is_done:
            self._queue.wait(self, timeout)
        return self._error

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is over, and leave the work to the lane."""
        self._queue.wait(self, timeout)

    def when_done(self, action: Callable[[], object]) -> None:
        """Call `action()` once it is over: on the thread that ends it, or now."""
        with self._queue.lock:
            if not self._is_done:
                self._when_done.append(action)
                return
        action()

    def __await__(self) -> Generator[Any, None, T]:
        """For `asyncio`: the loop goes on meanwhile."""
        if not self._is_done:
            import asyncio  # only who awaits needs it

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not future.done():
                    future.set_result(None)

            def tell() -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(wake)

            self.when_done(tell)
            yield from future.__await__()
        return self.result()

    def run(self) -> None:
        """Do the work; for the queue, which has taken the ticket."""
        work = self._work
        try:
            if work is not None:
                self._result = work()
        except BaseException as error:
            self._error = error

    def end(self, error: BaseException | None = None) -> list[Callable[[], object]]:
        """It is over, as it is or with this error; what is to be called now.

        For the queue, under its lock.
        """
        if not self._is_done:
            self._error = self._error if error is None else error
            self._work, self._is_done = None, True
        actions, self._when_done = self._when_done, []
        return actions


class Lane:
    """Work in order, one at a time. `depth`: tickets that are not over, at most."""

    __slots__ = ("__weakref__", "_queue", "_token")

    def __init__(self, name: str = "lane", depth: int | None = None) -> None:
        take("Lane", "name", str, name)
        if depth is not None and take_int(f"lane '{name}'", "depth", depth) < 1:
            raise PlanError(f"lane '{name}'", f"depth must be at least 1, got {depth}.")
        self._queue = _Queue(name, depth)
        self._token = when_freed(self._queue.close)

    def __repr__(self) -> str:
        return f"Lane({self.name!r}, {self.num_pending} pending)"

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def num_pending(self) -> int:
        """Tickets that are not over."""
        return self._queue.num_pending

    def submit(self, work: Callable[[], T]) -> Ticket[T]:
        """Do `work()` after all that was submitted before; waits where the lane is full."""
        return self._queue.submit(work)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending; a look without the lock, for those who ask often."""
        return self._queue.is_idle

    def last(self) -> Ticket[Any] | None:
        """The ticket after which all that was submitted is over; None if it is."""
        return self._queue.last()

    def sync(self, timeout: float | None = None) -> None:
        """Wait until all that was submitted so far is over; the lane does it, not this thread."""
        last = self._queue.last()
        if last is not None:
            last.wait(timeout)

    def close(self) -> None:
        """Take no more work; what was submitted is still done."""
        self._queue.close()


class _Queue:
    """What a lane and its thread share."""

    def __init__(self, name: str, depth: int | None) -> None:
        self.name, self._depth = name, depth
        self.lock = make_lock()
        self._changed = Changed(self.lock)
        self._waiting: deque[Ticket[Any]] = deque()
        self._running: Ticket[Any] | None = None
        self._runner = 0  # the thread that is at it
        self._num_helped = 0  # how often another thread did a ticket, or was there to do it
        self._num_seen = 0  # of these, when the lane's thread looked last
        self._is_closed = False
        self._has_thread = False
        self._is_asleep = False
        # To be released by whoever wants the thread to look; it stays so until the thread does.
        # Not by `_changed`: closing must not wait, since it may happen in a destructor.
        self._bell = allocate_lock()
        self._bell.acquire()
        _queues.add(self)

    # ------------------------------------------------------------ asking

    @property
    def num_pending(self) -> int:
        return len(self._waiting) + (self._running is not None)

    @property
    def is_idle(self) -> bool:
        # In this order: a ticket is the running one before it leaves the queue.
        return not self._waiting and self._running is None

    def last(self) -> Ticket[Any] | None:
        """The ticket after which all is done that was submitted."""
        with self.lock:
            return self._waiting[-1] if self._waiting else self._running

    def describe(self, ticket: Ticket[Any]) -> str:
        if ticket.done():
            return "done"
        return "running" if self._running is ticket else "waiting"

    def _is_inside(self) -> bool:
        """Whether this thread is in the middle of work of this lane."""
        return self._running is not None and self._runner == threading.get_ident()

    # ------------------------------------------------------------ submitting

    def submit(self, work: Callable[[], T]) -> Ticket[T]:
        if not callable(work):
            raise PlanError(f"lane '{self.name}'", f"work must be callable, got {work!r:.60}.")
        ticket = Ticket(self, work)
        while not self._add(ticket):
            self._help()
        return ticket

    def _add(self, ticket: Ticket[Any]) -> bool:
        """Put the ticket behind the others, if there is room."""
        with self.lock:
            self._check_open()
            if self._is_full():
                if self._is_inside():
                    raise PlanError(
                        f"lane '{self.name}'",
                        f"is full ({self._depth} pending), and its own work cannot wait for it.",
                        hint="Give it a larger depth, or submit from another thread.",
                    )
                return False
            self._ensure_thread()
            self._waiting.append(ticket)
        self._call()
        return True

    def _is_full(self) -> bool:
        return self._depth is not None and self.num_pending >= self._depth

    def _help(self) -> None:
        """Do what is next on this thread, which has to wait anyway; or wait for who is at it."""
        with self.lock:
            upcoming = self._waiting[0] if self._waiting and self._running is None else None
            if upcoming is None and self._is_full():
                self._changed.wait()
        if upcoming is not None:
            self.run_here(upcoming)

    def _check_open(self) -> None:
        if self._is_closed:
            raise PlanError(f"lane '{self.name}'", "is closed and takes no more work.")

    def _ensure_thread(self) -> None:
        if not self._has_thread:
            _stop_at_exit()
            try:
                # Two of them, after a signal handler that raised just here, do no harm.
                start_new_thread(_work, (self,))
            except RuntimeError as error:
                raise DeviceError(
                    f"lane '{self.name}'", f"needs a thread, and none can be had: {error}."
                ) from error
            self._has_thread = True

    def _call(self) -> None:
        """Wake the thread if it sleeps. One that only naps looks by itself, soon."""
        if self._is_asleep:
            self.ring()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

    # ------------------------------------------------------------ working

    def take(self, only: Ticket[Any] | None = None) -> Ticket[Any] | None:
        """The next ticket, for this thread, if nobody is at work; or `only` if that is the next."""
        with self.lock:
            if self._running is not None or not self._waiting:
                return None
            if only is not None and self._waiting[0] is not only:
                return None
            self._runner = threading.get_ident()
            # It leaves the queue last: a signal handler that raises in between loses nothing.
            self._running = self._waiting[0]
            return self._waiting.popleft()

    def finish(self, ticket: Ticket[Any], error: BaseException | None = None) -> None:
        """This thread has done the ticket that it took, or was kept from it."""
        with self.lock:
            self._running = None
            actions = ticket.end(error)
            self._changed.notify_all()
            if self._waiting or self._is_closed:
                self._call()
        for action in actions:
            action()

    def rest(self) -> bool:
        """Nap, then sleep, until there may be something to do; False: there never will be.

        Who naps need not be woken, and leaves the interpreter to whoever submits and asks at once:
        what waits is theirs as long as they did some of it since this thread looked last.
        """
        nap, awake_until = _NAP_S, time.monotonic() + _AWAKE_S
        while True:
            is_helped = self._num_helped != self._num_seen
            self._num_seen = self._num_helped
            if not is_helped and self._waiting and self._running is None:
                return True
            if self._is_closed and self.is_idle:
                return False
            now = time.monotonic()
            if is_helped:
                nap, awake_until = min(2 * nap, _LONG_NAP_S), now + _AWAKE_S
            if now < awake_until:
                if self._bell.acquire(timeout=nap):
                    return True  # somebody waits for what nobody is at
                continue
            # In this order, as whoever submits does the reverse: one of both sees the other.
            self._is_asleep = True
            if not (self._waiting and self._running is None) and not self._is_closed:
                self._bell.acquire()
            self._is_asleep = False
            return True

    def run_here(self, ticket: Ticket[Any]) -> None:
        """Do the ticket on this thread, if it is the next one and the lane is at rest."""
        try:
            is_taken = self.take(ticket) is ticket
            if is_taken or self._running is ticket:
                self._num_helped += 1
            if is_taken:
                ticket.run()
                self.finish(ticket)
        except BaseException as error:  # a signal handler's, between any two of these
            if self._running is ticket and self._is_inside():
                self.finish(ticket, error)
            raise

    def wait(self, ticket: Ticket[Any], timeout: float | None) -> None:
        """Until the ticket is over."""
        limit = take_timeout(f"lane '{self.name}'", timeout)
        until = None if limit is None else time.monotonic() + limit
        if self._is_asleep or self._running is None:
            self.ring()  # it may nap, or a signal handler have kept the one who submitted from that
        with self.lock:
            while not ticket.done():
                if self._is_inside():
                    raise PlanError(
                        f"lane '{self.name}'",
                        "its own work cannot wait for what comes after it.",
                        hint="Await the ticket from another thread.",
                    )
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimedOutError(
                        f"lane '{self.name}'",
                        f"the ticket must be done within {timeout} s, it is "
                        f"{self.describe(ticket)}, with {self.num_pending} pending.",
                    )
                self._changed.wait(left)

    # ------------------------------------------------------------ ending

    def close(self) -> None:
        """Take no more; the thread ends when all is done. Never waits."""
        self._is_closed = True
        self.ring()

    def drop(self, why: str) -> None:
        """Let all fail that has not begun."""
        with self.lock:
            dropped, self._waiting = self._waiting, deque()
            actions = [a for t in dropped for a in t.end(PlanError(f"lane '{self.name}'", why))]
            self._changed.notify_all()
        for action in actions:
            action()

    def settle(self, until: float) -> None:
        """Wait for what runs, but no longer."""
        with self.lock:
            while self._running is not None and not self._is_inside():
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def after_fork(self) -> None:
        """In the child: the thread is the parent's, and so is what it had to do."""
        why = "the process was forked before this was done: it is the parent's to do."
        self._has_thread = self._is_asleep = False
        self._bell = allocate_lock()
        self._bell.acquire()
        if self._running is not None and not self._is_inside():
            gone, self._running = self._running, None
            gone.end(PlanError(f"lane '{self.name}'", why))
        self.drop(why)


def _work(queue: _Queue) -> None:
    """The thread of a lane."""
    while queue.rest():
        ticket = queue.take()
        if ticket is not None:
            ticket.run()
            queue.finish(ticket)
        del ticket  # what it holds is not ours while we sleep
    queue.ring()  # should there be another thread


# ---------------------------------------------------------------- all lanes

_queues: weakref.WeakSet[_Queue] = weakref.WeakSet()
_is_registered = False


def _stop_at_exit() -> None:
    global _is_registered  # noqa: PLW0603 - set once; twice would be as good
    if not _is_registered:
        _is_registered = True
        atexit.register(_stop_all)


def _stop_all() -> None:
    """The interpreter ends: no thread of ours may be in the middle of anything."""
    queues, until = list(_queues), time.monotonic() + _PATIENCE_S
    for queue in queues:
        queue.close()
        queue.drop("the interpreter ended before this was begun.")
    for queue in queues:
        queue.settle(until)


def _after_fork_in_child() -> None:
    for queue in list(_queues):
        queue.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
