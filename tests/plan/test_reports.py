"""What `plan.explain()` says of nodes and bytes, against numbers computed by hand."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch

import semel
from semel import ExecutionPlan, Graph, Tensor, Variable

N = Variable("n", 1, 64)


def fates(plan: ExecutionPlan) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What became of each node, by the name of its op; the last of that name counts."""
    return {note.node.split()[1]: (note.became, note.ops) for note in plan.explain().nodes}


def test_every_node_says_what_it_became() -> None:
    x = Tensor.input("x", (N, 4))
    twice = Tensor(np.ones(4, np.float32)) + Tensor(np.ones(4, np.float32))
    w = Tensor.param("w", np.ones((4, 4), np.float32))
    plan = ((x @ w.T).permute(1, 0) * twice.reshape((4, 1))).exp().prepare()
    explained, found = plan.explain(), fates(plan)
    assert len(explained.nodes) == len({note.node.split()[0] for note in explained.nodes})
    assert found["input"] == ("input", ()) and found["param"] == ("param", ())
    assert found["constant"][0] == found["add"][0] == "folded"
    (matmul,) = found["matmul"][1]
    assert found["matmul"][0] == found["mul"][0] == "kernel"
    assert explained.ops[matmul].template == "contract"
    assert found["permute"][0] == "view"


def test_what_params_alone_decide_is_computed_before_any_run() -> None:
    w = Tensor.param("w", np.ones((4, 4), np.float32))
    found = fates((Tensor.input("x", (3, 4)) @ (w * 2)).prepare())
    assert found["mul"] == ("weights", ()) and found["matmul"][0] == "kernel"


def test_what_nothing_needs_is_said() -> None:
    g = Graph("g")
    g.input("spare", (2,))
    g.output("y", g.input("x", (2,)) + 1)
    plan = g.prepare()
    assert [n.became for n in plan.explain().nodes][:2] == ["unused", "input"]


def test_what_is_found_in_a_graph_is_part_of_that() -> None:
    q, k = Tensor.input("q", (2, 8, 16)), Tensor.input("k", (2, 8, 16))
    plan = ((q @ k.permute(0, 2, 1)).softmax(-1) @ k).prepare()
    found = fates(plan)
    assert found["exp"] == found["reduce_max"] == ("part", (0,))
    assert [op.template for op in plan.explain().ops] == ["softmax_matmul"]


