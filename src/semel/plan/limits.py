"""How far a run goes: for so long, and for so much of what it could compute.

RunLimits(timeout=0.5, fetch=["y"])  --begin(engine)-->  a run to be made while it is held
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from semel.errors import InputError
from semel.ir.fields import set_fields, take_timeout

if TYPE_CHECKING:
    from semel.plan.engine import Engine


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may take and must give; nothing is limited if both are None.

    A run that takes longer than `timeout` seconds ends before its next step, with a
    `TimedOutError`. It may be late by the step that it is in: no kernel and no custom function is
    interrupted.

    With `fetch`, names of outputs or kept values, it computes these, and what states become. Rows
    that only others need are skipped; the others cannot be read after it.
    """

    timeout: float | None = None
    fetch: Iterable[str] | None = None

    def __post_init__(self) -> None:
        take_timeout("plan", self.timeout)
        fetch = cast(Any, self.fetch)
        if fetch is not None:
            names = list(fetch) if isinstance(fetch, Iterable) else [None]
            if isinstance(fetch, str) or not all(isinstance(name, str) for name in names):
                raise InputError("fetch", f"must be names of outputs, got {fetch!r:.60}.")
            set_fields(self, fetch=tuple(names))

    def begin(self, engine: Engine) -> Callable[[], None]:
        """A run of a plan, to be made while it is held; its time begins now."""
        limit = None
        if self.timeout is not None and not math.isinf(self.timeout):
            limit = TimeLimit(self.timeout, time.monotonic() + self.timeout)
        if limit is None and self.fetch is None:
            return engine.run
        return partial(engine.run_limited, limit, self.outputs(engine))

    def outputs(self, engine: Engine) -> frozenset[int] | None:
        """The buffers of what is to be fetched; None: of all there is."""
        if self.fetch is None:
            return None
        return engine.ways.outputs(engine.parts, tuple(self.fetch))


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The moment `until` which a run must be over, `seconds` after it was asked for."""

    seconds: float
    until: float

    def left(self) -> float:
        """Seconds from now on; none or less if it is over."""
        return self.until - time.monotonic()
