"""The variables of a plan: bound by the caller, counters of loops, late ones.

    rows in a tree x declared variables  --all_variables-->  variables by name, late variables

Bound variables have values everywhere, a counter inside its loop, a late variable behind its rebind
up to the end of the list that this is in. What several rows say about one variable is met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from semel.errors import PlanError, VariableError
from semel.ir.expr import Dim, Index, Variable, atoms, substitute, upper_bound, variables
from semel.ir.types import TensorType
from semel.plan.program import PlanVariable, Program
from semel.plan.row import RuntimeVar
from semel.plan.rows import (
    PreparedCustomFunction,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    PreparedRebind,
)
from semel.plan.tree import Around, Placed

#: Variables that the runtime owns: kernels learn who they are from their lane.
RESERVED_VARIABLES = frozenset({"core_id"})

# ---------------------------------------------------------------- loops


def check_loops(placed: Sequence[Placed]) -> dict[str, Variable]:
    """The counters by name; each has a name of its own and is used inside its loop only."""
    loops: dict[str, Placed] = {}
    for p in placed:
        if isinstance(p.row, PreparedLoop):
            _check_loop(p.row, loops)
            loops[p.row.counter] = p
    for p in placed:
        around = {loop.counter for loop in p.loops}
        for name in _used(p.row):
            if name in loops and name not in around:
                raise VariableError(
                    f"op {p.row.id}",
                    f"'{name}' counts the loop of op {loops[name].row.id} and has no value "
                    "outside it.",
                    variable=name,
                )
    return {name: Variable(name, 0) for name in loops}


def count_ranges(
    placed: Sequence[Placed], known: Mapping[str, Variable] | None = None
) -> dict[str, Variable]:
    """The counters by name with the most that each can be, whatever trips say of the others.

    `known` are other variables, if they are bounded otherwise than in the trips.
    """
    found: dict[str, Variable] = {}
    for row in (p.row for p in placed):
        if isinstance(row, PreparedLoop):
            top = upper_bound(with_ranges(row.trip, {**(known or {}), **found}))
            most = None if top is None else max(top - 1, 0)
            found[row.counter] = Variable(row.counter, 0, most)
    return found


def with_ranges(value: Dim, ranges: Mapping[str, Variable]) -> Dim:
    """The expression with these variables in the place of those of their names."""
    return substitute(value, {v: ranges[v.name] for v in variables(value) if v.name in ranges})


def _used(row: PreparedOp) -> list[str]:
    """The variables that a row needs the values of, itself."""
    fixed = getattr(row, "fixedvars", {})
    names = [var.name for var in row.runtime_vars if var.name not in fixed]
    return names + [v.name for dim in row.dims for v in variables(dim)]


def _check_loop(op: PreparedLoop, found: Mapping[str, Placed]) -> None:
    where = f"op {op.id}"
    check_reserved(where, op.counter)
    if op.counter in found:
        raise PlanError(where, f"each loop needs a counter of its own, got '{op.counter}' twice.")
    if op.counter in {v.name for v in variables(op.trip)}:
        raise PlanError(where, f"trip must not depend on the counter, got {op.trip}.")


# ---------------------------------------------------------------- variables


def check_late(program: Program, placed: Sequence[Placed]) -> None:
    """A late variable is used behind its rebind, and not outside the list that this is in."""
    late = {var.name for p in placed for var in _told(p.row)}
    known: dict[str, tuple[Around, ...]] = {}
    for p in placed:
        for name in _used_before(p.row):
            lists = known.get(name)
            if name in late and (lists is None or p.around[: len(lists)] != lists):
                raise VariableError(
                    f"op {p.row.id}",
                    f"'{name}' has no value here: a rebind must give it one before.",
                    variable=name,
                )
        known |= {var.name: p.around for var in _told(p.row)}
    _check_late_shapes(program, known)
    for expr, message in program.guards:
        _check_late_guard(expr, message, known)


def _used_before(row: PreparedOp) -> list[str]:
    """The variables that a row needs the values of; a rebind's guards may hold its own."""
    if not isinstance(row, PreparedRebind):
        return _used(row)
    limits, own = len(row.limits), {var.name for var in row.variables}
    before = [v.name for dim in row.dims[:limits] for v in variables(dim)]
    return before + [v.name for d in row.dims[limits:] for v in variables(d) if v.name not in own]


def _told(row: PreparedOp) -> tuple[RuntimeVar, ...]:
    """The variables that a row gives values."""
    return tuple(variable for variable, _ in row.late)


def _check_late_shapes(program: Program, known: Mapping[str, tuple[Around, ...]]) -> None:
    """Inputs have their shapes before a run; outputs behind it, whatever it came through."""
    for io in program.inputs:
        for name in _names(io.type) & known.keys():
            message = (
                f"its shape must be known before a run, '{name}' is known only after its rebind."
            )
            raise PlanError(f"input '{io.name}'", message, variable=name)
    shown = [(f"output '{io.name}'", io.type) for io in program.outputs]
    shown += [(f"kept '{name}'", program.values[index].type) for name, index in program.kept]
    for where, kind in shown:
        for name in _names(kind):
            if known.get(name):
                message = f"'{name}' must get its value outside of loops and branches, got {kind}."
                hint = "A body may not run, and then nothing says how large it is."
                raise PlanError(where, message, hint=hint, variable=name)


