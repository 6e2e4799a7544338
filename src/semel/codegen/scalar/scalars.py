"""LLVM instructions for the kernel IR's scalar ops, for any number of lanes.

    (op, dtype, operands as SSA text, lanes) --> instructions, result as SSA text

float16 and bfloat16 live in registers as float32; every op on them rounds once.
"""

from __future__ import annotations

from semel.codegen.scalar.conversions import Conversions
from semel.codegen.scalar.floats import Floats
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.integers import Integers
from semel.codegen.scalar.llvm_types import element_type
from semel.ir.types import BOOL, DType

_FCMP = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
#: Results of these are exact in a narrow type already.
_EXACT = frozenset(("neg", "abs", "min", "max", "floor", "ceil", "trunc", "rint"))


class Scalars:
    """The rules of all ops, by the kind of their operands."""

    def __init__(
        self, out: Instructions, floats: Floats, integers: Integers, conversions: Conversions
    ) -> None:
        self.out, self.floats, self.integers = out, floats, integers
        self.conversions = conversions

    def apply(
        self,
        lines: list[str],
        op: str,
        dtype: DType,
        args: list[str],
        lanes: int | None,
        constant: tuple[bool, ...] = (),
    ) -> str:
        """The result of an arithmetic or comparison op on operands of `dtype`.

        `constant` says which operands are constants other than NaN.
        """
        if op in _FCMP:
            return self._comparison(lines, op, dtype, args, lanes)
        if dtype.is_float:
            result = self.floats.apply(lines, op, dtype, args, lanes, constant)
            if op in _EXACT:
                return result
            return self.conversions.round_half(lines, dtype, result, lanes)
        if dtype == BOOL:
            return self.integers.apply_bool(lines, op, args, lanes)
        return self.integers.apply(lines, op, dtype, args, lanes)

    def _comparison(
        self, lines: list[str], op: str, dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        if dtype.is_float:
            code = _FCMP[op]
        else:
            sign = "" if op in ("eq", "ne") else ("s" if dtype.kind == "i" else "u")
            code = sign + op
        return self.out.compare(lines, code, element_type(dtype), lanes, args[0], args[1])
