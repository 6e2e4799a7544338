"""How much memory this process can still take before it is killed.

    free_bytes()  -->  bytes, or None if the system does not say
    check_free(wanted_bytes)

Two bounds hold: what the machine has, and what is left of the limit of every control group around
us, as a container has one. Pages that merely mirror files count as free, because the system drops
them when it needs room. Swap counts where the group may use it. `memory.high` does not count: a
group above it is slowed down, not killed.

Large mappings always succeed and the pages come when they are touched, so that without this
check a plan that cannot fit is killed in the middle of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semel.errors import OutOfMemoryError
from semel.runtime.cgroup import (
    OWN,
    ROOT,
    cgroup_folders,
    read_number,
    read_numbers,
    read_text,
)

#: The device whose memory is the host's.
HOST_DEVICE = "cpu"
#: Smaller requests are not worth a look at the files of the system.
CHECKED_FROM_BYTES = 64 << 20
_UNLIMITED_BYTES = 1 << 60  # version 1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that are read; tests have their own."""

    meminfo: Path = Path("/proc/meminfo")
    cgroups: Path = ROOT
    own: Path = OWN


SOURCES = Sources()


def free_bytes(sources: Sources | None = None) -> int | None:
    """What can still be taken: the least of what the machine and our control groups allow."""
    files = SOURCES if sources is None else sources
    machine = read_numbers(files.meminfo)
    swap = machine.get("SwapFree", 0) * 1024
    rooms = [
        room
        for folder in cgroup_folders(files.cgroups, read_text(files.own), "memory")
        for room in (_room_v2(folder, swap), _room_v1(folder, swap))
        if room is not None
    ]
    if "MemAvailable" in machine:
        rooms.append(machine["MemAvailable"] * 1024 + swap)
    return max(min(rooms), 0) if rooms else None


def check_free(wanted_bytes: int) -> None:
    """Refuse what cannot fit before anything is allocated."""
    if wanted_bytes >= CHECKED_FROM_BYTES:
        free = free_bytes()
        if free is not None and wanted_bytes > free:
            raise OutOfMemoryError(HOST_DEVICE, wanted_bytes, free)


def _room_v2(folder: Path, swap: int) -> int | None:
    limit, used = read_number(folder / "memory.max"), read_number(folder / "memory.current")
    if limit is None or used is None:
        return None
    stat = read_numbers(folder / "memory.stat")
    dropped = sum(stat.get(n, 0) for n in ("inactive_file", "active_file", "slab_reclaimable"))
    swap_limit = read_number(folder / "memory.swap.max")
    if swap_limit is not None:
        swap = min(swap, max(swap_limit - (read_number(folder / "memory.swap.current") or 0), 0))
    return limit - max(used - dropped, 0) + swap


def _room_v1(folder: Path, swap: int) -> int | None:
    limit = read_number(folder / "memory.limit_in_bytes")
    used = read_number(folder / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= _UNLIMITED_BYTES:
        return None
    stat = read_numbers(folder / "memory.stat")
    dropped = sum(stat.get(f"total_{n}", 0) for n in ("inactive_file", "active_file"))
    both, used_both = (
        read_number(folder / f"memory.memsw.{n}_in_bytes") for n in ("limit", "usage")
    )
    if both is not None and used_both is not None:
        # This limit is for memory and swap together: what it leaves beyond memory is swap.
        swap = min(swap, max((both - used_both) - (limit - used), 0))
    return limit - max(used - dropped, 0) + swap
