"""Tables of a plan: names, order, types, places and sizes, as the graph was written."""

from __future__ import annotations

import ctypes
import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.plan.build import Sketch

import semel
from semel import ExecutionPlan, Graph, InputError, PlanError, ReleasedError, Tensor, load_plan
from semel.ir.types import FLOAT32, INT64
from semel.plan.table import Entry, Table


def encoder() -> Graph:
    g = Graph("encoder")
    ids = g.input("ids", ("batch", "seq"), "int64")
    scale = g.input("scale", (), "float32")
    table = g.param("table", np.arange(24, dtype=np.float32).reshape(6, 4))
    hidden = table.take(ids, axis=0) * scale
    g.output("hidden", hidden)
    g.output("mean", hidden.mean())
    return g


def prepared() -> ExecutionPlan:
    return encoder().prepare(dims={"batch": (1, 8), "seq": (1, 16)})


LINE = (
    "encoder(ids: int64[batch, seq], scale: float32[]) -> "
    "(hidden: float32[batch, seq, 4], mean: float32[])"
)


def contents(plan: ExecutionPlan, entry: Entry) -> bytes:
    """What lies where the entry says."""
    assert entry.offset is not None
    return ctypes.string_at(plan.arena_ptr + entry.offset, entry.nbytes)


def test_a_plan_has_tables_of_what_goes_in_and_comes_out() -> None:
    plan = prepared()
    assert str(plan.signature) == LINE
    assert plan.name == "encoder"
    assert list(plan.inputs) == ["ids", "scale"] and list(plan.outputs) == ["hidden", "mean"]
    ids = plan.inputs["ids"]
    assert (ids.index, ids.dtype, ids.nbytes) == (0, INT64, 8 * 8 * 16)  # the most: unbound
    assert plan.outputs[1] == plan.outputs["mean"] == plan.outputs[-1]
    assert plan.outputs["mean"].nbytes == 4
    assert str(plan.params) == "table: float32[6, 4]"
    assert plan.params[0].nbytes == 96 and plan.params[0].offset is None


def test_sizes_are_those_of_the_current_variables() -> None:
    plan = prepared()
    plan(ids=np.zeros((2, 3), np.int64), scale=1.0)
    assert plan.inputs["ids"].nbytes == 2 * 3 * 8
    assert plan.outputs["hidden"].nbytes == 2 * 3 * 4 * 4


def test_all_of_them_lie_behind_one_address() -> None:
    plan = prepared()
    ids = np.array([[1, 5], [0, 2]])
    hidden, mean = plan(ids=ids, scale=2.0)
    assert contents(plan, plan.inputs["ids"]) == ids.tobytes()
    assert contents(plan, plan.inputs["scale"]) == np.float32(2).tobytes()
    assert contents(plan, plan.outputs["hidden"]) == hidden.tobytes()
    assert contents(plan, plan.outputs["mean"]) == mean.tobytes()


def test_growth_moves_them_and_is_counted() -> None:
    g = Graph("twice")
    g.output("y", g.input("x", ("n",)) * 2)
    plan = g.prepare()
    plan(x=np.ones(4, np.float32))
    base, place, grown = plan.arena_ptr, plan.outputs["y"].offset, plan.growths
    plan(x=np.ones(7, np.float32))
    assert (plan.arena_ptr, plan.outputs["y"].offset, plan.growths) == (base, place, grown)
    x = np.arange(5000, dtype=np.float32)
    y = plan(x=x)
    assert plan.growths == grown + 1
    assert plan.outputs["y"].offset != place
    assert contents(plan, plan.outputs["y"]) == y.tobytes()
    assert contents(plan, plan.inputs["x"]) == x.tobytes()


def test_bound_arrays_are_found_where_they_lie() -> None:
    plan = prepared()
    ids = np.array([[3, 4]])
    plan.bind_input("ids", ids)
    entry = plan.inputs["ids"]
    assert entry.offset is not None and plan.arena_ptr + entry.offset == ids.ctypes.data
    assert contents(plan, entry) == ids.tobytes()
    plan.unbind("ids")
    assert plan.inputs["ids"].offset == 0


