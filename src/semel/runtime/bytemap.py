"""What is known of which bytes of one storage: disjoint pieces, sorted, cut as needed.

ByteMap(Piece).cut(start, end)  -->  the pieces that cover exactly [start, end)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar


class Piece(Protocol):
    """Bytes [start, end), and whatever is known of them."""

    start: int
    end: int

    def split(self, at: int) -> Self:
        """Cut at `at`: this piece keeps the left part, and the right one knows the same."""


P = TypeVar("P", bound=Piece)


class ByteMap(Generic[P]):
    """Pieces of one storage; `make(start, end)` is one of which nothing is known."""

    __slots__ = ("_make", "_starts", "pieces")

    def __init__(self, make: Callable[[int, int], P]) -> None:
        self._make = make
        self._starts: list[int] = []
        self.pieces: list[P] = []

    def cut(self, start: int, end: int) -> list[P]:
        """Pieces that cover exactly [start, end), made as needed."""
        pieces = self.pieces
        i = bisect_right(self._starts, start) - 1
        if i >= 0 and start < pieces[i].end:
            if pieces[i].start < start:
                self._insert(i + 1, pieces[i].split(start))
                i += 1
        else:
            i += 1
        first = i
        while start < end:
            if i == len(pieces) or pieces[i].start >= end:
                self._insert(i, self._make(start, end))
            elif pieces[i].start > start:
                self._insert(i, self._make(start, pieces[i].start))
            elif pieces[i].end > end:
                self._insert(i + 1, pieces[i].split(end))
            start = pieces[i].end
            i += 1
        return pieces[first:i]

    def keep(self, is_wanted: Callable[[P], bool]) -> bool:
        """Forget all other pieces; whether there were any."""
        before = len(self.pieces)
        self.pieces = [piece for piece in self.pieces if is_wanted(piece)]
        self._starts = [piece.start for piece in self.pieces]
        return len(self.pieces) < before

    def _insert(self, index: int, piece: P) -> None:
        self._starts.insert(index, piece.start)
        self.pieces.insert(index, piece)
