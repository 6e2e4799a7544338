"""The runner's clock is set beside the system's, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate, cycle

import pytest

from semel.devices.cpu import runtime


def test_two_clocks_are_read_at_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a core is lost for 10 ms between two readings, one time in three."""
    steps = cycle([100, 10_000_000, 100, 100, 100])
    now: Iterator[int] = accumulate(steps)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for _ in range(20):
        at_ns, at = runtime._read_clocks(lambda: 3 * next(now))
        assert abs(at - 3 * at_ns) <= 3
    assert abs(runtime._ticks_per_us(lambda: 3 * next(now)) - 3000) < 1