def test_a_plan_built_by_hand_has_tables_too() -> None:
    s = Sketch(16)
    s.op("double", "x", "y")
    s.op("double", "y", "z")
    plan = s.build("z", "y")
    assert str(plan.signature) == "() -> (output0: float32[16], output1: float32[16])"
    plan.buffers[0].copyin(np.ones(16, np.float32))
    plan.execute()
    for entry, buffer in zip(plan.outputs.values(), plan.output_buffers, strict=True):
        assert contents(plan, entry) == buffer.numpy().tobytes()
    assert min(entry.offset or 0 for entry in plan.outputs.values()) == 0


def test_outputs_without_a_name_are_numbered_around_those_with_one() -> None:
    builder = semel.ExecutionPlanBuilder()
    buffers = [builder.add_buffer(None, semel.Buffer.empty((n,), "float32")) for n in (1, 2, 3)]
    builder.set_output_buffers(buffers)
    kind = Tensor.input("t", (2,)).type
    builder.declare_output("output0", buffers[1], kind)
    plan = builder.build()
    assert str(plan.outputs) == ("output0_: float32[1], output0: float32[2], output2: float32[3]")


def test_what_is_read_by_nothing_has_its_place() -> None:
    x, y = Tensor.input("x", (2,)), Tensor.input("y", (2,))
    plan = semel.prepare({"a": x * 2, "b": y * 0 + x})
    assert list(plan.inputs) == ["x", "y"]


def test_one_buffer_under_two_names_has_two_entries() -> None:
    x = Tensor.input("x", (2,))
    plan = semel.prepare({"a": x + 1, "b": x + 1, "same": x})
    assert list(plan.outputs) == ["a", "b", "same"]
    a, b, same = plan.outputs.values()
    assert a.offset == b.offset != same.offset


def test_tables_are_kept_by_files_and_pickles(tmp_path: Path) -> None:
    plan = prepared()
    plan.set_param("table", np.zeros((6, 4), np.float32))
    plan.save(tmp_path / "plan")
    for again in (load_plan(tmp_path / "plan"), pickle.loads(pickle.dumps(plan)), plan.clone()):
        assert again.name == "encoder"
        assert again.signature == plan.signature and str(again.signature) == LINE
        assert again.params == plan.params and again.params["table"].version == 1


def test_files_for_several_machines_keep_the_name(tmp_path: Path) -> None:
    graph = encoder()
    plan = graph.prepare(dims={"batch": (1, 8), "seq": (1, 16)})
    plan.save(tmp_path / "plan", targets=["x86-64-v2", "x86-64-v3"])
    assert load_plan(tmp_path / "plan", recompile=True).signature == plan.signature


def test_equal_graphs_of_other_names_are_compiled_once() -> None:
    plans = []
    for name in ("first", "second", "second"):
        g = Graph(name)
        g.output("y", g.input("x", (3,)) * 1.75)
        plans.append(g.prepare())
    assert [p.name for p in plans] == ["first", "second", "second"]
    assert [p.compile_count for p in plans[1:]] == [0, 0]
    assert plans[1].program is plans[2].program


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    plan = prepared()
    for key in ("z", 2, -3, None, slice(0, 1)):
        with pytest.raises(InputError, match=r"has no input .*; known: ids, scale"):
            plan.inputs[key]
    assert "z" not in plan.inputs and plan.inputs.get("z") is None
    assert repr(Table("input", ())) == "Table(inputs: none)"


def test_tables_of_a_plan_without_memory_say_what_it_was() -> None:
    plan = prepared()
    plan.release_all_buffers()
    assert str(plan.signature) == LINE
    assert plan.inputs["ids"].offset is None
    with pytest.raises(ReleasedError, match="released"):
        _ = plan.arena_ptr


