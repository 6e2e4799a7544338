"""What must hold of a plan whose file nobody vouches for, beyond what every plan is checked for.

    rows, program  --check_calls, check_lives, check_names-->  nothing, or a PlanError

A kernel that was confined to its buffers relies on three promises of whoever calls it: variables
lie in the ranges that the kernel was read with, buffers have at least the sizes that it declares,
now and after the plan has grown, and no buffer is used before or after its time in the arena. The
compiler keeps them; a file may say anything. Nor may it say which files are written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from semel.errors import PlanError
from semel.ir.expr import Variable, substitute, variables
from semel.ir.prove import Budget, Knowledge
from semel.plan.program import Program
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedCopy, PreparedKernel
from semel.plan.tree import Placed
from semel.plan.variables import count_ranges
from semel.runtime.spec import DeviceSpec


def check_calls(rows: Sequence[Placed]) -> None:
    """Every variable of a kernel must lie in the kernel's own range at every call."""
    ranges = count_ranges(rows)
    for placed in rows:
        row = placed.row
        if not isinstance(row, PreparedKernel):
            continue
        given = row.runtime_vars or tuple(RuntimeVar.of(v) for v in row.kernel.signature.variables)
        for own, var in zip(row.kernel.signature.variables, given, strict=True):
            low, high = _range(ranges, row, var)
            if low < own.min or (own.max is not None and (high is None or high > own.max)):
                raise PlanError(
                    f"op {row.id} ({row.name})",
                    f"'{var.name}' must lie in the kernel's [{own.min}, {own.max}], "
                    f"got [{low}, {high}].",
                    variable=var.name,
                    op=row.id,
                )


def _range(
    counters: Mapping[str, Variable], row: PreparedKernel, var: RuntimeVar
) -> tuple[int, int | None]:
    if var.name in row.fixedvars:
        return row.fixedvars[var.name], row.fixedvars[var.name]
    if var.name in counters:
        return 0, counters[var.name].max
    return var.min_val, var.max_val


def check_names(program: Program, also: Iterable[str] = ()) -> None:
    """No device may be a file: to open it makes it, and runs write there."""
    named = [program.device, *(value.device for value in program.values), *also]
    named += [placed.row.device for placed in program.walk()]
    for name in dict.fromkeys(filter(None, named)):
        if DeviceSpec.parse(name, "decode").path is not None:
            raise PlanError(
                "load_plan",
                f"a plan from a file that is not trusted must not name files, it names {name}.",
                hint="Load a file you trust with trust=True.",
                device=name,
            )


def check_lives(program: Program) -> None:
    """Lifetimes hold every use, and buffers grow at least as fast as their rows need."""
    facts = [side for guard, _ in program.guards for side in (guard, -guard)]
    known = Knowledge({}, {}, Budget(), facts)
    for placed in program.walk():
        _check_life(program, placed)
        match placed.row:
            case PreparedKernel():
                _check_growth(program, placed.row, known)
            case PreparedCopy():
                _check_copied(program, placed.row)


def _check_life(program: Program, placed: Placed) -> None:
    for value in (program.values[arg] for arg in placed.row.buffer_indices):
        if value.place == "arena" and not value.first <= placed.position <= value.last:
            raise PlanError(
                f"op {placed.position} ({placed.row.name})",
                f"uses '{value.name}', which must live then, and lives from op "
                f"{value.first} to {value.last}.",
            )


def _check_growth(program: Program, row: PreparedKernel, known: Knowledge) -> None:
    signature = row.kernel.signature
    given = [var.as_variable() for var in row.runtime_vars]
    names = dict(zip(signature.variables, given, strict=True))
    for arg, spec in zip(row.buffer_indices, signature.buffers, strict=True):
        value, size = program.values[arg], substitute(spec.size, names)
        grows = any(v.max is None for v in variables(size))
        if grows and not known.proves(value.type.num_elements - size):
            raise PlanError(
                f"op {row.id} ({row.name})",
                f"'{value.name}' must always hold {size} elements, it is {value.type}.",
            )


def _check_copied(program: Program, row: PreparedCopy) -> None:
    sizes = [program.values[arg].type.num_bytes for arg in row.buffer_indices]
    if row.size is not None:
        sizes.append(row.size)
    if len(set(sizes)) > 1:
        message = (
            f"what is copied must have one size at all values, got {sizes[0]} and {sizes[-1]}."
        )
        raise PlanError(f"op {row.id} (copy)", message, op=row.id)
