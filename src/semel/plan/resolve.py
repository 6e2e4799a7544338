"""What a run that came back wants: a host call, time for signals, more memory, or to be refused.

engine, code  --resolve_code-->  go on, or a typed error
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.errors import (
    CancelledError,
    CustomFunctionError,
    InternalError,
    SemelError,
    TimedOutError,
)
from semel.ir.abi import Code
from semel.ir.expr import evaluate, variables
from semel.plan.errors import (
    guard_error,
    late_error,
    status_error,
    variable_error,
    written_error,
)
from semel.plan.room import make_room
from semel.plan.row import KernelNotes
from semel.plan.rows import PreparedCustomFunction, PreparedSignal, PreparedWait
from semel.plan.stuck import late_place
from semel.runtime.buffer import Buffer
from semel.runtime.custom import call_on_host
from semel.runtime.runstate import RunState

if TYPE_CHECKING:
    from semel.plan.engine import Engine

INTERRUPTED = "a change of its memory was interrupted."

#: Why a run comes back in the middle.
_GOING_ON = frozenset({Code.HOST_CALL, Code.START_POOL, Code.AGAIN})


def resolve_code(engine: Engine, code: int) -> None:
    """Do what the code asks for, so that the next call goes on; or raise."""
    if code in _GOING_ON:
        if code == Code.HOST_CALL:
            _on_host_call(engine)
        # Returning to Python was the point: pending signals have been handled on the way.
        engine.executable.go_on(code)
        return
    refuse = _REFUSALS.get(code)
    if refuse is None:
        raise InternalError("runner", f"returned code {code}.")
    refuse(engine)


def check_limits(engine: Engine) -> None:
    """Refuse to go on with a run that came back if somebody cancelled it, or its time is over."""
    run = engine.state.run
    if run.is_asked_back:
        step, num_steps = run.progress
        raise CancelledError(
            "plan",
            f"the run was cancelled before step {step} of {num_steps}.",
            step=step,
            num_steps=num_steps,
        )
    limit = engine.limit
    if limit is not None:
        left = limit.left()
        if left <= 0:
            step, num_steps = run.progress
            where, fields = late_place(engine)
            raise TimedOutError(
                "plan",
                f"a run must be over within {limit.seconds} s, this one had come to step {step} "
                f"of {num_steps}{where and f', {where}'}.{_missing_signal(engine)}",
                **fields,
            )
        engine.executable.limit(left)


def _missing_signal(engine: Engine) -> str:
    """What a run that has no more time may have waited for."""
    known = engine.state.bound_values()
    for row in engine.parts.ops:
        if isinstance(row, PreparedWait) and known.keys() >= {v.name for v in variables(row.value)}:
            value, signal = evaluate(row.value, known), row.signal
            if not signal.is_reached(value):
                return f" Signal '{signal.name}' must reach {value}, it is at {signal.value}."
    return ""


def _on_busy(engine: Engine) -> None:
    raise engine.hold.refusal()


def _on_released(engine: Engine) -> None:
    engine.state.check_alive()
    # Interrupted a second time, after the entry was told and before the state was.
    engine.state.give_up(INTERRUPTED)
    engine.state.check_alive()


def _on_variable(engine: Engine) -> None:
    i, run = engine.state.run.error_index, engine.state.run
    if i >= len(engine.parts.variables):
        late = engine.parts.late[i - len(engine.parts.variables)].variable
        raise late_error(engine.parts.bounded[late.name], run.value(i))
    value, known = run.pending[i], engine.parts.variables[i].variable
    if known.max is None and value > known.min and engine.store is not None:
        engine.ensure_capacity({known.name: value})
        return
    raise variable_error(known, value)


def _on_guard(engine: Engine) -> None:
    raise guard_error(engine.parts, engine.state)


def _on_input(engine: Engine) -> None:
    raise written_error(engine.parts, engine.state)


def _on_status(engine: Engine) -> None:
    run, row = engine.executable.came_back()
    position = engine.ways.now.linked.row_ops[row]
    op, counted = engine.parts.ops[position], _counters_at(engine, run, position)
    status, notes = run.status, _notes(engine, position)
    refusal = status_error(op, notes, engine.parts.scope, engine.state, status, counted)
    if not make_room(engine, position, status):
        raise refusal


def _notes(engine: Engine, position: int) -> KernelNotes:
    return engine.program.walk()[position].row.notes


def _on_host_call(engine: Engine) -> None:
    run, row = engine.executable.came_back()
    position = engine.ways.now.linked.row_ops[row]
    op = engine.parts.ops[position]
    if isinstance(op, PreparedCustomFunction):
        owner = engine.parts.functions[op.kind].owner
        if owner is not None:
            buffers = [engine.parts.buffers[i] for i in op.buffer_indices]
            values_here = partial(_all_values, engine, run, position)
            _guarded(op, owner.call, op.attrs, buffers, engine.state.version, values_here)
            return
    values = _values_here(engine, run, position)
    match op:
        case PreparedCustomFunction():
            _call_host(engine, op, values)
        case PreparedSignal():  # which the runner found further than that: it is refused
            op.signal.set(evaluate(op.value, {**engine.state.bound_values(), **values}))
        case _:
            raise InternalError("runner", "came back for a row that is no host call.")


def _values_here(engine: Engine, run: RunState, position: int) -> dict[str, int]:
    """The values that variables have at this place of the run only."""
    late, known = engine.state.late_values(), engine.parts.late_at(position)
    return {**_counters_at(engine, run, position), **{name: late[name] for name in known}}


def _all_values(engine: Engine, run: RunState, position: int) -> dict[str, int]:
    state = engine.state
    here = _values_here(engine, run, position)
    return {**state.bound_values(), **state.held_values(), **here}


def _counters_at(engine: Engine, run: RunState, position: int) -> dict[str, int]:
    """The counters of the loops around an operation, at the iteration that its lane is in."""
    iterations = run.iterations
    loops = engine.parts.placed[position].loops
    return {loop.counter: iterations[loop.counter] for loop in loops}


def _shape(buffer: Buffer, here: Mapping[str, int], values: Mapping[str, int]) -> tuple[int, ...]:
    """The shape here: late variables are known to the plan's buffers only when a run is over."""
    dims = buffer.type.shape
    if here.keys().isdisjoint(v.name for dim in dims for v in variables(dim)):
        return buffer.shape
    return tuple(evaluate(dim, values) for dim in dims)


