"""A program as a device links it, and what comes of that.

    FlatProgram  --Device.link-->  Executable  --call()-->  Code

The tree of a program's rows is flat here: steps with jump targets, rows with the addresses of
their buffers, expressions over variables. A device turns that into whatever it runs: the CPU into
a table that its native runner walks, a GPU into a graph of launches. The words that a caller
reads and writes between runs (variables, written shapes, validity, where a run stopped) are the
host's on every device, in a `RunState`; checking and committing variables is native code of the
host on every device too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Protocol, Self

from semel.ir.expr import Dim, Variable
from semel.runtime.events import LoggedRun
from semel.runtime.optable import (
    TableHeld,
    TableInput,
    TableLoop,
    TableRebind,
    TableRow,
    TableStep,
)
from semel.runtime.runstate import RunState
from semel.runtime.timeline import TimelineSignal


class JointKind(Enum):
    """What happens where the lanes of a run meet.

    The caller's lane begins with START, where the others begin, and ends with END, where all of
    them are over.
    """

    START = "start"
    WAIT = "wait"
    SIGNAL = "signal"
    END = "end"


@dataclass(frozen=True, slots=True)
class Joint:
    """A row that waits for a value of a signal, or reaches it.

    If it `is_counted`, the signal is the run's own: values begin anew with each run.
    """

    row: int
    kind: JointKind
    signal: TimelineSignal
    value: Dim
    is_counted: bool


@dataclass(frozen=True, slots=True)
class FlatLane:
    """What a lane of a device does; variables and bases are those of the caller's lane."""

    device: str
    lane: str
    program: FlatProgram


@dataclass(frozen=True, slots=True)
class FlatProgram:
    """Everything that a device needs to run a program on memory that is there.

    `bounds` and `initial` values are those of `variables`. `guards` must be 0 at every bind, and
    `inputs` be written in their shapes; of `marks` the largest value of any bind is kept. `bases`
    are the addresses of memory that may move between runs: rows count from it. At most `threads`
    participants share the work, each with `scratch_bytes` of its own. A run that succeeds moves
    the `held` variables on, and exchanges the bases of each pair in `flips`.

    `others` are what other lanes do in the same run, each on its device; at its `joints`, host
    rows, a lane meets them.
    """

    variables: tuple[Variable, ...]
    bounds: tuple[tuple[int, int], ...]
    initial: tuple[int | None, ...]
    guards: tuple[Dim, ...]
    inputs: tuple[TableInput, ...]
    rows: tuple[TableRow, ...]
    steps: tuple[TableStep, ...]
    loops: tuple[TableLoop, ...]
    rebinds: tuple[TableRebind, ...]
    marks: tuple[Dim, ...]
    bases: tuple[int, ...]
    threads: int
    scratch_bytes: int
    held: tuple[TableHeld, ...] = ()
    flips: tuple[tuple[int, int], ...] = ()
    joints: tuple[Joint, ...] = ()
    others: tuple[FlatLane, ...] = ()


class RunLog(Protocol):
    """Times of one run: `with executable.log() as log:`, and `log.enter` in the place of `call`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def enter(self) -> int:
        """Run, or go on with the run, like `Executable.call`."""

    def begun_after(self, first: Any) -> int:
        """Nanoseconds from the begin of another log of the same run to the begin of this one."""

    def logged(self) -> LoggedRun:
        """What there is to know of the run, once it is over."""


class Executable(Protocol):
    """A program on a device, ready to run.

    `call` runs it and says why it came back: `Code.OK` at the end; HOST_CALL at a row that Python
    must do, START_POOL and AGAIN for reasons of the device, after each of which `go_on` and
    another `call` follow; everything else is a refusal or a failure, and `state` says of what.
    It is the native function itself: nothing of Python is between a plan and its run.
    """

    @property
    def call(self) -> Callable[[], int]: ...

    @property
    def header(self) -> int:
        """Where the header lies that `call` is a native run of; 0 if it is more, or nothing."""

    @property
    def state(self) -> RunState: ...

    def bind(self) -> int:
        """Check and commit the pending variables, and run nothing."""

    def came_back(self) -> tuple[RunState, int]:
        """Where the last call came back or failed: the row, and the state of the lane it is on.

        Rows of other lanes are numbered behind those of the caller's, in their order.
        """

    def at(self) -> int:
        """The row that a run under way was last known to be at, numbered like `came_back`'s.

        Of several lanes, one that is late and waits for none of the others.
        """

    def go_on(self, code: int) -> None:
        """Let the next call go on behind the row that this code came back at."""

    def ask_back(self) -> None:
        """Let a run that is under way come back with AGAIN before its next step. From any thread.

        The run stays asked, and does nothing more, until it is given up.
        """

    def limit(self, seconds: float | None) -> None:
        """Let runs come back with AGAIN before the first step after so long; None: no more.

        They go on coming back before each step then.
        """

    def rest(self) -> None:
        """After a run that was given up: whatever of it is still under way is over.

        A DeviceError if that does not come within a bounded time; runs then say the same until it
        has come.
        """

    def hold_until_rest(self, memory: object) -> None:
        """Keep what a run uses that could not be brought to rest, until it is."""

    def log(self) -> RunLog:
        """A log for one run, for variables that are bound."""

    def relink(self, program: FlatProgram) -> None:
        """Run this from now on: the same program after its memory moved. The state goes on."""

    @property
    def scratch_bytes(self) -> int:
        """Memory that it holds for itself, besides the program's buffers."""

    def fill_scratch(self, byte: int) -> None:
        """Overwrite memory of its own that holds nothing between two runs."""

    def discard_scratch(self) -> None:
        """Give the pages of that memory back; the next run takes them again."""

    def stop(self) -> None:
        """Let go of everything: from now on every call says RELEASED."""

    def after_fork(self) -> None:
        """In the child of a fork: threads of the parent are not there."""
