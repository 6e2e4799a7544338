"""Prepare once, execute many: a plan owns its buffers and its kernels.

Run it: python examples/01_hello_plan.py
"""

import numpy as np

from semel import Tensor

# A computation with two inputs. Nothing is computed yet.
x = Tensor.input("x", (4, 3), "float32")
w = Tensor.input("w", (3, 2), "float32")
y = (x @ w).relu()

# Compile it. From here on nothing is compiled and nothing is allocated.
plan = y.prepare()

rng = np.random.default_rng(0)
weights = rng.standard_normal((3, 2), dtype=np.float32)

# The short way: arrays in, a fresh array out.
batch = rng.standard_normal((4, 3), dtype=np.float32)
result = plan(x=batch, w=weights)
np.testing.assert_allclose(result, np.maximum(batch @ weights, 0), rtol=1e-5, atol=1e-6)
print("result\n", result)

# The fast way: write the plan's own buffers, execute, read the output.
inputs = plan.buffer(x)
assert inputs is not None
for step in range(3):
    inputs.copyin(batch * step)
    plan.execute()
    print("step", step, "sum", plan.output_buffer.numpy().sum())

print("compiled", plan.compile_count, "time, memory", plan.memory.peak_bytes, "bytes")
