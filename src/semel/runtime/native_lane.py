"""A lane whose thread is native: runs of plans one after the other, without the interpreter.

    lane.submit_run(plan, after=[(signal, 3)])  -->  the value of `lane.timeline` when it is over

The thread takes submissions from a ring, waits for the signals that each must follow, and enters
the plan. For what needs Python (functions, rows of the host, errors, memory to grow) it calls its
companion, a thread of Python that sleeps otherwise, and goes on when that has answered. Both start
with the first submission. What fails is noted with its value: who waits for that value and what
was submitted to follow it get the error, everything else goes on.

A plan is the lane's until its submissions are over (`semel.runtime.hold`): who uses it meanwhile
waits. Forks and the end of the interpreter are as for `semel.runtime.lane`: what was not over by
then is the parent's, or is dropped.

Invariants: a submission counts from the moment that SUBMITTED says so, one native step; what it
refers to is held until it is over.

One idea: the protocol between a native thread, its companion and those who submit, which is told in
one place or not understood.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from _thread import get_ident, start_new_thread
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from semel.config import settings
from semel.errors import CancelledError, DeviceError, InternalError, PlanError, TimedOutError
from semel.ir import abi
from semel.ir.abi import Call, Ring, Signal, Submission, Verdict
from semel.ir.fields import take, take_int, take_value
from semel.locks import make_lock
from semel.runtime.freed import when_freed
from semel.runtime.hold import Hold, Holder
from semel.runtime.native import cpu_mask, host_runner, start_thread
from semel.runtime.timeline import WORD, TimelineSignal
from semel.runtime.words import Words, address_of, aligned_words

R = TypeVar("R")
#: What must be reached before a submission begins.
After = Iterable[tuple[TimelineSignal, int]]

#: How long the end of the interpreter waits for what is under way.
_PATIENCE_S = 0.5
#: How long a thread that never sleeps is believed to be on another CPU than who submits.
_PLACE_US = 100_000
_DEPTH = int(abi.MAX_SUBMISSIONS)
_SLOT_WORDS = int(abi.SUBMISSION_WORDS)
_HEADER, _NUM_WAITS = int(Submission.HEADER), int(Submission.NUM_WAITS)
_WAITS, _PAIRS = int(Submission.WAITS), int(Submission.PAIRS)
_VALUE = int(Signal.VALUE)
_MOST_PAIRS = (_SLOT_WORDS - _PAIRS) // 2
_SUBMIT = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, WORD)
_FORKED = "the process was forked before this was done: it is the parent's to do."


class LaneWork(Protocol):
    """What a lane does: a run of a plan, or a function."""

    @property
    def name(self) -> str:
        """What it is called, for people."""

    @property
    def header(self) -> int:
        """Where the native header of the plan lies; 0 if the work is Python's."""

    def came_back(self, code: int) -> bool:
        """Do what a code of the run, or a `Call`, asks for; whether native code goes on then.

        What it raises is the failure of the submission, which is over with it.
        """

    def ask_back(self) -> None:
        """Let a run come back soon; from any thread."""


class HeldWork(LaneWork, Protocol):
    """A run of a plan."""

    @property
    def hold(self) -> Hold: ...


class LanePlan(Protocol):
    """A plan, for lanes."""

    @property
    def engine(self) -> HeldWork: ...


class Done(NamedTuple):
    """A submission that is over: what it was and waited for, and when, in ticks of the runner."""

    value: int
    work: LaneWork
    pairs: tuple[tuple[TimelineSignal, int], ...]
    taken: int
    begun: int
    ended: int


class CallWork:
    """A function in the place of a plan."""

    __slots__ = ("_function", "name")
    header = 0

    def __init__(self, function: Callable[[], object], name: str) -> None:
        self._function, self.name = function, name

    def came_back(self, code: int) -> bool:
        self._function()
        return False

    def ask_back(self) -> None:
        """A function ends by itself."""


