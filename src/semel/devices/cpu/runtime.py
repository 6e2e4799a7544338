"""The CPU as a device: the loaded runner, its entries, its pool.

    emit_runner --CpuCompiler--> object code --load--> CpuDevice

Opening the device loads nothing. The runner is loaded with the first plan: from the code cache,
from a plan file that brought it, or compiled. One loaded copy serves `abi.NUM_ENTRIES` plans; when
all its entries are taken the same object is loaded once more.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from semel.cache.kernels import load_cached
from semel.codegen.runner_key import RUNNER_KEYS, checked_text
from semel.config import settings
from semel.devices.cpu.apart import run_aside
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.executable import CpuExecutable
from semel.devices.cpu.toolchain import available_cores, host_model, host_target
from semel.ir import abi
from semel.ir.target import Target
from semel.locks import importing, make_lock
from semel.runtime.allocator import HostMemory, allocate
from semel.runtime.device import Device, DeviceCode
from semel.runtime.free import free_bytes
from semel.runtime.linked import FlatProgram
from semel.runtime.measured import MachineLimits
from semel.runtime.pool import WorkerPool

T = TypeVar("T")
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64)
_STOP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_ON_HEADER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_RUNNER_SYMBOLS = (
    *("slots", "run_timed", "bind", "ticks", "worker", "stop"),
    *("signal_set", "signal_wait", "signal_await", "signal_ring", "signal_spin_ticks"),
    *("lane", "lane_submit"),
    *(f"entry_{k}" for k in range(abi.NUM_ENTRIES)),
)
_CLOCK_NS = 20_000_000  # the clock's rate is known well after this long
_RATE_S = 0.0002  # and well enough for time-outs after this one: readings are right to 0.1 us


#: A loaded copy of the runner, and which of its entries. By the copy itself and not by a number:
#: a signal handler in the middle of adding one may add another.
_Place = tuple[LoadedCode, int]


class Runner(NamedTuple):
    """The plan runner in memory, and its code."""

    code: DeviceCode
    loaded: LoadedCode
    ticks: Callable[[], int]
    ticks_per_us: float
    opened: tuple[int, int]  # nanoseconds, ticks


def _open_runner(offered: Mapping[str, DeviceCode]) -> Runner:
    """The runner for this machine; what was offered is taken if it is what we would compile."""
    target = host_target()
    given = offered.get(RUNNER_KEYS[target.arch])
    if given is not None:
        code, loaded = given, _load_runner(given.runner)
    else:
        code, loaded = _make_runner(target, _load_runner)
    ticks: Callable[[], int] = _ENTRY(loaded.symbols["ticks"])
    return Runner(code, loaded, ticks, _ticks_per_us(ticks), _read_clocks(ticks))


def _make_runner(target: Target, load: Callable[[bytes], T]) -> tuple[DeviceCode, T]:
    """The runner's code for a target, and what `load` makes of it: from the cache, or compiled.

    It is known by its text alone: any code for that which a machine can execute is the same runner.
    """
    compiler, key = CpuCompiler(target), RUNNER_KEYS[target.arch]
    code, loaded = load_cached(compiler.key(key), lambda: _compile_runner(compiler), load)
    return DeviceCode(target, key, code), loaded


def _compile_runner(compiler: CpuCompiler) -> bytes:
    """Who finds a runner needs no text of it."""
    with importing:
        from semel.codegen.runner import emit_runner
    arch = compiler.target.arch
    return compiler.compile_text(checked_text(arch, emit_runner(arch)))


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
    """The host CPU. Opening it loads no code and starts no thread."""

    name = "cpu"
    is_host = True
    cpus: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._lock = make_lock()
        self._offered: dict[str, DeviceCode] = {}
        self._runner: Runner | None = None
        self._loaded: list[LoadedCode] = []
        self._free: list[_Place] = []
        self._pool: WorkerPool | None = None

    def ensure_ready(self) -> None:
        self._ready()

    def get_ready(self) -> None:
        """Begin to load the runner, on another thread: a plan will ask for it soon."""
        if self._runner is None:
            run_aside(self._ready)

    def allocate(self, size_bytes: int, *, mapped: bool = False) -> HostMemory:
        return allocate(size_bytes, mapped=mapped)

    def reaches(self, other: Device) -> bool:
        return self.is_host and other.is_host

    def free_bytes(self) -> int | None:
        return free_bytes()

    def facts(self) -> Mapping[str, Any]:
        return {"model": host_model(), "cores": available_cores()}

    def default_threads(self) -> int:
        return settings().threads or available_cores()

    def link(self, program: FlatProgram) -> CpuExecutable:
        return CpuExecutable(self, program)

    def reset(self) -> None:
        """Nothing: kernels end, and runs come back between two of them if they are asked to."""

    def open_entry(self) -> CpuEntry:
        """A free place in the runner."""
        runner = self._ready()
        with self._lock:
            # Again, since a signal handler on this thread may take places too.
            while not self._free:
                self._add(_load_runner(runner.code.runner))
            return CpuEntry(self, self._free.pop())

    @property
    def ticks(self) -> Callable[[], int]:
        """The runner's clock."""
        return self._ready().ticks

    @property
    def ticks_per_us(self) -> float:
        """The rate of the clock, good enough for time-outs."""
        return self._ready().ticks_per_us

    def ns_per_tick(self) -> float:
        """The period of the clock, as exactly as it is known by now."""
        runner = self._ready()
        opened_ns, opened = runner.opened
        left = _CLOCK_NS - (time.perf_counter_ns() - opened_ns)
        if left > 0:
            time.sleep(left / 1e9)
        now_ns, now = _read_clocks(runner.ticks)
        return float((now_ns - opened_ns) / max(now - opened, 1))

    def symbol(self, name: str) -> int:
        """Where a function of the runner lies."""
        return self._ready().loaded.symbols[name]

    def limits(self, threads: int) -> MachineLimits:
        with importing:
            from semel.devices.cpu.yardstick import measure_limits
        found = measure_limits(threads)
        most = max(found.read_bytes_per_s, found.copy_bytes_per_s)
        return MachineLimits(threads, found.flops_per_s, most)

    def pool(self) -> WorkerPool:
        """The workers that all its plans share; none is started by asking."""
        runner = self._ready()
        with self._lock:
            if self._pool is None:
                symbols = runner.loaded.symbols
                spin_ticks = int(settings().spin_us * runner.ticks_per_us)
                self._pool = WorkerPool(
                    symbols["worker"], _STOP(symbols["stop"]), spin_ticks, self.cpus
                )
            return self._pool

    def device_code(self, target: Target | None = None) -> DeviceCode:
        ours = self._ready().code
        if target is None or not CpuCompiler(target).missing(ours.target):
            return ours
        code, _ = _make_runner(target, lambda code: code)
        return code

    def offer_code(self, code: DeviceCode) -> None:
        if self._runner is None and not CpuCompiler(host_target()).missing(code.target):
            self._offered[code.runner_key] = code

    def give_back(self, place: _Place) -> None:
        """Return the place of a plan that is gone."""
        with self._lock:
            self._free.append(place)

    def _ready(self) -> Runner:
        if self._runner is None:
            with self._lock:
                if self._runner is None:
                    runner = _open_runner(self._offered)
                    # A signal handler on this thread may have been quicker.
                    if self._runner is None:
                        self._add(runner.loaded)
                        self._runner = runner
                    self._offered.clear()
        return self._runner

    def _add(self, runner: LoadedCode) -> None:
        """One more loaded copy, and with it places for plans."""
        self._loaded.append(runner)
        self._free += [(runner, i) for i in reversed(range(abi.NUM_ENTRIES))]


def _read_clocks(ticks: Callable[[], int]) -> tuple[int, int]:
    """The system's clock and the runner's at one moment.

    Where the machine is busy, the thread may lose its core between the two for longer than what
    is measured: of some readings this is the one that took the shortest time.
    """
    readings = []
    for _ in range(5):
        before, now, after = time.perf_counter_ns(), ticks(), time.perf_counter_ns()
        readings.append((after - before, (before + after) // 2, now))
    return min(readings)[1:]


def _ticks_per_us(ticks: Callable[[], int]) -> float:
    """The rate of the runner's clock; half a per cent is good enough for time-outs."""
    start_ns, start = _read_clocks(ticks)
    time.sleep(_RATE_S)
    end_ns, end = _read_clocks(ticks)
    return max((end - start) * 1000.0 / (end_ns - start_ns), 1e-3)
