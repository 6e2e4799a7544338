"""How fast bytes go from device to device.

    devices  --measure_links-->  Link...: the way that is taken, and what it reaches

Each link is a plan with one copy on a copy lane, as plans over several devices have it. The file is
one of the folder for temporary files, which the system may well hold in memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from semel.errors import SemelError
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.row import COPY
from semel.plan.rows import PreparedCopy
from semel.runtime.buffer import Buffer
from semel.runtime.device import NULL_KIND, find_device
from semel.runtime.free import HOST_DEVICE
from semel.runtime.links import choose_strategy
from semel.runtime.registry import DeviceRegistry
from semel.runtime.spec import DISK_KIND, DeviceSpec

#: Larger than most caches; two buffers of it are touched for each link.
_BYTES = 16 << 20
#: All links together are measured in about so long.
_SECONDS = 0.8
_MOST_REPEATS = 10
#: Devices whose links are measured, files aside: there are as many as pairs of them.
_MOST_DEVICES = 4


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that is here; or one, or a kind of them, of which only the `problem` is known."""

    name: str
    threads: int = 0
    is_host: bool = False
    free_bytes: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """The way from one device to another; bytes are counted once."""

    source: str
    target: str
    strategy: str
    bytes_per_s: float


def list_devices() -> tuple[DeviceInfo, ...]:
    """All that can be listed, files cannot; and what is wrong with what cannot."""
    registry = DeviceRegistry()
    broken = [DeviceInfo(kind, problem=str(error)) for kind, error in registry.broken.items()]
    return (*map(_look_at, registry), *broken)


def _look_at(spec: DeviceSpec) -> DeviceInfo:
    name = str(spec)
    try:
        device = find_device(spec)
        return DeviceInfo(name, device.default_threads(), device.is_host, device.free_bytes())
    except Exception as error:  # code of another package, which may do anything
        return DeviceInfo(name, problem=str(error) or repr(error))


def choose_devices(devices: Sequence[DeviceInfo]) -> list[str]:
    """Whose links are worth a look: parts of the machine, and what others bring along."""
    works = [DeviceSpec(each.name) for each in devices if not each.problem]
    parts = [str(each) for each in works if each.kind == HOST_DEVICE and each.index is not None]
    others = [str(each) for each in works if each.kind not in (HOST_DEVICE, NULL_KIND)]
    return [*parts[:2], *others, *parts[2:]]


def measure_links(devices: Sequence[str], seconds: float = _SECONDS) -> tuple[Link, ...]:
    """Every pair of these devices, and the first with a file; what fails has no link."""
    chosen = list(devices)[:_MOST_DEVICES]
    with tempfile.TemporaryDirectory(prefix="semel-") as folder:
        disk = f"{DISK_KIND}:{os.path.join(folder, 'link.bin')}"
        pairs = [*permutations(chosen, 2), (disk, chosen[0]), (chosen[0], disk)]
        return tuple(_measured(pairs, disk, seconds / len(pairs)))


def _measured(pairs: Sequence[tuple[str, str]], disk: str, seconds: float) -> Iterator[Link]:
    for source, target in pairs:
        try:
            rate = _BYTES / _time_copy(source, target, seconds)
        except SemelError:
            continue  # of another package's device, or of a full disk
        way = choose_strategy(find_device(source), find_device(target))
        names = [DISK_KIND if name == disk else name for name in (source, target)]
        yield Link(names[0], names[1], str(way), rate)


def _time_copy(source: str, target: str, seconds: float) -> float:
    """The least time of a copy, of some that take about so long together."""
    runner = target if find_device(source).is_host else source
    builder = ExecutionPlanBuilder(runner)
    for number, device in enumerate((target, source)):
        builder.add_buffer(number, Buffer.empty((_BYTES,), "uint8", device))
    builder.add_op(PreparedCopy(0, (0, 1), device=runner, lane=COPY))
    builder.set_output_buffer(0)
    plan = builder.build(threads=1)
    plan.execute()  # touches memory, and starts the lane
    best, until = float("inf"), time.perf_counter() + seconds
    for _ in range(_MOST_REPEATS):
        start = time.perf_counter()
        plan.execute()
        end = time.perf_counter()
        best = min(best, end - start)
        if end > until:
            break
    return best
