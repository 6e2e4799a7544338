"""A program over several lanes, as one executable: the caller runs its lane, threads the others.

    FlatProgram with `others`  --link_program-->  LanedExecutable  --call()-->  Code

A run binds and checks on the caller's lane. At START the other lanes take over variables and bases
and begin, each on a `NativeLane`; at END all of them are over, and only then is the run a good one.
In between they meet at rows that wait and signal, in native code. Rows that Python must do are the
caller's, whichever lane they are on: it comes back for them like for its own. So does a failure of
any lane: `came_back` says where.

Nobody waits for ever: whoever waits is nudged when the run has failed or was given up, and the
caller is told when there is something for it to do. Invariant: when `call` says OK, and after
`rest`, no lane is at work.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from semel.config import settings
from semel.errors import DeviceError, PlanError, TimedOutError
from semel.ir.abi import Call, Code
from semel.ir.expr import evaluate
from semel.runtime.device import Device, find_device
from semel.runtime.events import LoggedRun
from semel.runtime.linked import Executable, FlatProgram, Joint, JointKind, RunLog
from semel.runtime.measured import Event, Span, Wait
from semel.runtime.native_lane import NativeLane
from semel.runtime.runstate import RunState
from semel.runtime.timeline import TimelineSignal

_JITTER_S = 0.0005
#: How long a run that is given up waits for its lanes before it tells them again.
_TELL_AGAIN_S = 0.002
#: How long it waits for them in all. A lane ends with the row that it is in.
_PATIENCE_S = 10.0
#: Codes after which a lane goes on by itself.
_GOES_ON = (Code.START_POOL, Code.AGAIN)
_WAITS = (JointKind.WAIT, JointKind.END)


def link_program(device: Device, program: FlatProgram) -> Executable:
    """The program ready to run: by its device alone if it has one lane."""
    return LanedExecutable(device, program) if program.others else device.link(program)


class _Part:
    """One lane of a linked program: its executable, and where it meets others."""

    def __init__(self, name: str, device: Device, program: FlatProgram) -> None:
        self.name = name
        self.executable = device.link(program)
        self.enter: Callable[[], int] = self.executable.call

    def take(self, program: FlatProgram, first_row: int) -> None:
        """Note what it runs, and the number of its first row among all lanes'."""
        self.first_row, self.num_threads = first_row, program.threads
        self.joints = {joint.row: joint for joint in program.joints}
        late = [v.name for rebind in program.rebinds for v in rebind.variables]
        self._names = [*(v.name for v in program.variables), *late]

    @property
    def state(self) -> RunState:
        return self.executable.state

    def joint(self) -> Joint | None:
        """The joint that a run has come to; None at other rows of the host."""
        return self.joints.get(self.executable.came_back()[1])

    def is_own_joint(self, row: int) -> bool:
        """Whether a row is there for the lanes to meet, and none of the plan's."""
        return row in self.joints and self.joints[row].is_counted

    def awaited(self, row: int) -> str:
        """What a joint waits for, for people."""
        joint = self.joints[row]
        return "the other lanes" if joint.kind is JointKind.END else joint.signal.name

    @property
    def header(self) -> int:
        """Of a native run; 0 if it is entered in another way."""
        executable = self.executable
        return executable.header if self.enter == executable.call else 0

    @property
    def waits(self) -> bool:
        """Whether the run is known to be at a row that waits for another lane."""
        joint = self.joints.get(self.executable.at())
        return joint is not None and joint.kind is JointKind.WAIT

    def value_at(self, joint: Joint) -> int:
        """The value of a joint, where the run is now."""
        if isinstance(joint.value, int):
            return joint.value
        state = self.state
        known = {name: state.value(number) for number, name in enumerate(self._names)}
        return evaluate(joint.value, {**known, **state.iterations})


class _OtherPart(_Part):
    """One that is not the caller's, and its thread."""

    def __init__(self, device: str, lane: str, program: FlatProgram) -> None:
        opened, name = find_device(device), f"{device}/{lane}"
        super().__init__(name, opened, program)
        self.device = device
        self.lane = NativeLane(name, opened.cpus)
        self.value = 0  # of the lane's timeline, when its part of the run is over
        #: Reached when the caller has done what the lane asked it for.
        self.served = TimelineSignal(f"{name}: served")
        self.num_asked = 0


