"""On which device each node is computed.

    Graph as written  --without_moved_weights-->  Graph as passes take it
    Graph behind passes  --settle-->  Graph in which every computed node is on one device
    ... --find_devices-->  the device of each node

An input or a state lies where it says, a move goes where it says, and everything else is computed
where its operands lie: two of them on different devices are an error. What depends on constants,
params and numbers alone is *at home anywhere*: it is computed on each device that wants it, and a
move of it says nothing but that. The plan's own device is that of all who say nothing.

Invariants: nobody looks across a move, wherever it goes, so that a graph has the same bits on any
devices: one that goes nowhere is a copy, too. Behind `settle` an edge between two devices is a
move, so that whatever shares a kernel by edges is on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from semel.errors import GraphError, UnsupportedError
from semel.ir.expr import LateVariable, variables
from semel.ir.graph import Graph, Node, Scope, attr_bodies, make_node, stands_for, topological
from semel.ir.lineage import note
from semel.ops.attrs import MoveAttrs
from semel.schedule.group import Group, Schedule

#: Whether bytes go from one device to another without a stop.
Reach: TypeAlias = Callable[[str, str], bool]
NOWHERE: Mapping[Node, str] = MappingProxyType({})
#: The device of each node; None: anywhere.
Homes: TypeAlias = "dict[Node, str | None]"


def is_spread(graph: Graph) -> bool:
    """Whether anything in a graph, or in a body in it, says where it is."""
    leaves = (*graph.inputs, *graph.states)
    if "move" in graph.ops or any(node.attrs.device for node in leaves):
        return True
    return graph.has_bodies and any(is_spread(body) for n in graph.nodes for body in _bodies(n))


def _bodies(node: Node) -> list[Graph]:
    return list(attr_bodies(node.attrs)) if node.op.has_bodies else []


def find_homes(graph: Graph, device: str | None, leaves: Mapping[Node, str] = NOWHERE) -> Homes:
    """Where each node is, as far as it or its operands say; `device` is the plan's own.

    `leaves` are where inputs and states are that say nothing themselves. Without a device, nobody
    is anywhere but where something says so.
    """
    found: Homes = {}
    for node in graph.nodes:
        found[node] = _home(node, found, device, leaves)
    return found


class NodeHomes:
    """The homes of nodes that are in no graph yet, each found when it is asked for.

    Who rewrites a graph asks for nodes over new operands.
    """

    def __init__(self, device: str, leaves: Mapping[Node, str] = NOWHERE) -> None:
        self._device, self._leaves = device, leaves
        self._found: Homes = {}

    def __call__(self, node: Node) -> str | None:
        """Where a node is; None: anywhere."""
        pending = [node]
        while pending:
            at = pending[-1]
            missing = [n for n in at.inputs if n not in self._found]
            if at in self._found or not missing:
                pending.pop()
                if at not in self._found:
                    self._found[at] = _home(at, self._found, self._device, self._leaves)
            else:
                pending += missing
        return self._found[node]


def _home(node: Node, found: Homes, device: str | None, leaves: Mapping[Node, str]) -> str | None:
    if node.op.moves:
        where: str = node.attrs.device
        return where
    if node.op.name in ("input", "state"):
        return node.attrs.device or leaves.get(node, device)
    return _home_of_operands(node, found)


def _home_of_operands(node: Node, found: Homes) -> str | None:
    homes: dict[str, Node] = {}
    for operand in node.inputs:
        home = found[operand]
        if home is not None:
            homes.setdefault(home, operand)
    if len(homes) > 1:
        (one, first), (other, second) = list(homes.items())[:2]
        where = f" ({node.origins[-1]})" if node.origins else ""
        raise GraphError(
            node.made_by or node.op.name,
            f"operands must lie on one device, got {first.type} on {one} and {second.type} on "
            f"{other}{where}.",
            hint=f'Move one of them: .to("{one}") or .to("{other}").',
            devices=(one, other),
        )
    return next(iter(homes), None)


# ---------------------------------------------------------------- as it was written


def check_devices(graph: Graph, device: str, computes: Callable[[str], bool]) -> None:
    """What is written must be possible: one device for each node, and for what is inside it.

    `computes` says whether a device does; others store.
    """
    homes = find_homes(graph, device)
    for node in graph.nodes:
        _check_computes(node, homes[node] or device, computes)
        _check_weights(node, homes, computes)
        if any(is_spread(body) for body in _bodies(node)):
            raise UnsupportedError(
                node.op.name,
                "all that is inside a loop or a branch is computed on its device, got a move "
                "inside.",
                hint="Move what goes in, and what comes out.",
            )
        home = homes[node]
        if home in (None, device):
            continue
        late = _late(node)
        if late:
            raise UnsupportedError(
                node.made_by or node.op.name,
                f"{node.type} has a size that a run finds out, which only the plan's own device "
                f"knows, {device}; got {home}.",
                hint="Move what has a fixed size, or prepare for that device.",
                device=home,
            )


def _check_computes(node: Node, home: str, computes: Callable[[str], bool]) -> None:
    """Leaves lie on any device, and moves go to any."""
    if node.op.kind == "leaf" or node.op.moves or computes(home):
        return
    where = f" ({node.origins[-1]})" if node.origins else ""
    raise GraphError(
        node.made_by or node.op.name,
        f"must be computed on a device that computes, {home} only stores{where}.",
        hint='Move what it is computed from: .to("cpu").',
        device=home,
    )


def _check_weights(node: Node, homes: Homes, computes: Callable[[str], bool]) -> None:
    """Weights lie on each device that computes with them: none of those is a store."""
    if node.op.moves and homes[node.inputs[0]] is None and not computes(node.attrs.device):
        raise UnsupportedError(
            node.made_by or node.op.name,
            f"constants and params must lie where they are computed with, {node.attrs.device} only "
            "stores.",
            hint=f'Make it an input: Tensor.input(name, shape, device="{node.attrs.device}").',
            device=node.attrs.device,
        )


def _late(node: Node) -> list[LateVariable]:
    dims = [*node.type.shape, *(d for n in node.inputs for d in n.type.shape)]
    found = [v for dim in dims for v in variables(dim) if isinstance(v, LateVariable)]
    return [*found, *node.rule.late]


def devices_named(graph: Graph) -> tuple[str, ...]:
    """The devices that nodes say they are on; all others are on one of these, or the plan's own."""
    moves = [node for node in graph.nodes if node.op.moves] if "move" in graph.ops else []
    said = (node.attrs.device for node in (*graph.inputs, *graph.states, *moves))
    return tuple(dict.fromkeys(device for device in said if device))


