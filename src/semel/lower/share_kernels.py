"""Groups that compute the same thing on other tensors.

    Group --group_key--> a value that is equal for groups with equal kernels

Six identical layers have six groups of every kind; one is lowered, formatted and
encoded, the others take its kernel with tensors of their own. The key numbers nodes
by their place in the group, so that it says what is computed and not on what.

Later graphs may share small kernels, too (`SharedKernel`): a graph that was not seen before is
often made of groups that were. What is shared holds no node and no data; whoever compiles keeps it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from semel.ir.expr import Index, substitute
from semel.ir.graph import Node
from semel.ir.target import Target
from semel.kernel.ir import Kernel
from semel.lower.lowered import Lowered, nodes_of
from semel.schedule.group import Group

MAX_NODES = (
    32  #: of a group whose kernel is: larger ones are lowered for longer than they are found
)


class KernelKey:
    """What lowering sees of a group, and the target; it is looked up several times, hashed once."""

    __slots__ = ("_hash", "_seen")

    def __init__(self, group: Group, target: Target) -> None:
        self._seen = (group_key(group), target)
        self._hash = hash(self._seen)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelKey) and self._seen == other._seen


def group_key(group: Group) -> Any:
    """What lowering sees of a group: structure, types and attributes, no identities."""
    place: dict[Node, Any] = {n: ("read", i) for i, n in enumerate(group.reads)}
    steps = []
    for i, node in enumerate(group.inside):
        # The state that an update is of is memory, whose name says nothing of the kernel.
        read = node.inputs[1:] if node.op.kind == "update" else node.inputs
        refs = tuple(_reference(n, place) for n in read)
        # A check tells the line that it is of.
        lines = node.origins if node.op.may_fail else ()
        steps.append((node.op.name, node.attrs, node.type, refs, lines))
        place[node] = ("node", i)
    # By position: in another schedule the same loop has another name, and another loop this one.
    loops = {
        index: Index(f"loop{position}", index.extent)
        for position, index in enumerate(group.loops)
        if isinstance(index, Index)
    }
    return (
        group.kind,
        tuple(steps),
        tuple(n.type for n in group.reads),
        tuple(place[n] for n in group.outputs),
        place[group.root],
        None if group.outer is None else frozenset(loops[i] for i in group.outer),
        tuple(place[n] for n in group.reduces),
        tuple((place[n], tuple(substitute(i, loops) for i in at)) for n, at in group.rows.items()),
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


# ---------------------------------------------------------------- kernels of other graphs


@dataclass(frozen=True, slots=True)
class SharedKernel:
    """A kernel, and which node of a group each of its buffers is: of those read, then inside."""

    kernel: Kernel
    roles: tuple[int, ...]
    choice: str
    has_lanes: bool

    def for_group(self, group: Group) -> Lowered:
        """The kernel on the tensors of a group of the same key."""
        nodes = [*group.reads, *group.inside]
        args = tuple([nodes[role] for role in self.roles])
        return Lowered(self.kernel, args, group, self.choice, has_lanes=self.has_lanes)


class SharedKernels(Protocol):
    """Kernels by what they were lowered from: those of other graphs."""

    def find(self, key: Hashable) -> SharedKernel | None: ...

    def add(self, key: Hashable, kernel: SharedKernel) -> None: ...


def shared_kernel(lowered: Lowered) -> SharedKernel | None:
    """What later graphs may use of a kernel; None if it is large, or names a line of this one."""
    if lowered.kernel.checks or len(lowered.group.inside) > MAX_NODES:
        return None
    place = {n: i for i, n in enumerate((*lowered.group.reads, *lowered.group.inside))}
    roles = tuple([place[n] for n in nodes_of(lowered)])
    return SharedKernel(lowered.kernel, roles, lowered.choice, lowered.has_lanes)
