"""Plan files, the writing side.

    Program | PlanImage  x  DeviceCode  --save_plan-->  file  --semel.load_plan-->  ExecutionPlan

A compiled plan is saved as its program: the same plan gives the same bytes, because what differs
from run to run (node ids, compile times) stays out. A plan built by hand is saved as it is at one
moment, an *image*: its program, and its memory too. Its buffers are the caller's, and nobody knows
which of them hold weights; so there are all storages, each once with its bytes, and buffers as
byte ranges of storages, so that what overlaps here overlaps there. Storages that are all zeros take
no room. Left out is what belongs to a process: addresses, the number of threads, bound arrays (of
a bound input, the contents are there) and whatever a row has as `ast` that is not plain data.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import NoneType
from typing import IO, Any, TypeAlias

import numpy as np

from semel.errors import PlanError, PlanFileError
from semel.ir.abi import RUNNER_VERSION
from semel.ir.encode import DimWriter, encode_signature, encode_type
from semel.ir.expr import Dim
from semel.ir.fields import take_path
from semel.ir.plain import encode_plain
from semel.ir.signature import ABI_VERSION
from semel.ir.target import Target
from semel.ir.types import TensorType, as_dtype
from semel.plan.file.format import FORMAT, MAGIC, PAGE_BYTES, place_constants
from semel.plan.file.whole import FileKind, write_file, write_parts
from semel.plan.parts import PlanParts
from semel.plan.program import PlanIO, Program, ProgramState
from semel.plan.rows import GRAPH, PreparedCustomFunction
from semel.plan.weights import Source as WeightSource
from semel.plan.weights import Weight
from semel.runtime.buffer import Array, Buffer, ConcreteShape
from semel.runtime.device import DeviceCode
from semel.runtime.kernel import CachedKernel
from semel.runtime.memory import Bytes
from semel.version import VERSION


def refuse_plan_file(name: str, message: str, hint: str = "", **fields: Any) -> PlanFileError:
    """The error for a plan file."""
    return PlanFileError("load_plan", f"{name}: {message}", hint=hint, path=name, **fields)


PLAN_FILE = FileKind(
    MAGIC,
    FORMAT,
    "plan files",
    "code or header",
    "constants",
    "save the plan with this one",
    refuse_plan_file,
)


# ---------------------------------------------------------------- images


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of memory. `is_own`: a plan writes it or has it as input or output."""

    id: int
    size_bytes: int
    is_own: bool
    data: Bytes | None  # None: all zeros
    device: str


@dataclass(frozen=True, eq=False, slots=True)
class PlanImage:
    """What is saved of a plan built by hand; good while the plan cannot run.

    `values` are its variables, `shapes` those that its inputs were written in, `marks` how much of
    the outputs runs have written.
    """

    program: Program
    buffers: tuple[Buffer, ...]
    storages: tuple[Storage, ...]
    values: Mapping[str, int]
    shapes: Mapping[str, ConcreteShape | None]
    marks: tuple[int, ...]

    def sections(self) -> dict[int, Array]:
        """The contents to store, by storage."""
        return {i: s.data for i, s in enumerate(self.storages) if s.data is not None}


#: What a file is made from.
Source: TypeAlias = Program | PlanImage


def take_image(
    parts: PlanParts,
    values: Mapping[str, int],
    shapes: Mapping[str, ConcreteShape | None],
    bound: Mapping[str, Array],
    marks: tuple[int, ...],
) -> PlanImage:
    """The image of a plan whose buffers lie in its own memory.

    `bound` are the arrays that take the place of inputs.
    """
    own_ids = {parts.buffers[i].memory.id for i in parts.own}
    storages: dict[int, Storage] = {}
    for buffer in parts.buffers:
        memory = buffer.memory
        if memory.id not in storages:
            data = memory.peek(0, memory.size_bytes)
            for io in parts.input_io:
                if io.name in bound and parts.buffers[io.index].memory is memory:
                    data = _with_array(data, parts.buffers[io.index], bound[io.name])
            kept = data if data.any() else None
            is_own = memory.id in own_ids
            storages[memory.id] = Storage(memory.id, memory.size_bytes, is_own, kept, buffer.device)
    program = replace(parts.program, variables=parts.variables, guards=parts.own_guards)
    return PlanImage(program, parts.buffers, tuple(storages.values()), values, shapes, marks)


