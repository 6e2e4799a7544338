"""What kernels are called, for people.

    Group --kernel_name--> "layer_norm", "matmul_add_gelu", "conv_depthwise_bn_relu"

A name says what is computed, in order: the functions that were called (`Node.made_by`) and, where
arithmetic was written out, the ops. What only moves elements is not mentioned, unless there is
nothing else; what feeds a contraction is a part of it. Names are of calls, not of code: groups with
equal kernels share one, whatever they are called.
"""

from __future__ import annotations

from collections.abc import Iterator

from semel.ir.graph import Node
from semel.schedule.group import Group

#: Parts that a name has at most.
MAX_PARTS = 4


def kernel_name(group: Group) -> str:
    """What the kernel of a group computes."""
    if all(node.type.num_elements == 0 for node in group.outputs):
        return "empty"
    parts = list(dict.fromkeys(_parts(group)))
    if not parts:
        return _moving(group.root)
    if len(parts) > MAX_PARTS:
        rest = len(parts) - MAX_PARTS + 1
        parts = [*parts[: MAX_PARTS - 1], f"and_{rest}_more"]
    return "_".join(parts)


def _parts(group: Group) -> Iterator[str]:
    nodes = group.inside
    if group.contract in nodes:
        nodes = nodes[nodes.index(group.contract) :]
    for node in nodes:
        if node.op.kind not in ("leaf", "movement", "update") or node.op.parts is not None:
            yield _part(node, group)


def _part(node: Node, group: Group) -> str:
    name = node.op.kernel_name or node.made_by or node.op.name.removeprefix("reduce_")
    is_depthwise = name == "conv" and group.contract is None and bool(group.reduces)
    return "conv_depthwise" if is_depthwise else name


def _moving(node: Node) -> str:
    """What is moved for whom: the padding of a convolution."""
    name, caller = node.op.name, node.made_by
    return f"{caller}_{name}" if caller and caller != name else name
