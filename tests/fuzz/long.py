"""The long mode of fuzz tests: new seeds until the time is over.

SEMEL_FUZZ_SECONDS=600 pytest tests/fuzz                   # each test, seeds from the clock
SEMEL_FUZZ_SEED=20041 pytest tests/fuzz -k random_graphs   # one seed again
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

SECONDS = float(os.environ.get("SEMEL_FUZZ_SECONDS", "0"))
SEED = os.environ.get("SEMEL_FUZZ_SEED", "")

Test = TypeVar("Test", bound=Callable[..., None])


def long(test: Test) -> Test:
    """Marks a test that runs in the long mode only."""
    limited = pytest.mark.timeout(2 * SECONDS + 300)(test)
    return pytest.mark.skipif(
        not SECONDS and not SEED, reason="set SEMEL_FUZZ_SECONDS for a long run"
    )(limited)


def search(check: Callable[[int], object]) -> None:
    """Call `check` with one seed after the other; all failures are reported at the end.

    How many there were is printed (`pytest -s`).
    """
    first = int(SEED) if SEED else time.time_ns() // 1_000_000
    end = time.monotonic() + SECONDS
    seed, failures = first, []
    while seed == first or time.monotonic() < end:
        try:
            check(seed)
        except Exception as error:
            failures.append(f"SEMEL_FUZZ_SEED={seed}\n{type(error).__name__}: {error}")
        seed += 1
    sys.stdout.write(f"{seed - first} seeds, {(seed - first) / max(SECONDS, 1):.1f} a second\n")
    assert not failures, f"{len(failures)} of {seed - first} seeds:\n" + "\n\n".join(failures[:20])
