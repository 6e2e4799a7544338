"""Groups that compute the same thing on other tensors.

    Group --group_key--> a value that is equal for groups with equal kernels

Six identical layers have six groups of every kind; one is lowered, formatted and
encoded, the others take its kernel with tensors of their own. The key numbers nodes
by their place in the group, so that it says what is computed and not on what.
"""

from __future__ import annotations

from typing import Any

from semel.ir.graph import Node
from semel.schedule.group import Group


def group_key(group: Group) -> Any:
    """What lowering sees of a group: structure, types and attributes, no identities."""
    place: dict[Node, Any] = {n: ("read", i) for i, n in enumerate(group.reads)}
    steps = []
    for i, node in enumerate(group.inside):
        # The state that an update is of is memory, whose name says nothing of the kernel.
        read = node.inputs[1:] if node.op.kind == "update" else node.inputs
        refs = tuple(_reference(n, place) for n in read)
        steps.append((node.op.name, node.attrs, node.type, refs))
        place[node] = ("node", i)
    loops = {index: position for position, index in enumerate(group.loops)}
    return (
        group.kind,
        tuple(steps),
        tuple(n.type for n in group.reads),
        tuple(place[n] for n in group.outputs),
        place[group.root],
        None if group.outer is None else frozenset(loops[i] for i in group.outer),
        tuple(place[n] for n in group.reduces),
        tuple((place[n], tuple(loops.get(i, i) for i in at)) for n, at in group.rows.items()),
        None if group.contract is None else place[group.contract],
        None if group.scores is None else place[group.scores],
    )


def _reference(node: Node, place: dict[Node, Any]) -> Any:
    if node in place:
        return place[node]
    return (node.op.name, node.attrs)  # a scalar, which is part of the code


def args_like(first: Group, args: tuple[Node, ...], other: Group) -> tuple[Node, ...]:
    """The tensors of `other` in the roles that `args` have in `first`."""
    role = dict(zip(first.reads, other.reads, strict=True))
    role.update(zip(first.inside, other.inside, strict=True))
    return tuple(role[n] for n in args)
