"""Pools of experts: who should be in memory, from what was routed to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel.errors import InputError, PlanError
from semel.session.experts import (
    ExpertPool,
    Moves,
    count_experts,
    hottest,
    layer_masks,
    merged_mask,
)


def pool(num_experts: int, budget: int, **options: Any) -> ExpertPool:
    """By default only the last run counts."""
    return ExpertPool(num_experts, budget, **{"decay": 0.0, **options})


def routed(made: ExpertPool, ids: Any) -> Moves:
    made.observe(ids)
    return made.refresh()


# ------------------------------------------------------------ targets and swaps


def test_the_hottest_come_first_and_ties_go_to_the_lower_number() -> None:
    assert hottest([10, 50, 30, 0, 50], 3) == (1, 4, 2)
    assert hottest(count_experts([1, 1, 0, 2], 4), 2) == (1, 0)


def test_who_was_never_routed_to_is_no_target() -> None:
    assert hottest([0, 3, 0, 0], 3) == (1,)


def test_the_first_residents_have_the_lowest_numbers() -> None:
    assert pool(8, 3).resident == (0, 1, 2)


def test_two_new_ones_take_the_places_of_two() -> None:
    made = pool(8, 2)
    assert routed(made, [6, 7]) == Moves((6, 7), (1, 0))
    assert (made.promotions, made.demotions, made.refreshes) == (2, 2, 1)
    assert made.resident == (6, 7)


def test_targets_that_are_resident_stay() -> None:
    made = pool(8, 4)
    moves = routed(made, [2, 3, 4, 5])
    assert (moves.promoted, sorted(moves.demoted)) == ((4, 5), [0, 1])
    assert made.resident == (2, 3, 4, 5)


def test_nobody_leaves_unless_somebody_comes() -> None:
    made = pool(8, 4)
    assert routed(made, [7, 7, 7]) == Moves((7,), (3,))
    assert made.resident == (0, 1, 2, 7)


def test_the_coldest_leaves_first() -> None:
    made = pool(4, 3)
    assert routed(made, [0, 1, 1, 2, 2, 2, 3, 3]) == Moves((3,), (0,))


def test_a_tie_moves_nobody() -> None:
    made = pool(3, 1, profile=[0, 0, 1])
    assert routed(made, [0, 2]) == Moves()
    assert made.resident == (2,)


def test_one_can_say_who_moves_in() -> None:
    made = pool(8, 2)
    with pytest.raises(InputError, match="at most 2 experts may be resident, got 3"):
        made.move_to([1, 2, 3])
    assert made.resident == (0, 1)


# ------------------------------------------------------------ when


def test_it_is_time_every_third_step_and_at_prefills() -> None:
    made = pool(8, 2, refresh=3)
    assert [s for s in range(8) if made.should_refresh(s)] == [0, 3, 6]
    assert made.should_refresh(1, is_prefill=True)
    assert made.should_refresh(1, force=True)


@pytest.mark.parametrize("budget", [4, 9])
def test_it_is_never_time_if_all_fit(budget: int) -> None:
    made = pool(4, budget)
    assert made.budget == 4
    assert not made.should_refresh(0, is_prefill=True, force=True)


# ------------------------------------------------------------ policies


def test_a_static_pool_follows_its_profile_only() -> None:
    made = pool(4, 2, policy="static", profile=[0, 5, 1, 9])
    assert made.resident == (1, 3)
    assert routed(made, [0, 0, 0]) == Moves()
    assert not made.should_refresh(0, force=True)
    assert made.resident == (1, 3)


def test_a_profile_that_names_too_few_is_filled_by_number() -> None:
    assert pool(6, 4, profile=[0, 0, 0, 0, 1, 0]).resident == (0, 1, 2, 4)


def test_lru_keeps_the_ones_of_the_last_tokens() -> None:
    made = pool(6, 2, policy="lru")
    made.observe([[5, 5], [4, 3], [2, 4]])
    assert made.refresh() == Moves((2, 4), (1, 0))
    assert routed(made, [[3, 3]]) == Moves((3,), (4,))  # of one token, the lower number stays


@pytest.mark.parametrize("policy", ["static", "lru", "decayed"])
def test_a_run_without_tokens_moves_nobody(policy: Any) -> None:
    made = pool(6, 3, policy=policy, decay=0.5)
    made.observe([[5, 4], [4, 3]])
    there = made.refresh(), made.resident
    made.observe(np.zeros((0, 2), np.int64))
    assert (made.refresh(), made.resident) == (Moves(), there[1])


def test_lru_does_not_ask_how_often() -> None:
    made = pool(4, 1, policy="lru")
    made.observe([[3], [3], [3], [2]])
    assert made.refresh().promoted == (2,)


def test_decayed_counts_remember_earlier_runs() -> None:
    made = pool(4, 1, decay=0.5)
    made.observe([3] * 8)
    assert made.refresh().promoted == (3,)
    assert routed(made, [2, 2, 2]) == Moves()  # 3 against 8 / 2
    assert routed(made, [2, 2, 2]) == Moves((2,), (3,))  # 4.5 against 2
    assert made.scores.tolist() == [0, 0, 4.5, 2]


def test_hysteresis_asks_for_more_than_a_little() -> None:
    made = pool(4, 1, hysteresis=0.5)
    routed(made, [3] * 4)
    assert routed(made, [3] * 4 + [2] * 6) == Moves()
    assert routed(made, [3] * 4 + [2] * 7) == Moves((2,), (3,))


def test_the_same_ids_give_the_same_moves() -> None:
    ids = np.random.default_rng(0).integers(0, 16, (50, 8, 2))
    for policy in ("lru", "decayed"):
        first, second = (pool(16, 5, policy=policy, decay=0.9) for _ in range(2))
        assert [routed(first, i) for i in ids] == [routed(second, i) for i in ids]
        assert first.promotions == first.demotions > 0
        assert len(first.resident) == 5


def test_nobody_is_resident_without_a_budget() -> None:
    made = pool(4, 0)
    assert routed(made, [1, 1]) == Moves()
    assert made.resident == ()


# ------------------------------------------------------------ budgets and masks


def test_a_budget_in_bytes_is_whole_experts() -> None:
    assert ExpertPool(8, budget_bytes=1000, expert_bytes=300).budget == 3
    assert ExpertPool(8, budget_bytes=9000, expert_bytes=300).budget == 8


def test_masks_of_layers_and_of_all() -> None:
    pools = [pool(4, 2), pool(4, 2, profile=[0, 0, 1, 1])]
    assert merged_mask(pools).tolist() == [True] * 4
    assert layer_masks(pools).tolist() == [
        [True, True, False, False],
        [False, False, True, True],
    ]


@pytest.mark.parametrize("sizes", [(), (4, 5)])
def test_masks_need_pools_of_one_size(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="needs pools of as many experts each"):
        layer_masks([pool(size, 2) for size in sizes])


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((0, 1), {}, "num_experts must be at least 1, got 0"),
        ((4, -1), {}, "budget must be at least 0, got -1"),
        ((4,), {}, "needs either a budget in experts, or budget_bytes and expert_bytes"),
        ((4, 2), {"budget_bytes": 8}, "needs either a budget"),
        ((4,), {"budget_bytes": 8, "expert_bytes": 0}, "expert_bytes must be at least 1"),
        ((4, 2), {"policy": "fifo"}, "must be one of static, lru, decayed, got 'fifo'"),
        ((4, 2), {"refresh": 0}, "refresh must be at least 1, got 0"),
        ((4, 2), {"decay": 1.5}, r"decay must be in 0\.\.1, got 1.5"),
        ((4, 2), {"decay": float("nan")}, r"decay must be in 0\.\.1, got nan"),
        ((4, 2), {"hysteresis": -0.1}, "hysteresis must be at least 0, got -0.1"),
        ((4, 2), {"profile": [1, 2]}, "profile must be 4 numbers that are at least 0"),
        ((4, 2), {"profile": [1, 2, 3, -1]}, "profile must be 4 numbers"),
        ((4, 2), {"profile": "x"}, "profile must be numbers of one shape, got 'x'"),
    ],
)
def test_what_makes_no_pool_is_refused(
    args: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ExpertPool(*args, **options)


def test_a_budget_is_an_int() -> None:
    with pytest.raises(PlanError, match="budget must be an int"):
        ExpertPool(4, 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([4], r"in 0\.\.3, got 4"),
        ([-1, 2], "got -1"),
        ([0.5], "must be integers, got float64"),
        ([[1], [1, 2]], r"must be integers of one shape, got \[\[1\], \[1, 2\]\]"),
        (None, "must be integers, got object"),
    ],
)
def test_ids_that_are_no_experts_change_nothing(ids: Any, message: str) -> None:
    made = pool(4, 2)
    with pytest.raises(InputError, match=message):
        made.observe(ids)
    assert not made.scores.any()


@pytest.mark.parametrize("call", ["move_to", "place"])
@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (3, "must be integers, several of them, got 3"),
        ("ab", "must be integers, got"),
        ([[1], [1, 2]], "must be integers of one shape"),
        ([0, 1, 2], "at most 2 experts may be resident, got 3"),
    ],
)
def test_who_cannot_move_in_changes_nothing(call: str, experts: Any, message: str) -> None:
    made = pool(4, 2)
    with pytest.raises(InputError, match=message):
        getattr(made, call)(experts)
    assert made.resident == (0, 1)
