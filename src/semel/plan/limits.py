"""How long a run may take.

RunLimits(timeout=0.5)  -->  a run that ends in time, or at a step with a TimedOutError
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from semel.errors import PlanError

if TYPE_CHECKING:
    from semel.plan.engine import Engine


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may take: at most `timeout` seconds.

    A run that takes longer ends before its next step, with a `TimedOutError`. It may be late by the
    step that it is in: no kernel and no custom function is interrupted.
    """

    timeout: float | None = None

    def __post_init__(self) -> None:
        timeout = self.timeout
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            raise PlanError("plan", f"timeout must be seconds >= 0, or None, got {timeout!r}.")

    def begin(self, engine: Engine) -> Callable[[], None]:
        """A run of a plan, to be made while it is held; its time begins now."""
        if self.timeout is None or math.isinf(self.timeout):
            return engine.run
        return partial(engine.run_within, TimeLimit(self.timeout, time.monotonic() + self.timeout))


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The moment `until` which a run must be over, `seconds` after it was asked for."""

    seconds: float
    until: float

    def left(self) -> float:
        """Seconds from now on; none or less if it is over."""
        return self.until - time.monotonic()
