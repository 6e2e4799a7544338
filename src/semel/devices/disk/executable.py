"""Copies from and to a file, as a program on a lane.

    FlatProgram of copies  --link-->  DiskExecutable  --call()-->  Code

The program is linked to the CPU's runner with a row of the host in the place of each copy: where
lanes meet, how variables and bases become sizes and addresses, loops, cancelling and times are the
runner's, as on any lane. For a copy it comes back, to this thread and not to the caller's, and the
bytes go piece by piece straight between the file and memory of the host, without the interpreter's
lock. Only what goes from the file to the file is staged, in one piece of memory that is kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from semel.devices.cpu.executable import CpuExecutable
from semel.devices.disk.block_file import PIECE_BYTES, Region, pieces
from semel.errors import UnsupportedError
from semel.ir import abi
from semel.ir.abi import Code, Row, RowKind
from semel.runtime.events import EventLog
from semel.runtime.linked import FlatProgram
from semel.runtime.measured import Event
from semel.runtime.optable import TableRow, TableStep

if TYPE_CHECKING:
    from semel.devices.disk.backend import DiskDevice

#: Copies bytes from and to an offset.
Mover: TypeAlias = Callable[[int, int], None]
#: Bytes of the file, and where among them.
Located: TypeAlias = tuple[Region, int]


class DiskExecutable(CpuExecutable):
    """Runs copies; `call` is Python, so that no lane enters it in native code."""

    def __init__(self, device: DiskDevice, program: FlatProgram) -> None:
        self._disk = device
        self._copy: _Copy | None = None  # that a run is in the middle of
        self._staging = memoryview(b"")
        super().__init__(device, program)
        self.call = self._call

    def _link(self, program: FlatProgram) -> None:
        self._copies = frozenset(
            number for number, row in enumerate(program.rows) if row.kind is RowKind.COPY
        )
        super()._link(_by_host(self._disk.name, program))
        self.header = 0  # after the native entry points to it: nobody else runs it

    def _call(self) -> int:
        return self.run(self._entry.call)

    def run(self, enter: Callable[[], int]) -> int:
        """Run, or go on, with this way into the runner."""
        if not self.state.is_busy:
            self._copy = None  # of a run that was given up
        while True:
            if self._copy is None:
                code = enter()
                row = self.state.error_index
                if code != Code.HOST_CALL or row not in self._copies:
                    return code
                self._copy = self._begin(row)
            if not self._copy.go_on(lambda: self.state.is_asked_back):
                return Code.AGAIN
            self._copy = None
            super().go_on(Code.HOST_CALL)

    def go_on(self, code: int) -> None:
        if self._copy is None:
            super().go_on(code)

    def log(self) -> EventLog:
        return _DiskLog(self)

    def tiles(self, row: int) -> int:
        """How many tiles a copy counts as, at the bound variables."""
        return _words(self._row_word(row, Row.VALUES), 2)[1]

    def is_copy(self, row: int) -> bool:
        """Whether the row is one of the copies."""
        return row in self._copies

    def _row_word(self, row: int, word: Row) -> int:
        return int(self.table.rows[row * abi.ROW_WORDS + word])

    def _begin(self, row: int) -> _Copy:
        """The copy of a row, with the addresses and the size that it has now."""
        target, source = _words(self._row_word(row, Row.BUFFERS), 2)
        size = _words(self._row_word(row, Row.VALUES), 2)[0]
        there, here = self._disk.find(target), self._disk.find(source)
        if there is None or here is None:
            memory = _host_bytes(target if there is None else source, size)
            move = _to_file(there, memory) if there else _to_host(here, memory)
            return _Copy(size, move)
        # Bytes that overlap: whichever way, no piece is overwritten before it was read.
        return _Copy(size, _inside(here, there, self._staged()), is_backward=target > source)

    def _staged(self) -> memoryview:
        if not self._staging:
            self._staging = memoryview(bytearray(PIECE_BYTES))
        return self._staging

    @property
    def scratch_bytes(self) -> int:
        return super().scratch_bytes + len(self._staging)

    def discard_scratch(self) -> None:
        super().discard_scratch()
        self._staging = memoryview(b"")


class _Copy:
    """Bytes that are copied piece by piece by `move`, from the first one on or from the last."""

    def __init__(self, size: int, move: Mover, *, is_backward: bool = False) -> None:
        self._move, self._left = move, list(pieces(size))
        if not is_backward:
            self._left.reverse()

    def go_on(self, is_asked_back: Callable[[], bool]) -> bool:
        """Copy what is left; False if somebody asks meanwhile for the lane to come back."""
        while self._left:
            self._move(*self._left[-1])
            self._left.pop()
            if self._left and is_asked_back():
                return False
        return True


def _to_host(here: Located | None, to: memoryview) -> Mover:
    assert here is not None  # a row of ours has bytes of the file on one side
    region, offset = here
    return lambda start, end: region.read(offset + start, to[start:end])


def _to_file(there: Located, source: memoryview) -> Mover:
    region, offset = there
    return lambda start, end: region.write(offset + start, source[start:end])


def _inside(here: Located, there: Located, staging: memoryview) -> Mover:
    def move(start: int, end: int) -> None:
        piece = staging[: end - start]
        here[0].read(here[1] + start, piece)
        there[0].write(there[1] + start, piece)

    return move


class _DiskLog(EventLog):
    """Times of a run; copies are the runner's rows of the host, and count as many tiles as ever."""

    def __init__(self, executable: DiskExecutable) -> None:
        super().__init__(executable.table, executable._entry, executable._device)
        self._executable = executable

    def enter(self) -> int:
        return self._executable.run(super().enter)

    def events(self) -> list[Event]:
        executable = self._executable
        return [
            replace(event, span=replace(event.span, tiles=executable.tiles(event.row)))
            if executable.is_copy(event.row)
            else event
            for event in super().events()
        ]


def _by_host(device: str, program: FlatProgram) -> FlatProgram:
    """The program with a row of the host for each copy, alone in its step."""
    steps: list[TableStep] = []
    first = [0]  # the new number of each step
    rows = iter(program.rows)
    for step in program.steps:
        own = [next(rows) for segment in step.segments for _ in range(segment)]
        if step.kind is RowKind.KERNEL:
            _check_stores(device, own)
            steps += [TableStep((1,), RowKind.HOST_CALL)] * len(own)
        else:
            steps.append(step)
        first.append(len(steps))
    return replace(
        program,
        rows=tuple(_as_host_row(row) for row in program.rows),
        steps=tuple(replace(step, target=first[step.target]) for step in steps),
        loops=tuple(
            replace(one, first_step=first[one.first_step], last_step=first[one.last_step])
            for one in program.loops
        ),
        rebinds=tuple(replace(one, step=first[one.step]) for one in program.rebinds),
        threads=1,
    )


def _as_host_row(row: TableRow) -> TableRow:
    """Size and tiles are values of the row, which the runner keeps up to date."""
    if row.kind is not RowKind.COPY:
        return row
    return TableRow(RowKind.HOST_CALL, 0, row.buffers, (row.size_bytes, row.tiles), 1)


def _check_stores(device: str, rows: Sequence[TableRow]) -> None:
    if any(row.kind is not RowKind.COPY for row in rows):
        raise UnsupportedError(
            device,
            "stores and computes nothing: what runs there must be a copy, got a kernel.",
            hint='Move it to a device that computes first: x.to("cpu").',
            device=device,
        )


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


def _host_bytes(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")
