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
    ) -> str:
        """The accumulator after the products of two words, lane by lane."""
        for byte in range(4):
            left, right = (
                self._byte(lines, w, s, byte, lanes) for w, s in zip(words, signs, strict=True)
            )
            product = self.out.binary(lines, "mul", "i32", lanes, left, right)
            total = self.out.binary(lines, "add", "i32", lanes, total, product)
        return total

    def _byte(self, lines: list[str], word: str, sign: str, byte: int, lanes: int | None) -> str:
        up = self.out.raw("i32", str(24 - 8 * byte), lanes)
        down = self.out.raw("i32", "24", lanes)
        high = self.out.binary(lines, "shl", "i32", lanes, word, up)
        return self.out.binary(lines, "ashr" if sign == "i" else "lshr", "i32", lanes, high, down)
