"""ExecutionPlanBuilder: a plan on buffers of one's own.

    buffers + Prepared* records + variables, guards, inputs, outputs  --build()-->  ExecutionPlan

`build()` writes down a `Program` and checks everything that can be wrong before anything runs
(`plan.check`). Operations keep the order in which they were added unless a dependency says
otherwise; with unique ids a dependency may point forward. That is the *schedule order*: of two
operations that share bytes, the earlier one runs first. A build that fails changes nothing: put
right what it names and build again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from semel.errors import PlanError, ReleasedError
from semel.ir.expr import Dim, Variable
from semel.ir.fields import take, take_dim, take_int, take_ints, take_threads, take_value
from semel.ir.types import TensorType
from semel.plan.amounts import Guard
from semel.plan.check import check_index, check_plan
from semel.plan.plan import ExecutionPlan
from semel.plan.program import GIVEN, PlanIO, PlanVariable, Program, ProgramValue
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedKernel, PreparedOp, is_row
from semel.plan.tree import num_rows
from semel.plan.variables import check_bounds, check_reserved
from semel.runtime.buffer import Buffer
from semel.runtime.device import choose_device, find_device
from semel.runtime.spec import DeviceSpec


class ExecutionPlanBuilder:
    """Collects buffers and operations; `build()` consumes it."""

    def __init__(self, device: str | DeviceSpec | None = None) -> None:
        self.device = choose_device("builder", device)
        self._buffers: list[Buffer] = []
        self._ast_to_buffer: dict[int, int] = {}
        self._alias_ids: list[int] = []
        self._outputs: tuple[int, ...] | None = None
        self._ops: list[PreparedOp] = []
        self._after: dict[int, tuple[int, ...]] = {}
        self._num_rows = 0
        self._variables: dict[str, PlanVariable] = {}
        self._guards: list[Guard] = []
        self._io: dict[str, list[PlanIO]] = {"input": [], "output": []}
        self._is_built = False

    # ------------------------------------------------------------ collecting

    def add_buffer(self, ast_id: int | None, buffer: Buffer) -> int:
        """Add a buffer under a node's id, if it has one; its index. Equal ones are not merged."""
        self._check_open("add_buffer")
        self._check_buffer("add_buffer", buffer)
        key = None if ast_id is None else take_int("add_buffer", "ast_id", ast_id)
        self._buffers.append(buffer)
        if key is not None:
            self._ast_to_buffer[key] = len(self._buffers) - 1
        return len(self._buffers) - 1

    def map_buffer(self, ast_id: int, index: int) -> None:
        """Let another id name the buffer at `index`."""
        self._check_open("map_buffer")
        key = take_int("map_buffer", "ast_id", ast_id)
        self._ast_to_buffer[key] = self._checked_index("map_buffer", index)

    def replace_buffer(self, index: int, buffer: Buffer) -> None:
        """Use another buffer in the place of the one at `index`."""
        self._check_open("replace_buffer")
        self._check_buffer("replace_buffer", buffer)
        self._buffers[self._checked_index("replace_buffer", index)] = buffer

    def set_output_buffer(self, index: int) -> None:
        """The plan has one output; replaces what was set before."""
        self.set_output_buffers([index])

    def set_output_buffers(self, indices: Sequence[int]) -> None:
        """The plan's outputs, in order; replaces what was set before."""
        self._check_open("set_output_buffers")
        self._outputs = take_ints("set_output_buffers", "indices", indices)

    def add_kernel(self, kernel: PreparedKernel) -> int:
        """Add a kernel call; its position."""
        return self.add_op(kernel)

    def add_op(self, op: PreparedOp) -> int:
        """Add an operation; its position, which instance dependencies refer to.

        What is inside a loop has positions too, after that of the loop.
        """
        return self.add_op_with_instance_dependencies(op, ())

    def add_op_with_instance_dependencies(self, op: PreparedOp, positions: Iterable[int]) -> int:
        """Add an operation that must follow those at `positions`, besides its `dependencies`."""
        self._check_open("add_op")
        if not is_row(op):
            raise PlanError("add_op", f"must be a Prepared* record, got {type(op).__name__}.")
        after = take_ints(f"op {op.id}", "positions", positions)
        position = self._num_rows
        self._ops.append(op)
        self._num_rows += num_rows(op)
        if after:
            self._after[position] = after
        return position

    def add_alias_ids(self, ids: Iterable[int]) -> None:
        """Further ids that the release callbacks are told about."""
        self._check_open("add_alias_ids")
        self._alias_ids += take_ints("add_alias_ids", "ids", ids)

    def declare_variable(
        self, variable: Variable, initial: int | None = None, *, capacity: int | None = None
    ) -> None:
        """Make a variable known, with its bounds and, if given, its first value.

        `capacity` is what the buffers are made for if the variable has no maximum.
        """
        where = "declare_variable"
        self._check_open(where)
        name = take(where, "variable", Variable, variable).name
        check_reserved(where, name)
        if initial is not None:
            initial = take_value(where, f"the first value of '{name}'", initial)
            check_bounds(RuntimeVar.of(variable), initial)
        if capacity is not None:
            capacity = take_value(where, f"the capacity of '{name}'", capacity)
        self._variables[name] = PlanVariable(variable, initial, capacity)

    def add_guard(self, expr: Dim, message: str) -> None:
        """`expr` must be 0 at every bind, else a VariableError with `message`."""
        self._check_open("add_guard")
        take("add_guard", "message", str, message)
        self._guards.append((take_dim("add_guard", "expr", expr), message))

    def declare_input(self, name: str, index: int, type: TensorType) -> None:
        """The buffer at `index` is the input `name`; its shape may depend on variables."""
        self._declare("input", name, index, type)

    def declare_output(self, name: str, index: int, type: TensorType) -> None:
        """The buffer at `index` is the output `name`."""
        self._declare("output", name, index, type)

    def _declare(self, kind: str, name: str, index: int, type: TensorType) -> None:
        where = f"declare_{kind}"
        self._check_open(where)
        take(where, "name", str, name)
        take(where, "type", TensorType, type)
        if any(other.name == name for other in self._io[kind]):
            raise PlanError("builder", f"{kind} names must be distinct, got '{name}' twice.")
        self._io[kind].append(PlanIO(name, self._checked_index(where, index), type))

    def _check_open(self, where: str) -> None:
        if self._is_built:
            raise PlanError(
                where,
                "build() was already called.",
                hint="A plan does not change: make another builder for another plan.",
            )

    def _checked_index(self, where: str, index: Any) -> int:
        found = take_int(where, "buffer index", index)
        return check_index(where, found, len(self._buffers))

    def _check_buffer(self, where: str, buffer: Buffer) -> None:
        if not isinstance(buffer, Buffer):
            raise PlanError(where, f"must be a Buffer, got {type(buffer).__name__}.")
        if buffer.device != self.device:
            find_device(buffer.device)  # rows that use it must name that device
        if not buffer.memory.is_alive:
            raise ReleasedError(where, "the buffer's memory was released.")

    # ------------------------------------------------------------ building

    def build(
        self, *, threads: int | None = None, order: Sequence[int] | None = None
    ) -> ExecutionPlan:
        """Check everything and make the plan. `threads`: participants, the caller included.

        `order` are the positions of the operations that were added, in the order in which they
        are to be taken up: any order that keeps dependencies and hazards; others are an
        OrderError.
        """
        self._check_open("builder")
        device = find_device(self.device)
        given = take_threads("build", threads)
        for index, buffer in enumerate(self._buffers):
            self._check_buffer(f"buffer {index}", buffer)
        program = self._program(None if order is None else take_ints("build", "order", order))
        count = device.default_threads() if given is None else given
        plan = ExecutionPlan(check_plan(program, self._buffers, device, count))
        self._is_built = True
        return plan

    def _program(self, order: tuple[int, ...] | None) -> Program:
        ids: list[list[int]] = [[] for _ in self._buffers]
        for ast_id, index in self._ast_to_buffer.items():
            ids[index].append(ast_id)
        return Program(
            values=tuple(
                ProgramValue(f"#{i}", buffer.type, GIVEN, node_ids=tuple(own))
                for i, (buffer, own) in enumerate(zip(self._buffers, ids, strict=True))
            ),
            rows=tuple(self._ops),
            inputs=tuple(self._io["input"]),
            outputs=tuple(self._io["output"]),
            results=self._checked_outputs(),
            guards=tuple(self._guards),
            variables=tuple(self._variables.values()),
            device=self.device,
            after=dict(self._after),
            run_order=order,
            alias_ids=tuple(self._alias_ids),
        )

    def _checked_outputs(self) -> tuple[int, ...]:
        declared = [io.index for io in self._io["output"]]
        outputs = declared if self._outputs is None else list(self._outputs)
        if self._buffers and not outputs:
            raise PlanError("builder", "output buffers must be set.")
        for index in outputs:
            self._checked_index("set_output_buffers", index)
        later = iter(outputs)
        if not all(index in later for index in declared):  # each found after the one before
            raise PlanError(
                "builder",
                f"declared outputs must be set in the same order, got buffers {declared} from "
                f"declare_output and {outputs} from set_output_buffers.",
                hint="Where all outputs are declared, set_output_buffers is not needed.",
            )
        return tuple(outputs)
