"""Plan files: a plan, its code and its constants in one file.

    Program | Snapshot  x  DeviceCode  --save_plan-->  file  --semel.load_plan-->  ExecutionPlan

    prefix     64 bytes: magic, versions, sizes, checksums
    header     JSON: signatures, ops, values or buffers, variables, guards, inputs, outputs, target
    blobs      object code of the runner and of each kernel, kernel texts, kernel forms
    constants  from a page boundary on; each starts on a cache line and has a line of slack

A compiled plan is saved as its program; one built by hand, which has none, as a snapshot of
its buffers and operations, where the contents of storages take the place of constants.

Every byte is covered by a checksum, paddings too, so that damage anywhere is noticed. The
same plan gives the same bytes: what differs from run to run (node ids, compile times)
stays out. Constants are used where they lie, mapped read-only, so processes that load one
file share them. Why this way: docs/decisions/0009-plan-files.md.

Numbers are little-endian. The reader is `semel.load`; it reads all versions up to `FORMAT`.
A change of anything below is a new version there.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from semel.errors import PlanError, PlanFileError
from semel.ir.abi import RUNNER_VERSION
from semel.ir.encode import DimWriter, encode_signature, encode_type
from semel.ir.fields import take_path
from semel.ir.signature import ABI_VERSION
from semel.ir.target import Target
from semel.plan.snapshot import Snapshot, encode_snapshot
from semel.runtime.allocator import SLACK_BYTES, align
from semel.runtime.buffer import Array
from semel.runtime.device import DeviceCode
from semel.runtime.kernel import CachedKernel
from semel.version import VERSION

if TYPE_CHECKING:  # a plan can be saved, so plan.plan needs this file; programs need plans
    from semel.plan.program import Program, ProgramOp

FORMAT = 4
MAGIC = b"\x89SEMEL\r\n"  # not text, and damaged by whatever takes it for text
PAGE_BYTES = 4096
CHUNK_BYTES = 16 << 20
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first bytes of a file. `front` is everything between prefix and constants."""

    format: int
    abi: int
    header_bytes: int
    constants_offset: int
    file_bytes: int
    front_checksum: int
    constants_checksum: int

    # magic, the fields in order, room for later, the checksum of all that
    LAYOUT = struct.Struct("<8sIIQQQII12xI")

    def pack(self) -> bytes:
        """The bytes, with their own checksum at the end."""
        fields = (
            self.format,
            self.abi,
            self.header_bytes,
            self.constants_offset,
            self.file_bytes,
            self.front_checksum,
            self.constants_checksum,
        )
        data = self.LAYOUT.pack(MAGIC, *fields, 0)[:-4]
        return data + struct.pack("<I", zlib.crc32(data))


# ---------------------------------------------------------------- writing