class NativeLane:
    """Submissions in order, one at a time, from any thread; on these CPUs, if some are given."""

    __slots__ = ("__weakref__", "_ring", "_token", "holder", "post", "timeline")

    def __init__(
        self, name: str = "lane", cpus: Iterable[int] = (), lock: threading.RLock | None = None
    ) -> None:
        """`lock` is of who submits all there is to the lane, and has it while he does."""
        take("NativeLane", "name", str, name)
        self._ring = _Ring(name, cpus, make_lock() if lock is None else lock)
        self._token = when_freed(self._ring.close)
        #: Reaches n when submission number n, from 1 on, is over.
        self.timeline = self._ring.done
        #: Who has a plan that the lane was given: see `Hold.alone_behind`.
        self.holder: Holder = self._ring
        #: `submit_held` without waits, for whoever has the lane's lock and the plan's, which no
        #: other lane has; 0 if there is no room.
        self.post: Callable[[HeldWork, Hold], int] = self._ring.post

    def __repr__(self) -> str:
        return f"NativeLane({self.name!r}, {self.num_pending} pending)"

    @property
    def name(self) -> str:
        return self._ring.name

    @property
    def num_pending(self) -> int:
        """Submissions that are not over."""
        return self._ring.num_pending

    @property
    def num_submitted(self) -> int:
        """The value of the last submission."""
        return self._ring.submitted.value

    def submit_run(self, plan: LanePlan, after: After = (), behind: After = ()) -> int:
        """Execute the plan once these values are reached; the value that says it is over.

        Inputs and variables are those of now, the outputs can be read afterwards. What failed of
        `after` fails the run, too; what it is `behind` must be over, well or not.
        """
        return self.submit_held(plan.engine, after, behind)

    def submit_held(self, work: HeldWork, after: After = (), behind: After = ()) -> int:
        """Do work in the middle of an operation on a plan, which is the lane's until then."""
        hold, ring = work.hold, self._ring
        while True:
            with hold.lock:
                is_apart = hold.lane is ring or not (hold.is_held or hold.lane)
                order = behind if is_apart else self._behind(hold, behind)
                value = ring.submit(work, after, hold, order)
            if value:
                return value
            ring.wait_for_room()

    def _behind(self, hold: Hold, behind: After) -> After:
        """What a run must follow whose plan another lane has: what that does with it."""
        if hold.lane is None:
            raise hold.refusal()
        return (*behind, *hold.lane.end_of(hold.value))

    def submit_call(
        self,
        function: Callable[[], object],
        after: After = (),
        behind: After = (),
        name: str = "function",
    ) -> int:
        """Call `function()` once these values are reached, on a thread of Python."""
        if not callable(function):
            raise PlanError(f"lane '{self.name}'", f"must call a function, got {function!r:.60}.")
        return self.submit_work(CallWork(function, name), after, behind)

    def submit_work(self, work: LaneWork, after: After = (), behind: After = ()) -> int:
        """Do any other work in its turn."""
        ring = self._ring
        while not (value := ring.submit(work, after, None, behind)):
            ring.wait_for_room()
        return value

    @property
    def is_full(self) -> bool:
        """Whether who submits has to wait for room."""
        return self._ring.num_pending >= _DEPTH

    def wait_for_room(self) -> None:
        """Wait until one submission fewer is pending than there can be."""
        self._ring.wait_for_room()

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in the middle of work of the lane."""
        return self._ring.is_inside(self._ring.submitted.value)

    def await_end(self, value: int, timeout: float | None = None) -> None:
        """Wait until that submission is over, well or not."""
        self._ring.wait_over(value, timeout)

    def name_of(self, value: int) -> str:
        """What a submission is called that is not over; empty if that is forgotten."""
        return self._ring.name_of(value)

    def failure(self, value: int) -> BaseException | None:
        """What a submission raised; None if it went well or is not over."""
        return self.timeline.failure(take_value(f"lane '{self.name}'", "value", value))

    def sync(self, timeout: float | None = None) -> None:
        """Wait until all that was submitted so far is over, well or not."""
        self._ring.wait_over(self._ring.submitted.value, timeout)

    def give_up(self, value: int, why: DeviceError) -> bool:
        """Let that submission fail with this if it is under way; whether it is.

        It comes back before its next step: to be said again until it is over. Functions end by
        themselves, and what still waits for others has not begun.
        """
        return self._ring.give_up(value, why)

    def let_go(self, why: Callable[[int, TimelineSignal, int], DeviceError]) -> None:
        """Let all that waits for a signal of no lane wait for it no more: it fails with `why`.

        That is asked with the submission's value, the signal and the value that was waited for.
        What other lanes do first is still waited for: the order of bytes may go through here.
        """
        self._ring.let_go(why)

    def missing(self, value: int) -> list[tuple[TimelineSignal, int]]:
        """What a submission still waits for."""
        return self._ring.missing(value)

    def observe(self, note: Callable[[Done], None] | None) -> None:
        """Let `note` be told of all that is submitted from now on and over, with the lane's lock.

        Not at once, but before much more is submitted. None: of no more; until nobody observes
        it, the lane's thread reads the clock three times for each submission.
        """
        self._ring.observe(note)

    def close(self) -> None:
        """Take no more; what was submitted is still done."""
        self._ring.close()

    def after_fork(self) -> None:
        """In the child: what was not over by then is the parent's. Happens by itself, soon."""
        self._ring.after_fork()


