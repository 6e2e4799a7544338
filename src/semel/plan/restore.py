"""A plan built by hand, from the records of its file.

    records, kernels, contents  --read_snapshot-->  SavedPlan  --build()-->  ExecutionPlan

The reading side of `plan.snapshot`. Everything goes through the `ExecutionPlanBuilder`, which
checks it as if it had been written by hand once more; what the builder cannot know (that buffers
lie inside their storage, that values fit their variables) is checked here. Records come from a
file, so nothing is trusted: what does not fit is an error of ours, and no plan is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from semel.errors import GraphError, OutOfMemoryError
from semel.ir.encode import DimReader, as_index, as_int, as_list, as_text, decode_type
from semel.ir.plain import decode_plain
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.nested import GRAPH
from semel.plan.plan import ExecutionPlan
from semel.plan.prepared import (
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedEnd,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    RuntimeVar,
)
from semel.runtime.allocator import Memory, allocate
from semel.runtime.buffer import Buffer, ConcreteShape
from semel.runtime.custom import find_custom_function
from semel.runtime.kernel import CachedKernel


@dataclass(frozen=True, slots=True)
class Source:
    """What the records refer to. `contents(offset, size)` is memory that may be written.

    `plan` makes a plan of the contents of its file.
    """

    dim: DimReader
    blob: Callable[[Any], bytes]
    contents: Callable[[int, int], Memory]
    plan: Callable[[bytes], ExecutionPlan]


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan that is ready to be built, and how it goes on."""

    builder: ExecutionPlanBuilder
    order: tuple[int, ...] | None
    values: dict[str, int]
    shapes: dict[str, ConcreteShape]
    marks: tuple[int, ...]

    def build(self, threads: int | None, memory_limit: int | None) -> ExecutionPlan:
        """The plan, with the variables and inputs that it was saved with."""
        plan = self.builder.build(threads=threads, order=self.order)
        plan.memory_limit = memory_limit
        _check_limit(plan.memory.peak_bytes, memory_limit)
        plan.resume(self.values, self.shapes, self.marks)
        return plan


def missing_functions(header: Any) -> list[str]:
    """Names of the custom functions that the operations call and nobody has registered."""
    named = (as_text(op["function"]) for op in as_list(header["ops"]) if op["kind"] == "function")
    return sorted({name for name in named if find_custom_function(name) is None})


def read_snapshot(
    header: Any, source: Source, kernels: Sequence[CachedKernel], memory_limit: int | None
) -> SavedPlan:
    """Everything of the file in a builder."""
    device, dim = as_text(header["device"]), source.dim
    builder = ExecutionPlanBuilder(device)
    buffers = _read_buffers(header, source, device, memory_limit)
    for buffer in buffers:
        builder.add_buffer(None, buffer)
    for entry in as_list(header["ids"]):
        ast_id, index = as_list(entry, 2)
        builder.map_buffer(as_int(ast_id), as_int(index))
    builder.add_alias_ids(_ints(header["alias_ids"]))
    reader = _OpReader(source, kernels, device)
    for record in as_list(header["ops"]):
        builder.add_op_with_instance_dependencies(reader.read(record), _ints(record["after"]))
    for expr, message in (as_list(guard, 2) for guard in as_list(header["guards"])):
        builder.add_guard(dim(expr), as_text(message))
    values = _read_variables(header, builder, dim)
    shapes = _read_io(header, builder, buffers, dim)
    builder.set_output_buffers(_ints(header["output_buffers"]))
    order = None if header["order"] is None else _ints(header["order"])
    marks = tuple(_size(mark) for mark in as_list(header.get("marks", [])))
    return SavedPlan(builder, order, values, shapes, marks)


def _check_limit(wanted: int, memory_limit: int | None) -> None:
    if memory_limit is not None and wanted > memory_limit:
        raise OutOfMemoryError("cpu", wanted, memory_limit)


# ---------------------------------------------------------------- memory


def _read_buffers(
    header: Any, source: Source, device: str, memory_limit: int | None
) -> list[Buffer]:
    records = [as_list(record, 3) for record in as_list(header["storages"])]
    _check_limit(sum(_size(size) for size, _, _ in records), memory_limit)
    storages = [_read_storage(record, source) for record in records]
    buffers: list[Buffer] = []
    wholes: dict[int, int] = {}
    for i, record in enumerate(as_list(header["buffers"])):
        if not isinstance(record, list):
            buffers.append(buffers[as_index(record, i, "buffer")])
            continue
        storage, offset, size, kind, whole = as_list(record, 5)
        memory = storages[as_index(storage, len(storages), "storage")]
        start, end = _size(offset), _size(offset) + _size(size)
        if end > memory.size_bytes:
            message = (
                f"a buffer must lie inside its {memory.size_bytes} bytes, got [{start}, {end})."
            )
            raise GraphError("decode", message)
        type_ = decode_type(kind, source.dim)
        most = type_.max_bytes
        if most is not None and most > end - start:
            raise GraphError("decode", f"a buffer of {type_} must have {most} bytes, got {size}.")
        buffers.append(Buffer.window(memory, start, end - start, type_, device))
        if whole is not None:
            wholes[i] = as_int(whole)
    _set_wholes(buffers, wholes)
    return buffers


def _read_storage(record: list[Any], source: Source) -> Memory:
    """Memory with the saved contents; what the plan itself writes gets memory of its own."""
    size, is_own, place = record
    size = _size(size)
    if place is None:
        return allocate(size)
    saved = source.contents(as_int(place), size)
    if not is_own:
        return saved
    memory = allocate(size)
    memory.bytes[:size] = saved.bytes
    return memory


