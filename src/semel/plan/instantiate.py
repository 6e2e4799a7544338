"""A compiled program becomes a plan: it gets memory, and everything is checked.

Program  --instantiate-->  ExecutionPlan
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from semel.config import settings
from semel.errors import VariableError
from semel.ir.fields import MemoryLimit
from semel.plan.check import check_plan
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program, check_program
from semel.plan.report.told import tell_memory
from semel.plan.room import FIRST_ROOM
from semel.plan.store import StoreOptions, first_store
from semel.runtime.device import find_device


def instantiate(
    program: Program,
    *,
    threads: int | None = None,
    memory_limit: MemoryLimit = None,
    bindings: Mapping[str, int] | None = None,
    arena: bool | None = None,
) -> ExecutionPlan:
    """A plan of its own: fresh buffers, shared kernels and constants.

    `memory_limit` bounds the bytes of weights, arena, IO and scratch together. `bindings` are
    the first values of variables; the others are unbound, or what the program says. With `arena`
    False (else: as the settings say) no two intermediates share a byte.
    """
    check_program(program)
    first = {**_first_rooms(program), **_checked_bindings(program, bindings or {})}
    is_shared = settings().arena if arena is None else arena
    capacities, store = first_store(program, first, StoreOptions(memory_limit, is_shared))
    device = find_device(program.device)
    count = device.default_threads() if threads is None else threads
    declared = [
        known
        if known.next is not None
        else replace(known, initial=first.get(name, known.initial), capacity=capacities.get(name))
        for name, known in ((v.variable.name, v) for v in program.variables)
    ]
    parts = check_plan(program, store.buffers, device, count, declared)
    plan = ExecutionPlan(parts, store)
    if parts.scope.scratch_bytes(parts.ops):
        store.check_scratch(plan.memory.scratch_bytes)
    tell_memory(plan)
    return plan


def _first_rooms(program: Program) -> dict[str, int]:
    """Room for sizes that no run has found out yet."""
    return {name: max(room.min, FIRST_ROOM) for name, room in program.rooms.items()}


def _checked_bindings(program: Program, bindings: Mapping[str, int]) -> dict[str, int]:
    """The first values of variables by name, each within its bounds."""
    known = {v.variable.name: v.variable for v in program.variables if v.next is None}
    unknown = [name for name in bindings if name not in known]
    if unknown:
        raise VariableError(
            "bindings",
            f"must be of variables that the plan has ({', '.join(known) or 'none'}), "
            f"got {', '.join(map(str, unknown))}.",
            variable=unknown[0],
        )
    fixed = {v.name: v.min for v in known.values() if v.min == v.max}
    return fixed | dict(known[name].bind(value) for name, value in bindings.items())
