"""Functions of the host's native runner, for those who are no plan.

    host_runner().symbol("signal_set")  -->  its address

The runner is that of the device `cpu`, loaded with the first function that is asked for.
"""

from __future__ import annotations

from typing import Protocol, cast

from semel.runtime.free import HOST_DEVICE


class HostRunner(Protocol):
    """What the host's device knows of its runner."""

    @property
    def ticks_per_us(self) -> float:
        """The rate of the runner's clock."""

    def symbol(self, name: str) -> int:
        """Where a function lies."""


def host_runner() -> HostRunner:
    """The runner of the host, which is loaded when it is asked for something."""
    # Devices link programs, which hold signals, which come here.
    from semel.runtime.device import find_device

    return cast(HostRunner, find_device(HOST_DEVICE))
