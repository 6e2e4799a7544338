"""What must hold of a plan whose file nobody vouches for, beyond what every plan is checked for.

    ops, program  --check_calls, check_program-->  nothing, or a PlanError

A kernel that was confined to its buffers relies on three promises of whoever calls it: variables
lie in the ranges that the kernel was read with, buffers have at least the sizes that it declares,
now and after the plan has grown, and no buffer is used before or after its time in the arena. The
compiler keeps them; a file may say anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.errors import PlanError
from semel.ir.expr import substitute, upper_bound, variables
from semel.ir.prove import Budget, Knowledge
from semel.plan.loops import PlanLoop, find_loops, loop_at
from semel.plan.prepared import PreparedKernel, PreparedOp, RuntimeVar
from semel.plan.program import Program


def check_calls(ops: Sequence[PreparedOp]) -> None:
    """Every variable of a kernel must lie in the kernel's own range at every call."""
    loops = find_loops(ops)
    for position, op in enumerate(ops):
        if not isinstance(op, PreparedKernel):
            continue
        number = loop_at(loops, position)
        loop = None if number is None else loops[number]
        given = op.runtime_vars or tuple(RuntimeVar.of(v) for v in op.kernel.signature.variables)
        for own, var in zip(op.kernel.signature.variables, given, strict=True):
            low, high = _range(op, var, loop)
            if low < own.min or (own.max is not None and (high is None or high > own.max)):
                raise PlanError(
                    f"op {op.id} ({op.kernel.name})",
                    f"'{var.name}' must lie in the kernel's [{own.min}, {own.max}], "
                    f"got [{low}, {high}].",
                    variable=var.name,
                    op=op.id,
                )


def _range(op: PreparedKernel, var: RuntimeVar, loop: PlanLoop | None) -> tuple[int, int | None]:
    if var.name in op.fixedvars:
        return op.fixedvars[var.name], op.fixedvars[var.name]
    if loop is not None and loop.counter.name == var.name:
        most = upper_bound(loop.trip)
        return 0, None if most is None else max(most - 1, 0)
    return var.min_val, var.max_val


def check_program(program: Program) -> None:
    """Lifetimes hold every use, and buffers grow at least as fast as their kernels need."""
    facts = [side for guard, _ in program.guards for side in (guard, -guard)]
    known = Knowledge({}, {}, Budget(), facts)
    for position, op in enumerate(program.ops):
        signature = program.kernels[op.kernel].signature
        names = dict(zip(signature.variables, op.variables, strict=True))
        for arg, spec in zip(op.args, signature.buffers, strict=True):
            value = program.values[arg]
            where = f"op {position} ({signature.name})"
            if value.kind == "arena" and not value.first <= position <= value.last:
                raise PlanError(
                    where,
                    f"uses '{value.name}', which must live then, and lives from op "
                    f"{value.first} to {value.last}.",
                )
            size = substitute(spec.size, names)
            grows = any(v.max is None for v in variables(size))
            if grows and not known.proves(value.type.num_elements - size):
                raise PlanError(
                    where, f"'{value.name}' must always hold {size} elements, it is {value.type}."
                )
