"""Conversions between dtypes, and between registers and memory.

    (source, to, value as SSA text, lanes) --> instructions, result as SSA text

Every conversion rounds once, to nearest even, also where the machine has no instruction for it.
Floats saturate to integers, NaN gives 0, integers wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, mangle, memory_type, vector_of
from semel.ir.types import BFLOAT16, BOOL, FLOAT32, DType

#: (lines, element type of floats, integer dtype, value, lanes) -> the result, or None: not for
#: so many lanes.
Saturation: TypeAlias = Callable[[list[str], str, DType, str, "int | None"], "str | None"]


class Conversions:
    """Casts, bit patterns, and the forms that elements have in memory.

    `saturate` is for floats to narrow integers, where the machine has instructions that saturate.
    """

    def __init__(
        self,
        out: Instructions,
        *,
        has_f16_casts: bool = True,
        saturate: Saturation | None = None,
    ) -> None:
        self.out, self.has_f16_casts, self.saturate = out, has_f16_casts, saturate

    def round_half(self, lines: list[str], dtype: DType, value: str, lanes: int | None) -> str:
        """Round a float32 register to float16 or bfloat16 precision; others pass."""
        if not dtype.is_half:
            return value
        if dtype == BFLOAT16:
            bits = self._bfloat_bits(lines, value, lanes)
            return self.out.convert(lines, "bitcast", "i32", "float", lanes, bits)
        return self._widened(lines, self._narrowed(lines, value, lanes), lanes)

    def _widened(self, lines: list[str], value: str, lanes: int | None) -> str:
        """float16 as float32, which is exact."""
        if self.has_f16_casts:
            return self.out.convert(lines, "fpext", "half", "float", lanes, value)
        op, word = self._on_words(lines, lanes)
        short = self.out.convert(lines, "bitcast", "half", "i16", lanes, value)
        bits = self.out.convert(lines, "zext", "i16", "i32", lanes, short)
        size = op("and", bits, word(0x7FFF))
        moved = self.out.convert(lines, "bitcast", "i32", "float", lanes, op("shl", size, word(13)))
        # The exponent is off by 112, whether the number is normal or not; inf and NaN are apart.
        near = self.out.binary(
            lines, "fmul", "float", lanes, moved, self.out.constant(FLOAT32, 2.0**112, lanes)
        )
        usual = self.out.convert(lines, "bitcast", "float", "i32", lanes, near)
        special = op("or", usual, word(0x7F800000))
        is_special = self.out.compare(lines, "uge", "i32", lanes, size, word(0x7C00))
        found = self.out.select(lines, "i32", lanes, is_special, special, usual)
        sign = op("shl", op("and", bits, word(0x8000)), word(16))
        return self.out.convert(lines, "bitcast", "i32", "float", lanes, op("or", found, sign))

    def _narrowed(self, lines: list[str], value: str, lanes: int | None) -> str:
        """float32 to float16, to nearest even; NaN stays a quiet NaN."""
        if self.has_f16_casts:
            return self.out.convert(lines, "fptrunc", "float", "half", lanes, value)
        op, word = self._on_words(lines, lanes)
        bits = self.out.convert(lines, "bitcast", "float", "i32", lanes, value)
        size = op("and", bits, word(0x7FFFFFFF))
        odd = op("and", op("lshr", size, word(13)), word(1))
        normal = op("lshr", op("add", op("add", size, odd), word(0xFFF - 0x38000000)), word(13))
        # Beside 0.5 the last bit of a float32 is that of the smallest float16: adding rounds.
        half = self.out.constant(FLOAT32, 0.5, lanes)
        positive = self.out.convert(lines, "bitcast", "i32", "float", lanes, size)
        beside = self.out.binary(lines, "fadd", "float", lanes, positive, half)
        small = self.out.convert(lines, "bitcast", "float", "i32", lanes, beside)
        small = op("sub", small, word(0x3F000000))
        is_small = self.out.compare(lines, "ult", "i32", lanes, size, word(0x38800000))
        found = self.out.select(lines, "i32", lanes, is_small, small, normal)
        is_large = self.out.compare(lines, "uge", "i32", lanes, size, word(0x47800000))
        found = self.out.select(lines, "i32", lanes, is_large, word(0x7C00), found)
        payload = op("and", op("lshr", size, word(13)), word(0x3FF))
        is_nan = self.out.compare(lines, "ugt", "i32", lanes, size, word(0x7F800000))
        quiet = op("or", payload, word(0x7E00))
        found = self.out.select(lines, "i32", lanes, is_nan, quiet, found)
        sign = op("and", op("lshr", bits, word(16)), word(0x8000))
        short = self.out.convert(lines, "trunc", "i32", "i16", lanes, op("or", found, sign))
        return self.out.convert(lines, "bitcast", "i16", "half", lanes, short)

    def _on_words(
        self, lines: list[str], lanes: int | None
    ) -> tuple[Callable[[str, str, str], str], Callable[[int], str]]:
        """Instructions on 32-bit words, and constants for them."""
        return (
            lambda word, a, b: self.out.binary(lines, word, "i32", lanes, a, b),
            lambda number: self.out.raw("i32", str(number), lanes),
        )

    def _bfloat_bits(self, lines: list[str], value: str, lanes: int | None) -> str:
        """The float32 bits rounded to nearest even at bit 16; NaN stays a quiet NaN."""

        def word(text: str) -> str:
            return self.out.raw("i32", text, lanes)

        bits = self.out.convert(lines, "bitcast", "float", "i32", lanes, value)
        high = self.out.binary(lines, "lshr", "i32", lanes, bits, word("16"))
        odd = self.out.binary(lines, "and", "i32", lanes, high, word("1"))
        bias = self.out.binary(lines, "add", "i32", lanes, odd, word("32767"))
        rounded = self.out.binary(lines, "add", "i32", lanes, bits, bias)
        kept = self.out.binary(lines, "and", "i32", lanes, rounded, word("-65536"))
        is_nan = self.out.compare(lines, "uno", "float", lanes, value, value)
        cut = self.out.binary(lines, "and", "i32", lanes, bits, word("-65536"))
        quiet = self.out.binary(lines, "or", "i32", lanes, cut, word(str(0x00400000)))
        return self.out.select(lines, "i32", lanes, is_nan, quiet, kept)

    def _to_odd(self, lines: list[str], value: str, lanes: int | None) -> str:
        """float64 to float32 rounded to odd, so that a second rounding is exact."""
        near = self.out.convert(lines, "fptrunc", "double", "float", lanes, value)
        back = self.out.convert(lines, "fpext", "float", "double", lanes, near)
        bits = self.out.convert(lines, "bitcast", "float", "i32", lanes, near)
        inexact = self.out.compare(lines, "one", "double", lanes, back, value)
        low = self.out.binary(lines, "and", "i32", lanes, bits, self.out.raw("i32", "1", lanes))
        even = self.out.compare(lines, "eq", "i32", lanes, low, self.out.raw("i32", "0", lanes))
        size_back = self.out.intrinsic(lines, "fabs", "double", lanes, back)
        size = self.out.intrinsic(lines, "fabs", "double", lanes, value)
        beyond = self.out.compare(lines, "ogt", "double", lanes, size_back, size)
        step = self.out.select(
            lines,
            "i32",
            lanes,
            beyond,
            self.out.raw("i32", "-1", lanes),
            self.out.raw("i32", "1", lanes),
        )
        moved = self.out.binary(lines, "add", "i32", lanes, bits, step)
        change = self.out.binary(lines, "and", "i1", lanes, inexact, even)
        picked = self.out.select(lines, "i32", lanes, change, moved, bits)
        return self.out.convert(lines, "bitcast", "i32", "float", lanes, picked)

    def cast(
        self, lines: list[str], source: DType, to: DType, value: str, lanes: int | None
    ) -> str:
        """Numeric conversion: floats saturate to integers, NaN gives 0, integers wrap."""
        a, b = element_type(source), element_type(to)
        if to == BOOL:
            if source == BOOL:
                return value
            zero = self.out.raw(a, "0.0" if source.is_float else "0", lanes)
            return self.out.compare(
                lines, "une" if source.is_float else "ne", a, lanes, value, zero
            )
        if source == BOOL:
            word = "uitofp" if to.is_float else "zext"
            return self.out.convert(lines, word, "i1", b, lanes, value)
        if source.is_float and to.is_float:
            return self._float_to_float(lines, source, to, value, lanes)
        if source.is_float and to.bits <= 16 and a != "half":
            return self._saturated(lines, a, to, value, lanes)
        if source.is_float:
            sign = "si" if to.kind == "i" else "ui"
            name = f"llvm.fpto{sign}.sat.{mangle(b, lanes)}.{mangle(a, lanes)}"
            return self.out.call(lines, vector_of(b, lanes), name, (vector_of(a, lanes), value))
        if to.is_float:
            word = "sitofp" if source.kind == "i" else "uitofp"
            if to.is_half and source.bits > 16:
                # Through float64 (exact to 53 bits), so that only one rounding is felt.
                wide = self.out.convert(lines, word, a, "double", lanes, value)
                value = self._to_odd(lines, wide, lanes)
            else:
                value = self.out.convert(lines, word, a, b, lanes, value)
            return self.round_half(lines, to, value, lanes)
        if to.bits == source.bits:
            return value
        if to.bits < source.bits:
            return self.out.convert(lines, "trunc", a, b, lanes, value)
        return self.out.convert(lines, "sext" if source.kind == "i" else "zext", a, b, lanes, value)

    def _saturated(
        self, lines: list[str], source: str, to: DType, value: str, lanes: int | None
    ) -> str:
        """A narrow integer by way of 32 bits: LLVM's own saturation takes vectors apart.

        Of a comparison with NaN the other operand is taken: the lower bound, if that is 0.
        """
        quick = self.saturate(lines, source, to, value, lanes) if self.saturate else None
        if quick is not None:
            return quick
        low = -(1 << to.bits - 1) if to.kind == "i" else 0
        high = low + (1 << to.bits) - 1
        if low:
            zero = self.out.raw(source, "0.0", lanes)
            ordered = self.out.compare(lines, "ord", source, lanes, value, value)
            value = self.out.select(lines, source, lanes, ordered, value, zero)
        # -0.0, for of a choice between a number and 0.0 LLVM makes a mask, and no maximum.
        for word, bound in (("ogt", f"{low or '-0'}.0"), ("olt", f"{high}.0")):
            limit = self.out.raw(source, bound, lanes)
            inside = self.out.compare(lines, word, source, lanes, value, limit)
            value = self.out.select(lines, source, lanes, inside, value, limit)
        wide = self.out.convert(lines, "fptosi", source, "i32", lanes, value)
        return self.out.convert(lines, "trunc", "i32", element_type(to), lanes, wide)

    def _float_to_float(
        self, lines: list[str], source: DType, to: DType, value: str, lanes: int | None
    ) -> str:
        if to.bits == 64:
            if source.bits == 64:
                return value
            return self.out.convert(lines, "fpext", "float", "double", lanes, value)
        if source.bits == 64:
            if to.is_half:
                value = self._to_odd(lines, value, lanes)
            else:
                return self.out.convert(lines, "fptrunc", "double", "float", lanes, value)
        return self.round_half(lines, to, value, lanes)

    def bitcast(
        self, lines: list[str], source: DType, to: DType, value: str, lanes: int | None
    ) -> str:
        """Reinterpret the bits, by way of the memory form for half types."""
        stored = self.to_memory(lines, source, value, lanes)
        a, b = memory_type(source), memory_type(to)
        if a != b:
            stored = self.out.convert(lines, "bitcast", a, b, lanes, stored)
        return self.from_memory(lines, to, stored, lanes)

    # ------------------------------------------------------------ memory forms

    def from_memory(self, lines: list[str], dtype: DType, value: str, lanes: int | None) -> str:
        """Register form of a loaded element."""
        if dtype == BOOL:
            return self.out.compare(lines, "ne", "i8", lanes, value, self.out.raw("i8", "0", lanes))
        if dtype == BFLOAT16:
            wide = self.out.convert(lines, "zext", "i16", "i32", lanes, value)
            moved = self.out.binary(
                lines, "shl", "i32", lanes, wide, self.out.raw("i32", "16", lanes)
            )
            return self.out.convert(lines, "bitcast", "i32", "float", lanes, moved)
        if dtype.is_half:
            return self._widened(lines, value, lanes)
        return value

    def to_memory(self, lines: list[str], dtype: DType, value: str, lanes: int | None) -> str:
        """Memory form of a register."""
        if dtype == BOOL:
            return self.out.convert(lines, "zext", "i1", "i8", lanes, value)
        if dtype == BFLOAT16:
            bits = self.out.convert(lines, "bitcast", "float", "i32", lanes, value)
            high = self.out.binary(
                lines, "lshr", "i32", lanes, bits, self.out.raw("i32", "16", lanes)
            )
            return self.out.convert(lines, "trunc", "i32", "i16", lanes, high)
        if dtype.is_half:
            return self._narrowed(lines, value, lanes)
        return value
