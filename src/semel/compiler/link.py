"""Schedule, kernels and machine code to a Program.

    Schedule, list[Compiled] --link_program--> Program

Every materialised node becomes a value with a lifetime in execution steps; every
kernel call becomes a row that names values by number. Memory is not planned here:
`plan.instantiate` does that, because it must be able to do it again when a
variable outgrows its capacity.

One idea: every row and value of a program is made from one schedule, and its parts share the maps
from nodes to values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeAlias

from semel.compiler.artefacts import Compiled
from semel.compiler.experts import find_experts
from semel.compiler.recipes import Made, leaves_of
from semel.errors import GraphError
from semel.ir.expr import Dim, LateVariable, Variable, is_nonnegative, substitute, variables
from semel.ir.graph import Graph, Node
from semel.ir.types import Shape, TensorType
from semel.lower import template_name
from semel.lower.lowered import (
    Argument,
    Arm,
    Branch,
    Elsewhere,
    LoopRegion,
    Lowered,
    OtherHalf,
    Region,
    Slot,
    regions_around,
)
from semel.lower.states import state_homes
from semel.ops.attrs import UpdateRowsAttrs, step_name
from semel.ops.state import fills_frame, has_places, written_shape
from semel.ops.stored import WEIGHTS as STORED
from semel.ops.stored import reads_params
from semel.plan.params import without_spare_data
from semel.plan.program import (
    PlanIO,
    PlanVariable,
    Program,
    ProgramState,
    ProgramValue,
    StateRows,
)
from semel.plan.row import COMPUTE, COPY, KernelNotes, RuntimeVar
from semel.plan.rows import (
    PreparedBranch,
    PreparedCopy,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    PreparedRebind,
)
from semel.plan.tree import num_rows, walk
from semel.plan.weights import Param, Recipe, Weight, weight_store
from semel.runtime.device import find_device
from semel.runtime.kernel import CachedKernel
from semel.schedule.group import Schedule
from semel.schedule.names import kernel_name

Guard: TypeAlias = tuple[Dim, str]
#: Counters of loops and late variables, as kernels name them and as the program does.
Names: TypeAlias = Mapping[Variable, Variable]


def link_program(
    asked: Graph,
    schedule: Schedule,
    calls: Sequence[Compiled],
    seconds: Mapping[str, float],
    keep: Mapping[str, Node],
    device: str,
    weights: WeightsGiven,
    where: LinkedDevices | None = None,
) -> Program:
    """Number values and kernels and write down who calls what with what.

    `asked` is the graph as it was written: its inputs are the program's, used or not. Nodes in
    `keep` are inputs or outputs of it; an output of that name is the program's in this way only.
    `where` says what is not on the plan's `device`.
    """
    where = where or LinkedDevices({}, {})
    graph = schedule.graph
    homes = state_homes(schedule.states)
    calls = [(_on_device(lowered), native) for lowered, native in calls]
    kernels = [lowered for lowered, _ in calls]
    order = _values(asked, kernels, homes)
    number = {node: i for i, node in enumerate(order)}
    number |= {version: number[home] for version, home in homes.items()}
    own = _variables(asked, graph.guards)
    lies = _devices(order, kernels, device, where.devices)
    made = _Rows(schedule, number, device, {v.variable.name for v in own}, lies, where.reasons)
    rows = made.make(calls)
    known = made.names_in[None]
    spans = _lifetimes(rows, [made.body_of.get(_owner(value)) for value in order])
    results = _Results(asked, graph)
    outputs = tuple(
        PlanIO(name, number[n], _plain(n.type, known), part=_written_part(n))
        for name, n in graph.results
        if name not in keep
    )
    placed = _Weights(asked, weights, number)
    return Program(
        values=tuple(
            _value(
                value,
                spans.get(i, (0, 0)),
                results,
                made.names_in[_scope(value)],
                placed,
                "" if lies[value] == device else lies[value],
            )
            for i, value in enumerate(order)
        ),
        rows=rows,
        inputs=tuple(_input(n, number[n]) for n in asked.inputs),
        outputs=outputs,
        results=tuple(io.index for io in outputs),
        kept=tuple((name, number[results.made.get(n, n)]) for name, n in keep.items()),
        guards=tuple((substitute(expr, known), text) for expr, text in graph.guards),
        variables=tuple(_with_next(v, known) for v in own),
        log=schedule.log,
        stage_seconds=dict(seconds),
        compile_count=1,
        device=device,
        states=_states(asked, schedule, number, known),
        params=placed.params,
        recipes=placed.recipes,
        experts=find_experts(graph, kernels, number),
        placement=where.log,
    )


def _input(leaf: Node, index: int) -> PlanIO:
    default = leaf.attrs.default
    data = None if default is None else weight_store.of_storage(default)
    return PlanIO(leaf.attrs.name, index, leaf.type, data, leaf.attrs.part)


@dataclass(frozen=True, slots=True)
class LinkedDevices:
    """The devices of nodes that are not on the plan's own, why they are there, what was chosen."""

    devices: Mapping[Node, str]
    reasons: Mapping[Node, str]
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightsGiven:
    """What was made of stored leaves, and whether the data of params is held as it was given."""

    made: Mapping[Node, Made]
    keep_params: bool = False


