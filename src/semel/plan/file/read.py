"""Plan files, the reading side: from bytes to a program, and to the memory of an image.

    file  --map_file, parse_file-->  PlanFile  --read_program-->  Program
                                               --read_memory-->   SavedMemory

Records come from a file, so nothing is trusted: what does not fit is an error of ours, and no plan
is made. What a plan must be checked for anyhow (`plan.check`) is checked there; what only the
file can get wrong (that buffers lie inside their storage, that values fit their variables) here.
Code and kernels are `semel.loading`'s.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from semel.errors import GraphError, OutOfMemoryError, PlanFileError
from semel.ir.encode import DimReader, as_index, as_int, as_list, as_text, decode_type
from semel.ir.expr import Dim, Variable
from semel.ir.fields import MemoryLimit
from semel.ir.plain import decode_plain
from semel.ir.target import Target
from semel.ir.types import TensorType
from semel.plan.file.format import Prefix
from semel.plan.file.whole import read_parts
from semel.plan.file.write import PLAN_FILE, refuse_plan_file
from semel.plan.plan import ExecutionPlan
from semel.plan.program import (
    GIVEN,
    ExpertLayer,
    NodeNote,
    PlanIO,
    PlanVariable,
    Program,
    ProgramState,
    ProgramValue,
    StateRows,
)
from semel.plan.row import RowReader
from semel.plan.rows import GRAPH, PreparedKernel, decode_rows
from semel.plan.weights import Formula, Param, Recipe, Weight
from semel.runtime.allocator import ALIGNMENT_BYTES, SLACK_BYTES, HostMemory
from semel.runtime.buffer import Buffer, ConcreteShape
from semel.runtime.custom import find_custom_function
from semel.runtime.device import Device, check_device, find_device
from semel.runtime.free import HOST_DEVICE
from semel.runtime.kernel import CachedKernel
from semel.runtime.memory import Bytes, Memory
from semel.runtime.timeline import TimelineSignal

#: Makes a plan of the contents of its file.
MakePlan = Callable[[Any], ExecutionPlan]

# ---------------------------------------------------------------- the file


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A file whose prefix and checksums are right; `name` is for messages.

    `private` are the bytes of `constants` once more: who writes there changes no file. Whether
    the constants are whole, `check` says.
    """

    name: str
    prefix: Prefix
    header: Any
    dim: DimReader
    blobs: memoryview
    constants: Bytes
    private: Bytes
    check: Callable[[], None]

    def blob(self, place: Any) -> bytes:
        """The bytes at [offset, size]."""
        offset, size = (as_int(n) for n in as_list(place, 2))
        if offset < 0 or size < 0 or offset + size > len(self.blobs):
            raise self.refuse(f"bytes [{offset}, {offset + size}) must lie inside the file.")
        return bytes(self.blobs[offset : offset + size])

    def target(self, number: Any) -> Target:
        """The target that code was made for."""
        targets = as_list(self.header["targets"])
        record = dict(targets[as_index(number, len(targets), "target")])
        features = tuple(as_text(name) for name in as_list(record["features"]))
        return Target(**{**record, "features": features})

    @property
    def made_for(self) -> Target:
        """The machine that the program is for."""
        return self.target(self.header["made_for"])

    @property
    def about(self) -> Any:
        """What was kept with the plan, if anything: JSON."""
        return self.header.get("about")

    def variants(self) -> list[PlanFile]:
        """The file as each of the programs in it, which are one for several machines."""
        others = as_list(self.header.get("others", []))
        return [self, *(replace(self, header=h, dim=DimReader(h["dims"])) for h in others)]

    def contents(self, offset: int, size: int) -> Memory:
        """The bytes of a storage, which may be written."""
        constant_bytes(self, offset, size)
        return HostMemory.over(self.private[offset : offset + size])

    def refuse(self, message: str, hint: str = "", **fields: Any) -> PlanFileError:
        """The error for this file."""
        return refuse_plan_file(self.name, message, hint, **fields)


