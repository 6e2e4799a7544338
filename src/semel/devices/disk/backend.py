"""A file as a device: it stores, and its lanes copy.

    disk:path  --open-->  DiskDevice: memory in the file, copies on lanes of its own

Nothing is computed there. Its lanes copy between the file and memory of the host, which is all that
a device must do whose memory others do not reach: what goes on to another device goes through
the host's memory.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from typing import Any, cast
from weakref import ref

from semel.devices import Backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.partition import CpuPartition
from semel.devices.cpu.runtime import CpuDevice
from semel.devices.cpu.toolchain import host_target
from semel.devices.disk.block_file import Region, StoreFile
from semel.devices.disk.executable import DiskExecutable, Located
from semel.devices.disk.memory import DiskMemory
from semel.errors import UnsupportedError
from semel.locks import make_lock
from semel.runtime.device import Device, find_device
from semel.runtime.free import HOST_DEVICE
from semel.runtime.linked import FlatProgram
from semel.runtime.spec import DeviceSpec


class DiskDevice(CpuPartition):
    """A file. Threads of the host copy for it, by the CPU's runner, on any core."""

    is_host = False

    def __init__(self, whole: CpuDevice, name: str, path: str) -> None:
        super().__init__(whole, name, (), 1)
        self.file = StoreFile(name, path)
        self._blocks = _Blocks()

    def facts(self) -> Mapping[str, Any]:
        return {"model": "disk", "cores": 1}

    def default_threads(self) -> int:
        return 1

    def reaches(self, other: Device) -> bool:
        return other.is_host or other is self

    def free_bytes(self) -> int | None:
        return self.file.free_bytes()

    def allocate(self, size_bytes: int, *, mapped: bool = False) -> DiskMemory:  # type: ignore[override]
        """Zeros behind what was in the file before; `OutOfMemoryError` if the disk is full."""
        return self._known(DiskMemory(self.file.take(size_bytes)))

    def window(self, start: int, size_bytes: int) -> DiskMemory:
        """Bytes that are in the file already."""
        return self._known(DiskMemory(self.file.window(start, size_bytes)))

    def _known(self, memory: DiskMemory) -> DiskMemory:
        self._blocks.add(memory.address, memory.region)
        return memory

    def find(self, address: int) -> Located | None:
        """The block that has this address, and how far inside; None: it is the host's."""
        return self._blocks.find(address)

    def link(self, program: FlatProgram) -> DiskExecutable:
        return DiskExecutable(self, program)


class _Blocks:
    """Blocks by their addresses, as long as somebody holds them."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._starts: list[int] = []
        self._regions: dict[int, ref[Region]] = {}

    def add(self, address: int, region: Region) -> None:
        with self._lock:
            # An address can only come again when the block that had it is gone.
            if address not in self._regions:
                insort(self._starts, address)
            self._regions[address] = ref(region)
            if len(self._starts) > 64 and len(self._starts) & (len(self._starts) - 1) == 0:
                self._forget_dropped()

    def _forget_dropped(self) -> None:
        self._regions = {at: held for at, held in self._regions.items() if held() is not None}
        self._starts = sorted(self._regions)

    def find(self, address: int) -> Located | None:
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            start = self._starts[at] if at >= 0 else 0
            region = self._regions[start]() if at >= 0 else None
        if region is None or address - start >= region.size_bytes:
            return None
        return region, address - start


def open_device(spec: DeviceSpec) -> DiskDevice:
    """The device of a file, which is made if there is none; `semel.runtime.device` keeps it."""
    if spec.path is None:
        raise UnsupportedError("disk", f"needs the path of a file, disk:path, got {spec}.")
    return DiskDevice(cast(CpuDevice, find_device(HOST_DEVICE)), str(spec), spec.path)


def list_devices() -> list[str]:
    """None: any file can be one."""
    return []


BACKEND = Backend(
    "disk", host_target, CpuCompiler, open_device, listed=list_devices, computes=False
)
