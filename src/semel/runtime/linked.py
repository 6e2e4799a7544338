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
from types import TracebackType
from typing import Protocol, Self

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


@dataclass(frozen=True, slots=True)
class FlatProgram:
    """Everything that a device needs to run a program on memory that is there.

    `bounds` and `initial` values are those of `variables`. `guards` must be 0 at every bind, and
    `inputs` be written in their shapes; of `marks` the largest value of any bind is kept. `bases`
    are the addresses of memory that may move between runs: rows count from it. At most `threads`
    participants share the work, each with `scratch_bytes` of its own. A run that succeeds moves
    the `held` variables on, and exchanges the bases of each pair in `flips`.
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

    def logged(self) -> LoggedRun:
        """What there is to know of the run, once it is over."""


class Executable(Protocol):
    """A program on a device, ready to run.

    `call` runs it and says why it came back: `Code.OK` at the end; HOST_CALL at a row that Python
    must do, START_POOL and AGAIN for reasons of the device, after each of which `go_on` and
    another `call` follow; everything else is a refusal or a failure, and `state` says of what.
    It is the native function itself: nothing of Python is between a plan and its run.
    """

    call: Callable[[], int]
    state: RunState

    def bind(self) -> int:
        """Check and commit the pending variables, and run nothing."""

    def go_on(self, code: int) -> None:
        """Let the next call go on behind the row that this code came back at."""

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
