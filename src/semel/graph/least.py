"""The least sizes for which a graph makes sense.

    guards about one variable each  --least_sizes-->  the least value of it that all of them allow

A convolution of a signal needs a window's length of it, and seven of them in a row need hundreds of
elements. Who knows that need not ask at every size behind them whether it is positive, what it is
rounded to, or whether something divides by zero.
"""

from __future__ import annotations

from collections.abc import Collection

from semel.ir.expr import Dim, Variable, evaluate, variables
from semel.ir.graph import Graph
from semel.ops.guards import guards

#: Sizes that are tried; what needs more has no least size here.
_MOST = 1 << 14


def least_sizes(graph: Graph, free: Collection[Variable]) -> dict[str, int]:
    """By name, where it is more than the variable's own minimum."""
    least: dict[Variable, int] = {}
    for amount, _ in guards(graph):
        found = tuple(dict.fromkeys(variables(amount)))
        if len(found) == 1 and found[0] in free:
            size = _least(amount, found[0], least.get(found[0], found[0].min))
            if size is not None:
                least[found[0]] = size
    return {variable.name: size for variable, size in least.items() if size > variable.min}


def _least(amount: Dim, variable: Variable, start: int) -> int | None:
    """The first value from `start` on for which the amount is zero."""
    for size in range(start, start + _MOST):
        try:
            if evaluate(amount, {variable.name: size}) == 0:
                return size
        except ZeroDivisionError:
            continue
    return None
