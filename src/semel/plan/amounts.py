"""Amounts that follow from variables must be numbers that the runner can use.

    tile counts, trips, sizes, dims, guards  --settle-->  guards to check at each bind

The runner computes them in 64-bit words and asks no questions: a count below zero would run
nothing and leave old bytes as the result, a division by zero would give some number, a sum that
wraps another. So each is settled when the plan is built. What the bounds of the variables show
needs nothing; what they exclude is a PlanError; what depends on the values becomes a guard. That
nothing wraps must follow from the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from semel.errors import PlanError
from semel.ir.expr import (
    Dim,
    Fn,
    Index,
    Variable,
    divisors,
    is_nonnegative,
    is_positive,
    minimum,
    terms,
    upper_bound,
    variables,
)
from semel.ir.fields import NO_LIMIT

Guard: TypeAlias = tuple[Dim, str]

_WORD = (1 << 63) - 1
#: The share of a participant is (its number * tiles) / participants, in one word.
MOST_TILES = 1 << 52


@dataclass(frozen=True, slots=True)
class Amount:
    """Something that the runner computes at a bind; it must not exceed `most`."""

    where: str
    what: str
    value: Dim
    is_count: bool = True  # not below zero
    most: int = _WORD


def settle(
    amounts: Iterable[Amount], tops: Mapping[str, int | None]
) -> tuple[list[Guard], list[Guard]]:
    """The guards that make every amount a number that can be used: of divisors, of counts.

    `tops` are the largest values that variables can be bound to now: without a maximum they
    may grow later, so that what a bound must show is asked of the variables themselves.
    """
    divisions: dict[Dim, str] = {}
    counts: dict[Dim, str] = {}
    seen: set[tuple[Dim, bool, int]] = set()
    for amount in amounts:
        if isinstance(amount.value, int) and 0 <= amount.value <= amount.most:
            continue  # a number that can be used
        key = (amount.value, amount.is_count, amount.most)
        if key in seen:
            continue
        seen.add(key)
        _check_size(amount, tops)
        subject = f"{amount.where}: {amount.what} = {amount.value}"
        for divisor in divisors(amount.value):
            if not is_positive(divisor):
                guard = _guard(amount, divisor, 1, f"{subject} divides by {divisor}")
                divisions.setdefault(guard, f"{subject} must divide by at least 1")
        if amount.is_count and not is_nonnegative(amount.value):
            guard = _guard(amount, amount.value, 0, f"{subject} is negative")
            counts.setdefault(guard, f"{subject} must not be negative")
    return list(divisions.items()), list(counts.items())


def _guard(amount: Amount, value: Dim, least: int, what: str) -> Dim:
    """An expression that is 0 just if `value` >= `least`; refused now if it never is."""
    top = upper_bound(value)
    if top is not None and top < least:
        raise PlanError(amount.where, f"{what} at every value of the variables.")
    return minimum(value, least) - least


# ---------------------------------------------------------------- how large


def _check_size(amount: Amount, tops: Mapping[str, int | None]) -> None:
    if _magnitude(amount.value, tops) <= amount.most:
        return
    loose = [v.name for v in variables(amount.value) if (tops[v.name] or NO_LIMIT) > 1 << 31]
    raise PlanError(
        amount.where,
        f"{amount.what} = {amount.value} must stay within {amount.most:,} at every value of the "
        "variables, and so must all that it is computed from.",
        hint=f"Give {', '.join(loose)} a smaller maximum." if loose else "",
    )


def _magnitude(value: Dim, tops: Mapping[str, int | None]) -> int:
    """What no register on the way to `value` exceeds, as an absolute value."""
    return _sizes(value, tops)[1]


def _sizes(value: Dim, tops: Mapping[str, int | None]) -> tuple[int, int]:
    """What neither the value exceeds, nor any register on the way to it."""
    if isinstance(value, int):
        return abs(value), abs(value)
    total = most = 0
    for monomial, coefficient in terms(value):
        size = abs(coefficient)
        for atom in monomial:
            own, inside = _atom_sizes(atom, tops)
            size *= max(own, 1)
            most = max(most, inside)
        total += size
    return total, max(total, most)


def _atom_sizes(atom: Dim, tops: Mapping[str, int | None]) -> tuple[int, int]:
    match atom:
        case Variable():
            top = tops.get(atom.name)
            size = max(abs(atom.min), NO_LIMIT if top is None else abs(top))
            return size, size
        case Fn():
            sizes = [_sizes(argument, tops) for argument in atom.args]
            own, inside = (max(each) for each in zip(*sizes, strict=True))
            low, high = atom.range()
            if low is not None and high is not None:
                own = min(own, max(abs(low), abs(high)))  # a condition is 0 or 1
            return own, inside
        case Index():
            return _sizes(atom.extent, tops)
        case _:
            return _sizes(atom, tops)
