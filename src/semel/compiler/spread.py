"""A graph over several devices, on its way through the stages.

    prepare(device=, devices=)  --take_devices-->  DeviceChoice
    Graph x DeviceChoice  --open_spread-->  Spread, or None: all of it is on one device

What the graph says about devices comes first (`schedule.devices`); of what says nothing
`compiler.placement` chooses, if it was asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semel.compiler.placement import Place, Placement, choose_places
from semel.compiler.targets import Targets
from semel.devices import find_backend
from semel.errors import GraphError, PlanError, UnsupportedError
from semel.ir.fields import MemoryLimit
from semel.ir.graph import Graph, Node
from semel.ir.target import Target
from semel.lower.lowered import Lowered
from semel.ops.filled import spread_numbers
from semel.runtime.device import check_device, choose_device, find_device
from semel.runtime.free import HOST_DEVICE
from semel.runtime.registry import DeviceRegistry
from semel.runtime.spec import DeviceSpec
from semel.schedule.devices import (
    NOWHERE,
    NodeHomes,
    SpreadGraph,
    check_devices,
    devices_named,
    explain_homes,
    find_devices,
    find_homes,
    find_said,
    is_spread,
    output_devices,
    settle,
    spread_groups,
    through_host,
    with_joins,
    without_moved_weights,
)
from semel.schedule.group import Group, Schedule

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The plan's own device; those that it may use, if they are named; those to choose from."""

    device: str = HOST_DEVICE
    allowed: tuple[str, ...] = ()
    auto: tuple[Place, ...] = ()


def take_devices(device: Any, devices: Any, memory_limit: MemoryLimit) -> DeviceChoice:
    """What `prepare(device=..., devices=...)` says."""
    own = None if device is None else check_device("prepare", device)
    limits = memory_limit if isinstance(memory_limit, Mapping) else {}
    for each in limits:
        find_device(each)  # a limit of what is not there would hold for nothing
    if devices is None:
        return DeviceChoice(own or choose_device("prepare", None))
    if isinstance(devices, str) and devices == AUTO:
        names = _parts_of(own or HOST_DEVICE)
        places = tuple(
            Place(name, find_device(name).default_threads(), limits.get(name)) for name in names
        )
        return DeviceChoice(names[0], (), places)
    if isinstance(devices, (str, DeviceSpec)) or not isinstance(devices, Iterable):
        raise PlanError("prepare", f"devices must be several, or 'auto', got {devices!r}.")
    named = tuple(dict.fromkeys(check_device("prepare", each) for each in devices))
    if not named or (own is not None and own not in named):
        what = "at least one" if not named else f"{own} among them, the plan's own"
        raise PlanError("prepare", f"devices must have {what}, got {devices!r}.")
    for each in named:
        find_device(each)
    stray = [each for each in limits if each not in named]
    if stray:
        raise PlanError(
            "prepare",
            f"memory_limit must be of devices that may be used, {', '.join(named)}, got "
            f"{', '.join(stray)}.",
        )
    return DeviceChoice(own or named[0], named)


def _parts_of(device: str) -> tuple[str, ...]:
    """The parts of a whole, that which is named first; a device that has none is alone."""
    spec = DeviceSpec.parse(device)
    parts = [each for each in DeviceRegistry().devices(spec.kind) if each.index is not None]
    first = [device] if spec.index is not None or not parts else []
    return tuple(dict.fromkeys([*first, *map(str, parts)]))


def check_allowed(graph: Graph, choice: DeviceChoice) -> None:
    """What a graph says about devices must be among those that it may use."""
    if not choice.allowed or not is_spread(graph):
        return
    for node, home in find_homes(graph, choice.device).items():
        if home is not None and home not in choice.allowed:
            where = f" ({node.origins[-1]})" if node.origins else ""
            raise GraphError(
                "prepare",
                f"devices must have {home}, where {node.type} is{where}; got "
                f"{', '.join(choice.allowed)}.",
                device=home,
            )


