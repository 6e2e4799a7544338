"""A work on another thread, and what became of it.

    Job(work).start()  -->  it begins;  .result()  -->  what it returned or raised

An exception that a signal handler raises leaves the work to itself: it goes on to its end. So
threads are started here without `threading`, whose own tables such an exception would leave half
changed.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")

#: How long a forked child waits for a thread that its parent has, before it looks.
_LOOK_S = 0.2


class Job(Generic[T]):
    """A work, and how it ended. It may run twice: in the child of a fork, where no thread is."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._done = allocate_lock()
        self._done.acquire()
        self._made_in = os.getpid()

    def start(self) -> Self:
        """Let it begin on a thread of its own, or do it here if none can be had."""
        if not could_start(self.run):
            self.run()
        return self

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._done.release()

    @property
    def is_over(self) -> bool:
        return bool(self._results or self._errors)

    def result(self) -> T:
        """What the work returned or raised, once it has; in the child of a fork, anew."""
        while not self.is_over and self._made_in == os.getpid():
            self._done.acquire(timeout=_LOOK_S)
        if not self.is_over:
            return Job(self._work).start().result()
        if self._errors:
            raise self._errors.pop()
        return self._results.pop()


def could_start(run: Callable[[], None]) -> bool:
    """Whether a thread could be had. Without one the work is done in place: a risk, but done."""
    try:
        start_new_thread(run, ())
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise  # a handler's
        return False
    return True
