"""The graph of a plan compiled once more: for another machine, or changed.

    Program, target's name, change  --compile_again-->  Program with the params of now

The plan does not hold what it was made from (`compiler.graph_source`): weights that it has in
another layout alone must be held by somebody else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semel.errors import PlanError
from semel.plan.program import Program


def compile_again(where: str, program: Program, target: str, change: Any = None) -> Program:
    """The program of the same graph, or of what `change` makes of it, for a target by its name."""
    if program.compile_for is None:
        raise PlanError(
            where,
            "must be of a plan that was prepared here: code is made from its graph, which a file "
            "does not hold.",
        )
    gone = [param.name for param in program.params if param.version and param.raw is None]
    if gone:
        raise PlanError(
            where,
            f"data must be there to be laid out once more: {', '.join(gone)} was replaced, and "
            "only what is made of it is held.",
            hint="prepare(keep_params=True) holds it.",
        )
    held = {param.name: param.raw.array for param in program.params if param.raw is not None}
    made = program.compile_for(target, held, change)
    version = {param.name: param.version for param in program.params}
    params = tuple(replace(param, version=version[param.name]) for param in made.params)
    return replace(made, name=program.name, params=params)
