"""The active extent: every entry point processes the first rows, exactly, and nothing else."""

from __future__ import annotations

import gc
import threading
from ctypes import string_at
from typing import Any

import numpy as np
import pytest
from tests.graph.extents import CASES, MOST, arrays, build, first, listed

import semel
from semel import CompiledGraph, Graph, Session, config
from semel.errors import GraphError, InputError, StateError, VariableError

DIMS = {"n": (1, MOST)}
Array = np.ndarray[Any, Any]


def relu(most: int = 15, **options: Any) -> CompiledGraph:
    g = Graph("relu")
    g.output("y", g.input("x", ("n",)).relu())
    return Session().compile(g, dims={"n": (1, most)}, extent="n", **options)


def ones(count: int = 15) -> Array:
    return np.ones(count, np.float32)


# ---------------------------------------------------------------- the cases of the specification


def test_unary() -> None:
    c = relu()
    assert c.run(x=ones())["y"].tolist() == [1] * 15
    c.set_active_extent((5, 15))
    assert c.run(x=-ones())["y"].tolist() == [0] * 5 + [1] * 10
    c.set_active_extent(None)
    assert c.run(x=-ones())["y"].tolist() == [0] * 15


def test_binary() -> None:
    g = Graph("add")
    g.output("c", g.input("a", ("n",)) + g.input("b", ("n",)))
    c = Session().compile(g, dims={"n": (1, 4)}, extent=True)
    assert c.run(ones(4), ones(4))["c"].tolist() == [2] * 4
    c.set_active_extent((2, 4))
    assert c.run(10 * ones(4), 10 * ones(4))["c"].tolist() == [20, 20, 2, 2]
    c.set_active_extent(None)
    assert c.run(10 * ones(4), 10 * ones(4))["c"].tolist() == [20] * 4


def test_attention() -> None:
    g = Graph("attention")
    q, k, v = (g.input(name, (1, "n", 8)) for name in "qkv")

    def heads(x: semel.Tensor) -> semel.Tensor:
        return x.reshape(1, x.shape[1], 2, 4).permute(0, 2, 1, 3)

    mixed = heads(q).scaled_dot_product_attention(heads(k), heads(v))
    g.output("y", mixed.permute(0, 2, 1, 3).reshape(1, q.shape[1], 8))
    c = Session().compile(g, dims={"n": (1, 4)}, extent="n")
    one = np.ones((1, 4, 8), np.float32)
    assert c.run(one, one, one)["y"].tolist() == one.tolist()
    c.set_active_extent((2, 4))
    three = 3 * one
    three[:, 2:] = 1000  # would be all that is seen
    found = c.run(three, three, three)["y"].reshape(-1)
    assert found[:16].tolist() == [3] * 16
    assert found[16:].tolist() == [1] * 16


def test_string_dims_give_compact_arrays() -> None:
    """A reshape that names the largest size is none that names the dim."""
    g = Graph("relu")
    g.output("y", g.input("x", ("n", 4)).relu())
    c = Session().compile(g, dims={"n": (1, 8)})
    assert c.run(np.ones((3, 4), np.float32))["y"].size == 12


# ---------------------------------------------------------------- entry points


def _typed(c: CompiledGraph, x: dict[str, Array]) -> list[Array]:
    found = c.run_typed({name: (a.tobytes(), a.dtype.name) for name, a in x.items()})
    return [np.frombuffer(data, dtype.numpy).reshape(shape) for data, dtype, shape in found]


def _slots(c: CompiledGraph, x: dict[str, Array]) -> list[Array]:
    found = []
    for (offset, size), name in zip(c.run_slots(list(x.values())), c.outputs, strict=True):
        shape, dtype = _of(c, name)
        found.append(np.frombuffer(string_at(c.arena_ptr + offset, size), dtype).reshape(shape))
    return found


def _out(c: CompiledGraph, x: dict[str, Array]) -> list[Array]:
    return list(c.run(x, out={name: np.empty(*_of(c, name)) for name in c.outputs}))


def _of(c: CompiledGraph, name: str) -> tuple[Any, Any]:
    return c.outputs[name].shape, c.outputs[name].dtype.numpy


