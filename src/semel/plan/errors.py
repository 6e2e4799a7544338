"""What a plan says when it refuses: the errors behind the runner's codes.

    code + header words  -->  a typed error with names and numbers

The runner reports words: which variable, which check, which row. Here they become sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from semel.errors import (
    CustomFunctionError,
    InputError,
    InternalError,
    ParamError,
    PlanError,
    SemelError,
    StateError,
    VariableError,
    broken_guard,
)
from semel.ir import abi
from semel.ir.expr import Variable, evaluate, substitute, variables
from semel.ir.fields import take_value
from semel.plan.kept import invalid_error
from semel.plan.parts import PlanParts
from semel.plan.plan_state import PlanState
from semel.plan.program import PlanIO
from semel.plan.row import KernelNotes
from semel.plan.rows import PreparedCustomFunction, PreparedKernel, PreparedOp
from semel.plan.scope import RowScope


def variable_error(variable: Variable, value: int) -> VariableError:
    """A variable is not bound, or out of its bounds."""
    name, low, high = variable.name, variable.min, variable.max
    if value == abi.UNBOUND:
        return VariableError(
            "plan",
            f"variable '{name}' was never bound.",
            hint=f"Call execute_with_vars({name}=...).",
            variable=name,
        )
    top = "..." if high is None else high
    return VariableError(
        "plan",
        f"variable '{name}' must lie in [{low}, {top}], got {value}.",
        variable=name,
        value=value,
        min=low,
        max=high,
    )


def late_error(variable: Variable, value: int) -> VariableError:
    """What a run found out lies outside the bounds."""
    name, low, high = variable.name, variable.min, variable.max
    return VariableError(
        "plan",
        f"'{name}' must lie in [{low}, {'...' if high is None else high}], the run found {value}.",
        variable=name,
        value=value,
        min=low,
        max=high,
    )


def guard_error(parts: PlanParts, state: PlanState) -> SemelError:
    """A guard does not hold at the pending values, or at those that a run found out."""
    expr, message = parts.guards[state.run.error_index]
    values = {**state.pending_values(), **state.late_values()}
    found = ", ".join(f"{v.name}={values[v.name]}" for v in variables(expr))
    cursors = [v.name for v in variables(expr) if v.name in state.held_values()]
    if cursors:
        names = [f"'{s.name}'" for s in parts.states if s.cursor == cursors[0]]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return StateError(
            f"state {', '.join(names[:2])}{more}" if names else "guard",
            f"{message.removesuffix('.')}. Found {found}.",
            hint="plan.states.truncate(rows) or reset() make room, or a state of a larger shape.",
            cursor=cursors[0],
            values=values,
        )
    return broken_guard(message, found, values=values)


def written_error(parts: PlanParts, state: PlanState) -> PlanError | InputError:
    """An input was not written for the pending values, a state is invalid, a param is missing."""
    i, dim = state.run.input_check
    if i >= len(parts.input_io) + len(parts.states):
        return missing_error(parts.program.missing_params)
    if i >= len(parts.input_io):
        return invalid_error(parts.states[i - len(parts.input_io)].name)
    io = parts.input_io[i]
    where = f"input '{io.name}'"
    if dim < 0:
        return InputError(where, "was never written.", hint="Use copyin() first.")
    values = state.pending_values()
    wanted = tuple(evaluate(d, values) for d in io.type.shape)
    written = state.inputs[io.name].recorded_shape()
    return InputError(
        where,
        f"must be written as {wanted} for these variables, it was written as {written}.",
        hint="Call copyin() with the new shape, or bind the variables it was written for.",
        shape=written,
    )


def missing_error(names: tuple[str, ...]) -> ParamError:
    """A run wants params that nobody has set."""
    return ParamError(
        "plan",
        f"params must be set before the first run; missing: {', '.join(names)}.",
        hint="Use set_param(name, array), or set_params({...}) for several.",
        params=names,
    )


def status_error(
    op: PreparedOp,
    notes: KernelNotes,
    scope: RowScope,
    state: PlanState,
    status: tuple[int, int],
    counted: Mapping[str, int],
) -> SemelError:
    """A kernel or a native function met bad data, perhaps in an iteration of a loop.

    `status` is what it reported, `counted` are the counters of the loops around it, the
    innermost last.
    """
    iteration = next(reversed([*counted.values()]), None)
    when = "" if iteration is None else f", in iteration {iteration}"
    fields: dict[str, Any] = {} if iteration is None else {"iteration": iteration}
    code, value = status
    if isinstance(op, PreparedCustomFunction):
        return CustomFunctionError(
            f"op {op.id} ({op.kind})",
            f"reported status {code} with value {value}{when}.",
            op=op.id,
            kind=op.kind,
            **fields,
        )
    if not isinstance(op, PreparedKernel):
        return InternalError("runner", "a row without a kernel reported a status.")
    checks = op.kernel.signature.checks
    if not 0 < code <= len(checks):
        return PlanError(
            f"op {op.id} ({op.name})",
            f"reported status {code} with value {value}{when}.",
            **fields,
        )
    check = checks[code - 1]
    values = {**state.bound_values(), **state.late_values(), **counted}
    size = evaluate(substitute(check.size, scope.names(op)), values)
    origin = next(iter(notes.check_origins[code - 1 : code]), "")
    return check.refusal(size, value, origin, when, **fields)


def as_value(name: str, value: Any) -> int:
    """A variable's value as an int that fits a word."""
    return take_value("plan", f"variable '{name}'", value, variable=name)