class _Waits(NamedTuple):
    """What a submission waits for: the first ones must have gone well. `words` has it natively."""

    pairs: tuple[tuple[TimelineSignal, int], ...]
    num_needed: int
    words: Words | None


_NO_WAITS = _Waits((), 0, None)


class _Ring:
    """What a lane, its thread and its companion share."""

    def __init__(self, name: str, cpus: Iterable[int], lock: threading.RLock) -> None:
        self.name, self.lock = name, lock
        self.submitted = TimelineSignal(f"{name}: submitted")
        self._submitted_words = self.submitted.words
        self.done = TimelineSignal(name)
        self.done.count(self.submitted)
        self._slots = aligned_words(_DEPTH * _SLOT_WORDS)
        self._slot_words = self._slots.data
        self._pairs_at = address_of(self._slots) + _PAIRS * abi.WORD_BYTES
        #: What each slot refers to, until it is over.
        self._works: list[LaneWork | None] = [None] * _DEPTH
        self._after = [_NO_WAITS] * _DEPTH
        #: Why submissions fail that are to wait for signals no more, until they are over.
        self._let_go: dict[int, DeviceError] = {}
        self._forgotten = 0  # of so many submissions nothing is held any more
        #: When the thread was at what, and who is told of that: of what comes after this value.
        self._times = aligned_words(_DEPTH * abi.TIMES_WORDS)
        self._note: Callable[[Done], None] | None = None
        self._noted_from = 0
        self._cpus = cpu_mask(tuple(cpus))
        self._is_closed = False
        self._lost_from: int | None = None
        self._submit: Callable[[int, int], None] = _nobody
        self._reset()
        _rings.add(self)

    def _reset(self) -> None:
        """No threads, nothing under way."""
        self._pid = os.getpid()
        self._is_started = self._is_open = False
        self._companion = 0  # which thread it is
        self._running = 0  # the submission that it is at
        self._given_up: tuple[int, DeviceError] | None = None
        self._lent: list[Hold] = []
        self.calls = TimelineSignal(f"{self.name}: calls")
        self.answers = TimelineSignal(f"{self.name}: answers")
        # New words, since a thread that was begun and never came may still come.
        self._ring = words = aligned_words(abi.RING_WORDS)
        self._address = address_of(words)
        words[Ring.SLOTS] = address_of(self._slots)
        words[Ring.CPUS] = self._cpus
        words[Ring.FIRST] = self.submitted.value
        for field, signal in (
            (Ring.SUBMITTED, self.submitted),
            (Ring.DONE, self.done),
            (Ring.CALLS, self.calls),
            (Ring.ANSWERS, self.answers),
        ):
            words[field] = signal.address

    # ------------------------------------------------------------ asking

    @property
    def num_pending(self) -> int:
        if self._ring[Ring.EXITED]:
            return 0  # what is left is never done
        done = self.done.value  # first: nothing is over before it was submitted
        return self.submitted.value - done

    def is_inside(self, value: int) -> bool:
        """Whether this thread is at work that the submission must wait for, or at that itself."""
        own = _companions.get(get_ident())
        if own is None or not own._running:
            return False
        return self._comes_after(value, own, set())

    def _comes_after(self, value: int, other: _Ring, seen: set[tuple[int, int]]) -> bool:
        """Whether the submission waits for what `other` is at, itself or by way of others."""
        if other is self:
            return self._running <= value
        key = id(self), value
        if key in seen or self.done.value >= value:
            return False
        seen.add(key)
        rings = {id(ring.done): ring for ring in list(_rings)}
        return any(
            rings[id(signal)]._comes_after(number, other, seen)
            for earlier in range(self.done.value, value)
            for signal, number in self._after[earlier % _DEPTH].pairs
            if id(signal) in rings
        )

    def lend(self, hold: Hold) -> bool:
        """For work that uses what runs before it have left; later runs wait for it anyway."""
        own = _companions[get_ident()]
        work = own._works[(own._running - 1) % _DEPTH]
        if getattr(work, "hold", None) is hold:
            return False
        own._lent.append(hold)
        hold.is_held = False
        return True

    def _take_back(self) -> None:
        """The work is over: what it was lent is a lane's again, if more is to come of it."""
        while self._lent:
            hold = self._lent.pop()
            with hold.lock:
                if hold.lane is not None and hold.lane.is_to_come(hold.value):
                    hold.is_held = True

    def is_to_come(self, value: int) -> bool:
        """Whether that submission is not over."""
        return value > self.done.value

    def end_of(self, value: int) -> After:
        """What to wait for to be behind a submission."""
        return ((self.done, value),) if value <= self.submitted.value else ()

    def wait_over(self, value: int, timeout: float | None = None) -> None:
        if value > self.submitted.value:
            return  # a signal handler kept it from being submitted
        if self.is_inside(value):
            raise PlanError(
                f"lane '{self.name}'",
                "its own work cannot wait for what comes after it.",
                hint="Wait on another thread.",
            )
        try:
            self.done.await_value(value, timeout)
        except TimedOutError as error:
            raise TimedOutError(
                f"lane '{self.name}'",
                f"must be done with submission {value} within {timeout} s, it has done "
                f"{self.done.value} of {self.submitted.value}.",
                signal=self.done.name,
                value=value,
            ) from error

    def name_of(self, value: int) -> str:
        work = self._works[(value - 1) % _DEPTH]
        return "" if work is None else work.name

    def has_lost(self, value: int) -> bool:
        self.after_fork()
        return self._lost_from is not None and value > self._lost_from

    # ------------------------------------------------------------ submitting

    def submit(self, work: LaneWork, after: After, hold: Hold | None, behind: After = ()) -> int:
        """The value of one more submission; 0 if there is no room. `hold` is to be the lane's."""
        with self.lock:
            return self.post(work, hold, after, behind)

    def post(self, work: LaneWork, hold: Hold | None, after: After = (), behind: After = ()) -> int:
        """What `submit` does, for those who have the lane's lock. Hot."""
        if not self._is_open:
            self._ensure_threads()
        value = self._submitted_words[_VALUE] + 1
        if value - self._forgotten > _DEPTH:
            self._forget()
            if value - self._forgotten > _DEPTH:
                return 0
        slot = (value - 1) % _DEPTH
        at, words = slot * _SLOT_WORDS, self._slot_words
        words[at] = work.header
        has_waits = after or behind
        words[at + _NUM_WAITS] = self._write_waits(slot, after, behind) if has_waits else 0
        self._works[slot] = work
        if hold is not None:
            hold.lane, hold.value, hold.is_held = self, value, True
        self._submit(self._address, value)
        return value

    def _write_waits(self, slot: int, after: After, behind: After) -> int:
        """The signals and values that a submission must follow; how many."""
        needed = tuple(after)
        pairs = (*needed, *behind)
        for signal, value in pairs:
            where = f"lane '{self.name}'"
            take(where, "after", TimelineSignal, signal)
            take_int(where, "after", value)
        numbers = [number for signal, value in pairs for number in (signal.address, value)]
        at, words = slot * _SLOT_WORDS, self._slot_words
        words[at + _WAITS] = self._pairs_at + at * abi.WORD_BYTES
        held: Words | None = None
        if len(pairs) > _MOST_PAIRS:
            held = aligned_words(len(numbers))
            held[:] = numbers
            words[at + _WAITS] = address_of(held)
        else:
            for k, number in enumerate(numbers, at + _PAIRS):
                words[k] = number
        self._after[slot] = _Waits(pairs, len(needed), held)
        return len(pairs)

    def wait_for_room(self) -> None:
        value = self.submitted.value - _DEPTH + 1
        if self.is_inside(value + _DEPTH - 1):
            raise PlanError(
                f"lane '{self.name}'",
                f"is full ({_DEPTH} pending), and its own work cannot wait for it.",
                hint="Submit from another thread.",
            )
        self.done.await_value(value)

    def _forget(self) -> list[Any]:
        """Let go of what is over; what that was, to be dropped without the lock."""
        done, gone = self.done.value, []
        for number in range(self._forgotten, done):
            slot = number % _DEPTH
            if self._note is not None:
                self._tell(self._note, number + 1, slot)
            gone.append((self._works[slot], self._after[slot]))
            self._works[slot], self._after[slot] = None, _NO_WAITS
            if self._let_go:
                self._let_go.pop(number + 1, None)
        self._forgotten = max(self._forgotten, done)
        return gone

    def observe(self, note: Callable[[Done], None] | None) -> None:
        with self.lock:
            gone = self._forget()
            self._times[:] = 0
            self._note, self._noted_from = note, self.submitted.value
            self._ring[Ring.LOG] = 0 if note is None else address_of(self._times)
        del gone

    def _tell(self, note: Callable[[Done], None], value: int, slot: int) -> None:
        """Tell of a submission that is over, unless it was begun before anybody asked."""
        work, at = self._works[slot], slot * abi.TIMES_WORDS
        taken, begun, ended = self._times[at : at + 3].tolist()
        if work is not None and value > self._noted_from and taken and ended:
            note(Done(value, work, self._after[slot].pairs, taken, begun, ended))

    # ------------------------------------------------------------ threads

    def _ensure_threads(self) -> None:
        if self._is_closed:
            raise PlanError(f"lane '{self.name}'", "is closed and takes no more work.")
        runner = host_runner()
        self._submit = _SUBMIT(runner.symbol("lane_submit"))
        _stop_at_exit()
        self._ring[Ring.SPIN_TICKS] = int(settings().spin_us * runner.ticks_per_us)
        self._ring[Ring.PLACE_TICKS] = int(_PLACE_US * runner.ticks_per_us)
        try:
            # A second companion, or a second thread on the ring, after a signal handler that
            # raised just here, sees that it is one and ends.
            start_new_thread(_accompany, (self, self._ring))
            is_started = start_thread(runner.symbol("lane"), self._address)
        except RuntimeError as error:
            raise DeviceError(f"lane '{self.name}'", f"needs a thread: {error}.") from error
        if not is_started:
            raise DeviceError(f"lane '{self.name}'", "needs a thread, and none can be had.")
        self._is_started = self._is_open = True

    def claim(self, ring: Words) -> bool:
        """Whether this thread is the companion from now on, of the lane's thread on that ring."""
        with self.lock:
            if self._companion or ring is not self._ring:
                return False
            self._companion = get_ident()
            _companions[self._companion] = self
            return True

    def serve(self, call: int) -> int:
        """Do what the lane's thread calls for; the verdict."""
        value = self.done.value + 1
        slot = (value - 1) % _DEPTH
        work = self._works[slot]
        try:
            self._running = value
            if call == Call.DOUBT:
                self._check_before(value)
                return Verdict.RUN
            if work is None or not work.came_back(call):
                return Verdict.DONE
            self._slot_words[slot * _SLOT_WORDS + _HEADER] = work.header
            return Verdict.RUN
        except BaseException as error:
            failure = self._failure(value, error)
            if not getattr(failure, "__notes__", None):
                failure.add_note(f"submission {value} of lane '{self.name}'")
            self.done.note_failure(value, failure)
            return Verdict.DONE
        finally:
            self._take_back()
            self._running = 0

    def _failure(self, value: int, error: BaseException) -> BaseException:
        """What a submission that raised this failed with: who gave it up knows better why."""
        given_up = self._given_up
        if isinstance(error, CancelledError) and given_up is not None and given_up[0] == value:
            why = given_up[1]
            why.__cause__ = error
            return why
        return error

    def give_up(self, value: int, why: DeviceError) -> bool:
        slot = (value - 1) % _DEPTH
        work = self._works[slot]
        if self.done.value + 1 != value or value > self.submitted.value or work is None:
            return False
        if self.missing(value):
            return False
        if value not in self._let_go:
            self._given_up = value, why
            work.ask_back()
        return True

    def missing(self, value: int) -> list[tuple[TimelineSignal, int]]:
        is_let_go = value in self._let_go
        return [
            (signal, number)
            for signal, number in self._pairs_of(value)
            if signal.value < number and not (is_let_go and signal.is_free)
        ]

    def let_go(self, why: Callable[[int, TimelineSignal, int], DeviceError]) -> None:
        with self.lock:  # nothing is submitted meanwhile: slots stay whose they are
            for value in range(self.done.value + 1, self.submitted.value + 1):
                for place, (signal, number) in enumerate(self._pairs_of(value)):
                    if signal.is_free and signal.value < number:
                        self._let_go.setdefault(value, why(value, signal, number))
                        self._forget_wait(value, place)
                        signal.nudge()

    def _pairs_of(self, value: int) -> Iterable[tuple[TimelineSignal, int]]:
        return self._after[(value - 1) % _DEPTH].pairs

    def _forget_wait(self, value: int, place: int) -> None:
        """Let the thread find a value there that is reached, and stands for a failure."""
        slot = (value - 1) % _DEPTH
        words = self._after[slot].words
        if words is not None:
            words[2 * place + 1] = abi.NO_FAILURE
        else:
            at = slot * _SLOT_WORDS + _PAIRS
            self._slot_words[at + 2 * place + 1] = abi.NO_FAILURE

    def _check_before(self, value: int) -> None:
        """Raise what went wrong with anything that a submission must follow."""
        why = self._let_go.get(value)
        if why is not None:
            raise why
        waits = self._after[(value - 1) % _DEPTH]
        for signal, value in waits.pairs[: waits.num_needed]:
            error = signal.peek_failure(value)
            if error is not None:
                raise error

    def tidy(self) -> None:
        """Hold nothing of what is over."""
        with self.lock:
            gone = self._forget()
        del gone

    # ------------------------------------------------------------ ending

    def close(self, end: int = abi.END_IDLE) -> None:
        """Take no more. Never waits."""
        self._is_closed, self._is_open = True, False
        self._ring[Ring.END] = max(end, int(self._ring[Ring.END]))
        if self._is_started:
            self.submitted.nudge()

    def stop(self) -> None:
        """End soon, in the middle of what is under way if it can be ended."""
        self.close(abi.END_NOW)
        work = self._works[self.done.value % _DEPTH]
        if work is not None and self.num_pending:
            work.ask_back()

    def settle(self, until: float) -> None:
        """Wait for the thread to end; if it does not, what it uses is never freed."""
        while self._is_started and not self._ring[Ring.EXITED]:
            if time.monotonic() >= until:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
                return
            time.sleep(0.0005)

    def after_fork(self) -> None:
        """In the child: the threads are the parent's, and so is what they had to do."""
        if self._pid == os.getpid():
            return
        lost, self._lost_from = self.done.value, self.done.value
        last, self._note = self.submitted.value, None
        for value in range(lost + 1, last + 1):
            self.done.note_failure(value, PlanError(f"lane '{self.name}'", _FORKED))
        self._reset()
        if last > lost:
            self.done.reach(last)
        self._forget()


