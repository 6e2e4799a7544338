"""Who answers for the buffers of a plan: keepers, by the places of their values.

PlanParts, PlanState  --adopt_buffers-->  a keeper for each buffer
"""

from __future__ import annotations

from semel.plan.parts import PlanParts
from semel.plan.plan_state import (
    ConstantKeeper,
    IntermediateKeeper,
    OutputKeeper,
    PlainKeeper,
    PlainOutputKeeper,
    PlanState,
    StateKeeper,
    is_answered_for,
)
from semel.plan.stale import Writer
from semel.plan.writers import OutputWriters

#: For the buffers of a compiled plan that are neither input nor output.
_KEEPERS = {
    "arena": IntermediateKeeper,
    "constant": ConstantKeeper,
    "param": ConstantKeeper,
    "state": StateKeeper,
}


def adopt_buffers(parts: PlanParts, state: PlanState, writers: OutputWriters | None) -> None:
    """Let every buffer answer to this plan's variables and validity, as its place says.

    `writers` are those of a plan built by hand: a run may write less of an output than another.
    A compiled plan writes what it declares.
    """
    for io in parts.input_io:
        parts.buffers[io.index].keep(state.inputs[io.name])
    is_input = {io.index for io in parts.input_io}
    for io in parts.output_io:
        if io.index not in is_input:
            keeper = OutputKeeper(state, io.type, _writing(writers, io.index), io.index)
            parts.buffers[io.index].keep(keeper)
    if writers is None:
        _adopt_placed(parts, state)
    else:
        _adopt_given(parts, state, writers)


def _adopt_placed(parts: PlanParts, state: PlanState) -> None:
    kept = [index for _, index in parts.program.kept]
    named = {*(io.index for io in parts.input_io), *parts.outputs, *kept}
    for i, (buffer, value) in enumerate(zip(parts.buffers, parts.program.values, strict=True)):
        if i not in named and value.place in _KEEPERS:
            buffer.keep(_KEEPERS[value.place](state, value.type))
    for index in kept:
        if not is_answered_for(parts.buffers[index]):
            kind = parts.program.values[index].type
            parts.buffers[index].keep(OutputKeeper(state, kind, index=index))


def _adopt_given(parts: PlanParts, state: PlanState, writers: OutputWriters) -> None:
    for index in parts.outputs:
        buffer = parts.buffers[index]
        if not is_answered_for(buffer):
            writing = _writing(writers, index)
            buffer.keep(PlainOutputKeeper(state, buffer.type, writing, index))
    for buffer in parts.buffers:
        if buffer.keeper is None and buffer.whole is None:
            buffer.keep(PlainKeeper(state.hold, buffer.type))


def _writing(writers: OutputWriters | None, index: int) -> tuple[Writer, ...]:
    return () if writers is None else writers.writers.get(index, ())
