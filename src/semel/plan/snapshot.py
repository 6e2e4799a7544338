"""A plan built by hand, as it is at one moment: what its file holds.

    PlanParts + contents, variables, written shapes  --take_snapshot-->  Snapshot
    Snapshot  --encode_snapshot-->  JSON records and bytes  --plan.restore-->  ExecutionPlan

Such a plan has no program: its buffers are the caller's, and nobody knows which of them hold
weights. So a snapshot has them all: each storage once, with its bytes, and buffers as byte ranges
of storages, so that what overlaps here overlaps there. Storages that are all zeros take no room.

Left out is what belongs to a process: addresses, the number of threads, bound arrays (of a bound
input, the contents are there) and whatever an operation has as `ast` that is not plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from semel.errors import PlanError
from semel.ir.encode import DimWriter, encode_type
from semel.ir.plain import encode_plain
from semel.plan.parts import PlanParts
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
from semel.plan.state import PlanIO
from semel.runtime.allocator import Bytes
from semel.runtime.buffer import Array, Buffer, ConcreteShape
from semel.runtime.kernel import CachedKernel

AddBlob = Callable[[bytes], list[int]]


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of memory. `is_own`: a plan writes it or has it as input or output."""

    id: int
    size_bytes: int
    is_own: bool
    data: Bytes | None  # None: all zeros


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """What is saved of a plan built by hand; good while the plan's lock is held."""

    parts: PlanParts
    storages: tuple[Storage, ...]
    values: Mapping[str, int]
    shapes: Mapping[str, ConcreteShape | None]
    marks: tuple[int, ...]

    @property
    def kernels(self) -> tuple[CachedKernel, ...]:
        """The distinct kernels, in order of first use."""
        calls = (op.kernel for op in self.parts.ops if isinstance(op, PreparedKernel))
        return tuple(dict.fromkeys(calls))

    def sections(self) -> dict[int, Array]:
        """The contents to store, by storage."""
        return {i: s.data for i, s in enumerate(self.storages) if s.data is not None}


def take_snapshot(
    parts: PlanParts,
    own: Iterable[int],
    values: Mapping[str, int],
    shapes: Mapping[str, ConcreteShape | None],
    bound: Mapping[str, Array],
    marks: tuple[int, ...],
) -> Snapshot:
    """A snapshot of a plan whose buffers lie in its own memory.

    `own` are the buffers that it writes or that are inputs or outputs; `bound` the arrays that
    take the place of inputs; `marks` how much of the outputs runs have written.
    """
    own_ids = {parts.buffers[i].memory.id for i in own}
    storages: dict[int, Storage] = {}
    for buffer in parts.buffers:
        memory = buffer.memory
        if memory.id not in storages:
            data = memory.bytes[: memory.size_bytes]
            for io in parts.input_io:
                if io.name in bound and parts.buffers[io.index].memory is memory:
                    data = _with_array(data, parts.buffers[io.index], bound[io.name])
            kept = data if data.any() else None
            storages[memory.id] = Storage(memory.id, memory.size_bytes, memory.id in own_ids, kept)
    return Snapshot(parts, tuple(storages.values()), values, shapes, marks)


def _with_array(data: Bytes, buffer: Buffer, array: Array) -> Bytes:
    """The storage as if the array had been written to the buffer."""
    made = data.copy()
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    made[buffer.offset : buffer.offset + raw.size] = raw
    return made


# ---------------------------------------------------------------- records


def encode_snapshot(
    snapshot: Snapshot, dim: DimWriter, add_blob: AddBlob, places: Mapping[int, int]
) -> dict[str, Any]:
    """All of a snapshot but kernels and contents; `places` are the offsets of the contents."""
    parts = snapshot.parts
    number = {kernel: i for i, kernel in enumerate(snapshot.kernels)}
    writer = _OpWriter(number, add_blob, dim)
    return {
        "device": parts.device.name,
        "storages": [
            [s.size_bytes, s.is_own, places.get(i)] for i, s in enumerate(snapshot.storages)
        ],
        "buffers": _encode_buffers(snapshot, dim),
        "ids": [[_int("ast id", id_), i] for id_, i in parts.ast_to_buffer.items()],
        "alias_ids": _ints("alias id", parts.alias_ids),
        "ops": [
            {**writer.encode(op), "after": list(after)}
            for op, after in zip(parts.ops, parts.after, strict=True)
        ],
        "order": None if parts.run_order is None else _ints("order", parts.run_order),
        "output_buffers": _ints("output index", parts.outputs),
        "variables": [
            [dim(v.variable), v.initial, v.capacity, snapshot.values.get(v.variable.name)]
            for v in parts.variables
        ],
        "guards": [[dim(expr), message] for expr, message in parts.guards],
        "inputs": [
            [*_encode_io(io, dim), _shape(snapshot.shapes[io.name])] for io in parts.input_io
        ],
        "outputs": [_encode_io(io, dim) for io in parts.output_io],
        "marks": list(snapshot.marks),
    }