class _Weights:
    """Params, the recipes of values that follow from them, and the weight of each leaf."""

    def __init__(self, asked: Graph, given: WeightsGiven, number: Mapping[Argument, int]) -> None:
        self._made = given.made
        nodes = list(dict.fromkeys(leaves_of(asked, "param")))
        self._param = {node: i for i, node in enumerate(nodes)}
        self.recipes = tuple(
            self._recipe(node, value)
            for argument, value in number.items()
            if (node := _leaf(argument)) is not None and self.place(node) == "param"
        )
        params = tuple(_param(node, given.keep_params) for node in self._param)
        self.params = without_spare_data(params, self.recipes)

    def place(self, leaf: Node) -> str | None:
        """Where a leaf lies, if it is a weight."""
        if leaf.op.name == "stored":
            return "param" if reads_params(leaf) else "constant"
        return leaf.op.name if leaf.op.name in ("constant", "param") else None

    def weight(self, leaf: Node) -> Weight | None:
        """The data of a leaf, if it is a weight."""
        if leaf.op.name == "stored":
            return self._made[leaf].weight
        return None if self.place(leaf) is None else weight_store.of_storage(leaf.attrs.storage)

    def _recipe(self, leaf: Node, value: int) -> Recipe:
        if leaf.op.name == "param":
            return Recipe(value, (self._param[leaf],))
        made = self._made[leaf]
        sources = tuple(self._source(node) for node in made.sources)
        return Recipe(value, sources, made.formula, made.sizes)

    def _source(self, leaf: Node) -> int | Weight:
        known = self._param.get(leaf)
        return weight_store.of_storage(leaf.attrs.storage) if known is None else known


def _param(node: Node, is_kept: bool) -> Param:
    storage = node.attrs.storage
    raw = None if storage.is_missing else weight_store.of_storage(storage)
    return Param(node.attrs.name, node.type, 0, storage.id, raw, is_kept, storage.is_missing)


def check_params(graph: Graph) -> None:
    """Names tell params apart."""
    known: dict[str, Node] = {}
    for node in leaves_of(graph, "param"):
        if known.setdefault(node.attrs.name, node) is not node:
            raise GraphError(
                "prepare",
                f"two params are named '{node.attrs.name}': {known[node.attrs.name].type} and "
                f"{node.type}.",
                hint="Use one Tensor.param everywhere, or give them names of their own.",
            )


def _variables(graph: Graph, guards: tuple[tuple[Dim, str], ...]) -> tuple[PlanVariable, ...]:
    """Those that a plan must be given, and those that go on by themselves, from 0.

    Where only the part of an input that is read says how large something is, that is all of it,
    until somebody says otherwise.
    """
    first: dict[Variable, int | None] = {
        v: v.max for n in graph.inputs for size in n.attrs.part for v in variables(size)
    }
    for told in (v for n in graph.inputs for size in n.type.shape for v in variables(size)):
        first.pop(told, None)
    following = {held.variable: held.next for held in graph.held}
    first |= dict.fromkeys(following, 0)
    return tuple(
        PlanVariable(v, first.get(v), next=following.get(v)) for v in all_variables(graph, guards)
    )


def _written_part(node: Node) -> Shape:
    """How much of an output a run writes, if not all of it."""
    return written_shape(node) if fills_frame(node) else ()


def _with_next(variable: PlanVariable, known: Names) -> PlanVariable:
    """A held variable may go on by a late number, which the program has another name for."""
    following = variable.next
    return variable if following is None else replace(variable, next=substitute(following, known))