#: Ways to run with arrays by name; what comes back is a list of arrays.
ENTRIES: dict[str, Any] = {
    "run": lambda c, x: list(c.run(x)),
    "call": lambda c, x: list(c(**x)),
    "raw": lambda c, x: [each.numpy() for each in c.run_raw(x)],
    "out": _out,
    "typed": _typed,
    "slots": _slots,
    "committed": lambda c, x: list(c.commit_no_wait(x).result()),
    "pipelined": lambda c, x: list(c.run_pipelined([x])[0]),
    "clone": lambda c, x: list(c.clone().run(x)),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_point(entry: str) -> None:
    c = Session().compile(build("encoder"), dims=DIMS, extent="n")
    compact = build("encoder").prepare(dims=DIMS)
    _, full = arrays("encoder", MOST)
    before = [array.copy() for array in c.run(full)]
    for n in (5, 1, 7):
        exact, wide = arrays("encoder", n)
        c.set_active_extent((n, MOST))
        wanted = listed(compact(**exact))
        for want, old, found in zip(wanted, before, ENTRIES[entry](c, wide), strict=True):
            np.testing.assert_array_equal(found[first(want)], want)
            old[first(want)] = want
            if entry != "clone":
                np.testing.assert_array_equal(found, old)
        if entry == "clone":
            c.run(wide)


@pytest.mark.parametrize("name", CASES)
def test_every_graph(name: str) -> None:
    c = Session().compile(build(name), dims=DIMS, extent="n")
    compact = Session().compile(build(name), dims=DIMS)
    for n in (3, MOST, 1):
        exact, wide = arrays(name, n)
        with c.active_extent(n):
            found = c.run(wide)
        for new, want in zip(found, compact.run(exact), strict=True):
            np.testing.assert_array_equal(new[first(want)], want)


def test_out_arrays_keep_what_lies_behind() -> None:
    c = relu()
    c.run(ones())
    y = np.full(15, 7, np.float32)
    with c.active_extent(4):
        c.run(2 * ones(), out={"y": y})
    assert y[:4].tolist() == [2] * 4


def test_outputs_that_are_not_fetched_stay_as_they_were() -> None:
    g = Graph("g")
    h = g.input("x", ("n", 4)).exp()
    g.output("h", h.softmax(-1))
    g.output("sum", h.softmax(-1).sum(0))
    g.output("other", h + 1)
    c = Session().compile(g, dims={"n": (1, 6)}, extent="n")
    x = np.zeros((6, 4), np.float32)
    c.run(x)
    with c.active_extent(2):
        (total,) = c.run(x + np.arange(4, dtype=np.float32), fetch=["sum"])
        assert c.run(x, fetch=["other"])["other"].tolist() == [[2] * 4] * 6
    weights = np.exp(np.exp(np.arange(4)))
    np.testing.assert_allclose(total, 2 * weights / weights.sum(), rtol=1e-5)


def test_threads_with_clones_of_their_own() -> None:
    c = relu()
    c.run(ones())
    found: dict[int, Array] = {}

    def work(n: int) -> None:
        mine = c.clone()
        mine.set_active_extent((n, 15))
        for _ in range(20):
            found[n] = mine.run(x=-ones())["y"]

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 4, 9, 15)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {n: y.tolist() for n, y in found.items()} == {
        n: [0] * n + [1] * (15 - n) for n in (1, 4, 9, 15)
    }
    assert c.extent is None


def test_tickets_have_the_extent_that_was_active_when_they_were_begun() -> None:
    c = relu(depth=8)
    c.run(ones())
    tickets = []
    for n in (10, 5, 1):
        c.set_active_extent((n, 15))
        tickets.append(c.commit_no_wait(x=n * ones()))
    c.set_active_extent(None)
    ten, five, one = ([*ticket.result()["y"]] for ticket in tickets)
    assert ten == [10] * 10 + [1] * 5
    assert five == [5] * 5 + [10] * 5 + [1] * 5
    assert one == [1] + [5] * 4 + [10] * 5 + [1] * 5


