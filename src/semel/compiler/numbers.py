"""Which numbers of an outline a run may be given without changing a bit of the result.

    Outline --> places of scalars that may be given, that tell programs apart, that must be given

It is a matter of the outline alone, bodies of loops and branches included. A scalar may be given if
what sees it gives the same bits for a number that the compiler knows and for one that it does not:
elements and movement do, what adds up may not (`OpDef.is_exact`). What is made of nothing but
numbers is a number, too.

Two things are not so simple. With some exponents a power is another op, as `x ** 2` is a product:
these tell programs apart, and all others may be given (`OpDef.specials`). And a sum of a product
rounds once (`semel.schedule.products`), so that it matters what the algebra makes of `x * y * 1`:
what may vanish between a product and a sum is given from the start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from semel.ir.graph import Graph, Node, attr_bodies
from semel.ir.outline import Outline


def free_scalars(outline: Outline) -> frozenset[int]:
    """Places of the scalars that may be given."""
    walk = _Walk(outline.nodes, outline.wires)
    return _slots(outline, walk.may_be_given(direct=outline.slots))


def given_scalars(outline: Outline) -> frozenset[int]:
    """Places of those that must be, if they may: by them a product may become what a sum sees."""
    return _slots(outline, _Walk(outline.nodes, outline.wires).must_be_given())


def special_scalars(outline: Outline) -> dict[int, tuple[float, ...]]:
    """By place of a scalar: with which numbers the op that sees it is another one."""
    walk, found = _Walk(outline.nodes, outline.wires), {}
    for node, operands in zip(outline.nodes, outline.wires, strict=True):
        if node.op.specials:
            place = walk.source(operands[-1])
            if place in outline.slots and outline.nodes[place].op.is_literal:
                found[outline.slots[place]] = node.op.specials
    return found


def _slots(outline: Outline, places: Sequence[bool]) -> frozenset[int]:
    """The places among numbers of the scalars that stand at these places among nodes."""
    return frozenset(
        slot
        for place, slot in outline.slots.items()
        if outline.nodes[place].op.is_literal and places[place]
    )


class _Walk:
    """Nodes, operands first, with the places of their operands: of an outline, or of a body.

    `uniform` are the operands of a body that may be one number.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        wires: Sequence[Sequence[int]],
        uniform: Collection[int] = (),
    ) -> None:
        self.nodes, self.wires = nodes, wires
        self.is_uniform = [each.op.is_literal or k in uniform for k, each in enumerate(nodes)]
        for place, (node, operands) in enumerate(zip(nodes, wires, strict=True)):
            if operands and (node.op.is_view or node.op.kind == "elementwise"):
                self.is_uniform[place] = all(self.is_uniform[k] for k in operands)

    def source(self, place: int) -> int:
        """The place of what is seen through movement that repeats it."""
        while self.nodes[place].op.repeats and self.wires[place]:
            (place,) = self.wires[place]
        return place

    def bodies(self, place: int) -> Iterator[_Body]:
        for body in attr_bodies(self.nodes[place].attrs):
            yield _Body(body, [self.is_uniform[k] for k in self.wires[place]])

    def may_be_given(self, direct: Collection[int] = (), fixed: Collection[int] = ()) -> list[bool]:
        """Whether each node may be a number that only a run knows.

        `direct` are the places of numbers that may tell programs apart, `fixed` those of nodes that
        are seen by what must know them.
        """
        is_free = [place not in fixed for place in range(len(self.nodes))]
        for place in reversed(range(len(self.nodes))):
            op, operands = self.nodes[place].op, self.wires[place]
            may_be = op.is_exact and (is_free[place] or not self.is_uniform[place])
            seen = [may_be or op.has_bodies] * len(operands)
            if op.specials:
                seen[-1] &= self.source(operands[-1]) in direct
            for body in self.bodies(place):
                inside = body.may_be_given(fixed=() if is_free[place] else body.outputs)
                for k, number in body.operands.items():
                    seen[number] &= inside[k]
            for operand, is_so in zip(operands, seen, strict=True):
                is_free[operand] &= is_so
        return is_free

    def must_be_given(self) -> list[bool]:
        """Whether each node, known to be some number, may show a product to a sum."""
        return self._sums()[1]

    def _sums(self, summed: Collection[int] = ()) -> tuple[list[bool], list[bool]]:
        """Whether a sum may see each node, and whether it may show a product to a sum."""
        may_multiply = self._may_multiply()
        is_summed = [place in summed for place in range(len(self.nodes))]
        shows = [False] * len(self.nodes)
        for place in reversed(range(len(self.nodes))):
            op, operands = self.nodes[place].op, self.wires[place]
            if _adds_products(self.nodes[place]) or (is_summed[place] and op.is_view):
                _mark(is_summed, operands)
            numbers = [k for k in operands if self.is_uniform[k]]
            if shows[place] and self.is_uniform[place]:
                _mark(shows, numbers)
            if is_summed[place] and self._may_vanish(place):
                others = [k for k in operands if not self.is_uniform[k]]
                _mark(is_summed, others)
                if any(may_multiply[k] for k in others) and not op.specials:
                    _mark(shows, numbers)
            for body in self.bodies(place):
                inner, shown = body._sums(body.outputs if is_summed[place] else ())
                _mark(is_summed, [operands[n] for k, n in body.operands.items() if inner[k]])
                _mark(shows, [operands[n] for k, n in body.operands.items() if shown[k]])
                _mark(shows, numbers if is_summed[place] else ())
        return is_summed, shows

    def _may_vanish(self, place: int) -> bool:
        """Whether a node may be one of its operands, by a number among them: `x * 1` is x."""
        numbers = [self.is_uniform[k] for k in self.wires[place]]
        return self.nodes[place].op.kind == "elementwise" and any(numbers) and not all(numbers)

    def _may_multiply(self) -> list[bool]:
        """Whether each node may turn out to be a product; of an operand of a body nobody knows."""
        found: list[bool] = []
        for place, node in enumerate(self.nodes):
            op = node.op
            is_one = op.is_product or bool(op.specials) or op.has_bodies or op.name == "input"
            passes_on = op.is_view or self._may_vanish(place)
            found.append(is_one or (passes_on and any(found[k] for k in self.wires[place])))
        return found


class _Body(_Walk):
    """The nodes of a body; `operands` are the numbers of what is captured, by place."""

    def __init__(self, body: Graph, is_uniform: Sequence[bool]) -> None:
        place = {node: k for k, node in enumerate(body.nodes)}
        self.operands = {place[node]: int(node.attrs.name) for node in body.inputs}
        self.outputs = {place[node] for node in body.outputs}
        uniform = [k for k, number in self.operands.items() if is_uniform[number]]
        wires = [[place[n] for n in node.inputs] for node in body.nodes]
        super().__init__(body.nodes, wires, uniform)


def _adds_products(node: Node) -> bool:
    """Whether a node adds up floats, which it does without rounding products of them first."""
    rule, dtype = node.op.combiner, node.type.dtype
    if rule is None or not dtype.is_float or dtype.is_half:
        return False
    return rule(node.attrs).kernel == "add"


def _mark(marks: list[bool], places: Iterable[int]) -> None:
    for place in places:
        marks[place] = True
