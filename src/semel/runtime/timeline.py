"""A number that only grows, and those who wait for it.

    signal.set(3)   on one thread  -->   signal.wait(3)   on another goes on

What was reached stays reached: who comes to wait later goes on at once, so that no wake-up can be
lost. The number is a word of native memory: rows of plans and lanes set it and wait for it without
the interpreter, and so may anybody else with it. Who waits looks again and again for a moment, and
then sleeps in the kernel, without the interpreter's lock. Values are ints of 63 bits in a word of
64: at a million a second that is 140,000 years.

A value may stand for work that failed: who waits for that very value gets the error.

Invariant: lines are never unmapped. Who sets a value looks for sleepers afterwards, when whoever
waited may have dropped the signal.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from semel.errors import PlanError, TimedOutError
from semel.ir import abi
from semel.ir.abi import Signal
from semel.ir.fields import NO_LIMIT, take, take_timeout, take_value
from semel.locks import make_lock
from semel.runtime.freed import when_freed
from semel.runtime.native import host_runner
from semel.runtime.words import address_of, aligned_words

# Plain ints index faster than members of an enum; those without a line for who looks at `words`.
VALUE, _BELL, LAST_FAILED = int(Signal.VALUE), int(Signal.BELL), int(Signal.LAST_FAILED)
#: Failures that a signal remembers. They hold frames, and a lane may fail a million times.
_MOST_FAILURES = 64
#: Failures of which it remembers no more than that they were.
_MOST_FORGOTTEN = 4096
#: How long who waits looks by itself before it sleeps.
_SPIN_US = 50
#: How long it sleeps at most before Python looks for signals of the system.
_SLICE_NS = 50_000_000
_FOREVER_NS = 10**18
_LINES_AT_ONCE = 64

# A word of any sign is handed over as an address, which is twice as fast as a number.
WORD = ctypes.c_void_p
# Short calls keep the interpreter's lock: to let go of it and take it again costs more.
_SET = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, WORD)
_RING = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_AWAIT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, WORD)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *(WORD,) * 4)

#: Around what is known of failures, of all signals: they are rare.
_failing = make_lock()
_order = count()


class _Failure:
    """An error that values stand for, of however many signals: work fails with what it needs."""

    __slots__ = ("__weakref__", "error", "is_seen", "order")

    def __init__(self, error: BaseException) -> None:
        #: Which failure it was, of all signals together; whether anybody was told of it.
        self.error, self.order, self.is_seen = error, next(_order), False


#: By the error's id, which is nobody else's while a signal remembers the failure.
_known: weakref.WeakValueDictionary[int, _Failure] = weakref.WeakValueDictionary()


class Unseen(NamedTuple):
    """A failure that nobody was told of; of all signals together, `order` says which was first."""

    value: int
    error: BaseException
    order: int


class TimelineSignal:
    """A monotonic number with a name; safe to use from any thread and from signal handlers."""

    __slots__ = (
        "__weakref__",
        "_failures",
        "_forgotten",
        "_submitted",
        "_token",
        "_unknown",
        "_unseen",
        "address",
        "name",
        "words",
    )

    def __init__(self, name: str = "signal", value: int = 0) -> None:
        #: What errors and reports call it.
        self.name = take("TimelineSignal", "name", str, name)
        number = take_value(f"signal '{name}'", "value", value)
        line = _take_line()
        self._token = when_freed(_free.append, line)
        #: Where its words lie, for native code.
        self.address = line.address
        #: The words themselves, for those who look often.
        self.words = line.words
        self.words[VALUE], self.words[LAST_FAILED] = number, abi.NO_FAILURE
        self._failures: dict[int, _Failure] = {}
        self._unseen: dict[int, None] = {}
        self._forgotten: dict[int, None] = {}
        self._unknown = abi.NO_FAILURE
        #: What counts the work that its values stand for, if it is a lane's.
        self._submitted: TimelineSignal | None = None

    def __repr__(self) -> str:
        return f"TimelineSignal({self.name!r}, {self.value})"

    def _take(self, value: Any) -> int:
        """The number, if it is one; a good one costs nothing."""
        if isinstance(value, int) and -NO_LIMIT <= value <= NO_LIMIT:
            return value
        return take_value(f"signal '{self.name}'", "value", value)

    @property
    def value(self) -> int:
        """The largest value that was reached."""
        return self.words[VALUE]

    def set(self, value: int) -> None:
        """Let everybody go on who waits for this value or a smaller one.

        It must not be smaller than what was reached before: time does not go back. What a lane
        reaches is its own to say.
        """
        if self._submitted is not None:
            raise self.refusal()
        self.reach(value)

    def reach(self, value: int) -> None:
        """What `set` does, for those whose signal it is."""
        number = self._take(value)
        before = (_functions or _load()).set(self.address, number)
        if number < before:
            raise PlanError(
                f"signal '{self.name}'",
                f"must not go back: it is at {before}, got {number}.",
                hint="Count runs, and signal a larger value in each.",
            )

    # ------------------------------------------------------------ signals of lanes

    def count(self, submitted: TimelineSignal) -> None:
        """From now on it says how much is over of a lane's work, of which `submitted` are given."""
        self._submitted = submitted

    @property
    def is_free(self) -> bool:
        """Whether anybody may set it: it says nothing of a lane."""
        return self._submitted is None

    def refusal(self) -> PlanError:
        """Why nobody but the lane sets what it reaches."""
        return PlanError(
            f"signal '{self.name}'",
            "must be set by its lane alone, as work is over: what is not would pass for done.",
            hint="next_timeline() of the context reserves a value, signal_completion() reaches it.",
        )

    def check(self, value: int) -> None:
        """Refuse to wait for work of a lane that was never submitted."""
        if self._submitted is not None and value > self._submitted.value:
            raise PlanError(
                self.name,
                f"value {int(value)} is of no work: {self._submitted.value} were submitted.",
                value=int(value),
            )

    # ------------------------------------------------------------ waiting

    def is_reached(self, value: int) -> bool:
        """Whether who waits for this value goes on at once."""
        return self.words[VALUE] >= self._take(value)

    def wait(
        self,
        value: int,
        timeout: float | None = None,
        *,
        unless: Callable[[], object] | None = None,
    ) -> bool:
        """Go on when `value` is reached; a TimedOutError if that takes longer than `timeout` s.

        Without a timeout it waits for ever, with 0 not at all. False if `unless()` holds before:
        it is asked whenever the signal was set or nudged. If the value stands for work that
        failed, its error is raised.
        """
        number = self._take(value)
        is_reached = self.await_value(number, timeout, unless)
        if is_reached and number <= self.words[LAST_FAILED]:
            error = self.failure(number)
            if error is not None:
                raise error
        return is_reached

    def await_value(
        self,
        number: int,
        timeout: float | None = None,
        unless: Callable[[], object] | None = None,
    ) -> bool:
        """Wait like `wait`, for a value that is known to be good, whatever it stands for."""
        words = self.words
        if words[VALUE] >= number:
            return True
        native = _functions or _load()
        if timeout is None and unless is None:
            while not native.await_(self.address, number):
                pass
            return True
        limit = take_timeout(f"signal '{self.name}'", timeout)
        until = None if limit is None else time.monotonic() + limit
        spin = native.spin_ticks
        while True:
            bell = words[_BELL]  # before what is asked: whoever changes that rings afterwards
            if words[VALUE] >= number:
                return True
            if unless is not None and unless():
                return False
            left = _SLICE_NS if until is None else (until - time.monotonic()) * 1e9
            if left <= 0:
                raise TimedOutError(
                    f"signal '{self.name}'",
                    f"must reach {number} within {timeout} s, it is at {self.value}.",
                    signal=self.name,
                    value=number,
                )
            if native.wait(self.address, number, bell, spin, int(min(left, _SLICE_NS))):
                return True
            spin = 0

    def sleep_until(self, value: int, spin_ticks: int) -> int:
        """Wait for ever, in one go: for threads that have no signals to look for. What it is at."""
        native = _functions or _load()
        while not native.wait(self.address, value, self.words[_BELL], spin_ticks, _FOREVER_NS):
            spin_ticks = 0
        return self.value

    def restart(self) -> None:
        """Begin at 0 again; for the only ones who know the signal, while nobody waits for it."""
        self.words[VALUE] = 0

    def nudge(self) -> None:
        """Let everybody who waits ask again whether to go on waiting."""
        (_functions or _load()).ring(self.address)

    # ------------------------------------------------------------ failures

    def note_failure(self, value: int, error: BaseException) -> None:
        """The work that `value` stands for has failed; to be said before the value is reached.

        Of many failures the first that nobody has seen is kept, and the last ones; of the others,
        that they failed.
        """
        with _failing:
            failure = _known.get(id(error))
            if failure is None:
                failure = _known[id(error)] = _Failure(error)
            self._failures[value] = failure
            self._unseen[value] = None
            if len(self._failures) > _MOST_FAILURES:
                first = next((each.value for each in self._list_unseen()), None)
                oldest = next(number for number in self._failures if number != first)
                del self._failures[oldest]
                self._unseen.pop(oldest, None)
                self._forget(oldest)
            self.words[LAST_FAILED] = max(self.words[LAST_FAILED], value)

    def _forget(self, value: int) -> None:
        """Remember of a failure only that it was one; of too many, not even which."""
        self._forgotten[value] = None
        if len(self._forgotten) > _MOST_FORGOTTEN:
            oldest = next(iter(self._forgotten))
            del self._forgotten[oldest]
            self._unknown = max(self._unknown, oldest)

    def has_failed(self, value: int) -> bool:
        """Whether the work that this value stands for is known to have failed, or may have."""
        if value > self.words[LAST_FAILED]:
            return False
        with _failing:
            is_known = value in self._failures or value in self._forgotten
            return is_known or value <= self._unknown

    def failure(self, value: int) -> BaseException | None:
        """What the work raised that this value stands for; None if it went well, or is not over.

        From here on somebody has seen it, and so all that failed with it.
        """
        if value > self.words[LAST_FAILED]:
            return None
        with _failing:
            failure = self._failures.get(value)
            if failure is not None:
                failure.is_seen = True
        return self.peek_failure(value)

    def peek_failure(self, value: int) -> BaseException | None:
        """The same for work that fails with it: nobody has seen it by that."""
        if value > self.words[LAST_FAILED]:
            return None
        with _failing:
            failure = self._failures.get(value)
        if failure is not None:
            return failure.error
        if self.has_failed(value):
            return PlanError(
                f"signal '{self.name}'",
                f"what {int(value)} stands for has failed, or may have: after so many failures "
                "nobody knows any more of what.",
                value=int(value),
            )
        return None

    def unseen(self) -> list[Unseen]:
        """The failures that nobody was told of, the first ones first."""
        with _failing:
            return self._list_unseen()

    def _list_unseen(self) -> list[Unseen]:
        found = [(value, self._failures[value]) for value in self._unseen]
        unseen = [
            Unseen(value, each.error, each.order) for value, each in found if not each.is_seen
        ]
        self._unseen = dict.fromkeys(each.value for each in unseen)
        return unseen


