"""What the host knows of a linked program between two runs.

    OpTable  --RunState-->  variables, written shapes, validity, where a run stopped

The words are those of the native table, so that a run reads what is written here without a call
and what it leaves there is read without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from semel.ir import abi
from semel.ir.abi import Base, Header
from semel.runtime.events import count_steps
from semel.runtime.optable import OpTable
from semel.runtime.words import Words

# Plain ints index faster than members of an enum.
DIRTY, VALID, MOVED = int(Header.DIRTY), int(Header.VALID), int(Header.MOVED)
HAS_MOVED, ADDRESS, ONLY_MOVED = int(Base.HAS_MOVED), int(Base.ADDRESS), int(abi.ONLY_MOVED)
_ASKED, _BASE_WORDS = int(Header.ASKED), int(abi.BASE_WORDS)
_GENERATION = int(Header.GENERATION)

#: The words of the header, and those of one base.
BaseWords: TypeAlias = "tuple[memoryview[int], memoryview[int]]"


class RunState:
    """The words of one table; `pending` are values to be bound, `current` those that are."""

    __slots__ = ("_bases", "_set_base", "_table", "_words", "current", "dirty", "pending")

    def __init__(self, table: OpTable) -> None:
        self._table, self._words = table, table.words
        self.pending, self.current = table.pending_words, table.current_words
        self._set_base, self._bases = table.set_base, table.base_words
        #: One word: whoever sets a pending value sets it to 1, and the next run binds.
        self.dirty = table.words[DIRTY : DIRTY + 1]

    # ------------------------------------------------------------ variables

    def set_value(self, number: int, value: int) -> None:
        """A value that is known to be good; the next bind makes it felt."""
        self.pending[number] = self.current[number] = value
        self.dirty[0] = 1

    def forget_pending(self) -> None:
        """Go back to the values that are bound; what a run has left to the next one stays."""
        left = {number: self.pending[number] for number in self._table.held_numbers}
        self._table.pending[:] = self._table.current
        for number, value in left.items():
            self.pending[number] = value

    def value(self, number: int) -> int:
        """What a variable is in the run: late ones are numbered behind the bound ones."""
        return self._table.value(number)

    def was_told(self, number: int) -> bool:
        """Whether the last run found out what a late variable is."""
        return self._table.was_told(number)

    @property
    def is_dirty(self) -> bool:
        """Whether a bind is due."""
        return bool(self.dirty[0])

    def mark_dirty(self) -> None:
        """Make a bind due."""
        self.dirty[0] = 1

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The least and the largest value of each variable."""
        return self._table.bounds

    @property
    def iterations(self) -> dict[str, int]:
        """Where loops stand, by the names of their counters."""
        table = self._table
        return {loop.counter.name: table.iteration(k) for k, loop in enumerate(table.loops)}

    @property
    def marks(self) -> list[int]:
        """The largest value that each marked expression had at any bind."""
        return self._table.marks

    def set_marks(self, values: Mapping[int, int]) -> None:
        """Go on from these values."""
        self._table.set_marks(values)

    # ------------------------------------------------------------ inputs

    @property
    def recorded(self) -> Words:
        """For each input 1 and the shape it was written in; -1 in all if it was not."""
        return self._table.recorded

    # ------------------------------------------------------------ memory

    def set_base(self, number: int, address: int) -> None:
        """Memory that may move lies here from the next run on."""
        self._table.set_base(number, address)

    def base(self, number: int) -> int:
        """Where memory that may move lies at the next run."""
        return self._table.base(number)

    def base_words(self, number: int) -> BaseWords:
        """What to store to, like `swap_base` does, to move a base that is moved all the time."""
        at = number * _BASE_WORDS
        return self._words, self._bases[at : at + _BASE_WORDS]

    def swap_base(self, number: int, address: int) -> None:
        """Like `set_base`, whether it moves or not, and the outputs are of no run."""
        words, base = self.base_words(number)
        words[VALID] = 0
        words[MOVED] = 1
        if not words[DIRTY]:
            words[DIRTY] = ONLY_MOVED
        base[HAS_MOVED] = 1
        base[ADDRESS] = address  # last, as in `OpTable.set_base`

    @property
    def has_moved(self) -> bool:
        """Whether memory lies elsewhere than it did in the last run."""
        return bool(self._words[MOVED])

    # ------------------------------------------------------------ runs

    @property
    def is_busy(self) -> bool:
        """Whether a run has begun and is not over."""
        return bool(self._words[Header.BUSY])

    @property
    def is_valid(self) -> bool:
        """Whether the outputs are those of the last run."""
        return bool(self._words[Header.VALID])

    def void(self) -> None:
        """The outputs are those of no run."""
        self._words[Header.VALID] = 0

    @property
    def generation(self) -> int:
        """Runs that ended well."""
        return self._words[_GENERATION]

    @property
    def attempts(self) -> int:
        """Runs that were begun."""
        return int(self._words[Header.ATTEMPTS])

    def ask_back(self) -> None:
        """Let a run that is under way come back with AGAIN before its next step; or do nothing.

        From any thread: a run that begins forgets what was wanted of the one before.
        """
        if self._words[Header.BUSY]:
            self._words[Header.ASKED] = abi.COME_BACK

    def tell_news(self) -> None:
        """Let a run that is under way come back with AGAIN before its next step; or do nothing.

        From any thread. Once it has come back somebody must `take_news`.
        """
        words = self._words
        if words[Header.BUSY] and words[_ASKED] != abi.COME_BACK:
            words[_ASKED] = abi.NEWS

    def take_news(self) -> None:
        """Let the run go on until there are others; before one looks what they are."""
        words = self._words
        if words[_ASKED] == abi.NEWS:
            words[_ASKED] = abi.HAS_LIMIT if words[Header.UNTIL] else 0

    @property
    def is_asked_back(self) -> bool:
        """Whether that was asked of a run that is not over."""
        words = self._words
        return bool(words[_ASKED] == abi.COME_BACK and words[Header.BUSY])

    @property
    def progress(self) -> tuple[int, int]:
        """The step before which a run came back, and how many steps there are."""
        words = self._words
        return max(int(words[Header.PARKED]) - 1, 0), int(words[Header.NUM_STEPS])

    def set_limit(self, tick: int) -> None:
        """Let runs come back before the first step after this tick; 0: no more."""
        self._words[Header.UNTIL] = tick

    def reset(self) -> None:
        """Forget a run that was abandoned: the next call begins anew, the outputs are void."""
        self._table.reset()

    def count_steps(self) -> tuple[int, int, int]:
        """(steps, steps that participants share, barriers) of a run at the bound variables."""
        return count_steps(self._table)

    # ------------------------------------------------------------ failures

    @property
    def error_index(self) -> int:
        """What failed or came back: a variable, a guard, a check of an input, a row."""
        return int(self._words[Header.ERROR_INDEX])

    @property
    def input_check(self) -> tuple[int, int]:
        """Of a check of an input that failed: which input, and which dim (-1: never written)."""
        return self._table.check_owners[self.error_index]

    @property
    def status(self) -> tuple[int, int]:
        """What a kernel reported: code and value."""
        return int(self._words[Header.STATUS_CODE]), int(self._words[Header.STATUS_VALUE])

    # ------------------------------------------------------------ moving

    def follow(self, leader: RunState) -> None:
        """Take over the variables and bases of another table of the same run."""
        if self.current.tobytes() != leader.current.tobytes():
            for number in range(len(self._table.bounds)):
                if self.current[number] != leader.current[number]:
                    self.set_value(number, leader.current[number])
        own, others = self._bases[::_BASE_WORDS], leader._bases[::_BASE_WORDS]
        if own.tobytes() != others.tobytes():
            for number in range(self._table.num_bases):
                self._set_base(number, leader._table.base(number))

    def take_over(self, other: RunState) -> None:
        """Go on in the place of another table over the same variables, inputs and bases."""
        self.carry(other)
        for number in range(self._table.num_bases):
            self._set_base(number, other.base(number))
        self.set_marks(dict(enumerate(other.marks)))
        self.dirty[0] = 1

    def carry(self, old: RunState) -> None:
        """Go on with the variables, shapes and counts of an earlier table of the same program."""
        table, before = self._table, old._table
        table.pending[:] = before.pending
        table.current[:] = before.current
        table.recorded[:] = before.recorded
        for word in (Header.GENERATION, Header.ATTEMPTS):
            self._words[word] = old._words[word]
        for number in (base for pair in table.flips for base in pair):
            self.set_base(number, before.base(number))
