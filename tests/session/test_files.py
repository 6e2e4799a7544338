"""Compiled graphs in files and pickles, and what they say of themselves."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.forge import forged

import semel
from semel import CompiledGraph, Graph, InputError, PlanFileError, Session
from semel.session.options import Options

X = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array([1, 2, 3], np.float32)


def graph() -> Graph:
    """Everything that a file must keep: a default, a param, a state, two outputs."""
    g = Graph("model")
    x = g.input("x", ("n", 3))
    bias = g.input("bias", (3,), default=BIAS)
    w = g.param("w", np.full(3, 2, np.float32))
    total = g.state("total", (3,))
    g.output("y", x * w + bias)
    g.output("sum", total + x.sum(0), feeds=total)
    return g


def compiled(**options: Any) -> CompiledGraph:
    return Session("cpu").compile(graph(), dims={"n": (1, 8)}, **options)


def saved(tmp_path: Path, made: CompiledGraph, **options: Any) -> CompiledGraph:
    made.save(tmp_path / "model.plan")
    return semel.load(tmp_path / "model.plan", **options)


@pytest.mark.parametrize("how", ["file", "pickle", "stranger"])
def test_it_comes_back_as_it_was(how: str, tmp_path: Path) -> None:
    made = compiled(casting="same_kind", sticky=True, depth=3)
    made.set_param("w", np.full(3, 5, np.float32))
    again = (
        pickle.loads(pickle.dumps(made))
        if how == "pickle"
        else saved(tmp_path, made, trust=how == "file")
    )
    assert again.signature == made.signature
    assert again.options == made.options == Options("same_kind", True, 3)
    assert again.params == made.params and again.params["w"].version == 1
    y, total = again.run(x=X.astype(np.float64))
    assert y.tolist() == (X * 5 + BIAS).tolist()
    assert total.tolist() == X.sum(0).tolist()
    assert again.run({})["sum"].tolist() == (2 * X.sum(0)).tolist()  # sticky, and its state goes on


def test_states_have_their_first_values_and_a_snapshot_carries_them(tmp_path: Path) -> None:
    made = compiled()
    made.run(x=X)
    again = saved(tmp_path, made)
    assert again.states.read("total").tolist() == [0, 0, 0]
    again.restore(pickle.loads(pickle.dumps(made.snapshot())))
    assert again.run(x=X)["sum"].tolist() == made.run(x=X)["sum"].tolist()


def test_a_file_of_a_plan_is_a_compiled_graph_too(tmp_path: Path) -> None:
    graph().prepare(dims={"n": (1, 8)}).save(tmp_path / "plan")
    again = semel.load(tmp_path / "plan")
    assert again.options == Options() and again.run(X)["y"].shape == (2, 3)
    assert semel.load_plan(tmp_path / "plan").signature == again.signature


def test_the_plan_of_a_file_can_be_had_alone(tmp_path: Path) -> None:
    compiled().save(tmp_path / "model")
    plan = semel.load_plan(tmp_path / "model")
    assert plan(x=X, bias=np.zeros(3, np.float32))[0].tolist() == (2 * X).tolist()


def test_a_file_may_be_for_several_machines(tmp_path: Path) -> None:
    plain = Graph("g")
    plain.output("y", plain.input("x", (3,)) * 2)
    Session("cpu").compile(plain, sticky=True).save(tmp_path / "g", targets=["x86-64-v2"])
    assert semel.load(tmp_path / "g", recompile=True).options.sticky


@pytest.mark.parametrize(
    "about",
    [
        3,
        [],
        {},
        {"options": 3},
        {"options": {"casting": "any"}},
        {"options": {"casting": ["exact"]}},
        {"options": {"sticky": 1}},
        {"options": {"depth": 0}},
        {"options": {"more": True}},
    ],
)
def test_what_a_file_says_is_not_believed(about: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    compiled().save(path)
    path.write_bytes(forged(path.read_bytes(), lambda header: header.update(about=about)))
    with pytest.raises(PlanFileError, match="must say how the graph was compiled"):
        semel.load(path)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("nothing")
    with pytest.raises(PlanFileError, match="as plan files do"):
        semel.load(tmp_path / "text")
    with pytest.raises(PlanFileError, match="must be readable"):
        semel.load(tmp_path / "gone")


def _in_worker(given: tuple[CompiledGraph, Any]) -> Any:
    made, x = given
    made.run(x=x)
    return dict(made.run(x=x))


def test_it_goes_to_worker_processes() -> None:
    made = compiled()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (found,) = pool.map(_in_worker, [(made, X)])
    assert found["sum"].tolist() == (2 * X.sum(0)).tolist()
    assert made.states.read("total").tolist() == [0, 0, 0]


# ---------------------------------------------------------------- capabilities


def test_what_it_says_it_can_do_it_does(tmp_path: Path) -> None:
    made = compiled(sticky=True, casting="same_kind", depth=2)
    can = made.capabilities()
    assert (can.device, can.threads) == (made.plan.device, made.plan.threads)
    assert can.target == made.plan.target
    assert can.dims == ("n",)
    for rows in (1, 5):
        assert made.run(x=np.ones((rows, 3), np.float32))["y"].shape == (rows, 3)
    assert can.params == ("w",)
    for name in can.params:
        made.set_param(name, np.ones(3, np.float32))
    assert can.states == ("total",)
    for name in can.states:
        made.bind_handle(name, np.zeros(3, np.float32))
    assert can.casting == "same_kind" and can.sticky
    made.run(x=X.astype(np.float64))
    made.run({})
    assert can.raw and made.run_raw(x=X)["y"].array().tolist() == (X + BIAS).tolist()
    assert can.slots and made.run_slots([X, np.zeros(3, np.float32)])[0][1] == X.nbytes
    assert can.out
    target = np.empty((2, 3), np.float32)
    assert made.run(x=X, out={"y": target})["y"] is target
    assert can.fetch and list(made.run(x=X, fetch=["y"]).keys()) == ["y"]
    assert can.timeout and made.run(x=X, timeout=60.0)["y"].shape == (2, 3)
    assert can.cancel
    made.cancel()  # nothing is under way
    assert can.clone and made.clone().run(x=X)["y"].shape == (2, 3)
    assert can.save and saved(tmp_path, made).capabilities() == can
    assert can.async_depth == 2
    tickets = [made.commit_no_wait(x=X) for _ in range(can.async_depth)]
    assert [t.result()["y"].shape for t in tickets] == [(2, 3)] * 2


@pytest.mark.parametrize("is_saved", [False, True])
def test_the_extent_that_is_said_can_be_set(is_saved: bool, tmp_path: Path) -> None:
    made = Session().compile(graph(), dims={"n": (1, 8)}, extent="n")
    if is_saved:
        made.set_active_extent((3, 8))  # which belongs to this one
        made = saved(tmp_path, made)
    can = made.capabilities()
    assert (can.extents, can.dims) == (("n",), ()) and made.extent is None
    whole = np.ones((8, 3), np.float32)
    before = made.run(x=whole)["y"]
    made.set_active_extent((2, 8))
    after = made.run(x=whole * 7)["y"]
    assert after[:2].tolist() != before[:2].tolist()
    assert after[2:].tolist() == before[2:].tolist()


def test_every_feed_that_is_said_can_be_set() -> None:
    g = Graph("g")
    a, b = g.input("a", (3,)), g.input("b", (3,), "int64")
    g.output("up", a + 1)
    g.output("same", b)
    made = Session().compile(g)
    feeds = made.capabilities().feeds
    assert feeds == (("a", "up"), ("b", "same"))
    for name, output in feeds:
        made.bind_handle(name, np.zeros(3, made.inputs[name].dtype.numpy))
        assert made.set_gpu_handle_feed(name, made.outputs[output].index)
    made.run({})
    made.run({})
    assert made.read_handle("a").tolist() == [2, 2, 2]
    with pytest.raises(InputError, match=r"output .same. must be f32\[3\]"):
        made.set_gpu_handle_feed("a", made.outputs["same"].index)


def test_every_dtype_that_is_said_goes_through_bit_for_bit() -> None:
    for name in compiled().capabilities().dtypes:
        g = Graph("copy")
        x = g.input("x", (4,), name)
        g.output("y", x.reshape((2, 2)))
        data = bytes([0, 1] * (2 * x.dtype.size_bytes))
        found = Session().compile(g).run_typed({"x": (data, name)})["y"]
        assert (found[0], found[1]) == (data, name)


def test_it_shows_itself() -> None:
    made = compiled()
    assert [note.became for note in made.explain().nodes][:2] == ["input", "input"]
    line = "model(x: float32[n, 3], bias: float32[3]) -> (y: float32[n, 3], sum: float32[3])"
    assert repr(made) == f"CompiledGraph({line}, cpu)"
    assert "<caption>states</caption>" in made._repr_html_()