def _states(
    asked: Graph, schedule: Schedule, number: Mapping[Argument, int], known: Names
) -> tuple[ProgramState, ...]:
    """All states of the graph, updated or not, in the order in which they were declared."""
    rules = {rule.name: rule for rule in schedule.states}
    held = {each.variable for each in asked.held}
    found: list[ProgramState] = []
    for leaf in asked.states:
        rule = rules.get(leaf.attrs.name)
        if rule is None:
            found.append(ProgramState(leaf.attrs.name, number[leaf]))
            continue
        updates = rule.versions[1:]
        axis, cursor = find_cursor(updates, held)
        placed = [update.attrs for update in updates if has_places(update)]
        begin = [u.attrs.starts[axis] for u in updates if axis is not None and not has_places(u)]
        is_behind = cursor is not None and all(is_nonnegative(s - cursor) for s in begin)
        found.append(
            ProgramState(
                leaf.attrs.name,
                number[leaf],
                number[OtherHalf(leaf)] if rule.is_double else None,
                axis,
                None if cursor is None else cursor.name,
                is_behind or len(placed) == len(updates),
                rule.why.sentence,
                _rows(placed[0], known) if placed else None,
            )
        )
    return tuple(found)


def _rows(attrs: UpdateRowsAttrs, known: Names) -> StateRows:
    grows = substitute(attrs.grows, known)
    return StateRows(attrs.axis, attrs.lengths, grows, attrs.counts, attrs.table, attrs.block_rows)


def find_cursor(
    updates: Sequence[Node], held: Collection[Variable]
) -> tuple[int | None, Variable | None]:
    """The axis along which updates begin at a held variable, and which."""
    for update in updates:
        for axis, start in enumerate(() if has_places(update) else update.attrs.starts):
            if isinstance(start, Variable) and start in held:
                return axis, start
    return None, None


def _plain(kind: TensorType, known: Names) -> TensorType:
    """The type as programs have it: which variables are late is for their rows to say."""
    if not known:
        return kind
    return TensorType(tuple(substitute(d, known) for d in kind.shape), kind.dtype)


@dataclass(slots=True)
class _List:
    """What is known in a list of rows: `told` are late variables that have no value yet, and by
    which value each is told; `guards` are to be checked once nothing in them is `unknown`."""

    guards: list[Guard] = field(default_factory=list)
    unknown: set[Variable] = field(default_factory=set)
    told: dict[LateVariable, int] = field(default_factory=dict)

    def take_guards(self, known: Iterable[Variable]) -> tuple[Guard, ...]:
        """Those that can be checked when these are known too."""
        self.unknown.difference_update(known)
        now = [g for g in self.guards if not self.unknown.intersection(variables(g[0]))]
        self.guards = [g for g in self.guards if g not in now]
        return tuple(now)


