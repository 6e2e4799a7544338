"""The loops of a plan: which operations they hold, and what they may not do.

    operations in the order they were added  --find_loops-->  PlanLoop (begin, end, counter, trip)

A loop is a fence at both ends. `fence_dependencies` says so in the words that the builder
has for order anyway: an operation follows the last fence before it, and a fence follows
everything since the last one. So no order that keeps dependencies moves anything in or out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semel.errors import PlanError, UnsupportedError, VariableError
from semel.ir.expr import Dim, Index, Variable, atoms, variables
from semel.plan.prepared import (
    PreparedCustomFunction,
    PreparedEnd,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
)


@dataclass(frozen=True, slots=True)
class PlanLoop:
    """The operations strictly between positions `begin` and `end` run `trip` times."""

    begin: int
    end: int
    counter: Variable
    trip: Dim


def find_loops(ops: Sequence[PreparedOp]) -> tuple[PlanLoop, ...]:
    """The loops in order; a PlanError names one that has no end, no beginning or no own name."""
    found: list[PlanLoop] = []
    begin: tuple[int, PreparedLoop] | None = None
    for position, op in enumerate(ops):
        if isinstance(op, PreparedLoop):
            if begin is not None:
                raise UnsupportedError(
                    f"op {op.id}",
                    f"a loop must not begin inside another, op {begin[1].id} has not ended.",
                    hint="Let kernels of one loop run over both counts.",
                )
            begin = (position, _checked(op, found))
        elif isinstance(op, PreparedEnd):
            if begin is None:
                raise PlanError(f"op {op.id}", "ends a loop, and none has begun.", op=op.id)
            start, loop = begin
            found.append(PlanLoop(start, position, Variable(loop.counter, 0), loop.trip))
            begin = None
    if begin is not None:
        raise PlanError(f"op {begin[1].id}", "begins a loop that has no end.", op=begin[1].id)
    return tuple(found)


def _checked(op: PreparedLoop, found: Sequence[PlanLoop]) -> PreparedLoop:
    where = f"op {op.id}"
    if any(loop.counter.name == op.counter for loop in found):
        raise PlanError(where, f"each loop needs a counter of its own, got '{op.counter}' twice.")
    if any(isinstance(atom, Index) for atom in atoms(op.trip)):
        raise PlanError(where, f"trip must be over the plan's variables, got {op.trip}.")
    if op.counter in {v.name for v in variables(op.trip)}:
        raise PlanError(where, f"trip must not depend on the counter, got {op.trip}.")
    return op


def fence_dependencies(ops: Sequence[PreparedOp]) -> list[tuple[int, ...]]:
    """For each operation the positions that it must follow because of loops."""
    fence: tuple[int, ...] = ()
    since: list[int] = []
    result: list[tuple[int, ...]] = []
    for position, op in enumerate(ops):
        if isinstance(op, (PreparedLoop, PreparedEnd)):
            result.append((*fence, *since))
            fence, since = (position,), []
        else:
            result.append(fence)
            since.append(position)
    return result


def loop_at(loops: Sequence[PlanLoop], position: int) -> int | None:
    """The number of the loop around an operation, or None."""
    for number, loop in enumerate(loops):
        if loop.begin < position < loop.end:
            return number
    return None


def counters(loops: Sequence[PlanLoop]) -> dict[str, Variable]:
    """The counters by name; nobody binds them."""
    return {loop.counter.name: loop.counter for loop in loops}


def check_counters(ops: Sequence[PreparedOp], loops: Sequence[PlanLoop]) -> None:
    """A counter may be used inside its own loop only."""
    number = {loop.counter.name: k for k, loop in enumerate(loops)}
    for position, op in enumerate(ops):
        if not isinstance(op, (PreparedKernel, PreparedCustomFunction)):
            continue
        for var in op.runtime_vars:
            known = number.get(var.name)
            if known is None or var.name in op.fixedvars or known == loop_at(loops, position):
                continue
            raise VariableError(
                f"op {op.id}",
                f"'{var.name}' counts the loop of op {ops[loops[known].begin].id} and has no "
                "value outside it.",
                variable=var.name,
            )
