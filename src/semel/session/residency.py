"""Residency of experts as one compiled graph has it: what was asked for, and what runs found.

    compile(graph, experts=ExpertResidency(...))  -->  Residency: ExpertStore, stats of this graph

A row of the plan calls `call` once a layer's router has decided (`semel.plan.experts`). Layers
whose products are over by then are left, and the others when the run is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np

from semel.errors import InputError, SemelError, UnsupportedError
from semel.graph.routers import Router
from semel.ir.expr import evaluate, variables
from semel.ir.fields import take, take_int, take_path
from semel.plan.engine import Engine
from semel.plan.experts import BEGIN, END, EXPERTS, ExpertWeight, with_residency
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program
from semel.plan.readers import Reader
from semel.plan.rows import PreparedCustomFunction
from semel.runtime.buffer import Array, Buffer
from semel.runtime.device import find_device
from semel.runtime.lane import Lane, Ticket
from semel.runtime.stacks import StackFile, StackMemory
from semel.session.expert_store import Brought, ExpertStore, LayerStore, Stacks, room_of
from semel.session.experts import ExpertPool, Mask, Policy, take_array

R = TypeVar("R")
_WHERE = "ExpertResidency"
FEW_IDS = 64
_MOST_READERS = 64


@dataclass(frozen=True, slots=True)
class ExpertResidency:
    """How many experts are in memory, and who decides which.

    The budget is `budget` experts of each layer, or `budget_bytes` of all layers together, of which
    each has an equal share; without either, all may be resident. `policy`, `refresh`, `decay`,
    `hysteresis` and `profile` are those of `ExpertPool`, with one profile for all layers or one for
    each by its number; without a policy, nobody moves but by masks. Those that are not in memory
    are in a file without a name, or in that at `path`, which is found again if it holds the same.
    """

    budget_bytes: int | None = None  #: memory for the experts of all layers together
    budget: int | None = None  #: experts of each layer in memory
    policy: Policy | None = None  #: who decides which; None: masks alone
    refresh: int = 1  #: so many runs between two decisions
    decay: float = 0.5  #: how much of the past counts at the next decision
    hysteresis: float = 0.0  #: how much better a newcomer must be
    profile: Any = None  #: how often each was asked for, known before
    #: the file of those not in memory; None: one without a name
    path: str | os.PathLike[str] | None = None
    ahead: bool = True  #: experts begin to come in as soon as their router has decided

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
        path = None if self.path is None else str(take_path(_WHERE, self.path))
        if self.path == "":
            raise InputError(_WHERE, "path must name a file, got ''.")
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
    return take_array(_WHERE, "profile must be numbers", profile, np.float64).tolist()


def residency_for(
    where: str, device: str, asked: ExpertResidency, plan_file: StackFile | None = None
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
        names = {r.layer: r.ids for r in routers}
        profiled = asked.profile if isinstance(asked.profile, Mapping) else {}
        unknown = [layer for layer in profiled if layer not in names]
        if unknown:
            known = ", ".join(map(str, names))
            raise InputError(_WHERE, f"profile must be for layers {known}, got {unknown[0]}.")
        return with_residency(program, names, path, ahead=asked.ahead, plan_file=plan_file)

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


@dataclass(slots=True)
class _Visit:
    """What a layer was routed to; `ids` if its pool wants them, `coming` if they are on the way."""

    routed: Sequence[int]
    ids: Array | None
    tokens: int
    coming: Ticket[Brought] | None = None


class _View(NamedTuple):
    """Ids where they lie, good for one version of a plan's state."""

    version: int
    ids: Array
    tokens: int


