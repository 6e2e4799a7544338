"""Which weights of a program are stacks of experts: read one matrix at a time, by nobody else.

    Graph, kernels  --find_experts-->  ExpertLayer{ids, stacks}, by values

A product by groups reads the matrices of the groups that have rows. A weight that only such
products read, and whose first axis is that of the groups, need not be in memory as a whole. Where
kernels make the matrices as they read them, of bytes and scales and whatever else has an entry
for each expert, all of these are stacks. A layer has all of its stacks or none: half an expert
in memory would be neither there nor gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from semel.ir.expr import Index, atoms
from semel.ir.graph import Graph, Node, users
from semel.lower.lowered import Argument, Lowered
from semel.ops.grouped import source_of
from semel.ops.index_maps import Indices, no_gather, operand_index
from semel.ops.stored import WEIGHTS
from semel.plan.program import ExpertLayer

#: The operand of a product by groups that has their matrices.
_MATRICES = 1


def find_experts(
    graph: Graph, kernels: Sequence[Lowered], number: Mapping[Argument, int]
) -> tuple[ExpertLayer, ...]:
    """The layers of a graph; those inside of loops and branches are none."""
    if "grouped_matmul" not in graph.ops:
        return ()
    products = [node for node in graph.nodes if node.op.name == "grouped_matmul"]
    layers: dict[tuple[Node, int], list[Node]] = {}
    for node in products:
        lines, count = node.inputs[2], node.inputs[_MATRICES].type.shape[0]
        if lines.op.name == "group_rows" and isinstance(count, int):
            layers.setdefault((source_of(lines.inputs[0]), count), []).append(node)
    inside = (arg for k in kernels if k.region is not None for arg in k.args)
    others = {arg for arg in inside if isinstance(arg, Node)} | set(graph.outputs)
    readers = users(graph.nodes)
    found = []
    for (_, count), nodes in layers.items():
        ids = dict.fromkeys(number.get(node.inputs[2].inputs[0]) for node in nodes)
        known = tuple(i for i in ids if i is not None)
        if len(known) == len(ids) and _are_made(kernels, [n.inputs[2].inputs[0] for n in nodes]):
            stacks = _Matrices(count, number, readers, others).stacks(nodes)
            found.append(ExpertLayer(known, count, tuple(number[s] for s in stacks)))
    return tuple(found)


def _are_made(kernels: Sequence[Lowered], ids: Iterable[Node]) -> bool:
    """Whether kernels of the graph write these."""
    written = {node for k in kernels if k.region is None for node in k.group.outputs}
    return all(node in written for node in ids)


@dataclass(frozen=True, slots=True)
class _Matrices:
    """What the matrices of `count` experts are made of; somebody else reads `others`, too."""

    count: int
    number: Mapping[Argument, int]
    readers: Mapping[Node, Sequence[Node]]
    others: set[Node]

    def stacks(self, products: Iterable[Node]) -> tuple[Node, ...]:
        """The weights that these products read, an entry for each expert.

        None if one of them reads anything else for him, or if somebody else reads one of these.
        """
        found: dict[Node, None] = {}
        for product in products:
            behind = self._weights_behind(product.inputs[_MATRICES])
            if not behind or not all(map(self._is_for_products, behind)):
                return ()
            found |= behind
        return tuple(found)

    def _weights_behind(self, matrices: Node) -> dict[Node, None]:
        """The weights with an entry for each expert; none if there is more to it than weights."""
        found: dict[Node, None] = {}
        seen, stack = {matrices}, [matrices]
        while stack:
            node = stack.pop()
            if node.op.is_literal:
                continue
            if node.op.name in WEIGHTS and node in self.number:
                found[node] = None
                continue
            if not self._is_inside(node):
                return {}
            for place, operand in enumerate(node.inputs):
                is_own = self._is_own(node, place)
                if is_own is None:
                    return {}
                if is_own and operand not in seen:
                    seen.add(operand)
                    stack.append(operand)
        return found

    def _is_for_products(self, weight: Node) -> bool:
        """Whether nobody reads a weight but products by groups, as their matrices."""
        seen, stack = {weight}, [weight]
        while stack:
            node = stack.pop()
            if node in self.others:
                return False
            for reader in dict.fromkeys(self.readers.get(node, ())):
                places = [i for i, operand in enumerate(reader.inputs) if operand is node]
                if reader.op.name == "grouped_matmul" and places == [_MATRICES]:
                    continue
                if not self._is_inside(reader):
                    return False
                if not all(self._is_own(reader, place) for place in places):
                    return False
                if reader not in seen:
                    seen.add(reader)
                    stack.append(reader)
        return True

    def _is_inside(self, node: Node) -> bool:
        """Whether who reads a node computes it: there is no memory for it."""
        is_cheap = node.op.kind == "elementwise" or node.op.is_view
        return is_cheap and node not in self.number

    def _is_own(self, node: Node, place: int) -> bool | None:
        """Whether an operand has an entry for each expert, and the node's is made of that alone.

        False: it has the same numbers for all experts. None: neither.
        """
        operand = node.inputs[place]
        if node.type.shape[:1] != (self.count,):
            return None
        at: Indices = tuple(Index(f"i{axis}", dim) for axis, dim in enumerate(node.type.shape))
        if self.count == 1:
            at = (0, *at[1:])
        expert, read = at[0], operand_index(node, place, at, no_gather)
        is_read = [not atoms(expert).isdisjoint(atoms(dim)) for dim in read]
        if operand.type.shape[:1] == (self.count,) and read[0] == expert and not any(is_read[1:]):
            return True
        return None if any(is_read) else False
