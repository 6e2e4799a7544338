"""Work that no signal handler may interrupt, on a thread where none runs.

    run_apart(work)  -->  what `work()` returns or raises

Python calls handlers on the main thread, between any two instructions, and they may raise there.
Code of ours is written for that. LLVM's binding is not: an exception inside it leaves a lock
held for ever, or an object that is freed twice. To mask signals does not help, since another
thread may take them and the main thread calls the handler all the same.

An exception that a handler raises leaves the work to itself: it goes on to its end. So threads are
started here without `threading`, whose own tables such an exception would leave half changed.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: How long a forked child waits for a thread that its parent has, before it looks.
_LOOK_S = 0.2


def run_apart(work: Callable[[], T]) -> T:
    """`work()`, on another thread if this is the one that handles signals.

    It may run twice: in the child of a fork that a handler makes, where no such thread is.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return work()
    results: list[T] = []
    errors: list[BaseException] = []
    done, worked_for = allocate_lock(), 0

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    while not results and not errors:
        if worked_for != os.getpid():
            worked_for, done = os.getpid(), allocate_lock()
            done.acquire()
            if not _could_start(run):
                return work()
        done.acquire(timeout=_LOOK_S)
    if errors:
        raise errors.pop()
    return results.pop()


def _could_start(run: Callable[[], None]) -> bool:
    """Whether a thread could be had. Without one the work is done in place: a risk, but done."""
    try:
        start_new_thread(run, ())
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise  # a handler's
        return False
    return True
