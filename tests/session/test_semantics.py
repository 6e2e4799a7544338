"""The same cases through every entry point: what a run means does not depend on how it is begun.

Each case is written once, against plain NumPy, and run for all of `ENTRIES` on all of `DEVICES`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.session.entries import DEVICES, ENTRIES, Entry

from semel import CompiledGraph, Graph, InputError, Session, StateError, VariableError

F = np.float32
RNG = np.random.default_rng(7)


@pytest.fixture(params=ENTRIES)
def entry(request: pytest.FixtureRequest) -> Entry:
    return ENTRIES[request.param]


@pytest.fixture(params=DEVICES)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    yield Session(request.param)


def _x(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(-8, 8, shape).astype(F)


# ---------------------------------------------------------------- graphs


def mixer(session: Session, **options: Any) -> CompiledGraph:
    """h' = h + x @ w of any number of rows; two outputs."""
    g = Graph("mixer")
    x, h = g.input("x", ("n", 4)), g.input("h", ("n", 4))
    w = g.param("w", np.eye(4, dtype=F) * 2)
    b = g.input("b", (4,), default=np.ones(4, F))
    g.output("y", h + x @ w + b)
    g.output("mean", x.mean(0))
    return session.compile(g, dims={"n": (1, 9)}, **options)


def rows(session: Session) -> CompiledGraph:
    """A state that grows, and one that is replaced."""
    g = Graph("rows")
    x, k, count = g.input("x", ("n", 4)), g.state("k", (6, 4)), g.state("count", (1,), "int64")
    g.output("sum", k.append(x).sum(0))
    g.output("runs", count + 1, feeds=count)
    return session.compile(g, dims={"n": (1, 6)})


# ---------------------------------------------------------------- cases


def test_sizes_change_from_run_to_run(session: Session, entry: Entry) -> None:
    c = mixer(session)
    for n in (3, 1, 9, 3, 3):
        x, h = _x(n, 4), _x(n, 4)
        out = entry(c, {"x": x, "h": h})
        np.testing.assert_array_equal(out["y"], h + 2 * x + 1)
        np.testing.assert_allclose(out["mean"], x.mean(0), rtol=1e-6)
    assert c.plan.compile_count == 1


def test_given_then_handle_then_default(session: Session, entry: Entry) -> None:
    c = mixer(session)
    x, h, b = _x(3, 4), _x(3, 4), _x(4)
    c.bind_handle("h", h)
    np.testing.assert_array_equal(entry(c, {"x": x})["y"], h + 2 * x + 1)
    np.testing.assert_array_equal(entry(c, {"x": x, "h": x})["y"], 3 * x + 1)
    np.testing.assert_array_equal(entry(c, {"x": x, "b": b})["y"], h + 2 * x + b)
    c.bind_handle("b", b)
    np.testing.assert_array_equal(entry(c, {"x": x})["y"], h + 2 * x + b)
    c.unbind("b")
    np.testing.assert_array_equal(entry(c, {"x": x})["y"], h + 2 * x + 1)


def test_feeds(session: Session, entry: Entry) -> None:
    c = mixer(session)
    h = _x(3, 4)
    c.bind_handle("h", h)
    c.set_gpu_handle_feed("h", 0)
    for _ in range(5):
        x = _x(3, 4)
        h = h + 2 * x + 1
        np.testing.assert_array_equal(entry(c, {"x": x})["y"], h)
        np.testing.assert_array_equal(c.read_handle("h"), h)


def test_states(session: Session, entry: Entry) -> None:
    c = rows(session)
    kept = np.zeros((0, 4), F)
    for k, n in enumerate((2, 1, 3)):
        x = _x(n, 4)
        kept = np.concatenate([kept, x])
        out = entry(c, {"x": x})
        np.testing.assert_array_equal(out["sum"], kept.sum(0))
        assert out["runs"].tolist() == [k + 1]
    np.testing.assert_array_equal(c.read_handle("k"), kept)
    with pytest.raises(StateError, match="6"):
        entry(c, {"x": x[:1]})
    np.testing.assert_array_equal(c.read_handle("k"), kept)
    assert c.read_handle("count") == 3
    c.truncate(2)
    np.testing.assert_array_equal(entry(c, {"x": x})["sum"], kept[:2].sum(0) + x.sum(0))


