"""Integer and bool arithmetic, with the corner cases that `ops.elementwise` defines.

(op, dtype, operands as SSA text, lanes) --> instructions, result as SSA text
"""

from __future__ import annotations

from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type
from semel.ir.types import DType

_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_OF_BOOLS = {
    "add": "or", "or": "or", "max": "or", "mul": "and", "and": "and", "min": "and",
    "xor": "xor", "sub": "xor",
}  # fmt: skip


class Integers:
    """Division by zero gives 0, shifts past the width have a result, INT_MIN by -1 wraps."""

    def __init__(self, out: Instructions) -> None:
        self.out = out

    def apply_bool(self, lines: list[str], op: str, args: list[str], lanes: int | None) -> str:
        if op in ("not", "neg"):
            return self.out.binary(
                lines, "xor", "i1", lanes, args[0], self.out.raw("i1", "true", lanes)
            )
        if op == "abs":
            return args[0]
        return self.out.binary(lines, _OF_BOOLS[op], "i1", lanes, *args)

    def apply(
        self, lines: list[str], op: str, dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        element = element_type(dtype)
        if op in _BINARY:
            return self.out.binary(lines, _BINARY[op], element, lanes, *args)
        zero = self.out.raw(element, "0", lanes)
        match op:
            case "neg":
                return self.out.binary(lines, "sub", element, lanes, zero, args[0])
            case "not":
                ones = self.out.raw(element, "-1", lanes)
                return self.out.binary(lines, "xor", element, lanes, args[0], ones)
            case "abs":
                if dtype.kind == "u":
                    return args[0]
                below = self.out.compare(lines, "slt", element, lanes, args[0], zero)
                negated = self.out.binary(lines, "sub", element, lanes, zero, args[0])
                return self.out.select(lines, element, lanes, below, negated, args[0])
            case "min" | "max":
                sign = "s" if dtype.kind == "i" else "u"
                code = sign + ("lt" if op == "min" else "gt")
                better = self.out.compare(lines, code, element, lanes, *args)
                return self.out.select(lines, element, lanes, better, *args)
            case "floor" | "ceil" | "trunc" | "rint":
                return args[0]
            case "fma":
                scaled = self.out.binary(lines, "mul", element, lanes, args[0], args[1])
                return self.out.binary(lines, "add", element, lanes, scaled, args[2])
            case "idiv" | "imod":
                return self._divide(lines, op, dtype, args, lanes)
            case "shl" | "shr":
                return self._shift(lines, op, dtype, args, lanes)
        raise AssertionError(f"no integer rule for {op}")

    def _divide(
        self, lines: list[str], op: str, dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        """Floor division and remainder: by zero gives 0, INT_MIN by -1 wraps."""
        element = element_type(dtype)
        n, d = args
        zero, one = self.out.raw(element, "0", lanes), self.out.raw(element, "1", lanes)
        by_zero = self.out.compare(lines, "eq", element, lanes, d, zero)
        if dtype.kind == "u":
            safe = self.out.select(lines, element, lanes, by_zero, one, d)
            word = "udiv" if op == "idiv" else "urem"
            result = self.out.binary(lines, word, element, lanes, n, safe)
            return self.out.select(lines, element, lanes, by_zero, zero, result)
        minus_one = self.out.raw(element, "-1", lanes)
        by_minus = self.out.compare(lines, "eq", element, lanes, d, minus_one)
        unsafe = self.out.binary(lines, "or", "i1", lanes, by_zero, by_minus)
        safe = self.out.select(lines, element, lanes, unsafe, one, d)
        remainder = self.out.binary(lines, "srem", element, lanes, n, safe)
        mixed = self.out.binary(lines, "xor", element, lanes, remainder, safe)
        negative = self.out.compare(lines, "slt", element, lanes, mixed, zero)
        inexact = self.out.compare(lines, "ne", element, lanes, remainder, zero)
        adjust = self.out.binary(lines, "and", "i1", lanes, negative, inexact)
        if op == "imod":
            moved = self.out.binary(lines, "add", element, lanes, remainder, safe)
            result = self.out.select(lines, element, lanes, adjust, moved, remainder)
            return self.out.select(lines, element, lanes, unsafe, zero, result)
        quotient = self.out.binary(lines, "sdiv", element, lanes, n, safe)
        lowered = self.out.binary(lines, "add", element, lanes, quotient, minus_one)
        result = self.out.select(lines, element, lanes, adjust, lowered, quotient)
        negated = self.out.binary(lines, "sub", element, lanes, zero, n)
        result = self.out.select(lines, element, lanes, by_minus, negated, result)
        return self.out.select(lines, element, lanes, by_zero, zero, result)

    def _shift(
        self, lines: list[str], op: str, dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        element = element_type(dtype)
        if any(args[1] == self.out.raw(element, str(n), lanes) for n in range(dtype.bits)):
            word = "shl" if op == "shl" else "ashr" if dtype.kind == "i" else "lshr"
            return self.out.binary(lines, word, element, lanes, args[0], args[1])
        width, zero = (self.out.raw(element, str(x), lanes) for x in (dtype.bits, 0))
        legal = self.out.compare(lines, "ult", element, lanes, args[1], width)
        if op == "shr" and dtype.kind == "i":
            last = self.out.raw(element, str(dtype.bits - 1), lanes)
            amount = self.out.select(lines, element, lanes, legal, args[1], last)
            return self.out.binary(lines, "ashr", element, lanes, args[0], amount)
        amount = self.out.select(lines, element, lanes, legal, args[1], zero)
        word = "shl" if op == "shl" else "lshr"
        shifted = self.out.binary(lines, word, element, lanes, args[0], amount)
        return self.out.select(lines, element, lanes, legal, shifted, zero)
