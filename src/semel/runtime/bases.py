"""Where the memory of a plan lies: what can move has a base, and rows count from it.

    (base, offset) of each buffer word  --Bases-->  the word, and who writes it when the base moves

A base is memory whose address may change between runs: an input or output that a caller's array
takes the place of, a parameter that is swapped. Moving one is two stores; the runner writes
the words that hold its addresses before the next run, and of no other base. Memory that
never moves has no base: its words are written once.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.errors import InternalError
from semel.ir import abi
from semel.ir.abi import Base
from semel.runtime.words import WordSpace

#: In the place of a base: the offset is an address, which never changes.
FIXED = -1

#: Where a buffer lies: the number of a base, and an offset in bytes.
Place = tuple[int, int]


class Bases:
    """The bases of one table, and for each the words that hold its addresses."""

    def __init__(self, addresses: Sequence[int], space: WordSpace) -> None:
        self._space = space
        self._records, self._address = space.take(len(addresses) * abi.BASE_WORDS)
        self.words = self._records.data
        self.count = len(addresses)
        self._addresses = tuple(addresses)
        self._pairs: list[list[tuple[int, int]]] = [[] for _ in addresses]

    def add(self, place: Place, word: int) -> int:
        """The address of a place; the word at address `word` follows its base."""
        number, offset = place
        if number == FIXED:
            return offset
        if not 0 <= number < self.count:
            raise InternalError("optable", f"base must be in [0, {self.count}), got {number}.")
        self._pairs[number].append((word, offset))
        return self._addresses[number] + offset

    def write(self) -> int:
        """Fill the records, once all words are known; where they lie."""
        for number, pairs in enumerate(self._pairs):
            at, words = number * abi.BASE_WORDS, self.words
            words[at + Base.ADDRESS] = self._addresses[number]
            words[at + Base.WORDS] = self._space.pack(pairs, 2)
            words[at + Base.NUM_WORDS] = len(pairs)
        return self._address
