"""Runs that do not end well: what they had not reached is as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import semel
from semel import Graph
from semel.plan.instantiate import instantiate
from semel.plan.limits import RunLimits
from semel.plan.plan import ExecutionPlan
from semel.plan.readers import Copies
from semel.plan.rows import PreparedCustomFunction, PreparedOp
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function, unregister_custom_function

NAME = "state_failures_call"
X = np.ones((5, 7), np.float32)


class Odd(Exception):  # noqa: N818
    pass


@pytest.fixture
def calls() -> Iterator[dict[int, Callable[[], object]]]:
    """What the calls in a plan do, by their numbers."""
    todo: dict[int, Callable[[], object]] = {}

    @custom_function(NAME)
    def call(attrs: Any, buffers: Sequence[Buffer], variables: Any) -> None:
        todo.get(attrs, lambda: None)()

    yield todo
    unregister_custom_function(NAME)


def chained(rows: Sequence[PreparedOp]) -> tuple[PreparedOp, ...]:
    """The rows in this order, with a call before each and one behind the last."""
    found: list[PreparedOp] = []
    for number, row in enumerate((*rows, None)):
        before = (found[-1].id,) if found else ()
        call = PreparedCustomFunction(1000 + number, NAME, number, (), dependencies=before)
        found.append(call)
        if row is not None:
            found.append(replace(row, dependencies=(call.id,)))
    return tuple(found)


def stepping(threads: int = 1) -> ExecutionPlan:
    """call 0, a is updated, call 1, b is updated, call 2; rows are appended to c anywhere."""
    g = Graph("stepping")
    x, a, b = g.input("x", (5, 7)), g.state("a", (64,)), g.state("b", (5, 7))
    c = g.state("c", (8, 7))
    a.replace(a + 1)
    g.output("y", b.replace(b + x) * 1)
    c.append(x[:1])
    program = g.prepare().program
    rows = {name: [r for r in program.rows if _writes(program, r, name)] for name in "abc"}
    order = [*rows["a"], *(r for r in program.rows if r not in rows["a"])]
    assert len(rows["a"]) == 1 and rows["a"] != rows["b"]
    return instantiate(replace(program, rows=chained(order)), threads=threads)


def _writes(program: Any, row: Any, name: str) -> bool:
    index = next(s.index for s in program.states if s.name == name)
    specs = zip(row.buffer_indices, row.kernel.signature.buffers, strict=True)
    return any(arg == index and "w" in spec.access for arg, spec in specs)


def fail() -> None:
    raise Odd


def valid(plan: ExecutionPlan) -> dict[str, bool]:
    return {name: info.is_valid for name, info in plan.states.items()}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [0, 1, -1])
def test_what_a_run_had_not_come_to_is_as_it_was(
    calls: dict[int, Callable[[], object]], at: int, threads: int
) -> None:
    plan = stepping(threads)
    plan(x=X)
    number = at % sum(isinstance(op, PreparedCustomFunction) for op in plan.prepared_ops)
    calls[number] = fail
    with pytest.raises(semel.CustomFunctionError, match="raised Odd"):
        plan(x=X)
    assert valid(plan) == {"a": at == 0, "b": at != -1, "c": True}
    for name, one in (("a", 1), ("b", 1), ("c", 1)):
        if plan.states[name].is_valid:
            assert (plan.states.read(name) == one).all()
        else:
            with pytest.raises(semel.StateError, match=f"'{name}'. is invalid"):
                plan.states.read(name)
    assert plan.states.cursors == {"cursor": 1}
    calls.clear()
    if at == 0:
        plan(x=X)
        assert (plan.states.read("a") == 2).all() and plan.states.cursors == {"cursor": 2}


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_before_the_first_update(
    calls: dict[int, Callable[[], object]], interruption: type[BaseException]
) -> None:
    def stop() -> None:
        raise interruption

    plan = stepping()
    calls[0] = stop
    with pytest.raises(interruption):
        plan(x=X)
    assert all(valid(plan).values())


def test_a_run_that_is_cancelled_by_itself(calls: dict[int, Callable[[], object]]) -> None:
    plan = stepping()
    plan(x=X)
    for number, expected in ((0, {"a": True, "b": True}), (1, {"a": False, "b": True})):
        calls[number] = plan.cancel
        with pytest.raises(semel.CancelledError, match="was cancelled before step"):
            plan(x=X)
        calls.clear()
        assert valid(plan) == {**expected, "c": True}


def test_a_run_without_any_time() -> None:
    g = Graph("counter")
    x, s = g.input("x", (5, 7)), g.state("s", (5, 7))
    g.output("y", s + x, feeds=s)
    plan = g.prepare()
    plan(x=X)
    with pytest.raises(semel.TimedOutError, match="must be over within 0"):
        plan.calls.run({"x": X}, Copies(), limits=RunLimits(0))
    assert plan.states["s"].is_valid and (plan.states.read("s") == 1).all()
    assert (plan(x=X) == 2).all()


def test_a_run_that_is_refused_changes_nothing() -> None:
    g = Graph("refused")
    x, s, n = g.input("x", ("t", 7)), g.state("s", (7,)), g.state("n", (4, 7))
    g.output("y", s + x.sum(0), feeds=s)
    n.append(x)
    plan = g.prepare(dims={"t": (1, 4)})
    plan(x=X[:3])
    for wrong, error, match in (
        (X[:2], semel.StateError, "must end at or before 4"),
        (X, semel.InputError, r"must lie in \[1, 4\]"),
        (X[:1, :3], semel.InputError, "shape must be"),
        (X[:1].astype(np.int32), semel.InputError, "float32"),
    ):
        with pytest.raises(error, match=match):
            plan(x=wrong)
        assert valid(plan) == {"s": True, "n": True}
    with pytest.raises(semel.InputError, match="input"):
        plan(y=X)
    assert (plan(x=X[:1]) == 4).all() and plan.states.cursors == {"cursor": 4}
