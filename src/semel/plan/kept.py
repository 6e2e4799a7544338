"""Where states lie in the memory of a plan, and whether they are valid.

    engine, state  --peek_rows, put_rows-->  elements of the value that the next run reads

For `semel.plan.states`, which is what people see, and for the engine.
"""

from __future__ import annotations

from itertools import chain
from math import prod
from typing import TYPE_CHECKING

from semel.errors import StateError
from semel.ir.types import TensorType
from semel.plan.hazards import overlap
from semel.plan.program import ProgramState
from semel.runtime.buffer import Array, Buffer

if TYPE_CHECKING:
    from semel.plan.engine import Engine


def current_buffer(engine: Engine, state: ProgramState) -> Buffer:
    """The buffer that holds the value which the next run reads."""
    buffers = engine.parts.buffers
    if state.other is None:
        return buffers[state.index]
    base = engine.state.run.base(engine.linked.bases[state.index])
    return buffers[state.index if base == buffers[state.index].address else state.other]


def whole_of(engine: Engine, state: ProgramState) -> Array:
    """All elements, where they lie or a copy."""
    buffer = current_buffer(engine, state)
    return buffer.peek(shape_of(buffer.type))


def peek_rows(engine: Engine, state: ProgramState, start: int, stop: int) -> Array:
    """These rows, along the axis of the state or its first one: where they lie, or a copy."""
    buffer = current_buffer(engine, state)
    shape, axis = shape_of(buffer.type), state.axis or 0
    if not is_strip(buffer, axis):
        return buffer.peek(shape)[(*[slice(None)] * axis, slice(start, stop))]
    row_bytes = prod(shape[axis + 1 :]) * buffer.dtype.size_bytes
    size = (stop - start) * row_bytes
    data = buffer.memory.copy_out(buffer.offset + start * row_bytes, size)
    return data.view(buffer.dtype.numpy).reshape(*shape[:axis], stop - start, *shape[axis + 1 :])


def put_rows(engine: Engine, state: ProgramState, array: Array) -> None:
    """Write the first rows of a state, along whatever axes the array is smaller, or all of it."""
    buffer = current_buffer(engine, state)
    shape = shape_of(buffer.type)
    smaller = [i for i, size in enumerate(array.shape) if size != shape[i]]
    if not smaller or (len(smaller) == 1 and is_strip(buffer, smaller[0])):
        buffer.put(array)
        return
    whole = buffer.peek(shape)
    whole[tuple(slice(0, size) for size in array.shape)] = array
    if not buffer.memory.is_host:
        buffer.put(whole)


def is_strip(buffer: Buffer, axis: int) -> bool:
    """Whether rows must be copied, and lie one after the other: the others need not be."""
    return not buffer.memory.is_host and prod(shape_of(buffer.type)[:axis]) == 1


def put_first_value(engine: Engine, state: ProgramState) -> None:
    """What a state holds before the first run."""
    first = engine.parts.program.values[state.index].weight
    buffer = current_buffer(engine, state)
    if first is not None:
        buffer.put(first.array)
    else:
        buffer.memory.fill(0, buffer.offset, buffer.offset + buffer.capacity_bytes)


def follow_states(source: Engine, to: Engine) -> None:
    """Let a plan whose memory is a fork of another one's go on from where that is."""
    for number, state in enumerate(source.parts.states):
        if state.other is not None and current_buffer(source, state) is not _first(source, state):
            _exchange(to, state.index, state.other)
        to.state.set_kept(number, is_valid(source, number))
    to.state.set_held(source.state.held_values())


def _first(engine: Engine, state: ProgramState) -> Buffer:
    return engine.parts.buffers[state.index]


def _exchange(engine: Engine, one: int, other: int) -> None:
    """Let two buffers change places, as a run that succeeds does."""
    bases, buffers = engine.linked.bases, engine.parts.buffers
    engine.state.run.set_base(bases[one], buffers[other].address)
    engine.state.run.set_base(bases[other], buffers[one].address)


def shape_of(kind: TensorType) -> tuple[int, ...]:
    """The shape of a state, which is numbers."""
    return tuple(d for d in kind.shape if isinstance(d, int))


# ---------------------------------------------------------------- validity


def is_valid(engine: Engine, number: int) -> bool:
    """Whether a state holds what a run, or a caller, has left there whole."""
    return engine.state.is_kept(number)


def spoil_states(engine: Engine, before: int | None = None) -> None:
    """After a run that failed: what it was updating in place is invalid.

    One that was given up `before` a step has not touched what later steps update.
    """
    for number, state in enumerate(engine.parts.states):
        is_spoilt = state.how == "in place" and not state.is_append
        if is_spoilt and (before is None or _first_update(engine, state) < before):
            engine.state.set_kept(number, False)


def _first_update(engine: Engine, state: ProgramState) -> int:
    """The first step that writes to a state; updates are never inside of loops or branches."""
    parts, place = engine.parts, engine.parts.buffers[state.index].byte_range
    steps = engine.ways.now.linked.steps
    for number, step in enumerate(steps):
        uses = (use for i in chain.from_iterable(step) for use in parts.ops[i].uses(parts.scope))
        written = (parts.buffers[use.index].byte_range for use in uses if "w" in use.access)
        if any(overlap(one, place) for one in written):
            return number
    return len(steps)


def invalid_error(name: str) -> StateError:
    """A state cannot be used."""
    return StateError(
        f"state '{name}'",
        "is invalid: a run that updated it in place, or a write to it, did not end well.",
        hint="plan.states.reset(), restore(snapshot), write() or truncate(rows) make it valid.",
        state=name,
    )
