"""Room for sizes that a run finds out, where nobody says how large they may become.

a check that failed for lack of room  --make_room-->  more of it, and the run begins again

The limit of such a size is a variable that no input tells (`Program.rooms`). It has some value at
first, and memory is laid out for that. A run that finds out more stops before anything relies on
it; nothing of it is committed, so that it can begin again with a limit that is large enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.ir.expr import evaluate, substitute, variables
from semel.plan.kept import is_valid
from semel.plan.rows import PreparedKernel
from semel.runtime.laned import LanedExecutable

if TYPE_CHECKING:
    from semel.plan.engine import Engine

#: What there is room for before a run has found out more.
FIRST_ROOM = 16


def make_room(engine: Engine, position: int, status: tuple[int, int]) -> bool:
    """Whether the run may begin again, as what a row found was more than there was room for."""
    op, (code, found) = engine.parts.ops[position], status
    if not isinstance(op, PreparedKernel) or not 0 < code <= len(op.kernel.signature.checks):
        return False
    check, rooms = op.kernel.signature.checks[code - 1], engine.program.rooms
    size = substitute(check.size, engine.parts.scope.names(op))
    names = [v.name for v in variables(size) if v.name in rooms]
    if len(names) != 1 or found < 0 or check.what == "index":
        return False
    values = {**engine.state.bound_values(), **engine.state.late_values()}
    lacking = found + 1 - evaluate(size, values)
    wider = {**values, names[0]: values[names[0]] + 1}
    if lacking <= 0 or evaluate(size, wider) != evaluate(size, values) + 1:
        return False
    engine.forget_run(_step_behind(engine, position))
    if not all(is_valid(engine, number) for number in range(len(engine.parts.states))):
        return False  # what it was updating in place is spoilt
    had = values[names[0]]
    engine.bind({names[0]: max(had + lacking, 2 * had)})
    return True


def _step_behind(engine: Engine, position: int) -> int | None:
    """The step behind that of a row: later ones have not been reached; None if lanes may have."""
    if isinstance(engine.executable, LanedExecutable):
        return None
    steps = engine.ways.now.linked.steps
    found = (n for n, step in enumerate(steps, 1) if any(position in row for row in step))
    return next(found, None)
