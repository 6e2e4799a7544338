"""`plan.explain()`: fusion and its limits, buffers, steps, variables."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add

import semel
from semel import Tensor, Variable
from semel.cli.main import main
from semel.plan.plan import ExecutionPlan
from semel.plan.rows import PreparedBufferView

N = Variable("n", 1, 64)


def _plan() -> ExecutionPlan:
    """A contraction, a reduction over rows, and another contraction: several kernels."""
    x = Tensor.input("x", (N, 96))
    w = Tensor(np.full((96, 96), 0.01, np.float32))
    return (((x @ w).exp().sum(0, keepdims=True) + x) @ w).prepare(threads=1)


def test_every_node_stands_in_the_kernel_that_computes_it() -> None:
    explained = _plan().explain()
    nodes = [node for op in explained.ops for node in op.nodes]
    for name in ("matmul", "exp", "reduce_sum", "add"):
        assert any(f" {name} f32" in node for node in nodes), name
    assert explained.num_kernels == len(explained.ops) > 1


def test_every_kernel_says_why_it_does_not_go_on() -> None:
    explained = _plan().explain()
    assert all(op.reason for op in explained.ops)
    assert explained.ops[-1].reason == "it is an output."
    assert "output" not in explained.ops[0].reason


def test_without_fusion_the_reason_says_so() -> None:
    x = Tensor.input("x", (8,))
    explained = ((x + 1) * 2).prepare(fusion=False).explain()
    assert explained.ops[0].reason == "fusion is off."


def test_softmax_is_one_kernel_of_many_nodes() -> None:
    (op,) = Tensor.input("x", (N, 8)).softmax(-1).prepare().explain().ops
    assert len(op.nodes) >= 4


def test_buffers_have_kinds_names_and_lifetimes() -> None:
    plan = _plan()
    buffers = plan.explain().buffers
    assert [b.index for b in buffers] == list(range(len(plan.buffers)))
    by_kind = {kind: [b for b in buffers if b.kind == kind] for kind in ("input", "output")}
    assert [b.name for b in by_kind["input"]] == ["x"]
    assert by_kind["input"][0].type == "f32[n,96]"
    assert by_kind["output"][0].last == len(plan.prepared_ops) - 1
    assert any(b.kind == "constant" for b in buffers) and any(b.kind == "arena" for b in buffers)


def test_reuse_of_arena_bytes_is_shown_both_ways() -> None:
    x = Tensor.input("x", (256,))
    for _ in range(4):
        x = x.cumsum(0)
    explained = x.prepare(threads=1).explain()
    sharing = [b for b in explained.buffers if b.shares_with]
    assert sharing
    for buffer in sharing:
        for other in buffer.shares_with:
            assert buffer.index in explained.buffers[other].shares_with
            one, two = buffer, explained.buffers[other]
            assert one.last < two.first or two.last < one.first, "shared while both are alive"
    memory = explained.memory
    assert memory.live_bytes <= memory.arena_bytes < memory.naive_bytes
    assert memory.arena_bytes <= 1.05 * memory.live_bytes


def test_a_variable_says_what_it_changes() -> None:
    plan = _plan()
    assert plan.explain().variables[0].value is None
    plan(x=np.ones((7, 96), np.float32))
    (variable,) = plan.explain().variables
    assert (variable.name, variable.min, variable.max, variable.value) == ("n", 1, 64, 7)
    sizes = {w: c for c in variable.changes if c.what == "bytes" for w in c.where}
    assert sizes["x"].expression == "384*n"
    assert (sizes["x"].at_min, sizes["x"].now, sizes["x"].at_max) == (384, 7 * 384, 64 * 384)
    tiles = [c for c in variable.changes if c.what == "tiles"]
    assert tiles and all(c.now is not None and c.at_max is not None for c in tiles)
    # A contraction has more, smaller tiles where there are few rows: the count may fall.
    assert all((count or 0) >= 1 for c in tiles for count in (c.at_min, c.now, c.at_max))


def test_guards_are_named_with_their_variables() -> None:
    m = Variable("m", 1, 64)
    n = Variable("n", 1, 64)
    a, b = Tensor.input("a", (n, 4)), Tensor.input("b", (m, 4))
    variables = {v.name: v for v in (a + b).prepare().explain().variables}
    assert variables["n"].guards and variables["n"].guards == variables["m"].guards


def test_a_plan_built_by_hand_is_explained_too() -> None:
    s = Sketch(4096)
    s.op("double", "x", "y")
    s.op("reverse", "y", "z")
    explained = s.build("z").explain()
    assert [op.name for op in explained.ops] == ["double", "reverse"]
    assert explained.ops[0].nodes == () and explained.ops[0].reason == ""
    assert explained.num_steps == 2
    assert explained.ops[1].waits == ("reads #1, which op 0 writes",)
    assert "waits: reads #1" in str(explained)


def test_hand_built_variables_follow_declared_inputs() -> None:
    (variable,) = symbolic_add(4096).explain().variables
    changed = {c.what for c in variable.changes}
    assert {"tiles", "bytes"} <= changed


def test_the_explanation_is_plain_data_and_text() -> None:
    explained = _plan().explain()
    data = json.loads(json.dumps(explained.json()))
    assert data["ops"][0]["nodes"] == list(explained.ops[0].nodes)
    text = str(explained)
    for part in ("ops, in order", "not fused further:", "buffers", "memory", "variable n in"):
        assert part in text


def test_the_same_graph_explains_the_same() -> None:
    first, second = _plan().explain().json(), _plan().explain().json()
    assert first["ops"] == second["ops"]
    assert first["variables"] == second["variables"]


def test_the_command_explains_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "demo", "--quick", "--json", "--set", "seq=5"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["variables"][0]["value"] == 5
    assert data["num_distinct_kernels"] < data["num_kernels"]


def test_the_command_takes_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{__name__}:_plan"]) == 0
    assert "variable n in [1, 64], not bound" in capsys.readouterr().out


def _loop_plan() -> ExecutionPlan:
    """A loop whose body takes several kernels, since a sum along a column is wanted whole."""
    x = Tensor.input("x", (N, 16))
    w = Tensor(np.full((16, 16), 0.1, np.float32))

    def body(step: Any, states: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        (state,) = states
        after = (state @ w).cumsum(0) @ w + x[step]
        return [after], [after.sum(0)]

    (last,), (sums,) = Tensor.loop(N, [Tensor(np.zeros((16, 16), np.float32))], body)
    return semel.prepare({"last": last, "sums": sums}, threads=1)


def test_kernels_in_a_loop_say_why_they_are_kernels() -> None:
    inside = [op for op in _loop_plan().explain().ops if op.kind == "kernel" and op.times]
    assert len(inside) > 1
    assert all(op.reason for op in inside)
    assert len({op.reason for op in inside}) > 1


def test_kernels_that_move_states_say_so() -> None:
    moves = [op for op in _loop_plan().explain().ops if op.kind == "kernel" and not op.times]
    assert [op.reason for op in moves] == [
        "a loop's state has a first value.",
        "a loop's last state is its result.",
    ]


def test_the_text_lists_every_op_under_its_step() -> None:
    s = Sketch(4096)
    s.op("double", "x", "a", id=1)
    part = s.builder.add_buffer(77, s.buffers["a"].view(0, 32))
    s.builder.add_op(PreparedBufferView(2, (part, s.buffer("a")), 0, 32, dependencies=(1,)))
    s.op("reverse", "a", "b", id=3)
    s.op("reverse", "x", "c", id=4)
    s.op("reverse", "b", "d", id=5)
    explained = s.build("d", threads=2).explain()
    lines = str(explained).partition("\nbuffers\n")[0].splitlines()
    found: list[tuple[int, int]] = []  # (step, op)
    heads: list[int] = []
    for line in lines:
        words = line.split()
        if line.startswith("  step "):
            heads.append(int(words[1]))
        elif line.startswith("    op "):
            found.append((heads[-1], int(words[1])))
    assert heads == list(range(explained.num_steps)) and explained.num_steps >= 3
    assert [op for _, op in found] == [op.op for op in explained.ops]
    # An op without a step of its own, as a view, stands where it was added.
    assert any(op.step < 0 for op in explained.ops)
    assert all(op.step in (-1, step) for (step, _), op in zip(found, explained.ops, strict=True))


def test_one_thread_is_one() -> None:
    s = Sketch(16)
    s.op("double", "x", "y")
    assert ", 1 thread: 1 ops, 1 kernel calls" in str(s.build("y").explain())
    s = Sketch(16)
    s.op("double", "x", "y")
    assert ", 2 threads: " in str(s.build("y", threads=2).explain())


@pytest.mark.parametrize(("others", "shown"), [(0, 0), (1, 1), (3, 3), (4, 4), (5, 5), (20, 20)])
def test_a_long_list_of_buffers_is_cut_and_counted(others: int, shown: int) -> None:
    """Views of one buffer share its bytes: the first few by number, then how many more."""
    s = Sketch(1024)
    s.op("double", "x", "y")
    for k in range(others):
        s.builder.add_buffer(50 + k, s.buffers["x"].view(64 * k, 64))
    explained = s.build("y").explain()
    assert len(explained.buffers[0].shares_with) == others
    table = str(explained).partition("\nbuffers\n")[2].splitlines()
    row = next(line for line in table if line.split()[0] == "0")
    named, more = row.count(", #") + row.count("  #") - 1, row.partition(" and ")[2]
    hidden = int(more.split()[0]) if more else 0
    assert named + hidden == shown
    assert hidden == 0 or named > 0


def test_ops_of_a_loop_are_shown_inside_it() -> None:
    explained = _loop_plan().explain()
    (loop,) = [op for op in explained.ops if op.kind == "loop"]
    inner = [op for op in explained.ops if op.inside]
    assert inner == [op for op in explained.ops if op.kind == "kernel" and op.times]
    assert all(op.inside == (loop.op,) for op in inner)
    lines = str(explained).splitlines()
    starts = {
        line.split()[1]: len(line) - len(line.lstrip())
        for line in lines
        if line.lstrip().startswith("op ")
    }
    assert {starts[str(op.op)] - starts[str(loop.op)] for op in inner} == {2}


def test_who_comes_after_a_loop_says_that_it_ends_before() -> None:
    s = Sketch(8)
    s.begin(3)
    s.op("double", "x", "y")
    s.end()
    s.op("double", "a", "b")
    explained = s.build("b").explain()
    assert [op.waits for op in explained.ops][-1] == ("op 0 ends before it",)


def test_nested_loops_say_how_often_as_a_product() -> None:
    s = Sketch(8)
    s.builder.declare_variable(N)
    s.begin(N + 1, "i", id=1)
    s.begin(4, "j", id=2)
    s.op("double", "x", "y")
    s.end()
    s.end()
    ops = s.build("y").explain().ops
    assert [op.times for op in ops] == ["n + 1", "(n + 1) x 4", "(n + 1) x 4"]
    assert [op.inside for op in ops] == [(), (0,), (0, 1)]


def test_kept_values_are_no_outputs() -> None:
    x = Tensor.input("x", (N, 8))
    middle = (x * 2).exp()
    plan = semel.prepare({"sum": middle.sum()}, keep={"middle": middle}, threads=1)
    explained = plan.explain()
    (kept,) = [b for b in explained.buffers if b.kind == "kept"]
    assert kept.name == "middle"
    assert [b.name for b in explained.buffers if b.kind == "output"] == ["sum"]
    assert [op.reason for op in explained.ops] == ["it is kept to be read.", "it is an output."]


def test_a_kept_output_is_an_output() -> None:
    x = Tensor.input("x", (N, 8))
    y = x * 2
    explained = semel.prepare({"y": y}, keep={"also": y}, threads=1).explain()
    assert [(b.kind, b.name) for b in explained.buffers] == [("input", "x"), ("output", "y")]
    assert [op.reason for op in explained.ops] == ["it is an output."]


def test_buffers_of_a_plan_made_by_hand_are_what_it_declares() -> None:
    s = Sketch(8)
    s.op("double", "x", "y")
    s.op("double", "y", "z")
    explained = s.build("z").explain()
    assert [b.kind for b in explained.buffers] == ["buffer", "buffer", "output"]
    assert [op.reason for op in explained.ops] == ["", ""]
    assert "writes #2" in str(explained)