def _call_host(engine: Engine, op: PreparedCustomFunction, here: Mapping[str, int]) -> None:
    """Call a custom function; the workers have left, and the plan cannot be changed.

    `here` are the values that variables have at this place of the run only.
    """
    buffers = [engine.parts.buffers[i] for i in op.buffer_indices]
    values = {**engine.state.bound_values(), **here, **op.fixedvars}
    _guarded(
        op,
        call_on_host,
        engine.parts.functions[op.kind],
        op.attrs,
        buffers,
        [_shape(b, here, values) for b in buffers],
        values,
        [v.name for v in op.runtime_vars],
    )


def _guarded(op: PreparedCustomFunction, call: Callable[..., None], *args: Any) -> None:
    """Call it; whatever it raises says where."""
    try:
        call(*args)
    except SemelError as error:
        error.seen_at(f"op {op.id} ({op.kind})", op=op.id, kind=op.kind)
        raise
    except Exception as error:
        raise CustomFunctionError(
            f"op {op.id} ({op.kind})",
            f"raised {type(error).__name__}: {error}.",
            op=op.id,
            kind=op.kind,
        ) from error


#: What is said where a run cannot go on; a variable that needs more memory may have got it.
_REFUSALS: dict[int, Callable[[Engine], None]] = {
    Code.BUSY: _on_busy,
    Code.RELEASED: _on_released,
    Code.VARIABLE: _on_variable,
    Code.GUARD: _on_guard,
    Code.INPUT: _on_input,
    Code.STATUS: _on_status,
}
