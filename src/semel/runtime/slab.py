"""Memory for what is made together and then read for long: side by side, in large pages.

    sizes  --allocate_slab-->  a block for each, in one mapping

Streaming from small pages takes a quarter longer than from large ones, and a block of its own has
small ones at its ends, or all over. So weights that are made at once share a mapping. What is
dropped gives the pages that are its own back at once, the mapping goes with the last of them.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from semel.errors import OutOfMemoryError
from semel.runtime.allocator import HostMemory, advise_huge_pages
from semel.runtime.free import HOST_DEVICE, check_free, free_bytes
from semel.runtime.words import address_of

#: What large pages are on x86-64 and AArch64.
LARGE_PAGE_BYTES = 2 << 20


def allocate_slab(sizes: Sequence[int]) -> list[HostMemory]:
    """A zeroed block of at least so many bytes for each, on pages of its own."""
    pages = [-(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes]
    mapping = _Mapping(sum(pages))
    blocks: list[HostMemory] = []
    start = 0
    for size, whole in zip(sizes, pages, strict=True):
        part = np.asarray(_Part(mapping, start, whole))
        blocks.append(HostMemory.over(part[:size]))
        start += whole
    return blocks


class _Mapping:
    """Memory that begins where a large page does."""

    __slots__ = ("_first", "_map", "address")

    _dont_need = mmap.MADV_DONTNEED  # of the class: parts may outlive the globals of this module

    def __init__(self, size_bytes: int) -> None:
        check_free(size_bytes)
        try:
            self._map = mmap.mmap(
                -1, size_bytes + LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, ValueError, OverflowError):
            raise OutOfMemoryError(HOST_DEVICE, size_bytes, free_bytes() or 0) from None
        advise_huge_pages(self._map)
        start = address_of(np.frombuffer(self._map, np.uint8))
        self._first = -start % LARGE_PAGE_BYTES
        self.address = start + self._first

    def discard(self, start: int, size_bytes: int) -> None:
        """Give whole pages back."""
        self._map.madvise(self._dont_need, self._first + start, size_bytes)


class _Part:
    """Pages of a mapping as an array that whatever views them keeps alive."""

    __slots__ = ("__array_interface__", "_mapping", "_size_bytes", "_start")

    def __init__(self, mapping: _Mapping, start: int, size_bytes: int) -> None:
        self._mapping, self._start, self._size_bytes = mapping, start, size_bytes
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (mapping.address + start, False),
        }

    def __del__(self) -> None:
        self._mapping.discard(self._start, self._size_bytes)
