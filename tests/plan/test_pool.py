"""The worker pool: its threads take no signals, and one that is interrupted starts none twice."""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections.abc import Iterator

import pytest

from semel.devices.cpu.runtime import CpuDevice
from semel.ir import abi
from semel.runtime.device import find_device
from semel.runtime.pool import WorkerPool

_HEAD = """
import os, signal, threading, time
import numpy as np
import semel
from semel.runtime import native as module
from semel.runtime.device import find_device

def tasks():
    return set(os.listdir("/proc/self/task"))

def blocked(task):
    with open(f"/proc/self/task/{task}/status") as lines:
        return next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))

def state(task):
    with open(f"/proc/self/task/{task}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]

pool = find_device("cpu").pool()
before, own = tasks(), blocked(os.getpid())
may_not = {signal.SIGKILL, signal.SIGSTOP}
every = sum(1 << (s - 1) for s in signal.valid_signals() - may_not)
real = signal.pthread_sigmask
"""

_QUIET = """
assert pool.ensure(2) == 2
new = tasks() - before
assert len(new) == 2, new
# Until it is in our code a thread has all signals blocked anyway: wait for it to be idle.
until = time.monotonic() + 100
while any(state(task) != "S" for task in new) and time.monotonic() < until:
    time.sleep(0.01)
assert all(state(task) == "S" for task in new)
assert all(blocked(task) & every == every for task in new), [hex(blocked(t)) for t in new]
assert blocked(os.getpid()) == own
"""

_INTERRUPTED = """
def interrupted(how, signals):
    result = real(how, signals)
    if how == {how} and (how == signal.SIG_SETMASK or signals):
        module.signal.pthread_sigmask = real
        raise KeyboardInterrupt  # what a handler does that is run on the way
    return result

module.signal.pthread_sigmask = interrupted
try:
    pool.ensure(1)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("not interrupted")
assert blocked(os.getpid()) == own, "signals stay blocked"
pool.ensure(1)
assert len(tasks() - before) <= pool.num_workers == 1, "two threads on one record"
x = semel.Tensor.input("x", (1 << 20,), "float32")
plan = (x.exp() + 1).prepare(threads=2)
ones = np.zeros(1 << 20, np.float32)
for _ in range(20):
    assert (plan(x=ones) == 2).all()
"""

_AGAIN = """
seen = []
def nested(how, signals):
    if not seen:
        seen.append(pool.ensure(2))  # a signal handler that runs a plan of its own
    return real(how, signals)

module.signal.pthread_sigmask = nested
assert pool.ensure(2) == 2
assert len(seen) == 1 and len(tasks() - before) == 2
"""

_FAILING = """
class Library:
    pthread_detach = None
    def pthread_create(self, *args):
        return 11  # EAGAIN

module.ctypes.CDLL = lambda name: Library()
assert pool.ensure(2) == pool.num_workers == 0
"""


@pytest.mark.parametrize(
    "code",
    [
        _QUIET,
        _INTERRUPTED.replace("{how}", "signal.SIG_SETMASK"),
        _INTERRUPTED.replace("{how}", "signal.SIG_BLOCK"),
        _AGAIN,
        _FAILING,
    ],
    ids=["no signals", "interrupted after the start", "interrupted before", "nested", "refused"],
)
def test_starting_workers(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WorkerPool, dict[int, int]]]:
    """A pool of two whose workers are busy the first `patience[record]` times they are asked."""
    device = find_device("cpu")
    assert isinstance(device, CpuDevice)
    real = device.pool()
    patience: dict[int, int] = {}

    def stop(record: int) -> int:
        patience[record] = patience.get(record, 3) - 1
        return real._stop(record) if patience[record] < 0 else 0

    pool = WorkerPool(real._entry, stop, real._spin_ticks)
    assert pool.ensure(2) == 2
    yield pool, patience
    patience.clear()
    monkeypatch.undo()
    pool.stop()
    atexit.unregister(pool.stop)


def _exited(pool: WorkerPool) -> list[int]:
    words = pool._records.bytes.view("int64")
    return [int(words[i * abi.WORKER_WORDS + abi.Worker.EXITED]) for i in range(pool.num_workers)]


def test_busy_workers_are_asked_again_until_they_end(
    own_pool: tuple[WorkerPool, dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, patience = own_pool
    monkeypatch.setattr("semel.runtime.pool._STOP_SECONDS", 60)
    pool.stop()
    assert list(patience.values()) == [-1, -1]
    assert all(_exited(pool))


def test_a_worker_that_is_never_free_is_left(
    own_pool: tuple[WorkerPool, dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends all the same, and the next worker was asked too."""
    pool, patience = own_pool
    monkeypatch.setattr("semel.runtime.pool._STOP_SECONDS", 0.02)
    records = [pool.address + i * abi.WORKER_WORDS * abi.WORD_BYTES for i in range(2)]
    patience.update(dict.fromkeys(records, 1 << 60))
    pool.stop()
    assert all(patience[record] < 1 << 60 for record in records)
    assert not any(_exited(pool))