def _encode_buffers(snapshot: Snapshot, dim: DimWriter) -> list[Any]:
    """[storage, offset, size, type, whole] for each; a buffer that comes again is its index.

    `whole` is the buffer that it is a view of and that answers for it.
    """
    number = {s.id: i for i, s in enumerate(snapshot.storages)}
    sizes = {s.id: s.size_bytes for s in snapshot.storages}
    buffers = snapshot.parts.buffers
    first: dict[int, int] = {}
    for i, buffer in enumerate(buffers):
        first.setdefault(id(buffer), i)
    records: list[Any] = []
    for i, buffer in enumerate(buffers):
        if first[id(buffer)] < i:
            records.append(first[id(buffer)])
            continue
        end = buffer.offset + buffer.capacity_bytes
        if not 0 <= buffer.offset <= end <= sizes[buffer.memory.id]:
            raise PlanError("save", f"buffer {i} must lie inside its storage: {buffer}.")
        whole = buffer.whole
        while whole is not None and id(whole) not in first:
            whole = whole.whole
        records.append(
            [
                number[buffer.memory.id],
                buffer.offset,
                buffer.capacity_bytes,
                encode_type(buffer.type, dim),
                None if whole is None else first[id(whole)],
            ]
        )
    return records


def _encode_io(io: PlanIO, dim: DimWriter) -> list[Any]:
    return [io.name, io.index, encode_type(io.type, dim)]


def _shape(shape: ConcreteShape | None) -> list[int] | None:
    return None if shape is None else list(shape)


class _OpWriter:
    """Operations as records: kernels by number, functions by name."""

    def __init__(
        self, number: Mapping[CachedKernel, int], add_blob: AddBlob, dim: DimWriter
    ) -> None:
        self._number, self._add_blob, self._dim = number, add_blob, dim

    def encode(self, op: PreparedOp) -> dict[str, Any]:
        common = {
            "id": _int("op id", op.id),
            "buffers": _ints("buffer index", op.buffer_indices),
            "dependencies": _ints("dependency", op.dependencies),
        }
        match op:
            case PreparedKernel():
                return {"kind": "kernel", **common, **self._kernel(op)}
            case PreparedCopy():
                return {"kind": "copy", **common}
            case PreparedBufferView():
                window = [op.byte_offset, op.byte_size]
                return {"kind": "view", **common, "bytes": _ints("byte range", window)}
            case PreparedCustomFunction():
                return {"kind": "function", **common, **self._function(op)}
            case PreparedLoop():
                return {
                    "kind": "loop", **common, "counter": op.counter, "trip": self._dim(op.trip)
                }  # fmt: skip
            case PreparedEnd():
                return {"kind": "end", **common}

    def _kernel(self, op: PreparedKernel) -> dict[str, Any]:
        return {
            "kernel": self._number[op.kernel],
            "ast": self._ast(op.ast),
            "outputs": _ints("output index", op.output_indices),
            "vals": _ints("initial value", op.vals),
            "fixed": dict(op.fixedvars),
            "variables": [_encode_var(v) for v in op.runtime_vars],
        }

    def _function(self, op: PreparedCustomFunction) -> dict[str, Any]:
        where = f"op {op.id} ({op.kind}): attrs"
        return {
            "function": op.kind,
            "attrs": encode_plain(op.attrs, where, self._add_blob),
            "fixed": dict(op.fixedvars),
            "variables": [_encode_var(v) for v in op.runtime_vars],
        }

    def _ast(self, ast: Any) -> Any:
        """Source lines, a name, anything plain; a plan runs the same without it."""
        try:
            encode_plain(ast, "ast", lambda data: [0, 0])
        except PlanError:
            return None
        return encode_plain(ast, "ast", self._add_blob)


def _encode_var(var: RuntimeVar) -> list[Any]:
    return [var.name, var.min_val, var.max_val]


def _int(what: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise PlanError("save", f"{what} must be an int, got {value!r:.40}.") from None


def _ints(what: str, values: Any) -> list[int]:
    return [_int(what, value) for value in values]
