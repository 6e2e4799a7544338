"""Steps that depend on each other: an LSTM, and a loop of your own.

Run it: python examples/07_loops.py
"""

from typing import Any

import numpy as np

import semel
from semel import Tensor, Variable

rng = np.random.default_rng(0)
steps = Variable("steps", 0, 1000)
x = Tensor.input("x", (steps, 1, 64))

# The weights are laid out as in ONNX: (directions, gates * hidden, ...).
w, r, b = (
    Tensor((rng.standard_normal(shape) * 0.1).astype(np.float32))
    for shape in ((1, 512, 64), (1, 512, 128), (1, 1024))
)
y, h, c = x.lstm(w, r, b)
plan = semel.prepare({"y": y, "h": h, "c": c})
for count in (100, 3, 0):
    outputs = plan(x=rng.standard_normal((count, 1, 64), dtype=np.float32))
    print(f"{count:4d} steps", [output.shape for output in outputs])
print("compiled", plan.compile_count, "time")

# What a step is: the kernels between the two ends of the loop.
for op in plan.explain().ops:
    if op.times:
        print(f"  {op.name}: {op.times} times")

# A loop of your own: its body is called once, to say what an iteration does.
prices = Tensor.input("prices", (steps,))


def body(step: Any, states: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """A running mean, and how far each price lies from it."""
    (mean,) = states
    new = mean * 0.9 + prices[step] * 0.1
    return [new], [prices[step] - new]


(last,), (distances,) = Tensor.loop(steps, [prices[0]], body)
smooth = semel.prepare({"last": last, "distances": distances})
print(smooth(prices=np.array([1.0, 2.0, 4.0, 8.0], np.float32)))

# Loops that end when their data says so, and branches of which one runs, in one native call too.
number = Tensor.input("number", ())


def newton() -> Any:
    """The square root: it is made inside the branch, and for -1 it would never end."""
    return semel.while_loop(lambda r: r * r > number + 1e-3, lambda r: (r + number / r) / 2, number)


roots = semel.cond(number > 0, newton, lambda: number * 0).prepare()
print([float(roots(number=np.float32(n))) for n in (2, 144, -1)])
