"""Plan files forged at random are refused, or run inside their buffers and end."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.fuzz.long import long, search

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


@long
def test_newly_forged_files_touch_nothing_else() -> None:
    def check(seed: int) -> None:
        try_seeds(50 * seed, 50)

    search(check)
