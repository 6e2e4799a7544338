"""Schedule, kernels and machine code to a Program.

    Schedule, Lowered, CachedKernel --link_program--> Program

Every materialised node becomes a value with a lifetime in execution steps; every
kernel call becomes a row that names values by number. Memory is not planned here:
`plan.instantiate` does that, because it must be able to do it again when a
variable outgrows its capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from semel.ir.expr import Dim, LateVariable, Variable, substitute, variables
from semel.ir.graph import Graph, Node
from semel.ir.types import TensorType
from semel.lower.lowered import Argument, Lowered, Region, Slot
from semel.plan.program import PlanIO, PlanVariable, Program, ProgramValue
from semel.plan.rows import (
    KernelNotes,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    PreparedRebind,
    RuntimeVar,
    num_rows,
    walk,
)
from semel.runtime.kernel import CachedKernel
from semel.schedule.group import Schedule

_LEAF_PLACES = {"input": "io", "constant": "constant", "param": "constant"}


def link_program(
    asked: Graph,
    schedule: Schedule,
    kernels: Sequence[Lowered],
    artefacts: Sequence[CachedKernel],
    guards: tuple[tuple[Dim, str], ...],
    seconds: Mapping[str, float],
    keep: Mapping[str, Node],
) -> Program:
    """Number values and kernels and write down who calls what with what.

    `asked` is the graph as it was written: its inputs are the program's, used or not. Nodes in
    `keep` are inputs or outputs of it; an output of that name is the program's in this way only.
    """
    graph = schedule.graph
    order = _values(asked, kernels)
    number = {node: i for i, node in enumerate(order)}
    known = {v: v.as_bound() for v in graph.late}
    rows = _Rows(schedule, number).make(kernels, artefacts)
    spans = _lifetimes(rows, {i for i, value in enumerate(order) if _is_local(value)})
    results = _results(asked, graph)
    outputs = tuple(
        PlanIO(name, number[n], _plain(n.type, known))
        for name, n in graph.results
        if name not in keep
    )
    return Program(
        values=tuple(
            _value(graph, value, spans.get(i, (0, 0)), results, known)
            for i, value in enumerate(order)
        ),
        rows=rows,
        inputs=tuple(PlanIO(n.attrs.name, number[n], n.type) for n in asked.inputs),
        outputs=outputs,
        results=tuple(io.index for io in outputs),
        kept=tuple((name, number[results.get(n, n)]) for name, n in keep.items()),
        guards=tuple((substitute(expr, known), text) for expr, text in guards),
        variables=tuple(PlanVariable(v) for v in all_variables(asked, guards)),
        log=schedule.log,
        stage_seconds=dict(seconds),
        compile_count=1,
    )


def _plain(kind: TensorType, known: Mapping[LateVariable, Variable]) -> TensorType:
    """The type as programs have it: which variables are late is for their rows to say."""
    if not known:
        return kind
    return TensorType(tuple(substitute(d, known) for d in kind.shape), kind.dtype)


class _Rows:
    """Kernel calls as rows; those of one region are the body of a loop.

    Late variables get their values before the first row that needs one: all that can be told
    by then, in one rebind.
    """

    def __init__(self, schedule: Schedule, number: Mapping[Argument, int]) -> None:
        self._number, self._place = number, _numbers(schedule)
        self._position = self._num_loops = 0
        self._counts = schedule.graph.counts
        #: Who was told and has no value yet, and by which value.
        self._told: dict[LateVariable, int] = {}
        self._late = {v: v.as_bound() for v in schedule.graph.late}

    def make(
        self, kernels: Sequence[Lowered], artefacts: Sequence[CachedKernel]
    ) -> tuple[PreparedOp, ...]:
        """The rows of all kernels, in order."""
        rows: list[PreparedOp] = []
        pairs = zip(kernels, artefacts, strict=True)
        for region, calls in groupby(pairs, key=lambda pair: pair[0].region):
            if region is None:
                for lowered, artefact in calls:
                    rows += self._rebind([lowered])
                    rows.append(self._call(lowered, artefact, {}))
            else:
                inside = list(calls)
                rows += self._rebind([lowered for lowered, _ in inside], variables(region.trip))
                rows.append(self._loop(region, inside))
        return (*rows, *self._rebind())

    def _rebind(
        self, kernels: Sequence[Lowered] | None = None, wanted: Iterable[Variable] = ()
    ) -> list[PreparedOp]:
        """A row that gives late variables their values, if these kernels need one that has none.

        Without kernels: what is left, for the shapes of outputs.
        """
        needed = {*wanted, *(v for k in kernels or () for v in k.kernel.variables)}
        if not self._told or not (kernels is None or needed & self._told.keys()):
            return []
        told, self._told = self._told, {}
        made = PreparedRebind(
            self._take_position(),
            tuple(RuntimeVar.of(v) for v in told),
            tuple(told.values()),
            tuple(substitute(v.limit, self._late) for v in told),
        )
        return [made]

    def _take_position(self) -> int:
        self._position += 1
        return self._position - 1

    def _loop(self, region: Region, calls: Sequence[tuple[Lowered, CachedKernel]]) -> PreparedOp:
        """A counter of its own for each loop; kernels have one name for all."""
        position, number = self._take_position(), self._num_loops
        self._num_loops += 1
        counter = Variable(f"{region.counter.name}{number}", 0, region.counter.max)
        names = {region.counter: counter}
        body = tuple(self._call(lowered, artefact, names) for lowered, artefact in calls)
        return PreparedLoop(position, counter.name, region.trip, body)

    def _call(
        self, lowered: Lowered, artefact: CachedKernel, names: Mapping[Variable, Variable]
    ) -> PreparedKernel:
        place = self._place
        for node in lowered.group.outputs:
            for variable in self._counts.get(node, ()) if node in lowered.args else ():
                self._told[variable] = self._number[node]
        return PreparedKernel.call(
            self._take_position(),
            artefact,
            [self._number[n] for n in lowered.args],
            [names.get(v, v) for v in lowered.kernel.variables],
            origins=_origins(lowered),
            notes=KernelNotes(
                check_origins=tuple(check.origin for check in lowered.kernel.checks),
                nodes=tuple(f"%{place[n]} {n.op.name} {n.type}" for n in _computed(lowered, place)),
                reason=lowered.group.reason.why.sentence,
                choice=lowered.choice,
            ),
        )


def _numbers(schedule: Schedule) -> dict[Node, str]:
    """The place of each node in its graph; those of a loop's body after that of the loop."""
    found = {node: str(i) for i, node in enumerate(schedule.graph.nodes)}
    for group in schedule.groups:
        if group.body is not None:
            for i, node in enumerate(group.body.schedule.graph.nodes):
                found.setdefault(node, f"{found[group.root]}.{i}")
    return found


