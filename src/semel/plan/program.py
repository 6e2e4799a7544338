"""The program: what runs, on which values, in which order.

    compiler  --Program-->  instantiate   -->  ExecutionPlan
    ExecutionPlanBuilder    --Program-->  build  -->  ExecutionPlan

A program is immutable plain data, the same for compiled plans and plans built by hand. A compiled
one is shared: each `instantiate` gives a plan with its own inputs, outputs and arena, over the
same kernels and constants. Names are for people; everything refers to values by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from semel.errors import PlanError
from semel.ir.expr import Dim, Variable, substitute, upper_bound, variables
from semel.ir.types import TensorType
from semel.plan.pickled import reduce_program
from semel.plan.rows import PreparedKernel, PreparedOp, PreparedRebind
from semel.plan.tree import Placed, walk
from semel.runtime.free import HOST_DEVICE
from semel.runtime.kernel import CachedKernel

#: Where a value of a compiled program lies: in the IO block, in the arena, or in the program.
PLACES = ("io", "arena", "constant")
#: Where all values of a plan built by hand lie: in memory that it was given, which keeps its
#: contents between runs.
GIVEN = "state"


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """One tensor. `place` is one of PLACES, or GIVEN; a constant has its `array`.

    An arena value is alive from row `first` to row `last`, both included. `node_ids` are the
    graph nodes that it holds.
    """

    name: str
    type: TensorType
    place: str
    array: np.ndarray[Any, Any] | None = None
    first: int = 0
    last: int = 0
    node_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanIO:
    """A named input or output: which value, and its symbolic type."""

    name: str
    index: int
    type: TensorType


@dataclass(frozen=True, slots=True)
class PlanVariable:
    """A variable of the plan; `capacity` is what its buffers hold if it has no maximum.

    A late one has a `limit`, and room for the most that this can be.
    """

    variable: Variable
    initial: int | None = None
    capacity: int | None = None
    limit: Dim | None = None

    @property
    def top(self) -> int | None:
        """The largest value that fits the memory there is."""
        return self.capacity if self.variable.max is None else self.variable.max

    def as_bounded(self) -> Variable:
        """The variable with its capacity as maximum."""
        return Variable(self.variable.name, self.variable.min, self.top)


def bounded_variables(
    variables: Iterable[PlanVariable], late: Iterable[PlanVariable]
) -> dict[str, Variable]:
    """All variables by name, each with the largest value that fits the memory there is."""
    known = {v.variable.name: v.as_bounded() for v in variables}
    for each in late:
        top = upper_bound(in_terms_of(known, each.limit or 0))
        low = each.variable.min
        found = replace(each, capacity=None if top is None else max(top, low))
        known[each.variable.name] = found.as_bounded()
    return known


def in_terms_of(known: Mapping[str, Variable], value: Dim) -> Dim:
    """The expression over these variables, whose bounds are what all their users allow."""
    return substitute(value, {v: known[v.name] for v in variables(value)})


@dataclass(frozen=True, eq=False)
class Program:
    """Everything a plan is made from. `guards` must evaluate to 0 at every bind.

    `results` are the values that are outputs, in order; `outputs` those of them that have a name
    and a type of their own. `kept` are named values that can be read after a run like outputs,
    and are none. `after` has, for rows by position, positions that they must follow besides their
    `dependencies`; `run_order` the order to take the outermost rows up in, if one was asked for.
    Variables without a maximum grow up to `max_capacity`, if there is one.
    """

    values: tuple[ProgramValue, ...]
    rows: tuple[PreparedOp, ...]
    inputs: tuple[PlanIO, ...]
    outputs: tuple[PlanIO, ...]
    results: tuple[int, ...]
    guards: tuple[tuple[Dim, str], ...] = ()
    variables: tuple[PlanVariable, ...] = ()
    log: tuple[str, ...] = ()
    stage_seconds: dict[str, float] = field(default_factory=dict)
    compile_count: int = 0
    kept: tuple[tuple[str, int], ...] = ()
    max_capacity: int | None = None
    device: str = HOST_DEVICE
    after: dict[int, tuple[int, ...]] = field(default_factory=dict)
    run_order: tuple[int, ...] | None = None
    alias_ids: tuple[int, ...] = ()

    @property
    def kernels(self) -> tuple[CachedKernel, ...]:
        """The distinct kernels, in order of first use."""
        rows = (placed.row for placed in self.walk())
        return tuple(dict.fromkeys(r.kernel for r in rows if isinstance(r, PreparedKernel)))

    @property
    def late(self) -> tuple[PlanVariable, ...]:
        """The variables that nobody binds, in the order in which a run finds them out."""
        rows = (placed.row for placed in self.walk())
        return tuple(
            PlanVariable(variable.as_variable(), limit=limit)
            for row in rows
            if isinstance(row, PreparedRebind)
            for variable, limit in zip(row.variables, row.limits, strict=True)
        )

    def walk(self) -> list[Placed]:
        """All rows by position."""
        return walk(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a program is what a plan's file would hold."""
        return reduce_program(self)

    def sections(self) -> dict[int, np.ndarray[Any, Any]]:
        """The constants, by value: what a plan file stores as bytes."""
        return {i: v.array for i, v in enumerate(self.values) if v.array is not None}


def check_program(program: Program) -> None:
    """What must hold of the values of a compiled program before they are given memory."""
    for value in program.values:
        if value.place not in PLACES:
            raise PlanError(value.name, f"place of a value must be known, got {value.place!r}.")
        if (value.place == "constant") != (value.array is not None):
            raise PlanError(value.name, "a constant has an array, and nothing else has.")
    for kind, named in (("input", program.inputs), ("output", program.outputs)):
        for io in named:
            found = program.values[io.index].place
            if found != "io":
                raise PlanError(io.name, f"an {kind} of the program must lie in io, is {found}.")
    for row in (placed.row for placed in program.walk()):
        if not all(0 <= arg < len(program.values) for arg in row.buffer_indices):
            raise PlanError("program", f"args must be values of it, got {row.buffer_indices}.")
        if isinstance(row, PreparedKernel):
            _check_written(program, row)


def _check_written(program: Program, row: PreparedKernel) -> None:
    """Constants are the same in all plans, and may lie in a file: nobody writes there."""
    signature = row.kernel.signature
    for arg, spec in zip(row.buffer_indices, signature.buffers, strict=False):  # counted later
        if "w" in spec.access and program.values[arg].place == "constant":
            raise PlanError(signature.name, f"'{spec.name}' is written, it must be no constant.")
