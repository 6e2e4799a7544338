"""Residency of experts as one compiled graph has it: what was asked for, and what runs found.

    compile(graph, experts=ExpertResidency(...))  -->  Residency: ExpertStore, stats of this graph

A row of the plan calls `enter` once a layer's router has decided (`semel.plan.experts`). Layers
whose products are over by then are left, and the others when the run is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_args

import numpy as np

from semel.errors import InputError, UnsupportedError
from semel.graph.routers import Router
from semel.ir.fields import take, take_int
from semel.plan.engine import Engine
from semel.plan.experts import EXPERTS, with_residency
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program
from semel.plan.readers import Reader
from semel.plan.rows import PreparedCustomFunction
from semel.runtime.buffer import Buffer
from semel.runtime.device import find_device
from semel.runtime.stacks import StackMemory
from semel.session.expert_store import ExpertStore, LayerStore, Stacks, room_of
from semel.session.experts import ExpertPool, Mask, Policy

R = TypeVar("R")
_WHERE = "ExpertResidency"


@dataclass(frozen=True, slots=True)
class ExpertResidency:
    """How many experts are in memory, and who decides which.

    The budget is `budget` experts of each layer, or `budget_bytes` of all layers together, of which
    each has an equal share; without either, all may be resident. `policy`, `refresh`, `decay`,
    `hysteresis` and `profile` are those of `ExpertPool`, with one profile for all layers or one for
    each by its number; without a policy, nobody moves but by masks. Those that are not in memory
    are in a file without a name, or in that at `path`, which is found again if it holds the same.
    """

    budget_bytes: int | None = None
    budget: int | None = None
    policy: Policy | None = None
    refresh: int = 1
    decay: float = 0.5
    hysteresis: float = 0.0
    profile: Any = None
    path: str | os.PathLike[str] | None = None
    ahead: bool = True

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget_bytes is not None:
            raise InputError(_WHERE, "needs a budget in experts or in bytes, got both.")
        for what in ("budget", "budget_bytes"):
            value = getattr(self, what)
            if value is not None and take_int(_WHERE, what, value) < 0:
                raise InputError(_WHERE, f"{what} must be at least 0, got {value}.")
        if self.policy is not None and self.policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise InputError(_WHERE, f"policy must be one of {known}, got {self.policy!r}.")
        take(_WHERE, "ahead", bool, self.ahead)
        path = None if self.path is None else os.fspath(self.path)
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "profile", _plain(self.profile))

    def as_record(self) -> dict[str, Any]:
        """Its fields, as JSON can hold them."""
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        if isinstance(self.profile, Mapping):
            record["profile"] = {str(layer): counts for layer, counts in self.profile.items()}
        return record

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> ExpertResidency:
        """From what `as_record` made."""
        profile = record["profile"]
        if isinstance(profile, Mapping):
            profile = {int(layer): counts for layer, counts in profile.items()}
        return ExpertResidency(**{**record, "profile": profile})

    def pool(self, number: int, num_experts: int, room: int, num_layers: int) -> ExpertPool:
        """That of a layer whose experts take `room` bytes each."""
        budget = num_experts if self.budget is None else self.budget
        if self.budget_bytes is not None:
            budget = self.budget_bytes // num_layers // room
        profile = self.profile.get(number) if isinstance(self.profile, Mapping) else self.profile
        return ExpertPool(
            num_experts,
            budget,
            policy=self.policy or "static",
            refresh=self.refresh,
            decay=self.decay,
            hysteresis=self.hysteresis,
            profile=profile,
        )


def _plain(profile: Any) -> Any:
    """A profile as numbers: a list, or one for each layer."""
    if profile is None:
        return None
    if isinstance(profile, Mapping):
        return {take_int(_WHERE, "layer", layer): _plain(one) for layer, one in profile.items()}
    return np.asarray(profile, np.float64).tolist()


def residency_for(
    where: str, device: str, asked: ExpertResidency
) -> Callable[[Program, Sequence[Router]], Program]:
    """What makes a program with its experts in a file of one that has them in memory."""
    take(where, "experts", ExpertResidency, asked)
    if not find_device(device).is_host:
        raise UnsupportedError(where, f"experts= needs a device of the host, got {device!r}.")

    def change(program: Program, routers: Sequence[Router]) -> Program:
        if not routers:
            raise UnsupportedError(
                where,
                "experts= needs a graph with a layer of experts, this one has none.",
                hint="Layers are found by their grouped_matmul; graph.moe(...) writes one.",
            )
        path = None if asked.path is None else os.fspath(asked.path)
        return with_residency(program, {r.layer: r.ids for r in routers}, path)

    return change


@dataclass(slots=True)
class ResidencyStats:
    """What runs found of one layer since it was last asked.

    Of the experts that were routed to, `hits` were in memory when their layer began and `misses`
    were not. `bytes_moved` are those of the misses and `seconds_waited` is the time that bringing
    them in took. `tokens` were routed. `bytes_placed` came in outside of runs, by masks.
    """

    hits: int = 0
    misses: int = 0
    tokens: int = 0
    bytes_moved: int = 0
    seconds_waited: float = 0.0
    bytes_placed: int = 0


class Residency:
    """The store of a compiled graph, and what its own runs found."""

    def __init__(
        self,
        plan: ExecutionPlan,
        routers: Sequence[Router],
        asked: ExpertResidency,
        store: ExpertStore,
    ) -> None:
        self._plan, self._routers, self.asked, self.store = plan, tuple(routers), asked, store
        self._k = {router.layer: router.k for router in routers}
        self._stats: dict[int, ResidencyStats] = {}
        #: What each layer that is not over was routed to: experts, and ids if its pool wants them.
        self._inside: dict[int, tuple[list[int], Any]] = {}
        plan.use_function(EXPERTS, self.enter, self.leave)

    @staticmethod
    def of(plan: ExecutionPlan, routers: Sequence[Router], asked: ExpertResidency) -> Residency:
        """For a plan whose program has its experts in a file; the first residents come in."""
        layers: dict[int, LayerStore] = {}
        stacks = _stacks(plan)
        for router in routers:
            own = stacks[router.layer]
            pool = asked.pool(router.layer, router.num_experts, room_of(own), len(routers))
            layers[router.layer] = LayerStore(
                router.layer, own, pool, is_decided=asked.policy is not None
            )
        for layer in layers.values():
            layer.settle(layer.pool.resident)
        return Residency(plan, routers, asked, ExpertStore(layers))

    def clone(self, plan: ExecutionPlan) -> Residency:
        """For a clone of the graph: the same store, and stats of its own."""
        return Residency(plan, self._routers, self.asked, self.store)

    def change(self, program: Program) -> Program:
        """A program of the same graph, with its experts in a file."""
        return residency_for("compile", program.device, self.asked)(program, self._routers)

    def moved_to(self, plan: ExecutionPlan) -> Residency:
        """For another plan of the same graph, in this one's place: the same residents and stats."""
        self.leave()
        made = Residency(plan, self._routers, self.asked, self.store.with_stacks(_stacks(plan)))
        made._stats = self._stats
        return made

    # ------------------------------------------------------------ runs

    def enter(self, attrs: Any, buffers: Sequence[Buffer], _: Any) -> None:
        """A router has decided: let those who are routed to be there."""
        number, inside = attrs["layer"], self._inside
        for other in attrs["over"] if inside else ():
            self._leave(other)
        self._leave(number)  # of a run that came to no end
        first = attrs["ids"]
        layer = self.store.layers[number]
        for buffer, stack in zip(buffers[first:], layer.stacks, strict=True):
            if buffer.memory is not stack:
                self.follow()
                layer = self.store.layers[number]
                break
        ids = buffers[0].array()
        routed: list[int] = np.bincount(ids).nonzero()[0].tolist()
        began = time.perf_counter()
        misses = layer.enter(routed)
        inside[number] = routed, ids.copy() if layer.is_decided else None
        stats = self._of(number)
        stats.hits += len(routed) - misses
        stats.tokens += ids.size // self._k[number]
        if misses:
            stats.misses += misses
            stats.bytes_moved += misses * layer.expert_bytes
            stats.seconds_waited += time.perf_counter() - began

    def leave(self) -> None:
        """A run is over, well or not."""
        for number in list(self._inside):
            self._leave(number)

    def _leave(self, number: int) -> None:
        found = self._inside.pop(number, None)
        if found is not None:
            routed, ids = found
            layer = self.store.layers[number]
            layer.leave(routed, None if ids is None else ids.reshape(-1, self._k[number]))

    def reader(self, reader: Reader[R]) -> Reader[R]:
        """The reader, after which the run is over."""
        return LeavingReader(reader, self)

    def follow(self) -> None:
        """Params were replaced: the same residents, in the stacks that the plan has now."""
        stacks = _stacks(self._plan)
        if any(stacks[n] != layer.stacks for n, layer in self.store.layers.items()):
            self.leave()
            self.store = self.store.with_stacks(stacks)

    # ------------------------------------------------------------ what callers ask

    def settle(self, masks: Mapping[int, Any]) -> None:
        """Let exactly these experts of these layers be resident."""
        for number, came in self.store.settle(masks).items():
            self._of(number).bytes_placed += came * self.store.layers[number].expert_bytes

    def masks(self) -> dict[int, Mask]:
        """Who is resident, by layer."""
        return {number: layer.mask() for number, layer in self.store.layers.items()}

    def take_stats(self) -> dict[int, ResidencyStats] | None:
        """What runs found since this was last asked; None if there was none."""
        found, self._stats = self._stats, {}
        if not found:
            return None
        return {number: found.get(number, ResidencyStats()) for number in self.store.layers}

    def _of(self, number: int) -> ResidencyStats:
        found = self._stats.get(number)
        if found is None:
            found = self._stats[number] = ResidencyStats()
        return found