def _is_local(value: Argument) -> bool:
    """Whether an iteration of a loop writes the value before it reads it."""
    return isinstance(value, Slot) and not value.is_state


def _values(graph: Graph, kernels: Sequence[Lowered]) -> list[Argument]:
    """Inputs first (wanted or not), then every buffer in order of first use."""
    order: dict[Argument, None] = dict.fromkeys(graph.inputs)
    for lowered in kernels:
        order.update(dict.fromkeys(lowered.args))
    return list(order)


def _lifetimes(rows: Sequence[PreparedOp], local: set[int]) -> dict[int, tuple[int, int]]:
    """The first and the last row that touches each value.

    What a loop touches, other than for one iteration, is alive from its first row to its last.
    """
    spans: dict[int, tuple[int, int]] = {}
    for placed in walk(rows):
        for value in placed.row.buffer_indices:
            low = high = placed.position
            if placed.around and value not in local:
                outer = placed.around[0]
                low, high = outer.position, outer.position + num_rows(outer.row) - 1
            first, last = spans.get(value, (low, high))
            spans[value] = (min(first, low), max(last, high))
    return spans


def _results(asked: Graph, graph: Graph) -> dict[Node, Node]:
    """For each output as it was written, the node that holds it; inputs stay what they are."""
    pairs = zip(asked.outputs, graph.outputs, strict=True)
    return {written: made for written, made in pairs if written.op.name != "input"}


def _value(
    graph: Graph,
    node: Argument,
    span: tuple[int, int],
    results: Mapping[Node, Node],
    known: Mapping[LateVariable, Variable],
) -> ProgramValue:
    kind = _plain(node.type, known)
    if isinstance(node, Slot):
        return ProgramValue(node.name, kind, "arena", None, *span)
    is_asked = any(node is made for _, made in graph.results)
    place = _LEAF_PLACES.get(node.op.name) or ("io" if is_asked else "arena")
    array = node.attrs.storage.array if place == "constant" else None
    name = node.attrs.name if node.op.name == "input" else f"{node.op.name}"
    # Whoever asks for the node of an output is shown the output, whatever else holds it.
    own = () if results.get(node, node) is not node else (node.id,)
    also = tuple(w.id for w, made in results.items() if made is node and w is not node)
    return ProgramValue(name, kind, place, array, span[0], span[1], (*own, *also))


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
    return tuple(sorted(found - set(graph.late), key=lambda v: v.name))
