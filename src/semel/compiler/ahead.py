"""Copies from other devices one reader early: while what was copied before is computed with.

    kernels in an order that can run  --copy_ahead-->  the same, copies of inputs early

What a run is given is there before the first kernel runs: a copy of it could begin at once. If
all of them did, all would be in memory at the same time. So the copies that one kernel is the
first to read stand right before the kernel that is the first to read the copies before them: while
one layer is computed the weights of the next one come in, into the room of those that are no longer
wanted. Two layers' worth of room is all that takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from semel.ir.graph import Node
from semel.lower.lowered import Lowered


def copy_ahead(
    kernels: Sequence[Lowered], device: str, devices: Mapping[Node, str]
) -> tuple[Lowered, ...]:
    """The kernels in an order in which copies of inputs run beside what is before their readers.

    `devices` says which nodes are not on the plan's own `device`.
    """
    stages = _stages(kernels, [_can_be_early(kernel, device, devices) for kernel in kernels])
    early = {k for copies in stages.values() for k in copies}
    readers = sorted(stages)
    # Before each reader, the copies for the next one; those for the first before everything.
    before = {at: stages[after] for at, after in pairwise(readers)}
    made = [kernels[k] for k in stages[readers[0]]] if readers else []
    for at, kernel in enumerate(kernels):
        made += [kernels[k] for k in before.get(at, ())]
        if at not in early:
            made.append(kernel)
    return tuple(made)


def _stages(kernels: Sequence[Lowered], can_be_early: Sequence[bool]) -> dict[int, list[int]]:
    """The copies that can be early, by where the first reader stands that waits for them."""
    copies = {
        kernel.args[0]: k
        for k, (kernel, is_early) in enumerate(zip(kernels, can_be_early, strict=True))
        if is_early
    }
    found: dict[int, list[int]] = {}
    start = 0
    for at, kernel in enumerate(kernels if copies else ()):
        if kernel.region is None or not at or kernels[at - 1].region is None:
            start = at  # of what is inside of loops and branches, all of them are one place
        for argument in dict.fromkeys(kernel.args):
            if copies.get(argument, at) != at:
                found.setdefault(start, []).append(copies.pop(argument))
    return {at: sorted(several) for at, several in found.items()}


def _can_be_early(kernel: Lowered, device: str, devices: Mapping[Node, str]) -> bool:
    """Whether it copies an input of the run, which no kernel writes, from another device."""
    if not kernel.is_copy or kernel.region is not None:
        return False
    source = kernel.args[1]
    if not isinstance(source, Node) or source.op.name != "input":
        return False
    lies = devices.get(source) or source.attrs.device or device
    return lies != (kernel.device or device)
