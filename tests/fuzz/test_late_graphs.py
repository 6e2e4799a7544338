"""Random chains of ops with late sizes: plans agree with the references, however they are cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.fuzz.long import long, search

import semel
from semel import OutOfMemoryError, Tensor, Variable, VariableError
from semel.ir.graph import Graph
from semel.ops import late
from semel.ops.evaluate import evaluate

Array = np.ndarray[Any, np.dtype[Any]]
N = Variable("n", 0, 30)

#: Steps on flat integer tensors of any size, late or not.
STEPS: tuple[Callable[[Random, Tensor, Tensor], Tensor], ...] = (
    lambda rng, a, b: a[a > rng.randint(-9, 9)],
    lambda rng, a, b: a[(a % rng.randint(1, 4)).eq(0)],
    lambda rng, a, b: a.unique(),
    lambda rng, a, b: a.unique(return_inverse=True, return_counts=True)[rng.randint(1, 2)],
    lambda rng, a, b: a.nonzero()[0],
    lambda rng, a, b: a.reshape(-1, 1).eq(b.reshape(1, -1)).argwhere().reshape(-1),
    lambda rng, a, b: a.masked_select(a < rng.randint(-9, 9)),
    lambda rng, a, b: Tensor.concat([a, b]),
    lambda rng, a, b: Tensor.concat([a, Tensor.zeros(*b.shape, dtype="int64")])[::-1],
    lambda rng, a, b: a * rng.randint(-3, 3) + b.sum(),
    lambda rng, a, b: a.cumsum() - a,
    lambda rng, a, b: a.sort(descending=rng.random() < 0.5),
    lambda rng, a, b: (a.reshape(-1, 1) * b.reshape(1, -1)).sum(1),
    lambda rng, a, b: a + Tensor.arange(a.shape[0]),
    lambda rng, a, b: _assigned(a, rng.randint(-5, 5)),
)


def _assigned(a: Tensor, pivot: int) -> Tensor:
    """Elements above the pivot, in the other order."""
    made = Tensor(a)
    made[a > pivot] = a[a > pivot][::-1]
    return made


def random_chain(rng: Random) -> list[Tensor]:
    values = [Tensor.input("x", (N,), "int64"), Tensor.input("y", (12,), "int64")]
    for _ in range(rng.randint(2, 6)):
        values.append(rng.choice(STEPS)(rng, rng.choice(values[-3:]), rng.choice(values)) % 1000)
    return [values[-1], rng.choice(values[2:]), values[0]]  # n comes from the shape of x


@pytest.mark.parametrize("seed", range(10))
def test_plans_agree_with_the_references(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    if seed % 2:
        monkeypatch.setattr(late, "TILE", 5)
    check(seed)


@long
def test_plans_agree_with_the_references_for_a_while() -> None:
    def check_what_fits(seed: int) -> None:
        with suppress(OutOfMemoryError):  # pairs of pairs may be more than any machine has
            check(seed)

    search(check_what_fits)


def check(seed: int) -> None:
    tensors = random_chain(Random(seed))
    graph = Graph(tuple(t.node for t in tensors), ("a", "b", "x"))
    named = dict(zip("abx", tensors, strict=True))
    plans = [
        semel.prepare(named, threads=threads, fusion=fusion)
        for threads, fusion in ((1, True), (2, False))
    ]
    for size in (0, 1, 13, 30):
        data = np.random.default_rng(seed + size)
        inputs = {"x": data.integers(-9, 10, size), "y": data.integers(-9, 10, 12)}
        # A size may depend on what no value does.
        used = {name: inputs[name] for name in plans[0].inputs}
        wanted = _attempt(evaluate, graph, used, {"n": size})
        for plan in plans:
            _compare(_attempt(plan, **used), wanted)


def _attempt(run: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The results, or the error of a guard."""
    try:
        return run(*args, **options)
    except VariableError as error:
        return error


def _compare(got: Any, wanted: Any) -> None:
    if isinstance(wanted, VariableError):
        assert str(got) == str(wanted)
        return
    assert not isinstance(got, VariableError), got
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)