def output_devices(graph: Graph, device: str) -> tuple[str, ...]:
    """Where each output is wanted."""
    homes = find_homes(graph, device)
    return tuple(homes[node] or device for node in graph.outputs)


def without_moved_weights(graph: Graph) -> Graph:
    """The graph without moves of what is at home anywhere.

    Passes then see weights as weights, wherever they are read.
    """
    anywhere = _anywhere(graph)

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        return inputs[0] if node.op.moves and node in anywhere else _with_inputs(node, inputs)

    return _changed(graph, change)


def _anywhere(graph: Graph) -> set[Node]:
    """What depends on constants, params and numbers alone."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op.name not in ("input", "state") and found.issuperset(node.inputs):
            found.add(node)
    return found


def find_said(graph: Graph, device: str) -> Homes:
    """Where each node is as far as the graph says so; None: whoever chooses may say.

    A state that says nothing, and takes in what lies somewhere, is on the plan's own device.
    """
    said = find_homes(graph, None)
    updated = {_leaf_of(n) for n in graph.nodes if n.op.kind == "update" and said[n] is not None}
    held = {leaf: device for leaf in updated if leaf.op.name == "state" and said[leaf] is None}
    return find_homes(graph, None, held) if held else said


def with_joins(graph: Graph, device: str) -> Graph:
    """The graph in which what nobody has placed comes by a move to what somebody has."""
    said, anywhere = find_said(graph, device), _anywhere(graph)

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        home = said[node]
        if home is None or node.op.moves:
            return _with_inputs(node, inputs)
        there = [
            new
            if said[old] is not None or old in anywhere
            else make_node("move", (new,), MoveAttrs(home))
            for old, new in zip(node.inputs, inputs, strict=True)
        ]
        return _with_inputs(node, tuple(there))

    return _changed(graph, change)


def through_host(graph: Graph, device: str, host: str, reach: Reach) -> Graph:
    """The graph with moves by way of the host where one device does not reach the other."""
    homes = find_homes(graph, device)

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        before = homes[node.inputs[0]] if node.op.moves else None
        if before is not None and not reach(before, node.attrs.device):
            inputs = (make_node("move", inputs, MoveAttrs(host)),)
        return _with_inputs(node, inputs)

    return _changed(graph, change)


def _with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    return node if inputs == node.inputs else make_node(node.op.name, inputs, node.attrs)


def _changed(graph: Graph, change: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
    """The graph with each node as `change` makes it of its new operands."""
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new[node] = change(node, tuple([new[n] for n in node.inputs]))
        if new[node] is not node:
            stands_for(new[node], node)
    return _renewed(graph, [new[n] for n in graph.outputs], new)


def _renewed(graph: Graph, outputs: Sequence[Node], new: Mapping[Node, Node]) -> Graph:
    changed = {node: made for node, made in new.items() if made is not node}
    if not changed and tuple(outputs) == graph.outputs:
        return graph
    note(changed)
    declared = tuple(changed.get(n, n) for n in graph.declared)
    return replace(graph, outputs=tuple(outputs), declared=declared)


# ---------------------------------------------------------------- behind the passes


def settle(
    graph: Graph, device: str, wanted: Sequence[str], leaves: Mapping[Node, str] = NOWHERE
) -> Graph:
    """The graph with everything that is computed on one device.

    What is at home anywhere and wanted on several devices becomes one node for each, equal ones and
    yet not the same; the results of a loop or a branch are computed once, and moved. `wanted` are
    the devices of the outputs.
    """
    return _Settler(graph, wanted, find_homes(graph, device, leaves)).run()


class _Settler:
    def __init__(self, graph: Graph, wanted: Sequence[str], homes: Homes) -> None:
        self._graph, self._wanted = graph, tuple(wanted)
        self._homes = homes
        self._asked = self._find_asked()
        self._new: dict[tuple[Node, str], Node] = {}
        self._scopes: dict[str, Scope] = {}

    def _find_asked(self) -> dict[Node, dict[str, None]]:
        """The devices that want each node which is at home anywhere, users before operands."""
        asked: dict[Node, dict[str, None]] = {node: {} for node in self._graph.nodes}
        for node, where in zip(self._graph.outputs, self._wanted, strict=True):
            asked[node][where] = None
        for node in reversed(self._graph.nodes):
            home = self._homes[node]
            if home is not None:
                asked[node] = {home: None}
            for operand in node.inputs:
                asked[operand].update(asked[node])
        return asked

    def run(self) -> Graph:
        first: dict[Node, Node] = {}
        for node in self._graph.nodes:
            for number, where in enumerate(self._asked[node]):
                made = self._make(node, where, number)
                self._new[node, where] = made
                first.setdefault(node, made)
                if made is not node:
                    stands_for(made, node)
            first.setdefault(node, node)  # declared, and read by nobody
        outputs = [
            self._at(node, where)
            for node, where in zip(self._graph.outputs, self._wanted, strict=True)
        ]
        return _renewed(self._graph, outputs, first)

    def _at(self, node: Node, where: str) -> Node:
        """The node as those on a device have it."""
        home = self._homes[node]
        return self._new[node, where if home is None else home]

    def _make(self, node: Node, where: str, number: int) -> Node:
        if node.op.kind == "leaf":
            return node
        if node.op.moves and self._homes[node.inputs[0]] is None:
            return self._at(node.inputs[0], where)
        if node.op.has_bodies and number:
            first = self._new[node, next(iter(self._asked[node]))]
            return make_node("move", (first,), MoveAttrs(where))
        inputs = tuple([self._at(operand, where) for operand in node.inputs])
        if not number:
            return _with_inputs(node, inputs)
        with self._scopes.setdefault(where, Scope()):
            return make_node(node.op.name, inputs, node.attrs)


def find_devices(
    graph: Graph, device: str, wanted: Sequence[str], leaves: Mapping[Node, str] = NOWHERE
) -> dict[Node, str]:
    """The device of each node of a graph that is settled, of those not on the plan's own.

    Of a leaf that several read, that of one of them.
    """
    homes = find_homes(graph, device, leaves)
    for node, where in zip(graph.outputs, wanted, strict=True):
        homes[node] = homes[node] or where
    for node in reversed(graph.nodes):
        home = homes[node]
        for operand in node.inputs if home is not None and not node.op.moves else ():
            homes[operand] = homes[operand] or home
    return {node: home for node, home in homes.items() if home not in (None, device)}


def explain_homes(graph: Graph, homes: Homes) -> dict[Node, str]:
    """Why each node is where it is, as the graph says it."""
    found: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op.moves:
            line = f" ({node.origins[-1]})" if node.origins else ""
            found[node] = f"moved to {node.attrs.device}{line}"
        elif node.op.name in ("input", "state"):
            found[node] = f"{node.op.name} '{node.attrs.name}' is on {homes[node]}"
        else:
            of = next((n for n in node.inputs if homes[n] is not None), None)
            found[node] = "wanted there" if of is None else found[of]
    return found


# ---------------------------------------------------------------- groups on devices


@dataclass(frozen=True)
class SpreadGraph:
    """A graph with moves between groups; `wanted` are the devices of its outputs.

    `leaves` are those of inputs and states, and `groups` what each stored node was an output of.
    """

    graph: Graph
    wanted: tuple[str, ...]
    leaves: Mapping[Node, str]
    groups: Mapping[Node, Group]


def spread_groups(schedule: Schedule, devices: Mapping[Group, str], device: str) -> SpreadGraph:
    """The graph of a schedule with each group on its device.

    What a group reads from memory comes from where it is stored, by a move; what it computes on
    the way it computes where it is, so that the numbers are those of the schedule.
    """
    return _Spreader(schedule, devices, device).run()


def _leaf_of(node: Node) -> Node:
    """The state that an update is one of."""
    while node.op.kind == "update":
        node = node.inputs[0]
    return node


class _Spreader:
    def __init__(self, schedule: Schedule, devices: Mapping[Group, str], device: str) -> None:
        self._schedule, self._devices, self._device = schedule, devices, device
        self._order = {node: i for i, node in enumerate(schedule.graph.nodes)}
        self._stored: dict[Node, Node] = {}
        self._homes: dict[Node, str] = {}
        self._scopes: dict[str, Scope] = {}
        for leaf, group in self._leaves():
            where = device if group.root.op.moves else devices[group]
            self._homes.setdefault(leaf, leaf.attrs.device or where)

    def _leaves(self) -> Iterator[tuple[Node, Group]]:
        """Inputs and states with those who touch them, who is no move first."""
        groups = self._schedule.groups
        for group in sorted(groups, key=lambda group: group.root.op.moves):
            stored = [_leaf_of(node) for node in group.outputs]
            for leaf in (*stored, *group.reads):
                if leaf.op.name in ("input", "state"):
                    yield leaf, group

    def run(self) -> SpreadGraph:
        groups: dict[Node, Group] = {}
        leaves = dict(self._homes)
        for group in self._schedule.groups:
            where = self._devices[group]
            inside = self._computed(group.inside, where)
            for node in group.outputs:
                made = self._stored[node] = inside[node]
                self._homes[node] = where
                groups[made] = group
                stands_for(made, node)
        graph = self._schedule.graph
        made_graph = _renewed(graph, [self._stored[n] for n in graph.outputs], self._stored)
        return SpreadGraph(made_graph, tuple(self._homes[n] for n in graph.outputs), leaves, groups)

    def _computed(self, nodes: Iterable[Node], where: str) -> dict[Node, Node]:
        """Nodes made on a device, operands first."""
        found: dict[Node, Node] = {}
        for node in sorted(set(nodes), key=self._order.__getitem__):
            # A move that was written brings its operand from wherever that is.
            at = self._homes.get(node.inputs[0], where) if node.op.moves else where
            inputs = tuple([found[n] if n in found else self._read(n, at) for n in node.inputs])
            found[node] = self._make(node, inputs, where)
        return found

    def _read(self, node: Node, where: str) -> Node:
        """What a group on a device reads of a node that it does not compute."""
        home = self._homes.get(node)
        if home is None:
            if node.op.kind == "leaf":
                return node
            # An operand that nobody stores, since only its size is asked for.
            return self._computed(topological([node]), where)[node]
        made = self._stored.get(node, node)
        return made if home == where else make_node("move", (made,), MoveAttrs(where))

    def _make(self, node: Node, inputs: tuple[Node, ...], where: str) -> Node:
        if node.op.kind == "leaf":
            return node
        if where == self._device:
            return _with_inputs(node, inputs)
        with self._scopes.setdefault(where, Scope()):
            return make_node(node.op.name, inputs, node.attrs)