class _Rows:
    """Kernel calls as rows; those of a region are a body of a loop or a branch.

    Late variables get their values before the first row that needs one: all that can be told
    by then, in one rebind. What a body demands is checked by a rebind too, its first row.
    """

    def __init__(
        self,
        schedule: Schedule,
        number: Mapping[Argument, int],
        device: str,
        taken: set[str],
        lies: Mapping[Argument, str],
        reasons: Mapping[Node, str],
    ) -> None:
        self._number, self._place, self._device = number, _numbers(schedule), device
        self._lies, self._reasons = lies, reasons
        self._position = self._num_loops = 0
        self._graph = schedule.graph
        self._here = _List()
        taken |= set(schedule.graph.names[len(schedule.graph.late) :])
        self._free_names = (n for k in itertools.count() if (n := f"late{k}") not in taken)
        #: The position of the row that each region is a body of, and of which.
        self.body_of: dict[Region | None, tuple[int, int]] = {}
        #: How the program calls the variables of kernels, by region.
        self.names_in: dict[Region | None, Names] = {}

    def make(self, calls: Sequence[Compiled]) -> tuple[PreparedOp, ...]:
        """The rows of all kernels, in order."""
        names = self.names_in[None] = self._named(self._graph.late, {})
        return (*self._rows(calls, None, names), *self._rebind(names))

    def _named(self, late: Iterable[LateVariable], names: Names) -> Names:
        """Names of the program for late variables; others of the same name are out of sight."""
        own: dict[Variable, Variable] = {
            v: Variable(name, v.min, v.max) for v, name in zip(late, self._free_names, strict=False)
        }
        return {**names, **own} if own else names

    def _body(self, calls: Sequence[Compiled], region: Region, names: Names) -> list[PreparedOp]:
        """The rows of a body: what it demands is checked first."""
        graph, around = region.body, self._here
        assert graph is not None
        names = self.names_in[region] = self._named(graph.late, names)
        guards = [
            (substitute(a, names), _said(text, graph.late, names)) for a, text in graph.guards
        ]
        self._here = _List(guards, {names[v] for v in graph.late})
        rows: list[PreparedOp] = []
        if first := self._here.take_guards(()):
            where = calls[0][0].device
            rows.append(PreparedRebind(self._take_position(), (), (), guards=first, device=where))
        rows += self._rows(calls, region, names)
        rows += self._rebind(names) if self._here.guards else []
        self._here = around
        return rows

    def _rows(
        self, calls: Sequence[Compiled], around: Region | None, names: Names
    ) -> list[PreparedOp]:
        """The rows of calls in `around`; `names` are those of the variables around them."""
        rows: list[PreparedOp] = []
        for inner, several in groupby(calls, key=lambda call: _row_below(call[0].region, around)):
            inside = list(several)
            match inner:
                case None:
                    for call in inside:
                        rows += self._rebind(names, [call])
                        rows.append(self._row(*call, names))
                case LoopRegion():
                    rows += self._rebind(names, inside)
                    rows.append(self._loop(inner, inside, names))
                case Branch():
                    rows += self._rebind(names, inside)
                    rows.append(self._branch(inner, inside, around, names))
        return rows

    def _rebind(self, names: Names, calls: Sequence[Compiled] | None = None) -> list[PreparedOp]:
        """A row that gives late variables their values, if these calls need one that has none.

        Without calls: what is left, for the shapes of outputs, or for guards.
        """
        told = self._here.told
        if not told or not (calls is None or _needed(calls) & told.keys()):
            return []
        self._here.told = {}
        made = PreparedRebind(
            self._take_position(),
            tuple(RuntimeVar.of(names[v]) for v in told),
            tuple(told.values()),
            tuple(substitute(v.limit, names) for v in told),
            guards=self._here.take_guards(names[v] for v in told),
        )
        return [made]

    def _take_position(self) -> int:
        self._position += 1
        return self._position - 1

    def _loop(self, region: LoopRegion, calls: Sequence[Compiled], names: Names) -> PreparedOp:
        """A counter of its own for each loop; kernels name theirs by level."""
        position, number = self._take_position(), self._num_loops
        self._num_loops += 1
        self.body_of[region] = position, 1  # behind the test, which is part of the iteration before
        counter = Variable(f"{step_name(0)}{number}", 0, region.counter.max)
        body = self._body(calls, region, {**names, region.counter: counter})
        return PreparedLoop(
            position,
            counter.name,
            substitute(region.trip, names),
            tuple(body),
            buffer_indices=() if region.condition is None else (self._number[region.condition],),
            device=calls[0][0].device,
        )

    def _branch(
        self, branch: Branch, calls: Sequence[Compiled], around: Region | None, names: Names
    ) -> PreparedOp:
        position = self._take_position()
        arms: list[tuple[PreparedOp, ...]] = []
        for arm, several in groupby(calls, key=lambda call: _below(call[0].region, around)):
            assert arm is not None
            self.body_of[arm] = position, len(arms)
            arms.append(tuple(self._body(list(several), arm, names)))
        then, orelse = arms
        device = calls[0][0].device
        condition = self._number[_weight_on(branch.condition, device)]
        return PreparedBranch(position, (condition,), then, orelse, device=device)

    def _row(self, lowered: Lowered, artefact: CachedKernel | None, names: Names) -> PreparedOp:
        return self._copy(lowered) if artefact is None else self._call(lowered, artefact, names)

    def _copy(self, lowered: Lowered) -> PreparedCopy:
        """What goes to another device, on the copy lane of the one that it goes to.

        From memory that only its own device reaches, on that one's; what stays there, beside the
        kernels.
        """
        to, source = lowered.args
        before, after = self._lies[source], lowered.device or self._device
        is_near = find_device(before).is_host
        return PreparedCopy(
            self._take_position(),
            (self._number[to], self._number[source]),
            device=after if is_near else before,
            lane=COMPUTE if before == after else COPY,
            size=to.type.num_bytes,
        )

    def _call(self, lowered: Lowered, artefact: CachedKernel, names: Names) -> PreparedKernel:
        place = self._place
        graph = self._graph if lowered.region is None else lowered.region.body
        counts = {} if graph is None else graph.counts
        for argument in lowered.args if counts else ():
            node = argument.node if isinstance(argument, Slot) else argument
            if not isinstance(node, Node) or node not in lowered.group.outputs:
                continue
            for variable in counts.get(node, ()) if _scope(argument) is lowered.region else ():
                self._here.told[variable] = self._number[argument]
        return PreparedKernel.call(
            self._take_position(),
            artefact,
            [self._number[n] for n in lowered.args],
            [names.get(v, v) for v in lowered.kernel.variables],
            device=lowered.device or self._device,
            origins=_origins(lowered),
            notes=KernelNotes(
                check_origins=tuple(check.origin for check in lowered.kernel.checks),
                nodes=tuple(
                    f"%{place[n]} {n.op.name} {_plain(n.type, names)}"
                    for n in _computed(lowered, place)
                ),
                reason=lowered.group.reason.why.sentence,
                choice=lowered.choice,
                name=kernel_name(lowered.group),
                template=template_name(lowered.group),
                where=self._reasons.get(lowered.group.root, ""),
            ),
        )


