"""A file of ours, whatever it holds: written whole or not at all, looked at only if it is whole.

write_file(path, write)         beside its place, then renamed into it
write_parts(file, kind, ...)    prefix, header, blobs, arrays, with checksums
read_parts(bytes, name, kind)   -->  the same, or the error of its kind

Of large arrays the checksum is made on a thread, while the caller makes something of them; whether
they are whole is known when `Parts.check` comes back, before which nobody may see what was made.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from semel.errors import SemelError
from semel.plan.file.format import (
    PAGE_BYTES,
    PageChecksum,
    Prefix,
    constant_pieces,
    in_chunks,
)
from semel.runtime.buffer import Array
from semel.runtime.job import Job
from semel.runtime.memory import Bytes

#: Arrays are summed up twice, so in pieces that stay in the cache; whole pages.
_CHECKED_BYTES = 256 << 10
#: From this size on it is done on a thread, which begins in the time that less would take.
_APART_BYTES = 2 << 20
#: There a piece is larger: between two of them the thread waits for its turn, for milliseconds
#: if the others are busy.
_PIECE_BYTES = 256 << 20
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files of one kind: how they begin, what people call them and their parts.

    `refuse(name, message, hint)` is the error for a file that is none, or is damaged; `again` says
    what to do about one of another format.
    """

    magic: bytes
    format: int
    plural: str
    front: str
    arrays: str
    again: str
    refuse: Callable[[str, str, str], SemelError]


# ---------------------------------------------------------------- writing


def write_file(place: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Let a file appear whole or not at all; an OSError says why not."""
    beside = place.parent / f".{place.name}.{os.getpid()}-{next(_numbers)}.tmp"
    try:
        with open(beside, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
        _sync_folder(place.parent)
    finally:
        with suppress(OSError):
            beside.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename last; not every file system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_parts(
    file: IO[bytes],
    kind: FileKind,
    abi: int,
    header: bytes,
    blobs: bytes,
    arrays: Mapping[int, Array],
    places: dict[int, int],
    arrays_bytes: int,
) -> None:
    """All of a file, from its first byte on; `places` are those of `place_constants`."""
    front = header + blobs
    start = Prefix.LAYOUT.size + len(front)
    arrays_offset = -(-start // PAGE_BYTES) * PAGE_BYTES
    front += bytes(arrays_offset - start)
    file.write(bytes(Prefix.LAYOUT.size))
    file.write(front)
    checksum = PageChecksum()
    for chunk in in_chunks(constant_pieces(arrays, places, arrays_bytes)):
        checksum.update(chunk)
        file.write(chunk)
    prefix = Prefix(
        kind.format,
        abi,
        len(header),
        arrays_offset,
        arrays_offset + arrays_bytes,
        zlib.crc32(front),
        checksum.value,
    )
    file.seek(0)
    file.write(prefix.pack(kind.magic))


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Parts:
    """A file's prefix, what stands before the arrays, and the arrays, which `check` answers for."""

    prefix: Prefix
    front: memoryview
    arrays: Bytes
    check: Callable[[], None]


def read_parts(data: Bytes, name: str, kind: FileKind, *, verify: bool = True) -> Parts:
    """The parts of a file; with `verify` their `check` says whether the arrays are damaged."""
    prefix = _read_prefix(data, name, kind)
    front = memoryview(data)[Prefix.LAYOUT.size : prefix.constants_offset]  # type: ignore[arg-type]
    arrays = data[prefix.constants_offset :]
    if zlib.crc32(front) != prefix.front_checksum:
        raise _damaged(name, kind, kind.front)
    if not verify:
        return Parts(prefix, front, arrays, lambda: None)
    found = _begin_checksum(arrays)

    def check() -> None:
        if found() != prefix.constants_checksum:
            raise _damaged(name, kind, kind.arrays)

    return Parts(prefix, front, arrays, check)


def _read_prefix(data: Bytes, name: str, kind: FileKind) -> Prefix:
    """The first bytes; what follows may be looked at only after this."""
    size, magic = Prefix.LAYOUT.size, kind.magic
    start = data[:size].tobytes()
    if start[: len(magic)] != magic:
        message = f"must start with {magic!r}, as {kind.plural} do, got {start[:8]!r}."
        raise kind.refuse(name, message, "")
    if len(start) < size:
        message = f"must have at least {size} bytes, got {len(start)}: it is cut off."
        raise kind.refuse(name, message, "")
    _, *fields, checksum = Prefix.LAYOUT.unpack(start)
    prefix = Prefix(*fields)
    if prefix.format != kind.format:
        message = f"format must be {kind.format}, got {prefix.format}."
        raise kind.refuse(name, message, f"It was written by another version; {kind.again}.")
    if checksum != zlib.crc32(start[:-4]):
        raise _damaged(name, kind, "first bytes")
    if prefix.file_bytes != data.size:
        message = f"must have {prefix.file_bytes} bytes, got {data.size}: it is cut off."
        raise kind.refuse(name, message, "")
    if prefix.constants_offset % PAGE_BYTES or data.size % PAGE_BYTES:
        message = f"its {kind.arrays} must be whole pages of {PAGE_BYTES} bytes."
        raise kind.refuse(name, message, "")
    return prefix


def _damaged(name: str, kind: FileKind, what: str) -> SemelError:
    return kind.refuse(name, f"the file is damaged: the checksum of its {what} is wrong.", "")


def _begin_checksum(arrays: Bytes) -> Callable[[], int]:
    """What gives the checksum of the arrays: of large ones it is being made meanwhile."""
    if arrays.size < _APART_BYTES:
        return lambda: _checksum(arrays, _CHECKED_BYTES)
    return Job(lambda: _checksum(arrays, _PIECE_BYTES)).start().result


def _checksum(arrays: Bytes, step: int) -> int:
    checksum = PageChecksum()
    for start in range(0, arrays.size, step):
        checksum.update(arrays[start : start + step])
    return checksum.value
