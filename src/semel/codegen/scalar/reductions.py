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
        """The accumulators with one more value; `news` of a product are its factors.

        Values come in the order of their places: of equal ones the first stays.
        """
        dtype = dtypes[0]
        if kind in ("argmax", "argmin"):
            beats = self._beats(lines, kind, dtype, lanes, news[0], olds[0])
            return self._chosen(lines, dtypes, lanes, beats, news, olds)
        if kind == "fma":
            return [self.scalars.apply(lines, "fma", dtype, [*news, olds[0]], lanes)]
        return [self._step(lines, kind, dtype, olds[0], news[0], lanes)]

    def join(
        self,
        lines: list[str],
        kind: str,
        dtypes: Sequence[DType],
        olds: Sequence[str],
        news: Sequence[str],
        lanes: int | None,
    ) -> list[str]:
        """Two partial results as one; what lanes found lies anywhere, so that places count."""
        if kind not in ("argmax", "argmin"):
            return self.combine(lines, kind, dtypes, olds, news, lanes)
        better = self._better(lines, kind, dtypes, lanes, news, olds)
        return self._chosen(lines, dtypes, lanes, better, news, olds)

    def _chosen(
        self,
        lines: list[str],
        dtypes: Sequence[DType],
        lanes: int | None,
        better: str,
        news: Sequence[str],
        olds: Sequence[str],
    ) -> list[str]:
        return [
            self.out.select(lines, element_type(d), lanes, better, new, old)
            for d, new, old in zip(dtypes, news, olds, strict=True)
        ]

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

    def _beats(
        self, lines: list[str], kind: str, dtype: DType, lanes: int | None, value: str, top: str
    ) -> str:
        """Whether a value is more extreme than the best so far: a NaN is, of all numbers."""
        element, wanted = element_type(dtype), "gt" if kind == "argmax" else "lt"
        if not dtype.is_float:
            sign = "s" if dtype.kind == "i" else "u"
            return self.out.compare(lines, sign + wanted, element, lanes, value, top)
        beyond = self.out.compare(lines, "u" + wanted, element, lanes, value, top)
        is_number = self.out.compare(lines, "ord", element, lanes, top, top)
        return self.out.binary(lines, "and", "i1", lanes, beyond, is_number)

    def _better(
        self,
        lines: list[str],
        kind: str,
        dtypes: Sequence[DType],
        lanes: int | None,
        candidate: Sequence[str],
        best: Sequence[str],
    ) -> str:
        """Whether (value, index) beats the best so far: NaN first, then order, then index."""
        dtype, places = dtypes
        value, position = candidate
        top, top_position = best
        beats = self._beats(lines, kind, dtype, lanes, value, top)
        element = element_type(dtype)

        def both(x: str, y: str) -> str:
            return self.out.binary(lines, "and", "i1", lanes, x, y)

        def either(x: str, y: str) -> str:
            return self.out.binary(lines, "or", "i1", lanes, x, y)

        earlier = self.out.compare(
            lines, "slt", element_type(places), lanes, position, top_position
        )
        tie = self.out.compare(lines, "oeq" if dtype.is_float else "eq", element, lanes, value, top)
        if dtype.is_float:
            nan = self.out.compare(lines, "uno", element, lanes, value, value)
            top_nan = self.out.compare(lines, "uno", element, lanes, top, top)
            tie = either(tie, both(nan, top_nan))
        return either(beats, both(tie, earlier))