def _names(kind: TensorType) -> set[str]:
    return {v.name for dim in kind.shape for v in variables(dim)}


def _check_late_guard(expr: Dim, message: str, known: Mapping[str, tuple[Around, ...]]) -> None:
    """Where the last of its variables gets a value, the others must have theirs."""
    names = [v.name for v in variables(expr) if v.name in known]
    innermost = max((known[name] for name in names), key=len, default=())
    if any(innermost[: len(known[name])] != known[name] for name in names):
        raise PlanError(
            "guard",
            f"{', '.join(names)} must have values at the same time, got {expr} ({message}).",
        )


def all_variables(
    program: Program,
    declared: Sequence[PlanVariable],
    placed: Sequence[Placed],
    counters: Mapping[str, Variable],
) -> tuple[tuple[PlanVariable, ...], tuple[PlanVariable, ...]]:
    """All variables of the plan, declared or seen by a row: those by name, and late ones."""
    found = {v.variable.name: v for v in declared}
    for name in counters.keys() & found.keys():
        raise PlanError("builder", f"'{name}' counts a loop and cannot be declared.")
    late = program.late
    for each in late:
        name = each.variable.name
        if name in found or name in counters:
            raise PlanError(
                "builder", f"'{name}' gets its value at one rebind, and cannot be declared."
            )
        found[name] = each
    for row in (p.row for p in placed):
        if isinstance(row, (PreparedKernel, PreparedCustomFunction)):
            initial = row.vals if isinstance(row, PreparedKernel) else ()
            for i, var in enumerate(row.runtime_vars):
                if var.name not in row.fixedvars and var.name not in counters:
                    _merge(found, f"op {row.id}", var, initial[i] if initial else None)
    for where, what, dim in _dims(program, placed):
        if any(isinstance(atom, Index) for atom in atoms(dim)):
            raise PlanError(where, f"{what} must be over the plan's variables, got {dim}.")
        for variable in variables(dim):
            if variable.name not in counters:
                _merge(found, where, RuntimeVar.of(variable), None)
            elif what not in ("trip", "value"):
                raise PlanError(where, f"{what} must not depend on a loop's counter, got {dim}.")
    names = dict.fromkeys(each.variable.name for each in late)
    bound = tuple(found[name] for name in sorted(found) if name not in names)
    return bound, tuple(found[name] for name in names)


def _dims(program: Program, placed: Sequence[Placed]) -> Iterator[tuple[str, str, Dim]]:
    """All expressions over variables but those of kernels: whose, what for, and which."""
    for expr, message in program.guards:
        yield "add_guard", f"guard ({message})", expr
    for kind, ios in (("input", program.inputs), ("output", program.outputs)):
        for io in ios:
            for axis, dim in enumerate(io.type.shape):
                yield f"{kind} '{io.name}'", f"axis {axis}", dim
            for dim in io.part:
                yield f"{kind} '{io.name}'", "part", dim
    for each in program.variables:
        if each.next is not None:
            yield f"variable '{each.variable.name}'", "next value", each.next
    for p in placed:
        yield from own_dims(p.row)


def own_dims(row: PreparedOp) -> Iterator[tuple[str, str, Dim]]:
    """The expressions that a row has itself: whose, what for, and which."""
    for what, dim in row.amounts:
        yield f"op {row.id}", what, dim


def check_reserved(where: str, name: str) -> None:
    """Some names are the runtime's."""
    if name in RESERVED_VARIABLES:
        raise VariableError(
            where,
            f"'{name}' is reserved for the runtime.",
            hint="A kernel finds its participant in its lane; a fixed value goes to fixedvars.",
            variable=name,
        )


def check_fixed(where: str, fixed: Mapping[str, int], runtime_vars: Iterable[RuntimeVar]) -> None:
    """Fixed values of a row's variables must lie within their bounds."""
    known = {var.name: var for var in runtime_vars}
    for name, value in fixed.items():
        if name in known:
            check_bounds(known[name], value, where)


def check_bounds(var: RuntimeVar, value: int, where: str = "builder") -> None:
    """A value must lie within the bounds of its variable."""
    if value < var.min_val or (var.max_val is not None and value > var.max_val):
        top = "..." if var.max_val is None else var.max_val
        raise VariableError(
            where,
            f"'{var.name}' must lie in [{var.min_val}, {top}], got {value}.",
            variable=var.name,
            value=value,
        )


def _merge(
    found: dict[str, PlanVariable], where: str, var: RuntimeVar, initial: int | None
) -> None:
    """Add what one row says about a variable; bounds are met, first values must agree."""
    check_reserved(where, var.name)
    old = found.get(var.name)
    if old is None:
        old = PlanVariable(var.as_variable(), None)
    low = max(old.variable.min, var.min_val)
    tops = [t for t in (old.variable.max, var.max_val) if t is not None]
    high = min(tops) if tops else None
    if high is not None and high < low:
        raise PlanError(where, f"the bounds of '{var.name}' exclude each other.")
    if initial is not None and old.initial is not None and initial != old.initial:
        raise PlanError(
            where, f"'{var.name}' must start with one value, got {old.initial} and {initial}."
        )
    merged = replace(
        old,
        variable=Variable(var.name, low, high),
        initial=old.initial if initial is None else initial,
    )
    if merged.initial is not None:
        check_bounds(RuntimeVar.of(merged.variable), merged.initial)
    found[var.name] = merged
