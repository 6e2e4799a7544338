"""Random graphs over two and three devices: the bits of one, whatever the lanes do meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.fuzz.long import long, search
from tests.fuzz.spread import check, draw, num_fused_softmax, prepare

pytestmark = pytest.mark.timeout(300)

BATCH = 50


@pytest.mark.parametrize("seed", [5070336, 5075458])
def test_a_softmax_of_each_device_is_a_graph_of_its_own(seed: int) -> None:
    plans = [prepare(draw(seed, is_spread=is_spread), seed) for is_spread in (False, True)]
    assert [num_fused_softmax(plan) for plan in plans] == [0, 1]
    check(seed)


@pytest.mark.parametrize("batch", range(20))
def test_several_devices_have_the_bits_of_one(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(seed)


@long
def test_new_graphs_have_the_bits_of_one_device() -> None:
    search(check)


def test_many_processes_share_the_seeds() -> None:
    command = [sys.executable, "-m", "tests.fuzz.spread", "--graphs=7", "--processes=3"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=os.getcwd()
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("7 graphs in ") and "0 failures" in done.stdout
