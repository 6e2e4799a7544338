"""How much of a block is in memory, as the system says: pages of its own, whatever else goes on."""

from __future__ import annotations


def resident_bytes(address: int, size: int) -> int:
    """Bytes of written pages in the mappings that hold [address, address + size).

    The memory of the whole process would say as much about libraries that were loaded
    meanwhile and threads that other tests left.
    """
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