# ---------------------------------------------------------------- lines


class _Line(NamedTuple):
    """The words of a signal, and where they lie."""

    words: memoryview[int]
    address: int


#: Lines that no signal has. Those that one had before keep their bells: they only change.
_free: list[_Line] = []


def _take_line() -> _Line:
    while True:
        try:
            line = _free.pop()
        except IndexError:
            _add_lines()
        else:
            return line


def _add_lines() -> None:
    block = aligned_words(_LINES_AT_ONCE * abi.SIGNAL_WORDS)
    # Never to be freed, not even at the very end: native threads may look at any time.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))
    start = address_of(block)
    for at in range(0, len(block), abi.SIGNAL_WORDS):
        words = block[at : at + abi.SIGNAL_WORDS].data
        _free.append(_Line(words, start + at * abi.WORD_BYTES))


# ---------------------------------------------------------------- native functions


class _Functions(NamedTuple):
    """What the host's runner does with signals."""

    set: Callable[[int, int], int]
    await_: Callable[[int, int], int]
    wait: Callable[[int, int, int, int, int], int]
    ring: Callable[[int], None]
    spin_ticks: int


#: None until one is needed: a signal that nobody sets or waits for loads nothing.
_functions: _Functions | None = None


def _load() -> _Functions:
    global _functions  # noqa: PLW0603 - set once; twice would be as good
    runner = host_runner()
    spin_ticks = int(_SPIN_US * runner.ticks_per_us)
    ctypes.c_int64.from_address(runner.symbol("signal_spin_ticks")).value = spin_ticks
    _functions = _Functions(
        _SET(runner.symbol("signal_set")),
        _AWAIT(runner.symbol("signal_await")),
        _WAIT(runner.symbol("signal_wait")),
        _RING(runner.symbol("signal_ring")),
        spin_ticks,
    )
    return _functions
