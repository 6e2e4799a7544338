"""Which experts of a layer should be in memory: what was routed to, and who moves in and out.

    ids of a run  --observe-->  a score of each expert  --refresh-->  Moves(promoted, demoted)

A policy is how scores follow from what was routed to:

    static    the profile that was given; nobody ever moves
    lru       when the expert was last routed to
    decayed   how often it was, where what is one run older counts `decay` times as much

The target are the experts with the highest scores, as many as the budget holds. Who is not in it
is demoted only where somebody comes in his place, coldest first, and only if the newcomer's score
is greater by the hysteresis: a move costs bytes, and a tie is not worth any. Scores that are equal
are told apart by the expert's number, the lower one first, so that the same ids give the same moves
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from semel.errors import InputError
from semel.ir.fields import take_int

Mask = npt.NDArray[np.bool_]
#: A mask for each layer, by its number or in order.
LayerMasks: TypeAlias = Mapping[int, Any] | Sequence[Any] | Mask
Counts = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Policy = Literal["static", "lru", "decayed"]


class Moves(NamedTuple):
    """Who comes into memory and who leaves it, pair by pair; hottest newcomers first."""

    promoted: tuple[int, ...] = ()
    demoted: tuple[int, ...] = ()


def count_experts(ids: Any, num_experts: int) -> Counts:
    """How often each expert is among the ids, whatever their shape."""
    flat = _ids(ids, num_experts).ravel()
    return np.bincount(flat, minlength=num_experts).astype(np.int64, copy=False)


def hottest(scores: Any, budget: int) -> tuple[int, ...]:
    """The `budget` experts with the highest scores above 0, hottest first."""
    values = np.asarray(scores, np.float64)
    order = np.argsort(-values, kind="stable")[:budget]
    return tuple(int(expert) for expert in order if values[expert] > 0)


class ExpertPool:
    """The experts of one layer that should be in memory: at most `budget` of `num_experts`.

    The budget is a number of experts, or `budget_bytes` with `expert_bytes` of each. It decides
    after every `refresh`-th run. The first residents are the hottest of the `profile`, then those
    with the lowest numbers.
    """

    def __init__(
        self,
        num_experts: int,
        budget: int | None = None,
        *,
        budget_bytes: int | None = None,
        expert_bytes: int | None = None,
        policy: Policy = "decayed",
        refresh: int = 1,
        decay: float = 0.5,
        hysteresis: float = 0.0,
        profile: Any = None,
    ) -> None:
        self.num_experts = _at_least(1, "num_experts", num_experts)
        room = _budget(budget, budget_bytes, expert_bytes)
        self.budget = min(room, self.num_experts)
        if policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise InputError("ExpertPool", f"policy must be one of {known}, got {policy!r}.")
        self.policy = policy
        self.every = _at_least(1, "refresh", refresh)
        self.decay = _within("decay", decay, 1.0)
        self.hysteresis = _within("hysteresis", hysteresis, float("inf"))
        first = _profile(profile, self.num_experts)
        self._residents = set(_filled(hottest(first, self.budget), self.budget))
        #: A profile is what was routed to before; for `lru` it says nothing about when.
        self._scores = np.zeros_like(first) if policy == "lru" else first
        self._clock = 0
        self.refreshes = self.promotions = self.demotions = 0

    def __repr__(self) -> str:
        return (
            f"ExpertPool({len(self._residents)} of {self.num_experts} resident, "
            f"{self.policy}, {self.promotions} in, {self.demotions} out)"
        )

    @property
    def resident(self) -> tuple[int, ...]:
        """The experts that should be in memory, by number."""
        return tuple(sorted(self._residents))

    @property
    def scores(self) -> Scores:
        """A copy of how hot each expert is."""
        return self._scores.copy()

    def mask(self) -> Mask:
        """Of each expert whether it should be in memory."""
        made = np.zeros(self.num_experts, np.bool_)
        made[list(self._residents)] = True
        return made

    def observe(self, ids: Any) -> None:
        """Take note of what one run routed to: ids of experts, in the order of the tokens."""
        found = _ids(ids, self.num_experts)
        if self.policy == "decayed":
            self._scores = self._scores * self.decay + count_experts(found, self.num_experts)
        elif self.policy == "lru" and found.size:
            tokens = found.reshape(len(found), -1) if found.ndim else found.reshape(1, 1)
            times = self._clock + 1 + np.arange(len(tokens))
            np.maximum.at(self._scores, tokens, np.broadcast_to(times[:, None], tokens.shape))
            self._clock += len(tokens)

    def should_refresh(self, step: int, *, is_prefill: bool = False, force: bool = False) -> bool:
        """Whether it is time to decide: at every `refresh`-th step, at a prefill, or if forced.

        Never if all experts fit, or if the policy never moves anybody.
        """
        if self.budget >= self.num_experts or self.policy == "static":
            return False
        return force or is_prefill or take_int("ExpertPool", "step", step) % self.every == 0

    def refresh(self) -> Moves:
        """Decide, by what was observed: who moves."""
        if self.policy == "static":
            return Moves()
        return self.move_to(hottest(self._scores, self.budget))

    def move_to(self, target: Iterable[int]) -> Moves:
        """Let these be in memory, hottest first: others leave only where a place is needed."""
        wanted = dict.fromkeys(_experts(target, self.num_experts))
        if len(wanted) > self.budget:
            raise InputError(
                "ExpertPool",
                f"at most {self.budget} experts may be resident, got {len(wanted)}.",
            )
        newcomers = [i for i in wanted if i not in self._residents]
        free = self.budget - len(self._residents)
        promoted, newcomers = newcomers[:free], newcomers[free:]
        # Coldest first; of those that are equal, the one with the lower number stays.
        leaving = sorted(self._residents - wanted.keys(), key=lambda i: (self._scores[i], -i))
        pairs = [
            (new, old)
            for new, old in zip(newcomers, leaving, strict=False)
            if self._is_worth(new, old)
        ]
        moves = Moves((*promoted, *(new for new, _ in pairs)), tuple(old for _, old in pairs))
        self._residents = (self._residents - set(moves.demoted)) | set(moves.promoted)
        self.refreshes += 1
        self.promotions += len(moves.promoted)
        self.demotions += len(moves.demoted)
        return moves

    def place(self, experts: Iterable[int]) -> None:
        """Let exactly these be in memory, whoever decided it."""
        chosen = set(_experts(experts, self.num_experts))
        if len(chosen) > self.budget:
            raise InputError(
                "ExpertPool",
                f"at most {self.budget} experts may be resident, got {len(chosen)}.",
            )
        self._residents = chosen

    def _is_worth(self, new: int, old: int) -> bool:
        return bool(self._scores[new] > self._scores[old] * (1 + self.hysteresis))


def merged_mask(pools: Sequence[ExpertPool]) -> Mask:
    """Of each expert whether it is resident in any layer."""
    return np.logical_or.reduce(layer_masks(pools), axis=0)  # type: ignore[no-any-return]


def layer_masks(pools: Sequence[ExpertPool]) -> Mask:
    """Of each layer and expert whether it is resident there."""
    sizes = {pool.num_experts for pool in pools}
    if len(sizes) != 1:
        raise InputError(
            "masks", f"needs pools of as many experts each, got {sorted(sizes) or 'none'}."
        )
    return np.stack([pool.mask() for pool in pools])


# ------------------------------------------------------------ what callers hand in


def take_array(where: str, what: str, value: Any, dtype: Any = None) -> npt.NDArray[Any]:
    """An array of what a caller hands in, if that has a shape."""
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError):
        raise InputError(where, f"{what} of one shape, got {value!r:.200}.") from None


def _ids(ids: Any, num_experts: int) -> Counts:
    found = take_array("experts", "ids must be integers", ids)
    if found.size == 0:
        return np.zeros(found.shape, np.int64)
    if found.dtype.kind not in "iu":
        raise InputError("experts", f"ids must be integers, got {found.dtype}.")
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= num_experts:
        wrong = low if low < 0 else high
        raise InputError("experts", f"ids must be in 0..{num_experts - 1}, got {wrong}.")
    return found.astype(np.int64, copy=False)


def _experts(experts: Any, num_experts: int) -> list[int]:
    """Numbers of experts, of anything that can be walked."""
    if not isinstance(experts, Iterable):
        raise InputError("experts", f"must be integers, several of them, got {experts!r:.200}.")
    found: list[int] = _ids(list(experts), num_experts).ravel().tolist()
    return found


def _budget(experts: int | None, room: int | None, size: int | None) -> int:
    if experts is not None and room is None and size is None:
        return _at_least(0, "budget", experts)
    if experts is not None or room is None or size is None:
        raise InputError(
            "ExpertPool", "needs either a budget in experts, or budget_bytes and expert_bytes."
        )
    return _at_least(0, "budget_bytes", room) // _at_least(1, "expert_bytes", size)


def _at_least(least: int, what: str, value: Any) -> int:
    found = take_int("ExpertPool", what, value)
    if found < least:
        raise InputError("ExpertPool", f"{what} must be at least {least}, got {found}.")
    return found


def _within(what: str, value: Any, most: float) -> float:
    found = float(value) if isinstance(value, (int, float)) else -1.0
    if not 0 <= found <= most or found == float("inf"):
        limits = "at least 0" if most == float("inf") else f"in 0..{most:g}"
        raise InputError("ExpertPool", f"{what} must be {limits}, got {value!r}.")
    return found


def _profile(profile: Any, num_experts: int) -> Scores:
    if profile is None:
        return np.zeros(num_experts)
    found = take_array("ExpertPool", "profile must be numbers", profile, np.float64).copy()
    if found.shape != (num_experts,) or not np.all(np.isfinite(found)) or np.any(found < 0):
        raise InputError(
            "ExpertPool",
            f"profile must be {num_experts} numbers that are at least 0, got {profile!r}.",
        )
    return found


def _filled(first: tuple[int, ...], budget: int) -> tuple[int, ...]:
    """The first ones, and as many with the lowest numbers as there is room for."""
    others = (i for i in range(budget + len(first)) if i not in first)
    return (*first, *(i for i, _ in zip(others, range(budget - len(first)), strict=False)))
