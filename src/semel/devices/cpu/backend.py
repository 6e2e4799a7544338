"""The CPU's row in the table of backends."""

from __future__ import annotations

from typing import cast

from semel.config import settings
from semel.devices import Backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.partition import open_partition
from semel.devices.cpu.runtime import CpuDevice
from semel.devices.cpu.toolchain import host_target
from semel.runtime.device import find_device
from semel.runtime.spec import DeviceSpec


def open_device(spec: DeviceSpec) -> CpuDevice:
    """The CPU, or a part of its cores; `semel.runtime.device` keeps it."""
    if spec.index is None:
        return CpuDevice()
    return open_partition(spec, lambda: cast(CpuDevice, find_device(spec.kind)))


def list_devices() -> list[str]:
    """All of it, and its parts."""
    return ["cpu", *(f"cpu:{index}" for index in range(settings().cpu_partitions))]


BACKEND = Backend("cpu", host_target, CpuCompiler, open_device, listed=list_devices)
