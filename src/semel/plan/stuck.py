"""Where in a plan a device fails or is late, and the end of a run that a device may not let go of.

    engine, error  --give_up-->  an error that names device, row and origin; lanes at rest

A device that hangs cannot be made to end a run. The run is given up all the same, within a bounded
time: the memory that its rows name is kept until the device has come back, and so long the plan
refuses to run. `reset` of the device lets it come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import DeviceError

if TYPE_CHECKING:
    from semel.plan.engine import Engine


def give_up(engine: Engine, error: BaseException | None) -> None:
    """End what is under way of a run that raised this, and say where that was.

    A device that does not come back is a note of the error: what was wrong first is raised.
    """
    executable = engine.executable
    # Before a run has begun nothing is at a row; what a custom function raised has been told.
    is_at_row = engine.state.run.is_busy and not hasattr(error, "op")
    if isinstance(error, DeviceError) and is_at_row:
        _, row = executable.came_back()
        where, fields = place_of(engine, row)
        if where:
            error.seen_at(where, **fields)
    try:
        executable.rest()
    except BaseException as stuck:
        executable.hold_until_rest(engine.pins)
        if error is None or error is stuck or not isinstance(stuck, DeviceError):
            raise
        error.add_note(str(stuck))


def late_place(engine: Engine) -> tuple[str, dict[str, Any]]:
    """The row that a run is at which takes too long, as `place_of` says it."""
    return place_of(engine, engine.executable.at())


def place_of(engine: Engine, row: int) -> tuple[str, dict[str, Any]]:
    """A row of the linked program for people, and as fields of an error; "" if it is no one's."""
    row_ops = engine.ways.now.linked.row_ops
    position = row_ops[row] if 0 <= row < len(row_ops) else -1
    if position < 0:
        return "", {}
    op = engine.parts.ops[position]
    device, _ = op.lane_on(engine.parts.program.device)
    noted = (note.origin for note in engine.program.nodes if position in note.ops)
    origin = next((each for each in (*reversed(op.origins), *noted) if each), "")
    text = f"op {op.id} ({op.name}) on {device}{f', from {origin}' if origin else ''}"
    return text, {"device": device, "op": op.id, "row": position, "origin": origin}
