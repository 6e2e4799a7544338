"""Many runs: several plans at once, several Python threads, and what an execute costs.

Run it: python examples/05_run_many.py
"""

import threading
import time

import numpy as np

import semel
from semel import Tensor
from semel.plan.plan import ExecutionPlan

# How many cores an execute may use: for the process, or for one plan.
semel.set_num_threads(2)


def make_plan(scale: float) -> ExecutionPlan:
    """A plan of its own; both compute the same thing with another constant."""
    x = Tensor.input("x", (256, 512), "float32")
    return ((x * scale).tanh().sum(-1)).prepare(threads=1)


# Plans share nothing that a run changes: each has its own buffers.
plans = [make_plan(0.5), make_plan(2.0)]
data = np.random.default_rng(0).standard_normal((256, 512), dtype=np.float32)
for plan in plans:
    plan(x=data)


def run(plan: ExecutionPlan, times: int) -> None:
    """What each Python thread does."""
    for _ in range(times):
        plan.execute()  # the native call lets other Python threads run


start = time.perf_counter()
workers = [threading.Thread(target=run, args=(plan, 200)) for plan in plans]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
seconds = time.perf_counter() - start
print(f"2 threads x 200 executes: {seconds / 200 * 1e6:.0f} us for each pair")

for plan, scale in zip(plans, (0.5, 2.0), strict=True):
    expected = np.tanh(data * np.float32(scale)).sum(-1)
    np.testing.assert_allclose(plan.output_buffer.numpy(), expected, rtol=1e-4, atol=1e-3)

# A hot path can insist that nothing compiles.
with semel.no_recompiles():
    print("still right:", np.array_equal(plans[0](x=data), plans[0](x=data)))
