"""Runs of the first rows of larger arrays: exact, and nothing else is read or written."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.extents import CASES, MOST, arrays, build, drawn, first, listed
from tests.state.drawn import MOST as FEW
from tests.state.drawn import WIDTH, draw_graph

import semel
from semel import Graph, Tensor, config
from semel.errors import GraphError, InputError, VariableError
from semel.ir.expr import Variable
from semel.ir.text import format_graph, parse_graph
from semel.ops.evaluate import evaluate
from semel.plan.plan import ExecutionPlan

DIMS = {"n": (1, MOST)}


def kernels(plan: ExecutionPlan) -> list[str]:
    return [row.notes.name for row in plan.prepared_kernels]


# ---------------------------------------------------------------- the cases of the specification


def test_a_unary_op_leaves_the_rest_as_it_was() -> None:
    g = Graph("relu")
    g.output("y", g.input("x", ("n",)).relu())
    plan = g.prepare(dims={"n": (1, 15)}, extent="n")
    one = np.ones(15, np.float32)
    assert plan(x=one).tolist() == [1] * 15
    plan.set_extent("n", 5)
    assert plan(x=-one).tolist() == [0] * 5 + [1] * 10
    plan.set_extent("n", 15)
    assert plan(x=-one).tolist() == [0] * 15


def test_a_binary_op_does_too() -> None:
    g = Graph("add")
    g.output("c", g.input("a", ("n",)) + g.input("b", ("n",)))
    plan = g.prepare(dims={"n": (1, 4)}, extent=True)
    one = np.ones(4, np.float32)
    assert plan(a=one, b=one).tolist() == [2] * 4
    plan.set_extent("n", 2)
    assert plan(a=10 * one, b=10 * one).tolist() == [20, 20, 2, 2]
    plan.set_extent("n", 4)
    assert plan(a=10 * one, b=10 * one).tolist() == [20] * 4


def test_attention_sees_the_first_keys_only() -> None:
    g = Graph("attention")
    q, k, v = (g.input(name, (1, "n", 8)) for name in "qkv")

    def heads(x: Tensor) -> Tensor:
        return x.reshape(1, x.shape[1], 2, 4).permute(0, 2, 1, 3)

    mixed = heads(q).scaled_dot_product_attention(heads(k), heads(v))
    g.output("y", mixed.permute(0, 2, 1, 3).reshape(1, q.shape[1], 8))
    plan = g.prepare(dims={"n": (1, 4)}, extent="n")
    ones = np.ones((1, 4, 8), np.float32)
    assert plan(q=ones, k=ones, v=ones).tolist() == ones.tolist()
    threes = np.full((1, 4, 8), 3, np.float32)
    threes[:, 2:] = 1000  # would be all that is seen
    plan.set_extent("n", 2)
    found = plan(q=threes, k=threes, v=threes).reshape(-1)
    assert found[:16].tolist() == [3] * 16
    assert found[16:].tolist() == [1] * 16


# ---------------------------------------------------------------- exactness


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_rows_are_those_of_a_plan_of_that_size(name: str, threads: int) -> None:
    plan = build(name).prepare(dims=DIMS, extent="n", threads=threads)
    compact = build(name).prepare(dims=DIMS, threads=threads)
    before = [np.zeros(b.shape, b.dtype.numpy) for b in plan.output_buffers]
    for n in (MOST, 5, 1, 8):
        exact, wide = arrays(name, n)
        plan.set_extent("n", n)
        wanted, found = listed(compact(**exact)), listed(plan(**wide))
        for old, new, want in zip(before, found, wanted, strict=True):
            np.testing.assert_array_equal(new[first(want)], want)
            old[first(want)] = want  # all the rest is what earlier runs have left
            np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_a_graph_of_that_size(name: str) -> None:
    plan = build(name).prepare(dims=DIMS, extent="n")
    exact, wide = arrays(name, 7)
    plan.set_extent("n", 7)
    found, wanted = listed(plan(**wide)), listed(build(name, 7).prepare()(**exact))
    for new, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(new[first(want)], want, rtol=1e-6, atol=1e-6)


COPIED = {"output that others need", "sorted", "products summed", "products summed in a view"}


@pytest.mark.parametrize("name", sorted(CASES.keys() - COPIED))
def test_nothing_is_copied_on_the_way(name: str) -> None:
    """No more kernels than without an extent; those that sort, scan or sum products want copies."""
    without = kernels(build(name).prepare(dims=DIMS))
    assert len(kernels(build(name).prepare(dims=DIMS, extent="n"))) <= len(without)


def test_results_for_tall_matrices_are_stored_where_the_rows_belong() -> None:
    found = kernels(build("matmul of a batch").prepare(dims=DIMS, extent="n"))
    assert found[1:] == ["matmul"]  # rows that a matmul streams are put together first
    hidden = kernels(build("encoder").prepare(dims=DIMS, extent="n"))
    assert not any("update" in name for name in hidden)


def test_an_output_that_others_need_is_stored_once() -> None:
    plan = build("output that others need").prepare(dims=DIMS, extent="n")
    assert {value.place for value in plan.program.values} == {"io", "constant"}
    assert plan.program.outputs[0].index == plan.program.outputs[3].index  # "again" is h


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_graphs_with_states(data: st.DataObject) -> None:
    graph = draw_graph(data.draw)
    compact = graph.prepare(dims={"t": (1, FEW)})
    plan = graph.prepare(dims={"t": (1, FEW)}, extent="t")
    for _ in range(3):
        n = data.draw(st.integers(1, FEW))
        x = drawn(n, WIDTH)
        wide = np.full((FEW, WIDTH), np.nan, np.float32)
        wide[:n] = x
        plan.set_extent("t", n)
        try:
            wanted = listed(compact(x=x))
        except semel.StateError:
            with pytest.raises(semel.StateError, match="must end at or before"):
                plan(x=wide)
            continue
        for new, want in zip(listed(plan(x=wide)), wanted, strict=True):
            np.testing.assert_allclose(new[first(want)], want, rtol=2e-5, atol=2e-5)
        assert plan.states.cursors == compact.states.cursors
        for name in plan.states:
            np.testing.assert_allclose(
                plan.states.read(name), compact.states.read(name), rtol=2e-5, atol=2e-5
            )


def test_rows_are_appended_to_a_state() -> None:
    g = Graph("log")
    x, log = g.input("x", ("n", 2)), g.state("log", (8, 2))
    g.output("sum", log.append(x * 2).sum(0))
    g.output("twice", x * 2)
    plan = g.prepare(dims={"n": (1, 4)}, extent="n")
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    plan.set_extent("n", 3)
    plan(x=rows)
    plan.set_extent("n", 1)
    total, twice = plan(x=rows + 100)
    assert plan.states.read("log").tolist() == [[0, 2], [4, 6], [8, 10], [200, 202]]
    assert total.tolist() == [212, 220]
    assert twice.tolist() == [[200, 202], [4, 6], [8, 10], [0, 0]]


# ---------------------------------------------------------------- what is not touched

_GUARDED = """
import ctypes, mmap
import numpy as np
from semel import Graph

