"""Dims that are 1 in some runs: NumPy's broadcasting at every value, with one compile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.errors import VariableError

A, B, C = (Variable(name, 1, 70) for name in "abc")
Z, Y = Variable("z", 0, 9), Variable("y", 0, 9)
Shape = tuple[Any, ...]
Sizes = tuple[tuple[int, ...], ...]
PAIRS: Sizes = ((7, 7), (1, 67), (67, 1), (1, 1), (70, 70))

#: what is computed, the shapes of its operands, the names of their dims, and sizes of those
CASES: dict[str, tuple[Callable[..., Any], tuple[Shape, ...], str, Sizes]] = {
    "add": (lambda x, y: x + y, ((A,), (B,)), "ab", PAIRS),
    "rows": (lambda x, y: x * y, ((A, 3), (B, 3)), "ab", PAIRS),
    "columns": (lambda x, y: x - y, ((3, A), (2, 3, B)), "ab", PAIRS),
    "both axes": (lambda x, y: x + y, ((A, B), (B, A)), "ab", ((1, 5), (5, 1), (1, 1), (6, 6))),
    "beside a number": (lambda x, y: x * y, ((A, 5), (4, B)), "ab", ((1, 1), (4, 5), (4, 1))),
    "three": (
        lambda x, y, z: (x + y) * z - x,
        ((A,), (B,), (C,)),
        "abc",
        ((5, 1, 1), (1, 5, 5), (1, 1, 5), (5, 5, 5), (1, 5, 1)),
    ),
    "empty": (lambda x, y: x + y, ((Z,), (Y,)), "zy", ((0, 1), (1, 0), (0, 0), (1, 4), (4, 4))),
    "chain": (lambda x, y: ((x + y) * x).sum(0) + y, ((A, 4), (B, 4)), "ab", PAIRS),
    "row maximum": (lambda x, y: (x + y).max(-1), ((3, A), (3, B)), "ab", PAIRS),
    "matmul": (
        lambda x, y: x @ y,
        ((A, 3, 4), (B, 4, 5)),
        "ab",
        ((6, 6), (1, 6), (6, 1), (1, 1)),
    ),
    "matmul of batches": (
        lambda x, y: x @ y,
        ((A, C, 3, 4), (B, 1, 4, 5)),
        "abc",
        ((3, 3, 2), (1, 3, 2), (3, 1, 1)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_broadcasting_follows_the_sizes_of_the_run(name: str) -> None:
    run, shapes, names, sizes = CASES[name]
    inputs = [Tensor.input(f"x{k}", shape) for k, shape in enumerate(shapes)]
    plan = semel.prepare(run(*inputs), threads=1)
    rng = np.random.default_rng(0)
    for values in sizes:
        at = dict(zip(names, values, strict=True))
        dims = [tuple(at[d.name] if isinstance(d, Variable) else d for d in s) for s in shapes]
        arrays = [rng.integers(-4, 5, shape).astype(np.float32) for shape in dims]
        got = plan(**{f"x{k}": array for k, array in enumerate(arrays)})
        np.testing.assert_array_equal(got, run(*arrays), err_msg=str(at))
    assert plan.compile_count == 1


def test_a_choice_stretches_all_three() -> None:
    plan = semel.prepare(
        semel.where(
            Tensor.input("c", (A, 1), "bool"), Tensor.input("x", (B, 4)), Tensor.input("y", (C,))
        ),
        threads=1,
    )
    for a, b, c in ((3, 3, 4), (1, 3, 1), (3, 1, 4), (1, 1, 1)):
        condition = np.arange(a).reshape(a, 1) % 2 == 0
        x, y = np.ones((b, 4), np.float32), np.arange(c, dtype=np.float32)
        np.testing.assert_array_equal(plan(c=condition, x=x, y=y), np.where(condition, x, y))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", "int64"])
def test_every_width_of_elements_stretches(dtype: str) -> None:
    x, y = Tensor.input("x", (2, A), dtype), Tensor.input("y", (2, B), dtype)
    plan = semel.prepare(x.maximum(y) if dtype != "bool" else x | y, threads=1)
    rng = np.random.default_rng(1)
    for a, b in PAIRS:
        one, other = (rng.integers(0, 2, (2, n)).astype(dtype) for n in (a, b))
        np.testing.assert_array_equal(plan(x=one, y=other), np.maximum(one, other))


def test_broadcast_to_a_size_of_the_run() -> None:
    x = Tensor.input("x", (A, 2))
    plan = semel.prepare([x.broadcast_to(B, 2), Tensor.input("y", (B,)).sum()], threads=1)
    for a, b in ((1, 5), (5, 5), (1, 1)):
        array = np.arange(2 * a, dtype=np.float32).reshape(a, 2)
        got = plan(x=array, y=np.ones(b, np.float32))[0]
        np.testing.assert_array_equal(got, np.broadcast_to(array, (b, 2)))
    with pytest.raises(VariableError, match=r"1 or b to broadcast, got a in f32\[a,2\]"):
        plan(x=np.ones((5, 2), np.float32), y=np.ones(1, np.float32))


def test_sizes_that_do_not_broadcast_are_refused() -> None:
    plan = semel.prepare(Tensor.input("x", (A,)) + Tensor.input("y", (B,)), threads=1)
    with pytest.raises(VariableError, match=r"\[add\] dim 0 must be 1 or b to broadcast, got a in"):
        plan(x=np.ones(3, np.float32), y=np.ones(4, np.float32))


def test_a_dim_that_is_never_one_decides_and_nothing_stretches() -> None:
    wide = Variable("w", 2, 9)
    both = Tensor.input("x", (wide,)) + Tensor.input("y", (A,))
    assert both.shape == (wide,)
    other = Variable("o", 2, 9)
    assert (Tensor.input("x", (wide,)) + Tensor.input("y", (other,))).shape == (wide,)


def test_two_ways_to_write_one_size_do_not_stretch() -> None:
    rows = Tensor.input("x", (A, 2))[B : B + C]  # as many as there are from b on, at most c
    both = rows + Tensor.input("y", (C, 2))
    assert str(both.shape[0]) == str(rows.shape[0])
    with pytest.raises(VariableError, match=r"dims 0 must agree"):
        semel.prepare([both, Tensor.input("z", (B,)).sum()], threads=1)(
            x=np.ones((4, 2), np.float32), y=np.ones((3, 2), np.float32), z=np.ones(3, np.float32)
        )


def test_sizes_without_a_maximum_stretch(tmp_path: Path) -> None:
    a, b = Variable("a", 0), Variable("b", 1)
    plan = semel.prepare(Tensor.input("x", (a, 3)) * Tensor.input("y", (b, 3)), threads=1)
    plan.save(tmp_path / "p.plan")
    for each in (plan, semel.load_plan(tmp_path / "p.plan")):
        for n, m in ((1, 5), (40, 40), (0, 1), (90, 1), (1, 200)):
            x, y = np.arange(n * 3, dtype=np.float32).reshape(n, 3), np.ones((m, 3), np.float32) * 2
            np.testing.assert_array_equal(each(x=x, y=y), x * y)


def test_a_mask_of_attention_stretches() -> None:
    q = Tensor.input("q", (2, A, 8))
    mask = Tensor.input("m", (B, C), "bool")
    plan = semel.prepare(q.scaled_dot_product_attention(q, q, mask), threads=1)
    rng = np.random.default_rng(2)
    for n, b, c in ((5, 5, 5), (5, 1, 5), (5, 5, 1), (1, 1, 1)):
        array = rng.standard_normal((2, n, 8), dtype=np.float32)
        keep = rng.random((b, c)) > 0.3
        keep[:, 0] = True
        scores = np.where(keep, array @ array.swapaxes(1, 2) / np.sqrt(8), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        want = weights / weights.sum(-1, keepdims=True) @ array
        np.testing.assert_allclose(plan(q=array, m=keep), want, rtol=1e-4, atol=1e-5)