def as_values(values: Any, named: Mapping[str, int]) -> Mapping[str, int]:
    """Variables in one mapping: given as a mapping or as pairs, and by name, which wins."""
    if values is None:
        return named
    if isinstance(values, Mapping):
        return {**values, **named}
    is_walkable = isinstance(values, Iterable) and not isinstance(values, (str, bytes))
    pairs: list[Any] = list(values) if is_walkable else [None]
    if not all(_is_pair(pair) for pair in pairs):
        raise VariableError(
            "plan", f"variables must be a mapping or pairs of name and value, got {values!r:.60}."
        )
    return {**dict(pairs), **named}


def _is_pair(pair: Any) -> bool:
    """Whether this can be a variable's name and its value."""
    return isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)


def find_io(kind: str, ios: tuple[PlanIO, ...], name: str) -> PlanIO:
    """The input or output of that name."""
    for io in ios:
        if io.name == name:
            return io
    known = ", ".join(io.name for io in ios) or "none"
    raise InputError("plan", f"has no {kind} '{name}'; known: {known}.", name=name)


def names_error(given: set[str], known: set[str]) -> InputError:
    """What is wrong with the names of the inputs of a call."""
    unknown, missing = sorted(given - known), sorted(known - given)
    what = f"unknown {', '.join(unknown)}" if unknown else f"missing {', '.join(missing)}"
    near = get_close_matches(unknown[0], missing, 1, 0.4) if unknown else []
    hint = f"Did you mean '{near[0]}'?" if near else ""
    text = f"inputs must be {', '.join(sorted(known)) or 'none'}; {what}."
    return InputError("plan", text, hint=hint)


def named_inputs(
    arrays: tuple[Any, ...], named: Mapping[str, Any], ios: tuple[PlanIO, ...]
) -> dict[str, Any]:
    """The inputs of a call that names none: there must be one."""
    if len(arrays) == len(ios) == 1 and not named:
        return {ios[0].name: arrays[0]}
    if len(ios) <= 1:
        raise arity_error(len(arrays) + len(named), [io.name for io in ios])
    example = ", ".join(f"{io.name}=..." for io in ios)
    raise InputError(
        "plan",
        f"inputs go by name where there are more than one, got {len(arrays)} without.",
        hint=f"Write plan({example}).",
    )


def no_buffer(name: str, known: Iterable[str]) -> PlanError:
    """Nothing has a buffer by this name."""
    near = get_close_matches(name, list(known), 1)
    return PlanError(
        "buffer",
        f"must be the name of an input or an output, {', '.join(known)}, got {name!r}.",
        hint=f"Did you mean {near[0]!r}?" if near else "",
    )


def arity_error(given: int, names: Sequence[str]) -> InputError:
    """As many arrays as there are inputs must be given by position."""
    count = "1 array" if len(names) == 1 else f"{len(names)} arrays"
    known = f"{count} ({', '.join(names)})" if names else "no array"
    return InputError("plan", f"takes {known} in this order, got {given}.")
