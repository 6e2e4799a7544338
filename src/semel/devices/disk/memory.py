"""Memory of a device that is a file.

    DiskMemory(region)  --copy_in, copy_out-->  arrays

Rows name bytes by address. A block has a range of addresses of its own that nothing is behind: no
two blocks, and no memory of the host, have the same, and who reads there by mistake is told by the
system. The device finds a block again by them.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from semel.devices.disk.block_file import Region, as_bytes
from semel.errors import DeviceError, OutOfMemoryError
from semel.runtime.allocator import take_storage_id
from semel.runtime.memory import Bytes, HeldMemory
from semel.runtime.words import address_of

_NO_ACCESS = 0  # of a mapping


class DiskMemory(HeldMemory):
    """A block in a file (see `semel.runtime.memory`)."""

    is_host = False

    __slots__ = ("__weakref__", "_addresses", "_region", "id", "size_bytes")

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.id, self.size_bytes = take_storage_id(), region.size_bytes
        self._region: Region | None = region
        try:
            room = mmap.mmap(
                -1,
                max(region.size_bytes, 1),
                flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                prot=_NO_ACCESS,
            )
        except (OSError, ValueError, OverflowError, MemoryError):
            raise OutOfMemoryError(region.file.name, region.size_bytes, 0) from None
        self._addresses: Bytes = np.frombuffer(room, np.uint8)

    @property
    def address(self) -> int:
        return address_of(self._addresses)

    @property
    def is_alive(self) -> bool:
        return self._region is not None

    @property
    def region(self) -> Region:
        """Its bytes of the file."""
        if self._region is None:
            raise DeviceError("disk", "the block was released.")
        return self._region

    def copy_in(self, offset: int, source: np.ndarray[Any, Any]) -> None:
        self.region.write(offset, as_bytes(source))

    def copy_out(self, offset: int, size_bytes: int) -> Bytes:
        found: Bytes = np.empty(size_bytes, np.uint8)
        self.copy_to(offset, found)
        return found

    def copy_to(self, offset: int, target: Bytes) -> None:
        self.region.read(offset, memoryview(target.data))

    def view(self, offset: int, size_bytes: int) -> Bytes:
        raise DeviceError(
            self.region.file.name, "what is in a file cannot be looked at in place, only copied."
        )

    def peek(self, offset: int, size_bytes: int) -> Bytes:
        return self.copy_out(offset, size_bytes)

    def fill(self, byte: int, start: int = 0, end: int | None = None) -> None:
        self.region.fill(byte, start, self.size_bytes if end is None else end)

    def seal(self) -> None:
        """Nothing: a file has no such thing."""

    def duplicate(self) -> DiskMemory:
        made = DiskMemory(self.region.file.take(self.size_bytes))
        self.region.copy_to(made.region)
        return made

    def fork(self) -> DiskMemory:
        return self.duplicate()

    @property
    def own_bytes(self) -> int:
        return self.size_bytes

    @property
    def shared_bytes(self) -> int:
        return 0

    def pin(self) -> object:
        return self._region, self._addresses

    def discard(self, start: int = 0, end: int | None = None) -> None:
        """Nothing: room in a file is kept until the block is released."""

    def release(self) -> None:
        self._region = None