def test_handles_and_sticky_inputs() -> None:
    c = relu()
    c.bind_handle("x", 3 * ones())
    with c.active_extent(2):
        assert c.run()["y"].tolist() == [3] * 2 + [0] * 13
    assert c.run()["y"].tolist() == [3] * 15
    with pytest.raises(InputError, match="must be written whole by each run"):
        c.set_gpu_handle_feed("x", 0)
    c = relu(sticky=True)
    c.set_active_extent((6, 15))
    c.run(4 * ones())
    c.set_active_extent((3, 15))
    assert c.run()["y"].tolist() == [4] * 6 + [0] * 9
    c.set_active_extent((7, 15))  # of which six rows were copied
    with pytest.raises(InputError, match="x"):
        c.run()


def test_states_go_with_it() -> None:
    g = Graph("log")
    x, log = g.input("x", ("n", 2)), g.state("log", (8, 2))
    g.output("sum", log.append(x).sum(0))
    c = Session().compile(g, dims={"n": (1, 4)}, extent="n")
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    for n in (3, 1, 2):
        with c.active_extent(n):
            total = c.run(rows)["sum"]
    wanted = np.concatenate([rows[:3], rows[:1], rows[:2]])
    assert c.read_handle("log").tolist() == wanted.tolist()
    assert total.tolist() == wanted.sum(0).tolist()
    with pytest.raises(semel.StateError, match="must end at or before 8"), c.active_extent(4):
        c.run(rows)
    assert c.extent is None
    c.truncate(3)
    with c.active_extent(1):
        assert c.run(rows)["sum"].tolist() == (rows[:3].sum(0) + rows[0]).tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_poison_mode(threads: int) -> None:
    with config.override(debug=frozenset({"poison"})):
        c = Session().compile(build("encoder"), dims=DIMS, extent="n", threads=threads)
        _, full = arrays("encoder", MOST)
        before = [array.copy() for array in c.run(full)]
        exact, wide = arrays("encoder", 5)
        with c.active_extent(5):
            found = c.run(wide)
    wanted = listed(build("encoder").prepare(dims=DIMS)(**exact))
    for want, old, new in zip(wanted, before, found, strict=True):
        old[first(want)] = want
        np.testing.assert_array_equal(new, old)


# ---------------------------------------------------------------- setting it


def test_the_context_manager_restores_what_was_there() -> None:
    c = relu()
    c.set_active_extent((9, 15))
    seen = []
    with pytest.raises(ZeroDivisionError, match="by zero"), c.active_extent(4):
        seen.append(c.extent)
        with c.active_extent(None):
            seen.append(c.extent)
        seen.append(c.extent)
        _ = 1 / 0
    assert seen == [(4, 15), None, (4, 15)]
    assert c.extent == (9, 15)
    with pytest.raises(VariableError, match="got 16"), c.active_extent(16):
        pass
    assert c.extent == (9, 15)


@pytest.mark.parametrize(
    ("extent", "error", "message"),
    [
        ((5, 16), VariableError, "upper must be 15, which 'n' was compiled for, got 16"),
        ((0, 15), VariableError, r"'n' must lie in \[1, 15\], got 0"),
        ((16, 15), VariableError, r"'n' must lie in \[1, 15\], got 16"),
        ((-1, 15), VariableError, r"'n' must lie in \[1, 15\], got -1"),
        (5, InputError, r"must be given \(actual, upper\) or None, got 5"),
        ((5,), InputError, r"must be given \(actual, upper\) or None, got \(5,\)"),
        ((1.5, 15), semel.UserError, "actual"),
        (("5", 15), semel.UserError, "actual"),
        ((5, None), semel.UserError, "upper"),
    ],
)
def test_what_it_cannot_be(extent: Any, error: type[Exception], message: str) -> None:
    c = relu()
    c.set_active_extent((3, 15))
    with pytest.raises(error, match=message):
        c.set_active_extent(extent)
    assert c.extent == (3, 15)


# ---------------------------------------------------------------- graphs compiled without one


