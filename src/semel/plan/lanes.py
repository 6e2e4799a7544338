"""Where rows run: on a lane of a device; which there are, and what may be on which.

    row x buffers  --LaneChecker-->  the row, on a lane that can run it; or a typed error

The *caller's lane* is the compute lane of the plan's own device: the thread that executes the plan
runs it, and variables are bound, checked and found out there. A row with bodies is on one lane with
all that is inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semel.errors import PlanError, UnsupportedError
from semel.ir.expr import variables
from semel.plan.program import Program
from semel.plan.row import COMPUTE, LANES, LaneKey
from semel.plan.rows import (
    PreparedCopy,
    PreparedCustomFunction,
    PreparedOp,
    PreparedRebind,
)
from semel.plan.tree import Placed
from semel.runtime.buffer import Buffer
from semel.runtime.custom import find_custom_function
from semel.runtime.device import check_device, find_device


def is_laned(rows: Sequence[PreparedOp], device: str) -> bool:
    """Whether a row is on another lane than the caller's; insides are where their rows are."""
    return any(row.lane != COMPUTE or row.device not in ("", device) for row in rows)


def name_lane(key: LaneKey) -> str:
    """A lane for people."""
    return "/".join(key)


class LaneChecker:
    """Looks at where rows run and at where their buffers lie."""

    def __init__(self, device: str, buffers: Sequence[Buffer]) -> None:
        self._device, self._buffers = device, buffers
        self._is_mixed = any(buffer.device != device for buffer in buffers)

    def complete(self, where: str, row: PreparedOp) -> PreparedOp:
        """The row with its device by the name that it goes by, if it can run there."""
        if row.lane not in LANES:
            known = ", ".join(LANES)
            raise PlanError(
                where, f"lane must be one of {known}, got {row.lane!r}.", op=row.id, lane=row.lane
            )
        if row.device not in ("", self._device):
            try:
                find_device(row.device)
            except UnsupportedError as error:
                error.seen_at(where, op=row.id)
                raise
            row = replace(row, device=check_device(where, row.device))
            self._check_buffers(where, row)
        elif self._is_mixed:
            self._check_buffers(where, row)
        return row

    def _check_buffers(self, where: str, row: PreparedOp) -> None:
        """A device works on its own memory; a copy and a host function may reach further."""
        if not row.has_work or _is_hosted(row):
            return
        device, _ = row.lane_on(self._device)
        buffers = self._buffers
        far = [i for i in row.buffer_indices if buffers[i].device != device]
        if isinstance(row, PreparedCopy) and len(far) < len(row.buffer_indices):
            far = [i for i in far if not buffers[i].memory.is_host]
        if far:
            raise PlanError(
                where,
                f"runs on {device}, so its buffers must lie there; buffer {far[0]} lies on "
                f"{buffers[far[0]].device}.",
                hint="Copy it to a buffer of that device first.",
                op=row.id,
                device=buffers[far[0]].device,
            )


def _is_hosted(row: PreparedOp) -> bool:
    if not isinstance(row, PreparedCustomFunction):
        return False
    function = find_custom_function(row.kind)
    return function is None or function.convention != "kernel"


def check_lanes(program: Program, placed: Sequence[Placed]) -> None:
    """What is inside a row is on its lane; late variables stay on the caller's."""
    if not is_laned([p.row for p in placed], program.device):
        return
    caller = (program.device, COMPUTE)
    late = {v.variable.name for v in program.late}
    for each in placed:
        row = each.row
        lane, where = row.lane_on(program.device), f"op {row.id} ({row.name})"
        if not row.has_work:
            continue
        if each.around:
            outer = each.around[0].row
            wanted = outer.lane_on(program.device)
            if lane != wanted:
                raise PlanError(
                    where,
                    f"is inside op {outer.id} ({outer.name}) on lane {name_lane(wanted)}, so it "
                    f"must be there too, it is on {name_lane(lane)}.",
                    hint="A loop or a branch is one lane's: rows of others go before or behind it.",
                    op=row.id,
                    lane=row.lane,
                )
        names = {v.name for v in row.runtime_vars}
        names |= {v.name for dim in row.dims for v in variables(dim)}
        if lane != caller and (isinstance(row, PreparedRebind) or names & late):
            what = "gives late variables values" if isinstance(row, PreparedRebind) else ""
            what = what or f"uses '{min(names & late)}', which a run finds out"
            raise PlanError(
                where,
                f"{what}, so it must be on lane {name_lane(caller)}, it is on {name_lane(lane)}.",
                op=row.id,
                lane=row.lane,
            )
