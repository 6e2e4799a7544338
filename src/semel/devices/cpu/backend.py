"""The CPU's row in the table of backends."""

from __future__ import annotations

from semel.devices import Backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.runtime import open_device
from semel.devices.cpu.toolchain import host_target

BACKEND = Backend("cpu", host_target, CpuCompiler, open_device)
