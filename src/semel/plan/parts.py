"""What a plan is made of, and what it holds.

    ExecutionPlanBuilder  --PlanParts-->  ExecutionPlan  --memory-->  PlanMemory

Plain records; everything in them was checked by whoever made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from semel.ir.expr import Dim
from semel.plan.prepared import PreparedOp
from semel.plan.state import PlanIO, PlanVariable
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction
from semel.runtime.device import Device


@dataclass(frozen=True, slots=True)
class PlanParts:
    """What the builder hands over, all of it checked.

    `order` is the schedule order, from which hazards follow; `run_order` the one to run in, if
    the caller asked for one.
    """

    device: Device
    buffers: tuple[Buffer, ...]
    ast_to_buffer: dict[int, int]
    alias_ids: tuple[int, ...]
    ops: tuple[PreparedOp, ...]
    after: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    outputs: tuple[int, ...]
    variables: tuple[PlanVariable, ...]
    guards: tuple[tuple[Dim, str], ...]
    input_io: tuple[PlanIO, ...]
    output_io: tuple[PlanIO, ...]
    threads: int
    run_order: tuple[int, ...] | None
    functions: Mapping[str, CustomFunction]


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Bytes that a plan holds. `naive_bytes`: what intermediates would take without sharing."""

    weights_bytes: int = 0
    arena_bytes: int = 0
    io_bytes: int = 0
    scratch_bytes: int = 0
    naive_bytes: int = 0
    measure: Callable[[Mapping[str, int]], PlanMemory] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def peak_bytes(self) -> int:
        """All of it: nothing is allocated during an execute."""
        return self.weights_bytes + self.own_bytes

    @property
    def own_bytes(self) -> int:
        """What this plan holds for itself, which is also what a clone costs."""
        return self.arena_bytes + self.io_bytes + self.scratch_bytes

    def __str__(self) -> str:
        parts = ("weights", "arena", "io", "scratch")
        sizes = ", ".join(f"{name} {getattr(self, f'{name}_bytes'):,}" for name in parts)
        return f"{self.peak_bytes:,} bytes ({sizes}); a clone takes {self.own_bytes:,}"

    def at(self, /, **values: int) -> PlanMemory:
        """What a plan made for exactly these values would hold."""
        return self if self.measure is None else self.measure(values)