libc = ctypes.CDLL(None, use_errno=True)
area = mmap.mmap(-1, 3 * 4096)
base = ctypes.addressof(ctypes.c_char.from_buffer(area))
x = np.frombuffer(area, np.float32, 3 * 1024).reshape(12, 256)
x[:4] = 1
g = Graph("g")
n = g.input("x", ("n", 256))
g.output("y", n.softmax(0) + n.mean())
g.output("z", n @ n.T)
plan = g.prepare(dims={"n": (1, 12)}, extent="n")
assert libc.mprotect(ctypes.c_void_p(base + 4096), 2 * 4096, 0) == 0  # rows 4 to 12
plan.set_extent("n", 4)
assert plan(x=x)[0][3, 255] == 1.25
assert plan(x=x)[0][3, 255] == 1.25  # the short way
plan.bind_input("x", x)
plan.execute()
assert plan.output_buffers[0].numpy()[0, 0] == 1.25
plan.set_extent("n", 2)
plan.execute()
assert plan.output_buffers[0].numpy()[:, 0].tolist() == [1.5] * 2 + [1.25] * 2 + [0] * 8
print("fine")
"""


def test_memory_behind_the_extent_is_not_read() -> None:
    """A page that nobody may touch lies there: a stray read is a crash."""
    done = subprocess.run(
        [sys.executable, "-c", _GUARDED], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == "fine\n", done.stderr


def test_bound_outputs_keep_what_lies_behind() -> None:
    plan = build("encoder").prepare(dims=DIMS, extent="n")
    exact, wide = arrays("encoder", 5)
    hidden = np.full((2, MOST, 16), 7, np.float32)
    plan.bind_output("hidden", hidden)
    plan.set_extent("n", 5)
    plan(**wide)
    wanted = listed(build("encoder").prepare(dims=DIMS)(**exact))[0]
    np.testing.assert_array_equal(hidden[:, :5], wanted)
    assert (hidden[:, 5:] == 7).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_poison_spares_what_lies_behind(threads: int) -> None:
    g = Graph("g")
    x, total = g.input("x", (2, "n", 3)), g.state("total", (3,))
    g.output("y", x * 2)
    g.output("sum", x.sum(1).sum(0) + total, feeds=total)
    with config.override(debug=frozenset({"poison"})):
        plan = g.prepare(dims=DIMS, extent="n", threads=threads)
        one = np.ones((2, MOST, 3), np.float32)
        plan(x=one)
        plan.set_extent("n", 2)
        found, total_found = plan(x=3 * one)
    assert (found[:, :2] == 6).all()
    assert (found[:, 2:] == 2).all()
    assert total_found.tolist() == [2 * MOST + 12] * 3


def test_poison_fills_what_is_to_be_written() -> None:
    """A kernel that wrote less than it should would show."""
    g = Graph("g")
    g.output("y", g.input("x", (2, "n", 3)) * 2)
    with config.override(debug=frozenset({"poison"})):
        plan = g.prepare(dims=DIMS, extent="n")
        plan(x=np.ones((2, MOST, 3), np.float32))
        plan.set_extent("n", 2)
        plan.engine._fill_stale_memory()
        found = plan.output_buffers[0].array((2, MOST, 3))
    assert np.isnan(found[:, :2]).all()
    assert (found[:, 2:] == 2).all()


# ---------------------------------------------------------------- inputs that are not given again


def small() -> ExecutionPlan:
    g = Graph("g")
    g.output("y", g.input("x", ("n", 2)) + 1)
    return g.prepare(dims={"n": (1, 4)}, extent="n")


def test_an_input_of_which_too_little_was_copied_is_asked_for_again() -> None:
    plan = small()
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    plan.set_extent("n", 2)
    plan(x=x)
    plan.set_extent("n", 1)
    plan.execute()  # less is there
    with pytest.raises(InputError, match="'x'"):
        plan.execute_with_vars(n=3)
    plan(x=x)
    plan.set_extent("n", 3)
    with pytest.raises(InputError, match="'x'"):
        plan.execute()
    assert plan(x=x)[:3].tolist() == (x[:3] + 1).tolist()


def test_an_input_that_was_written_whole_serves_all_extents() -> None:
    plan = small()
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    plan.set_extent("n", 1)
    plan.buffers[plan.program.inputs[0].index].copyin(x)
    plan.execute()
    plan.set_extent("n", 4)
    plan.execute()
    assert plan.output_buffer.numpy().tolist() == (x + 1).tolist()


# ---------------------------------------------------------------- plans


def test_it_stays_until_told_otherwise() -> None:
    plan = small()
    x = np.ones((4, 2), np.float32)
    assert plan.extents == {"n": 4}
    plan.set_extent("n", 1)
    for _ in range(3):
        assert plan(x=x)[:2, 0].tolist() == [2, 0]
    with pytest.raises(InputError, match="must be f32"):
        plan(x=x[:3])
    assert plan.extents == {"n": 1}
    assert plan(x=x)[:2, 0].tolist() == [2, 0]


def test_outputs_can_be_read_after_it_has_changed() -> None:
    plan = small()
    plan(x=np.ones((4, 2), np.float32))
    plan.set_extent("n", 1)
    assert plan.output_buffer.numpy().tolist() == [[2, 2]] * 4


def test_clones_have_their_own_and_begin_with_the_same_rest() -> None:
    plan = small()
    x = np.ones((4, 2), np.float32)
    plan(x=x)
    plan.set_extent("n", 2)
    plan(x=10 * x)
    twin = plan.clone()
    assert twin.extents == {"n": 2}
    twin.set_extent("n", 1)
    assert plan.extents == {"n": 2}
    assert twin(x=0 * x)[:, 0].tolist() == [1, 11, 2, 2]
    assert plan(x=20 * x)[:, 0].tolist() == [21, 21, 2, 2]
    third = plan.clone()
    third.set_extent("n", 3)
    with pytest.raises(InputError, match="'x'"):
        third.execute()


def test_files_and_pickles_have_them(tmp_path: Path) -> None:
    plan = small()
    plan.save(tmp_path / "small.plan")
    for loaded in (semel.load_plan(tmp_path / "small.plan"), pickle.loads(pickle.dumps(plan))):
        assert loaded.extents == {"n": 4}
        x = np.ones((4, 2), np.float32)
        loaded.set_extent("n", 3)
        assert loaded(x=x)[:, 0].tolist() == [2, 2, 2, 0]


def test_other_dims_go_with_the_arrays_and_may_grow() -> None:
    g = Graph("g")
    x = g.input("x", ("b", "n", 2))
    g.output("y", x - x.mean(1, keepdims=True))
    plan = g.prepare(dims={"n": (1, 6)}, extent="n")
    plan.set_extent("n", 4)
    for batch in (3, 200, 1):
        array = drawn(batch, 6, 2)
        found = plan(x=array)
        wanted = array[:, :4] - array[:, :4].mean(1, keepdims=True)
        np.testing.assert_allclose(found[:, :4], wanted, rtol=1e-5, atol=1e-5)
        assert found.shape == (batch, 6, 2)


def test_inputs_that_nothing_reads_have_it_too() -> None:
    g = Graph("g")
    g.input("x", ("n", 2))
    g.output("y", g.input("b", (3,)) + 1)
    plan = g.prepare(dims={"n": (1, 4)}, extent="n")
    plan.set_extent("n", 2)
    x, b = np.ones((4, 2), np.float32), np.ones(3, np.float32)
    assert plan(x=x, b=b).tolist() == [2, 2, 2]
    assert plan.extents == {"n": 2}


def test_no_rows_at_all_where_the_dim_allows_it() -> None:
    g = Graph("g")
    x = g.input("x", (Variable("n", 0, 4), 2))
    g.output("y", x + 1)
    g.output("sum", x.sum(0))
    plan = g.prepare(extent="n")
    ones = np.ones((4, 2), np.float32)
    plan(x=ones)
    plan.set_extent("n", 0)
    y, total = plan(x=np.full((4, 2), np.nan, np.float32))
    assert y.tolist() == [[2, 2]] * 4
    assert total.tolist() == [0, 0]


def test_what_is_kept_is_compact() -> None:
    g = Graph("g")
    x = g.input("x", ("n", 2))
    squared = x * x
    g.output("y", squared.exp())
    plan = g.prepare(dims={"n": (1, 4)}, extent="n", keep={"squared": squared})
    plan.set_extent("n", 3)
    plan(x=np.full((4, 2), 2, np.float32))
    assert plan.kept["squared"].numpy().tolist() == [[4, 4]] * 3
    plan.set_extent("n", 2)
    with pytest.raises(semel.StaleError, match="the extent changed"):
        plan.kept["squared"].numpy()


def test_the_work_follows_the_extent() -> None:
    plan = build("encoder").prepare(dims=DIMS, extent="n")
    _, wide = arrays("encoder", MOST)
    plan.set_extent("n", MOST // 4)
    plan(**wide)
    report = plan.extent_report()
    done = plan.execute_profiled(limits=False)
    assert report.flops == sum(op.flops for op in done)
    assert report.bytes == sum(op.bytes for op in done)
    assert 0.25 <= report.flops_share < 0.26
    weights = 2 * 16 * 24 * 4
    assert (report.bytes - weights) * 3.2 < report.all_bytes - weights
    assert str(report).startswith("n 3 of 12: 25.")
    plan.set_extent("n", MOST)
    assert plan.extent_report().flops_share == plan.extent_report().bytes_share == 1


def test_the_amounts_of_one_kernel() -> None:
    """A sum of n rows of 8: each element is read once, and one row of sums written."""
    g = Graph("g")
    g.output("y", g.input("x", ("n", 8)).sum(0))
    plan = g.prepare(dims={"n": (1, 100)}, extent="n")
    plan.set_extent("n", 25)
    report = plan.extent_report()
    assert (report.bytes, report.all_bytes) == (26 * 32, 101 * 32)
    assert report.flops_share == 0.25


# ---------------------------------------------------------------- graphs


def test_graphs_are_text_and_have_a_reference() -> None:
    graph = build("mean over it").build(DIMS, "n")
    text = format_graph(graph)
    assert 'input "x" {part=(n, 5)} : f32[12,5]' in text
    assert 'frame "z" : f32[12,5]' in text
    assert format_graph(parse_graph(text)) == text
    exact, wide = arrays("mean over it", 5)
    mean, rest = evaluate(graph, wide, {"n": 5})
    np.testing.assert_allclose(mean, exact["x"].mean(0), rtol=1e-5)
    assert rest.shape == (MOST, 5)
    np.testing.assert_allclose(rest[:5], exact["x"] - mean, rtol=1e-5)
    assert not rest[5:].any()


def rows(*shapes: Any) -> Graph:
    g = Graph("g")
    for k, shape in enumerate(shapes):
        g.output(f"y{k}", g.input(f"x{k}", shape) + 1)
    return g


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (rows(("n",)), {"extent": "m", "dims": {"n": (1, 4)}}, "must be a dim of inputs .n., got"),
        (rows((4,)), {"extent": True}, "not just one symbolic dim; there are: none"),
        (rows(("n",), ("m",)), {"extent": True}, "not just one symbolic dim; there are: m, n"),
        (rows(("n",)), {"extent": "n"}, "'n' must have a largest value"),
        (rows(("n",)), {"extent": 3}, "must be a dim of inputs .n., got 3"),
    ],
)
def test_what_is_no_extent_is_refused(graph: Graph, options: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph.prepare(**options)


def test_outputs_must_be_largest_where_the_extent_is() -> None:
    g = Graph("g")
    x = g.input("x", ("n", 2))
    g.output("rest", semel.zeros((4 - x.shape[0], 2)) + x.sum())
    with pytest.raises(GraphError, match="must be largest where 'n' is: axis 0 is"):
        g.prepare(dims={"n": (1, 3)}, extent="n")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n", 0, r"'n' must lie in \[1, 4\], got 0"),
        ("n", 5, r"'n' must lie in \[1, 4\], got 5"),
        ("m", 1, "must be one of the plan .n., got 'm'"),
    ],
)
def test_values_that_it_cannot_have_change_nothing(name: str, value: int, message: str) -> None:
    plan = small()
    plan.set_extent("n", 2)
    with pytest.raises(VariableError, match=message):
        plan.set_extent(name, value)
    assert plan.extents == {"n": 2}
    with pytest.raises(semel.UserError, match="set_extent"):
        plan.set_extent("n", 1.5)  # type: ignore[arg-type]


def test_what_the_graph_demands_is_checked_at_once() -> None:
    g = Graph("pairs")
    x = g.input("x", ("n", 2))
    g.output("y", x.reshape(x.shape[0] // 2, 2, 2).sum(1))
    plan = g.prepare(dims={"n": (2, 8)}, extent="n")
    plan.set_extent("n", 4)
    with pytest.raises(VariableError, match="'n' cannot be 3"):
        plan.set_extent("n", 3)
    assert plan(x=np.ones((8, 2), np.float32)).tolist() == [[2, 2]] * 2 + [[0, 0]] * 2


def test_a_plan_without_one_says_so() -> None:
    plan = rows(("n",)).prepare(dims={"n": (1, 4)})
    assert plan.extents == {}
    with pytest.raises(VariableError, match=r"must be one of the plan \(none\)"):
        plan.set_extent("n", 2)
