"""Inputs with defaults, and params whose data comes later."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Graph, Tensor
from semel.ir.text import format_graph, parse_graph
from semel.plan.plan import ExecutionPlan

X = np.array([1, 2], np.float32)
OTHERS = ["x86-64-v2", "x86-64-v3"]


def scaled() -> Graph:
    g = Graph("scaled")
    x, scale = g.input("x", (2,)), g.input("scale", (2,), default=[3, 4])
    g.output("y", x * scale)
    return g


def travelled(plan: ExecutionPlan, folder: Path) -> list[ExecutionPlan]:
    """The plan itself, one from a file, one from a file for several machines, and so on."""
    plan.save(folder / "one.plan")
    plan.save(folder / "several.plan", targets=OTHERS)
    files = [semel.load_plan(folder / name) for name in ("one.plan", "several.plan")]
    return [plan, *files, pickle.loads(pickle.dumps(plan)), plan.clone()]


# ---------------------------------------------------------------- defaults


def test_an_input_that_is_not_given_is_its_default(tmp_path: Path) -> None:
    graph = scaled()
    for plan in travelled(graph.prepare(), tmp_path):
        assert plan.program.defaults["scale"].tolist() == [3, 4]
        assert list(plan.program.defaults) == ["scale"]
        for _ in range(3):
            assert plan(x=X).tolist() == [3, 8]
        assert plan(x=X, scale=np.ones(2, np.float32)).tolist() == [1, 2]
        assert plan(x=X).tolist() == [3, 8]
        with pytest.raises(semel.InputError, match="missing x"):
            plan()


def test_a_bound_array_comes_before_the_default() -> None:
    plan = scaled().prepare()
    plan.bind_input("scale", np.ones(2, np.float32))
    assert plan(x=X).tolist() == [1, 2]
    plan.unbind()
    assert plan(x=X).tolist() == [3, 8]


def test_a_default_is_a_copy() -> None:
    given = np.ones(2, np.float32)
    g = Graph("g")
    g.output("y", g.input("x", (2,), default=given) + 1)
    given[:] = 9
    assert g.prepare()().tolist() == [2, 2]


def test_a_default_says_the_size_of_a_variable() -> None:
    g = Graph("g")
    x = g.input("x", ("t", 2), default=np.ones((3, 2), np.float32))
    g.output("y", x + g.input("b", ("t", 2)))
    plan = g.prepare(dims={"t": (1, 4)})
    assert plan(b=np.ones((3, 2), np.float32)).shape == (3, 2)
    with pytest.raises(semel.InputError, match="t=2"):
        plan(b=np.ones((2, 2), np.float32))
    assert plan(b=np.ones((2, 2), np.float32), x=np.ones((2, 2), np.float32)).shape == (2, 2)
    with pytest.raises(semel.GraphError, match=r"default of 'x' must fit .* t is not 3"):
        g.prepare(dims={"t": (1, 2)})


@pytest.mark.parametrize(
    ("shape", "default", "match"),
    [
        ((2,), np.ones(3, np.float32), r"must fit f32\[2\], got float32 of shape \(3,\)"),
        ((2,), np.ones((1, 2), np.float32), r"must be f32\[2\]"),
        ((2,), np.ones(2), "dtype must be float32, got float64"),
        ((2,), ["a", "b"], r"needs numbers that fit float32"),
        (("t", "t"), np.ones((2, 3), np.float32), "t is not 3"),
        ((), None, "s"),
    ],
)
def test_a_default_that_does_not_fit_is_refused_where_it_is_declared(
    shape: tuple[int | str, ...], default: object, match: str
) -> None:
    g = Graph("g")
    if default is None:  # which is no default at all
        assert g.input("x", shape, default=default).node.attrs.default is None
        return
    with pytest.raises(semel.GraphError, match=match):
        g.input("x", shape, default=default)
    assert not g.inputs


def test_equal_graphs_with_other_defaults_are_other_programs() -> None:
    def made(value: float) -> ExecutionPlan:
        g = Graph("g")
        g.output("y", g.input("x", (2,), default=[value, value]) + 1)
        return g.prepare()

    assert [made(v)().tolist() for v in (1, 2, 1)] == [[2, 2], [3, 3], [2, 2]]


# ---------------------------------------------------------------- params without data


def model() -> Graph:
    """`w` is packed, `a` and `b` are folded into one, `c` is read as it is, `d` by nobody."""
    g = Graph("model")
    x = g.input("x", (3, 16))
    w, a, b = (g.param(n, shape=s) for n, s in (("w", (16, 32)), ("a", (32,)), ("b", (32,))))
    c, known = g.param("c", shape=(3, 32)), g.param("known", np.full(32, 2, np.float32))
    g.param("d", shape=(2,), dtype="int32")
    g.output("y", x @ w + (a + b * known) * c)
    return g


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 32), "a": (32,), "b": (32,), "c": (3, 32)}
    found = {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    return {**found, "d": np.zeros(2, np.int32)}


def expected(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    return x @ p["w"] + (p["a"] + p["b"] * p.get("known", 2)) * p["c"]


RUNS: list[Callable[[ExecutionPlan], object]] = [
    lambda plan: plan(x=np.ones((3, 16), np.float32)),
    lambda plan: plan.execute(),
    lambda plan: plan.execute_with_vars(),
    lambda plan: plan.execute_profiled(limits=False),
]


def test_a_param_without_data_is_set_before_the_first_run(tmp_path: Path) -> None:
    graph, x = model(), np.ones((3, 16), np.float32)
    for plan in travelled(graph.prepare(), tmp_path):
        left = ["w", "a", "b", "c", "d"]
        plan.buffers[plan.program.inputs[0].index].copyin(x)
        for name in list(left):
            assert list(plan.missing_params()) == left
            for run in RUNS:
                with pytest.raises(semel.ParamError, match=f"missing: {', '.join(left)}") as e:
                    run(plan)
                assert list(e.value.__dict__["params"]) == left
            plan.set_param(name, data()[name])
            left.remove(name)
        assert plan.missing_params() == ()
        np.testing.assert_allclose(plan(x=x), expected(x, data()), rtol=1e-5, atol=1e-5)
        other = {n: v * 2 for n, v in data().items()}
        plan.set_params(other | {"known": np.ones(32, np.float32)})
        wanted = expected(x, other | {"known": np.ones(32, np.float32)})
        np.testing.assert_allclose(plan(x=x), wanted, rtol=1e-5, atol=1e-5)


def test_params_are_set_together_too_and_a_clone_has_what_its_plan_has() -> None:
    plan, x = model().prepare(), np.ones((3, 16), np.float32)
    plan.set_params({n: v for n, v in data().items() if n != "c"})
    clone = plan.clone()
    plan.set_param("c", data()["c"])
    np.testing.assert_allclose(plan(x=x), expected(x, data()), rtol=1e-5, atol=1e-5)
    with pytest.raises(semel.ParamError, match="missing: c"):
        clone(x=x)
    clone.set_param("c", data()["c"])
    np.testing.assert_array_equal(clone(x=x), plan(x=x))


def test_a_plan_that_grows_still_knows_what_is_missing() -> None:
    g = Graph("g")
    w = g.param("w", shape=(4,))
    g.output("y", g.input("x", ("t", 4)) * w)
    plan = g.prepare()
    with pytest.raises(semel.ParamError, match="missing: w"):
        plan(x=np.ones((1000, 4), np.float32))
    plan.set_param("w", np.full(4, 2, np.float32))
    assert plan(x=np.ones((2000, 4), np.float32)).sum() == 16000


def test_what_is_missing_takes_no_room() -> None:
    g = Graph("g")
    w = g.param("w", shape=(1 << 10, 1 << 10))
    g.output("y", g.input("x", (3, 1 << 10)) @ w)
    plan = g.prepare()
    assert plan.memory.weights_bytes < 1 << 12
    assert len(plan.pack()) < 1 << 20


def test_params_without_data_have_no_value() -> None:
    g = Graph("g")
    w = g.param("w", shape=(4,))
    for ask in (w.numpy, (w + 1).numpy, (Tensor.ones(4) * w).sum().item):
        with pytest.raises(semel.GraphError, match=r"must not depend on .* param 'w': f32\[4\]"):
            ask()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "must have either data, or a shape"),
        ({"data": [1.0], "shape": (1,)}, "must have either data, or a shape"),
        ({"shape": ("t",)}, "must be ints or Variables"),
        ({"shape": (semel.Variable("t", 1, 4),)}, "must be numbers"),
    ],
)
def test_what_a_param_needs(given: dict[str, Any], match: str) -> None:
    g = Graph("g")
    with pytest.raises(semel.GraphError, match=match):
        g.param("w", **given)
    assert not g.params


def test_the_text_has_defaults_and_leaves_out_what_is_missing() -> None:
    g = Graph("g")
    x, w = g.input("x", (2,), default=[3, 4]), g.param("w", shape=(2,))
    g.output("y", x * w)
    text = format_graph(g.build())
    assert 'input "x" @0 : f32[2] = [3.0, 4.0]' in text and 'param "w" : f32[2]\n' in text
    again = parse_graph(text)
    assert format_graph(again) == text
    (param,) = (n for n in again.nodes if n.op.name == "param")
    assert param.attrs.storage.is_missing
