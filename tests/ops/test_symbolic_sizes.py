"""Functions that take sizes, with sizes of the run, and dims that must agree in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.errors import GraphError, VariableError
from semel.ir.dims import minimum

N, M, B = Variable("n", 1, 40), Variable("m", 1, 40), Variable("b", 1, 8)

#: of x [n]: what is computed of a tensor, and what NumPy says for an array
ALONG: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "topk of all": (lambda x: x.topk(N)[0], lambda a: np.sort(a)[::-1]),
    "topk of some": (lambda x: x.topk(minimum(N, 5))[0], lambda a: np.sort(a)[::-1][:5]),
    "smallest": (lambda x: x.topk((N + 1) // 2, largest=False)[0],
                 lambda a: np.sort(a)[: (len(a) + 1) // 2]),
    "split": (lambda x: x.split(split_size=[N // 2, N - N // 2])[1], lambda a: a[len(a) // 2 :]),
    "split twice the size": (lambda x: x.tile(2).split(split_size=N)[1], lambda a: a),
    "chunk": (lambda x: x.repeat(3).chunk(3)[2], lambda a: np.repeat(a, 3)[2 * len(a) :]),
    "arange": (lambda x: semel.arange(0.0, N, 0.5), lambda a: np.arange(0, len(a), 0.5)),
    "arange down": (lambda x: semel.arange(N, -2.5, -1.5), lambda a: np.arange(len(a), -2.5, -1.5)),
    "arange of tenths": (lambda x: semel.arange(1, N + 1, 0.1)[:: 10],
                         lambda a: np.arange(1, len(a) + 1)),
    "arange by the size": (lambda x: semel.arange(0, 100, N), lambda a: np.arange(0, 100, len(a))),
    "arange by either sign": (lambda x: semel.arange(3, 20, N - 20),
                              lambda a: np.arange(3, 20, len(a) - 20)),
    "arange of eighths": (lambda x: semel.arange(0, N, 1.0 / 128 * 9),
                          lambda a: np.arange(0, len(a), 1.0 / 128 * 9)),
    "linspace": (lambda x: semel.linspace(-1, 3, N), lambda a: np.linspace(-1, 3, len(a))),
    "linspace to the size": (lambda x: semel.linspace(N, 2 * N, N + 1),
                             lambda a: np.linspace(len(a), 2 * len(a), len(a) + 1)),
    "roll": (lambda x: x.roll(N // 2 + 1), lambda a: np.roll(a, len(a) // 2 + 1)),
    "roll back": (lambda x: x.reshape(1, N).roll((1, -2 * N - 1), (0, 1)),
                  lambda a: np.roll(a, -1).reshape(1, -1)),
    "one hot": (lambda x: semel.one_hot(Tensor([0, 0]), N), lambda a: np.eye(len(a))[[0, 0]]),
    "pad": (lambda x: x.pad((N, N // 2)), lambda a: np.pad(a, (len(a), len(a) // 2))),
    "tile": (lambda x: x.tile(N, 2), lambda a: np.tile(a, (len(a), 2))),
    "repeat": (lambda x: x.repeat(N), lambda a: np.repeat(a, len(a))),
    "flip": (lambda x: x.flip(0), lambda a: a[::-1]),
    "cumsum": (lambda x: x.cumsum(0), np.cumsum),
    "argmax": (lambda x: x.argmax(0), np.argmax),
    "sort": (lambda x: x.sort(0), np.sort),
    "eye": (lambda x: semel.eye(N, N + 2, 1), lambda a: np.eye(len(a), len(a) + 2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONG)
def test_sizes_of_the_run(name: str) -> None:
    run, truth = ALONG[name]
    x = Tensor.input("x", (N,))
    plan = semel.prepare([run(x), x.sum()], threads=1)
    for size in (1, 2, 7, 19, 21, 40):
        array = np.random.default_rng(size).standard_normal(size, dtype=np.float32)
        got, want = plan(x=array)[0], truth(array)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert plan.compile_count == 1


def test_numbers_that_cannot_be_counted_in_fractions() -> None:
    with pytest.raises(GraphError, match=r"arange.* must be multiples of 1/1,000,000"):
        semel.arange(0, N, 1e-9)


# ---------------------------------------------------------------- dims that must agree

X = np.arange(24, dtype=np.float32)

#: the shapes of two inputs, what is computed of them, sizes that fit and those that do not
AGREE: dict[str, tuple[Any, Any, Callable[..., Any], Callable[..., Any], Any, Any, str]] = {
    "squeeze": ((N, 3), (M,), lambda x, y: x.squeeze(0) + y[:1], lambda a, b: a[0] + b[:1],
                ((1, 3), (2,)), ((2, 3), (2,)), "dim 0 must be 1, got n in f32"),
    "split": ((N,), (M,), lambda x, y: x.split(split_size=[M, 2])[0] * y, lambda a, b: a[:-2] * b,
              ((5,), (3,)), ((6,), (3,)), "dim 0 must be m"),
    "unbind": ((N, 3), (M,), lambda x, y: x.unbind(0, 2)[1] + y[:1], lambda a, b: a[1] + b[:1],
               ((2, 3), (2,)), ((3, 3), (2,)), "dim 0 must be 2, got n"),
    "bias": ((1, 2, N), (M,), lambda x, y: x.conv(np.ones((4, 2, 1), np.float32), bias=y),
             lambda a, b: a.sum(1, keepdims=True) + b.reshape(1, 4, 1),
             ((1, 2, 3), (4,)), ((1, 2, 3), (3,)), "dim 0 must be 4, got m"),
    "diagonal": ((N, M), (1,), lambda x, y: x.diagonal() + y, lambda a, b: np.diagonal(a) + b,
                 ((3, 3), (1,)), ((2, 3), (1,)), "dim 0 must be m, got n"),
    "concat": ((2, N), (1, M), lambda x, y: semel.concat([x, y]),
               lambda a, b: np.concatenate([a, b]),
               ((2, 3), (1, 3)), ((2, 3), (1, 4)), "dims 1 must agree"),
    "matmul": ((2, N), (M, 3), lambda x, y: x @ y, lambda a, b: a @ b,
               ((2, 4), (4, 3)), ((2, 3), (4, 3)), "inner dims must agree"),
    "reshape": ((N,), (M,), lambda x, y: x.reshape(M, 2).sum(1) + y,
                lambda a, b: a.reshape(-1, 2).sum(1) + b,
                ((6,), (3,)), ((7,), (3,)), "the number of elements must stay"),
    "loop": ((N,), (M,), lambda x, y: semel.while_loop(
        lambda s: s.sum() < 50, lambda s: s + s[:1] + y * 0 + 1, x),
        lambda a, b: _doubled(a), ((3,), (3,)), ((3,), (4,)), "dim 0 must be"),
    "branch": ((N,), (M,), lambda x, y: semel.cond(x.sum() > 0, lambda: y * 2, lambda: x * 3),
               lambda a, b: b * 2 if a.sum() > 0 else a * 3,
               ((3,), (3,)), ((1,), (4,)), "dim 0 must be m, got n"),
}  # fmt: skip


def _doubled(a: Any) -> Any:
    while a.sum() < 50:
        a = a + a[:1] + 1
    return a


@pytest.mark.parametrize("name", AGREE)
def test_dims_that_may_agree_are_checked_in_the_run(name: str) -> None:
    shape_x, shape_y, run, truth, fits, fails, sentence = AGREE[name]
    plan = semel.prepare(run(Tensor.input("x", shape_x), Tensor.input("y", shape_y)), threads=1)

    def arrays(shapes: Any) -> dict[str, Any]:
        return {k: X[: np.prod(s)].reshape(s) for k, s in zip("xy", shapes, strict=True)}

    given = arrays(fits)
    np.testing.assert_allclose(plan(**given), truth(given["x"], given["y"]), rtol=1e-5)
    with pytest.raises(VariableError, match=sentence):
        plan(**arrays(fails))
    np.testing.assert_allclose(plan(**given), truth(given["x"], given["y"]), rtol=1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_states_and_lengths_of_cells(cell: str) -> None:
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
    rng = np.random.default_rng(3)
    w = rng.standard_normal((1, gates * 2, 3), dtype=np.float32)
    r = rng.standard_normal((1, gates * 2, 2), dtype=np.float32)

    def made(x: Any, h: Any, lens: Any) -> Any:
        return getattr(semel, cell)(x, w, r, initial_h=h, sequence_lens=lens)[0]

    x, h = Tensor.input("x", (N, B, 3)), Tensor.input("h", (1, M, 2))
    lens = Tensor.input("l", (Variable("k", 1, 40),), "int64")
    plan = semel.prepare(made(x, h, lens), threads=1)
    for steps, batch in ((4, 2), (1, 1), (7, 3)):
        a = rng.standard_normal((steps, batch, 3), dtype=np.float32)
        start = rng.standard_normal((1, batch, 2), dtype=np.float32)
        lengths = rng.integers(1, steps + 1, batch)
        want = made(Tensor(a), Tensor(start), Tensor(lengths)).numpy()
        np.testing.assert_allclose(plan(x=a, h=start, l=lengths), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(VariableError, match="dim 1 must be b, got m in f32"):
        plan(x=a, h=start[:, :2], l=lengths)
    with pytest.raises(VariableError, match="dim 0 must be b, got k in i64"):
        plan(x=a, h=start, l=lengths[:2])


def test_scales_along_an_axis_and_by_blocks() -> None:
    x = Tensor.input("x", (2, N))
    each = x.quantize_linear(Tensor.input("s", (M,)), 0, axis=1, dtype="int8")
    blocks = x.quantize_linear(Tensor.input("t", (2, B)), 0, axis=1, dtype="int8", block_size=2)
    plan = semel.prepare([each, blocks], threads=1)
    a = np.arange(12, dtype=np.float32).reshape(2, 6) - 5
    t = np.array([[1, 2, 4], [2, 1, 1]], np.float32)
    for s in (np.array([2], np.float32), np.array([1, 2, 4, 1, 2, 4], np.float32)):
        got = plan(x=a, s=s, t=t)
        np.testing.assert_array_equal(got[0], np.rint(a / s).astype(np.int8))
        np.testing.assert_array_equal(got[1], np.rint(a / t.repeat(2, 1)).astype(np.int8))
    with pytest.raises(VariableError, match="must be 1 or n to broadcast, got m in f32"):
        plan(x=a, s=np.ones(5, np.float32), t=t)


@pytest.mark.parametrize("reduce", ["set", "sum"])
def test_an_index_that_is_no_larger_than_what_it_writes_to(reduce: str) -> None:
    x, i = Tensor.input("x", (5, N)), Tensor.input("i", (2, M), "int64")
    plan = semel.prepare(x.scatter(0, i, 9.0, reduce), threads=1)
    a, at = np.zeros((5, 4), np.float32), np.array([[0, 1, 2], [3, 4, 0]])
    want = a.copy()
    want[at, np.arange(3)] = 9
    np.testing.assert_array_equal(plan(x=a, i=at), want)
    with pytest.raises(VariableError, match=r"indices of axis 0 of i64\[n\] must lie in"):
        plan(x=a[:, :2].copy(), i=at)
