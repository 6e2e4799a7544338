"""The guards of a plan, and where each is checked: at a bind, or at a row.

    Program, placed rows  --all_guards-->  guards by number, and which of them a rebind checks

Beside those that were given there are some without which an amount could not be used: what is
divided by is at least 1, what is counted is not negative. Those of rows inside a body that begins
with a check are checked there too: they are nobody's business unless it runs. A guard that holds
a late variable is checked where that gets its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from semel.errors import PlanError
from semel.ir.expr import Dim, Variable, divisors, is_positive, maximum, variables
from semel.plan.amounts import MOST_TILES, Amount, Guard, settle
from semel.plan.program import InTermsOf, PlanVariable, Program, bounded_variables
from semel.plan.rows import PreparedKernel, PreparedRebind
from semel.plan.scope import RowScope
from semel.plan.tree import Placed
from semel.plan.variables import count_ranges, own_dims, with_ranges


def all_guards(
    program: Program,
    placed: Sequence[Placed],
    plan_variables: Sequence[PlanVariable],
    late: Sequence[PlanVariable],
    scope: RowScope,
) -> tuple[tuple[Guard, ...], dict[int, tuple[int, ...]]]:
    """All guards, and by position of a rebind the numbers of those that it checks.

    `scope` has the variables themselves: a maximum that is only a capacity proves nothing.
    """
    ranges = count_ranges(placed)
    exact = {v.variable.name: v.variable for v in (*plan_variables, *late)} | ranges
    bounded = bounded_variables(plan_variables, late)
    known = {**bounded, **count_ranges(placed, bounded)}
    tops = {name: variable.max for name, variable in known.items()}

    amounts: dict[int | None, list[Amount]] = {None: list(_own_amounts(program))}
    checks = _Checks(placed)
    for p in placed:
        for amount in _row_amounts(p, ranges, scope):
            amounts.setdefault(checks.at(p, amount.value), []).append(amount)
    named = InTermsOf(exact)
    found: list[Guard] = []
    numbers: dict[int, tuple[int, ...]] = {}
    for at in sorted(amounts.keys() | checks.given.keys(), key=lambda at: -1 if at is None else at):
        given = program.guards if at is None else checks.given[at]
        limits = list(_limits(late)) if at is None else []
        own = {expr for expr, _ in given}  # a plan from a file has them already
        values = [_renamed(named, amount) for amount in amounts.get(at, ())]
        divisions, counts = settle(values, tops)
        more = [g for g in (*limits, *counts) if g[0] not in own]
        guards = [*(g for g in divisions if g[0] not in own), *given, *more]
        if at is not None:
            numbers[at] = tuple(range(len(found), len(found) + len(guards)))
        found += guards
    return tuple(found), numbers


class _Checks:
    """Which rebind checks what the rows of a body need; `given` are the guards of rebinds."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        self._placed = placed
        rebinds = [(p, p.row) for p in placed if isinstance(p.row, PreparedRebind)]
        self.given = {p.position: row.guards for p, row in rebinds if row.guards}
        self._told = {v.name: p for p, row in rebinds for v in row.variables}
        #: The first rows of bodies, if all they do is check.
        self._first = {
            (p.around[-1].position, p.around[-1].body): p
            for p, row in reversed(rebinds)
            if p.around and not row.variables
        }

    def at(self, p: Placed, value: Dim) -> int | None:
        """Where a guard of row `p` over this value is checked; None: at a bind, or on its own."""
        if p.position in self.given:
            return p.position
        for around in reversed(p.around):
            first = self._first.get((around.position, around.body))
            if first is not None and first.position < p.position:
                told = (self._told.get(v.name) for v in variables(value))
                is_known = all(t is None or t.position < first.position for t in told)
                return first.position if is_known else None
        return None


def _own_amounts(program: Program) -> Iterator[Amount]:
    """What a bind computes for no row."""
    for expr, message in program.guards:
        yield Amount("guard", message, expr, is_count=False)
    for kind, ios in (("input", program.inputs), ("output", program.outputs)):
        for io in ios:
            for axis, dim in enumerate(io.type.shape):
                yield Amount(f"{kind} '{io.name}'", f"axis {axis}", dim)
    for each in program.variables:
        if each.next is not None:
            where = f"variable '{each.variable.name}'"
            yield Amount(where, "next value", each.next, is_count=False)


def _row_amounts(p: Placed, counters: Mapping[str, Variable], scope: RowScope) -> Iterator[Amount]:
    """What is computed for a row. Trips are counts; where a counter decides, none below zero."""
    for where, what, dim in own_dims(p.row):
        value = with_ranges(dim, counters)
        for divisor in divisors(value):
            if any(v.name in counters for v in variables(divisor)) and not is_positive(divisor):
                message = (
                    f"{what} = {dim} must divide by at least 1 in every iteration, got {divisor}."
                )
                raise PlanError(where, message)
        is_counted = any(v.name in counters for v in variables(value))
        yield Amount(where, what, value, is_count=what == "trip" and not is_counted)
    if isinstance(p.row, PreparedKernel):
        where, bound = f"op {p.row.id} ({p.row.name})", scope.bind(p.row)
        yield Amount(where, "tiles", bound.tiles, most=MOST_TILES)
        for size in bound.sizes_bytes:
            yield Amount(where, "size", size)


def _renamed(named: InTermsOf, amount: Amount) -> Amount:
    value = named(amount.value)
    return amount if value is amount.value else replace(amount, value=value)


def _limits(late: Sequence[PlanVariable]) -> Iterator[Guard]:
    """What late variables are at most, where their own maxima do not say it."""
    for each in late:
        name, limit = each.variable.name, each.limit or 0
        excess = maximum(each.variable - limit, 0)
        if excess != 0:
            yield excess, f"{name} must be at most {limit}"
