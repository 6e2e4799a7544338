"""Compiled graphs with state under random sequences of operations, against a plain model."""

from __future__ import annotations

import pytest
from tests.fuzz.long import long, search
from tests.fuzz.sequences import Sequence


def check(seed: int, steps: int = 60) -> None:
    sequence = Sequence(seed)
    for _ in range(steps):
        sequence.step()


@pytest.mark.parametrize("seed", range(12))
def test_random_sequences(seed: int) -> None:
    check(seed)


@long
def test_many_random_sequences() -> None:
    search(lambda seed: check(seed, 200))
