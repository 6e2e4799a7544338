"""Products of bytes added to 32-bit integers, one byte after the other.

    total i32 += sum of left byte j * right byte j, for the four bytes of each word

A word holds four neighbouring bytes along k. Exact, so that machines that have an instruction
for it agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.codegen.scalar.instructions import Instructions


class ByteDots:
    """The instructions of a `dot` reduction on any machine."""

    def __init__(self, out: Instructions) -> None:
        self.out = out

    def add(
        self,
        lines: list[str],
        total: str,
        words: Sequence[str],
        signs: Sequence[str],
        lanes: int | None,
        is_small: bool = False,
    ) -> str:
        """The accumulator after the products of two words, lane by lane."""
        for byte in range(4):
            left, right = (
                self._part(lines, w, s, 8, byte, lanes) for w, s in zip(words, signs, strict=True)
            )
            product = self.out.binary(lines, "mul", "i32", lanes, left, right)
            total = self.out.binary(lines, "add", "i32", lanes, total, product)
        return total

    def add_pairs(
        self, lines: list[str], total: str, words: Sequence[str], lanes: int | None
    ) -> str:
        """The accumulator after the products of two words of 16 bits with the bytes of a third."""
        *left, right = words
        for place in range(4):
            number = self._part(lines, left[place // 2], "i", 16, place % 2, lanes)
            byte = self._part(lines, right, "i", 8, place, lanes)
            product = self.out.binary(lines, "mul", "i32", lanes, number, byte)
            total = self.out.binary(lines, "add", "i32", lanes, total, product)
        return total

    def _part(
        self, lines: list[str], word: str, sign: str, bits: int, place: int, lanes: int | None
    ) -> str:
        """One of the numbers of so many bits in a word, in 32 bits."""
        up = self.out.raw("i32", str(32 - bits * (place + 1)), lanes)
        down = self.out.raw("i32", str(32 - bits), lanes)
        high = self.out.binary(lines, "shl", "i32", lanes, word, up)
        return self.out.binary(lines, "ashr" if sign == "i" else "lshr", "i32", lanes, high, down)
