"""The CPU as a device: the loaded runner, its entries, its pool.

    emit_runner --toolchain--> object code --load--> CpuDevice

The runner is compiled once per process, or comes from the cache that the compiler layer puts
in front with `use_compiler`. One loaded copy serves `abi.NUM_ENTRIES` plans; when all its entries
are taken the same object is loaded once more.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Callable

from semel.codegen.runner import emit_runner
from semel.config import settings
from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.limits import measure_limits
from semel.devices.cpu.toolchain import available_cores, compile_ir, host_target
from semel.ir import abi
from semel.ir.target import Target
from semel.locks import make_lock
from semel.runtime.device import DeviceCode
from semel.runtime.measured import MachineLimits
from semel.runtime.pool import WorkerPool

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64)
_STOP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_ON_HEADER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_RUNNER_SYMBOLS = (
    *("slots", "run_timed", "bind", "ticks", "worker", "stop"),
    *(f"entry_{k}" for k in range(abi.NUM_ENTRIES)),
)
_CLOCK_NS = 20_000_000  # the clock's rate is known well after this long


_Load = Callable[[bytes], LoadedCode]
#: A loaded copy of the runner, and which of its entries. By the copy itself and not by a number:
#: a signal handler in the middle of adding one may add another.
_Place = tuple[LoadedCode, int]


def _compile_text(text: str, target: Target, load: _Load) -> tuple[bytes, LoadedCode]:
    code = compile_ir(text, target)
    return code, load(code)


_load_text: Callable[[str, Target, _Load], tuple[bytes, LoadedCode]] = _compile_text


def use_compiler(load_text: Callable[[str, Target, _Load], tuple[bytes, LoadedCode]]) -> None:
    """Get the runner's object code from `load_text`: the compiler layer passes a cached one.

    It also loads the code, because whether an entry of a cache is any good shows then.
    """
    global _load_text  # noqa: PLW0603 - one per process, like the runner itself
    _load_text = load_text


_offered: dict[str, bytes] = {}


def offer_runner(key: str, code: bytes) -> None:
    """Let the device use this object code, if `key` is that of the runner we would compile."""
    _offered[key] = code


def open_runner() -> tuple[str, bytes, LoadedCode]:
    """The key of the runner for this machine, its object code, and the code loaded."""
    target = host_target()
    text = emit_runner(target.arch)
    # The text alone: any code for it that the machine can execute is the same runner.
    key = hashlib.sha256(text.encode()).hexdigest()
    if key in _offered:
        return key, _offered[key], _load_runner(_offered[key])
    return key, *_load_text(text, target, _load_runner)


def _load_runner(code: bytes) -> LoadedCode:
    """Load object code that must define all that we ask a runner for."""
    loaded = load_object(code)
    for name in _RUNNER_SYMBOLS:
        loaded.address(name)
    return loaded


class CpuEntry:
    """One slot of a loaded runner: `call()` runs the plan that the slot points to."""

    __slots__ = ("_bind", "_device", "_place", "_run_timed", "_slot", "call")

    def __init__(self, device: CpuDevice, place: _Place) -> None:
        self._device, self._place = device, place
        code, index = place
        self._slot = ctypes.c_uint64.from_address(code.symbols["slots"] + index * abi.WORD_BYTES)
        self.call: Callable[[], int] = _ENTRY(code.symbols[f"entry_{index}"])
        self._run_timed = _ON_HEADER(code.symbols["run_timed"])
        self._bind = _ON_HEADER(code.symbols["bind"])

    def call_timed(self) -> int:
        return int(self._run_timed(self._slot.value))

    def bind(self) -> int:
        return int(self._bind(self._slot.value))

    def point_to(self, header: int) -> None:
        self._slot.value = header

    def release(self) -> None:
        self._slot.value = 0
        self._device.give_back(self._place)


class CpuDevice:
    """The host CPU. Opening it loads the runner and starts no thread."""

    name = "cpu"

    def __init__(self) -> None:
        self._key, self._object, runner = open_runner()
        self._lock = make_lock()
        self._loaded: list[LoadedCode] = []
        self._free: list[_Place] = []
        self._pool: WorkerPool | None = None
        self._add(runner)
        self.ticks: Callable[[], int] = _ENTRY(self._loaded[0].symbols["ticks"])
        self._opened = (time.perf_counter_ns(), self.ticks())
        self.ticks_per_us = _ticks_per_us(self.ticks)

    def default_threads(self) -> int:
        return settings().threads or available_cores()

    def open_entry(self) -> CpuEntry:
        with self._lock:
            # Again, since a signal handler on this thread may take places too.
            while not self._free:
                self._add(_load_runner(self._object))
            return CpuEntry(self, self._free.pop())

    def ns_per_tick(self) -> float:
        opened_ns, opened = self._opened
        left = _CLOCK_NS - (time.perf_counter_ns() - opened_ns)
        if left > 0:
            time.sleep(left / 1e9)
        elapsed_ns, elapsed = time.perf_counter_ns() - opened_ns, self.ticks() - opened
        return float(elapsed_ns / max(elapsed, 1))

    def limits(self, threads: int) -> MachineLimits:
        found = measure_limits(threads)
        most = max(found.read_bytes_per_s, found.copy_bytes_per_s)
        return MachineLimits(threads, found.flops_per_s, most)

    def pool(self) -> WorkerPool:
        with self._lock:
            if self._pool is None:
                symbols = self._loaded[0].symbols
                spin_ticks = int(settings().spin_us * self.ticks_per_us)
                self._pool = WorkerPool(symbols["worker"], _STOP(symbols["stop"]), spin_ticks)
            return self._pool

    def device_code(self) -> DeviceCode:
        return DeviceCode(host_target(), self._key, self._object)

    def give_back(self, place: _Place) -> None:
        """Return the place of a plan that is gone."""
        with self._lock:
            self._free.append(place)

    def _add(self, runner: LoadedCode) -> None:
        """One more loaded copy, and with it places for plans."""
        self._loaded.append(runner)
        self._free += [(runner, i) for i in reversed(range(abi.NUM_ENTRIES))]


def _ticks_per_us(ticks: Callable[[], int]) -> float:
    """The rate of the runner's clock; half a per cent is good enough for time-outs."""
    start_ns, start = time.perf_counter_ns(), ticks()
    time.sleep(0.001)
    end_ns, end = time.perf_counter_ns(), ticks()
    return max((end - start) * 1000.0 / (end_ns - start_ns), 1e-3)


def open_device() -> CpuDevice:
    """The one CPU device of the process; `semel.runtime.device` keeps it."""
    return CpuDevice()
