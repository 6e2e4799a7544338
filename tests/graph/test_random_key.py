"""A random key that is kept between runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import semel
from semel import Graph, Tensor
from semel.plan.plan import ExecutionPlan

STEP = 0x9E3779B97F4A7C15


def drawn(seed: int = 3) -> Graph:
    """Fails in runs whose index lies outside."""
    g = Graph("drawn")
    at, key = g.input("at", (1,), "int64", default=[0]), g.random_key("key", seed)
    g.output("y", semel.rand(4, key=key) + Tensor(np.zeros(2, np.float32)).take(at))
    return g


def counted(words: np.ndarray, runs: int) -> list[int]:
    """The counter after so many runs, by Python's integers."""
    value = (int(words[0]) | int(words[1]) << 32) + runs * STEP & 0xFFFFFFFFFFFFFFFF
    return [value & 0xFFFFFFFF, value >> 32]


def runs(plan: ExecutionPlan, count: int = 3) -> list[list[float]]:
    return [plan().tolist() for _ in range(count)]


def test_runs_differ_and_a_seed_gives_them_again() -> None:
    first, again, other = (runs(drawn(seed).prepare(), 50) for seed in (3, 3, 4))
    assert first == again
    assert len({value for run in first + other for value in run}) > 390  # of 400
    assert all(0 <= value < 1 for run in first for value in run)


def test_the_counter_goes_on_by_its_step() -> None:
    plan = drawn().prepare()
    first = plan.states.read("key")
    for count in range(1, 9):
        plan()
        assert plan.states.read("key").tolist() == counted(first, count)
    plan.states.write({"key": np.array([0xFFFFFFFF, 0xFFFFFFFF], np.uint32)})
    plan()
    assert plan.states.read("key").tolist() == counted(np.array([0xFFFFFFFF] * 2), 1)


def test_the_numbers_are_those_of_a_key_drawn_with_the_counter() -> None:
    plan = drawn().prepare()
    for _ in range(3):
        counter = plan.states.read("key") ^ np.array([0, 0x85EBCA6B], np.uint32)
        bits = semel.tensor.random.random_bits(Tensor(counter), (2,))
        np.testing.assert_array_equal(plan(), semel.rand(4, key=bits).numpy())


def test_a_run_that_fails_does_not_go_on() -> None:
    plan, beside = drawn().prepare(), drawn().prepare()
    assert runs(plan, 2) == runs(beside, 2)
    before = plan.states.read("key").tolist()
    with pytest.raises(semel.IndexRangeError, match="9"):
        plan(at=np.array([9]))
    with pytest.raises(semel.InputError, match="at"):
        plan(at=np.array([[9]]))
    assert plan.states.read("key").tolist() == before
    assert runs(plan) == runs(beside)


def test_a_clone_goes_on_by_itself() -> None:
    plan, beside = drawn().prepare(), drawn().prepare()
    runs(plan, 2), runs(beside, 2)
    clone = plan.clone()
    following = runs(beside)
    assert runs(clone) == following
    assert runs(plan) == following


def test_resets_snapshots_and_files(tmp_path: Path) -> None:
    plan = drawn().prepare()
    first = runs(plan)
    moment = plan.states.snapshot()
    following = runs(plan)
    plan.states.restore(moment)
    assert runs(plan) == following
    plan.states.reset()
    assert runs(plan) == first
    plan.save(tmp_path / "x.plan")
    assert runs(semel.load_plan(tmp_path / "x.plan")) == first
    assert runs(pickle.loads(pickle.dumps(plan))) == first


def test_several_keys_and_splits_are_independent() -> None:
    g = Graph("g")
    a, b = g.random_key("a", 1), g.random_key("b", 2)
    first, second = semel.split_key(a, 2).unbind(0)
    for name, key in (("a", first), ("b", second), ("c", b)):
        g.output(name, semel.rand(8, key=key))
    plan = g.prepare()
    found = [np.concatenate(plan()) for _ in range(4)]
    assert len(set(np.concatenate(found).tolist())) > 94  # of 96


@pytest.mark.parametrize("seed", [-1, 1 << 64, 0.5, "x", None])
def test_a_seed_is_a_number_of_64_bits(seed: object) -> None:
    g = Graph("g")
    with pytest.raises(semel.GraphError, match="seed must be an int"):
        g.random_key("key", seed)  # type: ignore[arg-type]
    assert not g.states


def test_all_seeds_may_be_given() -> None:
    for seed in (0, (1 << 64) - 1):
        assert len(drawn(seed).prepare()()) == 4
