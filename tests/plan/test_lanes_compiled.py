"""Compiled programs whose rows are put on lanes at random: the same bits as on one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import semel
from semel import ExecutionPlan, Tensor, Variable
from semel.errors import PlanError
from semel.plan.instantiate import instantiate
from semel.plan.program import Program
from semel.plan.rows import PreparedOp
from semel.plan.tree import map_rows
from semel.runtime.laned import LanedExecutable

RNG = np.random.default_rng(0)
W = [RNG.standard_normal((8, 8), dtype=np.float32) for _ in range(4)]
ROWS = Variable("n", 1, 16)
ANY = Variable("n", 1)


def x(rows: Any = ROWS) -> Tensor:
    return Tensor.input("x", (rows, 8), "float32")


def _layers(rows: Any = ROWS) -> list[Tensor]:
    y = x(rows)
    for w in W:
        y = (y @ Tensor(w)).softmax(-1)
    return [y, (x(rows) @ Tensor(W[0])).sum(0)]


def _loop() -> list[Tensor]:
    return [x().cumsum(0) @ Tensor(W[0]), (x() @ Tensor(W[1])).softmax(-1)]


def _while() -> list[Tensor]:
    start = (x() @ Tensor(W[0])).abs() + 1
    y = semel.while_loop(lambda h: h.sum() < 1e4, lambda h: h * 2, start)
    return [semel.cond(y.max() > 9, lambda: y @ Tensor(W[1]), lambda: y), x().softmax(-1)]


def _late() -> list[Tensor]:
    y = x().softmax(-1)
    return [(y @ Tensor(W[0])).softmax(-1), y.masked_select(y > 0.1) * 2]


GRAPHS: dict[str, Callable[[], list[Tensor]]] = {
    "layers": _layers,
    "loop": _loop,
    "while": _while,
    "late": _late,
}


def on_lanes(program: Program, rng: random.Random) -> Program:
    """The program with some of its outermost rows, and what is inside them, on the copy lane."""

    def moved(row: PreparedOp) -> PreparedOp:
        (found,) = map_rows((row,), lambda inner: replace(inner, lane="copy"))
        return found

    rows = tuple(moved(row) if rng.random() < 0.5 else row for row in program.rows)
    return replace(program, rows=rows)


def spread(program: Program, count: int) -> list[ExecutionPlan]:
    """Plans over two lanes, for the first seeds that put rows where they may be."""
    found: list[ExecutionPlan] = []
    for seed in range(100):
        try:
            plan = instantiate(on_lanes(program, random.Random(seed)), threads=2)
        except PlanError as error:
            assert "on lane cpu/compute" in str(error)  # late variables stay there
            continue
        if isinstance(plan.engine.executable, LanedExecutable):
            found.append(plan)
        if len(found) == count:
            return found
    raise AssertionError("no seed gives enough plans over two lanes")


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", GRAPHS)
def test_compiled_programs_on_random_lanes(name: str) -> None:
    plan = semel.prepare(GRAPHS[name](), threads=1)
    data = [RNG.standard_normal((n, 8), dtype=np.float32) for n in (3, 16, 1)]
    want = [flat(plan(x=array)) for array in data]
    for made in spread(plan.program, 5):
        for array, expected in zip(data, want, strict=True):
            for found, right in zip(flat(made(x=array)), expected, strict=True):
                np.testing.assert_array_equal(found, right)


def test_memory_grows_on_all_lanes() -> None:
    plan = semel.prepare(_layers(ANY), threads=1)
    (made,) = spread(plan.program, 1)
    for rows in (3, 500, 2, 3000):
        array = RNG.standard_normal((rows, 8), dtype=np.float32)
        for found, right in zip(flat(made(x=array)), flat(plan(x=array)), strict=True):
            np.testing.assert_array_equal(found, right)
    assert made.growths > 0


def test_params_are_swapped_on_all_lanes() -> None:
    y = x(4)
    for k in range(3):
        y = (y @ Tensor.param(f"w{k}", W[k])).softmax(-1)
    plan = y.prepare(threads=1)
    laned = spread(plan.program, 4)
    array = RNG.standard_normal((4, 8), dtype=np.float32)
    for made in laned:
        np.testing.assert_array_equal(made(x=array), plan(x=array))
    for made in (plan, *laned):
        made.set_param("w1", W[3])
    want = plan(x=array)
    for made in laned:
        np.testing.assert_array_equal(made(x=array), want)


def _decoder(with_count: bool) -> ExecutionPlan:
    """Rows of a table are appended to a state; an index that is not in the table fails."""
    graph = semel.Graph("decoder")
    ids = graph.input("ids", (1,), "int64")
    cache = graph.state("cache", (6, 8))
    row = (Tensor(W[0]).take(ids, 0) @ Tensor(W[1])).softmax(-1)
    seen = cache.append(row)
    graph.output("y", (seen @ Tensor(W[2])).softmax(-1).sum(0))
    if with_count:
        count = graph.state("count", (1,))
        graph.output("count", count + 1, feeds=count)
    return graph.prepare(threads=1)


@pytest.mark.parametrize("with_count", [False, True])
def test_state_goes_on_when_all_lanes_have_succeeded(with_count: bool) -> None:
    """A run that fails on any lane moves no cursor on, and spoils what is updated in place."""
    first = _decoder(with_count)
    want: list[Any] = []
    for made in [first, *spread(first.program, 6)]:
        found: list[Any] = []
        for token in (1, 5, 77, 2, 7):
            if token == 77:
                with pytest.raises(semel.IndexRangeError, match="77"):
                    made(ids=np.array([token]))
                if with_count:
                    with pytest.raises(
                        semel.errors.StateError, match=r"state 'count'\] is invalid"
                    ):
                        made(ids=np.array([1]))
                    made.states.write({"count": np.full(1, 9, np.float32)})
            else:
                found += flat(made(ids=np.array([token])))
        want = want or found
        for one, right in zip(found, want, strict=True):
            np.testing.assert_array_equal(one, right)
