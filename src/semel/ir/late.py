"""Sizes that a run finds out: graphs that say where each of them comes from.

    Graph  --with_counts-->  Graph whose first outputs tell its late variables, and old -> new nodes

A late variable is made with the node that counts (`ir.graph.late_variable`), under a name of
its own in this process. In the graph that is compiled it has a name by its place instead,
so that equal graphs have equal text and are found again; and what counts is an output, so
that no pass drops it, and first, so that whatever has such a size comes after it: not all of
that depends on it by its operands (`zeros_like(x[mask])`). Why this way:
docs/decisions/0039-late-sizes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from semel.errors import GraphError
from semel.ir.expr import (
    Dim,
    Expr,
    Fn,
    Index,
    LateVariable,
    Substitution,
    Variable,
    atoms,
    substitute,
    upper_bound,
    variables,
)
from semel.ir.graph import (
    Graph,
    Held,
    Node,
    attr_dims,
    count_of,
    let_counts_go,
    make_again,
    stands_for,
    topological,
)
from semel.ir.types import TensorType

_DIMS = (Variable, Index, Fn, Expr)


def with_counts(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """The graph with all its late variables told, and what each of its nodes became.

    A graph without any, or one that has been here, is returned as it is.
    """
    if all(variable in graph.late for variable in mentioned(graph.nodes)):
        return graph, {}
    counts = find_counts(graph.nodes, dict(zip(graph.late, graph.outputs, strict=False)))
    told_before = len(graph.late)
    names, outputs = graph.names[told_before:], graph.outputs[told_before:]
    nodes = topological((*graph.declared, *counts.values(), *outputs))
    by = _numbered(counts, {*names, *_bound_names(nodes)})
    replacing = Replacing(by)
    new: dict[Node, Node] = {}
    for node in nodes:
        new[node] = _renamed(node, [new[n] for n in node.inputs], replacing)
    let_counts_go()
    late = tuple(by[variable] for variable in counts)
    told = tuple(new[n] for n in (*counts.values(), *outputs))
    held = tuple(Held(each.variable, substitute(each.next, by)) for each in graph.held)
    declared = tuple(new[n] for n in graph.declared)
    names = (*(v.name for v in late), *names)
    return Graph(told, names, late, graph.updates, held, declared=declared), new


def mentioned(nodes: Iterable[Node]) -> list[LateVariable]:
    """In order of appearance, which is the same for equal graphs."""
    return list(dict.fromkeys(variable for node in nodes for variable in node.rule.late))


def find_counts(
    nodes: Iterable[Node], known: Mapping[LateVariable, Node] | None = None
) -> dict[LateVariable, Node]:
    """What tells the late variables of these nodes, behind what it needs to be told itself."""
    counts = dict(known or {})
    for variable in mentioned(nodes):
        _find_count(variable, counts)
    return counts


def in_order(told: Mapping[LateVariable, Node]) -> dict[LateVariable, Node]:
    """What tells late variables, each behind those of the others that it needs itself."""
    counts: dict[LateVariable, Node] = {}

    def add(variable: LateVariable) -> None:
        if variable in told and variable not in counts:
            for other in mentioned(topological((told[variable],))):
                add(other)
            counts[variable] = told[variable]

    for variable in told:
        add(variable)
    return counts


def _find_count(variable: LateVariable, counts: dict[LateVariable, Node]) -> None:
    if variable in counts:
        return
    count = count_of(variable)
    if count is None:
        raise GraphError(
            "prepare",
            f"'{variable.name}' must be the size of a tensor that somebody holds.",
            hint="Keep the tensor whose shape has it.",
        )
    for other in mentioned(topological((count,))):
        _find_count(other, counts)
    counts[variable] = count


def _bound_names(nodes: Iterable[Node]) -> set[str]:
    """The names of the variables that somebody binds."""
    found: set[str] = set()
    for node in nodes:
        for dim in (*node.type.shape, *attr_dims(node.attrs)):
            if not isinstance(dim, int):
                found.update(v.name for v in variables(dim) if not isinstance(v, LateVariable))
    return found


def _numbered(
    counts: Mapping[LateVariable, Node], taken: set[str]
) -> dict[LateVariable, LateVariable]:
    """Names by place, other than those that are taken."""
    by: dict[LateVariable, LateVariable] = {}
    number = 0
    for variable in counts:
        while f"late{number}" in taken:
            number += 1
        limit = substitute(variable.limit, by)
        by[variable] = LateVariable(f"late{number}", variable.min, variable.max, limit)
        number += 1
    return by


# ---------------------------------------------------------------- dims of attributes


class Replacing:
    """Atoms of dims replaced in all that has dims; equal dims are looked at once."""

    def __init__(self, by: Mapping[Any, Dim]) -> None:
        self._by = by
        self._substitute = Substitution(by)
        self._known: dict[Dim, Dim] = {}

    def __call__(self, value: Any) -> Any:
        """Dims, types and graphs with other atoms; the same object if there are none in it."""
        match value:
            case Variable() | Index() | Fn() | Expr():
                return self.dim(value)
            case tuple() if any(isinstance(v, _DIMS) for v in value):
                new = tuple([self(v) for v in value])
                return value if new == value else new
            case TensorType():
                shape = self(value.shape)
                return value if shape is value.shape else TensorType(shape, value.dtype)
            case Graph():
                return substitute_graph(value, self._by)
        return value

    def dim(self, value: Dim) -> Dim:
        """The expression with atoms replaced, in the extents of steps too."""
        if isinstance(value, int):
            return value
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._dim(value)
        return value if found == value else found

    def _dim(self, value: Dim) -> Dim:
        steps = {a: self._substitute(a.extent) for a in atoms(value) if isinstance(a, Index)}
        moved = {a: Index(a.name, extent) for a, extent in steps.items() if extent != a.extent}
        return substitute(value, {**self._by, **moved}) if moved else self._substitute(value)

    def attrs(self, attrs: Any) -> Any:
        """The attributes with atoms of their dims replaced; the same object if there are none."""
        changed = {}
        for name in attrs.__dataclass_fields__ if attrs is not None else ():
            value = getattr(attrs, name)
            new = self(value)
            if new is not value:
                changed[name] = new
        return replace(attrs, **changed) if changed else attrs


def substitute_attrs(attrs: Any, by: Mapping[Any, Dim]) -> Any:
    """The attributes with atoms of their dims replaced; the same object if there are none."""
    return Replacing(by).attrs(attrs)


def _renamed(node: Node, inputs: Sequence[Node], by: Replacing) -> Node:
    """The node over these operands, with atoms of its dims replaced; itself if nothing changes."""
    attrs = by.attrs(node.attrs)
    is_same = attrs is node.attrs and all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    if is_same and node.op.made_of is None:
        return node
    made = make_again(node, inputs, attrs)
    stands_for(made, node)
    return made


def substitute_graph(graph: Graph, by: Mapping[Any, Dim]) -> Graph:
    """The graph with atoms of its dims replaced; the same object if there are none."""
    return substitute_nodes(graph, by)[0]


def substitute_nodes(graph: Graph, by: Mapping[Any, Dim]) -> tuple[Graph, dict[Node, Node]]:
    """The graph with atoms of its dims replaced, and what each of its nodes became.

    Late variables of its own stay its own, at most as large as what their limits become.
    """
    late = renewed(graph.late, by)
    if late != graph.late:
        by = {**by, **dict(zip(graph.late, late, strict=True))}
    replacing = Replacing(by)
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new[node] = _renamed(node, [new[n] for n in node.inputs], replacing)
    outputs = tuple(new[n] for n in graph.outputs)
    held = tuple(Held(each.variable, substitute(each.next, by)) for each in graph.held)
    guards = tuple((replacing.dim(amount), text) for amount, text in graph.guards)
    made = replace(
        graph,
        outputs=outputs,
        names=(*(v.name for v in late), *graph.names[len(late) :]),
        late=late,
        held=held,
        guards=guards,
        declared=tuple(new[n] for n in graph.declared),
    )
    return graph if made == graph else made, new


def renewed(late: Iterable[LateVariable], by: Mapping[Any, Dim]) -> tuple[LateVariable, ...]:
    """Late variables in their order, whose limits have other atoms, or which are replaced."""
    known: dict[Any, Any] = dict(by)
    for v in late:
        if v not in by:
            limit = Replacing(known).dim(v.limit)
            top = upper_bound(limit) if v.max is None else v.max
            known[v] = LateVariable(v.name, v.min, top, limit)
    return tuple(known[v] for v in late)
