"""One step of a reduction.

(kind, accumulators, new values) --> the accumulators after it
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type
from semel.codegen.scalar.scalars import Scalars
from semel.ir.types import DType


class Reductions:
    """Accumulators come in groups: two for a value with its position, else one."""

    def __init__(self, out: Instructions, scalars: Scalars) -> None:
        self.out, self.scalars = out, scalars

    def combine(
        self,
        lines: list[str],
        kind: str,
        dtypes: Sequence[DType],
        olds: Sequence[str],
        news: Sequence[str],
        lanes: int | None,
    ) -> list[str]:
        """The accumulators with one more value; `news` of a product are its factors."""
        dtype = dtypes[0]
        if kind in ("argmax", "argmin"):
            better = self._better(lines, kind, dtype, lanes, (news[0], news[1]), (olds[0], olds[1]))
            return [
                self.out.select(lines, element_type(d), lanes, better, new, old)
                for d, new, old in zip(dtypes, news, olds, strict=True)
            ]
        if kind == "fma":
            return [self.scalars.apply(lines, "fma", dtype, [*news, olds[0]], lanes)]
        return [self._step(lines, kind, dtype, olds[0], news[0], lanes)]

    def _step(
        self,
        lines: list[str],
        kind: str,
        dtype: DType,
        a: str,
        b: str,
        lanes: int | None,
    ) -> str:
        """One step of a reduction: add, mul, min, max, fastmin, fastmax, and, or."""
        if kind in ("fastmax", "fastmin"):
            element = element_type(dtype)
            sign = "o" if dtype.is_float else ("s" if dtype.kind == "i" else "u")
            code = sign + ("gt" if kind == "fastmax" else "lt")
            better = self.out.compare(lines, code, element, lanes, b, a)
            return self.out.select(lines, element, lanes, better, b, a)
        return self.scalars.apply(lines, kind, dtype, [a, b], lanes)

    def _better(
        self,
        lines: list[str],
        kind: str,
        dtype: DType,
        lanes: int | None,
        candidate: tuple[str, str],
        best: tuple[str, str],
    ) -> str:
        """Whether (value, index) beats the best so far: NaN first, then order, then index."""
        element = element_type(dtype)
        value, position = candidate
        top, top_position = best
        wanted = "gt" if kind == "argmax" else "lt"
        earlier = self.out.compare(lines, "slt", "i64", lanes, position, top_position)

        def both(x: str, y: str) -> str:
            return self.out.binary(lines, "and", "i1", lanes, x, y)

        def either(x: str, y: str) -> str:
            return self.out.binary(lines, "or", "i1", lanes, x, y)

        if not dtype.is_float:
            sign = "s" if dtype.kind == "i" else "u"
            beats = self.out.compare(lines, sign + wanted, element, lanes, value, top)
            equal = self.out.compare(lines, "eq", element, lanes, value, top)
            return either(beats, both(equal, earlier))
        beats = self.out.compare(lines, "o" + wanted, element, lanes, value, top)
        nan = self.out.compare(lines, "uno", element, lanes, value, value)
        top_nan = self.out.compare(lines, "uno", element, lanes, top, top)
        top_number = self.out.compare(lines, "ord", element, lanes, top, top)
        equal = self.out.compare(lines, "oeq", element, lanes, value, top)
        tie = either(equal, both(nan, top_nan))
        return either(either(beats, both(nan, top_number)), both(tie, earlier))
