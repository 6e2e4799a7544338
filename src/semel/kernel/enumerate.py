"""Every value of an index expression over loops of known length, one by one.

    expression, loops  --all_values-->  array of int64, or None

What a search for a proof does not find (that x // 5 and x % 5 belong to one x) is found by
looking, where there are few enough values and no variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from semel.ir.expr import Dim, Fn, Index, Variable, atoms, bounds, terms

#: How many combinations of indices are looked at.
_MAX_POINTS = 1 << 18
_MAX_NUMBER = 1 << 62

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


def all_values(value: Dim, loops: Mapping[Index, tuple[Dim, Dim]]) -> Numbers | None:
    """The values at all combinations of `loops` (start, stop), in which outer ones come first.

    None if it depends on more than these loops, or if there are too many.
    """
    needed = _needed(value, loops)
    if needed is None:
        return None
    env: dict[Index, Numbers] = {}
    count = 1
    for index in (i for i in loops if i in needed):
        ends = [_evaluate(end, env, count) for end in loops[index]]
        if ends[0] is None or ends[1] is None:
            return None
        lengths = np.maximum(ends[1] - ends[0], 0)
        if float(lengths.astype(np.float64).sum()) > _MAX_POINTS:
            return None
        which = np.repeat(np.arange(count), lengths)
        firsts = np.cumsum(lengths) - lengths
        count = len(which)
        env = {known: numbers[which] for known, numbers in env.items()}
        env[index] = np.arange(count) - firsts[which] + ends[0][which]
    return _evaluate(value, env, count)


def _needed(value: Dim, loops: Mapping[Index, tuple[Dim, Dim]]) -> set[Index] | None:
    found: set[Index] = set()
    open_dims = [value]
    while open_dims:
        for atom in atoms(open_dims.pop()):
            if isinstance(atom, Variable) or atom not in loops:
                return None
            if atom not in found:
                found.add(atom)
                open_dims += loops[atom]
    return found


def _evaluate(value: Dim, env: Mapping[Index, Numbers], count: int) -> Numbers | None:
    """The numbers, if none of them can leave 64 bits on the way."""
    low, high = bounds(value)
    if low is None or high is None or low < -_MAX_NUMBER or high > _MAX_NUMBER:
        return None
    total = np.zeros(count, np.int64)
    for monomial, coefficient in terms(value):
        term = np.full(count, coefficient, np.int64)
        for atom in monomial:
            factor = _function(atom, env, count) if isinstance(atom, Fn) else env[atom]  # type: ignore[index]
            if factor is None:
                return None
            term = term * factor
        total = total + term
    return total


def _function(atom: Fn, env: Mapping[Index, Numbers], count: int) -> Numbers | None:
    a, b = (_evaluate(arg, env, count) for arg in atom.args)
    if a is None or b is None:
        return None
    match atom.kind:
        case "min":
            return np.minimum(a, b)
        case "max":
            return np.maximum(a, b)
        case kind if count == 0 or b.min() > 0:
            return a // b if kind == "floordiv" else a % b
    return None
