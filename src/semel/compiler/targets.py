"""What code the devices of a plan need: that of its own, and others where they have another target.

    graph, device, target  --find_targets-->  Targets  --of(device)-->  Target

Lowering and the layout of weights ask the target of the device that a node is on; everything
before them is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from semel.devices import find_backend
from semel.ir.target import Target


@dataclass(frozen=True, slots=True)
class Targets:
    """The target of the plan's own device, and those of others, by device, that differ from it."""

    own: Target
    others: Mapping[str, Target]

    def of(self, device: str) -> Target:
        """What kernels on a device are compiled for; "" is the plan's own."""
        return self.others.get(device, self.own)

    @property
    def distinct(self) -> tuple[Target, ...]:
        """Each of them once, the plan's own first."""
        return tuple(dict.fromkeys([self.own, *self.others.values()]))


def find_targets(device: str, target: Target, devices: Iterable[str]) -> Targets:
    """Those of `devices`, of which a plan on `device` that is compiled for `target` makes use.

    A device that could run the code of the plan's own runs it: who asks for a lesser target asks
    for all of them. One that only stores runs none.
    """
    others = {}
    for each in dict.fromkeys(devices):
        backend = find_backend(each)
        if backend.computes and backend.target() != find_backend(device).target():
            others[each] = backend.target()
    return Targets(target, others)
