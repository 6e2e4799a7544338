"""Rows of states on their way: some of them read, all of them to a plan with more room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.plan.far import FarMemory

import semel
from semel import Graph
from semel.plan.plan import ExecutionPlan
from semel.runtime import device as table
from semel.runtime.memory import Bytes

WIDTH = 3


def cached(room: int, axis: int = 0, dtype: str = "float32", **options: Any) -> ExecutionPlan:
    """Two caches that grow in step, and a sum beside them."""
    g = Graph("cached")
    shape: list[Any] = [WIDTH, WIDTH]
    shape[axis] = "t"
    x = g.input("x", tuple(shape), dtype)
    shape[axis] = room
    k, v = g.state("k", tuple(shape), dtype), g.state("v", tuple(shape), dtype)
    total = g.state("total", (WIDTH,), dtype)
    g.output("y", k.append(x, axis).sum(axis))
    v.append(x * 2, axis)
    total.replace(total + x.sum(axis))
    return g.prepare(dims={"t": (1, room)}, **options)


def new(count: int, axis: int = 0, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((count, WIDTH), dtype=np.float32)
    return made if axis == 0 else np.ascontiguousarray(made.T)


def contents(plan: ExecutionPlan) -> dict[str, list[Any]]:
    return {name: plan.states.read(name).tolist() for name in plan.states} | plan.states.cursors


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(table.MODULES, "far", "tests.plan.far")
    yield
    table._open.pop("far", None)


on_both = pytest.mark.parametrize("device", ["cpu", "far"])


# ---------------------------------------------------------------- some rows


@on_both
@pytest.mark.parametrize("axis", [0, 1])
def test_only_the_rows_that_are_asked_for(axis: int, device: str) -> None:
    plan = cached(8, axis, device=device)
    x = new(5, axis)
    plan(x=x)
    chosen: tuple[Any, ...] = (
        slice(None),
        slice(1, 3),
        slice(-2, None),
        slice(None, None, 2),
        slice(4, 0, -2),
        slice(2, 99),
        slice(3, 3),
        0,
        4,
        -1,
        np.int64(2),
    )
    for rows in chosen:
        expected = x[rows] if axis == 0 else x[:, rows]
        found = plan.states.read("k", rows)
        assert found.shape == expected.shape and found.flags.c_contiguous
        np.testing.assert_array_equal(found, expected)
    found[...] = 99
    np.testing.assert_array_equal(plan.states.read("k"), x)
    np.testing.assert_allclose(plan.states.read("total", slice(1, 2)), x.sum(axis)[1:2], rtol=1e-6)


def test_rows_that_are_not_there() -> None:
    plan = cached(8)
    plan(x=new(5))
    for rows in (5, -6):
        with pytest.raises(semel.StateError, match=r"row must lie in \[-5, 5\), of the valid"):
            plan.states.read("k", rows)
    with pytest.raises(semel.PlanError, match="rows must be an int, got 'a'"):
        plan.states.read("k", "a")  # type: ignore[arg-type]
    for wrong in (slice("a", None), slice(0, 4, 0)):
        with pytest.raises(semel.StateError, match="rows must be a slice of ints"):
            plan.states.read("k", wrong)
    g = Graph("number")
    s = g.state("s", ())
    g.output("y", s + 1, feeds=s)
    with pytest.raises(semel.StateError, match="has no rows: it is one number"):
        g.prepare().states.read("s", 0)


def test_rows_of_another_device_are_brought_over_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cached(1000, device="far")
    plan(x=new(500))
    sizes: list[int] = []
    copy_out = FarMemory.copy_out

    def noted(memory: FarMemory, offset: int, size_bytes: int) -> Bytes:
        sizes.append(size_bytes)
        return copy_out(memory, offset, size_bytes)

    monkeypatch.setattr(FarMemory, "copy_out", noted)
    np.testing.assert_array_equal(plan.states.read("k", 7), new(500)[7])
    assert sizes == [WIDTH * 4]


# ---------------------------------------------------------------- to another plan


@on_both
@pytest.mark.parametrize("axis", [0, 1])
def test_a_sequence_goes_on_where_there_is_more_room(axis: int, device: str) -> None:
    small, large = cached(8, axis, device=device), cached(32, axis, device=device)
    small(x=new(6, axis))
    large(x=new(9, axis, 1))  # of another sequence
    before = contents(small)
    large.states.copy_rows_from(small.states)
    assert contents(large) == before == contents(small)
    whole = cached(32, axis, device=device)
    whole(x=new(6, axis))
    more = new(7, axis, 2)
    np.testing.assert_array_equal(large(x=more), whole(x=more))
    assert contents(large) == contents(whole)
    with pytest.raises(semel.StateError, match="must end at or before 8"):
        small(x=more)


def chats(room: int, axis: int = 1, **options: Any) -> ExecutionPlan:
    """Two sequences with lengths of their own."""
    g = Graph("chats")
    x = g.input("x", (2, "t", WIDTH))
    counts = g.input("counts", (2,), "int64")
    s = g.sequences("chats", 2, room, counts=counts)
    shape = (2, room, WIDTH) if axis == 1 else (2, WIDTH, room)
    k = g.state("k", shape)
    new = x if axis == 1 else x.permute(0, 2, 1)
    g.output("y", k.append(new, axis=axis, sequences=s).sum())
    return g.prepare(dims={"t": (1, 8)}, **options)


@on_both
@pytest.mark.parametrize("axis", [1, 2])
def test_several_sequences_go_on_where_there_is_more_room(axis: int, device: str) -> None:
    small, large = chats(8, axis, device=device), chats(20, axis, device=device)
    x = np.random.default_rng(0).standard_normal((2, 5, WIDTH), dtype=np.float32)
    small(x=x, counts=np.array([5, 2]))
    large.states.copy_rows_from(small.states)
    for plan in (small, large):
        sequences = plan.states.sequences("chats")
        assert sequences.lengths.tolist() == [5, 2]
        for number, count in ((0, 5), (1, 2)):
            rows = sequences.read("k", number)
            expected = x[number, 5 - count :]
            np.testing.assert_array_equal(rows, expected if axis == 1 else expected.T)
    large(x=x, counts=np.array([5, 5]))
    with pytest.raises(semel.StateError, match=r"'k'. has room for 8 rows of a sequence, got 10"):
        small.states.copy_rows_from(large.states)
    small.states.copy_rows_from(large.states, rows=6)
    assert small.states.sequences("chats").lengths.tolist() == [6, 6]
    with pytest.raises(semel.StateError, match=r"rows must lie in \[0, 10\], got 11"):
        small.states.copy_rows_from(large.states, rows=11)


def paged(blocks: int, block_rows: int) -> ExecutionPlan:
    g = Graph("paged")
    x = g.input("x", (2, "t", WIDTH))
    pages = g.paged("kv", blocks, block_rows, sequences=2, max_blocks=3)
    rows = pages.gather(pages.pool("k", (WIDTH,)).append(x))
    g.output("y", semel.where(pages.mask().unsqueeze(-1), rows, 0).sum(1))
    return g.prepare(dims={"t": (1, 4)})


def test_sequences_in_blocks_go_to_a_plan_with_such_blocks() -> None:
    source, alike, other = paged(4, 3), paged(4, 3), paged(3, 4)
    x = np.random.default_rng(0).standard_normal((2, 4, WIDTH), dtype=np.float32)
    source(x=x)
    alike.states.copy_rows_from(source.states)
    np.testing.assert_array_equal(alike(x=x[:, :1]), source(x=x[:, :1]))
    with pytest.raises(
        semel.StateError,
        match=r"must grow in the same way in both plans, got .* in blocks of 4 rows and",
    ):
        other.states.copy_rows_from(source.states)
    with pytest.raises(semel.StateError, match="must be that of the plan of the snapshot"):
        other.states.restore(source.states.snapshot())
    alike.states.restore(source.states.snapshot())
    np.testing.assert_array_equal(alike(x=x[:, :1]), source(x=x[:, :1]))


def test_what_are_lengths_for_one_plan_alone_is_refused() -> None:
    """States of the same names and types, of which one plan has sequences, and the other rows."""
    plans = []
    for is_held in (False, True):
        g = Graph("held")
        x, k = g.input("x", (2, "t")), g.state("k", (2, 8))
        if is_held:
            k.append(x, sequences=g.sequences("chats", 2, 8))
        else:
            g.state("chats", (2,), "int64", init=[-5, 3])
            k.append(x, 1)
        g.output("y", x.sum())
        plans.append(g.prepare(dims={"t": (1, 4)}))
    for to, source in (plans, plans[::-1]):
        with pytest.raises(semel.StateError, match="must grow in the same way in both plans"):
            to.states.copy_rows_from(source.states)


def test_the_first_rows_go_back_to_a_smaller_plan() -> None:
    small, large = cached(8), cached(32)
    large(x=new(20))
    small.states.copy_rows_from(large.states, rows=5)
    np.testing.assert_array_equal(small.states.read("k"), new(20)[:5])
    np.testing.assert_array_equal(small.states.read("v"), 2 * new(20)[:5])
    assert small.states.cursors == {"cursor": 5}


def test_an_invalid_target_is_valid_then_and_an_invalid_source_is_refused() -> None:
    def failing() -> ExecutionPlan:
        g = Graph("failing")
        at, s = g.input("at", (1,), "int64"), g.state("s", (4,))
        g.output("y", s.replace(s + 1).cumsum(0).take(at, 0))
        return g.prepare()

    good, bad = failing(), failing()
    good(at=np.array([0]))
    with pytest.raises(semel.IndexRangeError, match="99"):
        bad(at=np.array([99]))
    with pytest.raises(semel.StateError, match=r"'s'. is invalid"):
        good.states.copy_rows_from(bad.states)
    bad.states.copy_rows_from(good.states)
    assert bad.states["s"].is_valid and bad(at=np.array([1])).tolist() == [4]


def other(**change: Any) -> ExecutionPlan:
    return cached(**{"room": 8, **change})


def named() -> ExecutionPlan:
    g = Graph("named")
    x, s = g.input("x", (3,)), g.state("z", (3,))
    g.output("y", s + x, feeds=s)
    return g.prepare()


def apart() -> ExecutionPlan:
    """The same states, with cursors of their own."""
    g = Graph("apart")
    x, y = g.input("x", ("t", WIDTH)), g.input("y", ("u", WIDTH))
    k, v, total = g.state("k", (8, WIDTH)), g.state("v", (8, WIDTH)), g.state("total", (WIDTH,))
    g.output("n", k.append(x, cursor=g.cursor("a", 8)).sum() + total.sum())
    g.output("m", v.append(y, cursor=g.cursor("b", 8)).sum())
    plan = g.prepare(dims={"t": (1, 8), "u": (1, 8)})
    plan(x=new(3), y=new(4))
    return plan


@pytest.mark.parametrize(
    ("make", "rows", "match"),
    [
        (named, None, "both plans must have the same states, got k, total, v and z"),
        (lambda: other(axis=1), None, r"'k'. must be the same in both plans but for the room"),
        (lambda: other(dtype="float16"), None, "must be the same in both plans"),
        (other, 1, r"rows must lie in \[0, 0\], got 1"),
        (other, -1, r"rows must lie in \[0, 0\], got -1"),
        (other, "1", "rows must be an int, got '1'"),
        (apart, None, r"'v'. must have the 3 rows of those beside it, got 4"),
    ],
)
def test_what_does_not_fit_changes_nothing(make: Any, rows: Any, match: str) -> None:
    plan = cached(8)
    plan(x=new(5))
    before = contents(plan)
    with pytest.raises(semel.PlanError, match=match):
        plan.states.copy_rows_from(make().states, rows)
    assert contents(plan) == before


def test_rows_that_do_not_fit() -> None:
    plan, large = cached(8), cached(32)
    plan(x=new(5))
    before = contents(plan)
    large(x=new(9))
    with pytest.raises(semel.StateError, match=r"'cursor'. has room for 8 rows, got 9"):
        plan.states.copy_rows_from(large.states)
    with pytest.raises(semel.StateError, match="the other plan is this one"):
        plan.states.copy_rows_from(plan.states)
    with pytest.raises(semel.StateError, match="must be given the states of another plan, got"):
        plan.states.copy_rows_from(large)  # type: ignore[arg-type]
    with pytest.raises(semel.StateError, match="of states that are appended to: none is"):
        named().states.copy_rows_from(named().states, 2)
    assert contents(plan) == before


def test_a_cursor_may_have_less_room_than_its_state() -> None:
    g = Graph("less")
    x, s = g.input("x", ("t",)), g.state("s", (8,))
    g.output("y", s.append(x, cursor=g.cursor("c", 4)).sum())
    plan = g.prepare(dims={"t": (1, 4)})
    rows = np.arange(6, dtype=np.float32)
    with pytest.raises(semel.StateError, match=r"'c'. has room for 4 rows, got 6"):
        plan.states.write({"s": rows})
    snapshot = plan.states.snapshot()
    with pytest.raises(semel.StateError, match=r"'c'. has room for 4 rows, got 6"):
        plan.states.restore(type(snapshot)({"s": rows}, {"c": 6}))
    assert plan.states.cursors == {"c": 0}


def test_two_plans_that_copy_from_each_other_do_not_wait_for_ever() -> None:
    one, two = cached(8), cached(8)
    one(x=new(5))
    two(x=new(5))

    def copy(to: ExecutionPlan, source: ExecutionPlan) -> None:
        for _ in range(200):
            to.states.copy_rows_from(source.states)

    threads = [threading.Thread(target=copy, args=pair) for pair in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert contents(one) == contents(two)