class _Silent(NamedTuple):
    """Layers that runs go through without asking, good for one version of a plan's state."""

    version: int
    part: frozenset[int]
    layers: list[tuple[Array, int, ResidencyStats]]  #: ids, tokens, and who counts


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
        #: The layers that are not over.
        self._inside: dict[int, _Visit] = {}
        self._lane: Lane | None = None
        self._rows = _rows(plan)
        #: The layers that take part in runs for some outputs, by their names; None: all of them.
        self._parts: dict[tuple[str, ...] | None, frozenset[int]] = {None: frozenset(self._rows)}
        #: Layers that runs go through without asking, since all of their experts are there; and
        #: those that the run under way has found to be so.
        self._full: set[int] = set()
        self._found_full: set[int] = set()
        self._silent: _Silent | None = None
        #: The ids of layers whose number follows from variables that callers bind.
        self._views: dict[int, _View] = {}
        self._bound = {v.variable.name for v in plan.program.variables if v.next is None}
        self._readers: dict[tuple[Reader[Any], tuple[str, ...] | None], LeavingReader] = {}
        store.add_user(self)
        plan.engine.hold.alone(plan.engine.use_function, EXPERTS, self)

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
        self.give_up()
        made = Residency(plan, self._routers, self.asked, self.store.with_stacks(_stacks(plan)))
        made._stats = self._stats
        return made

    # ------------------------------------------------------------ runs

    def call(
        self,
        attrs: Any,
        buffers: Sequence[Buffer],
        version: int,
        values: Callable[[], Mapping[str, int]],
    ) -> None:
        """A router has decided: let those who are routed to be there."""
        number, inside = attrs["layer"], self._inside
        if attrs["part"] == END:
            self._arrive(number)
            return
        if inside:
            for other in attrs["over"]:
                self._leave(other)
            self._leave(number)  # of a run that came to no end
        view = self._views.get(number)
        if view is None or view.version != version:
            view = self._look(number, buffers[0], version, values())
        ids, layer = view.ids, self.store.layers[number]
        routed = _distinct(ids)
        visit = _Visit(routed, ids.copy() if layer.is_decided else None, view.tokens)
        if attrs["part"] == BEGIN and layer.lacks(routed):
            visit.coming = self._ahead().submit(partial(layer.enter, routed))
            inside[number] = visit
            return
        began = time.perf_counter()
        came = layer.enter(routed)
        inside[number] = visit
        self._count(number, visit, came, began)
        if not came.experts and layer.is_full:
            self._found_full.add(number)

    def _arrive(self, number: int) -> None:
        """The products of a layer are next: those who were called before must be there."""
        visit = self._inside.get(number)
        if visit is None or visit.coming is None:
            return
        began = time.perf_counter()
        coming, visit.coming = visit.coming, None
        try:
            came = coming.result()
        except BaseException:
            del self._inside[number]
            raise
        self._count(number, visit, came, began)

    def _count(self, number: int, visit: _Visit, came: Brought, began: float) -> None:
        stats = self._stats.get(number) or self._of(number)
        misses = came.experts
        stats.hits += len(visit.routed) - misses
        stats.tokens += visit.tokens
        if misses:
            stats.misses += misses
            stats.bytes_moved += came.num_bytes
            stats.seconds_waited += time.perf_counter() - began

    def _ahead(self) -> Lane:
        if self._lane is None:
            self._lane = Lane("experts")
        return self._lane

    def _look(self, number: int, where: Buffer, version: int, values: Mapping[str, Any]) -> _View:
        """Where the ids lie now, if the plan's variables or its memory have changed."""
        ids = where.array(tuple(evaluate(dim, values) for dim in where.type.shape))
        names = {v.name for dim in where.type.shape for v in variables(dim)}
        made = _View(version, ids, ids.size // self._k[number])
        if names <= self._bound:
            self._views[number] = made
        return made

    def give_up(self) -> None:
        """A run is over, well or not."""
        for number in list(self._inside):
            self._leave(number)
        for number in self._found_full:
            self._set_flag(number, True)
            self._silent = None
        self._full |= self._found_full
        self._found_full.clear()

    def end(self, version: int, part: frozenset[int]) -> None:
        """A run is over, and well: those of its layers that did not ask were there as a whole."""
        silent = self._silent
        if silent is None or silent.version != version or silent.part is not part:
            silent = self._listen(version, part)
        for ids, tokens, stats in silent.layers:
            stats.hits += len(_distinct(ids))
            stats.tokens += tokens
        if self._inside:
            self.give_up()

    def _listen(self, version: int, part: frozenset[int]) -> _Silent:
        """Where the ids of layers that do not ask lie now."""
        layers, is_kept = [], True
        for number in self._full & part:
            view = self._views.get(number)
            if view is None or view.version != version:
                where = self._plan.buffers[self._rows[number].buffer_indices[0]]
                view = self._look(number, where, version, self._plan.variables)
                is_kept = is_kept and number in self._views
            layers.append((view.ids, view.tokens, self._of(number)))
        made = _Silent(version, part, layers)
        self._silent = made if is_kept else None
        return made

    def ask_again(self) -> None:
        """Let the next run ask about all layers; no run is under way."""
        for number in self._full:
            self._set_flag(number, False)
        self._full.clear()
        self._silent = None

    def _set_flag(self, number: int, is_full: bool) -> None:
        flag = self._plan.buffers[self._rows[number].attrs["flag"]]
        flag.put(np.array([is_full]))

    def _leave(self, number: int) -> None:
        if number not in self._inside:
            return
        with suppress(SemelError):  # nobody came, who was called by a run that is over
            self._arrive(number)
        visit = self._inside.pop(number, None)
        if visit is not None:
            ids = None if visit.ids is None else visit.ids.reshape(-1, self._k[number])
            self.store.layers[number].leave(visit.routed, ids)

    def reader(self, reader: Reader[R], fetch: Iterable[str] | None = None) -> Reader[R]:
        """The reader, after which the run for these outputs, or all, is over.

        Always the same one, unless it is for one run.
        """
        names = None if fetch is None else tuple(fetch)
        known = self._readers.get((reader, names))
        if known is None:
            part = self._parts.get(names)
            if part is None:
                part = self._parts[names] = self._part(names or ())
            known = LeavingReader(reader, self, part)
            if not reader.is_for_one_run:
                if len(self._readers) >= _MOST_READERS:
                    self._readers.clear()
                self._readers[reader, names] = known
        return known

    def _part(self, names: Sequence[str]) -> frozenset[int]:
        """The layers whose rows a run for these outputs has: each is inside of a branch."""
        taken = set(self._plan.rows_for(names))
        outer = {id(at.row): at.around[0].position for at in self._plan.program.walk() if at.around}
        return frozenset(n for n, row in self._rows.items() if outer[id(row)] in taken)

    def take_weights(self) -> None:
        """Params were replaced: the same residents, in the stacks that the plan has now."""
        stacks = _stacks(self._plan)
        if any(stacks[n] != layer.stacks for n, layer in self.store.layers.items()):
            self.give_up()
            self.ask_again()
            self.store = self.store.with_stacks(stacks)
            self.store.add_user(self)

    # ------------------------------------------------------------ what callers ask

    def settle(self, masks: Mapping[int, Any]) -> None:
        """Let exactly these experts of these layers be resident, once no graph of the store runs.

        Runs do not ask about layers that are there as a whole, so they must be told.
        """
        store = self.store
        users = sorted(store.users(), key=id)
        with ExitStack() as held:
            for user in users:
                held.enter_context(user._plan.lock)
            came = store.settle(masks)
            for user in users:
                user.ask_again()
            for number, num_bytes in came.items():
                self._of(number).bytes_placed += num_bytes
        for user in store.users():  # clones that were made meanwhile
            if user not in users:
                with user._plan.lock:
                    user.ask_again()

    def forget_files(self) -> None:
        """Whoever has read all weights, to save them, has brought their files into memory."""
        for value in self._plan.program.values:
            if isinstance(value.weight, ExpertWeight) and value.weight.file is not None:
                value.weight.file.forget()

    def masks(self) -> dict[int, Mask]:
        """Who is resident, by layer."""
        return {number: layer.mask() for number, layer in self.store.layers.items()}

    def take_stats(self) -> dict[int, ResidencyStats] | None:
        """What runs found since this was last asked; None if there was none."""
        found, self._stats = self._stats, {}
        self._silent = None  # it counts for those
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
    for number, row in _rows(plan).items():
        own = [plan.buffers[i].memory for i in row.buffer_indices[row.attrs["ids"] :]]
        found[number] = tuple(m for m in own if isinstance(m, StackMemory))
    return found


def _rows(plan: ExecutionPlan) -> dict[int, PreparedCustomFunction]:
    """The row of each layer, by its number."""
    rows = (placed.row for placed in plan.program.walk())
    own = [r for r in rows if isinstance(r, PreparedCustomFunction) and r.kind == EXPERTS]
    return {row.attrs["layer"]: row for row in own if row.attrs["part"] != END}


def _distinct(ids: Array) -> Sequence[int]:
    """Each of the ids once."""
    if ids.size <= FEW_IDS:  # a set is faster than NumPy is
        return tuple(set(ids.tolist()))
    found: list[int] = np.bincount(ids).nonzero()[0].tolist()
    return found


def no_residency() -> UnsupportedError:
    """For who asks for it of a graph that has none."""
    return UnsupportedError(
        "experts",
        "all of them are in memory: the graph was compiled without residency.",
        hint="Session.compile(graph, experts=ExpertResidency(...)).",
    )


@dataclass(frozen=True, eq=False)
class LeavingReader(Reader[Any]):
    """Reads outputs as another does, and lets guests go."""

    reader: Reader[Any]
    residency: Residency
    part: frozenset[int]

    @property
    def is_for_one_run(self) -> bool:  # type: ignore[override]
        return self.reader.is_for_one_run

    def check(self, engine: Engine) -> None:
        self.reader.check(engine)

    def prepare(self, engine: Engine) -> Callable[[], Any]:
        read, end, state = self.reader.prepare(engine), self.residency.end, engine.state
        part = self.part

        def both() -> Any:
            end(state.version, part)
            return read()

        return both
