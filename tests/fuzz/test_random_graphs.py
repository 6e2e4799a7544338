"""Random graphs: the plan gives what the reference gives, however it was made and run.

The default run is short and always the same; `tests.fuzz.long` says how to get a long one.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.checking import check_known, check_program
from tests.fuzz.long import long, search
from tests.fuzz.programs import LARGE, SMALL, Scale, make_program

short = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@short
@given(st.randoms(use_true_random=False))
def test_small_programs_agree_everywhere(rng: Random) -> None:
    check_program(make_program(rng, max_steps=8), rng)


@pytest.mark.parametrize("seed", range(40))
def test_longer_programs_agree_everywhere(seed: int) -> None:
    rng = Random(seed)
    check_program(make_program(rng, max_steps=14), rng)


@pytest.mark.parametrize("seed", range(20))
def test_large_programs_agree_everywhere(seed: int) -> None:
    rng = Random(seed)
    check_program(make_program(rng, max_steps=8, scale=LARGE), rng, interpreted=False)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_before_a_run_has_the_bits_of_one(seed: int) -> None:
    rng = Random(seed)
    check_known(make_program(rng, max_steps=8), rng)


@long
def test_new_programs_agree_everywhere() -> None:
    def check(seed: int) -> None:
        scale: Scale = LARGE if seed % 4 == 3 else SMALL
        rng = Random(seed)
        check_program(make_program(rng, 14, scale), rng, interpreted=scale is SMALL)
        check_known(make_program(rng, 14, scale), rng)

    search(check)