def _nobody(ring: int, value: int) -> None:
    raise InternalError("lane", f"was given submission {value}, and has no thread.")


def _accompany(lane: _Ring, ring: Words) -> None:
    """The companion of a lane's thread."""
    if not lane.claim(ring):
        return
    try:
        _serve_all(lane, ring)
    finally:
        if _companions.get(get_ident()) is lane:  # not so in the child of a fork
            del _companions[get_ident()]


def _serve_all(lane: _Ring, ring: Words) -> None:
    """Do what the lane's thread calls for, until that ends."""
    calls, answers = lane.calls, lane.answers
    spin = int(ring[Ring.SPIN_TICKS])
    count = 0
    while True:
        word = calls.sleep_until((count + 1) << 8, spin)
        count, call = word >> 8, word & 255
        if call == Call.EXIT:
            return
        if call != Call.IDLE:
            verdict = lane.serve(call)
            if lane.calls is not calls:
                return  # in the child of a fork that the work made
            answers.set((count << 8) | verdict)
        lane.tidy()


# ---------------------------------------------------------------- all lanes

_rings: weakref.WeakSet[_Ring] = weakref.WeakSet()
#: The lanes whose companions are threads of this process, by thread.
_companions: dict[int, _Ring] = {}
_is_registered = False


def _stop_at_exit() -> None:
    global _is_registered  # noqa: PLW0603 - set once; twice would be as good
    if not _is_registered:
        _is_registered = True
        atexit.register(_stop_all)


def _stop_all() -> None:
    """The interpreter ends: no thread of ours may be in the middle of anything."""
    rings, until = list(_rings), time.monotonic() + _PATIENCE_S
    for ring in rings:
        with suppress(Exception):
            ring.stop()
    for ring in rings:
        ring.settle(until)


def _after_fork_in_child() -> None:
    _companions.clear()
    for ring in list(_rings):
        ring.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
