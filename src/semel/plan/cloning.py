"""Another plan of the same program: with memory of its own, and going on from where one stands.

    Engine  --parts_again-->  PlanParts, ProgramStore  --ExecutionPlan-->  Engine
    Engine  --take_over-->    the new one has its variables, inputs and states

A compiled program gives its clone a fork of its store. Of a plan built by hand the buffers that it
owns are copied, and the others are used by both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semel.plan.engine import Engine
from semel.plan.kept import follow_states
from semel.plan.parts import PlanParts
from semel.plan.rows import PreparedOp
from semel.plan.store import ProgramStore, fork_buffers
from semel.plan.tree import map_rows, walk
from semel.runtime.custom import without_owner


def parts_again(
    engine: Engine, threads: int, clone_row: Callable[[PreparedOp], PreparedOp]
) -> tuple[PlanParts, ProgramStore | None]:
    """The parts of a clone; `clone_row` is what becomes of a row of a plan built by hand."""
    parts = engine.parts
    if engine.store is None:
        return _fork(engine, threads, clone_row), None
    store = engine.store.fork()
    functions = {kind: without_owner(known) for kind, known in parts.functions.items()}
    return replace(parts, buffers=store.buffers, threads=threads, functions=functions), store


def _fork(engine: Engine, threads: int, clone_row: Callable[[PreparedOp], PreparedOp]) -> PlanParts:
    engine.bindings.detach()
    try:
        parts = engine.parts
        buffers = fork_buffers(parts.buffers, sorted(parts.own))
    finally:
        engine.attach()
    rows = map_rows(parts.rows, clone_row)
    program, placed = replace(parts.program, rows=rows), tuple(walk(rows))
    return replace(parts, program=program, placed=placed, buffers=buffers, threads=threads)


def take_over(source: Engine, made: Engine) -> None:
    """Start with the variables and inputs of another plan of the same program."""
    held, known = source.state.held_values(), source.state.bound_values()
    values = {name: value for name, value in known.items() if name not in held}
    made.ensure_capacity(values)
    for name, keeper in source.state.inputs.items():
        shape = keeper.recorded_shape()
        if shape is not None:
            bound = source.bindings.input_array(name)
            array = source.parts.buffers[keeper.index].peek(shape) if bound is None else bound
            made.parts.buffers[keeper.index].put(array)
            made.state.inputs[name].record(shape)
    made.state.partial.update(source.state.partial)
    made.set_values(values)
    follow_states(source, made)
    for io in made.parts.output_io:
        if io.part:
            written = source.parts.buffers[io.index].peek(io.shape_at(values))
            made.parts.buffers[io.index].put(written)
    made.state.run.set_marks(dict(enumerate(source.state.run.marks)))
