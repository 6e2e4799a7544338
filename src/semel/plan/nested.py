"""A plan as an operation of a plan: the custom function `graph`.

    PreparedCustomFunction(id, "graph", plan, buffer_indices=(inputs..., outputs...))

The plan inside runs as a host call: its inputs are copied from the buffers of the operation,
in the order of `plan.inputs`, its outputs to the buffers after them. Its variables take the values
that the outer plan has under the same names (`fixedvars` before them); one that the outer
plan does not know keeps the value it has inside. Buffers are used as compact prefixes, in
the shapes that these values give.

It stays a plan of its own, with its own memory, lock and threads, and may be run by itself
between two runs. A clone of the outer plan has a clone of it; a file holds it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.errors import InputError, PlanError
from semel.ir.types import TensorType
from semel.plan.engine import Engine
from semel.plan.plan import ExecutionPlan
from semel.plan.rows import GRAPH
from semel.runtime.buffer import Array, Buffer
from semel.runtime.custom import CustomFunction


def _plan(attrs: Any) -> ExecutionPlan:
    if not isinstance(attrs, ExecutionPlan):
        raise PlanError(GRAPH, f"attrs must be an ExecutionPlan, got {type(attrs).__name__}.")
    return attrs


def _reads(attrs: Any) -> tuple[int, ...]:
    return tuple(range(len(_plan(attrs).inputs)))


def _writes(attrs: Any) -> tuple[int, ...]:
    first = len(_plan(attrs).inputs)
    return tuple(range(first, first + _plan(attrs).num_outputs))


def _check(attrs: Any, types: Sequence[TensorType], names: Sequence[str]) -> None:
    """As many buffers as inputs and outputs, of their dtypes, and large enough if that is known."""
    plan = _plan(attrs)
    wanted = {f"input '{entry.name}'": entry.type for entry in plan.inputs.values()} | {
        f"output {i}": entry.type for i, entry in enumerate(plan.outputs.values())
    }
    if len(types) != len(wanted):
        raise PlanError(
            GRAPH, f"needs a buffer for each of {', '.join(wanted)}, got {len(types)} buffers."
        )
    for (name, inner), outer in zip(wanted.items(), types, strict=True):
        if outer.dtype != inner.dtype:
            raise PlanError(GRAPH, f"{name} must be {inner.dtype}, got {outer.dtype}.")
        least, most = inner.num_bytes, outer.max_bytes
        if isinstance(least, int) and most is not None and most < least:
            raise PlanError(GRAPH, f"{name} is {inner}: its buffer is too small, {outer}.")


def graph(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
    """Run the plan `attrs` on the first buffers, and write its outputs to the others."""
    plan = _plan(attrs)
    inputs, outputs = buffers[: len(plan.inputs)], buffers[len(plan.inputs) :]
    values = {name: variables[name] for name in plan.variables if name in variables}
    given = dict(zip(plan.inputs, inputs, strict=True))

    def read(name: str, shape: tuple[int, ...]) -> Any:
        return _prefix(f"input '{name}'", given[name], shape)

    def write(i: int, array: Any) -> None:
        _prefix(f"output {i}", outputs[i], array.shape)[...] = array

    run_between(plan, values, read, write)


def run_between(
    plan: ExecutionPlan,
    values: Mapping[str, int],
    read: Callable[[str, tuple[int, ...]], Array],
    write: Callable[[int, Array], None],
) -> None:
    """Run a plan as one operation: inputs from `read(name, shape)`, outputs to `write(i, array)`.

    The shapes are those at `values`, and at the variables as they are where it has none.
    """
    engine = plan.engine
    engine.hold.alone(_run_between, engine, values, read, write)


def _run_between(
    engine: Engine,
    values: Mapping[str, int],
    read: Callable[[str, tuple[int, ...]], Array],
    write: Callable[[int, Array], None],
) -> None:
    state, buffers = engine.state, engine.parts.buffers
    state.check_alive()
    values = {name: value for name, value in values.items() if name in engine.index}
    known = {**state.bound_values(), **state.held_values(), **values}
    arrays = {io: read(io.name, io.shape_at(known)) for io in engine.parts.input_io}
    for io, array in arrays.items():
        state.inputs[io.name].begin_write(array.shape)
        buffers[io.index].put(array)
        state.inputs[io.name].end_write(array.shape)
    engine.run_with(values)
    for i, index in enumerate(engine.parts.outputs):
        write(i, buffers[index].peek(buffers[index].shape))


def _prefix(what: str, buffer: Buffer, shape: tuple[int, ...]) -> Any:
    """The first bytes of a buffer as an array of that shape, if there are as many."""
    size = buffer.dtype.size_bytes
    for dim in shape:
        size *= dim
    if size > buffer.capacity_bytes:
        raise InputError(
            GRAPH,
            f"{what} of the plan inside has shape {shape} at these variables: its buffer must "
            f"hold {size} bytes, it has {buffer.capacity_bytes}.",
            shape=shape,
        )
    return buffer.array(shape)


FUNCTIONS = {GRAPH: CustomFunction(GRAPH, "python", graph, 0, _reads, _writes, _check)}
