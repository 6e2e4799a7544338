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
from semel.lower.lowered import Lowered
from semel.plan.program import Program, ProgramOp, ProgramValue
from semel.runtime.kernel import CachedKernel
from semel.schedule.group import Schedule

_STARTS = " starts a kernel: "  #: in the schedule's log, between a node and the reason
_LEAF_KINDS = {"input": "input", "constant": "constant", "param": "constant"}


def link_program(
    asked: Graph,
    schedule: Schedule,
    kernels: Sequence[Lowered],
    artefacts: Sequence[CachedKernel],
    guards: tuple[tuple[Dim, str], ...],
    seconds: Mapping[str, float],
) -> Program:
    """Number values and kernels and write down who calls what with what.

    `asked` is the graph as it was written: its inputs are the program's, used or not.
    """
    graph = schedule.graph
    order = _values(asked, kernels)
    number = {node: i for i, node in enumerate(order)}
    distinct = list(dict.fromkeys(artefacts))
    position = {kernel: i for i, kernel in enumerate(distinct)}
    place = {node: i for i, node in enumerate(graph.nodes)}
    reasons = dict(line.split(_STARTS, 1) for line in schedule.log if _STARTS in line)
    ops = tuple(
        ProgramOp(
            kernel=position[artefact],
            args=tuple(number[n] for n in lowered.args),
            variables=lowered.kernel.variables,
            origins=_origins(lowered),
            nodes=tuple(f"%{place[n]} {n.op.name} {n.type}" for n in _computed(lowered)),
            reason=reasons.get(repr(lowered.group.root), ""),
            choice=lowered.choice,
        )
        for lowered, artefact in zip(kernels, artefacts, strict=True)
    )
    spans = _lifetimes(ops)
    values = tuple(_value(graph, node, spans.get(i, (0, 0))) for i, node in enumerate(order))
    return Program(
        kernels=tuple(distinct),
        values=values,
        ops=ops,
        inputs=tuple((n.attrs.name, number[n]) for n in asked.inputs),
        outputs=tuple(
            (name, number[n]) for name, n in zip(graph.names, graph.outputs, strict=True)
        ),
        guards=guards,
        variables=all_variables(asked, guards),
        log=schedule.log,
        stage_seconds=dict(seconds),
        compile_count=1,
    )


def _values(graph: Graph, kernels: Sequence[Lowered]) -> list[Node]:
    """Inputs first (wanted or not), then every buffer in order of first use."""
    order: dict[Node, None] = dict.fromkeys(graph.inputs)
    for lowered in kernels:
        order.update(dict.fromkeys(lowered.args))
    return list(order)


def _lifetimes(ops: Sequence[ProgramOp]) -> dict[int, tuple[int, int]]:
    """The first and the last op that touches each value."""
    spans: dict[int, tuple[int, int]] = {}
    for step, op in enumerate(ops):
        for value in op.args:
            first, _ = spans.get(value, (step, step))
            spans[value] = (first, step)
    return spans


def _value(graph: Graph, node: Node, span: tuple[int, int]) -> ProgramValue:
    kind = _LEAF_KINDS.get(node.op.name) or ("output" if node in graph.outputs else "arena")
    array = node.attrs.storage.array if kind == "constant" else None
    name = node.attrs.name if kind == "input" else f"{node.op.name}"
    return ProgramValue(name, node.type, kind, array, span[0], span[1], (node.id,))


def _computed(lowered: Lowered) -> list[Node]:
    """The nodes that a kernel computes; those it has literally in its code are left out."""
    return [n for n in lowered.group.inside if n.op.kind != "leaf"]


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