def _stacks(plan: ExecutionPlan) -> dict[int, Stacks]:
    """The memory of each layer's stacks, by its number."""
    found: dict[int, Stacks] = {}
    for row in plan.prepared_ops:
        if isinstance(row, PreparedCustomFunction) and row.kind == EXPERTS:
            own = [plan.buffers[i].memory for i in row.buffer_indices[row.attrs["ids"] :]]
            found[row.attrs["layer"]] = tuple(m for m in own if isinstance(m, StackMemory))
    return found


def no_residency() -> UnsupportedError:
    """For who asks for it of a graph that has none."""
    return UnsupportedError(
        "experts",
        "all of them are in memory: the graph was compiled without residency.",
        hint="Session.compile(graph, experts=ExpertResidency(...)).",
    )


@dataclass(frozen=True)
class LeavingReader(Reader[Any]):
    """Reads outputs as another does, and lets guests go."""

    reader: Reader[Any]
    residency: Residency

    @property
    def is_for_one_run(self) -> bool:  # type: ignore[override]
        return self.reader.is_for_one_run

    def check(self, engine: Engine) -> None:
        self.reader.check(engine)

    def prepare(self, engine: Engine) -> Callable[[], Any]:
        read, leave = self.reader.prepare(engine), self.residency.leave

        def both() -> Any:
            leave()
            return read()

        return both
