"""What a plan is made of, all of it checked, and what it holds.

    Program x buffers  --check_plan-->  PlanParts  -->  ExecutionPlan  --memory-->  PlanMemory

Plain records; everything in them was checked by whoever made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from semel.ir.expr import Dim, Variable
from semel.locks import computed_once
from semel.plan.program import PlanIO, PlanVariable, Program, ProgramState, bounded_variables
from semel.plan.rows import PreparedLoop, PreparedOp
from semel.plan.scope import RowScope
from semel.plan.tree import Placed
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction
from semel.runtime.device import Device

#: One list of rows: that of a row (its position) with this number, or the outermost one.
BlockKey = tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class PlanParts:
    """A program with its buffers, and what follows from both; positions are those of `walk`.

    `blocks` has each list of rows in schedule order: of two rows that share bytes, the earlier
    one runs first. `after` are the positions that a row must follow by its dependencies.
    `variables` and `guards` are those of the program and of its rows together; `late` are the
    variables that rebinds give values, in their order. `guards_at` has the numbers of the guards
    that a rebind checks, by its position; the others are checked at a bind, or where the last of
    their late variables gets its value.
    """

    program: Program
    device: Device
    buffers: tuple[Buffer, ...]
    placed: tuple[Placed, ...]
    blocks: Mapping[BlockKey, tuple[int, ...]]
    after: tuple[tuple[int, ...], ...]
    variables: tuple[PlanVariable, ...]
    late: tuple[PlanVariable, ...]
    guards: tuple[tuple[Dim, str], ...]
    guards_at: Mapping[int, tuple[int, ...]]
    threads: int
    functions: Mapping[str, CustomFunction]

    @computed_once
    def ops(self) -> tuple[PreparedOp, ...]:
        """All rows by position."""
        return tuple(placed.row for placed in self.placed)

    @property
    def rows(self) -> tuple[PreparedOp, ...]:
        """The outermost rows."""
        return tuple(placed.row for placed in self.placed if not placed.around)

    @computed_once
    def order(self) -> tuple[int, ...]:
        """All positions in schedule order, what is inside a row after it."""
        return tuple(self._order(None))

    def _order(self, key: BlockKey) -> Iterator[int]:
        for position in self.blocks[key]:
            yield position
            for number in range(len(self.ops[position].bodies)):
                yield from self._order((position, number))

    @property
    def own_guards(self) -> tuple[tuple[Dim, str], ...]:
        """The guards that no row checks."""
        at_rows = {number for numbers in self.guards_at.values() for number in numbers}
        return tuple(guard for i, guard in enumerate(self.guards) if i not in at_rows)

    def late_at(self, position: int) -> tuple[str, ...]:
        """The late variables that have values at a row: a rebind is before it, in a list around."""
        around = self.placed[position].around
        return tuple(
            variable.name
            for placed in self.placed[:position]
            if around[: len(placed.around)] == placed.around
            for variable, _ in placed.row.late
        )

    @property
    def run_order(self) -> tuple[int, ...] | None:
        """The order to take the outermost rows up in, if one was asked for."""
        return self.program.run_order

    @property
    def outputs(self) -> tuple[int, ...]:
        """The buffers that are outputs."""
        return self.program.results

    @property
    def input_io(self) -> tuple[PlanIO, ...]:
        """The declared inputs."""
        return self.program.inputs

    @property
    def output_io(self) -> tuple[PlanIO, ...]:
        """The declared outputs."""
        return self.program.outputs

    @property
    def states(self) -> tuple[ProgramState, ...]:
        """What is kept between runs."""
        return self.program.states

    @property
    def alias_ids(self) -> tuple[int, ...]:
        """Further ids that release callbacks are told about."""
        return self.program.alias_ids

    @computed_once
    def ast_to_buffer(self) -> dict[int, int]:
        """Node id to buffer index."""
        return {id_: i for i, value in enumerate(self.program.values) for id_ in value.node_ids}

    @computed_once
    def counters(self) -> dict[str, Variable]:
        """The counters of loops by name; nobody binds them."""
        loops = (op for op in self.ops if isinstance(op, PreparedLoop))
        return {loop.counter: loop.counter_variable for loop in loops}

    @computed_once
    def scope(self) -> RowScope:
        """What the rows refer to, at the capacities there are."""
        return RowScope({**self.bounded, **self.counters}, self.functions, self.buffers)

    def keep_scope(self, scope: RowScope) -> None:
        """Let `scope` be this one, which is what it would be, and has been asked already."""
        self.__dict__["scope"] = scope

    @computed_once
    def bounded(self) -> dict[str, Variable]:
        """The variables by name, with the largest values that fit the memory there is."""
        return bounded_variables(self.variables, self.late)

    @computed_once
    def written(self) -> frozenset[int]:
        """The buffers that some row may write."""
        uses = (use for op in self.ops for use in op.uses(self.scope))
        return frozenset(use.index for use in uses if "w" in use.access)

    @property
    def own(self) -> frozenset[int]:
        """The buffers that a clone must have for itself; the others are constants."""
        inputs = {io.index for io in self.input_io}
        return self.written | inputs | set(self.outputs)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes that a plan holds on one device; scratch is counted with the plan.

    `weights_bytes` are those that kernels read there, which other plans and, where memory is the
    host's, other devices may share.
    """

    weights_bytes: int = 0
    arena_bytes: int = 0
    io_bytes: int = 0
    state_bytes: int = 0
    naive_bytes: int = 0

    @property
    def own_bytes(self) -> int:
        """What this plan holds there for itself."""
        return self.arena_bytes + self.io_bytes + self.state_bytes

    @property
    def peak_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.own_bytes

    def __str__(self) -> str:
        parts = ["weights", "arena", "io", *(["state"] if self.state_bytes else [])]
        sizes = ", ".join(f"{name} {getattr(self, f'{name}_bytes'):,}" for name in parts)
        return f"{self.peak_bytes:,} bytes ({sizes})"


@dataclass(frozen=True, slots=True, repr=False)
class PlanMemory:
    """Bytes that a plan holds. `naive_bytes`: what intermediates would take without sharing.

    Of the weights, `params_bytes` are params as they were given, `derived_bytes` what was made from
    params; the others are constants. `devices` has, by name, what lies on each.
    """

    weights_bytes: int = 0  #: constants and params, in the forms that kernels read
    params_bytes: int = 0  #: of these, params as they were given
    derived_bytes: int = 0  #: of these, what was made from params
    arena_bytes: int = 0  #: intermediates, which share memory
    io_bytes: int = 0  #: inputs and outputs
    state_bytes: int = 0  #: what is kept between runs
    scratch_bytes: int = 0  #: memory of threads for themselves
    naive_bytes: int = 0  #: what intermediates would take without sharing
    #: the same for each device by name
    devices: Mapping[str, DeviceMemory] = field(default_factory=dict, repr=False)
    #: what tells it for other sizes
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
        return self.arena_bytes + self.io_bytes + self.state_bytes + self.scratch_bytes

    def __str__(self) -> str:
        parts = ["weights", "arena", "io", *(["state"] if self.state_bytes else []), "scratch"]
        sizes = ", ".join(f"{name} {getattr(self, f'{name}_bytes'):,}" for name in parts)
        return f"{self.peak_bytes:,} bytes ({sizes}); a clone takes {self.own_bytes:,}"

    def __repr__(self) -> str:
        return f"PlanMemory({self})"

    def at(self, /, **values: int) -> PlanMemory:
        """What a plan made for exactly these values would hold."""
        return self if self.measure is None else self.measure(values)
