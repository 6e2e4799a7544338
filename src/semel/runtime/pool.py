"""The pool of native worker threads of a device.

    ensure(count)  -->  worker records that plans recruit from

A worker is a native thread in the generated worker loop: it holds no interpreter state, takes
no signals, and never runs Python. Each has a record with a mailbox; a plan offers it a lane
there. Threads start when a plan first has work to share and stay; idle ones spin for a
bounded time, then sleep in the kernel. A worker runs on the CPUs that its caller may use at
that time, or on those of its pool. They end at interpreter exit. A forked child has none of its
parent's threads and starts with an empty pool.

Invariant: the records are never freed: a worker may read its mailbox at any time. Nor is the mask
of CPUs beside them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from collections.abc import Callable, Sequence

from semel.ir import abi
from semel.ir.abi import Worker
from semel.locks import make_lock
from semel.runtime.allocator import HostMemory, allocate
from semel.runtime.native import cpu_mask, start_thread

MAX_WORKERS = 256
_STOP_SECONDS = 0.5


class WorkerPool:
    """Workers on one entry point, bound to `cpus` if some are given.

    `stop(record)` asks one to end and says whether it was free.
    """

    def __init__(
        self,
        entry: int,
        stop: Callable[[int], int],
        spin_ticks: int,
        cpus: Sequence[int] = (),
    ) -> None:
        self._entry = entry
        self._stop = stop
        self._spin_ticks = spin_ticks
        self._lock = make_lock()
        self._is_starting = False
        self._records = _immortal(MAX_WORKERS * abi.WORKER_WORDS * abi.WORD_BYTES)
        self._mask = cpu_mask(tuple(cpus))
        self._count = 0
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._restart)

    @property
    def address(self) -> int:
        """Where the worker records lie."""
        return self._records.address

    @property
    def num_workers(self) -> int:
        return self._count

    def ensure(self, count: int) -> int:
        """Start workers until there are `count`, if the system allows; how many there are."""
        with self._lock:
            # A signal handler in the middle of a start makes do with the workers there are.
            if self._is_starting:
                return self._count
            try:
                self._is_starting = True
                while self._count < min(count, MAX_WORKERS):
                    # Counted before: if a signal handler raises once the thread is there, no
                    # other may get its record. One that never started is help that never comes.
                    self._count += 1
                    if not self._start_one(self._count - 1):
                        self._count -= 1
                        break
            finally:
                self._is_starting = False
            return self._count

    def _start_one(self, index: int) -> bool:
        offset = index * abi.WORKER_WORDS * abi.WORD_BYTES
        words = self._records.bytes[offset:].view("int64")[: abi.WORKER_WORDS]
        words[:] = 0
        words[Worker.SPIN_TICKS] = self._spin_ticks
        words[Worker.CPUS] = self._mask
        # Without a thread the callers do all the work themselves: slower, not wrong.
        return start_thread(self._entry, self._records.address + offset)

    def stop(self) -> None:
        """End the workers; a plan that runs later does all its work on the calling thread."""
        words = self._records.bytes.view("int64")
        until = time.monotonic() + _STOP_SECONDS
        for i in range(self._count):
            at = i * abi.WORKER_WORDS
            address = self._records.address + at * abi.WORD_BYTES
            while not self._stop(address) and time.monotonic() < until:
                time.sleep(0.001)
            while not words[at + Worker.EXITED] and time.monotonic() < until:
                time.sleep(0.0005)

    def _restart(self) -> None:
        # The records are the child's own copy, and no thread reads them: they serve again.
        self._count = 0


def _immortal(size_bytes: int) -> HostMemory:
    memory = allocate(size_bytes, mapped=True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return memory
