"""How much of the work of a full run is done at an extent.

PlanParts, variables  --report_extents-->  ExtentReport: flops and bytes, now and at most
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import PlanError
from semel.ir.expr import evaluate
from semel.plan.report.describe import describe_ops

if TYPE_CHECKING:
    from semel.plan.link import LinkedRows
    from semel.plan.parts import PlanParts


@dataclass(frozen=True, slots=True)
class ExtentReport:
    """What a run computes and moves at these extents, and what it would at the largest ones.

    `flops` and `bytes` are what the operations must do at least, each tensor moved once by each
    operation that reads or writes it; `all_flops` and `all_bytes` those of a run at `upper`.
    """

    actual: Mapping[str, int]
    upper: Mapping[str, int]
    flops: int
    all_flops: int
    bytes: int
    all_bytes: int

    @property
    def flops_share(self) -> float:
        """Of all arithmetic, what is left; 1 if there is none."""
        return self.flops / self.all_flops if self.all_flops else 1.0

    @property
    def bytes_share(self) -> float:
        """Of all that is moved, what is left; 1 if there is nothing."""
        return self.bytes / self.all_bytes if self.all_bytes else 1.0

    def __str__(self) -> str:
        where = ", ".join(f"{n} {value} of {self.upper[n]}" for n, value in self.actual.items())
        return (
            f"{where or 'no extent'}: {self.flops_share:.1%} of the arithmetic "
            f"({self.flops:,} of {self.all_flops:,} flops), {self.bytes_share:.1%} of the bytes "
            f"({self.bytes:,} of {self.all_bytes:,})"
        )


def report_extents(parts: PlanParts, linked: LinkedRows, values: Mapping[str, int]) -> ExtentReport:
    """The amounts at these values of variables, and with all extents at their largest."""
    extents = parts.program.extents
    upper = {name: variable.max or 0 for name, variable in extents.items()}
    flops, moved = _amounts(parts, linked, values)
    all_flops, all_moved = _amounts(parts, linked, {**values, **upper})
    actual = {name: values[name] for name in extents}
    return ExtentReport(actual, upper, flops, all_flops, moved, all_moved)


def _amounts(parts: PlanParts, linked: LinkedRows, values: Mapping[str, int]) -> tuple[int, int]:
    """Flops and bytes of a run; sizes that it would find out count as the most they can be."""
    known = dict(values)
    try:
        for late in parts.late:
            known[late.variable.name] = evaluate(late.limit or 0, known)
        ops = describe_ops(parts, linked, known)
    except KeyError as error:
        raise PlanError(
            "extent_report", f"needs {error}, never bound.", hint="Run first."
        ) from None
    return sum(op.flops for op in ops), sum(op.bytes for op in ops)