def affine() -> Graph:
    g = Graph("affine")
    x = g.input("x", ("n", 4))
    g.output("y", x @ g.param("w", np.eye(4, dtype=np.float32)) + x.mean(0))
    return g


def test_the_only_dim_is_the_extent_of_a_graph_compiled_without_one() -> None:
    g = affine()
    compact = Session().compile(g, dims={"n": (1, 8)})
    named = Session().compile(g, dims={"n": (1, 8)}, extent="n")
    c = Session().compile(g, dims={"n": (1, 8)})
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    assert c.run(x[:3])["y"].shape == (3, 4)
    count = c.plan.compile_count
    for n in (5, 2, 8):
        c.set_active_extent((n, 8))
        named.set_active_extent((n, 8))
        found = c.run(x)["y"]
        np.testing.assert_array_equal(found, named.run(x)["y"])
        np.testing.assert_array_equal(found[:n], compact.run(x[:n])["y"])
    assert c.plan.compile_count == count + 1
    assert str(c.signature) == str(named.signature)
    c.set_active_extent(None)
    np.testing.assert_array_equal(c.run(x)["y"], compact.run(x)["y"])


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_point_of_a_graph_compiled_without_one(entry: str) -> None:
    g = build("encoder")
    c = Session().compile(g, dims=DIMS)
    compact = g.prepare(dims=DIMS)
    exact, wide = arrays("encoder", 5)
    wanted = listed(compact(**exact))
    for want, found in zip(wanted, c.run(exact), strict=True):
        np.testing.assert_array_equal(found, want)
    with c.active_extent(5):
        for want, found in zip(wanted, ENTRIES[entry](c, wide), strict=True):
            np.testing.assert_array_equal(found[first(want)], want)


def test_an_extent_set_later_keeps_params_states_and_handles() -> None:
    g = Graph("log")
    x, bias, log = g.input("x", ("n", 2)), g.input("bias", (2,)), g.state("log", (8, 2))
    w = g.param("w", np.ones(2, np.float32))
    g.output("sum", log.append(x * w).sum(0) + bias)
    c = Session().compile(g, dims={"n": (1, 4)}, keep_params=True)
    rows = np.ones((4, 2), np.float32)
    c.set_param("w", np.full(2, 3, np.float32))
    c.bind_handle("bias", np.full(2, 100, np.float32))
    view = c.run_raw(x=rows[:2])["sum"]
    before = c.clone()
    with c.active_extent(1):
        assert c.run(x=rows)["sum"].tolist() == [109, 109]
        assert c.params["w"].version == 1
        assert c.handles()["bias"].nbytes == 8
        assert c.clone().run(x=rows)["sum"].tolist() == [112, 112]
    c.set_param("w", np.full(2, 5, np.float32))
    assert c.run(x=rows)["sum"].tolist() == [129, 129]
    assert before.run(x=rows[:1])["sum"].tolist() == [109, 109]
    with pytest.raises(semel.SemelError, match="released"):
        view.numpy()


def test_what_an_extent_set_later_cannot_be_changes_nothing() -> None:
    c = Session().compile(affine(), dims={"n": (2, 8)})
    plan = c.plan
    for extent, message in (
        ((2, 9), "upper must be 8, which 'n' was compiled for, got 9"),
        ((1, 8), r"'n' must lie in \[2, 8\], got 1"),
        ((9, 8), r"'n' must lie in \[2, 8\], got 9"),
        (3, r"must be given \(actual, upper\) or None, got 3"),
    ):
        with pytest.raises(semel.UserError, match=message):
            c.set_active_extent(extent)  # type: ignore[arg-type]
    c.set_active_extent(None)
    with semel.no_recompiles(), pytest.raises(semel.RecompileError, match="no_recompiles"):
        c.set_active_extent((3, 8))
    c.bind_handle("x", np.ones((3, 4), np.float32))
    with pytest.raises(InputError, match=r"x.* f32\[8,4\] .*got \(3, 4\)"):
        c.set_active_extent((3, 8))
    assert c.plan is plan
    assert c.extent is None
    assert c.run()["y"].tolist() == [[2] * 4] * 3
    c.unbind("x")
    c.set_active_extent((3, 8))
    assert c.extent == (3, 8)


