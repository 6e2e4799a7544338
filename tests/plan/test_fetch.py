"""Runs for some of the outputs: the same bits, and no work that only others need."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.forks import in_child
from tests.fuzz.interrupts import find_places, interrupt
from tests.plan.build import Sketch
from tests.plan.test_control import set_flag
from tests.plan.test_limits import cancel_soon

import semel
from semel import ExecutionPlan, Graph, Tensor, TimelineSignal, Variable, config
from semel.errors import CancelledError, InputError, StaleError, StateError, TimedOutError
from semel.plan.limits import RunLimits
from semel.plan.readers import Copies, Reader, output_view
from semel.plan.rows import PreparedCopy, PreparedCustomFunction, PreparedSignal
from semel.plan.ways import MOST_WAYS
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function, unregister_custom_function

X = np.arange(8, dtype=np.float32)
COPIES = Copies()


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """What calls of the custom function "fetch_note" were given; it copies its first buffer."""
    found: list[str] = []

    @custom_function("fetch_note", reads=(0,), writes=(1,))
    def note(attrs: Any, buffers: Sequence[Buffer], variables: Any) -> None:
        found.append(attrs)
        buffers[1].copyin(buffers[0].numpy())

    yield found
    unregister_custom_function("fetch_note")


class Noted(Sketch):
    """A sketch with calls that are noted."""

    def note(self, text: str, source: str, target: str) -> None:
        self._next_id += 1
        pair = (self.buffer(source), self.buffer(target))
        self.builder.add_op(PreparedCustomFunction(self._next_id, "fetch_note", text, pair))


def forked(threads: int = 1) -> tuple[Noted, ExecutionPlan]:
    """output0 = 2 * (x + 1) by "a", output1 = x + 1 + 1 by "b": x + 1 is for both."""
    s = Noted(8)
    s.op("increment", "x", "y")
    s.note("a", "y", "a")
    s.op("double", "a", "double")
    s.note("b", "y", "b")
    s.op("increment", "b", "more")
    plan = s.build("double", "more", threads=threads)
    s.buffers["x"].copyin(X)
    return s, plan


# ---------------------------------------------------------------- what is skipped


@pytest.mark.parametrize("threads", [1, 2])
def test_work_that_only_other_outputs_need_is_not_done(seen: list[str], threads: int) -> None:
    s, plan = forked(threads)
    for fetch, calls in ((["output0"], ["a"]), (["output1"], ["b"]), ([], [])):
        for turn in range(2):
            s.buffers["x"].copyin(X + turn)
            seen.clear()
            plan.execute_limited(fetch=fetch)
            assert seen == calls
            if "output0" in fetch:
                np.testing.assert_array_equal(s.buffers["double"].numpy(), 2 * (X + turn + 1))
            if "output1" in fetch:
                np.testing.assert_array_equal(s.buffers["more"].numpy(), X + turn + 2)
    seen.clear()
    plan.execute_limited(fetch=["output1", "output0"])
    plan.execute()
    assert seen == ["a", "b"] * 2
    np.testing.assert_array_equal(s.buffers["double"].numpy(), 2 * (X + 2))


def test_what_was_not_fetched_cannot_be_read(seen: list[str]) -> None:
    s, plan = forked()
    plan.execute()
    look = s.buffers["more"].borrow()
    plan.execute_limited(fetch=["output0"])
    assert look.is_stale
    for read in (
        s.buffers["more"].numpy,
        s.buffers["more"].borrow,
        s.buffers["more"].view(0, 8).numpy,
    ):
        with pytest.raises(StaleError, match="the last run was for other outputs"):
            read()
    plan.execute_limited(fetch=["output1"])
    np.testing.assert_array_equal(s.buffers["more"].numpy(), X + 2)
    with pytest.raises(StaleError, match="the last run was for other outputs"):
        s.buffers["double"].numpy()
    plan.execute()
    np.testing.assert_array_equal(s.buffers["double"].numpy(), 2 * (X + 1))


def test_rows_for_says_what_runs(seen: list[str]) -> None:
    _, plan = forked()
    assert plan.rows_for(["output0"]) == (0, 1, 2)
    assert plan.rows_for(["output1"]) == (0, 3, 4)
    assert plan.rows_for([]) == ()
    assert plan.rows_for(iter(["output0", "output1"])) == (0, 1, 2, 3, 4)


def test_a_profile_shows_what_was_skipped(seen: list[str]) -> None:
    _, plan = forked()
    report = plan.execute_profiled(limits=False, fetch=["output1"])
    assert seen == ["b"]
    assert report.run.skipped == (1, 2)
    assert [profile.op_index for profile in report] == [0, 1, 2, 3, 4]
    assert [bool(profile.spans) for profile in report] == [True, False, False, True, True]
    assert "2 ops skipped: only outputs need them that nobody fetched" in str(report)
    whole = plan.execute_profiled(limits=False)
    assert whole.run.skipped == () and all(profile.spans for profile in whole)
    assert "skipped" not in str(whole)


def test_rows_that_write_nothing_always_run() -> None:
    signal = TimelineSignal("s")
    s = Sketch(8)
    s.op("increment", "x", "y")
    s.builder.add_op(PreparedSignal(7, signal, 3))
    s.op("double", "x", "z")
    plan = s.build("y", "z")
    plan.execute_limited(fetch=["output1"])
    assert signal.value == 3
    assert plan.rows_for(["output1"]) == (1, 2)


def test_a_declared_dependency_is_a_need(seen: list[str]) -> None:
    s = Noted(8)
    s.note("first", "x", "a")
    s.op("double", "x", "z", dependencies=(s._next_id,))
    plan = s.build("a", "z")
    plan.execute_limited(fetch=["output1"])
    assert seen == ["first"]


def test_what_a_later_run_reads_is_a_state_of_a_plan_made_by_hand(seen: list[str]) -> None:
    s = Noted(8)
    s.op("increment", "total", "next")
    s.note("double", "total", "other")
    s.builder.add_op(PreparedCopy(9, (s.buffer("total"), s.buffer("next"))))
    s.op("double", "total", "out")
    plan = s.build("other", "out")
    plan.execute_limited(fetch=[])
    plan.execute_limited(fetch=["output1"])
    np.testing.assert_array_equal(s.buffers["out"].numpy(), np.full(8, 4))
    assert seen == []


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_branch_is_needed_as_a_whole(seen: list[str], is_taken: bool) -> None:
    s = Noted(8)
    s.branch("p")
    s.op("double", "x", "y")
    s.note("beside", "x", "beside")
    s.orelse()
    s.op("increment", "x", "y")
    s.end()
    s.note("other", "x", "other")
    plan = s.build("y", "beside", "other")
    s.buffers["x"].copyin(X)
    set_flag(s.buffers["p"], is_taken)
    plan.execute_limited(fetch=["output0"])
    np.testing.assert_array_equal(s.buffers["y"].numpy(), 2 * X if is_taken else X + 1)
    assert seen == (["beside"] if is_taken else [])
    seen.clear()
    plan.execute_limited(fetch=["output2"])
    assert seen == ["other"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_is_needed_as_a_whole(seen: list[str], threads: int) -> None:
    s = Noted(8)
    s.begin(Variable("t", 0, 9))
    s.op("increment", "x", "y")
    s.builder.add_op(PreparedCopy(9, (s.buffer("x"), s.buffer("y"))))
    s.end()
    s.begin(5, "other", id=3)
    s.note("other", "z", "other")
    s.end()
    s.op("double", "x", "out")
    plan = s.build("out", "other", threads=threads)
    s.buffers["x"].copyin(X)
    plan.execute_with_vars(t=1)
    seen.clear()
    plan.execute_limited(fetch=["output0"])
    np.testing.assert_array_equal(s.buffers["out"].numpy(), 2 * (X + 2))
    assert seen == []


def test_lanes_that_nobody_needs_are_not_entered() -> None:
    s = Sketch(8)
    s.builder.add_op(PreparedCopy(1, (s.buffer("copied"), s.buffer("x")), lane="copy"))
    s.op("increment", "x", "y")
    s.builder.add_op(PreparedCopy(2, (s.buffer("out"), s.buffer("y")), lane="copy"))
    plan = s.build("copied", "out", "y")
    for turn in range(3):
        s.buffers["x"].copyin(X + turn)
        plan.execute_limited(fetch=["output2"])
        np.testing.assert_array_equal(s.buffers["y"].numpy(), X + turn + 1)
        plan.execute_limited(fetch=["output1"])
        np.testing.assert_array_equal(s.buffers["out"].numpy(), X + turn + 1)
        assert not s.buffers["copied"].array().any()
    plan.execute()
    np.testing.assert_array_equal(s.buffers["copied"].numpy(), X + 2)


# ---------------------------------------------------------------- compiled plans


def chain() -> dict[str, Tensor]:
    """Matrices one after the other, each an output, which share memory in the arena."""
    x = Tensor.input("x", (Variable("n", 1, 16), 8))
    w = Tensor(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))
    a = (x @ w).softmax(-1)
    b = (a @ w).tanh()
    c = (x.flip(1) @ w).exp()
    d = (c @ w + b).sum(1)
    return {"a": a.sum(0), "b": b, "c": c.max(0), "d": d}


@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_plans_skip_kernels_and_have_the_same_bits(threads: int) -> None:
    plan = semel.prepare(chain(), threads=threads)
    array = np.random.default_rng(0).standard_normal((5, 8), dtype=np.float32)
    expected = dict(zip(plan.outputs, plan(x=array), strict=True))
    for fetch in (["a"], ["b"], ["c"], ["d"], ["a", "c"]):
        plan.execute_limited(fetch=fetch)
        for name in fetch:
            np.testing.assert_array_equal(
                plan.output_buffers[list(plan.outputs).index(name)].numpy(), expected[name]
            )
    sizes = {name: len(plan.rows_for([name])) for name in expected}
    assert max(sizes["a"], sizes["c"]) < sizes["d"] <= len(plan.prepared_ops)


def test_calls_fetch_too_and_variables_go_on() -> None:
    plan = semel.prepare(chain(), threads=1)
    rng = np.random.default_rng(1)

    class Only(Reader[Any]):
        def __init__(self, number: int) -> None:
            self.number = number

        def prepare(self, engine: Any) -> Any:
            view = output_view(engine, engine.parts.outputs[self.number])
            return lambda: view().copy()

    readers = [Only(number) for number in range(4)]
    limits = [RunLimits(fetch=[name]) for name in plan.outputs]
    for size in (3, 3, 7, 1, 1, 16):
        array = rng.standard_normal((size, 8), dtype=np.float32)
        expected = plan(x=array)
        for number in (0, 3, 1, 2, 2):
            found = plan.calls.run({"x": array}, readers[number], None, limits[number])
            np.testing.assert_array_equal(found, expected[number])
            found = plan.calls.slots([array], readers[number], limits[number])
            np.testing.assert_array_equal(found, expected[number])
        for _ in range(2):
            with pytest.raises(StaleError, match="was for other outputs"):
                plan.calls.run({"x": array}, readers[0], None, limits[1])


def test_a_growing_plan_grows_in_every_way() -> None:
    x = Tensor.input("x", (Variable("n", 1),))
    plan = semel.prepare({"a": x.flip(0) + 1, "b": (x * 2).sum()}, threads=1)
    for size in (4, 3000, 5, 100_000):
        array = np.arange(size, dtype=np.float32)
        found, total = plan(x=array)
        np.testing.assert_array_equal(found, array[::-1] + 1)
        plan.execute_limited(fetch=["b"])
        np.testing.assert_array_equal(plan.output_buffers[1].numpy(), total)
        more = np.arange(2 * size, dtype=np.float32)
        plan.buffers[plan.engine.parts.input_io[0].index].copyin(more)
        plan.execute_with_vars(n=2 * size)
        np.testing.assert_array_equal(plan.output_buffers[0].numpy(), more[::-1] + 1)


def test_params_that_are_replaced_are_felt_in_every_way() -> None:
    g = Graph("g")
    x, w = g.input("x", (2, 8)), g.param("w", np.ones((8, 8), np.float32))
    g.output("a", x @ w)
    g.output("b", x + w.sum())
    plan = g.prepare(threads=1)
    array = np.ones((2, 8), np.float32)
    plan(x=array)
    plan.execute_limited(fetch=["a"])
    for scale in (2, 3):
        plan.set_param("w", np.full((8, 8), scale, np.float32))
        plan.execute_limited(fetch=["a"])
        np.testing.assert_array_equal(plan.output_buffers[0].numpy(), np.full((2, 8), 8 * scale))
        plan.execute_limited(fetch=["b"])
        np.testing.assert_array_equal(
            plan.output_buffers[1].numpy(), np.full((2, 8), 1 + 64 * scale)
        )
    np.testing.assert_array_equal(plan(x=array)[0], np.full((2, 8), 24))


def test_bound_arrays_are_used_in_every_way() -> None:
    x = Tensor.input("x", (8,))
    turned = np.eye(8, dtype=np.float32)[::-1] * 2
    plan = semel.prepare({"a": x + 1, "b": x @ Tensor(turned.copy())}, threads=1)
    arrays, out = [X.copy(), X + 10], np.zeros(8, np.float32)
    plan.bind_output("a", out)
    for turn in range(4):
        plan.bind_input("x", arrays[turn % 2])
        out[:] = -1
        plan.execute_limited(fetch=["b"])
        np.testing.assert_array_equal(plan.output_buffers[1].numpy(), arrays[turn % 2][::-1] * 2)
        np.testing.assert_array_equal(out, np.full(8, -1))
        plan.execute_limited(fetch=["a"])
        np.testing.assert_array_equal(out, arrays[turn % 2] + 1)
    overlapping = np.zeros(12, np.float32)
    plan.bind_input("x", overlapping[:8])
    plan.bind_output("a", overlapping[4:])
    assert plan.engine.bindings.staged()
    plan.execute_limited(fetch=["b"])
    np.testing.assert_array_equal(overlapping, np.zeros(12))
    plan.execute_limited(fetch=["a"])
    np.testing.assert_array_equal(overlapping[4:], np.ones(8))


def test_sizes_that_a_run_finds_out_are_found_out_anyway() -> None:
    x = Tensor.input("x", (8,))
    plan = semel.prepare({"where": x.nonzero()[0], "sum": x.sum()}, threads=1)
    for array in (X, X - 4, np.zeros(8, np.float32)):
        expected = plan(x=array)
        plan.execute_limited(fetch=["sum"])
        np.testing.assert_array_equal(plan.output_buffers[1].numpy(), expected[1])
        plan.execute_limited(fetch=["where"])
        np.testing.assert_array_equal(plan.output_buffers[0].numpy(), expected[0])


def test_kept_values_are_fetched_by_name() -> None:
    x = Tensor.input("x", (4, 8))
    inner = (x @ Tensor(np.eye(8, dtype=np.float32))).softmax(-1)
    plan = semel.prepare([inner.sum(), x.max()], keep={"inner": inner}, threads=1)
    array = np.ones((4, 8), np.float32)
    plan(x=array)
    expected = plan.kept["inner"].numpy()
    plan.execute_limited(fetch=["output1"])
    with pytest.raises(StaleError, match="was for other outputs"):
        plan.kept["inner"].numpy()
    plan.execute_limited(fetch=["inner"])
    np.testing.assert_array_equal(plan.kept["inner"].numpy(), expected)


def test_extents_hold_in_every_way() -> None:
    g = Graph("rows")
    x = g.input("x", ("n", 8))
    g.output("soft", (x @ Tensor(np.eye(8, dtype=np.float32))).softmax(0))
    g.output("mean", x.mean(0))
    plan = g.prepare(dims={"n": (1, 16)}, extent="n", threads=1)
    array = np.random.default_rng(4).standard_normal((16, 8), dtype=np.float32)
    for rows in (16, 5, 9):
        plan.set_extent("n", rows)
        soft, mean = (each.copy() for each in plan(x=array))
        plan.execute_limited(fetch=["mean"])
        np.testing.assert_array_equal(plan.output_buffers[1].numpy(), mean)
        np.testing.assert_allclose(mean, array[:rows].mean(0), rtol=1e-4, atol=1e-6)
        plan.execute_limited(fetch=["soft"])
        np.testing.assert_array_equal(plan.output_buffers[0].numpy()[:rows], soft[:rows])


# ---------------------------------------------------------------- states


def stateful() -> ExecutionPlan:
    """A log of rows, a sum in place, one that needs two buffers, and an output of none of them."""
    g = Graph("stateful")
    x = g.input("x", (1, 8))
    log, total, turned = g.state("log", (64, 8)), g.state("total", (8,)), g.state("turned", (8,))
    rows = log.append(x)
    g.output("mean", rows.mean(0))
    g.output("turned", turned.flip(0) + x.reshape(8), feeds=turned)
    g.output("total", total + x.reshape(8), feeds=total)
    g.output("free", (x * 3).flip(1))
    return g.prepare(threads=1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sets(st.sampled_from(["mean", "turned", "total", "free"])), max_size=12))
def test_states_go_on_whatever_is_fetched(fetches: list[set[str]]) -> None:
    plan, twin = STATEFUL
    plan.states.reset()
    twin.states.reset()
    for turn, fetch in enumerate(fetches):
        array = np.full((1, 8), turn, np.float32) + X
        expected = dict(zip(twin.outputs, twin(x=array), strict=True))
        if turn % 3 == 2:
            plan(x=array)
        else:
            plan.buffers[plan.engine.parts.input_io[0].index].copyin(array)
            plan.execute_limited(fetch=fetch)
        for name, buffer in zip(plan.outputs, plan.output_buffers, strict=True):
            if name in fetch or turn % 3 == 2:
                np.testing.assert_array_equal(buffer.numpy(), expected[name])
        assert plan.states.cursors == twin.states.cursors
    for name in plan.states:
        np.testing.assert_array_equal(plan.states.read(name), twin.states.read(name))


STATEFUL = (stateful(), stateful())


def test_a_run_for_some_outputs_that_fails_spoils_what_it_was_updating() -> None:
    g = Graph("picking")
    x, total, i = g.input("x", (8,)), g.state("total", (8,)), g.input("i", (2,), "int64")
    g.output("total", total + x, feeds=total)
    g.output("picked", x.gather(0, i))
    g.output("free", x.softmax())
    plan = g.prepare(threads=1)
    good, bad = np.array([0, 7]), np.array([0, 8])
    plan(x=X, i=good)
    before = plan.states.snapshot()
    with pytest.raises(TimedOutError, match="must be over within 0 s"):
        plan.execute_limited(timeout=0, fetch=["free"])
    assert plan.states["total"].is_valid  # it had not begun
    plan.buffers[plan.engine.state.inputs["i"].index].copyin(bad)
    with pytest.raises(semel.IndexRangeError, match="8"):
        plan.execute_limited(fetch=["picked"])
    with pytest.raises(StateError, match="'total'"):
        plan.execute()
    plan.states.restore(before)
    plan.execute_limited(fetch=["free"])  # nobody picks
    np.testing.assert_array_equal(plan.states.read("total"), 2 * X)
    np.testing.assert_array_equal(plan(x=X, i=good)[0], 3 * X)


# ---------------------------------------------------------------- random graphs

OPS = ("add", "flip", "softmax", "matmul", "tanh", "cumsum")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Tensor], list[list[str]]]:
    values = [Tensor.input("x", (6, 6)), Tensor.input("y", (6, 6))]
    for _ in range(draw(st.integers(2, 9))):
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        match draw(st.sampled_from(OPS)):
            case "add":
                values.append(a + b)
            case "flip":
                values.append(a.flip(0))
            case "softmax":
                values.append(a.softmax(-1))
            case "matmul":
                values.append((a @ b) * 0.1)
            case "tanh":
                values.append(a.tanh())
            case _:
                values.append(a.cumsum(0))
    count = draw(st.integers(1, 4))
    outputs = {f"o{k}": values[draw(st.integers(0, len(values) - 1))] + k for k in range(count)}
    fetches = draw(st.lists(st.lists(st.sampled_from(list(outputs)), unique=True), max_size=5))
    return outputs, fetches


@settings(max_examples=25, deadline=None)
@given(graphs(), st.integers(1, 2))
def test_subsets_of_outputs_of_random_graphs_have_the_same_bits(
    drawn: tuple[dict[str, Tensor], list[list[str]]], threads: int
) -> None:
    outputs, fetches = drawn
    plan = semel.prepare(outputs, threads=threads)
    rng = np.random.default_rng(2)
    arrays = {name: rng.standard_normal((6, 6), dtype=np.float32) for name in plan.inputs}
    found = plan(**arrays)
    expected = dict(zip(plan.outputs, found if len(outputs) > 1 else [found], strict=True))
    for fetch in fetches:
        for buffer in plan.output_buffers:
            buffer.array()[...] = np.nan
        for arena in plan.engine.arena():
            arena.fill(0xFF)
        plan.execute_limited(fetch=fetch)
        for name, buffer in zip(plan.outputs, plan.output_buffers, strict=True):
            if name in fetch:
                np.testing.assert_array_equal(buffer.numpy(), expected[name])


# ---------------------------------------------------------------- around it


def test_an_interruption_leaves_a_plan_that_works_or_says_that_it_does_not() -> None:
    x = Tensor.input("x", (8,))
    plan = semel.prepare({"a": x + 1, "b": x @ Tensor(np.eye(8, dtype=np.float32))}, threads=1)
    plan(x=X)

    def stop() -> None:
        raise KeyboardInterrupt("stop")

    def both(chosen: ExecutionPlan) -> None:
        chosen.execute_limited(fetch=["b"])
        chosen.execute_limited(fetch=["a"], timeout=100)
        chosen.execute()

    places = find_places(lambda: both(plan.clone()))
    usable = 0
    for place in places[:: max(len(places) // 25, 1)]:
        other = plan.clone()
        with suppress(KeyboardInterrupt):
            interrupt(lambda: both(other), place, stop)  # noqa: B023 - done before the next
        try:
            other.execute_limited(fetch=["a"])
            np.testing.assert_array_equal(other.output_buffers[0].numpy(), X + 1)
            other.execute()
            np.testing.assert_array_equal(other.output_buffers[1].numpy(), X)
            usable += 1
        except semel.ReleasedError as error:
            assert "interrupted" in str(error)
    assert usable > 8


@pytest.mark.parametrize("wrong", ["output0", [1], 3, [None]])
def test_a_fetch_is_names(wrong: Any) -> None:
    with pytest.raises(InputError, match="must be names of outputs"):
        RunLimits(fetch=wrong)


def test_unknown_names_are_refused_before_anything_happens(seen: list[str]) -> None:
    s, plan = forked()
    plan.execute()
    for ask in (
        lambda: plan.execute_limited(fetch=["output0", "z"]),
        lambda: plan.rows_for(["z"]),
        lambda: plan.execute_profiled(fetch=["z"], limits=False),
    ):
        with pytest.raises(InputError, match="has no output 'z'; known: output0, output1"):
            ask()
    np.testing.assert_array_equal(s.buffers["more"].numpy(), X + 2)


def test_few_ways_are_kept() -> None:
    outputs = {f"o{k}": Tensor.input("x", (8,)).flip(0) + k for k in range(8)}
    plan = semel.prepare(outputs, threads=1)
    plan(x=X)
    for _ in range(2):
        for k in range(8):
            plan.execute_limited(fetch=[f"o{k}"])
            np.testing.assert_array_equal(plan.output_buffers[k].numpy(), X[::-1] + k)
            assert len(list(plan.engine.ways)) <= 1 + MOST_WAYS


def test_the_same_fetch_again_makes_nothing() -> None:
    plan = semel.prepare(chain(), threads=1)
    plan(x=np.ones((2, 8), np.float32))
    plan.execute_limited(fetch=["a"])
    way = plan.engine.ways.now
    plan.execute_limited(fetch=["a"])
    assert plan.engine.ways.now is way
    plan.execute()
    assert plan.engine.ways.is_whole
    plan.execute_limited(fetch=["a"])
    assert plan.engine.ways.now is way


def test_a_plan_that_was_fetched_from_is_gone_with_its_last_reference() -> None:
    with config.override(debug=frozenset()):  # an entry that fills memory holds the plan
        plan = semel.prepare(chain(), threads=1)
    plan(x=np.ones((2, 8), np.float32))
    plan.execute_limited(fetch=["a"])
    engine = weakref.ref(plan.engine)
    gc.disable()
    try:
        del plan
        assert engine() is None
    finally:
        gc.enable()


def test_a_released_plan_says_so_in_every_way() -> None:
    plan = semel.prepare(chain(), threads=1)
    plan(x=np.ones((2, 8), np.float32))
    plan.execute_limited(fetch=["a"])
    plan.release_all_buffers()
    for ask in (plan.execute, lambda: plan.execute_limited(fetch=["a"])):
        with pytest.raises(semel.ReleasedError, match="released"):
            ask()


def test_clones_and_files_are_of_the_whole_plan(tmp_path: Any) -> None:
    plan = semel.prepare(chain(), threads=1)
    array = np.ones((2, 8), np.float32)
    expected = plan(x=array)
    plan.execute_limited(fetch=["a"])
    plan.save(tmp_path / "a.plan")
    for other in (plan.clone(), semel.load_plan(tmp_path / "a.plan", threads=1)):
        for found, one in zip(other(x=array), expected, strict=True):
            np.testing.assert_array_equal(found, one)
    assert plan.num_barriers == 0 and plan.engine.ways.is_whole


def test_a_run_for_some_outputs_is_cancelled_and_limited_like_any_other() -> None:
    s = Sketch(8)
    s.begin_while("p", 1 << 50)
    s.run()
    s.op("increment", "x", "y")
    s.end()
    s.op("double", "x", "out")
    plan = s.build("y", "out")
    set_flag(s.buffers["p"], True)
    plan.execute_limited(fetch=["output1"])  # the loop is not entered
    for _ in range(2):
        with pytest.raises(TimedOutError, match="must be over"):
            plan.execute_limited(fetch=["output0"], timeout=0.02)
        thread = cancel_soon(plan)
        with pytest.raises(CancelledError, match="was cancelled"):
            plan.execute_limited(fetch=["output0"])
        thread.join()
        plan.execute_limited(fetch=["output1"])
    set_flag(s.buffers["p"], False)
    plan.execute()


def test_a_forked_child_runs_in_every_way() -> None:
    plan = semel.prepare(chain(), threads=2)
    array = np.ones((16, 8), np.float32)
    expected = plan(x=array)
    plan.execute_limited(fetch=["a"])

    def run() -> None:
        plan.execute_limited(fetch=["a"])
        np.testing.assert_array_equal(plan.output_buffers[0].numpy(), expected[0])
        plan.execute_limited(fetch=["d"])
        np.testing.assert_array_equal(plan.output_buffers[3].numpy(), expected[3])
        np.testing.assert_array_equal(plan(x=array)[1], expected[1])

    in_child(run)
    run()


def test_threads_that_fetch_different_outputs() -> None:
    plan = semel.prepare(chain(), threads=1)
    array = np.ones((2, 8), np.float32)
    expected = plan(x=array)
    wrong: list[Any] = []

    class One(Reader[Any]):
        def __init__(self, number: int) -> None:
            self.number = number

        def prepare(self, engine: Any) -> Any:
            view = output_view(engine, engine.parts.outputs[self.number])
            return lambda: view().copy()

    def work(number: int, name: str) -> None:
        reader, limits = One(number), RunLimits(fetch=[name])
        for _ in range(30):
            found = plan.calls.run({"x": array}, reader, None, limits)
            if not np.array_equal(found, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(plan.outputs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
