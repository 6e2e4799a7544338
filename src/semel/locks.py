"""Locks that survive a fork.

    make_lock()  -->  a reentrant lock that the forking thread has while the process forks

The child of a fork has one thread. A lock that any other thread held at that moment would stay
locked there for ever, and what it guards half changed: a table, a cache, LLVM. So every lock
around state of the process is made here, and a fork takes them all first and lets them go
on both sides. It never waits for one lock while it holds another, so the order in which code
nests these locks does not matter. A compile that runs delays the fork until it ends.

They are reentrant because signal handlers and destructors run between any two instructions,
inside a `with` too, and may come back here.

The lock of a plan is no such lock, since a run may take long: see runtime/hold.py. Why this way:
docs/decisions/0028-forks-and-re-entry.md.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import starmap
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: A thread that forks inside one of these locks may wait for a thread that waits for it: this
#: long. The child gets what could not be had anew.
_PATIENCE_S = 60.0

# RLock, with the members that conditions use, which typeshed does not know.
_Lock = Any

_known: list[weakref.ref[_Lock]] = []
#: Held across a fork too, so that no lock is made meanwhile.
_making = threading.RLock()


def make_lock() -> threading.RLock:
    """A lock for state of the process; held for a short time, and never during user's code."""
    lock = threading.RLock()
    with _making:
        _remember(lock)
    return lock


def _remember(lock: threading.RLock) -> None:
    # To append, to remove and to copy a list are one step each for other threads.
    _known.append(weakref.ref(lock, _known.remove))


_remember(_making)

#: To be held while modules of ours are imported later than `semel` itself: one that another thread
#: is in the middle of would stay half imported in the child of a fork.
importing = make_lock()


def _locks() -> list[_Lock]:
    return [lock for known in list(_known) if (lock := known()) is not None]


class _Fork(threading.local):
    """A fork that this thread has begun: what it held before, and what it could not get."""

    own: tuple[_Lock, ...] = ()
    missed: tuple[_Lock, ...] = ()


_fork = _Fork()


def _before_fork() -> None:
    _fork.own = tuple(lock for lock in _locks() if lock._is_owned())
    _fork.missed = ()
    until = time.monotonic() + _PATIENCE_S
    try:
        blocked = _take_all(None)
        while blocked is not None:
            _release()
            if not blocked.acquire(timeout=max(until - time.monotonic(), 0)):
                _fork.missed = (*_fork.missed, blocked)
            blocked = _take_all(blocked)
    except BaseException:  # a signal handler raised: fork() goes on, and what we took is let go
        _release()
        raise


def _take_all(held: _Lock | None) -> _Lock | None:
    """Take what is free, up to the first lock that is not: that one, or None if we have all."""
    for lock in _locks():
        if lock is held or lock in _fork.own or lock in _fork.missed:
            continue
        if not lock.acquire(blocking=False):
            return lock
    return None


def _release() -> None:
    """Let go of what the fork took; asked of the locks, so that no interruption matters."""
    for lock in _locks():
        if lock._is_owned() and lock not in _fork.own:
            lock.release()


def _after_fork_in_child() -> None:
    for lock in _fork.missed:
        lock._at_fork_reinit()
    _release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_release, after_in_child=_after_fork_in_child
)


class Changed:
    """Lets threads wait for a change of what a lock guards; like a `threading.Condition`.

    But `wait` ends with the lock, whatever a signal handler raises at whichever instruction: that
    of the library may have let go of it by then without a note of that, and the `with` around it
    fails in the place of what was raised.
    """

    __slots__ = ("_bells", "_lock")

    def __init__(self, lock: threading.RLock) -> None:
        self._lock: _Lock = lock
        self._bells: list[_thread.LockType] = []

    def wait(self, timeout: float | None = None) -> None:
        """Let go of the lock, however often this thread has it, until `notify_all`; or so long."""
        bell = _thread.allocate_lock()
        bell.acquire()
        self._bells.append(bell)
        depth: list[Any] = []
        try:
            # One instruction: no handler runs between letting go and the note of it.
            depth.extend(starmap(self._lock._release_save, _ONCE))
            bell.acquire(True, -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        finally:
            if depth:  # no call before the one that takes the lock, after which handlers may run
                self._lock._acquire_restore(depth[0])
        with suppress(ValueError):  # it was rung
            self._bells.remove(bell)

    def notify_all(self) -> None:
        """Let all go on that wait, once the lock is free; the caller has it."""
        for bell in self._bells:
            if bell.locked():
                bell.release()
        self._bells.clear()


_ONCE: tuple[tuple[()]] = ((),)


class computed_once(Generic[T]):  # noqa: N801 - reads as a decorator
    """A property that is kept in the object from its first use on.

    `functools.cached_property` has a lock in Python 3.11, of which a fork knows nothing: a child
    waited for ever. Without one two threads may compute the value, and both get the first.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        found: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return found
