"""Parts of the machine's cores as devices: `cpu:0`, `cpu:1`, ...

    the CPUs of this process  --share_of(k, n)-->  CpuPartition

A partition is the CPU with fewer cores: the same compiler, the same loaded runner, the same
memory, and workers of its own that never leave its CPUs. What two partitions do side by side
disturbs neither. A plan that is executed by its caller runs on the caller's thread, wherever that
is; only threads of ours are bound.

Neighbours stay together: CPUs that are one core, then those of one socket. Where there are fewer
CPUs than partitions, partitions share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from semel.config import settings
from semel.devices.cpu.runtime import CpuDevice, CpuEntry, Runner
from semel.devices.cpu.toolchain import available_cores
from semel.errors import UnsupportedError
from semel.runtime.cgroup import read_number
from semel.runtime.device import DeviceCode
from semel.runtime.spec import DeviceSpec

_CPUS = Path("/sys/devices/system/cpu")


class CpuPartition(CpuDevice):
    """Some of the cores of `whole`, whose code it runs."""

    def __init__(self, whole: CpuDevice, name: str, cpus: Sequence[int], cores: int) -> None:
        super().__init__()
        self.name, self.cpus = name, tuple(cpus)
        self._whole, self._cores = whole, cores

    def facts(self) -> Mapping[str, Any]:
        return {**self._whole.facts(), "cores": self._cores}

    def default_threads(self) -> int:
        return min(settings().threads or self._cores, self._cores)

    def open_entry(self) -> CpuEntry:
        return self._whole.open_entry()

    def offer_code(self, code: DeviceCode) -> None:
        self._whole.offer_code(code)

    def _ready(self) -> Runner:
        return self._whole._ready()


def share_of(cpus: Sequence[int], index: int, count: int) -> tuple[int, ...]:
    """Those of `cpus` that are part `index` of `count`: neighbours, and never none."""
    size = len(cpus)
    part = cpus[index * size // count : (index + 1) * size // count]
    return tuple(part or [cpus[index % size]])


def cpus_in_order(root: Path = _CPUS) -> list[int]:
    """The CPUs of this process, neighbours side by side as far as the system tells."""
    try:
        cpus = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return list(range(os.cpu_count() or 1))

    def place(cpu: int) -> tuple[int, int, int]:
        topology = root / f"cpu{cpu}" / "topology"
        socket, core = (read_number(topology / name) for name in ("physical_package_id", "core_id"))
        return socket or 0, cpu if core is None else core, cpu

    return sorted(cpus, key=place)


def open_partition(spec: DeviceSpec, whole: Callable[[], CpuDevice]) -> CpuPartition:
    """Part `spec.index` of the machine, if the settings divide it into so many."""
    index, count = spec.index or 0, settings().cpu_partitions
    if index >= count:
        raise UnsupportedError(
            "cpu",
            f"the cores are divided into {count} (cpu:0 to cpu:{count - 1}), got {spec}.",
            hint=f"Set SEMEL_CPU_PARTITIONS={index + 1}, or more, before the first use.",
            device=str(spec),
        )
    cores = available_cores()
    own = (index + 1) * cores // count - index * cores // count
    return CpuPartition(whole(), str(spec), share_of(cpus_in_order(), index, count), max(own, 1))