class _PartRun:
    """What a lane does in one run."""

    __slots__ = ("_executable", "_part")

    def __init__(self, executable: LanedExecutable, part: _OtherPart) -> None:
        self._executable, self._part = executable, part

    @property
    def name(self) -> str:
        return self._part.name

    @property
    def header(self) -> int:
        return self._part.header

    def came_back(self, code: int) -> bool:
        return self._executable.serve(self._part, code)

    def ask_back(self) -> None:
        self._part.executable.ask_back()


class LanedExecutable:
    """The executables of all lanes of a program; the first one is the caller's."""

    header = 0

    def __init__(self, device: Device, program: FlatProgram) -> None:
        self._main = _Part(f"{device.name}/compute", device, program)
        self._others = [_OtherPart(one.device, one.lane, one.program) for one in program.others]
        self._parts: list[_Part] = [self._main, *self._others]
        self._is_running = False  # other lanes have begun, and the caller has not seen their end
        self._is_stopped = False
        #: What went wrong on which lane first: a code, or an exception.
        self._failure: tuple[_Part, int | BaseException] | None = None
        #: Lanes that have come to a row of the host, in order.
        self._asking: deque[_OtherPart] = deque()
        self._parked: Joint | None = None
        self._came_from: _Part = self._main
        self._until: float | None = None  # when the caller comes back at the latest
        self._held: list[object] = []  # what lanes use that could not be brought to rest
        self._has_jitter = "jitter" in settings().debug
        self._take(program)

    def _take(self, program: FlatProgram) -> None:
        first = 0
        programs = [program, *(one.program for one in program.others)]
        for part, own in zip(self._parts, programs, strict=True):
            part.take(own, first)
            first += len(own.rows)
        joints = [joint for part in self._parts for joint in part.joints.values()]
        signals = {id(joint.signal): joint.signal for joint in joints}
        counted = {id(joint.signal) for joint in joints if joint.is_counted}
        #: Those of the run itself, which begin anew with each.
        self._counted = [signal for key, signal in signals.items() if key in counted]
        self._signals = list(signals.values())
        self._signals += [s for part in self._others for s in (part.served, part.lane.timeline)]

    @property
    def state(self) -> RunState:
        return self._main.state

    # ------------------------------------------------------------ the caller

    def call(self) -> int:
        """Run the caller's lane; come back for rows of the host and failures of any lane."""
        main = self._main
        if (self._is_running or self._parked is not None) and not main.state.is_busy:
            self.rest()  # of an earlier run, which could not even be given up in peace
        while True:
            main.state.take_news()  # before one looks: what comes later is told again
            if self._has_news() or self._is_late():
                return self._tell()
            if self._parked is None:
                self._came_from = main
                code = main.enter()
                self._parked = main.joint() if code == Code.HOST_CALL else None
                if code == Code.AGAIN and self._has_news():
                    main.executable.go_on(code)
                elif self._parked is None:
                    return code
            elif self._meet_others(self._parked):
                self._parked = None
                main.executable.go_on(Code.HOST_CALL)

    def _has_news(self) -> bool:
        """Whether another lane, or anybody, wants something of the caller."""
        return self._failure is not None or bool(self._asking) or self._main.state.is_asked_back

    def _is_late(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def _tell(self) -> int:
        if self._failure is not None:
            self._came_from, what = self._failure
            if isinstance(what, BaseException):
                raise what
            return what
        if self._main.state.is_asked_back or self._is_late():
            self._came_from = self._main
            return Code.AGAIN
        self._came_from = self._asking[0]
        return Code.HOST_CALL

    def came_back(self) -> tuple[RunState, int]:
        part = self._came_from
        state, row = part.executable.came_back()
        return state, part.first_row + row

    def at(self) -> int:
        late = [part for part in self._others if part.lane.num_pending]
        ahead = [part for part in late if not part.waits]
        part = next(iter([*ahead, *late]), self._main)
        return part.first_row + part.executable.at()

    def go_on(self, code: int) -> None:
        if self._came_from is self._main:
            self._main.executable.go_on(code)
        else:
            part = self._asking.popleft()
            part.served.set(part.num_asked)

    def bind(self) -> int:
        return self._main.executable.bind()

    def ask_back(self) -> None:
        self._main.executable.ask_back()
        self._nudge()

    def limit(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds
        self._main.executable.limit(seconds)

    # ------------------------------------------------------------ joints

    def _meet_others(self, joint: Joint) -> bool:
        """Like `_meet`, of the caller; False if there are news for it, or it is late."""
        left = None if self._until is None else self._until - time.monotonic()
        try:
            return self._meet(self._main, joint, self._has_news, left)
        except TimedOutError:
            return False

    def _meet(
        self,
        part: _Part,
        joint: Joint,
        unless: Callable[[], object],
        timeout: float | None = None,
    ) -> bool:
        """Begin, or wait for the end; False if `unless()` held before."""
        if self._has_jitter:
            time.sleep(random.random() * _JITTER_S)
        if joint.kind is JointKind.START:
            self._begin()
        elif joint.kind is JointKind.END:
            is_over = all(
                one.lane.timeline.await_value(one.value, timeout, unless) for one in self._others
            )
            # A lane that has failed is over too.
            self._is_running = not is_over or self._failure is not None
            return not self._is_running
        else:  # a signal that native code found further than that: it is refused
            joint.signal.set(part.value_at(joint))
        return True

    def _begin(self) -> None:
        self.rest()
        for signal in self._counted:
            signal.restart()
        self._is_running = True
        for part in self._others:
            part.state.follow(self._main.state)
            part.value = part.lane.submit_work(_PartRun(self, part))

    # ------------------------------------------------------------ the other lanes

    def serve(self, part: _OtherPart, code: int) -> bool:
        """Do what a lane has come back for; whether it goes on in native code."""
        try:
            if code == Call.WORK:
                self._go(part)
                return False
            return self._go_on(part, code)
        except BaseException as error:
            self._fail(part, error)
            return False

    def _go(self, part: _OtherPart) -> None:
        """A lane's run that is entered by Python, from its begin to its end."""
        while not self._is_stopped:
            code = part.enter()
            if code == Code.OK or not self._go_on(part, code):
                return

    def _go_on(self, part: _OtherPart, code: int) -> bool:
        """Whether a lane that came back with this code goes on; if not, the run has ended."""
        if self._is_stopped:
            return False
        if code == Code.HOST_CALL:
            joint = part.joint()
            is_met = (
                self._ask(part) if joint is None else self._meet(part, joint, self._is_given_up)
            )
            if not is_met:
                return False
        elif code not in _GOES_ON:
            self._fail(part, code)
            return False
        part.executable.go_on(code)
        return True

    def _ask(self, part: _OtherPart) -> bool:
        """Let the caller do the row that this lane has come to."""
        part.num_asked += 1
        self._asking.append(part)
        self._nudge()
        return part.served.await_value(part.num_asked, unless=self._is_given_up)

    def _is_given_up(self) -> bool:
        return self._is_stopped

    def _fail(self, part: _Part, what: int | BaseException) -> None:
        if self._failure is None:
            self._failure = part, what
        self._stop()

    def _stop(self) -> None:
        self._is_stopped = True
        for part in self._others:
            part.executable.ask_back()
        self._nudge()

    def _nudge(self) -> None:
        """Let whoever waits look again. What there is to see was written before."""
        self._main.state.tell_news()
        for signal in self._signals:
            signal.nudge()

    # ------------------------------------------------------------ ends

    def rest(self) -> None:
        """Let no lane be at work, and forget what they did.

        A signal handler that raises meanwhile has to wait: memory must not go before its users.
        Not for ever: a device that hangs is named, and the next run begins here again.
        """
        interruption: BaseException | None = None
        until = time.monotonic() + _PATIENCE_S
        while any(part.lane.num_pending for part in self._others):
            if time.monotonic() >= until:
                raise self._refusal() from interruption
            try:
                self._stop()  # again, for those that had not begun
                for part in self._others:
                    with suppress(TimedOutError):
                        part.lane.sync(_TELL_AGAIN_S)
            except BaseException as error:
                interruption = error
        for part in self._others:
            if part.state.is_busy:
                part.state.reset()
        self._asking.clear()
        self._is_running = self._is_stopped = False
        self._failure, self._parked = None, None
        self._held.clear()
        if interruption is not None:
            raise interruption

    def _refusal(self) -> DeviceError:
        stuck = [part for part in self._others if part.lane.num_pending]
        names = ", ".join(part.lane.name for part in stuck)
        return DeviceError(
            names,
            f"must come back from a run that was given up, and did not within {_PATIENCE_S:g} s.",
            hint="Reset the device; then the plan can run again.",
            device=stuck[0].device,
        )

    def hold_until_rest(self, memory: object) -> None:
        self._held.append(memory)

    def stop(self) -> None:
        self.rest()
        for part in self._parts:
            part.executable.stop()

    def relink(self, program: FlatProgram) -> None:
        self.rest()
        self._main.executable.relink(program)
        for part, one in zip(self._others, program.others, strict=True):
            part.executable.relink(one.program)
        self._take(program)

    def after_fork(self) -> None:
        """In the child: the other lanes' threads are the parent's, and so is a run of theirs."""
        for other in self._others:
            other.lane.after_fork()
        for part in self._parts:
            part.executable.after_fork()
        if self._is_running:
            self._is_stopped = True
            self._failure = (
                self._main,
                PlanError(
                    "plan",
                    "the process was forked in the middle of a run on several lanes, which goes "
                    "on in the parent only.",
                    hint="Execute it again.",
                ),
            )

    # ------------------------------------------------------------ scratch and times

    @property
    def scratch_bytes(self) -> int:
        return sum(part.executable.scratch_bytes for part in self._parts)

    def fill_scratch(self, byte: int) -> None:
        for part in self._parts:
            part.executable.fill_scratch(byte)

    def discard_scratch(self) -> None:
        for part in self._parts:
            part.executable.discard_scratch()

    def log(self) -> LanedLog:
        for part in self._others:
            part.state.follow(self._main.state)
            part.executable.bind()
        return LanedLog(self, self._parts)


class LanedLog:
    """Times of one run on all lanes, by the clock of the caller's."""

    def __init__(self, executable: LanedExecutable, parts: list[_Part]) -> None:
        self.enter = executable.call
        self._parts = parts
        self._logs: list[RunLog] = [part.executable.log() for part in parts]

    def __enter__(self) -> Self:
        for part, log in zip(self._parts, self._logs, strict=True):
            log.__enter__()
            part.enter = log.enter
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for part, log in zip(self._parts, self._logs, strict=True):
            part.enter = part.executable.call
            log.__exit__(kind, error, trace)

    def begun_after(self, first: Any) -> int:
        """As its first lane's log says."""
        return self._logs[0].begun_after(first)

    def logged(self) -> LoggedRun:
        """The events of all lanes; joints of the run itself are waits, or nothing."""
        runs = [log.logged() for log in self._logs]
        events: list[Event] = []
        waits: list[Wait] = []
        tracks: list[str] = []
        for part, log, run in zip(self._parts, self._logs, runs, strict=True):
            late = log.begun_after(self._logs[0])
            for event in run.events:
                moved = _moved(event, part.first_row, len(tracks), late)
                if not part.is_own_joint(event.row):
                    events.append(moved)
                elif part.joints[event.row].kind in _WAITS:
                    waits.append(Wait(moved.span, part.awaited(event.row)))
            tracks += [part.name] * part.num_threads
        sums = [sum(run.steps[k] for run in runs) for k in range(3)]
        dropped = sum(run.dropped for run in runs)
        return LoggedRun(events, (sums[0], sums[1], sums[2]), dropped, tuple(waits), tuple(tracks))


def _moved(event: Event, row: int, thread: int, late_ns: int) -> Event:
    span = event.span
    return Event(
        event.row + row,
        Span(span.lane + thread, span.start_ns + late_ns, span.end_ns + late_ns, span.tiles),
    )
