"""Signals that come in the middle of a run, however busy the machine is."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from semel import ExecutionPlan


def once_running(
    plan: ExecutionPlan, action: Callable[[], object], later: float = 0.0
) -> threading.Thread:
    """Let another thread do `action` so many seconds after the plan's next run has begun."""
    run = plan.engine.state.run
    attempts = run.attempts

    def watch() -> None:
        while run.attempts == attempts:
            time.sleep(0.001)
        time.sleep(later)
        action()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@contextmanager
def handling(
    handler: Callable[..., Any], number: int = signal.SIGALRM
) -> Iterator[Callable[[ExecutionPlan], object]]:
    """Gives what lets the signal come in the middle of a plan's next run, once."""
    before = signal.signal(number, handler)
    try:
        yield lambda plan: once_running(plan, lambda: os.kill(os.getpid(), number), 0.03)
    finally:
        signal.signal(number, before)
