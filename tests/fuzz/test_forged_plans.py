"""Plan files forged at random are refused, or run inside their buffers and end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fuzz.forged_plans import MODELS, N, by_hand
from tests.fuzz.long import long, search

import semel
from semel import Tensor

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


@pytest.mark.parametrize("model", MODELS)
def test_what_nobody_forged_runs(model: Callable[[Any], Tensor], tmp_path: Path) -> None:
    plan, x = semel.prepare({"y": model(N)}, threads=1), np.full((5, 16), 0.5, np.float32)
    for each in (plan, by_hand(plan)):
        each.save(tmp_path / "a.plan")
        loaded = semel.load_plan(tmp_path / "a.plan", trust=False, threads=1)
        np.testing.assert_allclose(loaded(x=x), plan(x=x), rtol=1e-6)


@pytest.mark.timeout(PATIENCE + 60)
def test_forged_files_touch_nothing_else() -> None:
    outcomes = try_seeds(0, 50)
    assert outcomes.count("refused") > 5
    assert outcomes.count("ran") > 5


@long
def test_newly_forged_files_touch_nothing_else() -> None:
    def check(seed: int) -> None:
        try_seeds(50 * seed, 50)

    search(check)
