"""Placing intermediates in one arena."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semel.plan.memory import Lifetime, lower_bound_bytes, plan_memory


def test_a_chain_needs_two_slots() -> None:
    chain = [Lifetime(100, i, i + 1) for i in range(10)]
    assert plan_memory(chain).arena_bytes == 2 * 128


def test_nothing_needs_nothing() -> None:
    assert plan_memory([]).arena_bytes == 0


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 30), st.integers(0, 10)), max_size=40)
)
def test_values_that_live_together_never_share_bytes(drawn: list[tuple[int, int, int]]) -> None:
    lives = [Lifetime(size, first, first + length) for size, first, length in drawn]
    plan = plan_memory(lives)
    for i, a in enumerate(lives):
        assert plan.offsets[i] % 64 == 0
        assert plan.offsets[i] + a.size_bytes <= plan.arena_bytes
        for j in range(i):
            if a.overlaps(lives[j]):
                apart = (
                    plan.offsets[i] + a.size_bytes <= plan.offsets[j]
                    or plan.offsets[j] + lives[j].size_bytes <= plan.offsets[i]
                )
                assert apart or not (a.size_bytes and lives[j].size_bytes)


def test_two_thousand_values_take_little_more_than_they_must() -> None:
    rng = np.random.default_rng(0)
    lives = [Lifetime(int(rng.integers(1, 1 << 20)), i, i + 3) for i in range(2000)]
    least = lower_bound_bytes(lives)
    assert least <= plan_memory(lives).arena_bytes <= 1.3 * least