def _set_wholes(buffers: list[Buffer], wholes: dict[int, int]) -> None:
    """Make views views again; each must lie in its whole, and none may be part of itself."""
    number_of = {id(buffer): i for i, buffer in reversed(list(enumerate(buffers)))}
    for i, number in wholes.items():
        part, whole = buffers[i], buffers[as_index(number, len(buffers), "whole")]
        storage, start, end = whole.byte_range
        if part.storage_id != storage or part.offset < start or part.byte_range[2] > end:
            raise GraphError("decode", f"buffer {i} must lie inside buffer {number}.")
        part.set_whole(whole)
    checked: set[int] = set()
    for i in wholes:
        path: set[int] = set()
        at: int | None = i
        while at is not None and at not in checked:
            if at in path:
                raise GraphError("decode", f"buffer {i} must not be part of itself.")
            path.add(at)
            above = buffers[at].whole
            at = None if above is None else number_of[id(above)]
        checked |= path


def _size(value: Any) -> int:
    number = as_int(value)
    if number < 0:
        raise GraphError("decode", f"a size or offset must be >= 0, got {number}.")
    return number


def _ints(entries: Any) -> tuple[int, ...]:
    return tuple(as_int(entry) for entry in as_list(entries))


# ---------------------------------------------------------------- variables, inputs, outputs


def _read_variables(header: Any, builder: ExecutionPlanBuilder, dim: DimReader) -> dict[str, int]:
    """Declares the variables; the values that are bound."""
    values: dict[str, int] = {}
    for entry in as_list(header["variables"]):
        reference, initial, capacity, value = as_list(entry, 4)
        variable = dim.variable(reference)
        first, room, now = (None if n is None else as_int(n) for n in (initial, capacity, value))
        builder.declare_variable(variable, first, capacity=room)
        if now is not None:
            top = room if variable.max is None else variable.max
            if now < variable.min or (top is not None and now > top) or abs(now) >= 1 << 62:
                raise GraphError("decode", f"{variable.name} must be within bounds, got {now}.")
            values[variable.name] = now
    return values


def _read_io(
    header: Any, builder: ExecutionPlanBuilder, buffers: list[Buffer], dim: DimReader
) -> dict[str, ConcreteShape]:
    """Declares inputs and outputs; the shapes of the inputs that are written."""
    shapes: dict[str, ConcreteShape] = {}
    for entry in as_list(header["inputs"]):
        name, number, kind, written = as_list(entry, 4)
        index, type_ = as_index(number, len(buffers), "buffer"), decode_type(kind, dim)
        builder.declare_input(as_text(name), index, type_)
        if written is not None:
            shape = tuple(_size(size) for size in as_list(written, type_.rank))
            if prod(shape) * type_.dtype.size_bytes > buffers[index].capacity_bytes:
                raise GraphError("decode", f"input {name} must fit its buffer, got {shape}.")
            shapes[name] = shape
    for entry in as_list(header["outputs"]):
        name, number, kind = as_list(entry, 3)
        index = as_index(number, len(buffers), "buffer")
        builder.declare_output(as_text(name), index, decode_type(kind, dim))
    return shapes


# ---------------------------------------------------------------- operations


class _OpReader:
    """Records to operations."""

    def __init__(self, source: Source, kernels: Sequence[CachedKernel], device: str) -> None:
        self._source, self._kernels, self._device = source, kernels, device

    def read(self, record: Any) -> PreparedOp:
        id_, buffers = as_int(record["id"]), _ints(record["buffers"])
        after = _ints(record["dependencies"])
        match record["kind"]:
            case "kernel":
                return self._kernel(record, id_, buffers, after)
            case "copy":
                return PreparedCopy(id_, buffers, after)
            case "view":
                offset, size = _ints(as_list(record["bytes"], 2))
                return PreparedBufferView(id_, buffers, offset, size, after)
            case "function":
                kind = as_text(record["function"])
                attrs = decode_plain(record["attrs"], self._source.blob)
                return PreparedCustomFunction(
                    id=id_,
                    kind=kind,
                    attrs=self._source.plan(attrs) if kind == GRAPH else attrs,
                    buffer_indices=buffers,
                    fixedvars=_read_fixed(record["fixed"]),
                    dependencies=after,
                    runtime_vars=_read_vars(record["variables"]),
                )
            case "loop":
                counter, trip = as_text(record["counter"]), self._source.dim(record["trip"])
                return PreparedLoop(id_, counter, trip, after, buffers)
            case "end":
                return PreparedEnd(id_, after, buffers)
            case other:
                raise GraphError("decode", f"an op must be of a known kind, got {other!r:.40}.")

    def _kernel(
        self, record: Any, id_: int, buffers: tuple[int, ...], after: tuple[int, ...]
    ) -> PreparedKernel:
        number = as_index(record["kernel"], len(self._kernels), "kernel")
        return PreparedKernel(
            id=id_,
            ast=decode_plain(record["ast"], self._source.blob),
            kernel=self._kernels[number],
            device=self._device,
            buffer_indices=buffers,
            output_indices=_ints(record["outputs"]),
            vals=_ints(record["vals"]),
            fixedvars=_read_fixed(record["fixed"]),
            dependencies=after,
            runtime_vars=_read_vars(record["variables"]),
        )


def _read_fixed(record: Any) -> dict[str, int]:
    return {as_text(name): as_int(value) for name, value in dict(record).items()}


def _read_vars(entries: Any) -> tuple[RuntimeVar, ...]:
    found = []
    for name, low, high in (as_list(entry, 3) for entry in as_list(entries)):
        found.append(RuntimeVar(as_text(name), as_int(low), None if high is None else as_int(high)))
    return tuple(found)
