"""`fetch=` of compiled graphs: what only other outputs need is skipped, on every entry point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semel import CompiledGraph, Graph, Session, Tensor
from semel.errors import StaleError, TimedOutError

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
W = np.linspace(-2, 2, 64, dtype=np.float32).reshape(8, 8)


def compiled(**options: Any) -> CompiledGraph:
    """A matrix for one output, another for the other."""
    g = Graph("two")
    x = g.input("x", (3, 8))
    g.output("left", (x @ Tensor(W)).tanh())
    g.output("right", (x.flip(1) @ Tensor(W)).exp())
    return Session("cpu").compile(g, threads=1, **options)


def skipped(c: CompiledGraph) -> int:
    """How many operations the last run did not do."""
    return len(c.plan.engine.ways.now.skipped)


RUNS: dict[str, Callable[[CompiledGraph, Any], Any]] = {
    "run": lambda c, fetch: c.run(X, fetch=fetch)[0],
    "out": lambda c, fetch: c.run(X, fetch=fetch, out=[np.empty((3, 8), np.float32)])[0],
    "raw": lambda c, fetch: c.run_raw(X, fetch=fetch)[0].numpy(),
    "typed": lambda c, fetch: np.frombuffer(
        c.run_typed({"x": (X.tobytes(), "float32")}, fetch=fetch)[0].data, np.float32
    ).reshape(3, 8),
    "commit": lambda c, fetch: c.commit_no_wait(X, fetch=fetch).result()[0],
}


@pytest.mark.parametrize("way", RUNS)
def test_what_is_not_fetched_is_not_computed(way: str) -> None:
    c = compiled()
    expected = c.run(X)
    assert skipped(c) == 0
    for _ in range(2):
        for name in ("left", "right", "right"):
            np.testing.assert_array_equal(RUNS[way](c, [name]), expected[name])
            assert skipped(c) >= 1
    np.testing.assert_array_equal(c.run(X)["left"], expected["left"])
    assert skipped(c) == 0


def test_a_view_of_an_output_is_stale_after_a_run_for_another() -> None:
    c = compiled()
    left = c.run_raw(X)["left"]
    c.run(X, fetch=["right"])
    with pytest.raises(StaleError, match="ran again"):
        left.numpy()


def test_fetch_and_timeout_go_together() -> None:
    c = compiled()
    expected = c.run(X)["left"]
    with pytest.raises(TimedOutError, match="within 0 s"):
        c.run(X, fetch=["left"], timeout=0)
    np.testing.assert_array_equal(c.run(X, fetch=["left"], timeout=100)[0], expected)


def test_an_output_that_feeds_a_handle_is_computed_whoever_reads_it() -> None:
    g = Graph("fed")
    x, h = g.input("x", (8,)), g.input("h", (8,))
    g.output("next", h.flip(0) + x)
    g.output("double", (x.reshape(1, 8) @ Tensor(W)).reshape(8))
    c = Session("cpu").compile(g, threads=1)
    c.bind_handle("h", np.zeros(8, np.float32))
    c.set_gpu_handle_feed("h", 0)
    now = np.zeros(8, np.float32)
    for turn in range(4):
        array = np.arange(8, dtype=np.float32) + turn
        found = c.run(x=array, fetch=["double"])
        now = now[::-1] + array
        np.testing.assert_allclose(found[0], array @ W, rtol=1e-5)
    np.testing.assert_array_equal(c.read_handle("h"), now)


def test_states_go_on_in_runs_that_fetch_nothing() -> None:
    g = Graph("counting")
    x, total = g.input("x", (8,)), g.state("total", (8,))
    g.output("total", total + x, feeds=total)
    g.output("other", x.softmax())
    c = Session("cpu").compile(g, threads=1)
    for _ in range(3):
        assert len(c.run(np.ones(8, np.float32), fetch=[])) == 0
    np.testing.assert_array_equal(c.run(np.ones(8, np.float32))["total"], np.full(8, 4))
