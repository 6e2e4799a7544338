"""A dim whose tensors keep their largest shape while a run takes only the first rows.

    x : f32[n,4] --> y : f32[n,4]      --with_extent("n", at most 8)-->
    x : f32[8,4], slice : f32[n,4] --> y : f32[n,4], update of a frame : f32[8,4]

Inside, sizes follow from n alone: a mean, a softmax or an attention over the rows is that of the
graph with exactly n of them. Reading a slice is index arithmetic, and what updates the frame stores
the new rows at their places in the output's memory: nothing is padded, masked or copied. Why this
way: docs/decisions/0069-extents.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from semel.errors import GraphError
from semel.ir.expr import Dim, Variable, is_nonnegative, substitute, variables
from semel.ir.graph import Graph, Node, make_node, stands_for
from semel.ir.types import Shape, TensorType
from semel.ops.attrs import FrameAttrs, InputAttrs, SliceAttrs, UpdateAttrs


def find_extent(graph: Graph, wanted: str | bool) -> Variable:
    """The dim of inputs that is called so; of True, the only one there is."""
    held = {each.variable for each in graph.held}
    dims = [v for node in graph.inputs for size in node.type.shape for v in variables(size)]
    known = {v.name: v for v in dims if v not in held}
    names = ", ".join(sorted(known)) or "none"
    if wanted is True and len(known) == 1:
        (found,) = known.values()
    elif isinstance(wanted, str) and wanted in known:
        found = known[wanted]
    elif wanted is True:
        raise GraphError(
            "extent",
            f"must be named where inputs have not just one symbolic dim; there are: {names}.",
            hint='extent="rows" names one.',
        )
    else:
        raise GraphError("extent", f"must be a dim of inputs ({names}), got {wanted!r}.")
    if found.max is None:
        raise GraphError(
            "extent",
            f"'{found.name}' must have a largest value: inputs and outputs are of that size.",
            hint=f'dims={{"{found.name}": (1, 512)}} gives it one.',
        )
    return found


def with_extent(graph: Graph, extent: Variable) -> tuple[Graph, dict[Node, Node]]:
    """The graph with inputs and outputs of the largest shape, and what each node became.

    An input became the leaf, and an output that which is read after a run.
    """
    new: dict[Node, Node] = {}
    leaves: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op.name == "input" and _has(node.type.shape, extent):
            leaves[node] = leaf = _whole_input(node, extent)
            new[node] = _first_rows(leaf, node.type.shape)
        else:
            new[node] = make_node(node.op.name, [new[n] for n in node.inputs], node.attrs)
        stands_for(new[node], node)
    outputs: dict[Node, Node] = {}
    for name, node in graph.results:
        if node not in outputs and _has(node.type.shape, extent):
            outputs[node] = _output(name, new[node], extent)
            stands_for(outputs[node], node)
    before = len(graph.outputs) - len(graph.values)
    first = tuple(new[n] for n in graph.outputs[:before])
    made = Graph(
        (*first, *(outputs.get(n, new[n]) for n in graph.values)),
        graph.names,
        graph.late,
        graph.updates,
        graph.held,
        graph.guards,
        tuple(leaves.get(n, new[n]) for n in graph.declared),
    )
    return made, {**new, **leaves, **outputs}


def _has(shape: Shape, extent: Variable) -> bool:
    return any(extent in variables(size) for size in shape)


def _whole(kind: TensorType, extent: Variable, where: str) -> TensorType:
    """The type at the largest extent; every part of it must fit in there."""
    assert extent.max is not None
    most: Mapping[Variable, Dim] = {extent: extent.max}
    shape = tuple(substitute(size, most) for size in kind.shape)
    for axis, (size, room) in enumerate(zip(kind.shape, shape, strict=True)):
        if not is_nonnegative(room - size):
            raise GraphError(
                where,
                f"must be largest where '{extent.name}' is: axis {axis} is {size}, then {room}.",
            )
    return TensorType(shape, kind.dtype)


def _whole_input(node: Node, extent: Variable) -> Node:
    name, part = node.attrs.name, node.type.shape
    whole = _whole(node.type, extent, f"input '{name}'")
    made = make_node(
        "input", (), InputAttrs(name, whole, node.attrs.default, part, node.attrs.device)
    )
    stands_for(made, node)
    return made


def _first_rows(node: Node, shape: Shape) -> Node:
    rank = len(shape)
    return make_node("slice", (node,), SliceAttrs((0,) * rank, shape, (1,) * rank))


def _output(name: str, node: Node, extent: Variable) -> Node:
    """The output of the largest shape, of which the node is the first rows."""
    frame = make_node("frame", (), FrameAttrs(name, _whole(node.type, extent, f"output '{name}'")))
    return make_node("update", (frame, node), UpdateAttrs((0,) * node.type.rank))
