"""Buffers of another device as a host function sees them, for one call.

    Staging(buffers)  -->  buffers in memory of the host  --copy_back-->  what was written

Of each storage, one block of the host holds all between the first and the last byte that the
buffers have there: what shares bytes on the device shares them here.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.runtime.allocator import HostMemory, allocate
from semel.runtime.buffer import Buffer
from semel.runtime.memory import Memory


class Staging:
    """Copies of these buffers' bytes, which are copied back where a function wrote."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._there = tuple(buffers)
        storages = {b.memory.id: b.memory for b in buffers}
        self._blocks = {id_: _copy(memory, buffers) for id_, memory in storages.items()}
        self.buffers = [self._here(buffer) for buffer in buffers]

    def _here(self, buffer: Buffer) -> Buffer:
        block, first = self._blocks[buffer.memory.id]
        size = buffer.capacity_bytes
        return Buffer.window(block, buffer.offset - first, size, buffer.type)

    def copy_back(self, access: Sequence[str]) -> None:
        """Write what a call that ended well may have written; `access` has a letter w there."""
        for buffer, letters in zip(self._there, access, strict=True):
            if "w" in letters:
                block, first = self._blocks[buffer.memory.id]
                data = block.view(buffer.offset - first, buffer.capacity_bytes)
                buffer.memory.copy_in(buffer.offset, data)


def _copy(memory: Memory, buffers: Sequence[Buffer]) -> tuple[HostMemory, int]:
    """What the buffers have of a storage, and where that begins."""
    own = [b for b in buffers if b.memory.id == memory.id]
    first = min(b.offset for b in own)
    size = max(b.offset + b.capacity_bytes for b in own) - first
    block = allocate(size)
    block.copy_in(0, memory.peek(first, size))
    return block, first
