"""Deep, wide, empty, tiny and high-dimensional graphs are right, and compile at all.

What would take exponential time ends at the time limit that every test has.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph
from tests.codegen.machine import Native

import semel
from semel import Tensor, Variable
from semel.devices.cpu.toolchain import host_target
from semel.ir.expr import evaluate as evaluate_dim
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate


def check(outputs: Tensor | list[Tensor], *, rtol: float = 1e-4, **arrays: Any) -> None:
    tensors = outputs if isinstance(outputs, list) else [outputs]
    results = semel.prepare(tensors)(**arrays)
    want = evaluate(Graph(tuple(t.node for t in tensors)), arrays)
    for g, w in zip(results if len(tensors) > 1 else [results], want, strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol)


X = np.linspace(-2, 2, 17, dtype=np.float32)


def test_a_chain_of_five_thousand_ops() -> None:
    x = t = Tensor.input("x", (17,))
    for i in range(5000):
        t = t * 0.999 if i % 2 else t + 0.25
    check(t, x=X)
    assert x.shape == (17,)


def test_a_chain_of_two_thousand_views() -> None:
    t = Tensor.input("x", (17,))
    for i in range(1000):
        t = t.flip(0) if i % 3 else t.roll(1)
    check(t, x=X)


@pytest.mark.parametrize("steps", [60, 300])
def test_a_chain_of_reshapes_that_do_not_cancel(steps: int) -> None:
    t = Tensor.input("x", (12,)).reshape(3, 4)
    for _ in range(steps):
        t = t.reshape(4, 3).T
    check(t, x=X[:12].copy())


def test_a_tower_of_paddings_and_concatenations() -> None:
    t = Tensor.input("x", (17,))
    for i in range(60):
        t = Tensor.concat([t[1:], t[:1] * 0.5]) if i % 2 else t.pad(((0, 1),))[1:]
    check(t, x=X)


def test_two_thousand_nodes_with_shared_operands() -> None:
    rng = Random(1)
    values = [Tensor.input("x", (17,)), Tensor.input("y", (17,))]
    for _ in range(2000):
        a, b = rng.choice(values[-20:]), rng.choice(values[-20:])
        values.append((a + b) * 0.5 if rng.random() < 0.7 else a.maximum(b) - 0.125)
    check(values[-5:], x=X, y=X[::-1].copy())


def test_a_hundred_layers() -> None:
    t = Tensor.input("x", (4, 16))
    weight = Tensor(np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32) / 4)
    for _ in range(100):
        t = (t @ weight).tanh().layer_norm() + t * 0.5
    # Each layer's norm spreads the roundings of the one before it.
    check(t, rtol=2e-3, x=np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32))


@pytest.mark.parametrize("join", ["concat", "stack", "sum"])
def test_three_hundred_operands(join: str) -> None:
    parts = [Tensor.input(f"x{i}", (3,)) for i in range(300)]
    builds: dict[str, Callable[[], Tensor]] = {
        "concat": lambda: Tensor.concat(parts) * 2,
        "stack": lambda: Tensor.stack(parts, 1) + 1,
        "sum": lambda: sum(parts[1:], parts[0]),
    }
    arrays: dict[str, Any] = {f"x{i}": X[:3] + np.float32(i) for i in range(300)}
    check(builds[join](), **arrays)


def test_three_hundred_outputs() -> None:
    x = Tensor.input("x", (17,))
    check([x * i + 1 for i in range(300)], x=X)


@pytest.mark.parametrize("rank", [1, 5, 8])
def test_ranks_up_to_eight(rank: int) -> None:
    sizes = (2, 3, 1, 2, 2, 3, 1, 2)[:rank]
    x = np.random.default_rng(2).normal(size=sizes).astype(np.float32)
    t = Tensor.input("x", sizes)
    axes = tuple(range(0, rank, 2))
    check([t.permute(*reversed(range(rank))) + 1, t.sum(axes), t.softmax(axes), t.flip()], x=x)


UNARY = ("exp", "neg", "sum", "argmax", "softmax", "cumsum", "sort", "flatten", "var", "isnan")


@pytest.mark.parametrize("name", UNARY)
def test_everything_works_without_dimensions(name: str) -> None:
    t = Tensor.input("x", ())
    args: tuple[Any, ...] = {"softmax": ((),), "sort": (None,)}.get(name, ())
    check(getattr(t, name)(*args), x=np.float32(0.5).reshape(()))


def test_a_large_constant_is_held_once() -> None:
    weight = np.random.default_rng(3).normal(size=(1 << 20,)).astype(np.float32)
    x = Tensor.input("x", (1,))
    plan = (Tensor(weight) * x).prepare()
    np.testing.assert_array_equal(plan(x=np.full(1, 2, np.float32)), weight * 2)
    assert plan.memory.weights_bytes <= 1.5 * weight.nbytes


LONG = 1 << 31  # three rows of it have more bytes than 32 bits can count
WIDTH = 60  # how many elements are looked at


def reserve(size: int) -> np.ndarray:
    """Zeros that take no memory until they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)


