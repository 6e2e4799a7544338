"""Runs that are over later: order, staged inputs, errors, depth."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from semel import Graph, IndexRangeError, InputError, PlanError, Session
from semel.session.compiled import CompiledGraph

F = np.float32


def _counter(depth: int = 4) -> CompiledGraph:
    g = Graph("counter")
    x, total = g.input("x", (4,)), g.state("total", (4,))
    g.output("sum", total + x, feeds=total)
    g.output("double", x * 2)
    return Session().compile(g, depth=depth)


def test_a_ticket_has_what_a_run_gives() -> None:
    c = _counter()
    ticket = c.commit_no_wait({"x": np.ones(4, F)})
    assert ticket.result()["sum"].tolist() == [1] * 4
    assert ticket.done()
    assert ticket.result(fetch=["double"])[0].tolist() == [2] * 4
    assert ticket.exception() is None


def test_inputs_may_be_overwritten_at_once() -> None:
    c, x = _counter(depth=8), np.zeros(4, F)
    tickets = []
    for k in range(20):
        x[:] = k
        tickets.append(c.commit_no_wait(x))
        x[:] = -1
    sums = [t.result()["sum"][0] for t in tickets]
    assert sums == np.cumsum(np.arange(20)).tolist()


def test_pipelined_runs_are_runs_one_after_the_other() -> None:
    sets = [{"x": np.full(4, k, F)} for k in range(12)]
    one, other = _counter(), _counter()
    wanted = [one.run(s) for s in sets]
    found = other.run_pipelined(sets)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a["sum"], b["sum"])
        np.testing.assert_array_equal(a["double"], b["double"])
    assert other.run_pipelined([]) == []
    assert len(list(other.stream((s["x"],) for s in sets))) == 12


def test_everything_else_comes_after_what_is_pending() -> None:
    c = _counter()
    for _ in range(3):
        c.commit_no_wait(np.ones(4, F))
    assert c.run(np.ones(4, F))["sum"][0] == 4
    c.commit_no_wait(np.ones(4, F))
    assert c.read_handle("total")[0] == 5
    c.commit_no_wait(np.ones(4, F))
    assert c.clone().read_handle("total")[0] == 6
    c.commit_no_wait(np.ones(4, F))
    snapshot = c.snapshot()
    c.commit_no_wait(np.ones(4, F))
    c.restore(snapshot)
    assert c.read_handle("total")[0] == 7
    c.sync_pending()


def test_bad_inputs_are_refused_at_once() -> None:
    c = _counter()
    with pytest.raises(InputError, match="dtype"):
        c.commit_no_wait(np.ones(4))
    with pytest.raises(InputError, match="must be given x"):
        c.commit_no_wait()
    assert c.run(np.ones(4, F))["sum"][0] == 1


def test_an_error_is_the_ticket_s_and_seen_once() -> None:
    g = Graph("take")
    i = g.input("i", (1,), "int64")
    g.output("y", g.constant(np.arange(4, dtype=F)).take(i, 0))
    c = Session().compile(g)
    good, bad = np.array([3]), np.array([9])
    first, failed, last = (c.commit_no_wait(i) for i in (good, bad, good))
    assert first.result()[0] == 3
    with pytest.raises(IndexRangeError, match="9"):
        failed.result()
    assert last.result()[0] == 3
    c.sync_pending()
    c.commit_no_wait(bad)
    with pytest.raises(IndexRangeError, match="9"):
        c.sync_pending()
    c.sync_pending()
    assert c.run(good)[0] == 3


def test_errors_that_nobody_asks_for_do_not_pile_up() -> None:
    g = Graph("take")
    i = g.input("i", (1,), "int64")
    g.output("y", g.constant(np.arange(4, dtype=F)).take(i, 0))
    c = Session().compile(g)
    for k in range(9, 200):
        c.commit_no_wait(np.array([k]))
    assert "got 200" in str(c.commit_no_wait(np.array([200])).exception())
    assert c._pipeline is not None
    assert len(c._pipeline._unseen) < 20
    with pytest.raises(IndexRangeError, match="got 9"):
        c.sync_pending()
    c.sync_pending()


def test_tickets_can_be_awaited() -> None:
    c = _counter()

    async def both() -> list[float]:
        tickets = [c.commit_no_wait(np.full(4, k, F)) for k in (1, 2)]
        return [float((await t)["sum"][0]) for t in tickets]

    assert asyncio.run(both()) == [1, 3]


def test_wrong_shapes_and_limits_are_refused_at_once() -> None:
    g = Graph("add")
    g.output("y", g.input("a", ("n",)) + g.input("b", ("n",)))
    c = Session().compile(g, dims={"n": (1, 8)})
    three = np.ones(3, F)
    for a, b, match in ((three, three[:2], "n=2"), (three[None], three, "rank")):
        with pytest.raises(InputError, match=match):
            c.commit_no_wait(a, b)
    with pytest.raises(PlanError, match="timeout"):
        c.commit_no_wait(three, three, timeout=-1)
    with c.plan.lock:  # so that it is not over
        ticket = c.commit_no_wait(three, three)
        for timeout in (-1, "soon", float("nan"), True):
            with pytest.raises(PlanError, match="timeout must be seconds"):
                ticket.result(timeout=timeout)  # type: ignore[arg-type]
    for fetch in (["y", "y"], "y", [0], ["z"]):
        with pytest.raises(InputError, match=r"name|no output"):
            ticket.result(fetch=fetch)  # type: ignore[arg-type]
    assert ticket.result(fetch=iter(["y"]))["y"].tolist() == [2] * 3


def test_a_run_is_begun_while_another_one_has_the_plan() -> None:
    c = _counter()
    c.commit_no_wait(np.ones(4, F)).result()
    begun = threading.Event()

    def begin() -> None:
        c.commit_no_wait(np.ones(4, F))
        begun.set()

    with c.plan.lock:  # as a run has it for as long as it takes
        thread = threading.Thread(target=begin)
        thread.start()
        assert begun.wait(100)
    thread.join()
    c.sync_pending()
    assert c.read_handle("total")[0] == 2


def test_inputs_that_stay_are_those_of_the_run_before() -> None:
    g = Graph("add")
    g.output("y", g.input("a", (2,)) + g.input("b", (2,)))
    c = Session().compile(g, sticky=True)
    one, is_held = np.ones(2, F), threading.Event()

    def hold() -> None:
        with c.plan.lock:  # as a run has it for as long as it takes
            is_held.set()
            time.sleep(0.05)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    tickets = [c.commit_no_wait(a=one, b=one), c.commit_no_wait(b=one * 2)]
    assert [t.result()["y"][0] for t in tickets] == [2, 3]
    thread.join()
