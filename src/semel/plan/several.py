"""Params of several plans replaced together: in all that have them, or in none.

[plans], {name: data}  --set_params_of_all-->  every plan reads the new data from its next run on

A jitted function has a plan for each form, and a weight is one weight in all of them. Whatever can
be refused is refused while nothing has changed: new weights are made for each plan, and taken when
all are there. Nobody else has any of the plans meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.ir.graph import Storage
from semel.plan.params import with_params
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program
from semel.plan.weights import Weight

_Made = list[tuple[ExecutionPlan, Program, dict[int, Weight]]]


def set_params_of_all(plans: Sequence[ExecutionPlan], given: Mapping[str, Storage]) -> None:
    """Replace params by this data, which the plans share; each takes those that it has."""
    _take_next(list(plans), given, [])


def _take_next(left: list[ExecutionPlan], given: Mapping[str, Storage], made: _Made) -> None:
    if left:
        left[0].engine.hold.alone(_make_next, left, given, made)
        return
    for plan, program, weights in made:
        plan.engine.take_weights(program, weights)


def _make_next(left: list[ExecutionPlan], given: Mapping[str, Storage], made: _Made) -> None:
    engine = left[0].engine
    engine.state.check_alive()
    parts = engine.parts
    own = {p.name: given[p.name] for p in parts.program.params if p.name in given}
    if own:
        made.append((left[0], *with_params(parts.program, own, parts.threads)))
    _take_next(left[1:], given, made)
