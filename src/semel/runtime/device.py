"""What a device offers to a plan, and the table of devices.

    find_device("cpu")  -->  Device

A plan needs three things: an entry to call, workers, and the number of participants. The
table names the module of each device as text, so that this layer imports none of them and a
process pays only for the devices it uses.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from semel.errors import UnsupportedError
from semel.ir.target import Target
from semel.locks import make_lock
from semel.runtime.measured import MachineLimits
from semel.runtime.pool import WorkerPool

_MODULES = {"cpu": "semel.devices.cpu.runtime"}
_open: dict[str, Device] = {}
_lock = make_lock()


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a plan file keeps of a device: its target, and the runner's code for that target.

    `runner_key` is the hash of what the runner was compiled from: code under the same key
    is the same runner.
    """

    target: Target
    runner_key: str
    runner: bytes


class PlanEntry(Protocol):
    """A plan's place in the native runner."""

    call: Callable[[], int]

    def call_timed(self) -> int:
        """Like `call`, through the walk that writes events to the lanes' buffers."""

    def bind(self) -> int:
        """Check and commit the pending variables, and run nothing."""

    def point_to(self, header: int) -> None:
        """Run the plan whose header lies at this address; 0 makes every call say RELEASED."""

    def release(self) -> None:
        """Give the place back; `call` must not be used any more."""


class Device(Protocol):
    """A processor that runs plans."""

    name: str
    ticks_per_us: float
    #: The runner's clock.
    ticks: Callable[[], int]

    def default_threads(self) -> int:
        """Participants of an execute if nobody says otherwise."""

    def open_entry(self) -> PlanEntry:
        """A free place in the runner."""

    def ns_per_tick(self) -> float:
        """The period of the clock, as exactly as it is known by now."""

    def limits(self, threads: int) -> MachineLimits:
        """What this many threads reach at best; measured at the first call."""

    def pool(self) -> WorkerPool:
        """The process-wide workers; none is started by asking."""

    def device_code(self) -> DeviceCode:
        """What a process without a compiler needs to open this device."""


def check_device(where: str, name: Any) -> str:
    """The name, if there is such a device; opens nothing."""
    if not isinstance(name, str) or name not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        raise UnsupportedError(where, f"device must be one of {known}, got {name!r}.", device=name)
    return name


def find_device(name: str) -> Device:
    """The device of that name, opened at first use."""
    check_device("device", name)
    with _lock:
        if name not in _open:
            module = importlib.import_module(_MODULES[name])
            # Opening takes a while, and a signal handler on this thread may have been quicker.
            _open.setdefault(name, cast(Device, module.open_device()))
        return _open[name]
