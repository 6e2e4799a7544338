"""Plans with sizes that a run finds out, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semel
from semel import Tensor, Variable

Array = np.ndarray[Any, np.dtype[Any]]

N = Variable("n", 0, 64)
DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32",
          "float64")  # fmt: skip


def selections(x: Tensor, mask: Tensor) -> list[Tensor]:
    """What a plan of them computes at once: x is [n, 3], the mask [n]."""
    rows = x[mask].cast("float64")
    flat = x.cast("float64")[x.ne(0)]
    return [
        x[mask],
        x[mask, 1],
        x.argwhere(),
        flat,
        flat[flat > 1],
        rows.sum(0),
        rows @ rows.T,
        rows.softmax(-1),
        Tensor.concat([rows, x.cast("float64"), rows[::-1]]),
        Tensor.where(mask.reshape(-1, 1), 1, x.cast("float64")).cumsum(0),
        x.unique(),
        *x.unique(return_index=True, return_inverse=True, return_counts=True)[1:],
        Tensor.ones(*rows.shape) + rows,
        rows.reshape(-1).reshape(3, -1),
    ]


def wanted(x: Array, mask: Array) -> list[Array]:
    rows = x[mask].astype(np.float64)
    flat = x.astype(np.float64)[x != 0]
    wide = rows - rows.max(-1, keepdims=True)
    return [
        x[mask],
        x[mask, 1],
        np.argwhere(x),
        flat,
        flat[flat > 1],
        rows.sum(0),
        rows @ rows.T,
        np.exp(wide) / np.exp(wide).sum(-1, keepdims=True),
        np.concatenate([rows, x.astype(np.float64), rows[::-1]]),
        np.where(mask.reshape(-1, 1), 1, x.astype(np.float64)).cumsum(0),
        np.unique(x),
        *np.unique(x, return_index=True, return_inverse=True, return_counts=True)[1:],
        1 + rows,
        rows.reshape(3, -1),
    ]


PLANS: dict[Any, Any] = {}


def plan_for(dtype: str, threads: int) -> Any:
    """One plan for all examples: nothing is compiled for a size."""
    if (dtype, threads) not in PLANS:
        x, mask = Tensor.input("x", (N, 3), dtype), Tensor.input("m", (N,), "bool")
        PLANS[dtype, threads] = semel.prepare(selections(x, mask), threads=threads)
    return PLANS[dtype, threads]


@st.composite
def examples(draw: Any) -> tuple[str, Array, Array]:
    dtype = draw(st.sampled_from(DTYPES))
    rows = draw(st.integers(0, 64))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    top = draw(st.sampled_from([2, 4, 100]))
    x = rng.integers(0, top, (rows, 3)).astype(dtype)
    return dtype, x, rng.random(rows) < draw(st.sampled_from([0.0, 0.5, 1.0]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(examples())
def test_plans_agree_with_numpy(example: tuple[str, Array, Array]) -> None:
    dtype, x, mask = example
    results = [plan_for(dtype, threads)(x=x, m=mask) for threads in (1, 2)]
    for one, other, want in zip(*results, wanted(x, mask), strict=True):
        assert one.shape == want.shape
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one.astype(want.dtype), want, rtol=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_tiles(threads: int) -> None:
    n = Variable("n", 0, 200_000)
    x = Tensor.input("x", (n,))
    plan = semel.prepare([x[x > 0.5], (x[x > 0.5] * 2).sum(), x[x < 0.2]], threads=threads)
    for size in (200_000, 0, 1, 4096, 4097, 123_456):
        data = np.random.default_rng(size).random(size, np.float32)
        high, total, low = plan(x=data)
        np.testing.assert_array_equal(high, data[data > 0.5])
        np.testing.assert_array_equal(low, data[data < 0.2])
        np.testing.assert_allclose(total, 2 * data[data > 0.5].sum(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("fusion", [True, False])
def test_sizes_without_a_maximum_grow(fusion: bool) -> None:
    x = Tensor.input("x", (Variable("n", 0), 2))
    positive = x[x > 0]
    plan = semel.prepare([positive, positive[positive > 1] + 1], fusion=fusion)
    for size in (3, 500, 70, 5000, 0):
        data = np.random.default_rng(size).standard_normal((size, 2), np.float32)
        above, more = plan(x=data)
        np.testing.assert_array_equal(above, data[data > 0])
        np.testing.assert_array_equal(more, data[data > 1] + 1)


def test_ops_on_selected_rows() -> None:
    n = Variable("n", 0, 60)
    k, w = Tensor.input("k", (n, 8)), np.random.default_rng(1).standard_normal((8, 16))
    s = k[k[:, 0] > 0]
    weights = Tensor(w.astype(np.float32))
    plan = semel.prepare(
        {
            "linear": (s @ weights).relu(),
            "batched": s.reshape(1, -1, 8) @ Tensor(np.ones((3, 8, 4), np.float32)),
            "std": s.std(0),
            "padded": s.pad(((1, 2), (0, 0))),
            "first": s[:3],
            "columns": s[:, s.any(0)],
            "attention": semel.scaled_dot_product_attention(s, s, s),
        }
    )
    for size in (60, 33, 1, 60):
        data = np.random.default_rng(size).standard_normal((size, 8), np.float32)
        data[0, 0] = 1.0
        rows = data[data[:, 0] > 0].astype(np.float64)
        scores = rows @ rows.T / np.sqrt(8)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        linear, batched, std, padded, first, columns, attention = plan(k=data)
        np.testing.assert_allclose(linear, np.maximum(rows @ w, 0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(batched, np.tile(rows.sum(1)[:, None], (3, 1, 4)), atol=1e-4)
        np.testing.assert_allclose(std, rows.std(0), atol=1e-4)
        np.testing.assert_allclose(padded, np.pad(rows, ((1, 2), (0, 0))), rtol=1e-6)
        np.testing.assert_allclose(first, rows[:3], rtol=1e-6)
        np.testing.assert_allclose(columns, rows[:, (rows != 0).any(0)], rtol=1e-6)
        wanted = scores / scores.sum(-1, keepdims=True) @ rows
        np.testing.assert_allclose(attention, wanted, atol=1e-4)


def test_what_selected_rows_must_have() -> None:
    x = Tensor.input("x", (9,))
    s, none = x[x > 0], np.zeros(9, np.float32)
    with pytest.raises(semel.VariableError, match=r"indices of axis 0 of i64\[late0\]"):
        s.topk(3)[0].prepare()(x=none)
    with pytest.raises(semel.IndexRangeError, match=r"index must lie in \[0, 0\), got -1"):
        s[-1].prepare()(x=none)
