"""Sizes that change from call to call, without a recompile.

Run it: python examples/04_variable_sizes.py
"""

import numpy as np

import semel
from semel import Tensor, Variable

n = Variable("n", 1, 512)
x = Tensor.input("x", (n, 96), "float32")
w = Tensor(np.random.default_rng(0).standard_normal((96, 96), dtype=np.float32))
plan = (x @ w).gelu().softmax(-1).prepare()

# The shape of the array binds n.
for rows in (1, 37, 512):
    out = plan(x=np.ones((rows, 96), np.float32))
    print(f"n={rows:3d}  output {out.shape}  rows sum to {out.sum(-1).mean():.6f}")

# Or write the buffer and bind by name; the output is the compact prefix.
buffer = plan.buffer(x)
assert buffer is not None
buffer.copyin(np.zeros((8, 96), np.float32))
plan.execute_with_vars(n=8)
print("n=  8 ", plan.output_buffer.numpy().shape)

# Stale rows are never read: the buffer was written for n=8.
try:
    plan.execute_with_vars(n=9)
except semel.InputError as error:
    print("refused:", error)

# Nor is a size outside the range.
try:
    plan.execute_with_vars(n=513)
except semel.VariableError as error:
    print("refused:", error)

print("compiled", plan.compile_count, "time")
print("memory at n=8:", plan.memory.at(n=8).peak_bytes, "of", plan.memory.peak_bytes, "bytes")
