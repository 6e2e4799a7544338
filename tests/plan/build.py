"""Short ways to build plans from the kernels of `tests.plan.kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.plan.kernels import kernel

from semel.ir.expr import Variable
from semel.ir.types import FLOAT32, TensorType, as_dtype
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.plan import ExecutionPlan
from semel.plan.prepared import PreparedKernel
from semel.runtime.buffer import Buffer

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
    ) -> None:
        self.builder = ExecutionPlanBuilder()
        self.bytes_per_element = bytes_per_element  # what the kernels claim to move
        self.elements, self.dtype, self.fixed = elements, dtype, fixed
        self.index: dict[str, int] = {}
        self.buffers: dict[str, Buffer] = {}
        self._next_id = 100

    def buffer(self, name: str, buffer: Buffer | None = None) -> int:
        """The index of a named buffer, made at first use."""
        if name not in self.index:
            made = Buffer.empty((self.elements,), self.dtype) if buffer is None else buffer
            self.buffers[name] = made
            self.index[name] = self.builder.add_buffer(len(self.index), made)
        return self.index[name]

    def op(self, name: str, *buffers: str, **options: Any) -> int:
        """Call a kernel; the last buffer is written."""
        self._next_id += 1
        options.setdefault("id", self._next_id)
        if self.fixed:
            options.setdefault("fixedvars", {"n": self.elements})
        top = Variable("n", 0, self.elements)
        return self.builder.add_kernel(
            PreparedKernel(
                ast=None,
                kernel=kernel(name, top, bytes_per_element=self.bytes_per_element),
                device="cpu",
                buffer_indices=tuple(self.buffer(b) for b in buffers),
                output_indices=(len(buffers) - 1,),
                **options,
            )
        )

    def build(self, *outputs: str, threads: int = 1) -> ExecutionPlan:
        """Build with these outputs."""
        self.builder.set_output_buffers([self.buffer(o) for o in outputs])
        return self.builder.build(threads=threads)


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
