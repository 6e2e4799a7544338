"""Products of bytes added to 32-bit integers, by what the target has for it.

    total i32 += sum of left byte j * right byte j, for the four bytes of each word

A word holds four neighbouring bytes along k. One instruction does it all where there is one
(`vpdpbusd`, `usdot`, `sdot`). x86 without it multiplies 16-bit halves (`pmaddwd`), which cannot
overflow, unlike the product of bytes (`pmaddubsw`): that is for small ones. A left operand that
was widened to 16 bits beforehand (`add_pairs`) leaves only the right one to be taken apart, once
for all rows. Anything else, and code without lanes, takes the word apart (`ByteDots`). All are
exact, so that they agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.codegen.scalar.byte_dots import ByteDots
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import vector_of
from semel.ir.target import Target

_PMADDWD = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
_PMADDUBSW = {16: "avx512.pmaddubs.w.512", 8: "avx2.pmadd.ub.sw"}
#: Lanes of the narrowest registers.
_LEAST = 4
#: The left and the right bytes that an instruction takes: u(nsigned) or i (signed).
_SIGNS = {"vpdpbusd": "ui", "usdot": "ui", "sdot": "ii"}


class CpuDots:
    """The instructions of a `dot` reduction; `plain` is for what the machine has none for.

    x86 has them for registers of every width: lanes that fill no wide one take narrower ones.
    """

    def __init__(
        self, out: Instructions, plain: ByteDots, target: Target, width: int | None = None
    ) -> None:
        self.out = out
        self.name, self.width = target.byte_dot, width or target.vector_bits // 32
        is_least = self.width <= _LEAST or target.arch != "x86_64"
        self.plain: ByteDots | CpuDots = (
            plain if is_least else CpuDots(out, plain, target, self.width // 2)
        )

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
        rule = self._rule(signs, is_small)
        if rule is None or lanes is None or lanes % self.width:
            return self.plain.add(lines, total, words, signs, lanes, is_small)
        pieces: list[str] = []
        for start in range(0, lanes, self.width):
            parts = [
                self.out.part(lines, "i32", text, lanes, start, self.width)
                for text in (total, *words)
            ]
            pieces.append(rule(lines, parts, signs))
        return self.out.join(lines, "i32", pieces, self.width)

    def add_pairs(
        self, lines: list[str], total: str, words: Sequence[str], lanes: int | None
    ) -> str:
        """The accumulator after the products of two words of 16 bits with the bytes of a third."""
        if self.name != "pairs" or lanes is None or lanes % self.width:
            return self.plain.add_pairs(lines, total, words, lanes)
        pieces: list[str] = []
        for start in range(0, lanes, self.width):
            sums, *left, right = (
                self.out.part(lines, "i32", text, lanes, start, self.width)
                for text in (total, *words)
            )
            for half, word in enumerate(left):
                sums = self._add_products(lines, sums, word, self._wide(lines, right, half))
            pieces.append(sums)
        return self.out.join(lines, "i32", pieces, self.width)

    def _wide(self, lines: list[str], word: str, half: int) -> str:
        """The first or the last two bytes of each word, widened to 16 bits."""
        lanes = 4 * self.width
        raw = vector_of("i8", lanes)
        source = self.out.emit(lines, f"bitcast {vector_of('i32', self.width)} {word} to {raw}")
        picks = ", ".join(
            f"i32 {lanes}, i32 {4 * lane + 2 * half + byte}"
            for lane in range(self.width)
            for byte in range(2)
        )
        high = self.out.emit(
            lines,
            f"shufflevector {raw} {source}, {raw} zeroinitializer, <{lanes} x i32> <{picks}>",
        )
        short = vector_of("i16", 2 * self.width)
        numbers = self.out.emit(lines, f"bitcast {raw} {high} to {short}")
        eight = self.out.raw("i16", "8", 2 * self.width)
        wide = self.out.binary(lines, "ashr", "i16", 2 * self.width, numbers, eight)
        return self.out.emit(lines, f"bitcast {short} {wide} to {vector_of('i32', self.width)}")

    def _add_products(self, lines: list[str], total: str, left: str, right: str) -> str:
        """Two products of 16-bit numbers a lane, added to it."""
        kind, short = vector_of("i32", self.width), vector_of("i16", 2 * self.width)
        numbers = [self.out.emit(lines, f"bitcast {kind} {w} to {short}") for w in (left, right)]
        name = f"llvm.x86.{_PMADDWD[self.width]}"
        products = self.out.call(lines, kind, name, *((short, n) for n in numbers))
        return self.out.binary(lines, "add", "i32", self.width, total, products)

    def _rule(
        self, signs: Sequence[str], is_small: bool
    ) -> Callable[[list[str], list[str], Sequence[str]], str] | None:
        if is_small and self.name == "pairs" and self.width in _PMADDUBSW:
            return self._small
        if self.name == "pairs":
            return self._pairs
        if _SIGNS.get(self.name) != "".join(signs):
            return None
        return self._x86 if self.name == "vpdpbusd" else self._arm

    def _x86(self, lines: list[str], parts: list[str], signs: Sequence[str]) -> str:
        kind = vector_of("i32", self.width)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.width}"
        return self.out.call(lines, kind, name, *((kind, p) for p in parts))

    def _arm(self, lines: list[str], parts: list[str], signs: Sequence[str]) -> str:
        kind, raw = vector_of("i32", self.width), vector_of("i8", 4 * self.width)
        total, *words = parts
        bytes_ = [self.out.emit(lines, f"bitcast {kind} {w} to {raw}") for w in words]
        name = f"llvm.aarch64.neon.{self.name}.v{self.width}i32.v{4 * self.width}i8"
        return self.out.call(lines, kind, name, (kind, total), *((raw, b) for b in bytes_))

    def _small(self, lines: list[str], parts: list[str], signs: Sequence[str]) -> str:
        """Products of bytes added by twos in 16 bits, which small ones cannot leave, then in 32."""
        total, *words = parts
        kind, raw = vector_of("i32", self.width), vector_of("i8", 4 * self.width)
        bytes_ = [self.out.emit(lines, f"bitcast {kind} {w} to {raw}") for w in words]
        half = vector_of("i16", 2 * self.width)
        name = f"llvm.x86.{_PMADDUBSW[self.width]}"
        pairs = self.out.call(lines, half, name, *((raw, b) for b in bytes_))
        ones = self.out.raw("i16", "1", 2 * self.width)
        name = f"llvm.x86.{_PMADDWD[self.width]}"
        sums = self.out.call(lines, kind, name, (half, pairs), (half, ones))
        return self.out.binary(lines, "add", "i32", self.width, total, sums)

    def _pairs(self, lines: list[str], parts: list[str], signs: Sequence[str]) -> str:
        """Even and odd bytes, widened to 16 bits, two products a lane each."""
        total, *words = parts
        kind, half = vector_of("i32", self.width), vector_of("i16", 2 * self.width)
        name = f"llvm.x86.{_PMADDWD[self.width]}"
        halves = [self._halves(lines, w, s) for w, s in zip(words, signs, strict=True)]
        for left, right in zip(*halves, strict=True):
            products = self.out.call(lines, kind, name, (half, left), (half, right))
            total = self.out.binary(lines, "add", "i32", self.width, total, products)
        return total

    def _halves(self, lines: list[str], word: str, sign: str) -> tuple[str, str]:
        lanes = 2 * self.width
        kind, half = vector_of("i32", self.width), vector_of("i16", lanes)
        raw = self.out.emit(lines, f"bitcast {kind} {word} to {half}")
        eight, shift = self.out.raw("i16", "8", lanes), "ashr" if sign == "i" else "lshr"
        high = self.out.binary(lines, "shl", "i16", lanes, raw, eight)
        even = self.out.binary(lines, shift, "i16", lanes, high, eight)
        return even, self.out.binary(lines, shift, "i16", lanes, raw, eight)
