"""A number that only grows, and those who wait for it.

    signal.reach(3)   on one thread  -->   signal.wait(3)   on another goes on

What was reached stays reached: who comes to wait later goes on at once, so that no wake-up can be
lost. Rows of plans reach and wait for values (`PreparedSignal`, `PreparedWait`), and so may anybody
else; with one signal per direction two plans on two threads hand data back and forth.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from semel.errors import PlanError, TimedOutError
from semel.ir.fields import take, take_value
from semel.locks import Changed, make_lock


class TimelineSignal:
    """A monotonic number with a name; safe to use from any thread and from signal handlers."""

    __slots__ = ("_changed", "_lock", "_value", "name")

    def __init__(self, name: str = "signal", value: int = 0) -> None:
        self.name = take("TimelineSignal", "name", str, name)
        self._value = take_value(f"signal '{name}'", "value", value)
        self._lock = make_lock()
        self._changed = Changed(self._lock)

    def __repr__(self) -> str:
        return f"TimelineSignal({self.name!r}, {self._value})"

    @property
    def value(self) -> int:
        """The largest value that was reached."""
        return self._value

    def reach(self, value: int) -> None:
        """Let everybody go on who waits for this value or a smaller one.

        It must not be smaller than what was reached before: time does not go back.
        """
        number = take_value(f"signal '{self.name}'", "value", value)
        with self._lock:
            if number < self._value:
                raise PlanError(
                    f"signal '{self.name}'",
                    f"must not go back: it is at {self._value}, got {number}.",
                    hint="Count runs, and signal a larger value in each.",
                )
            self._value = number
            self._changed.notify_all()

    def is_reached(self, value: int) -> bool:
        """Whether who waits for this value goes on at once."""
        return self._value >= take_value(f"signal '{self.name}'", "value", value)

    def wait(
        self,
        value: int,
        timeout: float | None = None,
        *,
        unless: Callable[[], object] | None = None,
    ) -> bool:
        """Go on when `value` is reached; a TimedOutError if that takes longer than `timeout` s.

        False if `unless()` holds before: it is asked whenever the signal was reached or nudged.
        """
        number = take_value(f"signal '{self.name}'", "value", value)
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._value < number:
                if unless is not None and unless():
                    return False
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimedOutError(
                        f"signal '{self.name}'",
                        f"must reach {number} within {timeout} s, it is at {self._value}.",
                        signal=self.name,
                        value=number,
                    )
                self._changed.wait(left)
        return True

    def nudge(self) -> None:
        """Let everybody who waits ask again whether to go on waiting."""
        with self._lock:
            self._changed.notify_all()
