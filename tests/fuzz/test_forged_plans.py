"""Plan files forged at random are refused, or run inside their buffers and end.

SEMEL_FUZZ_SECONDS=600 pytest tests/fuzz        # seeds from the clock
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

SECONDS = float(os.environ.get("SEMEL_FUZZ_SECONDS", "0"))
#: Seconds for one process; a seed takes a tenth of one.
PATIENCE = 300


def try_seeds(first: int, count: int) -> list[str]:
    """What became of each seed; an AssertionError names the one that ended the process."""
    command = [sys.executable, "-m", "tests.fuzz.forged_plans", str(first), str(first + count)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as late:
        seen = (late.stdout or b"").decode().split("\n")
        raise AssertionError(f"no end after {seen[-2:]}") from late
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"exit {done.returncode} at {lines[-1:]}: {done.stderr[-1500:]}"
    return lines[1::2]


@pytest.mark.timeout(PATIENCE + 60)
def test_forged_files_touch_nothing_else() -> None:
    outcomes = try_seeds(0, 40)
    assert outcomes.count("refused") > 5
    assert outcomes.count("ran") > 5


@pytest.mark.timeout(0)
@pytest.mark.skipif(not SECONDS, reason="set SEMEL_FUZZ_SECONDS for a long run")
def test_long() -> None:
    seed, end = time.time_ns() % (1 << 40), time.monotonic() + SECONDS
    while time.monotonic() < end:
        try_seeds(seed, 50)
        seed += 50
