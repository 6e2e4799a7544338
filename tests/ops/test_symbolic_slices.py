"""Slices whose bounds are numbers of a run: NumPy's rules, with one compile for all values."""

from __future__ import annotations

import numpy as np
import pytest

import semel
from semel import Tensor, Variable

N = Variable("n", 0, 12)
A, B = Variable("a", -40, 40), Variable("b", -40, 40)
X = np.arange(24, dtype=np.float32).reshape(12, 2)
PLACES = (-40, -6, -5, -1, 0, 4, 5, 6, 40)


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_bounds_of_either_sign(step: int) -> None:
    x = Tensor.input("x", (N, 2))
    numbers = Tensor.input("p", (A + 40,)).sum() + Tensor.input("q", (B + 40,)).sum()
    cuts = [x[A:B:step], x[A::step], x[:B:step], x[A - 2 * B : B // 2 : step]]
    plan = semel.prepare([*cuts, numbers], threads=1)
    rng = np.random.default_rng(step + 3)
    values = [(n, a, b) for n in (0, 1, 5, 12) for a, b in rng.integers(-14, 15, (8, 2)).tolist()]
    for n, a, b in values + [(5, a, b) for a in PLACES for b in PLACES]:
        rows = X[:n]
        got = plan(x=rows, p=np.ones(a + 40, np.float32), q=np.ones(b + 40, np.float32))
        wanted = [rows[a:b:step], rows[a::step], rows[:b:step], rows[a - 2 * b : b // 2 : step]]
        for have, want in zip(got, wanted, strict=False):
            np.testing.assert_array_equal(have, want, err_msg=f"{n=} {a=} {b=}")
    assert plan.compile_count == 1


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_assignment_to_what_may_be_empty(step: int) -> None:
    x = Tensor.input("x", (N, 2))
    numbers = Tensor.input("p", (A + 40,)).sum() + Tensor.input("q", (B + 40,)).sum()
    written = x + 0
    written[A:B:step] = -1.0
    plan = semel.prepare([written, numbers], threads=1)
    for n, a, b in [(n, a, b) for n in (0, 5) for a in PLACES for b in PLACES]:
        want = X[:n].copy()
        want[a:b:step] = -1
        got = plan(x=X[:n], p=np.ones(a + 40, np.float32), q=np.ones(b + 40, np.float32))
        np.testing.assert_array_equal(got[0], want, err_msg=f"{n=} {a=} {b=}")


def test_bounds_beyond_any_axis_mean_its_ends() -> None:
    least, most = -(2**63), 2**63 - 1
    x = Tensor.input("x", (Variable("n", 0), 2))
    cuts = [x[1:most], x[least:most], x[most:least:-1], x[:least:-2]]
    plan = semel.prepare(cuts, threads=1)
    for n in (0, 1, 12):
        rows = X[:n]
        wanted = [rows[1:], rows, rows[::-1], rows[::-2]]
        for have, want in zip(plan(x=rows), wanted, strict=True):
            np.testing.assert_array_equal(have, want)
