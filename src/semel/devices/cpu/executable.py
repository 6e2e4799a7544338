"""A program on the CPU: tables, lanes with their scratch, and a place in the native runner.

FlatProgram  --link-->  CpuExecutable  --call()-->  Code
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.config import settings
from semel.ir.abi import Code, Header
from semel.ir.fields import NO_LIMIT
from semel.runtime.allocator import HostMemory, align, allocate
from semel.runtime.events import EventLog
from semel.runtime.freed import when_freed
from semel.runtime.linked import FlatProgram
from semel.runtime.optable import OpTable, make_lanes
from semel.runtime.runstate import RunState

if TYPE_CHECKING:
    from semel.devices.cpu.runtime import CpuDevice

_SLICE_US = 100_000  # how long a run goes on before it lets Python look for signals
_IDLE_US = 50  # how long an attached worker waits for the next step


class CpuExecutable:
    """One slot of the runner and what it points to. `call` is the native entry itself."""

    def __init__(self, device: CpuDevice, program: FlatProgram) -> None:
        self._device = device
        self._entry = device.open_entry()
        self._token = when_freed(self._entry.release)
        self.call: Callable[[], int] = self._entry.call
        self._has_pool = False
        self._link(program)

    def _link(self, program: FlatProgram) -> None:
        size = align(program.scratch_bytes)
        self._steps = program.steps
        self._threads = program.threads
        self._scratch: list[HostMemory] = [
            allocate(size) for _ in range(program.threads if size else 0)
        ]
        self.table = OpTable(
            program.variables,
            program.bounds,
            program.guards,
            program.inputs,
            program.rows,
            program.steps,
            make_lanes(program.threads, [memory.address for memory in self._scratch]),
            program.threads,
            program.loops,
            program.marks,
            program.rebinds,
            program.bases,
            program.held,
            program.flips,
        )
        words = self.table.words
        words[Header.SLICE_TICKS] = int(_SLICE_US * self._device.ticks_per_us)
        words[Header.IDLE_TICKS] = int(_IDLE_US * self._device.ticks_per_us)
        words[Header.JITTER] = "jitter" in settings().debug
        self.state = RunState(self.table)
        for number, value in enumerate(program.initial):
            if value is not None:
                self.state.set_value(number, value)
        self.header = self.table.address
        self._entry.point_to(self.header)

    def relink(self, program: FlatProgram) -> None:
        before = self.state
        self._link(program)
        self.state.carry(before)
        if self._has_pool:
            self._start_pool()

    def bind(self) -> int:
        return self._entry.bind()

    def came_back(self) -> tuple[RunState, int]:
        return self.state, self._row(self.state.error_index)

    def at(self) -> int:
        step, _ = self.state.progress
        return self._row(sum(sum(each.segments) for each in self._steps[:step]))

    def _row(self, number: int) -> int:
        """The row of the program that a row of the table is."""
        return number

    def go_on(self, code: int) -> None:
        if code == Code.START_POOL:
            self._start_pool()
        words = self.table.words
        words[Header.RESUME] = words[Header.PARKED]

    def _start_pool(self) -> None:
        pool, words = self._device.pool(), self.table.words
        words[Header.NUM_WORKERS] = pool.ensure(self._threads - 1)
        words[Header.POOL] = pool.address
        words[Header.POOL_READY] = 1
        self._has_pool = True

    def ask_back(self) -> None:
        self.state.ask_back()

    def limit(self, seconds: float | None) -> None:
        device = self._device
        ticks = 0 if seconds is None else device.ticks() + int(seconds * 1e6 * device.ticks_per_us)
        self.state.set_limit(min(ticks, NO_LIMIT))

    def rest(self) -> None:
        """Nothing: a run goes on only inside `call`."""

    def hold_until_rest(self, memory: object) -> None:
        """Nothing, likewise."""

    def log(self) -> EventLog:
        return EventLog(self.table, self._entry, self._device)

    @property
    def scratch_bytes(self) -> int:
        return sum(memory.size_bytes for memory in self._scratch)

    def fill_scratch(self, byte: int) -> None:
        for memory in self._scratch:
            memory.fill(byte)

    def discard_scratch(self) -> None:
        for memory in self._scratch:
            memory.discard()

    def stop(self) -> None:
        self.header = 0
        self._entry.point_to(0)
        for memory in self._scratch:
            memory.release()
        self._scratch = []

    def after_fork(self) -> None:
        self._has_pool = False
        self.table.words[Header.POOL_READY] = 0