def test_forks_go_their_own_way(session: Session, entry: Entry) -> None:
    c = rows(session)
    a, b, x = _x(2, 4), _x(1, 4), _x(1, 4)
    entry(c, {"x": a})
    fork = c.fork()
    snapshot = c.snapshot()
    entry(c, {"x": b})
    np.testing.assert_array_equal(entry(fork, {"x": x})["sum"], a.sum(0) + x[0])
    np.testing.assert_array_equal(c.read_handle("k"), np.concatenate([a, b]))
    c.restore(snapshot)
    np.testing.assert_array_equal(entry(c, {"x": x})["sum"], a.sum(0) + x[0])


def test_params(session: Session, entry: Entry) -> None:
    c = mixer(session)
    x, h, w = _x(3, 4), _x(3, 4), _x(4, 4)
    entry(c, {"x": x, "h": h})
    clone = c.clone()
    c.set_param("w", w)
    assert c.params["w"].version == 1
    np.testing.assert_array_equal(entry(c, {"x": x, "h": h})["y"], h + x @ w + 1)
    np.testing.assert_array_equal(entry(clone, {"x": x, "h": h})["y"], h + 2 * x + 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"x": None}, "x"),
        ({"x": np.ones((10, 4), F)}, "n"),
        ({"h": np.ones((2, 4), F)}, "n="),
        ({"x": np.ones((3, 5), F)}, "x"),
        ({"x": np.ones((3, 4), np.int32)}, "dtype"),
    ],
)
def test_what_is_wrong_changes_nothing(
    session: Session, entry: Entry, change: dict[str, Any], match: str
) -> None:
    c = mixer(session)
    good = {"x": _x(3, 4), "h": _x(3, 4)}
    wanted = entry(c, good)["y"]
    given = {k: v for k, v in {**good, **change}.items() if v is not None}
    with pytest.raises((InputError, VariableError), match=match):
        entry(c, given)
    np.testing.assert_array_equal(entry(c, good)["y"], wanted)


def test_clones_on_threads_are_runs_one_after_the_other(session: Session, entry: Entry) -> None:
    c = mixer(session, threads=1)
    x, h = _x(6, 5, 4), _x(6, 5, 4)
    wanted = [entry(c, {"x": a, "h": b})["y"] for a, b in zip(x, h, strict=True)]
    clones = [c.clone() for _ in range(4)]
    found: dict[tuple[int, int], Any] = {}

    def work(number: int) -> None:
        for i in range(6):
            found[number, i] = entry(clones[number], {"x": x[i], "h": h[i]})["y"]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (_, i), y in found.items():
        np.testing.assert_array_equal(y, wanted[i])


@pytest.mark.parametrize("name", ["run", "typed", "committed", "pipelined"])
def test_one_graph_from_many_threads(session: Session, name: str) -> None:
    """Not slots and raw: there the outputs are read when another run may have begun."""
    c, entry = rows(session), ENTRIES[name]
    c.bind_handles({"count": np.zeros(1, np.int64)})
    seen: list[int] = []

    def work() -> None:
        seen.append(int(entry(c, {"x": np.ones((1, 4), F)})["runs"][0]))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]
    assert c.read_handle("k").sum() == 24


def test_entry_points_can_be_mixed(session: Session) -> None:
    c = rows(session)
    kept = np.zeros(4, F)
    for k, entry in enumerate(ENTRIES.values()):
        if k == 6:
            c.truncate(0)
            kept[:] = 0
        x = _x(1, 4)
        kept += x[0]
        np.testing.assert_array_equal(entry(c, {"x": x})["sum"], kept)