def _said(text: str, late: Iterable[LateVariable], names: Names) -> str:
    """A sentence with the names of late variables that the program has for them."""
    for variable in late:
        text = re.sub(rf"\b{variable.name}\b", names[variable].name, text)
    return text


def _below(region: Region | None, around: Region | None) -> Region | None:
    """The region right below `around` that holds `region`; None for `around` itself."""
    inner = None
    for each in regions_around(region):
        if each is around:
            break
        inner = each
    return inner


def _row_below(region: Region | None, around: Region | None) -> LoopRegion | Branch | None:
    """What becomes a row in `around` and holds `region`; None for `around` itself."""
    inner = _below(region, around)
    return inner.branch if isinstance(inner, Arm) else inner


def _needed(calls: Sequence[Compiled]) -> set[Variable]:
    """The variables that calls need, and the loops they are in."""
    found = {v for lowered, _ in calls for v in lowered.kernel.variables}
    for region in {r for lowered, _ in calls for r in regions_around(lowered.region)}:
        if isinstance(region, LoopRegion):
            found.update(variables(region.trip))
        for amount, _ in region.body.guards if region.body is not None else ():
            found.update(variables(amount))
    return found


def _numbers(schedule: Schedule, before: str = "") -> dict[Node, str]:
    """The place of each node in its graph; those of a body after that of the loop or branch."""
    found = {node: f"{before}{i}" for i, node in enumerate(schedule.graph.nodes)}
    for group in schedule.groups:
        for name, body in group.bodies:
            inner = _numbers(body, f"{found[group.root]}.{name}")
            found = inner | found
    return found


def _scope(value: Argument) -> Region | None:
    """The region whose variables the type of a value is over."""
    if not isinstance(value, Slot):
        return None
    return value.region.parent if value.is_state else value.region


def _owner(value: Argument) -> Region | None:
    """The region in whose body a value lives: written before it is read, whenever that runs."""
    return value.owner if isinstance(value, Slot) else None


def _values(
    graph: Graph, kernels: Sequence[Lowered], homes: Mapping[Node, Argument]
) -> list[Argument]:
    """Inputs and states first (wanted or not), then every buffer in order of first use.

    A branch uses its condition, which may be a weight that no kernel reads.
    """
    order: dict[Argument, None] = dict.fromkeys(graph.inputs)
    order.update(dict.fromkeys((*graph.states, *homes.values())))
    for lowered in kernels:
        arms = (r for r in regions_around(lowered.region) if isinstance(r, Arm))
        conditions = (_weight_on(arm.branch.condition, lowered.device) for arm in arms)
        order.update(dict.fromkeys(_home(condition, homes) for condition in conditions))
        order.update(dict.fromkeys(lowered.args))
    return list(order)


def _leaf(value: Argument) -> Node | None:
    """The node behind a value that is one, wherever it is read."""
    if isinstance(value, Elsewhere):
        return value.leaf
    return value if isinstance(value, Node) else None


def _weight_on(value: Argument, device: str) -> Argument:
    """A value as a device reads it: a weight lies on each, all else on one."""
    if device and isinstance(value, Node) and value.op.name in STORED:
        return Elsewhere(value, device)
    return value


def _on_device(lowered: Lowered) -> Lowered:
    """The kernel with the weights of its device; what goes elsewhere is read where it lies."""
    if not lowered.device:
        return lowered
    device = "" if lowered.is_copy else lowered.device
    return replace(lowered, args=tuple(_weight_on(arg, device) for arg in lowered.args))


