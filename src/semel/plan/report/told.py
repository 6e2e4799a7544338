"""What plans tell of themselves while they are made and grow, to those who asked for it.

ExecutionPlan  --tell_memory, tell_growth-->  the topics memory and plan of SEMEL_LOG
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from semel.plan.report.text import memory_lines
from semel.topics import Topic

if TYPE_CHECKING:
    from semel.plan.plan import ExecutionPlan

_MEMORY, _PLAN = Topic("memory"), Topic("plan")


def tell_memory(plan: ExecutionPlan) -> None:
    """Where every value of a new plan lies, and what it all takes."""
    if _MEMORY.is_on:
        _MEMORY("%r", plan)
        for line in memory_lines(plan.explain()):
            _MEMORY("%s", line)


def tell_growth(values: Mapping[str, int], capacities: Mapping[str, int], peak_bytes: int) -> None:
    """That a plan has new memory: for which values, how far that reaches, what it takes."""
    if _PLAN.is_on:
        asked = _listed({name: values[name] for name in capacities if name in values})
        _PLAN("grew for %s: room up to %s, %d bytes", asked, _listed(capacities), peak_bytes)


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
