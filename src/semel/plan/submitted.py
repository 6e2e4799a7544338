"""A plan's run on a lane: what its engine does where the run comes back.

lane.submit_run(plan)  -->  a native run; came_back(engine, code), on the lane's companion
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.ir.abi import Call
from semel.plan.resolve import check_limits, resolve_code

if TYPE_CHECKING:
    from semel.plan.engine import Engine


def came_back(engine: Engine, code: int) -> bool:
    """Do what a run came back for, so that it can go on: True; or all of it."""
    if code == Call.WORK:
        engine.run()
        return False
    try:
        resolve_code(engine, code)
        check_limits(engine)
    except BaseException:
        engine.abandon()
        raise
    return True