MALFORMED = (GraphError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns whatever is wrong with the records into the error for this file."""
    try:
        yield
    except MALFORMED as error:
        raise refuse_plan_file(
            name, f"its records must be those of a plan: {error!r:.200}."
        ) from error


@contextmanager
def whole(file: PlanFile) -> Iterator[None]:
    """What is made of a file inside goes on only if the file's constants are whole.

    If they are not, that is the error, whatever else was found.
    """
    try:
        yield
    except Exception:
        file.check()
        raise
    file.check()


def map_file(path: Path) -> tuple[Bytes, Bytes]:
    """The file's bytes, read-only and shared with all who map it, and once more, to write to.

    Both are of one open file, whatever is put in its place meanwhile.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, np.uint8), np.empty(0, np.uint8)
            shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            private = mmap.mmap(file.fileno(), len(shared), access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise refuse_plan_file(str(path), f"must be readable: {error}.") from error
    return np.frombuffer(shared, np.uint8), np.frombuffer(private, np.uint8)


def parse_file(data: Bytes, private: Bytes, name: str, *, verify: bool) -> PlanFile:
    """The file in these bytes, if they are whole; of the constants that is still to be asked."""
    parts = read_parts(data, name, PLAN_FILE, verify=verify)
    prefix, front = parts.prefix, parts.front
    private = private[prefix.constants_offset :]
    with reading(name):
        header = json.loads(bytes(front[: prefix.header_bytes]))
        dim = DimReader(header["dims"])
    blobs = front[prefix.header_bytes :]
    return PlanFile(name, prefix, header, dim, blobs, parts.arrays, private, parts.check)


# ---------------------------------------------------------------- programs


@dataclass(frozen=True, slots=True)
class _RowReader:
    """What rows refer to, as this process has it."""

    file: PlanFile
    device: str
    kernels: Sequence[CachedKernel]
    make_plan: MakePlan
    signals: dict[str, TimelineSignal] = field(default_factory=dict)

    def dim(self, record: Any) -> Dim:
        return self.file.dim(record)

    def variable(self, record: Any) -> Variable:
        return self.file.dim.variable(record)

    def kernel(self, record: Any) -> CachedKernel:
        return self.kernels[as_index(record, len(self.kernels), "kernel")]

    def plain(self, record: Any) -> Any:
        return decode_plain(record, self.file.blob)

    def attrs(self, kind: str, record: Any) -> Any:
        found = decode_plain(record, self.file.blob)
        return self.make_plan(found) if kind == GRAPH else found

    def signal(self, name: str, value: int) -> TimelineSignal:
        """One signal for each name of the file."""
        return self.signals.setdefault(name, TimelineSignal(name, value))


def read_program(
    file: PlanFile, kernels: Sequence[CachedKernel], make_plan: MakePlan, compile_count: int
) -> Program:
    """The program; its weights lie in the file's pages."""
    record, dim = file.header["program"], file.dim
    device = as_text(record["device"])
    weights = _Weights(file)
    values = tuple(_read_value(file, entry, weights) for entry in as_list(record["values"]))
    # Recipes run on the host, whatever device reads what they make.
    formulas = tuple(
        _read_formula(entry, dim, _RowReader(file, HOST_DEVICE, kernels, make_plan))
        for entry in as_list(record.get("formulas", []))
    )
    order = record.get("order")
    return Program(
        values=values,
        rows=decode_rows(record["rows"], _RowReader(file, device, kernels, make_plan)),
        inputs=_read_io(record["inputs"], len(values), dim, weights),
        outputs=_read_io(record["outputs"], len(values), dim, weights),
        results=tuple(as_index(i, len(values), "value") for i in as_list(record["results"])),
        kept=tuple(
            (as_text(name), as_index(index, len(values), "value"))
            for name, index in (as_list(entry, 2) for entry in as_list(record["kept"]))
        ),
        experts=tuple(
            ExpertLayer(_ints(ids), as_int(count), _ints(stacks))
            for ids, count, stacks in (as_list(e, 3) for e in as_list(record["experts"]))
        ),
        guards=tuple(
            (dim(expr), as_text(message))
            for expr, message in (as_list(g, 2) for g in as_list(record["guards"]))
        ),
        variables=tuple(_read_variable(entry, dim) for entry in as_list(record["variables"])),
        log=_texts(record["log"]),
        placement=_texts(record.get("placement", [])),
        compile_count=compile_count,
        device=device,
        name=as_text(record["name"]),
        nodes=tuple(_read_note(entry) for entry in as_list(record.get("nodes", []))),
        after={
            as_int(i): _ints(positions)
            for i, positions in (as_list(e, 2) for e in as_list(record.get("after", [])))
        },
        run_order=None if order is None else _ints(order),
        alias_ids=_ints(record.get("alias_ids", [])),
        states=tuple(_read_state(entry, dim) for entry in as_list(record.get("states", []))),
        params=tuple(_read_param(e, dim, weights) for e in as_list(record.get("params", []))),
        recipes=tuple(
            _read_recipe(e, dim, formulas, weights) for e in as_list(record.get("recipes", []))
        ),
    )


def missing_functions(file: PlanFile) -> list[str]:
    """Names of the custom functions that rows call and nobody has registered."""
    named = _function_names(file.header["program"]["rows"])
    return sorted({name for name in named if find_custom_function(name) is None})


def _function_names(rows: Any) -> Iterator[str]:
    for row in as_list(rows):
        if row["kind"] == "function":
            yield as_text(row["function"])
        for body in (value for value in row.values() if isinstance(value, list)):
            if body and isinstance(body[0], dict):
                yield from _function_names(body)


class _Weights:
    """The weights in a file, each made once."""

    def __init__(self, file: PlanFile) -> None:
        self._file = file
        self._known: dict[tuple[int, TensorType], Weight] = {}

    def read(self, place: Any, kind: TensorType) -> Weight | None:
        """The one at an offset; None if there is none."""
        if place is None:
            return None
        key = as_int(place), kind
        if key not in self._known:
            data = constant_bytes(self._file, key[0], as_int(kind.num_bytes))
            shape = tuple(as_int(d) for d in kind.shape)
            array = np.ndarray(shape, kind.dtype.numpy, data.data)
            self._known[key] = Weight(array, HostMemory.over(data))
        return self._known[key]


def _texts(record: Any) -> tuple[str, ...]:
    return tuple(map(as_text, as_list(record)))


def _read_value(file: PlanFile, record: Any, weights: _Weights) -> ProgramValue:
    kind = decode_type(record["type"], file.dim)
    first, last = _ints(as_list(record["life"], 2))
    weight = weights.read(record["offset"], kind)
    ids = _ints(record.get("ids", []))
    place = as_text(record["place"])
    if weight is None and place == "param":
        weight = Weight.absent(kind)  # if it may be is checked with its recipe
    device = as_text(record.get("device", ""))
    device = check_device("decode", device) if device else ""
    return ProgramValue(as_text(record["name"]), kind, place, weight, first, last, ids, device)


def _read_param(record: Any, dim: DimReader, weights: _Weights) -> Param:
    kind = decode_type(record["type"], dim)
    return Param(
        as_text(record["name"]),
        kind,
        as_int(record["version"]),
        raw=weights.read(record["offset"], kind),
        is_kept=bool(record["kept"]),
        is_missing=bool(record["missing"]),
    )


def _read_formula(record: Any, dim: DimReader, source: RowReader) -> Formula:
    rows: list[PreparedKernel] = []
    for row in decode_rows(record["rows"], source):
        if not isinstance(row, PreparedKernel):
            raise GraphError("decode", f"recipes must consist of kernels, got {row.kind}.")
        rows.append(row)
    types = tuple(decode_type(kind, dim) for kind in as_list(record["types"]))
    count = as_index(record["sources"], len(types), "source")
    return Formula(tuple(rows), types, count, as_text(record["name"]))


def _read_recipe(
    record: Any, dim: DimReader, formulas: Sequence[Formula], weights: _Weights
) -> Recipe:
    def source(entry: Any) -> int | Weight:
        if not isinstance(entry, list):
            return as_int(entry)
        place, kind = as_list(entry, 2)
        found = weights.read(as_int(place), decode_type(kind, dim))
        assert found is not None
        return found

    formula = record["formula"]
    return Recipe(
        as_int(record["value"]),
        tuple(source(entry) for entry in as_list(record["sources"])),
        None if formula is None else formulas[as_index(formula, len(formulas), "formula")],
        {as_text(name): as_int(size) for name, size in dict(record["sizes"]).items()},
    )


def constant_bytes(file: PlanFile, offset: int, size: int) -> Bytes:
    """The bytes of a constant, which must be followed by a line that can be read."""
    end = offset + max(size, ALIGNMENT_BYTES)
    if offset < 0 or size < 0 or offset % ALIGNMENT_BYTES or end > file.constants.size:
        raise file.refuse(f"a constant must lie inside the file, got {size} bytes at {offset}.")
    if offset + size + SLACK_BYTES > file.constants.size:
        raise file.refuse(f"a constant must have {SLACK_BYTES} bytes after it, at {offset}.")
    return file.constants[offset:end]


def _read_io(entries: Any, count: int, dim: DimReader, weights: _Weights) -> tuple[PlanIO, ...]:
    found: dict[str, PlanIO] = {}
    for name, index, encoded, part, *given in map(as_list, as_list(entries)):
        kind = decode_type(encoded, dim)
        default = _read_default(kind, given, weights) if given else None
        place = as_index(index, count, "value")
        io = PlanIO(as_text(name), place, kind, default, dim.all(part))
        if found.setdefault(io.name, io) is not io:
            raise GraphError("decode", f"names must be distinct, got '{io.name}' twice.")
    return tuple(found.values())


def _read_default(kind: TensorType, given: list[Any], weights: _Weights) -> Weight | None:
    place, sizes = as_list(given, 2)
    return weights.read(as_int(place), TensorType(tuple(map(_size, as_list(sizes))), kind.dtype))


def _read_note(entry: Any) -> NodeNote:
    node, became, ops, origin = as_list(entry, 4)
    return NodeNote(as_text(node), as_text(became), _ints(ops), as_text(origin))


def _read_state(entry: Any, dim: DimReader) -> ProgramState:
    name, index, other, axis, cursor, is_append, why, rows = as_list(entry, 8)
    return ProgramState(
        as_text(name),
        as_int(index),
        None if other is None else as_int(other),
        None if axis is None else as_int(axis),
        None if cursor is None else as_text(cursor),
        is_append is True,
        as_text(why),
        None if rows is None else _read_rows(rows, dim),
    )


def _read_rows(entry: Any, dim: DimReader) -> StateRows:
    axis, lengths, grows, counts, table, block_rows = as_list(entry, 6)
    names = as_text(counts), as_text(table)
    return StateRows(as_int(axis), as_text(lengths), dim(grows), *names, as_int(block_rows))


def _read_variable(entry: Any, dim: DimReader) -> PlanVariable:
    reference, initial, capacity, following = as_list(entry, 4)
    variable = dim.variable(reference)
    first, room = (None if n is None else as_int(n) for n in (initial, capacity))
    known = PlanVariable(variable, first, room, next=None if following is None else dim(following))
    if first is not None:
        _check_value(known, first)
    return known


def _check_value(known: PlanVariable, value: int) -> int:
    variable, top = known.variable, known.top
    if value < variable.min or (top is not None and value > top) or abs(value) >= 1 << 62:
        raise GraphError("decode", f"{variable.name} must be within bounds, got {value}.")
    return value


def _ints(entries: Any) -> tuple[int, ...]:
    return tuple(map(as_int, as_list(entries)))


# ---------------------------------------------------------------- images


@dataclass(frozen=True, slots=True)
class SavedMemory:
    """The buffers of an image, and what its plan goes on with."""

    buffers: list[Buffer]
    values: dict[str, int]
    shapes: dict[str, ConcreteShape]
    marks: tuple[int, ...]


def read_memory(file: PlanFile, program: Program, memory_limit: MemoryLimit) -> SavedMemory:
    """The memory that an image was saved with."""
    record = file.header["memory"]
    buffers = _read_buffers(record, file, program.device, memory_limit)
    if len(buffers) != len(program.values):
        raise GraphError("decode", "there must be a buffer for each value.")
    if any(value.place != GIVEN for value in program.values):
        raise GraphError("decode", "the values of a plan built by hand must lie in its memory.")
    known = {v.variable.name: v for v in program.variables}
    values = {
        as_text(name): _check_value(known[name], as_int(value))
        for name, value in dict(record["values"]).items()
    }
    shapes: dict[str, ConcreteShape] = {}
    inputs = {io.name: io for io in program.inputs}
    for name, written in dict(record["shapes"]).items():
        io = inputs[name]
        if written is not None:
            shape = tuple(_size(size) for size in as_list(written, io.type.rank))
            if prod(shape) * io.type.dtype.size_bytes > buffers[io.index].capacity_bytes:
                raise GraphError("decode", f"input {name} must fit its buffer, got {shape}.")
            shapes[name] = shape
    marks = tuple(_size(mark) for mark in as_list(record["marks"]))
    return SavedMemory(buffers, values, shapes, marks)


def check_limit(device: str, wanted: int, memory_limit: MemoryLimit) -> None:
    """Refuse a plan that takes more than it may."""
    if isinstance(memory_limit, Mapping):
        memory_limit = memory_limit.get(device)
    if memory_limit is not None and wanted > memory_limit:
        raise OutOfMemoryError(device, wanted, memory_limit)


def storage_devices(file: PlanFile) -> list[str]:
    """Where the storages of an image lie."""
    entries = (as_list(entry, 4) for entry in as_list(file.header["memory"]["storages"]))
    return [check_device("decode", as_text(where)) for *_, where in entries]


def _read_buffers(
    record: Any, file: PlanFile, device: str, memory_limit: MemoryLimit
) -> list[Buffer]:
    entries = [as_list(entry, 4) for entry in as_list(record["storages"])]
    check_limit(device, sum(_size(size) for size, *_ in entries), memory_limit)
    devices = storage_devices(file)
    storages = [
        _read_storage(entry, file, find_device(where))
        for entry, where in zip(entries, devices, strict=True)
    ]
    buffers: list[Buffer] = []
    wholes: dict[int, int] = {}
    for i, entry in enumerate(as_list(record["buffers"])):
        if not isinstance(entry, list):
            buffers.append(buffers[as_index(entry, i, "buffer")])
            continue
        storage, offset, size, kind, whole = as_list(entry, 5)
        number = as_index(storage, len(storages), "storage")
        memory = storages[number]
        start, end = _size(offset), _size(offset) + _size(size)
        if end > memory.size_bytes:
            message = (
                f"a buffer must lie inside its {memory.size_bytes} bytes, got [{start}, {end})."
            )
            raise GraphError("decode", message)
        type_ = decode_type(kind, file.dim)
        most = type_.max_bytes
        if most is not None and most > end - start:
            raise GraphError("decode", f"a buffer of {type_} must have {most} bytes, got {size}.")
        buffers.append(Buffer.window(memory, start, end - start, type_, devices[number]))
        if whole is not None:
            wholes[i] = as_int(whole)
    _set_wholes(buffers, wholes)
    return buffers


def _read_storage(entry: list[Any], file: PlanFile, device: Device) -> Memory:
    """Memory with the saved contents; what the plan itself writes gets memory of its own."""
    size, is_own, place, _ = entry
    size = _size(size)
    if place is None:
        return device.allocate(size)
    saved = file.contents(as_int(place), size)
    if device.is_host and not is_own:
        return saved
    memory = device.allocate(size)
    memory.copy_in(0, saved.peek(0, size))
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
