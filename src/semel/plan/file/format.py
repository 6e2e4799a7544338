"""The format of plan files: what stands where, and the checksums.

    prefix     64 bytes: magic, versions, sizes, checksums
    header     JSON: program, kernels, targets; of a plan built by hand its memory too;
               the same for each further machine that there is code for (`others`);
               what else was to be kept with the plan (`about`)
    blobs      object code of the runner and of each kernel, kernel texts, kernel forms
    constants  from a page boundary on; each starts on a cache line and has a line of slack

Every byte is covered by a checksum, paddings too, so that damage anywhere is noticed. Numbers are
little-endian. A change of anything here or in the records is a new `FORMAT`: a file is read by
the version that wrote it, others say so. Why this way: docs/decisions/0009-plan-files.md.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.runtime.allocator import SLACK_BYTES, align
from semel.runtime.buffer import Array

FORMAT = 14
MAGIC = b"\x89SEMEL\r\n"  # not text, and damaged by whatever takes it for text
PAGE_BYTES = 4096
CHUNK_BYTES = 16 << 20


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

    def pack(self, magic: bytes = MAGIC) -> bytes:
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
        data = self.LAYOUT.pack(magic, *fields, 0)[:-4]
        return data + struct.pack("<I", zlib.crc32(data))


class PageChecksum:
    """The CRC of the sums over pages and across pages of 64-bit words.

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
