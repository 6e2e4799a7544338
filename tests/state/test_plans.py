"""What plans do with states: order, failures, clones, files, memory."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from tests.plan.signals import handling

import semel
from semel import Graph, Tensor, config
from semel.plan.plan import ExecutionPlan

X = np.arange(8, dtype=np.float32)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def turned() -> Graph:
    """The next value reads other elements of the old one."""
    g = Graph("turned")
    x, s = g.input("x", (8,)), g.state("s", (8,))
    g.output("y", s.flip(0) + x, feeds=s)
    return g


def stepped(plan: ExecutionPlan, count: int) -> list[list[float]]:
    return [plan(x=X).tolist() for _ in range(count)]


def turned_by_hand(count: int, first: np.ndarray | None = None) -> list[list[float]]:
    found, s = [], np.zeros(8, np.float32) if first is None else first
    for _ in range(count):
        s = s[::-1] + X
        found.append(s.tolist())
    return found


def how(plan: ExecutionPlan, name: str = "s") -> tuple[str, str]:
    info = plan.states[name]
    return info.how, info.why


# ---------------------------------------------------------------- in place, or in a second buffer


@pytest.mark.parametrize("threads", [1, 2])
def test_what_reads_other_elements_goes_to_a_second_buffer(threads: int) -> None:
    plan = turned().prepare(threads=threads)
    assert how(plan)[0] == "double-buffered"
    assert stepped(plan, 4) == turned_by_hand(4)
    assert plan.states.read("s").tolist() == turned_by_hand(4)[-1]
    assert "s f32[8] is updated in a second buffer: the kernel that makes" in str(plan.explain())
    assert len(plan.prepared_kernels) == 1


def test_readers_of_the_old_value_come_first() -> None:
    g = Graph("old")
    x, s = g.input("x", (8,)), g.state("s", (8,))
    g.output("before", (s.flip(0) * 2).cumsum(0))
    g.output("after", s + x, feeds=s)
    plan = g.prepare()
    assert how(plan)[0] == "in place"
    before, after = plan(x=X)
    assert before.tolist() == [0] * 8 and after.tolist() == X.tolist()
    before, _ = plan(x=X)
    assert before.tolist() == np.cumsum(2 * X[::-1]).tolist()


def test_what_needs_both_values_gets_both() -> None:
    g = Graph("both")
    x, s = g.input("x", (8,)), g.state("s", (8,))
    new = s.replace(s + x)
    g.output("moved", s.flip(0) + new.cumsum(0))  # the old value, after the next one is there
    plan = g.prepare()
    assert how(plan) == ("double-buffered", "what reads the old value needs the next one.")
    s0 = np.zeros(8, np.float32)
    for _ in range(3):
        assert plan(x=X).tolist() == (s0[::-1] + np.cumsum(s0 + X)).tolist()
        s0 = s0 + X


def test_two_states_that_read_each_other() -> None:
    g = Graph("swap")
    a, b = g.state("a", (4,), init=ones(4)), g.state("b", (4,))
    a.replace(b + 1)
    b.replace(a * 2)
    g.output("y", a + b)
    plan = g.prepare()
    assert sorted(i.how for i in plan.states.values()) == ["double-buffered", "in place"]
    a0, b0 = ones(4), np.zeros(4, np.float32)
    for _ in range(5):
        assert plan().tolist() == (a0 + b0).tolist()
        a0, b0 = b0 + 1, a0 * 2
    assert plan.states.read("a").tolist() == a0.tolist()
    assert plan.states.read("b").tolist() == b0.tolist()


def test_a_contraction_of_the_old_value_goes_to_a_second_buffer() -> None:
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((16, 16), dtype=np.float32) / 8).astype(np.float32)
    g = Graph("rnn")
    x, h = g.input("x", (3, 16)), g.state("h", (3, 16))
    g.output("y", (h @ Tensor(w) + x).tanh(), feeds=h)
    plan = g.prepare()
    assert how(plan, "h")[0] == "double-buffered"
    state = np.zeros((3, 16), np.float32)
    for _ in range(3):
        step = rng.standard_normal((3, 16), dtype=np.float32)
        state = np.tanh(state @ w + step)
        np.testing.assert_allclose(plan(x=step), state, rtol=1e-5, atol=1e-6)


def test_a_part_that_needs_other_elements_is_made_first() -> None:
    g = Graph("part")
    s = g.state("s", (8,), init=X)
    s.update(s.flip(0)[:4] + s.sum(), (2,))
    g.output("y", s + 0)
    plan = g.prepare()
    assert how(plan) == ("in place", "the new elements need others of the old value, and are made "
                         "first.")  # fmt: skip
    expected = X.copy()
    for _ in range(3):
        assert plan().tolist() == expected.tolist()
        new = expected[::-1][:4] + expected.sum()
        expected[2:6] = new
    assert plan.states.read("s").tolist() == expected.tolist()


def test_what_needs_the_old_part_and_the_new_whole_reads_a_copy() -> None:
    g = Graph("copied")
    x, s = g.input("x", (2,)), g.state("s", (8,), init=X)
    new = s.update(x, (3,))
    g.output("y", new.cumsum(0) - s)
    plan = g.prepare()
    assert how(plan)[1] == "what reads the old value needs the next one, and reads a copy."
    expected = X.copy()
    for k in range(3):
        old = expected.copy()
        expected[3:5] = k
        assert plan(x=np.full(2, k, np.float32)).tolist() == (np.cumsum(expected) - old).tolist()


def test_two_appends_in_a_run() -> None:
    g = Graph("twice")
    x, s = g.input("x", ("t",)), g.state("s", (16,))
    first = s.append(x)
    both = s.append(x * 2)
    g.output("first", first * 1)
    g.output("both", both * 1)
    plan = g.prepare(dims={"t": (1, 4)})
    first, both = plan(x=X[1:3])
    assert first.tolist() == [1, 2] and both.tolist() == [1, 2, 2, 4]
    first, both = plan(x=X[3:4])
    assert first.tolist() == [1, 2, 2, 4, 3] and both.tolist() == [1, 2, 2, 4, 3, 6]
    assert plan.states.cursors == {"cursor": 6}


def test_old_rows_are_read_beside_the_new_ones_without_waiting() -> None:
    g = Graph("valid")
    x, s = g.input("x", ("t", 2)), g.state("s", (8, 2))
    all_rows = s.append(x)
    g.output("grown", all_rows.sum() - s.valid().sum())
    plan = g.prepare(dims={"t": (1, 4)})
    assert how(plan) == ("in place", "new rows lie behind all that anybody reads of the old value.")
    for k in range(3):
        assert plan(x=np.full((2, 2), k, np.float32)) == 4 * k


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_are_appended_along_any_axis(axis: int) -> None:
    shape = [3, 3, 3]
    shape[axis] = 8
    g = Graph("axes")
    kind: list[object] = [3, 3, 3]
    kind[axis] = "t"
    x, s = g.input("x", tuple(kind)), g.state("s", tuple(shape))
    g.output("y", s.append(x, axis) * 1)
    plan = g.prepare(dims={"t": (1, 4)})
    expected = np.zeros([0 if d == axis else 3 for d in range(3)], np.float32)
    for count in (2, 1, 4):
        size = [count if d == axis else 3 for d in range(3)]
        new = np.random.default_rng(count).standard_normal(size, dtype=np.float32)
        expected = np.concatenate([expected, new], axis)
        np.testing.assert_array_equal(plan(x=new), expected)
        np.testing.assert_array_equal(plan.states.read("s"), expected)


def test_a_state_that_is_only_read_stays() -> None:
    g = Graph("still")
    x, s = g.input("x", (8,)), g.state("s", (8,), init=X)
    g.output("y", s + x)
    plan = g.prepare()
    assert how(plan) == ("read only", "")
    assert plan(x=X).tolist() == (2 * X).tolist()
    plan.states.write({"s": ones(8)})
    assert plan(x=X).tolist() == (1 + X).tolist()


def test_an_output_may_be_the_state_itself_old_or_new() -> None:
    g = Graph("itself")
    x, s = g.input("x", (8,)), g.state("s", (8,))
    g.output("old", s)
    g.output("new", s.update(x[:4], (2,)))
    plan = g.prepare()
    plan(x=X)
    old, new = plan(x=X + 1)
    assert old.tolist() == [0, 0, 0, 1, 2, 3, 0, 0]
    assert new.tolist() == [0, 0, 1, 2, 3, 4, 0, 0]


def test_states_in_loops_and_branches() -> None:
    g = Graph("control")
    x, s = g.input("x", (8,)), g.state("s", (8,))
    (doubled,) = [semel.while_loop(lambda v: v.sum() < 99, lambda v: v + s + 1, x, max_trips=9)]
    chosen = semel.cond(s.sum() > 0, lambda: s.flip(0), lambda: x)
    g.output("y", doubled + chosen)
    s.replace(s + chosen)
    plan = g.prepare()
    s0 = np.zeros(8, np.float32)
    for _ in range(3):
        v = X.copy()
        while v.sum() < 99:
            v = v + s0 + 1
        chosen_now = s0[::-1] if s0.sum() > 0 else X
        np.testing.assert_allclose(plan(x=X), v + chosen_now, rtol=1e-6)
        s0 = s0 + chosen_now


def test_products_of_bytes_go_straight_to_a_state() -> None:
    rng = np.random.default_rng(1)
    w, x = rng.integers(-8, 8, (64, 32)), rng.integers(0, 200, (8, 64))
    g = Graph("bytes")
    s = g.state("s", (8, 32), "int32")
    new = g.input("x", (8, 64), "uint8").matmul_integer(Tensor(w.astype(np.int8)))
    g.output("y", s + 0)
    s.replace(new + s)
    plan = g.prepare()
    for k in range(3):
        np.testing.assert_array_equal(plan(x=x.astype(np.uint8)), k * (x @ w))


# ---------------------------------------------------------------- failures


def failing(update: str) -> Graph:
    """A lookup that may fail after the state was written."""
    g = Graph("failing")
    at, s = g.input("at", (1,), "int64"), g.state("s", (8,), init=X)
    new = s.update(ones(4) * 7, (0,)) if update == "part" else s.replace(s + 1)
    g.output("y", new.cumsum(0).take(at, 0))
    return g


GOOD, BAD = np.array([1]), np.array([99])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("update", ["part", "whole"])
def test_a_failed_run_spoils_what_it_updates_in_place(update: str, threads: int) -> None:
    plan = failing(update).prepare(threads=threads)
    plan(at=GOOD)
    saved = plan.states.snapshot()
    with pytest.raises(semel.IndexRangeError, match="99"):
        plan(at=BAD)
    for use in (lambda: plan(at=GOOD), plan.states.snapshot, lambda: plan.states.read("s")):
        with pytest.raises(semel.StateError, match="is invalid: a run that updated it in place"):
            use()
    assert not plan.states["s"].is_valid
    plan.states.restore(saved)
    expected = 14 if update == "part" else 5
    assert plan(at=GOOD).tolist() == [expected]
    with pytest.raises(semel.IndexRangeError, match="99"):
        plan(at=BAD)
    plan.states.reset()
    assert plan.states.read("s").tolist() == X.tolist()


def test_a_failed_run_leaves_a_second_buffer_as_it_was() -> None:
    g = Graph("twofold")
    at, s = g.input("at", (1,), "int64"), g.state("s", (8,), init=X)
    g.output("y", s.replace(s.flip(0) + 1).cumsum(0).take(at, 0))
    plan = g.prepare()
    plan(at=GOOD)
    before = plan.states.read("s")
    with pytest.raises(semel.IndexRangeError, match="99"):
        plan(at=BAD)
    assert plan.states.read("s").tolist() == before.tolist() == (X[::-1] + 1).tolist()
    plan(at=GOOD)
    assert plan.states.read("s").tolist() == (before[::-1] + 1).tolist()


def test_a_failed_run_leaves_a_cursor_and_what_is_before_it() -> None:
    g = Graph("rows")
    at, s = g.input("at", ("t",), "int64"), g.state("s", (8,))
    g.output("y", s.append(at.cast("float32")).cumsum(0).take(at, 0))
    plan = g.prepare(dims={"t": (1, 4)})
    plan(at=np.array([0, 1]))
    with pytest.raises(semel.IndexRangeError, match="77"):
        plan(at=np.array([77]))
    assert plan.states.cursors == {"cursor": 2}
    assert plan.states.read("s").tolist() == [0, 1]
    assert plan(at=np.array([2])).tolist() == [3]


def test_truncating_makes_rows_valid_again() -> None:
    g = Graph("cut")
    x, s = g.input("x", ("t",)), g.state("s", (8,))
    at = g.input("at", (1,), "int64")
    s.append(x)
    whole = s.update(ones(1) * 9, (7,))
    g.output("y", whole.cumsum(0).take(at, 0))
    plan = g.prepare(dims={"t": (1, 2)})
    plan(x=X[:2], at=GOOD)
    with pytest.raises(semel.IndexRangeError, match="99"):
        plan(x=X[:2], at=BAD)
    with pytest.raises(semel.StateError, match="is invalid"):
        plan(x=X[:2], at=GOOD)
    plan.states.truncate(1)
    assert plan(x=X[5:6], at=GOOD).tolist() == [5]


def test_a_signal_in_the_middle_spoils_and_nothing_else() -> None:
    """A handler that raises ends a run between two steps."""
    g = Graph("slow")
    s, log = g.state("s", (64, 64), init=np.eye(64, dtype=np.float32) / 2), g.state("n", (4,))
    new = s.update(s[:1] + 1, (0, 0))
    step = lambda v: (v @ new).tanh()  # noqa: E731
    g.output("y", semel.while_loop(lambda v: v.sum() < 1e9, step, s + 0, max_trips=10**10))
    log.append(Tensor.ones(1))
    plan = g.prepare()

    class Stop(Exception):  # noqa: N818
        pass

    def stop(*_: object) -> None:
        raise Stop

    with handling(stop) as interrupt:
        for _ in range(5):  # until it comes after the state was begun to be updated
            with pytest.raises(Stop):
                interrupt(plan)
                plan()
            if not plan.states["s"].is_valid:
                break
    assert not plan.states["s"].is_valid
    assert plan.states["n"].is_valid and plan.states.cursors == {"cursor": 0}


# ---------------------------------------------------------------- clones, files, memory


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_clone_goes_on_from_where_its_plan_is(steps: int) -> None:
    plan = turned().prepare()
    stepped(plan, steps)
    clone = plan.clone()
    wanted = turned_by_hand(steps + 2)[steps:]
    assert stepped(clone, 2) == wanted
    assert stepped(plan, 2) == wanted


def test_clones_have_states_of_their_own() -> None:
    g = Graph("rows")
    x, s = g.input("x", ("t",)), g.state("s", (8,))
    g.output("y", s.append(x).sum())
    plan = g.prepare(dims={"t": (1, 4)})
    plan(x=X[1:3])
    clone = plan.clone()
    assert clone(x=X[3:4]) == 6 and clone.states.cursors == {"cursor": 3}
    assert plan.states.cursors == {"cursor": 2} and plan(x=X[4:5]) == 7


def test_two_plans_of_one_graph_share_no_state() -> None:
    graph = turned()
    first, second = graph.prepare(), graph.prepare()
    stepped(first, 3)
    assert stepped(second, 2) == turned_by_hand(2)


def test_a_file_holds_the_rules_and_first_values(tmp_path: Path) -> None:
    for graph in (turned(), failing("part"), failing("whole")):
        place = tmp_path / "state.plan"
        plan = graph.prepare()
        given = {"x": X} if "x" in plan.inputs else {"at": GOOD}
        wanted = [plan(**given).tolist() for _ in range(3)]
        plan.save(place)
        for trust in (False, True):
            loaded = semel.load_plan(place, trust=trust)
            assert [loaded(**given).tolist() for _ in range(3)] == wanted
            assert dict(loaded.states) == dict(plan.states)


def test_a_file_holds_cursors_that_begin_at_0(tmp_path: Path) -> None:
    g = Graph("rows")
    x, s = g.input("x", ("t", 2)), g.state("s", (8, 2))
    g.output("y", s.append(x).sum(1))
    plan = g.prepare(dims={"t": (1, 4)})
    plan(x=ones(3, 2))
    plan.save(tmp_path / "rows.plan")
    loaded = semel.load_plan(tmp_path / "rows.plan")
    assert loaded.states.cursors == {"cursor": 0}
    assert loaded(x=ones(4, 2)).tolist() == [2] * 4
    assert loaded(x=ones(4, 2)).tolist() == [2] * 8
    with pytest.raises(semel.StateError, match="must end at or before 8"):
        loaded(x=ones(1, 2))


def test_growing_inputs_move_no_state() -> None:
    g = Graph("grows")
    x, s = g.input("x", ("n",)), g.state("s", (8,))
    new = s.replace(s.flip(0) + x.sum())
    g.output("y", new + 0)
    plan = g.prepare()
    expected = np.zeros(8, np.float32)
    for n in (3, 200, 5000, 10):
        expected = expected[::-1] + n
        assert plan(x=ones(n)).tolist() == expected.tolist()
    assert plan.growths > 0


def test_bound_arrays_leave_second_buffers_alone() -> None:
    plan = turned().prepare()
    found = [plan(x=X).tolist()]
    plan.bind_input("x", X.copy())
    out = np.zeros(8, np.float32)
    plan.bind_output("y", out)
    for _ in range(2):
        plan.execute()
        found.append(out.tolist())
    plan.unbind()
    found.append(plan(x=X).tolist())
    assert found == turned_by_hand(4)


def test_poisoned_memory_is_not_that_of_states() -> None:
    with config.override(debug=frozenset({"poison"})):
        plan = turned().prepare()
    assert stepped(plan, 4) == turned_by_hand(4)


def test_profiled_runs_count_like_others() -> None:
    plan = turned().prepare()
    plan.buffers[0].copyin(X)
    plan.execute_profiled(runs=2, limits=False)
    assert plan.output_buffer.numpy().tolist() == turned_by_hand(2)[-1]


def test_states_are_counted_in_the_memory() -> None:
    plan = turned().prepare()
    assert plan.memory.state_bytes >= 2 * 32
    assert plan.memory.own_bytes >= plan.memory.state_bytes
    with pytest.raises(semel.OutOfMemoryError, match="needs"):
        turned().prepare(memory_limit=100)


# ---------------------------------------------------------------- from outside


def test_writing_rows_sets_the_cursor() -> None:
    g = Graph("kv")
    x = g.input("x", ("t", 2))
    k, v = g.state("k", (8, 2)), g.state("v", (2, 8))
    g.output("y", k.append(x).sum() + v.append(x.T, axis=1).sum())
    plan = g.prepare(dims={"t": (1, 4)})
    plan.states.write({"k": ones(3, 2), "v": ones(2, 3)})
    assert plan.states.cursors == {"cursor": 3}
    assert plan(x=ones(1, 2)) == 16
    for wrong, match in (
        ({"k": ones(3, 2)}, "shares its cursor with v: write all of them together"),
        ({"k": ones(3, 2), "v": ones(2, 2)}, "must have the 3 rows of those beside it, got 2"),
        ({"k": ones(9, 2), "v": ones(2, 9)}, "must be f32.*, or fewer rows of it"),
        ({"z": ones(1)}, "has no state 'z'; known: k, v"),
    ):
        with pytest.raises(semel.StateError, match=match):
            plan.states.write(wrong)
    assert plan.states.cursors == {"cursor": 4}


def test_truncating_goes_back_only() -> None:
    g = Graph("rows")
    x, s = g.input("x", ("t",)), g.state("s", (8,))
    g.output("y", s.append(x).sum())
    plan = g.prepare(dims={"t": (1, 4)})
    plan(x=X[:4])
    for rows, cursor, match in ((5, None, r"rows must lie in \[0, 4\]"), (1, "c", "no cursor 'c'")):
        with pytest.raises(semel.StateError, match=match):
            plan.states.truncate(rows, cursor)
    with pytest.raises(semel.PlanError, match="cursor must be a str, got"):
        plan.states.truncate(0, [])  # type: ignore[arg-type]
    plan.states.truncate(2)
    assert plan(x=X[7:]) == 8
    with pytest.raises(semel.StateError, match="needs a state that rows are appended to"):
        turned().prepare().states.truncate(0)


def test_a_snapshot_is_of_the_same_states() -> None:
    with pytest.raises(semel.StateError, match="a snapshot must have the states s"):
        turned().prepare().states.restore(
            failing("part").prepare().states.snapshot().__class__({}, {})
        )
    plan = turned().prepare()
    snapshot = plan.states.snapshot()
    with pytest.raises(ValueError, match="read-only"):
        snapshot.arrays["s"][0] = 1


def test_buffers_of_states_are_no_way_around() -> None:
    plan = turned().prepare()
    index = next(i for i, v in enumerate(plan.program.values) if v.place == "state")
    with pytest.raises(semel.PlanError, match="a state is written by its plan"):
        plan.buffers[index].copyin(X)
    with pytest.raises(semel.PlanError, match="is not read as a buffer"):
        plan.buffers[index].numpy()


# ---------------------------------------------------------------- what a plan says of itself


def rows_plan() -> ExecutionPlan:
    g = Graph("rows")
    x, s = g.input("x", ("t",)), g.state("s", (8,))
    g.output("y", s.append(x) * 1)
    return g.prepare(dims={"t": (1, 8)})


def test_a_plan_shows_where_its_cursors_are_whatever_the_last_run_did() -> None:
    plan = rows_plan()
    for count in (3, 4):
        plan(x=X[:count])
    with pytest.raises(semel.StateError, match="must end at or before 8"):
        plan(x=X[:3])
    assert plan.variables == {"cursor": 7, "t": 4} and plan.states.cursors == {"cursor": 7}
    assert "cursor=7 in [0, 8]" in repr(plan)
    assert "held variable cursor in [0, 8], now 7" in str(plan.explain())
    assert all(kernel.vals[0] == 7 for kernel in plan.prepared_kernels)
    plan.states.truncate(2)
    assert "cursor=2 in [0, 8]" in repr(plan) and "cursor=2 in [0, 8]" in repr(plan.clone())


def test_what_asks_for_barriers_leaves_the_outputs_of_the_last_run() -> None:
    plan = rows_plan()
    plan(x=X[:3])
    for _ in range(2):
        assert plan.num_barriers >= 0
        assert plan.output_buffer.numpy().tolist() == [0, 1, 2]
    plan.execute()
    assert plan.output_buffer.numpy().tolist() == [0, 1, 2, 0, 1, 2]
    plan.states.truncate(2)
    assert plan.num_barriers >= 0 and plan.states.cursors == {"cursor": 2}


def test_states_are_a_mapping_that_can_be_asked() -> None:
    states = turned().prepare().states
    assert "s" in states and "other" not in states
    assert states.get("other") is None and states.get("s") == states["s"]


def test_a_snapshot_travels() -> None:
    plan = rows_plan()
    plan(x=X[1:3])
    saved = plan.states.snapshot()
    for copy in (pickle.loads(pickle.dumps(saved)), deepcopy(saved)):
        assert dict(copy.cursors) == {"cursor": 2} and not copy.arrays["s"].flags.writeable
        other = rows_plan()
        other.states.restore(copy)
        assert other(x=X[5:6]).tolist() == [1, 2, 5]


@pytest.mark.parametrize("given", [None, 3, [("s", X)], {3: X}])
def test_what_is_no_mapping_is_refused(given: object) -> None:
    plan = turned().prepare()
    with pytest.raises(semel.InputError, match="a mapping from names to arrays"):
        plan.states.write(given)  # type: ignore[arg-type]
    with pytest.raises(semel.StateError, match="must be given a Snapshot, got"):
        plan.states.restore(given)  # type: ignore[arg-type]
    assert stepped(plan, 2) == turned_by_hand(2)


@pytest.mark.parametrize("how", ["replace", "update", "append"])
def test_a_state_without_elements(how: str) -> None:
    g = Graph("none")
    x, s = g.input("x", (0, 3)), g.state("s", (0, 3))
    match how:
        case "replace":
            y = s.replace(s + x)
        case "update":
            y = s.update(x, (0, 0))
        case _:
            y = s.append(x)
    g.output("y", y + 1)
    plan = g.prepare()
    for one in (plan, plan.clone()):
        assert one(x=np.zeros((0, 3), np.float32)).shape == (0, 3)
        assert one.states.read("s").shape == (0, 3)
