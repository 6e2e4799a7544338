"""Values that are made before any run, because constants and params alone determine them.

    expression over constants and params  --stored-->  a leaf that holds it

Passes ask here what is known before a run, and say here what should be made then and how it should
lie in memory. The expression is the recipe: nothing is computed by making the leaf.
"""

from __future__ import annotations

from semel.ir.graph import Graph, Node, attr_dims, make_node, rewrite
from semel.ops.attrs import StoredAttrs

#: Leaves whose data lies in memory before any run.
WEIGHTS = frozenset({"constant", "param", "stored"})
#: Leaves that need no run.
KNOWN = WEIGHTS | {"scalar"}
#: Views that show each element at most once, where numbers say: what a weight is packed under, and
#: experts are seen through.
PLAIN_VIEWS = ("reshape", "permute", "slice")


def stored(value: Node) -> Node:
    """A leaf that holds `value`, as its type says; what is stored below is made on the way."""
    graph = rewrite(Graph((value,)), _opened)
    return make_node("stored", (), StoredAttrs(graph))


def _opened(node: Node) -> Node | None:
    found: Node | None = node.attrs.value.outputs[0] if node.op.name == "stored" else None
    return found


def can_be_made(node: Node) -> bool:
    """Whether an op can be part of what is stored: kernels of fixed sizes that cannot fail."""
    match node.op.kind:
        case "movement":
            is_allowed = not node.op.gathers
        case "elementwise":
            is_allowed = node.op.index is None and not node.op.may_fail
        case "opaque":
            is_allowed = not (node.op.has_bodies or node.op.may_fail or node.op.moves)
        case kind:
            is_allowed = kind in ("reduce", "contract")
    dims = (*node.type.shape, *attr_dims(node.attrs))
    return is_allowed and all(isinstance(dim, int) for dim in dims)


def is_known(node: Node) -> bool:
    """Whether a node can be made before any run: weights alone determine it."""
    seen, stack = {node}, [node]
    while stack:
        each = stack.pop()
        if each.op.name not in KNOWN and not can_be_made(each):
            return False
        new = set(each.inputs) - seen
        seen |= new
        stack += new
    return True


def reads_params(leaf: Node) -> bool:
    """Whether the data of a leaf may be replaced."""
    if leaf.op.name == "stored":
        return any(node.op.name == "param" for node in leaf.attrs.value.nodes)
    return leaf.op.name == "param"
