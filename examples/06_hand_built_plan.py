"""A plan by hand: any function with the kernel ABI, buffers of your own, and the builder.

Run it: python examples/06_hand_built_plan.py

The ABI is `void kernel(ptr lane, ptr buffers, ptr vals, i64 tile_begin, i64 tile_end)`;
here the function is a few lines of LLVM IR that double n floats.
"""

import numpy as np

from semel import Variable
from semel.devices.cpu.elf import load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.ir.types import FLOAT32, TensorType
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.rows import PreparedKernel
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel

DOUBLE = """
define void @double(ptr %lane, ptr %buffers, ptr %vals, i64 %begin, i64 %end) nounwind {
entry:
  %n = load i64, ptr %vals
  %source = load ptr, ptr %buffers
  %second = getelementptr ptr, ptr %buffers, i64 1
  %target = load ptr, ptr %second
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %from = getelementptr float, ptr %source, i64 %i
  %value = load float, ptr %from
  %twice = fadd float %value, %value
  %to = getelementptr float, ptr %target, i64 %i
  store float %twice, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
n = Variable("n", 1, 8)
vector = TensorType((n,), FLOAT32)
code = load_object(compile_ir(DOUBLE, host_target()))
# The kernel owns the code: the address is good as long as somebody holds it.
double = CachedKernel.from_pointer(code.address("double"), [vector], [vector], [n], owner=code)

builder = ExecutionPlanBuilder("cpu")
a, b, c = (builder.add_buffer(i, Buffer.empty((8,), "float32")) for i in range(3))
builder.declare_variable(n, 8)
builder.declare_input("x", a, vector)
builder.set_output_buffer(c)
builder.declare_output("y", c, vector)
# No dependencies are given: the builder sees that the second kernel reads what the first wrote.
builder.add_kernel(PreparedKernel(0, "double", double, "cpu", (a, b), (1,)))
builder.add_kernel(PreparedKernel(1, "double", double, "cpu", (b, c), (1,)))
plan = builder.build()
print(plan(x=np.arange(5, dtype=np.float32)), "in", len(plan.steps), "steps")