def _devices(
    order: Sequence[Argument],
    kernels: Sequence[Lowered],
    device: str,
    devices: Mapping[Node, str],
) -> dict[Argument, str]:
    """Where each value lies: where kernels write it, and an input or a state where it says."""
    found: dict[Argument, str] = {}
    for lowered in kernels:
        written = lowered.args[:1] if lowered.is_copy else lowered.args
        found.update(dict.fromkeys(written, lowered.device or device))
    for value in order:
        if isinstance(value, Node) and value.op.name in ("input", "state"):
            found[value] = devices.get(value) or value.attrs.device or device
        found.setdefault(value, device)
    return found


def _home(value: Argument, homes: Mapping[Node, Argument]) -> Argument:
    return homes.get(value, value) if isinstance(value, Node) else value


def _lifetimes(
    rows: Sequence[PreparedOp], homes: Sequence[tuple[int, int] | None]
) -> dict[int, tuple[int, int]]:
    """The first and the last row that touches each value, which lives in the body `homes` says.

    What a loop inside of that body touches is alive from the loop's first row to its last.
    """
    spans: dict[int, tuple[int, int]] = {}
    for placed in walk(rows):
        bodies = [(around.position, around.body) for around in placed.around]
        for value in placed.row.buffer_indices:
            home = homes[value]
            inside = placed.around[0 if home is None else bodies.index(home) + 1 :]
            loops = [around for around in inside if isinstance(around.row, PreparedLoop)]
            low = high = placed.position
            if loops:
                low = loops[0].position
                high = low + num_rows(loops[0].row) - 1
            first, last = spans.get(value, (low, high))
            spans[value] = (min(first, low), max(last, high))
    return spans


class _Results:
    """For each output as it was written, the node that holds it (`made`), and the other way round.

    Inputs stay what they are. `asked` are all nodes that hold outputs.
    """

    def __init__(self, asked: Graph, graph: Graph) -> None:
        told = len(asked.late), len(graph.late)
        pairs = zip(asked.outputs[told[0] :], graph.outputs[told[1] :], strict=True)
        self.made = {written: made for written, made in pairs if written.op.name != "input"}
        self.asked = set(graph.values)
        self._written: dict[Node, list[Node]] = {}
        for written, made in self.made.items():
            self._written.setdefault(made, []).append(written)

    def ids(self, node: Node) -> tuple[int, ...]:
        """Whose value a node holds, by id: whoever asks for the node of an output is shown the
        output, whatever else holds it."""
        own = () if self.made.get(node, node) is not node else (node.id,)
        return (*own, *[w.id for w in self._written.get(node, ()) if w is not node])


def _value(
    node: Argument,
    span: tuple[int, int],
    results: _Results,
    known: Names,
    weights: _Weights,
    device: str,
) -> ProgramValue:
    kind = _plain(node.type, known)
    if isinstance(node, OtherHalf):
        return ProgramValue(node.state.attrs.name, kind, "state", device=device)
    if isinstance(node, Slot):
        return ProgramValue(node.name, kind, "arena", None, *span, device=device)
    if isinstance(node, Elsewhere):
        there = _value(node.leaf, span, results, known, weights, device)
        return replace(there, node_ids=())
    weight = weights.weight(node)
    place = weights.place(node) or ("io" if node in results.asked else "arena")
    match node.op.name:
        case "input":
            place = "io"
        case "state":
            place = "state"
            init = node.attrs.init
            weight = None if init is None else weight_store.of_storage(init)
    named = ("input", "param", "state")
    name = node.attrs.name if node.op.name in named else node.op.name
    return ProgramValue(name, kind, place, weight, *span, results.ids(node), device)


def _computed(lowered: Lowered, place: Mapping[Node, str]) -> list[Node]:
    """The nodes that a kernel computes; those it has literally in its code are left out.

    The kernels before and after a loop move its states and compute nothing.
    """
    return [n for n in lowered.group.inside if n.op.kind != "leaf" and n in place]


def _origins(lowered: Lowered) -> tuple[str, ...]:
    """The source lines of everything a kernel computes, each once."""
    lines = [o for n in lowered.group.inside for o in n.origins]
    return tuple(dict.fromkeys(lines))


def all_variables(graph: Graph, guards: tuple[tuple[Dim, str], ...]) -> tuple[Variable, ...]:
    """The variables that a plan must be given: those of the graph and of its guards."""
    found = set(graph.variables)
    for expression, _ in guards:
        found.update(variables(expression))
    bound = (v for v in found if not isinstance(v, LateVariable))
    return tuple(sorted(bound, key=lambda v: v.name))
