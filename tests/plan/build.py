"""Short ways to build plans from the kernels of `tests.plan.kernels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.plan.kernels import kernel

from semel.devices.cpu.executable import CpuExecutable
from semel.ir.expr import Dim, Variable
from semel.ir.types import FLOAT32, TensorType, as_dtype
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.plan import ExecutionPlan
from semel.plan.program import PlanIO, PlanVariable, Program, ProgramValue
from semel.plan.rows import PreparedBranch, PreparedKernel, PreparedLoop, PreparedOp
from semel.runtime.buffer import Buffer
from semel.runtime.device import choose_device
from semel.runtime.kernel import CachedKernel
from semel.runtime.optable import OpTable

N = Variable("n", 0, 1 << 20)


class Sketch:
    """A builder whose buffers have names: `s.op("add", "x", "y", "out")`."""

    def __init__(
        self,
        elements: int,
        dtype: str = "float32",
        *,
        fixed: bool = True,
        bytes_per_element: int = 12,
        device: str | None = None,
    ) -> None:
        self.builder = ExecutionPlanBuilder(device)
        self.device = self.builder.device
        self.bytes_per_element = bytes_per_element  # what the kernels claim to move
        self.elements, self.dtype, self.fixed = elements, dtype, fixed
        self.index: dict[str, int] = {}
        self.buffers: dict[str, Buffer] = {}
        self._next_id = 100
        #: The builder outside, what is being filled, and which of its fields.
        self._open: list[tuple[ExecutionPlanBuilder, PreparedOp, str]] = []

    def buffer(self, name: str, buffer: Buffer | None = None) -> int:
        """The index of a named buffer, made at first use."""
        if name not in self.index:
            made = (
                Buffer.empty((self.elements,), self.dtype, self.device)
                if buffer is None
                else buffer
            )
            self.buffers[name] = made
            self.index[name] = self.builder.add_buffer(len(self.index), made)
        return self.index[name]

    def op(self, name: str, *buffers: str, **options: Any) -> int:
        """Call a kernel; the last buffer is written."""
        self._next_id += 1
        options.setdefault("id", self._next_id)
        options.setdefault("device", self.device)
        if self.fixed:
            options.setdefault("fixedvars", {"n": self.elements})
        top = Variable("n", 0, self.elements)
        return self.builder.add_kernel(
            PreparedKernel(
                ast=None,
                kernel=kernel(name, top, bytes_per_element=self.bytes_per_element),
                buffer_indices=tuple(self.buffer(b) for b in buffers),
                output_indices=(len(buffers) - 1,),
                **options,
            )
        )

    def begin(self, trip: Dim, counter: str = "step", id: int = 1) -> None:
        """What is added up to the next `end` is the body of a loop."""
        self._start(PreparedLoop(id, counter, trip, ()), "body")

    def begin_while(self, condition: str, most: Dim, counter: str = "step", id: int = 1) -> None:
        """What is added up to `run` says whether to go on, what follows up to `end` is the body."""
        self.flag(condition)
        row = PreparedLoop(id, counter, most, (), buffer_indices=(self.buffer(condition),))
        self._start(row, "test")

    def run(self) -> None:
        """The end of the test of a loop."""
        self._start(self._finish(), "body")

    def branch(self, condition: str, id: int = 2) -> None:
        """What is added up to the next `end` runs if the named bool is true."""
        self.flag(condition)
        self._start(PreparedBranch(id, (self.buffer(condition),), ()), "then")

    def orelse(self) -> None:
        """What is added from here to `end` runs if it is false."""
        self._start(self._finish(), "orelse")

    def end(self) -> int:
        """The end of what began last."""
        row = self._finish()
        return self.builder.add_op(row)

    def flag(self, name: str) -> Buffer:
        """The buffer of a named bool."""
        self.buffer(name, None if name in self.index else Buffer.empty((1,), "bool", self.device))
        return self.buffers[name]

    def _start(self, row: PreparedOp, field: str) -> None:
        self._open.append((self.builder, row, field))
        self.builder = _Body(self.builder)  # type: ignore[assignment]

    def _finish(self) -> PreparedOp:
        body, (self.builder, row, field) = self.builder, self._open.pop()
        return replace(row, **{field: tuple(body.rows)})  # type: ignore[attr-defined, arg-type]

    def build(self, *outputs: str, threads: int = 1) -> ExecutionPlan:
        """Build with these outputs."""
        self.builder.set_output_buffers([self.buffer(o) for o in outputs])
        return self.builder.build(threads=threads)


class _Body:
    """Takes the rows of a loop; all else is the builder's."""

    def __init__(self, builder: ExecutionPlanBuilder) -> None:
        self._builder = builder
        self.rows: list[PreparedOp] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def add_op(self, op: PreparedOp) -> None:
        self.rows.append(op)

    add_kernel = add_op


def program_of(
    values: Sequence[ProgramValue],
    calls: Sequence[tuple[CachedKernel, Sequence[int], Sequence[Variable]]],
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    variables: Sequence[Variable],
    **options: Any,
) -> Program:
    """A compiled program without a compiler: kernel calls one after the other."""
    options.setdefault("device", choose_device("program", None))
    return Program(
        tuple(values),
        tuple(PreparedKernel.call(i, *call) for i, call in enumerate(calls)),
        tuple(PlanIO(name, i, values[i].type) for name, i in inputs.items()),
        tuple(PlanIO(name, i, values[i].type) for name, i in outputs.items()),
        tuple(outputs.values()),
        variables=tuple(PlanVariable(v) for v in variables),
        **options,
    )


def symbolic_add(top: int = 4096, *, threads: int = 1, guards: Sequence[Any] = ()) -> ExecutionPlan:
    """out[n] = x[n] + y[n] with declared inputs and output."""
    s = Sketch(top, fixed=False)
    s.op("add", "x", "y", "out")
    kind = TensorType((Variable("n", 0, top),), FLOAT32)
    s.builder.declare_input("x", s.buffer("x"), kind)
    s.builder.declare_input("y", s.buffer("y"), kind)
    s.builder.declare_output("out", s.buffer("out"), kind)
    for expr, message in guards:
        s.builder.add_guard(expr, message)
    return s.build("out", threads=threads)


def typed(shape: tuple[Any, ...], dtype: str = "float32") -> TensorType:
    """A tensor type from a name."""
    return TensorType(shape, as_dtype(dtype))


def table_of(plan: ExecutionPlan) -> OpTable:
    """The native table of a plan on the CPU."""
    assert isinstance(plan.engine.executable, CpuExecutable)
    return plan.engine.executable.table
