"""Where to compute what nobody has placed: `prepare(devices="auto")`.

    Schedule x kernels, on one device  --choose_places-->  Placement: each group's device, and why

Three ways are tried on a model of the machine, and the cheapest that fits is taken:

* *alone*: all of it on the first device;
* *branches*: each group, in order, where it is done first: a wide graph takes less time;
* *stages*: the order cut into runs of groups, one for each device, so that the longest is short: a
  chain takes as long as ever, and the next run may begin when its first stage is over.

Groups are what is placed, since what lies between them is in memory anyhow: a copy more changes no
bit. What touches one state stays together. The model, and what it leaves out:
docs/decisions/0098-places-chosen.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from semel.errors import OutOfMemoryError
from semel.ir.expr import Dim, Variable, evaluate, upper_bound, variables
from semel.ir.graph import Node
from semel.lower.lowered import LoopRegion, Lowered, regions_around
from semel.ops.stored import WEIGHTS
from semel.runtime.allocator import align
from semel.runtime.optable import BYTES_PER_NS, FLOPS_PER_NS
from semel.schedule.group import Group, Schedule

#: What a variable is taken to be, if it may be more.
USUAL_SIZE = 256
#: A copy to another device: to be told of it on both sides, and then its bytes.
HOP_NS = 4000
LINK_BYTES_PER_NS = 8
#: A way must take less than this share of what one device takes.
WORTH = 0.8
#: Groups beyond which neighbours are placed together.
MOST_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class Place:
    """A device to choose from: how many cores it has, and how many bytes may lie there."""

    device: str
    cores: int = 1
    limit: int | None = None


@dataclass(frozen=True)
class Placement:
    """The device of each group, why it is there, and what was compared, for people."""

    devices: Mapping[Group, str]
    reasons: Mapping[Group, str]
    log: tuple[str, ...]


#: Where groups must be, and why.
Said: TypeAlias = Mapping[Group, tuple[Place, str]]
NOTHING_SAID: Said = MappingProxyType({})


def choose_places(
    schedule: Schedule,
    kernels: Sequence[Lowered],
    places: Sequence[Place],
    said: Said = NOTHING_SAID,
) -> Placement:
    """A device for each group of a schedule, whose kernels these are; `said` are not asked."""
    first = places[0].device
    if len(places) == 1 or schedule.graph.late:
        why = "there is one device" if len(places) == 1 else "a run finds sizes out"
        at = {g: said[g][0].device if g in said else first for g in schedule.groups}
        reasons = {group: reason for group, (_, reason) in said.items()}
        return Placement(at, reasons, (f"all on {first}{_but(said)}: {why}.",))
    model = _Model(schedule, kernels, places, said)
    alone = model.judge("alone", [unit.place or 0 for unit in model.units])
    branches = model.judge("branches", model.branches())
    stages = model.judge("stages", model.stages())
    chosen = _choose(alone, branches, stages)
    if chosen is None:
        raise model.refusal([alone, branches, stages])
    return model.placement(chosen, (alone, branches, stages))


@dataclass(frozen=True)
class _Way:
    """A device for each unit, by number, and what that costs.

    `span_ns` is how long one run takes, `loads_ns` what each device does in it: the longest is how
    often a run can begin. `bytes_held` are those of each device, `over` how many are too many.
    """

    name: str
    at: Sequence[int]
    span_ns: float
    loads_ns: Sequence[float]
    bytes_held: Sequence[int]
    over: int
    done_ns: Sequence[float]
    arrived: Sequence[int]

    @property
    def interval_ns(self) -> float:
        return max(self.loads_ns)


def _choose(alone: _Way, branches: _Way, stages: _Way) -> _Way | None:
    """The way to take; None if nothing fits."""
    if not branches.over and branches.span_ns <= WORTH * alone.span_ns:
        return branches
    if not stages.over and stages.interval_ns <= WORTH * alone.interval_ns:
        return stages
    if not alone.over:
        return alone
    fitting = [way for way in (stages, branches) if not way.over]
    return min(fitting, key=lambda way: way.interval_ns, default=None)


# ---------------------------------------------------------------- what is placed


@dataclass(eq=False)
class _Unit:
    """Groups that are placed together, as the model sees them.

    `reads` are the units whose values they read, with the bytes of those; `weights` and `io` the
    bytes of leaves and outputs. `place` is the number of where they must be.
    """

    groups: list[Group] = field(default_factory=list)
    work_ns: float = 0
    reads: dict[int, int] = field(default_factory=dict)
    weights: dict[Node, int] = field(default_factory=dict)
    io: dict[Node, int] = field(default_factory=dict)
    live_bytes: int = 0
    place: int | None = None


class _Model:
    def __init__(
        self,
        schedule: Schedule,
        kernels: Sequence[Lowered],
        places: Sequence[Place],
        said: Said = NOTHING_SAID,
    ) -> None:
        self._said, self._num_chosen = said, len(places)
        #: Those to choose from, and behind them others that the graph says something about.
        self.places = list(dict.fromkeys([*places, *(place for place, _ in said.values())]))
        self._graph = schedule.graph
        self._homes = {node: group for group in schedule.groups for node in group.outputs}
        blocks = _blocks(schedule, said)
        self._unit_of = {group: i for i, block in enumerate(blocks) for group in block}
        work = _works(schedule, kernels)
        live = self._live(schedule.groups)
        self.units = [self._unit(i, block, work, live) for i, block in enumerate(blocks)]

    def _unit(
        self,
        number: int,
        groups: Sequence[Group],
        work: Mapping[Group, float],
        live: Mapping[Group, int],
    ) -> _Unit:
        made = _Unit(list(groups), sum(work[group] for group in groups), place=self._pin(groups))
        outputs = set(self._graph.outputs)
        for group in groups:
            made.live_bytes = max(made.live_bytes, live[group])
            for node in group.reads:
                if node.op.kind == "leaf":
                    held = made.weights if node.op.name in WEIGHTS else made.io
                    held[node] = _bytes(node)
                elif (before := self._unit_of[self._homes[node]]) != number:
                    made.reads[before] = made.reads.get(before, 0) + _usual_bytes(node)
            made.io.update({node: _bytes(node) for node in group.outputs if node in outputs})
        return made

    def _pin(self, groups: Sequence[Group]) -> int | None:
        """Where groups must be. Those that are told nothing, and stay with a state, follow the
        others, if those are all in one place that computes, else they are on the first device."""
        told = {self._said[group][0] for group in groups if group in self._said}
        if not told:
            return None
        place = self.places.index(told.pop()) if len(told) == 1 else 0
        is_good = place < self._num_chosen or all(group in self._said for group in groups)
        return place if is_good else 0

    def _live(self, groups: Sequence[Group]) -> dict[Group, int]:
        """The bytes of values between groups that are alive while each of them runs."""
        position = {group: i for i, group in enumerate(groups)}
        last = {node: position[group] for node, group in self._homes.items()}
        for group in groups:
            for node in group.reads:
                if node in last:
                    last[node] = max(last[node], position[group])
        outputs = set(self._graph.outputs)
        change = [0] * (len(groups) + 1)
        for node, group in self._homes.items():
            if node not in outputs:
                size = align(_bytes(node))
                change[position[group]] += size
                change[last[node] + 1] -= size
        found, now = {}, 0
        for group in groups:
            now += change[position[group]]
            found[group] = now
        return found

    # ------------------------------------------------------------ ways

    def branches(self) -> list[int]:
        """Each unit where it is done first."""
        at: list[int] = []
        clock = _Clock(self)
        for i in range(len(self.units)):
            place = self.units[i].place
            free = range(self._num_chosen) if place is None else (place,)
            fitting = [k for k in free if clock.fits(i, k)]
            best = min(fitting or free, key=lambda k: (clock.done(i, k), k))
            clock.put(i, best)
            at.append(best)
        return at

    def stages(self) -> list[int]:
        """The order cut into as many runs as there are devices, the longest as short as it goes.

        Units that must be somewhere are where they must, and not counted.
        """
        free = [i for i, unit in enumerate(self.units) if unit.place is None]
        count, num = len(free), self._num_chosen
        cost = [self._costs(free[i:], i) for i in range(count)]
        best = [self._stage_cost(cost, 0, j, 0) for j in range(count + 1)]
        cuts: list[list[int]] = [[0] * (count + 1)]
        for k in range(1, num):
            now, chosen = list(best), list(range(count + 1))  # nothing is there
            for j in range(count + 1):
                for i in range(j):
                    found = max(best[i], self._stage_cost(cost, i, j, k))
                    if found < now[j]:
                        now[j], chosen[j] = found, i
            best = now
            cuts.append(chosen)
        at, end = [unit.place or 0 for unit in self.units], count
        for k in range(num - 1, 0, -1):
            start = cuts[k][end]
            for i in free[start:end]:
                at[i] = k
            end = start
        return at

    def _costs(self, free: Sequence[int], first: int) -> list[tuple[float, int]]:
        """Of units `first` to j of the free ones, for each j: their work with what comes in, and
        what they hold. `free` are those from `first` on."""
        found: list[tuple[float, int]] = [(0.0, 0)] * (first + 1)
        work, held, live, come = 0.0, 0, 0, set[int]()
        seen: set[Node] = set()
        for unit in (self.units[i] for i in free):
            work += unit.work_ns
            for before, size in unit.reads.items():
                is_apart = before < free[0] or self.units[before].place is not None
                if is_apart and before not in come:
                    come.add(before)
                    work += _copy_ns(size)
            for node, size in (*unit.weights.items(), *unit.io.items()):
                if node not in seen:
                    seen.add(node)
                    held += align(size) + 64
            live = max(live, unit.live_bytes)
            found.append((work, held + live))
        return found

    def _stage_cost(
        self, cost: Sequence[Sequence[tuple[float, int]]], i: int, j: int, k: int
    ) -> float:
        if i == j:
            return 0.0
        work, held = cost[i][j]
        place = self.places[k]
        is_over = place.limit is not None and held > place.limit
        return (1e18 + held if is_over else 0.0) + work / place.cores

    # ------------------------------------------------------------ what they cost

    def judge(self, name: str, at: Sequence[int]) -> _Way:
        """What a way costs."""
        clock = _Clock(self)
        for i, k in enumerate(at):
            clock.put(i, k)
        held = [clock.held(k) for k in range(len(self.places))]
        over = sum(
            max(held[k] - place.limit, 0)
            for k, place in enumerate(self.places)
            if place.limit is not None
        )
        return _Way(
            name, tuple(at), max(clock.ready, default=0.0), tuple(clock.loads), tuple(held), over,
            tuple(clock.ended), tuple(clock.arrived),
        )  # fmt: skip

    def refusal(self, ways: Sequence[_Way]) -> OutOfMemoryError:
        """That nothing fits, with the numbers of the way that comes closest."""
        way = min(ways, key=lambda way: way.over)
        limits = [(place, way.bytes_held[k]) for k, place in enumerate(self.places)]
        place, held = max(limits, key=lambda pair: pair[1] - (pair[0].limit or pair[1]))
        error = OutOfMemoryError(place.device, held, place.limit or 0)
        said = ", ".join(
            f"{p.device} {size:,}" + ("" if p.limit is None else f" of {p.limit:,}")
            for p, size in limits
        )
        total = sum(ways[0].bytes_held)
        error.seen_at(f"prepare: no split of {total:,} bytes fits, the closest has {said}")
        return error

    def placement(self, way: _Way, ways: Sequence[_Way]) -> Placement:
        told = self._said
        devices = {
            group: told[group][0].device if group in told else self.places[k].device
            for unit, k in zip(self.units, way.at, strict=True)
            for group in unit.groups
        }
        reasons = {
            group: told[group][1] if group in told else self._reason(way, i)
            for i, unit in enumerate(self.units)
            for group in unit.groups
        }
        return Placement(devices, reasons, tuple(self._log(way, ways)))

    def _reason(self, way: _Way, i: int) -> str:
        k = way.at[i]
        used = sorted({k for k, unit in zip(way.at, self.units, strict=True) if unit.place is None})
        if self.units[i].place is not None:
            return "stays with a state, and so with what the graph has placed"
        if way.name == "stages" and len(used) > 1:
            load = _time(way.loads_ns[k])
            return f"stage {used.index(k) + 1} of {len(used)}, {load} long"
        if way.name == "branches" and len(used) > 1:
            come = f", {way.arrived[i]:,} bytes come there" if way.arrived[i] else ""
            return f"done first there, {_time(way.done_ns[i])} into a run{come}"
        return "one device is as fast"

    def _log(self, way: _Way, ways: Sequence[_Way]) -> Iterable[str]:
        for each in ways:
            held = ", ".join(
                f"{place.device} {_time(load)} and {size:,} bytes"
                for place, load, size in zip(
                    self.places, each.loads_ns, each.bytes_held, strict=True
                )
            )
            over = f"; {each.over:,} bytes too many" if each.over else ""
            yield (
                f"{each.name}: a run takes {_time(each.span_ns)}, the next may begin after "
                f"{_time(each.interval_ns)} ({held}){over}."
            )
        yield f"taken: {way.name}{_but(self._said)}."


class _Clock:
    """Runs units one after the other on the model: when each device is ready, what lies there."""

    def __init__(self, model: _Model) -> None:
        self._model, count = model, len(model.places)
        self.ready, self.loads = [0.0] * count, [0.0] * count
        self.at: list[int] = []
        self.ended: list[float] = []
        self.arrived: list[int] = []
        self._leaves: list[dict[Node, int]] = [{} for _ in range(count)]
        self._live = [0] * count
        self._copied: dict[tuple[int, int], float] = {}

    def _comes(self, i: int, k: int) -> list[tuple[int, int]]:
        """What must come from other devices, and how many bytes."""
        reads = self._model.units[i].reads.items()
        return [(before, size) for before, size in reads if self.at[before] != k]

    def _start(self, i: int, k: int) -> float:
        unit, start = self._model.units[i], self.ready[k]
        for before in unit.reads:
            start = max(start, self._copied.get((before, k), self.ended[before]))
        for before, size in self._comes(i, k):
            if (before, k) not in self._copied:
                start = max(start, self.ended[before] + _copy_ns(size))
        return start

    def done(self, i: int, k: int) -> float:
        """When a unit would be done on a device."""
        place = self._model.places[k]
        return self._start(i, k) + self._model.units[i].work_ns / place.cores

    def put(self, i: int, k: int) -> None:
        """A unit runs there."""
        unit, end = self._model.units[i], self.done(i, k)
        new = [(b, size) for b, size in self._comes(i, k) if (b, k) not in self._copied]
        for before, size in new:
            self._copied[before, k] = self.ended[before] + _copy_ns(size)
            self.loads[k] += _copy_ns(size)
        self.arrived.append(sum(size for _, size in new))
        self.loads[k] += unit.work_ns / self._model.places[k].cores
        self.ready[k] = end
        self.at.append(k)
        self.ended.append(end)
        self._leaves[k].update(unit.weights | unit.io)
        self._live[k] = max(self._live[k], unit.live_bytes)

    def held(self, k: int, more: _Unit | None = None) -> int:
        """The bytes that lie on a device."""
        leaves, live = self._leaves[k], self._live[k]
        if more is not None:
            leaves, live = leaves | more.weights | more.io, max(live, more.live_bytes)
        return live + sum(align(size) + 64 for size in leaves.values())

    def fits(self, i: int, k: int) -> bool:
        limit = self._model.places[k].limit
        return limit is None or self.held(k, self._model.units[i]) <= limit


# ---------------------------------------------------------------- groups


def _but(said: Said) -> str:
    """What is where the graph says, for people."""
    return f", but for {len(said)} groups that the graph has placed" if said else ""


def _place(said: Said, group: Group) -> Place | None:
    return said[group][0] if group in said else None


def _blocks(schedule: Schedule, said: Said = NOTHING_SAID) -> list[list[Group]]:
    """Groups in order, those that touch one state with all that is between them.

    If there are very many, neighbours are taken together, if they must be in one place.
    """
    groups = schedule.groups
    versions = {node: rule.name for rule in schedule.states for node in rule.versions}
    versions |= {node: node.attrs.name for node in schedule.graph.states}
    states = [
        {versions[node] for node in (*group.reads, *group.outputs) if node in versions}
        for group in groups
    ]
    last = {name: i for i, names in enumerate(states) for name in names}
    made: list[list[Group]] = []
    until, size = -1, -(-len(groups) // MOST_BLOCKS)
    for i, group in enumerate(groups):
        is_alike = bool(made) and _place(said, made[-1][-1]) == _place(said, group)
        if i > until and (not is_alike or len(made[-1]) >= size):
            made.append([])
        made[-1].append(group)
        until = max([until, *(last[name] for name in states[i])])
    return made


def _works(schedule: Schedule, kernels: Sequence[Lowered]) -> dict[Group, float]:
    """Nanoseconds of each group on one core, as the runner estimates them, at usual sizes."""
    owners = {id(body.graph): group for group in schedule.groups for _, body in group.bodies}
    own = {node: group for group in schedule.groups for node in group.outputs}
    work = dict.fromkeys(schedule.groups, 0.0)
    for lowered in kernels:
        times, group = 1, lowered.group
        for region in regions_around(lowered.region):
            if isinstance(region, LoopRegion):
                times *= max(_usual(region.trip), 1)
            group = owners.get(id(region.body), group)
        found = (
            group
            if group in work
            else next(
                (own[arg] for arg in lowered.args if isinstance(arg, Node) and arg in own), None
            )
        )
        if found is not None:
            kernel = lowered.kernel
            flops, moved = _usual(kernel.flops), _usual(kernel.bytes)
            work[found] += times * max(flops / FLOPS_PER_NS, moved / BYTES_PER_NS)
    return work


def _usual(dim: Dim) -> int:
    """A size with variables at their usual values."""
    return evaluate(dim, {v.name: _usual_value(v) for v in variables(dim)})


def _usual_value(variable: Variable) -> int:
    most = USUAL_SIZE if variable.max is None else min(variable.max, USUAL_SIZE)
    return max(variable.min, most)


def _usual_bytes(node: Node) -> int:
    return _usual(node.type.num_bytes)


def _bytes(node: Node) -> int:
    """The most that a value takes, if that is known."""
    most = upper_bound(node.type.num_bytes)
    return _usual_bytes(node) if most is None else most


def _copy_ns(size: int) -> float:
    return HOP_NS + size / LINK_BYTES_PER_NS


def _time(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms" if ns >= 1e6 else f"{ns / 1e3:.1f} us"
