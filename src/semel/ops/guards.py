"""Guards: what the values of the variables must satisfy for a graph to make sense.

    Graph --guards--> ((dim that must be 0, sentence), ...)

`x[n] + y[m]` is legal while n == m; `reshape x[n] to [n // 4, 4]` while n is a multiple
of 4; a slice of 16 while n >= 16; `n // m` while m >= 1. Each becomes one expression that is
zero exactly then, checked at every bind; those of a body when it is entered (ops/guard_places.py).
Invariant: no guard is provably zero (it is dropped) or, but for divisors, provably non-zero
(making the node raises).

Take the guards of a graph before its passes run: a pass may remove the op that demanded
one (`reshape` of `reshape`), and relies on the guards of the graph it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from semel.ir.expr import Dim, divisors
from semel.ir.graph import Graph, Node, attr_dims, users
from semel.ops.shapes import Requirement, at_most, requirements
from semel.written import OPS

#: Ops that others are given their operands by: nobody writes them.
_HELPERS = frozenset({"stretch", "agree", "expand", "reshape"})
_MOST_STEPS = 4


def guards(graph: Graph) -> tuple[tuple[Dim, str], ...]:
    """Every dim that must be zero, once each, with the sentence of the first op that needs it."""
    found: dict[Dim, str] = {}
    using = cache(partial(users, graph.nodes))
    # What is about numbers alone was settled when the node was made.
    symbolic = [node for node in graph.nodes if _is_symbolic(node)]
    # Divisors first: what divides by zero says nothing.
    for rule in (_divisor_requirements, _node_requirements):
        known: set[Dim] = set()
        for node in symbolic:
            for requirement in rule(node, known):
                if not requirement.always_holds and requirement.amount not in found:
                    written = _written(node, using)
                    found[requirement.amount] = _sentence(node, requirement, written)
    return tuple(found.items())


def has_guards(node: Node) -> bool:
    """Whether a node makes sense for some values of the variables only."""
    rules = (_divisor_requirements, _node_requirements)
    return _is_symbolic(node) and any(
        not requirement.always_holds for rule in rules for requirement in rule(node, set())
    )


def _is_symbolic(node: Node) -> bool:
    """Whether any dim that the op's requirements may be about is not a number."""
    return node.rule.is_symbolic or any(n.rule.is_symbolic for n in node.inputs)


def _divisor_requirements(node: Node, known: set[Dim]) -> Iterator[Requirement]:
    """What dims divide by; of those that are `known` it was said before."""
    for dim in _new((*node.type.shape, *attr_dims(node.attrs)), known):
        for divisor in divisors(dim):
            yield at_most(1, divisor, f"a divisor must be >= 1, got {divisor} in {dim}.")


def _node_requirements(node: Node, known: set[Dim]) -> Iterator[Requirement]:
    """What the op demands, and that dims are none below 0; of `known` ones that was said before."""
    yield from requirements(node.op.name, node.attrs, (n.type for n in node.inputs))
    for dim in _new(node.type.shape, known):
        yield at_most(0, dim, f"dims must be >= 0, got {dim} in {node.type}.")


def _new(dims: Iterable[Dim], known: set[Dim]) -> Iterator[Dim]:
    """Dims that are not known yet, and are from now on."""
    for dim in dims:
        if dim not in known:
            known.add(dim)
            yield dim


def _sentence(node: Node, requirement: Requirement, written: str) -> str:
    origin = f" ({node.origins[0]})" if node.origins else ""
    return f"{written}: {requirement.text.removesuffix('.')}{origin}."


def _written(node: Node, users: Callable[[], dict[Node, list[Node]]]) -> str:
    """What was called where the node was made: of what broadcasts for an operator, the operator."""
    for _ in range(_MOST_STEPS):
        if node.made_by or node.op.name not in _HELPERS:
            break
        using = users().get(node)
        if not using:
            break
        node = using[0]
    name = node.op.name
    return node.made_by or OPS.get(name) or name.removeprefix("reduce_")
