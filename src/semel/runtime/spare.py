"""Memory that changes hands: what one array had, the next of its size gets.

    SpareMemory.empty(size)  -->  array  --the last view of it goes-->  waits  --empty(size)--> ...

A page is cleared before a process sees it, and the C library gives large blocks back as soon as
they are free: whoever replaces an array again and again would pay more for fresh pages than for
what is written there. So the memory of arrays made here waits for the next one of the same size.
It does so once no array views it: a plan that reads it, wherever it runs, has one. What waits is
bounded, and goes with the last of these arrays: who holds none has no use for more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semel.ir.graph import aligned_empty
from semel.locks import make_lock
from semel.runtime.memory import Bytes

#: What waits at most.
MAX_SPARE_BYTES = 64 << 20


class SpareMemory:
    """Arrays of bytes that are not cleared, and the memory of those that went."""

    def __init__(self, max_bytes: int = MAX_SPARE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.waiting_bytes = 0
        self._waiting: dict[int, list[Bytes]] = {}
        self._num_lent = 0
        self._lock = make_lock()

    def empty(self, size_bytes: int) -> Bytes:
        """An array that begins on a cache line, and holds anything."""
        with self._lock:
            # First: a destructor may come in between, and must not clear what is looked at.
            self._num_lent += 1
            try:
                return np.asarray(_Lease(self, self._take(size_bytes)))
            except MemoryError:
                self._num_lent -= 1
                raise

    def _take(self, size_bytes: int) -> Bytes:
        same = self._waiting.get(size_bytes)
        if not same:
            self._drop_one()
            return aligned_empty((size_bytes,), np.dtype(np.uint8))
        self.waiting_bytes -= size_bytes
        return same.pop()

    def _drop_one(self) -> None:
        """Sizes that nobody asks for any more make room for those that somebody does."""
        oldest = next((size for size, same in self._waiting.items() if same), None)
        if oldest is not None:
            self.waiting_bytes -= oldest
            self._waiting[oldest].pop()

    def take_back(self, memory: Bytes) -> None:
        """What the last view of an array is gone from."""
        with self._lock:
            self._num_lent -= 1
            if not self._num_lent:
                self._waiting, self.waiting_bytes = {}, 0
            elif self.waiting_bytes + memory.size <= self.max_bytes:
                self.waiting_bytes += memory.size
                self._waiting.setdefault(memory.size, []).append(memory)


class _Lease:
    """What all views of an array hold: its end is theirs."""

    __slots__ = ("__array_interface__", "_memory", "_spare")

    def __init__(self, spare: SpareMemory, memory: Bytes) -> None:
        self._spare, self._memory = spare, memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._spare.take_back(self._memory)


#: For weights that replace others.
spare_memory = SpareMemory()
