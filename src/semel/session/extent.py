"""The active extent of a compiled graph: how many rows of the largest shape its runs take.

    compile(graph, extent="seq")   set_active_extent((100, 512))  -->  plan.set_extent("seq", 100)
    compile(graph)                 set_active_extent((100, 512))  -->  compiled with extent=True now

The plan does it (docs/decisions/0069-extents.md); here it is judged what a caller asks for, and a
graph that was compiled without an extent gets the only one that it can have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.errors import InputError, PlanError, VariableError
from semel.graph.extent import find_extent, with_extent
from semel.ir.expr import Variable, variables
from semel.ir.fields import take_int
from semel.ir.graph import Graph, Node
from semel.plan.again import compile_again
from semel.plan.instantiate import instantiate
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program

#: The first `actual` of `upper` rows.
ActiveExtent = tuple[int, int]


_WHERE = "set_active_extent"


def read_extent(plan: ExecutionPlan) -> ActiveExtent | None:
    """What runs take now; None: everything, or there is no extent."""
    found = [(plan.extents[name], v.max or 0) for name, v in plan.program.extents.items()]
    return found[0] if found and found[0][0] != found[0][1] else None


def set_extent(plan: ExecutionPlan, extent: Any) -> None:
    """Let runs take the first `actual` of `upper` rows, or with None all of them."""
    for variable in plan.program.extents.values():
        most = variable.max or 0
        plan.set_extent(variable.name, most if extent is None else _actual(extent, variable))


def largest(plan: ExecutionPlan) -> int:
    """The largest extent that there is, or that there can be."""
    return _extent_of(plan).max or 0


def plan_with_extent(
    plan: ExecutionPlan, extent: Any, place: Callable[[Program], Program] | None = None
) -> ExecutionPlan:
    """The plan of the same graph with the only extent that it can have, which is set.

    It is one of what `place` makes of the program, if that is given, and has the params and the
    states of the other one, which stays as it is.
    """
    variable = _extent_of(plan)
    variable.bind(_actual(extent, variable))  # before anything is compiled

    def change(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
        return with_extent(graph, find_extent(graph, variable.name))

    try:
        program = compile_again(_WHERE, plan.program, plan.target, change)
    except PlanError as error:
        raise PlanError(
            _WHERE,
            f"needs the graph compiled once more, for the extent '{variable.name}': {error}",
            hint=f'compile(graph, extent="{variable.name}") does it at once.',
        ) from error
    if place is not None:
        program = place(program)
    made = instantiate(program, threads=plan.threads, memory_limit=plan.memory_limit)
    made.compile_count = plan.compile_count + 1
    if len(plan.states):
        made.states.copy_rows_from(plan.states)
    set_extent(made, extent)
    return made


def _extent_of(plan: ExecutionPlan) -> Variable:
    """The extent of a plan, or the only dim of inputs that can be one."""
    if plan.program.extents:
        return next(iter(plan.program.extents.values()))
    free = {v.variable.name for v in plan.program.variables if v.next is None}
    dims = {v.name: v for entry in plan.inputs.values() for v in _dims(entry.shape)}
    found = [variable for name, variable in dims.items() if name in free]
    if len(found) != 1:
        names = ", ".join(sorted(v.name for v in found)) or "none"
        raise VariableError(
            _WHERE,
            f"must be of a graph with one symbolic dim, or with one named; it has {names}.",
            hint='compile(graph, extent="rows") names the dim.',
        )
    if found[0].max is None:
        raise VariableError(
            _WHERE,
            f"'{found[0].name}' must have a largest value: inputs and outputs are of that size.",
            hint=f'compile(graph, dims={{"{found[0].name}": (1, 512)}}) gives it one.',
            variable=found[0].name,
        )
    return found[0]


def _dims(shape: Any) -> set[Variable]:
    return {variable for size in shape for variable in variables(size)}


def _actual(extent: Any, variable: Variable) -> int:
    if not isinstance(extent, (tuple, list)) or len(extent) != 2:
        raise InputError(_WHERE, f"must be given (actual, upper) or None, got {extent!r}.")
    actual, upper = take_int(_WHERE, "actual", extent[0]), take_int(_WHERE, "upper", extent[1])
    if upper != variable.max:
        raise VariableError(
            _WHERE,
            f"upper must be {variable.max}, which '{variable.name}' was compiled for, got {upper}.",
            variable=variable.name,
            value=upper,
        )
    return actual