def _loop(x: Tensor) -> Tensor:
    def body(step: Any, states: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        return [states[0] + x[step]], []

    (last,), _ = Tensor.loop(N, [Tensor(np.zeros(4, np.float32))], body)
    return last


def test_a_loop_is_a_row_and_its_ops_count_each_time() -> None:
    plan = _loop(Tensor.input("x", (N, 4))).prepare(threads=1)
    what, (row,) = fates(plan)["loop"]
    assert what == "loop" and plan.explain().ops[row].kind == "loop"
    assert plan.explain().moved_bytes is None  # n is not bound
    moved = {}
    for rows in (5, 10):
        plan(x=np.ones((rows, 4), np.float32))
        (inside,) = [op for op in plan.explain().ops if op.inside]
        moved[rows] = inside.moved_bytes
    # Each time one row of x, and the state before and after.
    assert moved == {rows: rows * (16 + 16 + 16) for rows in (5, 10)}


def _halved(nested: bool = False) -> ExecutionPlan:
    """An open loop: only its condition ends it; if `nested`, in a loop of three iterations."""

    def halve(x: Tensor) -> Tensor:
        return semel.while_loop(lambda y: (y > 1).any(), lambda y: y / 2, x)

    x = Tensor.input("x", (4,))
    if not nested:
        return halve(x).prepare(threads=1)

    def body(step: Any, states: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        return [halve(states[0]) + 4], []

    (last,), _ = Tensor.loop(3, [x], body)
    return last.prepare(threads=1)


@pytest.mark.parametrize("nested", [False, True])
def test_an_open_loop_counts_as_one_iteration(nested: bool) -> None:
    plan = _halved(nested)
    plan(x=np.full(4, 16, np.float32))
    explained = plan.explain()
    text, html = str(explained), explained._repr_html_()
    assert ("times 3 x until its condition is false" if nested else "loop  until its c") in text
    assert ("each iteration moves" in text) != nested
    assert "bytes if each loop without max_trips has one iteration" in text
    report = plan.execute_profiled(limits=False)
    for shown in (text, html, str(explained.json()), str(report), str(plan.memory)):
        assert not re.search(r"\d{15}", shown), shown
    inside = [op.moved_bytes for op in explained.ops if op.inside]
    assert all(amount is not None and amount <= 3 * 64 for amount in inside)


def test_the_profile_counts_the_iterations_that_were() -> None:
    plan = _halved()
    moved = {}
    for start in (2, 16):
        plan(x=np.full(4, start, np.float32))
        body = next(op.op for op in plan.explain().ops if op.inside and op.moved_bytes)
        (seen,) = [op for op in plan.execute_profiled(limits=False) if op.op_index == body]
        moved[start] = seen.tiles, seen.bytes
    (one, once), (four, all_times) = moved[2], moved[16]
    assert (one, four) == (1, 4) and all_times == 4 * once


def test_a_profile_of_a_run_that_found_no_size() -> None:
    x, chosen = Tensor.input("x", (N,)), Tensor.input("chosen", (), "bool")
    result = semel.cond(chosen, lambda: x * 5, lambda: x * x[x > 0].sum())
    plan = result.prepare(threads=1)
    ones = np.ones(5, np.float32)
    for is_first in (True, False):
        assert np.array_equal(plan(x=ones, chosen=is_first), 5 * ones)
        report = plan.execute_profiled(limits=False)
        (compact,) = [op for op in report if "compact" in op.name]
        assert (compact.tiles == 0) == is_first and str(report)


def test_bytes_are_those_of_the_current_variables() -> None:
    x, y = Tensor.input("x", (N, 4)), Tensor.input("y", (N, 4))
    plan = semel.prepare({"a": x * y + 1}, threads=1)
    assert [op.moved_bytes for op in plan.explain().ops] == [None]
    rows = np.ones((10, 4), np.float32)
    plan(x=rows, y=rows)
    # Two operands are read and one result is written, ten rows of four floats each.
    assert [op.moved_bytes for op in plan.explain().ops] == [3 * 10 * 4 * 4]
    assert plan.explain().moved_bytes == 480
    assert "a run moves 480 bytes" in str(plan.explain())


def test_bytes_of_several_ops_add_up() -> None:
    plan = Tensor.input("x", (256,)).cumsum(0).cumsum(0).prepare(threads=1)
    assert [op.moved_bytes for op in plan.explain().ops] == [2048, 2048]
    assert plan.explain().moved_bytes == 4096


def test_the_arena_is_compared_with_its_bound() -> None:
    x = Tensor.input("x", (256,))
    for _ in range(4):
        x = x.cumsum(0)
    explained = x.prepare(threads=1).explain()
    memory = explained.memory
    # Three intermediates of 1024 bytes, of which each is alive with the one before it.
    assert (memory.naive_bytes, memory.live_bytes, memory.arena_bytes) == (3072, 2048, 2048)
    assert "at most 2048 are alive at once, at position 1, and the arena has 2048" in str(explained)


def test_nothing_is_compiled_again() -> None:
    w = Tensor.param("w", np.full(3, 1.625, np.float32))
    plan = (Tensor.input("x", (Variable("m", 1), 3)) * w).prepare()
    with semel.no_recompiles():
        for rows in (1, 100, 5000):
            plan(x=np.ones((rows, 3), np.float32))
        plan.set_param("w", np.ones(3, np.float32))
        plan.execute()
    explained = plan.explain()
    assert (explained.compile_count, explained.recompiles) == (1, 0)
    assert "compiled 1, recompiles 0" in str(explained)


def test_notes_are_kept_by_files_and_are_plain_data() -> None:
    plan = (Tensor.input("x", (3,)) + 1).prepare()
    again = pickle.loads(pickle.dumps(plan)).explain()
    assert again.nodes == plan.explain().nodes
    assert json.loads(json.dumps(again.json()))["nodes"][0]["became"] == "input"


def test_a_plan_built_by_hand_has_no_nodes() -> None:
    s = Sketch(16)
    s.op("double", "x", "y")
    plan = s.build("y")
    explained = plan.explain()
    assert explained.nodes == () and "as they were written" not in str(explained)
    assert [op.moved_bytes for op in explained.ops] == [12 * 16]  # as its kernel says
