"""Float arithmetic. No fast-math flags anywhere: what lowering wrote is what runs.

    (op, dtype, operands as SSA text, lanes) --> instructions, result as SSA text

Results of narrow types are not rounded here: `Scalars` does that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from semel.codegen.scalar.fma import ExactFma
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, vector_of
from semel.ir.types import FLOAT32, FLOAT64, DType

_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_UNARY = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "rint": "roundeven",
}  # fmt: skip

#: (lines, element type, operands, lanes) -> the result, or None: not for so many lanes.
Shortcut: TypeAlias = Callable[[list[str], str, list[str], "int | None"], "str | None"]


class Floats:
    """`scale` is an instruction for p * 2**n, where the machine has one."""

    def __init__(
        self, out: Instructions, *, has_fma: bool = True, scale: Shortcut | None = None
    ) -> None:
        self.out, self.has_fma, self.scale = out, has_fma, scale
        self.exact = ExactFma(out)

    def apply(
        self,
        lines: list[str],
        op: str,
        dtype: DType,
        args: list[str],
        lanes: int | None,
        constant: tuple[bool, ...],
    ) -> str:
        element = element_type(dtype)
        if op in _BINARY:
            return self.out.binary(lines, _BINARY[op], element, lanes, *args)
        if op in _UNARY:
            return self.out.intrinsic(lines, _UNARY[op], element, lanes, args[0])
        match op:
            case "fma" if self.has_fma:
                return self.out.intrinsic(lines, "fma", element, lanes, *args)
            case "fma":
                exact = self.exact.of_floats if element == "float" else self.exact.of_doubles
                return exact(lines, args, lanes)
            case "ldexp":
                return self._ldexp(lines, dtype, args, lanes)
            case "scale":
                return self._scale(lines, dtype, args, lanes)
            case "neg":
                return self.out.emit(lines, f"fneg {vector_of(element, lanes)} {args[0]}")
            case "min" | "max":
                return self._extreme(lines, op, element, lanes, args, constant)
        raise AssertionError(f"no float rule for {op}")

    def _ldexp(self, lines: list[str], dtype: DType, args: list[str], lanes: int | None) -> str:
        """p * 2**n, n a whole number within twice the exponent range; rounds once."""
        element = element_type(dtype)
        bits = 64 if element == "double" else 32
        quick = self.scale(lines, element, args, lanes) if self.scale else None
        if quick is not None:
            return quick
        # As two factors of half the exponent each, so that neither leaves the range.
        mantissa, bias = (52, 1023) if bits == 64 else (23, 127)
        integer = f"i{bits}"
        magic = 1.5 * 2.0**mantissa + 2 * bias

        def word(text: str) -> str:
            return self.out.raw(integer, text, lanes)

        literal_type = FLOAT64 if bits == 64 else FLOAT32
        shift = self.out.constant(literal_type, magic, lanes)
        moved = self.out.binary(lines, "fadd", element, lanes, args[1], shift)
        biased = self.out.convert(lines, "bitcast", element, integer, lanes, moved)
        low = self.out.binary(lines, "lshr", integer, lanes, biased, word("1"))
        half = self.out.binary(lines, "shl", integer, lanes, low, word(str(mantissa)))
        whole = self.out.binary(lines, "shl", integer, lanes, biased, word(str(mantissa)))
        rest = self.out.binary(lines, "sub", integer, lanes, whole, half)
        first = self.out.convert(lines, "bitcast", integer, element, lanes, rest)
        second = self.out.convert(lines, "bitcast", integer, element, lanes, half)
        scaled = self.out.binary(lines, "fmul", element, lanes, args[0], first)
        return self.out.binary(lines, "fmul", element, lanes, scaled, second)

    def _scale(self, lines: list[str], dtype: DType, args: list[str], lanes: int | None) -> str:
        """p * 2**n, the low bits of s being n + bias: those are the exponent of the factor.

        The instruction for it takes n, and less time for results that are no normal numbers.
        """
        element, literal_type = element_type(dtype), FLOAT64 if dtype == FLOAT64 else FLOAT32
        bits, mantissa, bias = (64, 52, 1023) if dtype == FLOAT64 else (32, 23, 127)
        p, s = args
        if self.scale:
            shift = self.out.constant(literal_type, 1.5 * 2.0**mantissa + bias, lanes)
            power = self.out.binary(lines, "fsub", element, lanes, s, shift)
            quick = self.scale(lines, element, [p, power], lanes)
            if quick is not None:
                return quick
        integer = f"i{bits}"
        low = self.out.convert(lines, "bitcast", element, integer, lanes, s)
        amount = self.out.raw(integer, str(mantissa), lanes)
        high = self.out.binary(lines, "shl", integer, lanes, low, amount)
        factor = self.out.convert(lines, "bitcast", integer, element, lanes, high)
        return self.out.binary(lines, "fmul", element, lanes, p, factor)

    def _extreme(
        self,
        lines: list[str],
        op: str,
        element: str,
        lanes: int | None,
        args: list[str],
        constant: tuple[bool, ...] = (),
    ) -> str:
        """min or max of floats; NaN in either operand gives NaN, as np.maximum.

        Of equal ones (0 and -0 are) it is the first, whether one is a constant or not.
        """
        a, b = args
        # One instruction on x86; the first operand comes back if either is NaN.
        better = self.out.compare(lines, "ogt" if op == "max" else "olt", element, lanes, b, a)
        picked = self.out.select(lines, element, lanes, better, b, a)
        if len(constant) == 2 and constant[1]:
            return picked
        is_nan = self.out.compare(lines, "uno", element, lanes, b, b)
        return self.out.select(lines, element, lanes, is_nan, b, picked)
