"""Which weights of a program are stacks of experts: read one matrix at a time, by nobody else.

    Graph, kernels  --find_experts-->  ExpertLayer{ids, stacks}, by values

A product by groups reads the matrices of the groups that have rows. A weight that only such
products read, and that has one matrix after the other, need not be in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from semel.ir.graph import Graph, Node, users
from semel.lower.lowered import Argument, Lowered
from semel.ops.grouped import source_of
from semel.ops.stored import WEIGHTS
from semel.plan.program import ExpertLayer

_VIEWS = ("reshape", "permute", "slice")


def find_experts(
    graph: Graph, kernels: Sequence[Lowered], number: Mapping[Argument, int]
) -> tuple[ExpertLayer, ...]:
    """The layers of a graph; those inside of loops and branches are none."""
    if "grouped_matmul" not in graph.ops:
        return ()
    products = [node for node in graph.nodes if node.op.name == "grouped_matmul"]
    layers: dict[tuple[Node, int], list[Node]] = {}
    for node in products:
        lines, count = node.inputs[2], node.inputs[1].type.shape[0]
        if lines.op.name == "group_rows" and isinstance(count, int):
            layers.setdefault((source_of(lines.inputs[0]), count), []).append(node)
    others = _read_elsewhere(graph, kernels)
    found = []
    for (_, count), nodes in layers.items():
        ids = dict.fromkeys(number.get(node.inputs[2].inputs[0]) for node in nodes)
        stacks = dict.fromkeys(_stack(node.inputs[1]) for node in nodes)
        read = tuple(number[s] for s in stacks if s is not None and s not in others and s in number)
        known = tuple(i for i in ids if i is not None)
        if len(known) == len(ids) and _are_made(kernels, [n.inputs[2].inputs[0] for n in nodes]):
            found.append(ExpertLayer(known, count, read))
    return tuple(found)


def _are_made(kernels: Sequence[Lowered], ids: Iterable[Node]) -> bool:
    """Whether kernels of the graph write these."""
    written = {node for k in kernels if k.region is None for node in k.group.outputs}
    return all(node in written for node in ids)


def _stack(matrices: Node) -> Node | None:
    """The weight behind matrices, if it has those of one expert after those of another."""
    count = matrices.type.shape[0]
    while matrices.op.name in _VIEWS:
        node, below = matrices, matrices.inputs[0]
        is_first = below.type.shape[:1] == (count,)
        match node.op.name:
            case "permute":
                is_first = is_first and node.attrs.axes[0] == 0
            case "slice":
                is_first = is_first and node.attrs.starts[0] == 0 and node.attrs.steps[0] == 1
        if not is_first:
            return None
        matrices = below
    return matrices if matrices.op.name in WEIGHTS else None


def _read_elsewhere(graph: Graph, kernels: Sequence[Lowered]) -> set[Node]:
    """The weights that something else reads than products by groups, as their matrices."""
    readers = users(graph.nodes)
    weights = [node for node in graph.nodes if node.op.name in WEIGHTS]
    found = {weight for weight in weights if not _is_for_products(weight, readers)}
    inside = (arg for k in kernels if k.region is not None for arg in k.args)
    return found | {arg for arg in inside if isinstance(arg, Node)} | set(graph.outputs)


def _is_for_products(node: Node, readers: Mapping[Node, Sequence[Node]]) -> bool:
    return all(
        (reader.op.name in _VIEWS and _is_for_products(reader, readers))
        or (
            reader.op.name == "grouped_matmul"
            and [n is node for n in reader.inputs] == [False, True, False]
        )
        for reader in readers.get(node, ())
    )
