"""Functions of the host's native runner, for those who are no plan, and threads that run them.

    host_runner().symbol("lane")  -->  its address  --start_thread-->  a thread without Python

The runner is that of the device `cpu`, loaded with the first function that is asked for.
"""

from __future__ import annotations

import ctypes
import signal
from functools import cache
from typing import Protocol, cast

from semel.ir import abi
from semel.runtime.free import HOST_DEVICE
from semel.runtime.words import address_of, aligned_words


class HostRunner(Protocol):
    """What the host's device knows of its runner."""

    @property
    def ticks_per_us(self) -> float:
        """The rate of the runner's clock."""

    def ns_per_tick(self) -> float:
        """The period of the clock, as exactly as it is known by now."""

    def symbol(self, name: str) -> int:
        """Where a function lies."""


def host_runner() -> HostRunner:
    """The runner of the host, which is loaded when it is asked for something."""
    # Devices link programs, which hold signals, which come here.
    from semel.runtime.device import find_device

    return cast(HostRunner, find_device(HOST_DEVICE))


@cache
def cpu_mask(cpus: tuple[int, ...]) -> int:
    """Where a bit for each of these CPUs lies, as the system wants it, for ever.

    0 if there are none, or none that can be told: a thread then follows whoever it works for.
    """
    if not cpus or max(cpus) >= abi.MASK_WORDS * 64:
        return 0
    mask = aligned_words(abi.MASK_WORDS)
    for cpu in cpus:
        mask.view("uint8")[cpu // 8] |= 1 << cpu % 8
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mask))
    return address_of(mask)


def start_thread(entry: int, argument: int) -> bool:
    """Run `entry(argument)`, native code, on a thread of its own that takes no signals.

    False if the system has no thread to give.
    """
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    # The thread inherits the mask of its creator: block everything around the creation,
    # so that signals keep going to Python's threads.
    old = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # Inside, because it may run a handler that raises when the mask is set already.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        failed = libc.pthread_create(
            ctypes.byref(thread), None, ctypes.c_void_p(entry), ctypes.c_void_p(argument)
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    if not failed:
        libc.pthread_detach(thread)
    return not failed
