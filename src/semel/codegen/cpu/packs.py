"""Floats to integers of 8 and 16 bits by instructions that saturate: AVX2 and AVX-512 have them.

    float32 x 32 --min--> --cvttps2dq--> int32 x 32 --packssdw, packuswb--> uint8 x 32

What is no int32, and NaN, is converted to the least one, which saturates to the lower bound: only
what is too large is bounded before. Packing works within 128 bits, so the words of the result come
in the order of those and are put right by one shuffle.
"""

from __future__ import annotations

from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import vector_of
from semel.ir.types import DType

_PREFIX = {256: "llvm.x86.avx2", 512: "llvm.x86.avx512"}


class Packs:
    """`Saturation` of whole registers of results."""

    def __init__(self, out: Instructions, bits: int) -> None:
        self.out, self.bits = out, bits

    def saturate(
        self, lines: list[str], source: str, to: DType, value: str, lanes: int | None
    ) -> str | None:
        if source != "float" or lanes is None or lanes * to.bits % self.bits:
            return None
        high = (1 << to.bits - (to.kind == "i")) - 1
        if to.kind == "i":  # whose lower bound is not what NaN gives
            zero = self.out.raw(source, "0.0", lanes)
            ordered = self.out.compare(lines, "ord", source, lanes, value, value)
            value = self.out.select(lines, source, lanes, ordered, value, zero)
        limit = self.out.raw(source, f"{high}.0", lanes)
        beyond = self.out.compare(lines, "olt", source, lanes, limit, value)
        value = self.out.select(lines, source, lanes, beyond, limit, value)
        width = self.bits // 32
        words = [
            self._converted(lines, self.out.part(lines, source, value, lanes, start, width))
            for start in range(0, lanes, width)
        ]
        count = self.bits // to.bits
        pieces = [
            self._packed(lines, to, words[at : at + 32 // to.bits])
            for at in range(0, len(words), 32 // to.bits)
        ]
        return self.out.join(lines, f"i{to.bits}", pieces, count)

    def _converted(self, lines: list[str], value: str) -> str:
        """int32 of float32, truncated."""
        floats, words = vector_of("float", self.bits // 32), vector_of("i32", self.bits // 32)
        if self.bits == 256:
            return self.out.call(lines, words, "llvm.x86.avx.cvtt.ps2dq.256", (floats, value))
        name = "llvm.x86.avx512.mask.cvttps2dq.512"
        unused = ((words, "zeroinitializer"), ("i16", "-1"), ("i32", "4"))
        return self.out.call(lines, words, name, (floats, value), *unused)

    def _packed(self, lines: list[str], to: DType, words: list[str]) -> str:
        """Registers of int32 as one of bytes, or of 16 bits."""
        sign, element = ("s" if to.kind == "i" else "u"), f"i{to.bits}"
        if to.bits == 16:
            result = self._pack(lines, f"pack{sign}sdw", 32, words[0], words[1])
        else:
            pairs = [
                self._pack(lines, "packssdw", 32, a, b)
                for a, b in zip(words[::2], words[1::2], strict=True)
            ]
            result = self._pack(lines, f"pack{sign}swb", 16, *pairs)
        blocks, kind = self.bits // 128, vector_of(element, self.bits // to.bits)
        count, run = len(words), 128 // to.bits // len(words)
        picks = ", ".join(
            f"i32 {(block * count + word) * run + place}"
            for word in range(count)
            for block in range(blocks)
            for place in range(run)
        )
        mask = f"<{self.bits // to.bits} x i32> <{picks}>"
        return self.out.emit(lines, f"shufflevector {kind} {result}, {kind} poison, {mask}")

    def _pack(self, lines: list[str], name: str, bits: int, a: str, b: str) -> str:
        """Two registers of so many bits an element as one of half as many."""
        whole = vector_of(f"i{bits}", self.bits // bits)
        half = vector_of(f"i{bits // 2}", 2 * self.bits // bits)
        suffix = ".512" if self.bits == 512 else ""
        return self.out.call(
            lines, half, f"{_PREFIX[self.bits]}.{name}{suffix}", (whole, a), (whole, b)
        )
