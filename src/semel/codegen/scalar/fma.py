"""Fused multiply-add where the machine has none: the same bits, in many more instructions.

a * b + c, rounded once, in float64 arithmetic that rounds every step
"""

from __future__ import annotations

from semel.codegen.scalar.instructions import Instructions
from semel.ir.types import FLOAT64

#: Factors and products above it are made smaller by the scale: splitting them would overflow.
_LARGE, _SCALE = 2.0**900, 2.0**64


class ExactFma:
    """One rounding, made of exact sums and products."""

    def __init__(self, out: Instructions) -> None:
        self.out = out

    def of_floats(self, lines: list[str], args: list[str], lanes: int | None) -> str:
        """In float64, where the product is exact; the sum is rounded to odd, then once more."""
        a, b, c = (self.out.convert(lines, "fpext", "float", "double", lanes, x) for x in args)
        product = self.out.binary(lines, "fmul", "double", lanes, a, b)
        total = self._odd_sum(lines, product, c, lanes)
        return self.out.convert(lines, "fptrunc", "double", "float", lanes, total)

    def of_doubles(self, lines: list[str], args: list[str], lanes: int | None) -> str:
        """The product with its error (Dekker), added to c in three exact sums (Boldo, Melquiond).

        What is large is made smaller for it; zeros, and what is not finite, are product plus c.
        Where the error of a product is subnormal (below 2**-960) it is rounded itself.
        """

        def op(word: str, x: str, y: str) -> str:
            return self.out.binary(lines, word, "double", lanes, x, y)

        def split(x: str) -> tuple[str, str]:
            wide = op("fmul", x, self.out.constant(FLOAT64, 2.0**27 + 1, lanes))
            high = op("fsub", wide, op("fsub", wide, x))
            return high, op("fsub", x, high)

        a, b, c, up = self._scaled(lines, args, lanes)
        product = op("fmul", a, b)
        (a1, a2), (b1, b2) = split(a), split(b)
        error = op("fsub", op("fmul", a1, b1), product)
        error = op("fadd", error, op("fmul", a1, b2))
        error = op("fadd", error, op("fmul", a2, b1))
        error = op("fadd", error, op("fmul", a2, b2))
        inner, inner_lost = self._exact_sum(lines, c, error, lanes)
        outer, outer_lost = self._exact_sum(lines, product, inner, lanes)
        result = op("fadd", outer, self._odd_sum(lines, inner_lost, outer_lost, lanes))
        result = op("fmul", result, up)
        size = self._size(lines, result, lanes)
        is_finite = self._compare(lines, "olt", size, float("inf"), lanes)
        is_some = self._compare(lines, "ogt", size, 0.0, lanes)
        is_right = self.out.binary(lines, "and", "i1", lanes, is_finite, is_some)
        plain = self._plain_sum(lines, args, lanes)
        return self.out.select(lines, "double", lanes, is_right, result, plain)

    def _scaled(
        self, lines: list[str], args: list[str], lanes: int | None
    ) -> tuple[str, str, str, str]:
        """a, b, c so small that nothing overflows on the way, and what the sum is multiplied by."""
        one = self.out.constant(FLOAT64, 1.0, lanes)

        def choose(condition: str, x: str, y: str) -> str:
            return self.out.select(lines, "double", lanes, condition, x, y)

        def scaled(x: str, by: str) -> str:
            return self.out.binary(lines, "fmul", "double", lanes, x, by)

        a, b, c = args
        sizes = [self._size(lines, x, lanes) for x in (a, b, scaled(a, b))]
        first, *more = [self._compare(lines, "ogt", size, _LARGE, lanes) for size in sizes]
        is_large = first
        for each in more:
            is_large = self.out.binary(lines, "or", "i1", lanes, is_large, each)
        down = choose(is_large, self.out.constant(FLOAT64, 1 / _SCALE, lanes), one)
        up = choose(is_large, self.out.constant(FLOAT64, _SCALE, lanes), one)
        is_a = self.out.compare(lines, "oge", "double", lanes, sizes[0], sizes[1])
        a, b = scaled(a, choose(is_a, down, one)), scaled(b, choose(is_a, one, down))
        return a, b, scaled(c, down), up

    def _plain_sum(self, lines: list[str], args: list[str], lanes: int | None) -> str:
        """a * b + c, rounded twice; what finite factors give is finite, however large."""

        def op(word: str, x: str, y: str) -> str:
            return self.out.binary(lines, word, "double", lanes, x, y)

        a, b, c = args
        nothing = op("fadd", op("fsub", a, a), op("fsub", b, b))  # NaN if a or b is not finite
        is_number = self._compare(lines, "oeq", nothing, 0.0, lanes)
        is_infinite = self._compare(lines, "oeq", self._size(lines, c, lanes), float("inf"), lanes)
        is_c = self.out.binary(lines, "and", "i1", lanes, is_number, is_infinite)
        plain = op("fadd", op("fmul", a, b), c)
        return self.out.select(lines, "double", lanes, is_c, c, plain)

    def _size(self, lines: list[str], x: str, lanes: int | None) -> str:
        return self.out.intrinsic(lines, "fabs", "double", lanes, x)

    def _compare(self, lines: list[str], word: str, x: str, bound: float, lanes: int | None) -> str:
        limit = self.out.constant(FLOAT64, bound, lanes)
        return self.out.compare(lines, word, "double", lanes, x, limit)

    def _exact_sum(self, lines: list[str], a: str, b: str, lanes: int | None) -> tuple[str, str]:
        """The sum of two float64 and what rounding it lost (Knuth)."""

        def op(word: str, x: str, y: str) -> str:
            return self.out.binary(lines, word, "double", lanes, x, y)

        total = op("fadd", a, b)
        part = op("fsub", total, a)
        return total, op("fadd", op("fsub", a, op("fsub", total, part)), op("fsub", b, part))

    def _odd_sum(self, lines: list[str], a: str, b: str, lanes: int | None) -> str:
        """The sum of two float64 rounded to odd, so that a second rounding is exact."""
        total, lost = self._exact_sum(lines, a, b, lanes)
        zero, one = self.out.constant(FLOAT64, 0.0, lanes), self.out.raw("i64", "1", lanes)
        bits = self.out.convert(lines, "bitcast", "double", "i64", lanes, total)
        inexact = self.out.compare(lines, "one", "double", lanes, lost, zero)
        low = self.out.binary(lines, "and", "i64", lanes, bits, one)
        even = self.out.compare(lines, "eq", "i64", lanes, low, self.out.raw("i64", "0", lanes))
        move = self.out.binary(lines, "and", "i1", lanes, inexact, even)
        # Away from zero if what was lost has the sign of the sum: towards the exact value.
        lost_sign = self.out.compare(lines, "olt", "double", lanes, lost, zero)
        sign = self.out.compare(lines, "olt", "double", lanes, total, zero)
        differs = self.out.binary(lines, "xor", "i1", lanes, lost_sign, sign)
        step = self.out.select(lines, "i64", lanes, differs, self.out.raw("i64", "-1", lanes), one)
        moved = self.out.binary(lines, "add", "i64", lanes, bits, step)
        found = self.out.select(lines, "i64", lanes, move, moved, bits)
        return self.out.convert(lines, "bitcast", "i64", "double", lanes, found)
