"""What constants alone determine is made before any run, in the order in which it is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from semel import Tensor, Variable

RNG = np.random.default_rng(8)
F32 = np.float32


def test_what_a_loop_reads_turned_is_stored_turned() -> None:
    n = Variable("n", 1, 8)
    numbers = RNG.integers(-9, 9, (300, 300)).astype(np.int8)
    scale = Tensor.param("s", np.array(0.5, F32))
    turned = (Tensor(numbers).cast("float32") * scale).T.reshape(-1)
    x = Tensor.input("x", (n, 90000))

    def step(i: Any, states: tuple[Tensor, ...]) -> Any:
        return [states[0] * turned + x[i]], []

    (last,), _ = Tensor.loop(n, [Tensor.zeros(90000)], step)
    plan = last.prepare(threads=1)
    names = [op.kernel.name for op in plan.prepared_kernels]
    assert len(names) == 3, "the first state, the step and the last state"
    data = RNG.standard_normal((3, 90000)).astype(F32)
    for factor in (F32(0.5), F32(-0.25)):
        plan.set_param("s", factor)
        state = np.zeros(90000, F32)
        for row in data:
            state = state * (numbers.T.reshape(-1) * factor) + row
        np.testing.assert_allclose(plan(x=data), state, rtol=1e-5, atol=1e-5)


def test_what_is_stretched_is_not_stored_stretched() -> None:
    """Memory for it would be taken for good, and not only while a run needs it."""
    n = Variable("n", 1, 600)
    x = Tensor.input("x", (n, 600))
    row = Tensor(RNG.standard_normal((600, 1)).astype(F32)).exp()
    wide = row.broadcast_to((600, 600)).T

    def step(i: Any, states: tuple[Tensor, ...]) -> Any:
        return [(states[0] @ wide).tanh() + x[i]], []

    (y,), _ = Tensor.loop(n, [Tensor.zeros(1, 600)], step)
    assert y.prepare(threads=1).memory.weights_bytes < 4 * 600 * 600 // 2
