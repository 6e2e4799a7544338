"""A device whose memory only copies reach, as that of a GPU; it runs on the CPU all the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from semel.devices import Backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.runtime import CpuDevice
from semel.devices.cpu.toolchain import host_target
from semel.errors import DeviceError
from semel.runtime.allocator import HostMemory
from semel.runtime.memory import Bytes


class FarMemory(HostMemory):
    """Memory that cannot be looked at in place; `copies` says what was done to it."""

    is_host = False

    def __init__(self, size_bytes: int, *, mapped: bool = False) -> None:
        super().__init__(size_bytes, mapped=mapped)
        self.copies: list[str] = []

    def copy_in(self, offset: int, source: np.ndarray[Any, Any]) -> None:
        self.copies.append("in")
        super().copy_in(offset, source)

    def copy_out(self, offset: int, size_bytes: int) -> Bytes:
        self.copies.append("out")
        return self.bytes[offset : offset + size_bytes].copy()

    def copy_to(self, offset: int, target: Bytes) -> None:
        self.copies.append("out")
        super().copy_to(offset, target)

    def peek(self, offset: int, size_bytes: int) -> Bytes:
        return self.copy_out(offset, size_bytes)

    def view(self, offset: int, size_bytes: int) -> Bytes:
        raise DeviceError("far", "memory of another device cannot be looked at in place.")

    def duplicate(self) -> FarMemory:
        made = FarMemory(self.size_bytes)
        made.bytes[: self.size_bytes] = self.bytes[: self.size_bytes]
        return made


class FarDevice(CpuDevice):
    """The CPU, with memory that is said to be elsewhere."""

    name = "far"
    is_host = False

    def allocate(self, size_bytes: int, *, mapped: bool = False) -> FarMemory:
        return FarMemory(size_bytes, mapped=mapped)


BACKEND = Backend("far", host_target, CpuCompiler, lambda spec: FarDevice())