def save_plan(source: Program | Snapshot, code: DeviceCode, path: str | os.PathLike[str]) -> None:
    """Write a plan file beside its place and rename it into it: it appears whole or not at all."""
    _check_kernels(source.kernels)
    place = take_path("save", path)
    beside = place.parent / f".{place.name}.{os.getpid()}-{next(_numbers)}.tmp"
    try:
        with open(beside, "xb") as file:
            _write(source, code, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
        _sync_folder(place.parent)
    except OSError as error:
        message = f"{place} must be writable: {error}."
        raise PlanFileError("save", message, path=str(place)) from error
    finally:
        with suppress(OSError):
            beside.unlink()


def pack_plan(source: Program | Snapshot, code: DeviceCode) -> bytes:
    """The contents of a plan file as bytes, to send to another process."""
    _check_kernels(source.kernels)
    file = io.BytesIO()
    _write(source, code, file)
    return file.getvalue()


def _check_kernels(kernels: Sequence[CachedKernel]) -> None:
    without = [k.name for k in kernels if not k.code or not k.encoded or k.target is None]
    if without:
        raise PlanError(
            "save",
            f"every kernel must come from the compiler; no code is known of {', '.join(without)}.",
            hint="register_native_function() gives a pointer a name that a file can hold.",
            kernels=without,
        )


def _sync_folder(folder: Path) -> None:
    """Make the rename last; not every file system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write(source: Program | Snapshot, code: DeviceCode, file: IO[bytes]) -> None:
    blobs = _Blobs()
    arrays = source.sections()
    places, constants_bytes = place_constants(arrays)
    header = json.dumps(encode_header(source, code, blobs, places), separators=(",", ":"))
    text = header.encode()
    front = b"".join([text, *blobs.pieces])
    start = Prefix.LAYOUT.size + len(front)
    constants_offset = -(-start // PAGE_BYTES) * PAGE_BYTES
    front += bytes(constants_offset - start)
    file.write(bytes(Prefix.LAYOUT.size))
    file.write(front)
    checksum = CHECKSUMS[FORMAT]()
    for chunk in in_chunks(constant_pieces(arrays, places, constants_bytes)):
        checksum.update(chunk)
        file.write(chunk)
    prefix = Prefix(
        FORMAT,
        ABI_VERSION,
        len(text),
        constants_offset,
        constants_offset + constants_bytes,
        zlib.crc32(front),
        checksum.value,
    )
    file.seek(0)
    file.write(prefix.pack())


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


class ByteChecksum:
    """The CRC of all bytes of the constants: format 1."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, chunk: Any) -> None:
        """Add the next bytes."""
        self.value = zlib.crc32(chunk, self.value)


class PageChecksum:
    """The CRC of the sums over pages and across pages of 64-bit words: from format 2 on.

    Runs at the speed of memory, some ten times that of a CRC of all bytes. Any change of
    one word changes a sum, and so do pages that are zeroed, missing or exchanged.
    """

    def __init__(self) -> None:
        self._pages = 0
        self._columns = np.zeros(PAGE_BYTES // 8, "<u8")

    @property
    def value(self) -> int:
        """The checksum of all chunks so far."""
        return zlib.crc32(self._columns.tobytes(), self._pages)

    def update(self, chunk: Any) -> None:
        """Add the next whole pages."""
        words = np.frombuffer(chunk, "<u8").reshape(-1, PAGE_BYTES // 8)
        self._columns += np.add.reduce(words, axis=0)
        self._pages = zlib.crc32(np.add.reduce(words, axis=1).tobytes(), self._pages)


#: How each format sums up its constants.
CHECKSUMS: dict[int, type[ByteChecksum | PageChecksum]] = {
    1: ByteChecksum,
    2: PageChecksum,
    3: PageChecksum,
    4: PageChecksum,
}

# ---------------------------------------------------------------- header


def encode_header(
    source: Program | Snapshot, code: DeviceCode, blobs: _Blobs, places: dict[int, int]
) -> dict[str, Any]:
    """All of a plan but its bytes, as JSON values; bytes go to `blobs`."""
    dim = DimWriter()
    targets: dict[Target, int] = {}

    def target(which: Target | None) -> int:
        wanted = code.target if which is None else which
        return targets.setdefault(wanted, len(targets))

    header = {
        "semel": VERSION,
        "made_by": "hand" if isinstance(source, Snapshot) else "compiler",
        "runner": {
            "version": RUNNER_VERSION,
            "key": code.runner_key,
            "target": target(code.target),
            "code": blobs.add(code.runner),
        },
        "kernels": [
            {**_encode_kernel(kernel, dim, blobs), "target": target(kernel.target)}
            for kernel in source.kernels
        ],
    }
    if isinstance(source, Snapshot):
        header |= encode_snapshot(source, dim, blobs.add, places)
    else:
        header |= _encode_program(source, dim, places)
    return {**header, "targets": [asdict(which) for which in targets], "dims": dim.entries}


def _encode_program(program: Program, dim: DimWriter, places: dict[int, int]) -> dict[str, Any]:
    return {
        "ops": [_encode_op(op, dim) for op in program.ops],
        "loops": [
            [dim(loop.counter), dim(loop.trip), loop.first, loop.last] for loop in program.loops
        ],
        "values": [
            {
                "name": value.name,
                "kind": value.kind,
                "type": encode_type(value.type, dim),
                "life": [value.first, value.last],
                "place": places.get(i),
            }
            for i, value in enumerate(program.values)
        ],
        "inputs": [list(io) for io in program.inputs],
        "outputs": [list(io) for io in program.outputs],
        "kept": [list(io) for io in program.kept],
        "guards": [[dim(expr), message] for expr, message in program.guards],
        "variables": dim.all(program.variables),
        "log": list(program.log),
    }


def _encode_kernel(kernel: CachedKernel, dim: DimWriter, blobs: _Blobs) -> dict[str, Any]:
    return {
        "signature": encode_signature(kernel.signature, dim),
        "entry": kernel.entry_point,
        "code": blobs.add(kernel.code or b""),
        "text": blobs.add(kernel.text.encode()),
        "form": blobs.add(kernel.encoded),
    }


def _encode_op(op: ProgramOp, dim: DimWriter) -> dict[str, Any]:
    """A row: the operations of programs are kernel calls."""
    return {
        "kind": "kernel",
        "kernel": op.kernel,
        "args": list(op.args),
        "variables": dim.all(op.variables),
        "origins": list(op.origins),
        "check_origins": list(op.check_origins),
        "nodes": list(op.nodes),
        "reason": op.reason,
        "choice": op.choice,
    }


# ---------------------------------------------------------------- constants


def place_constants(arrays: Mapping[int, Array]) -> tuple[dict[int, int], int]:
    """The offset of each array in its section, and the size of the section."""
    places: dict[int, int] = {}
    end = 0
    for i, array in arrays.items():
        places[i] = end
        end += align(max(array.nbytes, 1)) + SLACK_BYTES
    return places, -(-end // PAGE_BYTES) * PAGE_BYTES


def constant_pieces(
    arrays: Mapping[int, Array], places: dict[int, int], constants_bytes: int
) -> Iterator[bytes | memoryview]:
    """The bytes of the section in order: arrays, and zeros between them."""
    end = 0
    for i, offset in places.items():
        array = np.ascontiguousarray(arrays[i])
        yield bytes(offset - end)
        yield memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        end = offset + array.nbytes
    yield bytes(constants_bytes - end)


def in_chunks(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The same bytes, cut into equal chunks of whole pages; the last one is what remains."""
    pending = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_BYTES):
            pending += piece[start : start + CHUNK_BYTES]
            if len(pending) >= CHUNK_BYTES:
                yield bytes(pending[:CHUNK_BYTES])
                del pending[:CHUNK_BYTES]
    yield bytes(pending)
