"""How much of a block is in memory, as the system says: pages of its own, whatever else goes on."""

from __future__ import annotations

import mmap

import numpy as np

_PRESENT_OR_SWAPPED = np.uint64(3 << 62)


def resident_bytes(address: int, size: int) -> int:
    """Bytes of the pages in [address, address + size) that are there.

    The memory of the whole process would say as much about libraries that were loaded
    meanwhile and threads that other tests left, and a mapping as much about its neighbours.
    """
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            first, last = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
            file.seek(8 * first)
            pages = np.frombuffer(file.read(8 * (last - first)), np.uint64)
    except FileNotFoundError:
        return _in_mappings(address, size)
    return int(np.count_nonzero(pages & _PRESENT_OR_SWAPPED)) * mmap.PAGESIZE


def _in_mappings(address: int, size: int) -> int:
    """Bytes of written pages in the mappings that the block lies in."""
    found, inside = 0, False
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            head = line.split()[0]
            if "-" in head and not head.endswith(":"):
                low, high = (int(part, 16) for part in head.split("-"))
                inside = low < address + size and address < high
            elif inside and head in ("Private_Dirty:", "Shared_Dirty:"):
                found += int(line.split()[1]) * 1024
    return found
