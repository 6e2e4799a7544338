"""Op tables built by hand and run by the native runner, without a plan around them.

    Sheet().loop(...).call(...).end()  -->  Running: run(), values of variables, arrays

Steps are added in order, one row each; counters, trips and late variables are as the table
takes them. Kernels are a few lines of LLVM IR on int64 arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import numpy as np

from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.runtime import CpuDevice
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.ir.abi import Code, Header, RowKind
from semel.ir.expr import Dim, Variable
from semel.runtime.bases import FIXED, Place
from semel.runtime.device import find_device
from semel.runtime.events import EventLog
from semel.runtime.optable import (
    OpTable,
    TableHeld,
    TableLoop,
    TableRebind,
    TableRow,
    TableStep,
    make_lanes,
)

Array = np.ndarray[Any, np.dtype[Any]]

# note: log[log[0] + 1] = vals[0]; log[0] += 1. One tile.
# put: a[tile] = vals[0] for each tile. add: a[tile] += vals[0].
# less: byte b[0] = a[0] < vals[0]. fail: reports vals[0] as a status.
KERNELS = """
define void @note(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {
  %log = load ptr, ptr %buffers
  %v = load i64, ptr %vals
  %n = load i64, ptr %log
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %log
  %at = getelementptr i64, ptr %log, i64 %n1
  store i64 %v, ptr %at
  ret void
}
define void @put(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {
entry:
  %a = load ptr, ptr %buffers
  %v = load i64, ptr %vals
  br label %head
head:
  %i = phi i64 [ %tb, %entry ], [ %i1, %one ]
  %more = icmp slt i64 %i, %te
  br i1 %more, label %one, label %exit
one:
  %at = getelementptr i64, ptr %a, i64 %i
  store i64 %v, ptr %at
  %i1 = add i64 %i, 1
  br label %head
exit:
  ret void
}
define void @add(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {
entry:
  %a = load ptr, ptr %buffers
  %v = load i64, ptr %vals
  br label %head
head:
  %i = phi i64 [ %tb, %entry ], [ %i1, %one ]
  %more = icmp slt i64 %i, %te
  br i1 %more, label %one, label %exit
one:
  %at = getelementptr i64, ptr %a, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, %v
  store i64 %new, ptr %at
  %i1 = add i64 %i, 1
  br label %head
exit:
  ret void
}
define void @less(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {
  %b = load ptr, ptr %buffers
  %pa = getelementptr ptr, ptr %buffers, i64 1
  %a = load ptr, ptr %pa
  %v = load i64, ptr %vals
  %x = load i64, ptr %a
  %is = icmp slt i64 %x, %v
  %byte = zext i1 %is to i8
  store i8 %byte, ptr %b
  ret void
}
define void @fail(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {
  %v = load i64, ptr %vals
  %code = getelementptr i64, ptr %lane, i64 3
  store i64 1, ptr %code
  %row_at = getelementptr i64, ptr %lane, i64 2
  %row = load i64, ptr %row_at
  %srow = getelementptr i64, ptr %lane, i64 4
  store i64 %row, ptr %srow
  %value = getelementptr i64, ptr %lane, i64 5
  store i64 %v, ptr %value
  ret void
}
"""


@cache
def _code() -> LoadedCode:
    return load_object(compile_ir(KERNELS, host_target()))


def functions() -> dict[int, str]:
    """The kernels by their addresses in this process."""
    return {_code().address(name): name for name in ("note", "put", "add", "less", "fail")}


class Sheet:
    """Rows and steps in the making."""

    def __init__(self, variables: Sequence[Variable] = (), guards: Sequence[Dim] = ()) -> None:
        self.variables, self.guards = variables, guards
        self.rows: list[TableRow] = []
        self.steps: list[TableStep] = []
        self.loops: list[TableLoop] = []
        self.rebinds: list[TableRebind] = []
        self.bases: list[Array] = []
        self._held: list[TableHeld] = []
        self._flips: list[tuple[int, int]] = []
        self._open: list[tuple[Variable, Dim, int]] = []
        self._arrays: list[Array] = []  # the rows have addresses only

    @property
    def here(self) -> int:
        """The number of the next step."""
        return len(self.steps)

    def add(self, row: TableRow, target: int = 0) -> int:
        kind = RowKind.KERNEL if row.kind is RowKind.COPY else row.kind
        self.rows.append(row)
        self.steps.append(TableStep((1,), kind, target))
        return self.here - 1

    def base(self, array: Array) -> int:
        """Let this array move, and what lies in it: the number of its base."""
        self.bases.append(array)
        return len(self.bases) - 1

    def _places(self, arrays: Sequence[Array]) -> tuple[Place, ...]:
        self._arrays += arrays
        return tuple(self._place(a.ctypes.data) for a in arrays)

    def _place(self, address: int) -> Place:
        for number, base in enumerate(self.bases):
            offset = address - base.ctypes.data
            if 0 <= offset < base.nbytes:
                return number, offset
        return FIXED, address

    def call(
        self, name: str, *arrays: Array, value: Dim = 0, tiles: Dim = 1, flops: Dim = 0
    ) -> int:
        function = _code().address(name)
        buffers = self._places(arrays)
        return self.add(TableRow(RowKind.KERNEL, function, buffers, (value,), tiles, flops))

    def host(self) -> int:
        return self.add(TableRow(RowKind.HOST_CALL, 0, (), (), 1))

    def loop(self, counter: Variable, trip: Dim) -> None:
        self._open.append((counter, trip, self.here))
        self.add(TableRow(RowKind.LOOP, 0, (), (), trip))

    def end(self) -> None:
        counter, trip, first = self._open.pop()
        last = self.add(TableRow(RowKind.END, 0, (), (), trip))
        self.loops.append(TableLoop(counter, first, last))

    def branch(self, condition: Array) -> int:
        """Its target is set by `lands`."""
        return self.add(TableRow(RowKind.BRANCH, 0, self._places((condition,)), (), 1))

    def jump(self) -> int:
        return self.add(TableRow(RowKind.JUMP, 0, (), (), 1))

    def lands(self, step: int, target: int | None = None) -> None:
        """Let a branch or a jump go on at `target`, or here."""
        old = self.steps[step]
        goal = self.here if target is None else target
        self.steps[step] = TableStep(old.segments, old.kind, goal)

    def rebind(self, sources: Mapping[Variable, Array]) -> int:
        buffers = self._places(tuple(sources.values()))
        step = self.add(TableRow(RowKind.REBIND, 0, buffers, (), 1))
        limits = tuple((v.min, v.max or 0) for v in sources)
        self.rebinds.append(TableRebind(step, tuple(sources), limits))
        return step

    def hold(self, variable: Variable, next: Dim) -> None:
        self._held.append(TableHeld(variable, next))

    def flip(self, a: int, b: int) -> None:
        self._flips.append((a, b))

    def table(self, threads: int = 1, marks: Sequence[Dim] = ()) -> OpTable:
        return OpTable(
            self.variables,
            [(v.min, v.max or 0) for v in self.variables],
            self.guards,
            (),
            self.rows,
            self.steps,
            make_lanes(threads, ()),
            threads,
            self.loops,
            marks,
            self.rebinds,
            [base.ctypes.data for base in self.bases],
            self._held,
            self._flips,
        )

    def start(
        self, threads: int = 1, *, jitter: bool = False, marks: Sequence[Dim] = ()
    ) -> Running:
        arrays = [*self._arrays, *self.bases]
        return Running(self.table(threads, marks), threads, jitter, arrays)


class Running:
    """A table that the runner serves; `codes` are all that it returned."""

    def __init__(self, table: OpTable, threads: int, jitter: bool, arrays: list[Array]) -> None:
        self.table, self.codes, self._arrays = table, list[int](), arrays
        self._device = cast(CpuDevice, find_device("cpu"))
        self._entry = self._device.open_entry()
        self._entry.point_to(table.address)
        words = table.words
        words[Header.SLICE_TICKS] = int(100_000 * self._device.ticks_per_us)
        words[Header.IDLE_TICKS] = int(50 * self._device.ticks_per_us)
        words[Header.JITTER] = jitter
        if threads > 1:
            pool = self._device.pool()
            words[Header.NUM_WORKERS] = pool.ensure(threads - 1)
            words[Header.POOL] = pool.address
            words[Header.POOL_READY] = 1

    def set(self, *values: int) -> None:
        self.table.pending[: len(values)] = values
        self.table.words[Header.DIRTY] = 1

    def run(self, *values: int) -> Code:
        """Bind these values if any, run to the end; what the runner said last."""
        if values:
            self.set(*values)
        return self._run(self._entry.call)

    def bind(self, *values: int) -> None:
        """Bind without running."""
        if values:
            self.set(*values)
        assert self._entry.bind() == Code.OK

    def enter(self) -> Code:
        """One native call."""
        return Code(self._entry.call())

    def profile(self) -> EventLog:
        """A run with the timed walk."""
        assert self._entry.bind() == Code.OK
        with EventLog(self.table, self._entry, self._device) as log:
            assert self._run(log.enter) == Code.OK
        return log

    def _run(self, enter: Any) -> Code:
        words = self.table.words
        attempts = words[Header.ATTEMPTS]
        while True:
            code = Code(enter())
            self.codes.append(code)
            if code not in (Code.AGAIN, Code.HOST_CALL):
                assert words[Header.BUSY] == 0
                was_started = words[Header.ATTEMPTS] > attempts
                assert not was_started or words[Header.VALID] == (code == Code.OK)
                return code
            words[Header.RESUME] = words[Header.PARKED]

    def __del__(self) -> None:
        self._entry.release()


def journal(size: int = 1 << 12) -> Array:
    """What `note` writes to."""
    return np.zeros(size, np.int64)


def noted(log: Array) -> list[int]:
    """What was noted since the last time."""
    found = log[1 : 1 + int(log[0])].tolist()
    log[0] = 0
    return found


def cell(value: int = 0) -> Array:
    return np.full(8, value, np.int64)
