"""Copies from other devices, begun while what was copied before is computed with.

    calls in an order that can run  --copy_ahead-->  the same, copies of leaves one reader early

What a run is given is there before the first kernel runs: a copy of it could begin at once. If
all of them did, all would be in memory at the same time. So the copies that one kernel is the
first to read stand right before the kernel that is the first to read the copies before them: while
one layer is computed the weights of the next one come in, into the room of those that are no longer
wanted. Two layers' worth of room is all that takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from semel.ir.graph import Node
from semel.lower.lowered import Argument, Elsewhere, Lowered
from semel.ops.stored import WEIGHTS

C = TypeVar("C")


def copy_ahead(
    calls: Sequence[tuple[Lowered, C]], lies: Mapping[Argument, str]
) -> list[tuple[Lowered, C]]:
    """The calls in an order in which copies of leaves run beside what is before their readers.

    `lies` says on which device each value is.
    """
    stages = _stages([lowered for lowered, _ in calls], lies)
    if not stages:
        return list(calls)
    early = {k for copies in stages.values() for k in copies}
    readers = sorted(stages)
    # Before each reader, the copies for the next one; those for the first before everything.
    before = {at: stages[after] for at, after in pairwise(readers)}
    made = [calls[k] for k in stages[readers[0]]]
    for at, call in enumerate(calls):
        made += [calls[k] for k in before.get(at, ())]
        if at not in early:
            made.append(call)
    return made


def _stages(kernels: Sequence[Lowered], lies: Mapping[Argument, str]) -> dict[int, list[int]]:
    """The copies that can be early, by where the first reader stands that waits for them."""
    copies = {kernel.args[0]: k for k, kernel in enumerate(kernels) if _can_be_early(kernel, lies)}
    found: dict[int, list[int]] = {}
    start = 0
    for at, kernel in enumerate(kernels):
        if kernel.region is None or not at or kernels[at - 1].region is None:
            start = at  # of what is inside of loops and branches, all of them are one place
        for argument in dict.fromkeys(kernel.args):
            k = copies.get(argument)
            if k is not None and k != at:
                found.setdefault(start, []).append(copies.pop(argument))
    return {at: sorted(several) for at, several in found.items()}


def _can_be_early(kernel: Lowered, lies: Mapping[Argument, str]) -> bool:
    """Whether it copies, on a lane of its own, what no kernel of the run writes."""
    if not kernel.is_copy or kernel.region is not None:
        return False
    to, source = kernel.args
    if lies[to] == lies[source]:
        return False
    leaf = source.leaf if isinstance(source, Elsewhere) else source
    return isinstance(leaf, Node) and leaf.op.name in ("input", *WEIGHTS)
