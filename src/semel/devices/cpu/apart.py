"""Work that no signal handler may interrupt, on a thread where none runs.

    run_apart(work)                -->  what `work()` returns or raises
    run_side_by_side(works, most)  -->  what each of them returns, in order, as they are done
    run_aside(work)                -->  nothing: who needs it does it again, which is quick then

Python calls handlers on the main thread, between any two instructions, and they may raise there.
Code of ours is written for that. LLVM's binding is not: an exception inside it leaves a lock
held for ever, or an object that is freed twice. To mask signals does not help, since another
thread may take them and the main thread calls the handler all the same.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from semel.runtime.job import Job, could_start

T = TypeVar("T")


def run_apart(work: Callable[[], T]) -> T:
    """`work()`, on another thread if this is the one that handles signals.

    It may run twice: in the child of a fork that a handler makes, where no such thread is.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return work()
    return Job(work).start().result()


def run_aside(work: Callable[[], object]) -> None:
    """Begin a work that somebody will need, on another thread; what goes wrong is theirs to see."""

    def quietly() -> None:
        with suppress(Exception):
            work()

    could_start(quietly)


def run_side_by_side(works: Iterable[Callable[[], T]], most: int) -> Iterator[T]:
    """What each of `works` returns or raises, in their order, on at most `most` other threads.

    Works are made on this thread, one after the other, while those made before run: what makes
    the next one may take as long. Threads live while there is work. What has not begun when
    somebody stops asking is left; what has goes on to its end. One may run twice, as in
    `run_apart`.
    """
    waiting: deque[Job[T]] = deque()
    jobs: deque[Job[T]] = deque()
    at_work: set[object] = set()
    started_in = os.getpid()

    def work_on(token: object) -> None:
        while waiting:
            try:
                job = waiting.popleft()
            except IndexError:  # another thread was quicker
                continue
            job.run()
        # Who adds a job now finds one thread fewer, or is found here.
        at_work.discard(token)
        if waiting:
            at_work.add(token)
            work_on(token)

    try:
        for work in works:
            if started_in != os.getpid():  # a fork between two works: no thread came along
                started_in = os.getpid()
                at_work.clear()
            job = Job(work)
            jobs.append(job)
            waiting.append(job)
            if len(at_work) < most:
                token = object()
                at_work.add(token)
                if not could_start(partial(work_on, token)):
                    work_on(token)
            while jobs and jobs[0].is_over:
                yield jobs.popleft().result()
        while jobs:
            yield jobs.popleft().result()
    finally:
        waiting.clear()
