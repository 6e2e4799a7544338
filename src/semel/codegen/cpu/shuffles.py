"""Lanes of vectors in another order: what transposes in registers are made of."""

from __future__ import annotations

from semel.codegen.scalar.frame import Frame
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import vector_of


class Shuffles:
    """Shuffles of whole vectors, in the innermost scope."""

    def __init__(self, frame: Frame, out: Instructions) -> None:
        self.frame, self.out = frame, out

    def pick(self, element: str, lanes: int, a: str, b: str, picks: list[int]) -> str:
        """Lanes of two vectors by number, those of the second counted on from the first's.

        A lane that may hold anything is `-1`.
        """
        if a == b and picks == list(range(lanes)):
            return a
        vector = vector_of(element, lanes)
        mask = ", ".join("i32 poison" if p < 0 else f"i32 {p}" for p in picks)
        return self.out.emit(
            self.frame.lines,
            f"shufflevector {vector} {a}, {vector} {b}, <{len(picks)} x i32> <{mask}>",
        )

    def turn(self, element: str, rows: list[str]) -> list[str]:
        """The transpose of a square: blocks off the diagonal change places, size by size."""
        count, step = len(rows), 1
        while step < count:
            low = [c if not c & step else count + c - step for c in range(count)]
            high = [c + step if not c & step else count + c for c in range(count)]
            turned = list(rows)
            for i in range(count):
                if i & step:
                    continue
                pair = rows[i], rows[i + step]
                turned[i] = self.pick(element, count, *pair, low)
                turned[i + step] = self.pick(element, count, *pair, high)
            rows, step = turned, step * 2
        return rows
