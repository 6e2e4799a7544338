"""Forks, signals and destructors at random moments: right numbers or typed errors, no hang."""

from __future__ import annotations

import subprocess
import sys

from tests.fuzz.long import long, search


def _storm(seed: int, seconds: float) -> dict[str, int]:
    """What happened in one; a hang ends itself, with the stacks of all threads."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz.storms", str(seed), str(seconds)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (
        f"exit {done.returncode}\n{done.stdout[-500:]}{done.stderr[-6000:]}"
    )
    return {name: int(count) for name, count in (w.split("=") for w in done.stdout.split())}


def test_a_short_storm() -> None:
    counts = _storm(1, 1.0)
    assert counts["runs"] > 0 and counts["signals"] > 0 and counts["forks"] > 0, counts


@long
def test_storms() -> None:
    def check(seed: int) -> None:
        _storm(seed, 5.0)

    search(check)
