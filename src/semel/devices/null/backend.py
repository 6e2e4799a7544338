"""A device that compiles everything and computes nothing.

    prepare(device="null")  -->  a plan whose runs do all that is not computing

Kernels are compiled and loaded as the CPU's are; memory is the host's. A program is linked without
its rows: a run checks and commits variables, looks at the written shapes, counts, and is over.
Outputs have the right shapes and whatever their memory held, zeros at first; a late size is the
least it can be. What a run costs here is what everything around the kernels costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from semel.devices import Backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.executable import CpuExecutable
from semel.devices.cpu.runtime import CpuDevice
from semel.devices.cpu.toolchain import host_target
from semel.errors import UnsupportedError
from semel.runtime.events import EventLog
from semel.runtime.linked import FlatProgram
from semel.runtime.measured import Event
from semel.runtime.optable import TableStep
from semel.runtime.spec import DeviceSpec


class NullExecutable(CpuExecutable):
    """A program without its rows, in the CPU's runner."""

    def _link(self, program: FlatProgram) -> None:
        # Where lanes meet it must be there: others wait for it.
        joints = [joint.row for joint in program.joints if joint.is_counted]
        self._rows = joints
        late = [v for rebind in program.rebinds for v in rebind.variables]
        limits = [bounds for rebind in program.rebinds for bounds in rebind.bounds]
        # What bodies demand is demanded by nobody: none is entered.
        inside = {number for rebind in program.rebinds for number in rebind.guards}
        idle = replace(
            program,
            guards=tuple(0 if i in inside else guard for i, guard in enumerate(program.guards)),
            variables=(*program.variables, *late),
            bounds=(*program.bounds, *limits),
            initial=(*program.initial, *(low for low, _ in limits)),
            rows=tuple(program.rows[row] for row in joints),
            steps=tuple(TableStep((1,), program.rows[row].kind) for row in joints),
            loops=(),
            rebinds=(),
            threads=1,
            scratch_bytes=0,
        )
        super()._link(idle)

    def _row(self, number: int) -> int:
        return self._rows[number] if number < len(self._rows) else number

    def log(self) -> EventLog:
        return _NoEvents(self.table, self._entry, self._device)


class _NoEvents(EventLog):
    """The log of a run in which nothing was computed."""

    def events(self) -> list[Event]:
        return []


class NullDevice(CpuDevice):
    """The CPU's runner, given nothing to do."""

    name = "null"

    def facts(self) -> Mapping[str, Any]:
        """Not those of the CPU: what is measured here says nothing of it."""
        return {"model": "null", "cores": 1}

    def link(self, program: FlatProgram) -> NullExecutable:
        return NullExecutable(self, program)


def open_device(spec: DeviceSpec) -> NullDevice:
    """The one null device of the process; `semel.runtime.device` keeps it."""
    if spec.index:
        raise UnsupportedError("null", f"there is one device, null:0, got {spec}.")
    return NullDevice()


BACKEND = Backend("null", host_target, CpuCompiler, open_device)
