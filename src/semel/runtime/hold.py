"""One operation on a plan at a time, and none inside another.

    hold.alone(action, *args)  -->  what action(*args) returns

Another thread waits. The thread that is in the middle of an operation is refused with a
BusyError before anything is touched: a custom function, a signal handler, a destructor or a tracer
that comes back to the plan would change what is running, and waiting would be for ever.

Signal handlers may raise between any two instructions. So the flag is set and taken back
inside one `try`, and the lock is entered by `with`, which nothing can come between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from semel.errors import BusyError

P = ParamSpec("P")
R = TypeVar("R")


class Hold:
    """The lock of a plan; `is_held` is read and written only by the thread that has it.

    `ExecutionPlan.execute()` says in place what `alone` says, to save the call.
    """

    __slots__ = ("is_held", "lock")

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.is_held = False

    def alone(self, action: Callable[..., R], *args: Any) -> R:
        """`action(*args)` with the plan to ourselves."""
        with self.lock:
            if self.is_held:
                raise self.refusal()
            try:
                self.is_held = True
                return action(*args)
            finally:
                self.is_held = False

    def refusal(self) -> BusyError:
        """Why an operation inside another one is refused."""
        return BusyError(
            "plan",
            "is in the middle of an operation on this thread; it cannot be used inside itself.",
            hint="clone() it for use in custom functions, signal handlers and destructors.",
        )

    def belongs_elsewhere(self) -> bool:
        """Whether another thread is in the middle of an operation right now."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return False
        return True

    def renew(self) -> None:
        """In a forked child: forget the operation of a thread that is not there."""
        self.lock._at_fork_reinit()
        self.is_held = False


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
