"""Which sizes of a traced function are one size, and which are numbers.

    Graph, sizes of the call that was followed  --agreement-->  variable -> variable | int

Every axis of every argument begins as a variable of its own. Then the function itself says more:
two sizes that an op demands to be equal are one, and one that must be a number is that number.
Where sizes meet that may stretch, the call that is followed shows what is meant: of equal sizes
above 1 one variable is made, and a 1 beside another size is a 1. Nothing of it is believed: a call
that does not fit is another form. So it is only about how good the code is, and how readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from semel.errors import VariableError
from semel.ir.dims import broadcast_parts
from semel.ir.expr import Dim, Variable, evaluate, terms
from semel.ir.graph import Graph, Node, attr_bodies
from semel.ops.guards import guards


class Union:
    """Sizes that are one: each set has its first variable, or a number, in its name."""

    def __init__(self, free: Iterable[Variable]) -> None:
        self._place = {v: i for i, v in enumerate(free)}
        self._parent: dict[Variable, Dim] = {}

    def find(self, dim: Dim) -> Dim:
        while isinstance(dim, Variable) and dim in self._parent:
            dim = self._parent[dim]
        return dim

    def join(self, a: Dim, b: Dim) -> None:
        """Two sizes are one; what is no free variable and no number says nothing."""
        a, b = self.find(a), self.find(b)
        if a == b or not (self._is_known(a) and self._is_known(b)):
            return
        if isinstance(a, Variable) and isinstance(b, Variable):
            first, second = sorted((a, b), key=self._place.__getitem__)
            self._parent[second] = first
        elif isinstance(a, Variable):
            self._parent[a] = b
        elif isinstance(b, Variable):
            self._parent[b] = a

    def _is_known(self, dim: Dim) -> bool:
        return isinstance(dim, int) or (isinstance(dim, Variable) and dim in self._place)

    @property
    def replaced(self) -> dict[Variable, Dim]:
        """What became another size."""
        return {v: self.find(v) for v in self._place if self.find(v) != v}


def agreement(
    graph: Graph,
    free: Iterable[Variable],
    equal: Iterable[tuple[Dim, Dim]],
    values: Mapping[str, int],
) -> dict[Variable, Dim]:
    """What the free variables are rather: one of them, or a number. `equal` were found so."""
    union = Union(free)
    for a, b in equal:
        union.join(a, b)
    for amount, _ in guards(graph):
        sides = _sides(amount)
        if sides is not None:
            union.join(*sides)
    for own, wanted in _meetings(graph.nodes):
        _meet(union, own, wanted, values)
    return union.replaced


def broken_guard(graph: Graph, values: Mapping[str, int]) -> str:
    """The sentence of the first guard that does not hold at these sizes; empty if all do."""
    for amount, text in guards(graph):
        try:
            if evaluate(amount, values):
                return text
        except KeyError:  # a size that the run finds out
            continue
        except VariableError as error:
            return str(error)
    return ""


def _sides(amount: Dim) -> tuple[Dim, Dim] | None:
    """(a, b) of an amount that is 0 where a == b, for a variable and another, or a number."""
    parts = terms(amount)
    if len(parts) == 1 and len(parts[0][0]) == 1:
        return parts[0][0][0], 0
    if len(parts) != 2 or any(len(monomial) > 1 for monomial, _ in parts):
        return None
    (a, c), (b, d) = parts
    if not b:
        a, b, c, d = b, a, d, c
    if not a:  # d * v + c == 0
        return (b[0], -c // d) if c % d == 0 else None
    return (a[0], b[0]) if c == -d else None


def _meetings(nodes: Iterable[Node]) -> Iterator[tuple[Dim, Dim]]:
    """(a dim of an operand, what it is to become) wherever dims stretch or agree."""
    for node in nodes:
        if node.op.name in ("stretch", "agree"):
            yield from zip(node.inputs[0].type.shape, node.type.shape, strict=True)
        for body in attr_bodies(node.attrs):
            yield from _meetings(body.nodes)


def _meet(union: Union, own: Dim, wanted: Dim, values: Mapping[str, int]) -> None:
    """Join those of the sizes in both dims that are the result's; a 1 beside it is a 1."""
    try:
        size = evaluate(wanted, values)
        parts = {p: evaluate(p, values) for d in (own, wanted) for p in broadcast_parts(d)}
    except KeyError:
        return
    same = [part for part, value in parts.items() if value == size]
    if size == 1:
        return  # may be 1 in this call only: they stay apart, and stretch
    for part in same[1:]:
        union.join(same[0], part)
    for part, value in parts.items():
        if value == 1:
            union.join(part, 1)
