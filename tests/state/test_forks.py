"""Clones of plans with large states: what neither side writes exists once."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.forks import in_child

import semel
from semel import Graph
from semel.plan.plan import ExecutionPlan

ROOM, WIDTH = 4096, 64  #: a state of 1 MiB
PAGE, MIB = 4096, 1 << 20


def rows_plan(threads: int = 1) -> ExecutionPlan:
    """Rows are appended, and their sum is kept beside them."""
    g = Graph("rows")
    x, s = g.input("x", ("t", WIDTH)), g.state("s", (ROOM, WIDTH))
    total = g.state("total", (WIDTH,))
    g.output("y", s.append(x).sum(0))
    total.replace(total + x.sum(0))
    return g.prepare(dims={"t": (1, 1024)}, threads=threads)


def rows(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float32)[:, None] + np.ones(WIDTH, np.float32)


@pytest.fixture
def is_told() -> None:
    if not Path("/proc/self/pagemap").exists():
        pytest.skip("this system does not say which pages were written")


def test_forks_take_what_they_append(is_told: None) -> None:
    plan = rows_plan()
    plan(x=rows(0, 1024))  # 256 KiB
    forks = [plan.clone() for _ in range(4)]
    for number, fork in enumerate(forks):
        fork(x=rows(number, 1))
    base = plan.states.memory.shared_bytes
    assert MIB / 4 <= base <= MIB / 2
    for number, fork in enumerate(forks):
        memory = fork.states.memory
        assert memory.reserved_bytes > MIB and memory.shared_bytes == base
        assert 0 < memory.own_bytes <= 4 * PAGE  # the page of the row, and that of the sum
        np.testing.assert_array_equal(fork.states.read("s")[-1], rows(number, 1)[0])
        np.testing.assert_array_equal(fork.states.read("s")[:-1], rows(0, 1024))
    np.testing.assert_array_equal(plan.states.read("s"), rows(0, 1024))


def test_a_plan_that_goes_on_shares_what_it_had(is_told: None) -> None:
    plan = rows_plan()
    plan(x=rows(0, 1024))
    first = plan.clone()
    for step in range(20):  # a fork at each step, as a search makes them
        plan(x=rows(step, 1))
        plan.clone()
    assert plan.states.memory.own_bytes + plan.states.memory.shared_bytes < MIB
    np.testing.assert_array_equal(first.states.read("s"), rows(0, 1024))
    np.testing.assert_array_equal(plan.states.read("s")[1024:], rows(0, 20))


@pytest.mark.parametrize("seed", range(3))
def test_any_tree_of_forks(seed: int) -> None:
    """Random appends, forks, cuts, resets and releases, against lists of rows."""
    rng = random.Random(seed)
    family: list[tuple[ExecutionPlan, np.ndarray]] = [(rows_plan(), rows(0, 0))]
    for _ in range(60):
        at = rng.randrange(len(family))
        plan, model = family[at]
        match rng.randrange(6):
            case 0 | 1:
                family.append((plan.clone(), model.copy()))
            case 2 if len(family) > 3:
                plan.release_all_buffers()
                del family[at]
                continue
            case 3:
                cut = rng.randrange(len(model) + 1)
                plan.states.truncate(cut)
                model = model[:cut]
            case 4 if rng.random() < 0.2:
                plan.states.reset()
                model = model[:0]
            case _:
                new = rows(rng.randrange(1000), rng.choice([1, 7, 300]))
                if len(model) + len(new) <= ROOM:
                    model = np.concatenate([model, new])
                    np.testing.assert_allclose(plan(x=new), model.sum(0), rtol=1e-4)
        if at < len(family):
            family[at] = plan, model
        for one, expected in family:
            np.testing.assert_array_equal(one.states.read("s"), expected)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_large_state_in_two_buffers(steps: int) -> None:
    g = Graph("turned")
    x, s = g.input("x", (ROOM, WIDTH)), g.state("s", (ROOM, WIDTH))
    g.output("y", s.flip(0) + x, feeds=s)
    plan = g.prepare()
    assert plan.states["s"].how == "double-buffered"
    x0 = rows(0, ROOM)
    for _ in range(steps):
        plan(x=x0)
    before, clone = plan.states.read("s"), plan.clone()
    expected = before
    np.testing.assert_array_equal(clone.states.read("s"), expected)
    for _ in range(3):
        expected = expected[::-1] + x0
        clone(x=x0)
        np.testing.assert_array_equal(clone.states.read("s"), expected)
    np.testing.assert_array_equal(plan.states.read("s"), before)


def test_a_clone_is_made_between_two_runs() -> None:
    """While another thread runs the plan: each clone is whole, and of one moment."""
    plan, stop = rows_plan(), threading.Event()

    def run() -> None:
        for step in range(ROOM):
            if stop.is_set():
                return
            plan(x=rows(step, 1))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(20):
            clone = plan.clone()
            count = clone.states.cursors["cursor"]
            np.testing.assert_array_equal(clone.states.read("s"), rows(0, count))
            np.testing.assert_allclose(clone.states.read("total"), rows(0, count).sum(0), rtol=1e-4)
    finally:
        stop.set()
        thread.join()


def test_a_fork_of_the_process_goes_its_own_way() -> None:
    plan = rows_plan()
    plan(x=rows(0, 1024))
    clone = plan.clone()

    def go_on() -> None:
        for one in (plan, clone, clone.clone()):
            one(x=rows(7, 5))
            np.testing.assert_array_equal(one.states.read("s")[:1024], rows(0, 1024))
            np.testing.assert_array_equal(one.states.read("s")[1024:], rows(7, 5))

    in_child(go_on)
    for one in (plan, clone):
        np.testing.assert_array_equal(one.states.read("s"), rows(0, 1024))


def test_clones_of_an_invalid_state_are_invalid() -> None:
    g = Graph("failing")
    at, s = g.input("at", (1,), "int64"), g.state("s", (ROOM, WIDTH))
    g.output("y", s.replace(s + 1).sum(1).take(at, 0))
    plan = g.prepare()
    plan(at=np.array([1]))
    with pytest.raises(semel.IndexRangeError, match="99999"):
        plan(at=np.array([99999]))
    clone = plan.clone()
    assert not clone.states["s"].is_valid
    clone.states.reset()
    assert clone(at=np.array([1])).tolist() == [WIDTH]
    assert not plan.states["s"].is_valid


# ---------------------------------------------------------------- room is a reservation


def test_a_large_state_takes_the_rows_that_are_used(is_told: None) -> None:
    g = Graph("large")
    x, s = g.input("x", ("t", 1024)), g.state("s", (1 << 18, 1024))  # 1 GiB
    g.output("y", s.append(x).sum())
    plan = g.prepare(dims={"t": (1, 16)})
    x10 = np.ones((10, 1024), np.float32)
    assert plan(x=x10) == 10240
    memory = plan.states.memory
    assert memory.reserved_bytes > 1 << 30 and memory.own_bytes <= 4 * MIB
    clone = plan.clone()
    assert clone(x=x10) == 20480
    both = (plan.states.memory, clone.states.memory)
    assert sum(m.own_bytes for m in both) + both[0].shared_bytes <= 4 * MIB
    for one in (plan, clone):
        one.states.reset()
        assert one.states.memory.own_bytes <= 4 * MIB and one(x=x10) == 10240
    plan.states.restore(clone.states.snapshot())
    assert plan.states.memory.own_bytes <= 4 * MIB
