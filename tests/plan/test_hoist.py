"""Rows taken up earlier: the same results, and what can wait does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel import Tensor, loop
from semel.plan.hoist import hoisted
from semel.plan.instantiate import instantiate
from semel.plan.program import Program
from semel.plan.tree import walk

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 32)).astype(np.float32)
W = RNG.standard_normal((32, 32)).astype(np.float32) / 6


def program(seed: int) -> tuple[Program, dict[str, Array]]:
    """Chains of products that join now and then, some of them in a loop, all kept by name."""
    rng = np.random.default_rng(seed)
    x = Tensor.input("x", (6, 32), "float32")
    made = [x]
    for i in range(8):
        a, b = (made[int(k)] for k in rng.integers(len(made), size=2))
        if i == 4:
            (c,), _ = loop(3, [b], lambda _, s, a=a: ([((s[0] + a) @ W).tanh()], []))  # type: ignore[misc]
        else:
            c = (a @ W).softmax(-1) + b
        made.append(c)
    total = x
    for each in made[1:]:
        total = total + each
    plan = total.prepare(keep={f"v{i}": t for i, t in enumerate(made[1:])})
    plan(x=X)
    kept = {name: buffer.numpy() for name, buffer in plan.kept.items()}
    return plan.program, {**kept, "": plan(x=X)}


@pytest.mark.parametrize("seed", range(6))
def test_results_and_lives_are_as_they_were(seed: int) -> None:
    before, expected = program(seed)
    for name, value in before.kept:
        after = hoisted(before, [value])
        plan = instantiate(after)
        assert plan(x=X).tobytes() == expected[""].tobytes()
        for other, buffer in plan.kept.items():
            assert buffer.numpy().tobytes() == expected[other].tobytes(), (name, other)
        for placed in walk(after.rows):
            assert placed.row.id == placed.position
            for index in placed.row.buffer_indices:
                own = after.values[index]
                assert own.place != "arena" or own.first <= placed.position <= own.last


def test_what_can_wait_waits() -> None:
    x = Tensor.input("x", (6, 32), "float32")
    slow = ((x @ W).tanh() @ W).softmax(-1)
    early = (x @ W.T).softmax(-1)
    plan = (slow @ early.permute((1, 0))).prepare(keep={"early": early})
    (value,) = (index for _, index in plan.program.kept)
    after = hoisted(plan.program, [value])

    def where(rows: Any) -> int:
        return next(i for i, row in enumerate(rows) if value in row.buffer_indices)

    assert where(after.rows) < where(plan.program.rows) or where(plan.program.rows) <= 1
    assert instantiate(after)(x=X).tobytes() == plan(x=X).tobytes()
    assert hoisted(after, [value]) is after
