"""One operation on a plan at a time, and none inside another.

    hold.alone(action, *args)  -->  what action(*args) returns

Another thread waits. The thread that is in the middle of an operation is refused with a
BusyError before anything is touched: a custom function, a signal handler, a destructor or a tracer
that comes back to the plan would change what is running, and waiting would be for ever.

A lane that was given a run of the plan has the plan until that is over: whoever comes meanwhile
waits, and lets go of the lock so that others see the plan held, not locked.

Signal handlers may raise between any two instructions. So the flag is set and taken back
inside one `try`, and the lock is entered by `with`, which nothing can come between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import wraps
from itertools import starmap
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from semel.errors import BusyError

P = ParamSpec("P")
R = TypeVar("R")
_ONCE: tuple[tuple[()]] = ((),)


class Holder(Protocol):
    """A lane, for a plan that it was given."""

    def is_inside(self, value: int) -> bool:
        """Whether this thread is at that submission, or at work of any lane that it waits for."""

    def lend(self, hold: Hold) -> bool:
        """Let work of the lane, which is in the middle of it, use a plan; not inside its run."""

    def is_to_come(self, value: int) -> bool:
        """Whether that submission is not over."""

    def wait_over(self, value: int) -> None:
        """Wait until that submission is over, well or not."""

    def end_of(self, value: int) -> Iterable[tuple[Any, int]]:
        """The signals and values that say that it is over."""

    def has_lost(self, value: int) -> bool:
        """Whether that submission was not over when the process was forked."""


class Hold:
    """The lock of a plan; `is_held` is read and written only by the thread that has it.

    If a `lane` has the plan it is held until the lane's submission number `value` is over, and
    stays marked so until the next operation. `ExecutionPlan.execute()` says in place what `alone`
    says, to save the call.
    """

    __slots__ = ("is_held", "lane", "lock", "value")

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.is_held = False
        self.lane: Holder | None = None
        self.value = 0

    def alone(self, action: Callable[..., R], *args: Any) -> R:
        """`action(*args)` with the plan to ourselves."""
        with self.lock:
            if self.is_held:
                self.settle()
            try:
                self.is_held = True
                return action(*args)
            finally:
                self.is_held = False

    def settle(self) -> None:
        """Wait until no lane has the plan; refuse who is in the middle of an operation.

        To be called with the lock, where the plan is held.
        """
        while self.is_held:
            lane, value = self.lane, self.value
            if lane is None:
                raise self.refusal()
            if lane.is_inside(value):
                if not lane.lend(self):
                    raise self.refusal()
                return
            self._wait_over(lane, value)
            if self.lane is lane and self.value == value:
                self.is_held, self.lane = False, None

    def _wait_over(self, lane: Holder, value: int) -> None:
        """Wait without the lock: the lane's own work must be refused, and not wait for us."""
        depth: list[Any] = []
        try:
            depth.extend(starmap(self.lock._release_save, _ONCE))  # as in `locks.Changed`
            lane.wait_over(value)
        finally:
            if depth:
                self.lock._acquire_restore(depth[0])

    def refusal(self) -> BusyError:
        """Why an operation inside another one is refused."""
        return BusyError(
            "plan",
            "is in the middle of an operation on this thread; it cannot be used inside itself.",
            hint="clone() it for use in custom functions, signal handlers and destructors.",
        )

    def belongs_elsewhere(self) -> bool:
        """Whether another thread is in the middle of an operation right now, or a lane was.

        The latter in a forked child, where no lane of the parent is.
        """
        if self.lane is not None and self.lane.has_lost(self.value):
            return True
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return False
        return True

    def renew(self) -> None:
        """In a forked child: forget the operation of a thread or lane that is not there."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock._at_fork_reinit()
        self.is_held, self.lane = False, None


class Held(Protocol):
    """What has a hold."""

    _hold: Hold


H = TypeVar("H", bound=Held)


def alone(method: Callable[Concatenate[H, P], R]) -> Callable[Concatenate[H, P], R]:
    """A method that is an operation on the plan: see `Hold.alone`."""

    @wraps(method)
    def held(self: H, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            return self._hold.alone(lambda: method(self, *args, **kwargs))
        return self._hold.alone(method, self, *args)

    return held