def open_spread(graph: Graph, device: str, auto: Sequence[Place]) -> Spread | None:
    """The devices of a graph as it is written; None if there is one only."""
    is_open = len(auto) > 1
    return Spread(graph, device, auto if is_open else ()) if is_open or is_spread(graph) else None


class Spread:
    """Where the nodes of a graph are, while stages make it another."""

    def __init__(self, graph: Graph, device: str, auto: Sequence[Place]) -> None:
        self._device, self._auto = device, auto
        graph = self._joined(graph)
        check_devices(graph, device, lambda each: find_backend(each).computes)
        #: All devices that it names.
        self.devices = devices_named(graph)
        for place in auto:
            _check_target(device, place.device)
        self._wanted = output_devices(graph, device)
        self._leaves: Mapping[Node, str] = NOWHERE
        self._reasons: Mapping[Node, str] = {}
        self.log: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether somebody must choose yet."""
        return bool(self._auto)

    def simple(self, graph: Graph) -> Graph:
        """As passes take it: weights are weights, and every way is one that there is."""
        simple = without_moved_weights(self._joined(graph))
        return through_host(simple, self._device, HOST_DEVICE, _reaches)

    def _joined(self, graph: Graph) -> Graph:
        return with_joins(graph, self._device) if self._auto else graph

    def settled(self, graph: Graph) -> Graph:
        """As the scheduler takes it: all that is computed is on one device."""
        # As the scheduler would: equal nodes that it made again would be one on two devices.
        graph = spread_numbers(graph)
        return settle(graph, self._device, self._wanted, self._leaves)

    def chosen(self, schedule: Schedule, kernels: Sequence[Lowered]) -> Graph:
        """The same with each group of a schedule where it says, or where it is best computed."""
        found = choose_places(schedule, kernels, self._auto, self._said(schedule))
        spread = spread_groups(schedule, found.devices, self._device)
        self._wanted, self._leaves = spread.wanted, spread.leaves
        self._reasons, self.log = _reasons(spread, found), found.log
        return self.settled(spread.graph)

    def _said(self, schedule: Schedule) -> dict[Group, tuple[Place, str]]:
        """The groups that the graph has placed: where, and how it says so."""
        graph = schedule.graph
        said = find_said(graph, self._device)
        why, known = explain_homes(graph, said), {place.device: place for place in self._auto}
        found: dict[Group, tuple[Place, str]] = {}
        for group in schedule.groups:
            node = next((n for n in (*group.outputs, *group.inside) if said[n] is not None), None)
            if node is not None:
                home = str(said[node])
                place = known.get(home) or Place(home, find_device(home).default_threads())
                found[group] = known.setdefault(home, place), why[node]
        return found

    def where(self, targets: Targets, target: Target) -> Callable[[Node], bool]:
        """Which nodes that passes ask about are computed on a target."""
        home = NodeHomes(self._device, self._leaves)
        return lambda node: targets.of(home(node) or "") == target

    def find(self, graph: Graph) -> Mapping[Node, str]:
        """The devices of nodes that are not on the plan's own."""
        return find_devices(graph, self._device, self._wanted, self._leaves)

    def reasons(self, graph: Graph) -> Mapping[Node, str]:
        """Why nodes are where they are, for people."""
        return self._reasons or explain_homes(graph, find_homes(graph, self._device))


def _reasons(spread: SpreadGraph, found: Placement) -> dict[Node, str]:
    return {
        node: found.reasons[group]
        for node, group in spread.groups.items()
        if group in found.reasons
    }


def _check_target(device: str, other: str) -> None:
    """Weights are laid out for a target before devices are chosen from."""
    one, two = find_backend(device).target(), find_backend(other).target()
    if one != two:
        raise UnsupportedError(
            "prepare",
            f"devices that are chosen from must have one target, got {one.name} of {device} and "
            f"{two.name} of {other}.",
            hint=f'Say what is computed there: .to("{other}").',
            device=other,
        )


def _reaches(one: str, other: str) -> bool:
    """Whether a copy goes from device to device without a stop in the host's memory."""
    return one == other or find_device(one).is_host or find_device(other).is_host
