"""A device that raises, hangs or is late at a row that a test has chosen; otherwise the CPU.

    FAULTS.plan("raises", at=1)  -->  the next run fails before row 1 of each program of the device

A row of the host is put in front of the chosen one, where the run comes back to this file.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from typing import cast

from semel.devices import Backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.executable import CpuExecutable
from semel.devices.cpu.runtime import CpuDevice
from semel.devices.cpu.toolchain import host_target
from semel.errors import DeviceError
from semel.ir.abi import Code, RowKind
from semel.runtime.linked import FlatProgram
from semel.runtime.optable import TableRow, TableStep
from semel.runtime.registry import DeviceRegistry
from semel.runtime.spec import DeviceSpec

#: How long a device that hangs stays away before it comes back to say that it still does.
_SLICE_S = 0.005
#: No test may hang for ever, whatever is wrong.
_LONGEST_S = 200.0


class Faults:
    """What is to happen at the chosen row of the next run, once."""

    def __init__(self) -> None:
        self.kind, self.seconds = "", 0.0
        #: Which row of which kind, of all programs that are linked from now on.
        self.at, self.row = 0, RowKind.KERNEL
        self.is_reached = threading.Event()

    def plan(self, kind: str, seconds: float = 0.0) -> None:
        """`raises`, `hangs` (and comes back to say so), `is stuck` (and does not), `is late`."""
        self.kind, self.seconds = kind, seconds
        self.is_reached.clear()

    def take(self) -> str:
        kind, self.kind = self.kind, ""
        return kind


FAULTS = Faults()


class FaultyExecutable(CpuExecutable):
    """The CPU's, entered by Python and with a row more. Straight programs only."""

    header = 0

    def __init__(self, device: FaultyDevice, program: FlatProgram) -> None:
        self._faulty = device
        self._hangs = False
        super().__init__(device, program)
        self.call = self._call

    def _link(self, program: FlatProgram) -> None:
        assert not program.loops
        assert not program.rebinds
        chosen = [i for i, row in enumerate(program.rows) if row.kind is FAULTS.row]
        self._number = len(program.rows)  # of the row that is put in; none if no other is like that
        if FAULTS.at < len(chosen):
            program = self._stopped_at(chosen[FAULTS.at], program)
        super()._link(program)
        self.header = 0

    def _stopped_at(self, wanted: int, program: FlatProgram) -> FlatProgram:
        """With a row of the host before that one, and every row a step of its own."""
        steps = [replace(s, segments=(1,)) for s in program.steps for _ in range(sum(s.segments))]
        self._number = wanted
        steps.insert(wanted, TableStep((1,), RowKind.HOST_CALL))
        rows = list(program.rows)
        rows.insert(wanted, TableRow(RowKind.HOST_CALL, 0, (), (), 1))
        return replace(program, rows=tuple(rows), steps=tuple(steps))

    def _row(self, number: int) -> int:
        return number - (number > self._number)

    def at(self) -> int:
        return self._row(self._number) if self._hangs else super().at()

    def _call(self) -> int:
        if self._hangs and not self.state.is_busy:
            self.rest()
        while True:
            if self._hangs:
                if not self._faulty.has_come_back(_SLICE_S):
                    return Code.AGAIN
                self._hangs = False
                raise DeviceError("driver", "the device was reset.")
            code = self._entry.call()
            if code != Code.HOST_CALL or self.state.error_index != self._number:
                return code
            self._do(FAULTS.take())
            if not self._hangs:
                super().go_on(code)

    def _do(self, kind: str) -> None:
        if kind:
            FAULTS.is_reached.set()
        if kind == "raises":
            raise DeviceError("driver", "launch failed with code 719.")
        if kind == "is late":
            time.sleep(FAULTS.seconds)
        elif kind == "is stuck":
            self._faulty.hang()
            assert self._faulty.has_come_back(_LONGEST_S)
            raise DeviceError("driver", "the device was reset.")
        elif kind == "hangs":
            self._faulty.hang()
            self._hangs = True

    def go_on(self, code: int) -> None:
        if not self._hangs:
            super().go_on(code)

    def rest(self) -> None:
        if self._hangs and not self._faulty.has_come_back(_SLICE_S):
            raise DeviceError(self._faulty.name, "still hangs.", hint="Reset it.")
        self._hangs = False


class FaultyDevice(CpuDevice):
    """The CPU, with faults."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__()
        self.name = str(spec)
        self._is_well = threading.Event()
        self._is_well.set()

    def link(self, program: FlatProgram) -> FaultyExecutable:
        return FaultyExecutable(self, program)

    def hang(self) -> None:
        self._is_well.clear()

    def has_come_back(self, seconds: float) -> bool:
        return self._is_well.wait(seconds)

    def reset(self) -> None:
        self._is_well.set()


def _open(spec: DeviceSpec) -> FaultyDevice:
    return FaultyDevice(spec)


BACKEND = Backend("faulty", host_target, CpuCompiler, _open, listed=lambda: ["faulty", "faulty:1"])


def faulty(name: str = "faulty") -> FaultyDevice:
    """The device of that name, which is known from now on."""
    registry = DeviceRegistry()
    registry.register("faulty", sys.modules[__name__])
    return cast(FaultyDevice, registry.open(name))
