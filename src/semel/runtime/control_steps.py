"""What holds for the control steps of a table, and where their points hold.

steps, loops, rebinds  --check_control-->  an InternalError, if the runner could go astray
                       --find_points-->  the points in the order of their registers
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.errors import InternalError
from semel.ir.abi import RowKind
from semel.runtime.registers import Point

if TYPE_CHECKING:
    from semel.runtime.optable import TableLoop, TableRebind, TableStep

JUMPS = (RowKind.BRANCH, RowKind.JUMP)


def check_control(
    steps: Sequence[TableStep], loops: Sequence[TableLoop], rebinds: Sequence[TableRebind]
) -> None:
    """Every control step has its record and leads somewhere; loops nest."""
    expected = {loop.first_step: RowKind.LOOP for loop in loops}
    expected |= {loop.last_step: RowKind.END for loop in loops}
    expected |= {rebind.step: RowKind.REBIND for rebind in rebinds}
    kinds = (RowKind.LOOP, RowKind.END, RowKind.REBIND)
    found = {i: step.kind for i, step in enumerate(steps) if step.kind in kinds}
    if found != expected or len(expected) != 2 * len(loops) + len(rebinds):
        raise InternalError("optable", f"control steps are {found}, records say {expected}.")
    for a, b in itertools.combinations(sorted(loops, key=lambda loop: loop.first_step), 2):
        if b.first_step < a.last_step < b.last_step:
            raise InternalError("optable", f"loops of {a.counter} and {b.counter} must nest.")
    for i, step in enumerate(steps):
        if step.kind in JUMPS:
            _check_jump(i, step.target, len(steps), loops)


def _check_jump(step: int, target: int, num_steps: int, loops: Sequence[TableLoop]) -> None:
    if not step < target <= num_steps:
        raise InternalError("optable", f"step {step} must lead to a later one, got {target}.")
    for loop in loops:
        inside = loop.first_step < step < loop.last_step
        if loop.first_step < target <= loop.last_step and not inside:
            raise InternalError("optable", f"step {step} leads into the loop of {loop.counter}.")


def find_points(
    steps: Sequence[TableStep], loops: Sequence[TableLoop], rebinds: Sequence[TableRebind]
) -> list[Point]:
    """The points of rebinds, then of loops, and the steps in which they hold."""
    found = []
    for rebind in rebinds:
        ends = [loop.last_step for loop in loops if loop.first_step < rebind.step < loop.last_step]
        ends += [
            step.target - 1
            for i, step in enumerate(steps)
            if step.kind in JUMPS and i < rebind.step < step.target
        ]
        found.append(Point(rebind.variables, rebind.step, min(ends, default=len(steps))))
    found += [Point((loop.counter,), loop.first_step, loop.last_step) for loop in loops]
    return found