#: A tensor of x[3, LONG]; the elements of x that its last ones are made of; what these are then.
FAR: dict[str, tuple[Callable[[Tensor], Tensor], Any, Callable[[np.ndarray], np.ndarray]]] = {
    "flip": (lambda x: x.flip(1) + 1, np.s_[2, :WIDTH], lambda p: p[::-1] + 1),
    "transpose": (lambda x: x.T + 1, np.s_[:, -WIDTH // 3 :], lambda p: p.T.reshape(-1) + 1),
    "step": (lambda x: x[:, ::3] * 2, np.s_[2, -3 * WIDTH + 1 :: 3], lambda p: p * 2),
    "sum": (
        lambda x: x.reshape(LONG, 3).max(1) + 1,
        np.s_[2, -3 * WIDTH :],
        lambda p: p.reshape(-1, 3).max(1) + 1,
    ),
}


@pytest.mark.parametrize("name", FAR)
def test_offsets_are_64_bits_wide(name: str) -> None:
    """The last tile of a tensor that has more elements than 32 bits can count."""
    build, key, expected = FAR[name]
    _, (lowered,) = lower_graph([build(Tensor.input("x", (3, LONG), "uint8"))])
    x = reserve(3 * LONG)
    pattern = np.arange(1, 1 + WIDTH * 3, dtype=np.uint8)
    source = x.reshape(3, LONG)[key]
    source[...] = pattern[: source.size].reshape(source.shape)
    assert isinstance(lowered.kernel.tiles, int)
    out = reserve(evaluate_dim(lowered.args[0].type.num_elements, {}))
    Native(lowered.kernel, host_target()).run([out, x], last_tiles=2)
    want = expected(source)
    np.testing.assert_array_equal(out[-want.size :], want)


def test_a_variable_may_be_zero_at_any_run() -> None:
    n = Variable("n", 0, 100)
    x = Tensor.input("x", (n, 3))
    outputs = [x.sum(0), x.sum(1), x.softmax(1), x @ x.T, x.T.cumsum(1), x.sort(0), x.flip(0),
               Tensor.concat([x, x]), x.sum()]  # fmt: skip
    plan = semel.prepare(outputs)
    graph = Graph(tuple(t.node for t in outputs))
    for rows in (4, 0, 100, 0, 1):
        data = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
        for g, w in zip(plan(x=data), evaluate(graph, {"x": data}), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


def test_a_variable_without_maximum_grows() -> None:
    n = Variable("n", 1, None)
    x = Tensor.input("x", (n, 7))
    plan = semel.prepare([x.softmax(1), (x * 2).sum(0), x.T.sort(1)])
    graph = Graph((x.softmax(1).node, (x * 2).sum(0).node, x.T.sort(1).node))
    for rows in (1, 3, 1000, 2, 20_000, 5):
        data = np.random.default_rng(rows).normal(size=(rows, 7)).astype(np.float32)
        for g, w in zip(plan(x=data), evaluate(graph, {"x": data}), strict=True):
            # 20,000 numbers of 1 add up to some 140, in another order than the reference's
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)
    assert plan.compile_count == 1


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_go_where_numpy_sends_them(special: float) -> None:
    x = np.arange(40, dtype=np.float32).reshape(2, 20)
    x[1, 7] = special
    t = Tensor.input("x", (2, 20))
    with np.errstate(all="ignore"):
        expected = [x.max(1), x.min(1), x.argmax(1), x.argmin(1), x.sum(1), np.sort(x, 1),
                    np.maximum(x, 3), np.where(x > 3, x, 0), x.cumsum(1)]  # fmt: skip
    outputs = [t.max(1), t.min(1), t.argmax(1), t.argmin(1), t.sum(1), t.sort(1), t.maximum(3),
               (t > 3).where(t, 0), t.cumsum(1)]  # fmt: skip
    for got, want in zip(semel.prepare(outputs)(x=x), expected, strict=True):
        np.testing.assert_array_equal(got, want)
