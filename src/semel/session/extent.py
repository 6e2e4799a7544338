"""The active extent of a compiled graph: how many rows of the largest shape its runs take.

    compile(graph, extent="seq")   set_active_extent((100, 512))  -->  plan.set_extent("seq", 100)

The plan does it (docs/decisions/0069-extents.md); here it is judged what a caller asks for.
"""

from __future__ import annotations

from typing import Any

from semel.errors import InputError, VariableError
from semel.ir.fields import take_int
from semel.plan.plan import ExecutionPlan

#: The first `actual` of `upper` rows.
ActiveExtent = tuple[int, int]


def read_extent(plan: ExecutionPlan) -> ActiveExtent | None:
    """What runs take now; None: everything, or there is no extent."""
    found = [(plan.extents[name], most) for name, most in _upper(plan).items()]
    return found[0] if found and found[0][0] != found[0][1] else None


def set_extent(plan: ExecutionPlan, extent: Any) -> None:
    """Let runs take the first `actual` of `upper` rows, or with None all of them."""
    names = _upper(plan)
    if not names:
        if extent is None:
            return
        raise VariableError(
            "set_active_extent",
            "must be of a graph that was compiled with an extent, this one was not.",
            hint='compile(graph, extent="rows") names the dim; extent=True takes the only one.',
        )
    ((name, most),) = names.items()
    plan.set_extent(name, most if extent is None else _actual(extent, name, most))


def _upper(plan: ExecutionPlan) -> dict[str, int]:
    return {name: variable.max or 0 for name, variable in plan.program.extents.items()}


def _actual(extent: Any, name: str, most: int) -> int:
    where = "set_active_extent"
    if not isinstance(extent, (tuple, list)) or len(extent) != 2:
        raise InputError(where, f"must be given (actual, upper) or None, got {extent!r}.")
    actual, upper = take_int(where, "actual", extent[0]), take_int(where, "upper", extent[1])
    if upper != most:
        raise VariableError(
            where,
            f"upper must be {most}, which '{name}' was compiled for, got {upper}.",
            variable=name,
            value=upper,
        )
    return actual
