"""Schedule, kernels and machine code to a Program.

    Schedule, Lowered, CachedKernel --link_program--> Program

Every materialised node becomes a value with a lifetime in execution steps; every
kernel call becomes an op that names values by number. Memory is not planned here:
`plan.program.instantiate` does that, because it must be able to do it again when a
variable outgrows its capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.ir.expr import Dim, Variable, variables
from semel.ir.graph import Graph, Node
from semel.lower.lowered import Argument, Lowered, Region, Slot
from semel.plan.program import Program, ProgramLoop, ProgramOp, ProgramValue
from semel.runtime.kernel import CachedKernel
from semel.schedule.group import Schedule

_LEAF_KINDS = {"input": "input", "constant": "constant", "param": "constant"}


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
    distinct = list(dict.fromkeys(artefacts))
    position = {kernel: i for i, kernel in enumerate(distinct)}
    place = _numbers(schedule)
    counters = _counters(kernels)
    ops = tuple(
        ProgramOp(
            kernel=position[artefact],
            args=tuple(number[n] for n in lowered.args),
            variables=tuple(counters.get((lowered.region, v), v) for v in lowered.kernel.variables),
            origins=_origins(lowered),
            check_origins=tuple(check.origin for check in lowered.kernel.checks),
            nodes=tuple(f"%{place[n]} {n.op.name} {n.type}" for n in _computed(lowered, place)),
            reason=lowered.group.reason.why.sentence,
            choice=lowered.choice,
        )
        for lowered, artefact in zip(kernels, artefacts, strict=True)
    )
    loops = _loops(kernels, counters)
    spans = _lifetimes(ops, loops, {i for i, value in enumerate(order) if _is_local(value)})
    results = _results(asked, graph)
    values = tuple(
        _value(graph, value, spans.get(i, (0, 0)), results) for i, value in enumerate(order)
    )
    return Program(
        kernels=tuple(distinct),
        values=values,
        ops=ops,
        inputs=tuple((n.attrs.name, number[n]) for n in asked.inputs),
        outputs=tuple(
            (name, number[n])
            for name, n in zip(graph.names, graph.outputs, strict=True)
            if name not in keep
        ),
        kept=tuple((name, number[results.get(n, n)]) for name, n in keep.items()),
        guards=guards,
        variables=all_variables(asked, guards),
        log=schedule.log,
        stage_seconds=dict(seconds),
        compile_count=1,
        loops=loops,
    )


def _numbers(schedule: Schedule) -> dict[Node, str]:
    """The place of each node in its graph; those of a loop's body after that of the loop."""
    found = {node: str(i) for i, node in enumerate(schedule.graph.nodes)}
    for group in schedule.groups:
        if group.body is not None:
            for i, node in enumerate(group.body.schedule.graph.nodes):
                found.setdefault(node, f"{found[group.root]}.{i}")
    return found


def _counters(kernels: Sequence[Lowered]) -> dict[tuple[Region | None, Variable], Variable]:
    """A counter of its own for each loop; kernels have one name for all."""
    regions = dict.fromkeys(k.region for k in kernels if k.region is not None)
    return {
        (region, region.counter): Variable(f"{region.counter.name}{k}", 0, region.counter.max)
        for k, region in enumerate(regions)
    }


def _loops(
    kernels: Sequence[Lowered], counters: Mapping[tuple[Region | None, Variable], Variable]
) -> tuple[ProgramLoop, ...]:
    """Runs of kernels of one region."""
    spans: dict[Region, tuple[int, int]] = {}
    for i, lowered in enumerate(kernels):
        if lowered.region is not None:
            first, _ = spans.get(lowered.region, (i, i))
            spans[lowered.region] = (first, i)
    return tuple(
        ProgramLoop(counters[region, region.counter], region.trip, *span)
        for region, span in spans.items()
    )


def _is_local(value: Argument) -> bool:
    """Whether an iteration of a loop writes the value before it reads it."""
    return isinstance(value, Slot) and not value.is_state


def _values(graph: Graph, kernels: Sequence[Lowered]) -> list[Argument]:
    """Inputs first (wanted or not), then every buffer in order of first use."""
    order: dict[Argument, None] = dict.fromkeys(graph.inputs)
    for lowered in kernels:
        order.update(dict.fromkeys(lowered.args))
    return list(order)


def _lifetimes(
    ops: Sequence[ProgramOp], loops: Sequence[ProgramLoop], local: set[int]
) -> dict[int, tuple[int, int]]:
    """The first and the last op that touches each value.

    What a loop touches, other than for one iteration, is alive from its first op to its last.
    """
    spans: dict[int, tuple[int, int]] = {}
    around = {i: loop for loop in loops for i in range(loop.first, loop.last + 1)}
    for step, op in enumerate(ops):
        for value in op.args:
            low = high = step
            if step in around and value not in local:
                low, high = around[step].first, around[step].last
            first, last = spans.get(value, (low, high))
            spans[value] = (min(first, low), max(last, high))
    return spans


def _results(asked: Graph, graph: Graph) -> dict[Node, Node]:
    """For each output as it was written, the node that holds it; inputs stay what they are."""
    pairs = zip(asked.outputs, graph.outputs, strict=True)
    return {written: made for written, made in pairs if written.op.name != "input"}


def _value(
    graph: Graph, node: Argument, span: tuple[int, int], results: Mapping[Node, Node]
) -> ProgramValue:
    if isinstance(node, Slot):
        return ProgramValue(node.name, node.type, "arena", None, *span)
    kind = _LEAF_KINDS.get(node.op.name) or ("output" if node in graph.outputs else "arena")
    array = node.attrs.storage.array if kind == "constant" else None
    name = node.attrs.name if kind == "input" else f"{node.op.name}"
    # Whoever asks for the node of an output is shown the output, whatever else holds it.
    own = () if results.get(node, node) is not node else (node.id,)
    also = tuple(w.id for w, made in results.items() if made is node and w is not node)
    return ProgramValue(name, node.type, kind, array, span[0], span[1], (*own, *also))


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
    return tuple(sorted(found, key=lambda v: v.name))
