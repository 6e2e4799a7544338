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
from semel.runtime.words import Words, aligned_words, packed

#: In the place of a base: the offset is an address, which never changes.
FIXED = -1

#: Where a buffer lies: the number of a base, and an offset in bytes.
Place = tuple[int, int]


class Bases:
    """The bases of one table, and for each the words that hold its addresses."""

    def __init__(self, addresses: Sequence[int]) -> None:
        self.records = aligned_words(max(len(addresses), 1) * abi.BASE_WORDS)
        self.words = self.records.data
        self.count = len(addresses)
        self._addresses = tuple(addresses)
        self._pairs: list[list[tuple[int, int]]] = [[] for _ in addresses]
        self._keep: list[Words] = []

    def add(self, place: Place, word: int) -> int:
        """The address of a place; the word at address `word` follows its base."""
        number, offset = place
        if number == FIXED:
            return offset
        if not 0 <= number < self.count:
            raise InternalError("optable", f"base must be in [0, {self.count}), got {number}.")
        self._pairs[number].append((word, offset))
        return self._addresses[number] + offset

    def write(self) -> Words:
        """The records, once all words are known."""
        for number, pairs in enumerate(self._pairs):
            record = self.records[number * abi.BASE_WORDS : (number + 1) * abi.BASE_WORDS]
            array = packed(pairs, 2)
            self._keep.append(array)
            record[Base.ADDRESS] = self._addresses[number]
            record[Base.WORDS], record[Base.NUM_WORDS] = array.ctypes.data, len(pairs)
        return self.records
