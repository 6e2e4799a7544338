"""Groups that read the same data side by side become one kernel.

    groups --merge_siblings--> fewer groups

Two groups may join if they loop over the same elements in the same way, read a
common tensor of that size, and neither needs the other's result: sum and max of one
tensor, sine and cosine of one tensor. The tensor is then read once. Both are on one device. Groups
that compute one number each, with no loop inside, join whatever they read: the call of a kernel
costs more than the number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.ir.expr import Index, product
from semel.ir.graph import Node
from semel.ir.types import Shape
from semel.schedule.group import MAX_OUTPUTS, MAX_WORK, Group
from semel.schedule.reasons import ONE_NUMBER, SAME_READS, Why


def merge_siblings(
    groups: list[Group],
    depends: dict[Group, set[Group]],
    reaches: Callable[[Group, Group], bool],
) -> list[tuple[Group, Group, Why]]:
    """Join what can be joined, in place; returns who was kept, who is gone, and why."""
    joined: list[tuple[Group, Group, Why]] = []
    by_shape: dict[Any, list[Group]] = {}
    for group in list(groups):
        if group.kind != "loops":
            continue
        for other in by_shape.setdefault(_shape_key(group), []):
            cause = _why_together(group, other)
            if cause is not None and _fits(group, other):
                if reaches(group, other) or reaches(other, group):
                    continue
                _join(other, group, depends)
                groups.remove(group)
                joined.append((other, group, cause))
                break
        else:
            by_shape[_shape_key(group)].append(group)
    return joined


def _shape_key(group: Group) -> Any:
    """Groups with equal keys have the same loops and the same phases, on one device."""
    outer = None
    if group.outer is not None:
        outer = tuple(isinstance(i, Index) and i in group.outer for i in group.loops)
    extents = frozenset(
        (n.inputs[0].type.shape, n.attrs.axes if n.attrs.chunk is None else n.attrs)
        for n in group.reduces
    )
    return group.device, group.shape, outer, extents


def _why_together(a: Group, b: Group) -> Why | None:
    """Why two groups of equal shape are better one; None if they are not."""
    walked = {n.inputs[0].type.shape for n in (*a.reduces, *b.reduces)}
    walked.add(a.shape)
    common: set[Node] = set(a.reads) & set(b.reads)
    if any(walked & _seen(n, a) & _seen(n, b) for n in common):
        return SAME_READS
    return ONE_NUMBER if product(a.shape) == 1 and not a.reduces else None


def _seen(node: Node, group: Group) -> set[Shape]:
    """The shapes in which a group reads a tensor: its own, and those of slices of it."""
    slices = {n.type.shape for n in group.inside if n.op.name == "slice" and node in n.inputs}
    return {node.type.shape, *slices}


def _fits(a: Group, b: Group) -> bool:
    return len(a.outputs) + len(b.outputs) <= MAX_OUTPUTS and a.work + b.work <= MAX_WORK


def _join(kept: Group, gone: Group, depends: dict[Group, set[Group]]) -> None:
    for name in ("outputs", "inside", "reads", "reduces"):
        mine: list[Node] = getattr(kept, name)
        mine += [n for n in getattr(gone, name) if n not in mine]
    mine_of = dict(zip(gone.loops, kept.loops, strict=True))
    for node, at in gone.rows.items():
        kept.rows.setdefault(node, tuple(0 if i == 0 else mine_of[i] for i in at))
    kept.work += gone.work
    depends[kept] |= depends.pop(gone)
    for needs in depends.values():
        if gone in needs:
            needs.discard(gone)
            needs.add(kept)
    depends[kept].discard(kept)