def test_which_graphs_cannot_have_one_later(tmp_path: Any) -> None:
    g = Graph("add")
    g.output("y", g.input("x", ("n", "m")) + 1)
    c = Session().compile(g, dims={"n": (1, 4), "m": (1, 4)})
    with pytest.raises(VariableError, match=r'it has m, n\. compile\(graph, extent="rows"\)'):
        c.set_active_extent((2, 4))
    with pytest.raises(VariableError, match="it has m, n"), c.active_extent(2):
        pass
    g = Graph("relu")
    g.output("y", g.input("x", (4,)).relu())
    with pytest.raises(VariableError, match="it has none"):
        Session().compile(g).set_active_extent((2, 4))
    g = Graph("relu")
    g.output("y", g.input("x", ("n",)).relu())
    with pytest.raises(VariableError, match="'n' must have a largest value"):
        Session().compile(g).set_active_extent((2, 4))
    Session().compile(g, dims={"n": (1, 4)}).save(tmp_path / "x.plan")
    loaded = semel.load(tmp_path / "x.plan")
    with pytest.raises(semel.PlanError, match=r'which a file does not hold.*extent="n"\) does it'):
        loaded.set_active_extent((2, 4))
    assert loaded.run(ones(3))["y"].tolist() == [1] * 3


def test_weights_that_are_gone_cannot_be_laid_out_for_an_extent() -> None:
    g = Graph("layer")
    g.output("y", g.input("x", ("n", 64)) @ g.constant(np.ones((64, 64), np.float32)))
    c = Session().compile(g, dims={"n": (1, 4)})
    del g
    gc.collect()
    with pytest.raises(semel.PlanError, match=r'a constant .* is gone.*extent="n"\) does it'):
        c.set_active_extent((2, 4))
    assert c.run(np.ones((2, 64), np.float32))["y"].tolist() == [[64] * 64] * 2


def test_graphs_without_one() -> None:
    g = Graph("relu")
    g.output("y", g.input("x", ("n",)).relu())
    c = Session().compile(g, dims={"n": (1, 4)})
    c.set_active_extent(None)
    assert c.extent is None
    assert c.run(ones(3))["y"].shape == (3,)
    with pytest.raises(GraphError, match="must be a dim of inputs"):
        Session().compile(g, dims={"n": (1, 4)}, extent="rows")
    with pytest.raises(GraphError, match="must have a largest value"):
        Session().compile(g, extent=True)


def test_defaults_have_the_largest_shape() -> None:
    g = Graph("add")
    x, bias = g.input("x", ("n",)), g.input("bias", ("n",), default=np.arange(4, dtype=np.float32))
    g.output("y", x + bias)
    c = Session().compile(g, dims={"n": (1, 4)}, extent="n")
    with c.active_extent(3):
        assert c.run(x=ones(4))["y"].tolist() == [1, 2, 3, 0]
    assert c.run(x=ones(4))["y"].tolist() == [1, 2, 3, 4]
    with pytest.raises(GraphError, match="the default of 'bias' must fit"):
        Session().compile(g, dims={"n": (1, 5)}, extent="n")


def test_the_share_of_the_work() -> None:
    c = Session().compile(build("encoder"), dims=DIMS, extent="n")
    c.set_active_extent((MOST // 4, MOST))
    report = c.extent_report()
    assert (report.actual, report.upper) == ({"n": 3}, {"n": 12})
    assert 0.25 <= report.flops_share < 0.26
    assert report.bytes < report.all_bytes


def test_an_extent_without_room_is_for_the_run_to_refuse() -> None:
    g = Graph("rows")
    g.output("sum", g.state("k", (4, 2)).append(g.input("x", ("n", 2))).sum(0))
    c = Session().compile(g, dims={"n": (1, 3)}, extent="n")
    x = np.ones((3, 2), np.float32)
    c.run(x)
    c.set_active_extent((2, 3))
    with pytest.raises(StateError, match="4"):
        c.run(x)
    c.truncate(1)
    assert c.run(x)["sum"].tolist() == [3, 3]
