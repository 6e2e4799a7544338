"""Which experts are in memory, and the moves between memory and their file.

    ExpertStore{layer: residents, guests}  --enter, leave, settle-->  StackMemory.bring, drop

A resident stays. Who is routed to and is not there is brought in before his layer is computed: a
guest, who leaves after it unless the layer's pool gives him a place. A pool decides when a layer is
over; who it wants and is not there comes when he is next routed to. So bytes are moved for misses,
and for nothing else.

A compiled graph and its clones have one store, since they have one memory: what is resident is the
same for all of them. Whoever runs a layer holds the experts that it is routed to, so that nobody
leaves while he is read, whatever other threads decide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from semel.errors import InputError
from semel.locks import make_lock
from semel.runtime.stacks import StackMemory
from semel.session.experts import ExpertPool, Mask, take_array

Stacks = tuple[StackMemory, ...]


class Brought(NamedTuple):
    """How many experts were not there, and the bytes that were read for them.

    Who shares a stack with a layer that holds the expert reads nothing of it.
    """

    experts: int
    num_bytes: int


def room_of(stacks: Stacks) -> int:
    """What an expert of these takes in memory at most: whole pages."""
    return sum(max(map(stack.room_of, range(stack.count))) for stack in stacks)


class LayerStore:
    """The experts of one layer: at most `budget` of them are resident.

    `holds` counts, for each expert, the runs that are in the layer and need him.
    """

    def __init__(self, number: int, stacks: Stacks, pool: ExpertPool, *, is_decided: bool) -> None:
        self.number, self.stacks, self.pool = number, stacks, pool
        self.num_experts = pool.num_experts
        self.budget = pool.budget
        self.expert_bytes = sum(stack.part_bytes for stack in stacks)
        self.room = room_of(stacks)
        #: Whether the pool has anything to decide.
        self.is_decided = is_decided and self.budget < self.num_experts and pool.policy != "static"
        self.residents: set[int] = set()
        self._holds: dict[int, int] = {}
        self._steps = 0
        self._lock = make_lock()
        self.peak = 0  #: experts in memory at a time, guests included

    def again(self, stacks: Stacks) -> LayerStore:
        """Another one with the same residents, in these stacks."""
        with self._lock:
            made = LayerStore(self.number, stacks, deepcopy(self.pool), is_decided=False)
            made.is_decided, made._steps = self.is_decided, self._steps
            made.settle(self.residents)
            return made

    @property
    def is_full(self) -> bool:
        """Whether all experts are resident; they stay so until somebody settles others."""
        return len(self.residents) == self.num_experts

    def mask(self) -> Mask:
        """Of each expert whether he is resident."""
        made = np.zeros(self.num_experts, np.bool_)
        made[list(self.residents)] = True
        return made

    def settle(self, wanted: Iterable[int]) -> int:
        """Let exactly these be resident, now; how many bytes had to be brought in."""
        with self._lock:
            chosen = set(wanted)
            self._keep(self.residents & chosen)
            fresh = sorted(chosen - self._present())
            num_bytes = self._bring(fresh)
            self.residents = chosen
            self.pool.place(chosen)
            self._note_peak()
            return num_bytes

    def lacks(self, experts: Iterable[int]) -> bool:
        """Whether one of these is not there."""
        with self._lock:
            present = self._present()
            return any(expert not in present for expert in experts)

    def enter(self, routed: Sequence[int]) -> Brought:
        """Hold these until they leave; who was not there is brought in."""
        with self._lock:
            residents, holds = self.residents, self._holds
            fresh = [e for e in routed if e not in residents and e not in holds]
            num_bytes = self._bring(fresh) if fresh else 0
            for expert in routed:
                holds[expert] = holds.get(expert, 0) + 1
            if fresh:
                self._note_peak()
            return Brought(len(fresh), num_bytes)

    def leave(self, routed: Sequence[int], ids: Any = None) -> None:
        """Hold these no more: who has no place goes. `ids` are what the layer was routed to."""
        with self._lock:
            try:
                if ids is not None:
                    self._decide(ids)
            finally:  # else guests would stay for ever
                self._let_go(routed)

    def _let_go(self, routed: Sequence[int]) -> None:
        holds = self._holds
        gone = []
        for expert in routed:
            left = holds[expert] - 1
            if left:
                holds[expert] = left
                continue
            del holds[expert]
            if expert not in self.residents:
                gone.append(expert)
        if gone:
            self._drop(gone)

    def _decide(self, ids: Any) -> None:
        """Let the pool see what was routed to, and give its places to who is there."""
        pool = self.pool
        pool.observe(ids)
        if pool.should_refresh(self._steps):
            pool.refresh()
        self._steps += 1
        self._keep({expert for expert in pool.resident if expert in self._present()})

    def _keep(self, residents: set[int]) -> None:
        """Let these be resident, who are there; others leave as soon as nobody holds them."""
        gone = [e for e in self.residents - residents if e not in self._holds]
        self.residents = residents
        self._drop(sorted(gone))

    def _present(self) -> set[int]:
        return self.residents | self._holds.keys()

    def _bring(self, experts: Sequence[int]) -> int:
        done: list[StackMemory] = []
        num_bytes = 0
        try:
            for stack in self.stacks:
                num_bytes += stack.bring(experts) * stack.part_bytes
                done.append(stack)
        except BaseException:
            for stack in done:
                stack.drop(experts)
            raise
        return num_bytes

    def _drop(self, experts: Sequence[int]) -> None:
        for stack in self.stacks if experts else ():
            stack.drop(experts)

    def _note_peak(self) -> None:
        self.peak = max(self.peak, len(self._present()))

    def close(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            present, self.residents, self._holds = self._present(), set(), {}
            self._drop(sorted(present))


class ExpertStore:
    """The layers of a compiled graph and its clones."""

    # Bound here: a destructor may run after the globals of this module are gone.
    _is_ending = staticmethod(sys.is_finalizing)

    def __init__(self, layers: Mapping[int, LayerStore]) -> None:
        self.layers = dict(layers)
        self._users: WeakSet[Any] = WeakSet()
        self._lock = make_lock()

    def add_user(self, user: Any) -> None:
        """Take note of the residency of a graph whose experts these are."""
        with self._lock:
            self._users.add(user)

    def users(self) -> list[Any]:
        """The residencies of the graphs whose experts these are."""
        with self._lock:
            return list(self._users)

    def with_stacks(self, stacks: Mapping[int, Stacks]) -> ExpertStore:
        """One with the same residents, in these stacks."""
        return ExpertStore({n: layer.again(stacks[n]) for n, layer in self.layers.items()})

    def __del__(self) -> None:
        if self._is_ending():
            return
        for layer in getattr(self, "layers", {}).values():
            layer.close()

    # ------------------------------------------------------------ what is there

    @property
    def resident_bytes(self) -> int:
        """What all that is in memory takes: whole pages."""
        return sum(stack.held_bytes for stack in self._stacks())

    def mapped_bytes(self) -> int:
        """What the system says is in memory."""
        return sum(stack.mapped_bytes() for stack in self._stacks())

    def _stacks(self) -> list[StackMemory]:
        every = (stack for layer in self.layers.values() for stack in layer.stacks)
        return list({stack.id: stack for stack in every}.values())

    # ------------------------------------------------------------ masks

    def settle(self, masks: Mapping[int, Any]) -> dict[int, int]:
        """Let exactly these experts of these layers be resident; the bytes that came, by layer.

        Nothing changes if one of the masks does not fit.
        """
        chosen = self.chosen(masks)
        return {number: self.layers[number].settle(who) for number, who in chosen.items()}

    def chosen(self, masks: Mapping[int, Any]) -> dict[int, list[int]]:
        """Who these masks name, if they fit."""
        return {number: self._chosen(number, mask) for number, mask in masks.items()}

    def _chosen(self, number: int, mask: Any) -> list[int]:
        if number not in self.layers:
            known = ", ".join(map(str, self.layers))
            raise InputError("moe masks", f"must be for layers {known}, got {number!r}.")
        layer, given = self.layers[number], take_array("moe masks", "must be bools", mask)
        if given.dtype != np.bool_ or given.shape != (layer.num_experts,):
            raise InputError(
                "moe masks",
                f"layer {number} needs {layer.num_experts} bools, got "
                f"{given.dtype}{list(given.shape)}.",
            )
        found: list[int] = np.flatnonzero(given).tolist()
        if len(found) > layer.budget:
            raise InputError(
                "moe masks",
                f"at most {layer.budget} experts of layer {number} may be resident, got "
                f"{len(found)}.",
                hint="The budget is that of ExpertResidency.",
            )
        return found