def test_states_are_numbered_and_typed() -> None:
    g = Graph("counter")
    step, total = g.input("step", (4,)), g.state("total", (4,))
    g.output("sum", total + step, feeds=total)
    states = g.prepare().states
    assert [(s.name, s.index, s.dtype, s.shape, s.nbytes) for s in states.values()] == [
        ("total", 0, FLOAT32, (4,), 16)
    ]


def test_tables_are_shown_in_notebooks() -> None:
    table = Table("input", [Entry("<x>", 0, FLOAT32, (2, 3), 64, 24)])
    assert table._repr_html_() == (
        "<table><caption>inputs</caption><tr><th></th><th>name</th><th>dtype</th><th>shape</th>"
        "<th>offset</th><th>bytes</th></tr><tr><td>0</td><td>&lt;x&gt;</td><td>float32</td>"
        "<td>[2, 3]</td><td>64</td><td>24</td></tr></table>"
    )


def test_a_plan_shows_its_tables() -> None:
    g = Graph("<counter>")
    step, total = g.input("step", (4,)), g.state("total", (4,))
    g.output("sum", (total + step) * g.param("w", np.ones(4, np.float32)), feeds=None)
    total.replace(total + step)
    plan = g.prepare()
    shown = plan._repr_html_()
    assert "<code>&lt;counter&gt;(step: float32[4]) -&gt; (sum: float32[4])</code>" in shown
    for caption in ("inputs", "outputs", "params", "states"):
        assert f"<caption>{caption}</caption>" in shown
    assert "<td>total</td><td>float32</td><td>[4]</td><td>16</td>" in shown
    assert "<counter>" not in shown


def test_a_graph_says_what_it_will_be() -> None:
    g = encoder()
    assert repr(g) == f"Graph({LINE}; 1 params; 0 states)"
    shown = g._repr_html_()
    assert "<tr><td>0</td><td>ids</td><td>int64</td><td>[batch, seq]</td></tr>" in shown
    assert "<caption>states</caption>" not in shown
    assert repr(Graph("empty")) == "Graph(empty() -> (); 0 params; 0 states)"


def test_signatures_that_look_equal_are() -> None:
    one, other = prepared(), prepared()
    other(ids=np.zeros((2, 3), np.int64), scale=1.0)
    assert one.signature == other.signature and hash(one.signature) == hash(other.signature)
    assert one.inputs != other.inputs  # one of them knows how large they are
    renamed = encoder()
    renamed.name = "decoder"
    assert one.signature != renamed.prepare(dims={"batch": (1, 8), "seq": (1, 16)}).signature
    assert one.signature != str(one.signature)


def test_buffers_go_by_name() -> None:
    plan = prepared()
    assert [plan.buffer(name) for name in ("ids", "scale")] == [
        plan.buffers[io.index] for io in plan.program.inputs
    ]
    plan(ids=np.zeros((2, 3), np.int64), scale=1.0)
    hidden = plan.buffer("hidden")
    assert hidden is not None
    assert hidden.numpy().shape == (2, 3, 4)
    x = Tensor.input("x", (3,))
    y = x * 2
    kept = (y.exp() + y).prepare(keep={"half": y})
    kept(np.zeros(3, np.float32))
    assert kept.buffer("half") is kept.kept["half"]
    assert kept.buffer("output0") is kept.output_buffer
    with pytest.raises(PlanError, match=r"must be the name of .*got 'hiden'\. Did you mean 'hidd"):
        plan.buffer("hiden")


def test_an_input_that_is_alone_needs_no_name() -> None:
    x = Tensor.input("x", (semel.Variable("n", 1, 9),))
    plan = (x * 2).prepare()
    assert plan(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    assert plan(x=np.ones(2, np.float32)).tolist() == [2, 2]
    with pytest.raises(InputError, match=r"takes 1 array \(x\) in this order, got 2"):
        plan(1, 2)
    wrong = (
        r"go by name where there are more than one, got 1 .* Write plan\(ids=\.\.\., scale=\.\.\.\)"
    )
    with pytest.raises(InputError, match=wrong):
        prepared()(np.zeros((1, 1), np.int64), scale=1.0)