def _with_array(data: Bytes, buffer: Buffer, array: Array) -> Bytes:
    """The storage as if the array had been written to the buffer."""
    made = data.copy()
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    made[buffer.offset : buffer.offset + raw.size] = raw
    return made


# ---------------------------------------------------------------- files


def save_plan(
    source: Source,
    code: DeviceCode,
    path: str | os.PathLike[str],
    instead: Sequence[tuple[Program, DeviceCode]] = (),
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a plan file beside its place and rename it into it: it appears whole or not at all.

    `instead` of the one program there may be several: the same one for several machines. `about`
    is what somebody who has more than a plan wants to find again: plain JSON.
    """
    _check_kernels(program_of(source).all_kernels)
    place = take_path("save", path)
    _check_about(about)
    try:
        write_file(place, lambda file: _write(instead or [(source, code)], file, about))
    except OSError as error:
        message = f"{place} must be writable: {error}."
        raise PlanFileError("save", message, path=str(place)) from error


def pack_plan(source: Source, code: DeviceCode) -> bytes:
    """The contents of a plan file as bytes, to send to another process."""
    _check_kernels(program_of(source).all_kernels)
    file = io.BytesIO()
    _write([(source, code)], file)
    return file.getvalue()


def _check_kernels(kernels: Sequence[CachedKernel]) -> None:
    without = [k.name for k in kernels if not k.code or not k.form or k.target is None]
    if without:
        raise PlanError(
            "save",
            f"every kernel must come from the compiler; no code is known of {', '.join(without)}.",
            hint="register_native_function() gives a pointer a name that a file can hold.",
            kernels=without,
        )


def _check_about(about: Any) -> None:
    """It must be what JSON has."""
    try:
        if not isinstance(about, (Mapping, NoneType)):
            raise TypeError(f"got {type(about).__name__}")
        json.dumps(about)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanError("save", f"about must be a mapping that JSON can hold: {error}.") from None


def _write(
    variants: Sequence[tuple[Source, DeviceCode]],
    file: IO[bytes],
    about: Mapping[str, Any] | None = None,
) -> None:
    """The file of a program, or of the same one for several machines."""
    blobs, sections = _Blobs(), _Sections()
    numbers = [sections.add(source.sections()) for source, _ in variants]
    arrays = sections.arrays
    places, constants_bytes = place_constants(arrays)
    headers = [
        encode_header(source, code, blobs, {i: places[n] for i, n in own.items()})
        for (source, code), own in zip(variants, numbers, strict=True)
    ]
    first = {**headers[0], "others": headers[1:], "about": about}
    text = json.dumps(first, separators=(",", ":")).encode()
    joined = b"".join(blobs.pieces)
    write_parts(file, PLAN_FILE, ABI_VERSION, text, joined, arrays, places, constants_bytes)


class _Sections:
    """The arrays of all programs of a file; equal ones are stored once."""

    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}
        self._known: dict[tuple[int, int], list[int]] = {}

    def add(self, arrays: Mapping[int, Array]) -> dict[int, int]:
        """The number of each array here."""
        return {i: self._number(array) for i, array in arrays.items()}

    def _number(self, array: Array) -> int:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = data.size, zlib.crc32(data[:PAGE_BYTES].tobytes())
        alike = self._known.setdefault(key, [])
        for number in alike:
            other = np.ascontiguousarray(self.arrays[number]).reshape(-1).view(np.uint8)
            if data.ctypes.data == other.ctypes.data or np.array_equal(data, other):
                return number
        number = len(self.arrays)
        self.arrays[number] = array
        alike.append(number)
        return number


class _Blobs:
    """Byte strings one after the other; equal ones are stored once."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._places: dict[bytes, list[int]] = {}
        self._end = 0

    def add(self, data: bytes) -> list[int]:
        """[offset, size] of the bytes."""
        if data not in self._places:
            self._places[data] = [self._end, len(data)]
            self.pieces.append(data)
            self._end += len(data)
        return self._places[data]


# ---------------------------------------------------------------- header


def program_of(source: Source) -> Program:
    """The program behind a file."""
    return source if isinstance(source, Program) else source.program


def encode_header(
    source: Source, code: DeviceCode, blobs: _Blobs, places: dict[int, int]
) -> dict[str, Any]:
    """All of a plan but its bytes, as JSON values; bytes go to `blobs`."""
    program, dim = program_of(source), DimWriter()
    is_image = isinstance(source, PlanImage)
    kinds = program.kinds
    targets: dict[Target, int] = {}

    def target(which: Target | None) -> int:
        wanted = code.target if which is None else which
        return targets.setdefault(wanted, len(targets))

    header = {
        "semel": VERSION,
        "made_for": target(program.target),
        "runner": {
            "version": RUNNER_VERSION,
            "key": code.runner_key,
            "target": target(code.target),
            "code": blobs.add(code.runner),
        },
        "kernels": [
            {
                **_encode_kernel(kernel, dim, blobs),
                "target": target(kernel.target),
                "kind": kinds[kernel],
            }
            for kernel in program.all_kernels
        ],
        "program": _encode_program(program, dim, blobs, {} if is_image else places, is_image),
        "memory": _encode_memory(source, dim, places) if isinstance(source, PlanImage) else None,
    }
    return {**header, "targets": [asdict(which) for which in targets], "dims": dim.entries}


class _RowWriter:
    """What rows refer to, as a file has it."""

    def __init__(self, program: Program, dim: DimWriter, blobs: _Blobs) -> None:
        self.device = program.device
        self._number = {kernel: i for i, kernel in enumerate(program.all_kernels)}
        self._dim, self._blobs = dim, blobs

    def dim(self, value: Dim) -> Any:
        return self._dim(value)

    def kernel(self, kernel: CachedKernel) -> int:
        return self._number[kernel]

    def plain(self, where: str, value: Any) -> Any:
        """Source lines, a name, anything plain; a plan runs the same without it."""
        try:
            encode_plain(value, where, lambda data: [0, 0])
        except PlanError:
            return None
        return encode_plain(value, where, self._blobs.add)

    def attrs(self, row: PreparedCustomFunction) -> Any:
        """The attributes of a function; a plan inside as the contents of its own file."""
        given = row.attrs.pack() if row.kind == GRAPH else row.attrs
        return encode_plain(given, f"op {row.id} ({row.kind}): attrs", self._blobs.add)


def _encode_program(
    program: Program, dim: DimWriter, blobs: _Blobs, places: dict[int, int], with_ids: bool
) -> dict[str, Any]:
    """The records of a program; node ids mean something only in plans built by hand."""
    to = _RowWriter(program, dim, blobs)
    offsets = {weight: places[i] for i, weight in enumerate(program.saved_weights)}
    record = {
        "name": program.name,
        "device": program.device,
        "values": [
            {
                "name": value.name,
                "place": value.place,
                "type": encode_type(value.type, dim),
                "life": [value.first, value.last],
                "offset": None if value.weight is None else offsets.get(value.weight),
                **({"device": value.device} if value.device else {}),
                **({"ids": list(value.node_ids)} if with_ids and value.node_ids else {}),
            }
            for value in program.values
        ],
        "rows": [row.encode(to) for row in program.rows],
        "inputs": [_encode_io(io, dim, offsets) for io in program.inputs],
        "outputs": [_encode_io(io, dim, offsets) for io in program.outputs],
        "results": list(program.results),
        "experts": [[list(e.ids), e.num_experts, list(e.stacks)] for e in program.experts],
        "kept": [list(io) for io in program.kept],
        "guards": [[dim(expr), message] for expr, message in program.guards],
        "variables": [
            [dim(v.variable), v.initial, v.capacity, None if v.next is None else dim(v.next)]
            for v in program.variables
        ],
        "log": list(program.log),
        **({"placement": list(program.placement)} if program.placement else {}),
    }
    if program.nodes:
        record["nodes"] = [[n.node, n.became, list(n.ops), n.origin] for n in program.nodes]
    if program.states:
        record["states"] = [_encode_state(state, dim) for state in program.states]
    if program.params:
        record |= _encode_params(program, to, dim, offsets)
    if program.after:
        record["after"] = [[i, list(positions)] for i, positions in program.after.items()]
    if program.run_order is not None:
        record["order"] = list(program.run_order)
    if program.alias_ids:
        record["alias_ids"] = list(program.alias_ids)
    return record


def _encode_params(
    program: Program, to: _RowWriter, dim: DimWriter, offsets: Mapping[Weight, int]
) -> dict[str, Any]:
    """Params, and how weights follow from them; equal formulas are stored once."""
    number = {formula: i for i, formula in enumerate(program.formulas)}

    def source(each: WeightSource) -> Any:
        if isinstance(each, int):
            return each
        kind = TensorType(each.array.shape, as_dtype(each.array.dtype, "save"))
        return [offsets[each], encode_type(kind, dim)]

    return {
        "params": [
            {
                "name": param.name,
                "type": encode_type(param.type, dim),
                "version": param.version,
                "kept": param.is_kept,
                "missing": param.is_missing,
                "offset": None if param.raw is None else offsets.get(param.raw),
            }
            for param in program.params
        ],
        "formulas": [
            {
                "types": [encode_type(kind, dim) for kind in formula.types],
                "sources": formula.num_sources,
                "rows": [row.encode(to) for row in formula.rows],
                "name": formula.name,
            }
            for formula in program.formulas
        ],
        "recipes": [
            {
                "value": recipe.value,
                "sources": [source(each) for each in recipe.sources],
                "formula": None if recipe.formula is None else number[recipe.formula],
                "sizes": dict(recipe.sizes),
            }
            for recipe in program.recipes
        ],
    }


def _encode_state(state: ProgramState, dim: DimWriter) -> list[Any]:
    *plain, rows = (getattr(state, field.name) for field in fields(state))
    if rows is None:
        return [*plain, None]
    entry = [rows.axis, rows.lengths, dim(rows.grows), rows.counts, rows.table, rows.block_rows]
    return [*plain, entry]


def _encode_io(io: PlanIO, dim: DimWriter, offsets: Mapping[Weight, int]) -> list[Any]:
    part = [dim(size) for size in io.part]
    given = io.default
    place = [] if given is None else [offsets[given], list(given.array.shape)]
    return [io.name, io.index, encode_type(io.type, dim), part, *place]


def _encode_kernel(kernel: CachedKernel, dim: DimWriter, blobs: _Blobs) -> dict[str, Any]:
    return {
        "signature": encode_signature(kernel.signature, dim),
        "entry": kernel.entry_point,
        "code": blobs.add(kernel.code or b""),
        "text": blobs.add(kernel.text.encode()),
        "form": blobs.add(kernel.encoded),
    }


def _encode_memory(image: PlanImage, dim: DimWriter, places: Mapping[int, int]) -> dict[str, Any]:
    """Storages, buffers and what a plan goes on with; `places` are the offsets of the contents."""
    shapes = {name: None if s is None else list(s) for name, s in image.shapes.items()}
    return {
        "storages": [
            [s.size_bytes, s.is_own, places.get(i), s.device] for i, s in enumerate(image.storages)
        ],
        "buffers": _encode_buffers(image, dim),
        "values": dict(image.values),
        "shapes": shapes,
        "marks": list(image.marks),
    }


def _encode_buffers(image: PlanImage, dim: DimWriter) -> list[Any]:
    """[storage, offset, size, type, whole] for each; a buffer that comes again is its index.

    `whole` is the buffer that it is a view of and that answers for it.
    """
    number = {s.id: i for i, s in enumerate(image.storages)}
    sizes = {s.id: s.size_bytes for s in image.storages}
    buffers = image.buffers
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
