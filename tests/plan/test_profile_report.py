"""Profiled runs: the records, their rendering, and what the native runner writes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add, table_of
from tests.plan.kernels import kernel as native
from tests.plan.profiles import LIMITS, sample_report

from semel import Tensor, Variable
from semel.cli.main import main
from semel.errors import CustomFunctionError, PlanError, VariableError
from semel.ir import abi
from semel.ir.abi import Header, Lane
from semel.plan.plan import ExecutionPlan
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import RunInfo, covered_ns
from semel.plan.report.trace import chrome_trace
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedBufferView, PreparedCopy, PreparedCustomFunction
from semel.runtime.custom import (
    custom_function,
    find_custom_function,
    register_native_function,
    unregister_custom_function,
)
from semel.runtime.measured import Span

# ------------------------------------------------------------------ records


def test_pieces_of_one_op_become_one_record_with_spans() -> None:
    report = sample_report()
    assert [p.name for p in report] == ["matmul", "exp", "scale", "view", "copy", "top_k"]
    matmul = report[0]
    assert matmul.lanes == (0, 1)
    assert (matmul.start_ns, matmul.end_ns) == (1_000, 43_000)
    assert matmul.elapsed == pytest.approx(42e-6)
    assert matmul.busy_ns == 40_000 + 41_000


def test_elapsed_leaves_out_the_gaps_of_a_chain() -> None:
    exp = sample_report()[1]
    assert exp.elapsed == pytest.approx(4e-6)
    assert exp.end_ns - exp.start_ns == 5_000


def test_overlapping_spans_count_once() -> None:
    spans = [Span(0, 0, 10), Span(1, 2, 5), Span(2, 8, 20), Span(0, 30, 31)]
    assert covered_ns(spans) == 21


def test_an_op_without_events_is_reported_with_no_time() -> None:
    view = sample_report()[3]
    assert (view.kind, view.elapsed, view.lanes) == ("view", 0.0, ())
    assert view.start_ns == view.end_ns == sample_report()[2].end_ns


def test_rates_and_shares_follow_from_bytes_and_flops() -> None:
    matmul, exp = sample_report()[:2]
    assert matmul.gflop_per_s == pytest.approx(4e6 / 42e-6 / 1e9)
    assert matmul.limited_by == "flops"
    assert matmul.share_of_limit == pytest.approx(4e6 / 42e-6 / 1e11)
    assert exp.limited_by == "bytes"
    assert exp.share_of_limit == pytest.approx(80_000 / 4e-6 / 2e10)


def test_the_share_of_no_time_is_zero() -> None:
    assert LIMITS.share(100, 100, 0.0) == (0.0, "")


def test_what_moves_and_computes_nothing_has_no_share() -> None:
    view, _, host = sample_report()[3:]
    assert view.share_of_limit is None and host.share_of_limit is None


def test_sum_and_makespan() -> None:
    report = sample_report()
    assert report.makespan_seconds == pytest.approx(89e-6)
    assert report.sum_seconds == pytest.approx((42 + 4 + 2 + 0 + 4 + 30) * 1e-6)


def test_live_bytes_follow_lifetimes() -> None:
    assert sample_report().live_bytes == [40_000, 80_000, 80_000, 40_000, 40_000, 0]


def test_an_empty_report_renders(tmp_path: Path) -> None:
    report = ProfileReport([], RunInfo("cpu", 1))
    assert report.makespan_seconds == report.sum_seconds == 0.0
    assert "0 ops" in report.table()
    report.html(tmp_path / "empty.html")
    report.chrome_trace(tmp_path / "empty.json")


# ------------------------------------------------------------------ table and JSON


def test_the_table_has_a_line_per_op_and_the_totals() -> None:
    lines = sample_report().table().splitlines()
    assert len(lines) == 1 + 6 + 2
    assert "matmul" in lines[1] and "0,1" in lines[1] and "95% flops" in lines[1]
    assert "makespan 89.00 us" in lines[-2] and "1 barriers" in lines[-2] and "n=37" in lines[-2]
    assert "100 GFLOP/s" in lines[-1]


def test_the_table_can_show_the_longest_only() -> None:
    lines = sample_report().table(top=2).splitlines()
    assert "matmul" in lines[1] and "top_k" in lines[2]
    assert lines[3] == "... and 4 more"


def test_json_is_plain_data() -> None:
    data = json.loads(json.dumps(sample_report().json()))
    assert data["run"]["num_barriers"] == 1
    assert data["run"]["limits"]["flops_per_s"] == 1e11
    assert data["ops"][0]["spans"] == [[0, 1000, 41000, 4], [1, 2000, 43000, 4]]
    assert data["ops"][0]["gflop_per_s"] == pytest.approx(95.238, rel=1e-4)


# ------------------------------------------------------------------ trace


def check_nesting(trace: dict[str, Any]) -> None:
    """Slices of one track nest or follow each other, as trace viewers require."""
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            ts = round(event["ts"] * 1000)
            tracks.setdefault(event["tid"], []).append((ts, ts + round(event["dur"] * 1000)))
    for slices in tracks.values():
        open_ends: list[float] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], f"{start, end} crosses {open_ends[-1]}"
            open_ends.append(end)


def test_the_trace_has_a_named_track_per_lane_and_nests() -> None:
    report = sample_report()
    trace = chrome_trace(report, report.run)
    check_nesting(trace)
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[0] == "lane 0 (caller)" and names[1] == "lane 1"
    assert sum(e["ph"] == "X" and e["cat"] == "step" for e in events) == 4
    assert [e["args"]["live"] for e in events if e["ph"] == "C"] == report.live_bytes
    assert min(e["ts"] for e in events if e["ph"] == "X") == 0


def test_perfetto_reads_the_trace(tmp_path: Path) -> None:
    processor = pytest.importorskip("perfetto.trace_processor", reason="perfetto is not installed")
    path = tmp_path / "trace.json"
    sample_report().chrome_trace(path)
    trace = processor.TraceProcessor(trace=str(path))
    try:
        rows = list(trace.query("select name, dur from slice where category != 'step'"))
        assert sorted(r.name for r in rows).count("matmul") == 2
        assert {r.dur for r in rows if r.name == "copy"} == {4_000}
        (errors,) = trace.query(
            "select coalesce(sum(value), 0) as n from stats where severity = 'error'"
        )
        assert errors.n == 0
    finally:
        trace.close()


# ------------------------------------------------------------------ the native runner


@custom_function("profile_nap", reads=(0,), writes=())
def _nap(attrs: Any, buffers: Any, values: Any) -> None:
    time.sleep(0.002)
    if attrs == "fail":
        raise ValueError("on purpose")


def _host_plan(attrs: str = "") -> ExecutionPlan:
    """A kernel, a copy, a view and a host call, in this order."""
    if find_custom_function("profile_nap") is None:
        custom_function("profile_nap")(_nap)
    s = Sketch(4096)
    s.op("double", "x", "y")
    s.builder.add_op(PreparedCopy(200, (s.buffer("z"), s.buffer("y"))))
    half = s.buffers["z"].view(0, 4096)
    s.builder.add_op(PreparedBufferView(201, (s.buffer("half", half), s.buffer("z")), 0, 4096))
    s.builder.add_op(PreparedCustomFunction(202, "profile_nap", attrs, (s.buffer("half"),)))
    plan = s.build("z")
    s.buffers["x"].copyin(np.arange(4096, dtype=np.float32))
    return plan


def _lanes(plan: ExecutionPlan) -> Any:
    return table_of(plan).lanes.reshape(-1, abi.LANE_WORDS)


def test_every_kind_of_op_is_reported() -> None:
    plan = _host_plan()
    begin = time.perf_counter()
    report = plan.execute_profiled(limits=False)
    wall = time.perf_counter() - begin
    assert [p.kind for p in report] == ["kernel", "copy", "view", "host call"]
    kernel, copy, view, host = report
    assert kernel.name == "double" and kernel.kernel is plan.kernels[0]
    assert kernel.elapsed > 0 and kernel.bytes == 4096 * 12 and kernel.flops == 4096
    assert copy.elapsed > 0 and copy.bytes == 2 * 4096 * 4
    assert view.elapsed == 0 and view.num_buffers == 2
    assert host.name == "profile_nap" and 0.0019 < host.elapsed < 1.01 * wall
    assert report.makespan_seconds < 1.01 * wall
    assert kernel.end_ns <= copy.start_ns <= copy.end_ns <= host.start_ns
    assert np.array_equal(plan.output_buffer.numpy(), 2 * np.arange(4096, dtype=np.float32))


def test_a_native_custom_function_is_timed_by_the_runner() -> None:
    top = Variable("n", 0, 4096)
    address = native("double", top).address
    register_native_function(
        "profile_double", address, convention="kernel", reads=(0,), writes=(1,)
    )
    try:
        s = Sketch(1024)
        call = PreparedCustomFunction(
            1,
            "profile_double",
            None,
            (s.buffer("x"), s.buffer("y")),
            fixedvars={"n": 1024},
            runtime_vars=(RuntimeVar.of(top),),
        )
        s.builder.add_op(call)
        plan = s.build("y")
    finally:
        unregister_custom_function("profile_double")
    s.buffers["x"].copyin(np.ones(1024, np.float32))
    (found,) = plan.execute_profiled(limits=False)
    assert (found.kind, found.name, found.lanes) == ("native call", "profile_double", (0,))
    assert found.elapsed > 0
    assert (s.buffers["y"].numpy() == 2).all()
    assert plan.explain().ops[0].writes == (1,)


def test_a_profiled_run_counts_as_an_execute_and_leaves_no_trace() -> None:
    plan = _host_plan()
    enter = plan.engine.enter
    plan.execute_profiled(limits=False)
    assert table_of(plan).words[Header.GENERATION] == 1
    assert not _lanes(plan)[:, Lane.EVENTS].any()
    before = _lanes(plan)[:, Lane.NUM_EVENTS].copy()
    plan.execute()
    assert np.array_equal(_lanes(plan)[:, Lane.NUM_EVENTS], before), "execute() wrote events"
    assert plan.engine.enter == enter


def test_a_failing_host_call_leaves_the_plan_usable() -> None:
    plan = _host_plan("fail")
    with pytest.raises(CustomFunctionError, match="on purpose"):
        plan.execute_profiled(limits=False)
    assert not _lanes(plan)[:, Lane.EVENTS].any()
    with pytest.raises(CustomFunctionError, match="on purpose"):
        plan.execute()


def test_work_follows_the_variables() -> None:
    plan = symbolic_add(4096)
    for count in (4096, 10, 0):
        for name in ("x", "y"):
            plan.buffers[plan.inputs[name].index].copyin(np.ones(count, np.float32))
        (add,) = plan.execute_profiled({"n": count}, limits=False)
        assert (add.flops, add.bytes, add.tiles) == (count, 12 * count, -(-count // 1024))
        assert sum(span.tiles for span in add.spans) == add.tiles
    assert add.elapsed == 0 and plan.variables == {"n": 0}


def test_refused_variables_change_nothing() -> None:
    plan = symbolic_add(4096)
    with pytest.raises(VariableError, match="never bound"):
        plan.execute_profiled()
    with pytest.raises(VariableError, match="4097"):
        plan.execute_with_vars_profiled(n=4097)
    with pytest.raises(VariableError, match="no variable"):
        plan.execute_with_vars_profiled(m=1)
    assert plan.variables == {"n": None}


def test_a_released_plan_cannot_be_profiled() -> None:
    plan = _host_plan()
    plan.release_all_buffers()
    with pytest.raises(PlanError, match="released"):
        plan.execute_profiled()


def _wide(*ops: tuple[str, ...], threads: int = 2) -> ExecutionPlan:
    s = Sketch(1 << 19)
    for name, *buffers in ops:
        s.op(name, *buffers)
    plan = s.build(ops[-1][-1], threads=threads)
    s.buffers[ops[0][1]].copyin(np.ones(1 << 19, np.float32))
    return plan


def test_lanes_share_an_op_and_never_overlap_themselves() -> None:
    plan = _wide(("increment", "x", "y"), ("reverse", "y", "z"), ("increment", "z", "out"))
    while True:  # until a worker comes, which a busy machine may delay
        report = plan.execute_profiled(limits=False)
        spans = [span for p in report for span in p.spans]
        assert all(sum(s.tiles for s in p.spans) == p.tiles for p in report)
        for lane in {s.lane for s in spans}:
            own = sorted((s.start_ns, s.end_ns) for s in spans if s.lane == lane)
            assert all(a[1] <= b[0] for a, b in pairwise(own))
        check_nesting(chrome_trace(report, report.run))
        if any(len(p.lanes) == 2 for p in report):
            return


def test_a_step_begins_after_the_barrier_before_it() -> None:
    plan = _wide(("increment", "x", "y"), ("reverse", "y", "z"))
    for _ in range(20):
        first, second = plan.execute_profiled(limits=False)
        assert first.end_ns <= second.start_ns


def test_barriers_are_counted() -> None:
    chain = _wide(("increment", "x", "y"), ("double", "y", "z"), ("increment", "z", "out"))
    assert chain.execute_profiled(limits=False).run.num_barriers == 0
    mixed = _wide(("increment", "x", "y"), ("reverse", "y", "z"), ("reverse", "z", "out"))
    run = mixed.execute_profiled(limits=False).run
    assert (run.num_steps, run.num_shared_steps, run.num_barriers) == (3, 3, 2)
    alone = _wide(("increment", "x", "y"), ("reverse", "y", "z"), threads=1)
    assert alone.execute_profiled(limits=False).run.num_barriers == 0


def test_a_compiled_plan_reports_origins_arena_and_limits(tmp_path: Path) -> None:
    n = Variable("n", 1, 64)
    x = Tensor.input("x", (n, 96))
    w = Tensor(np.full((96, 96), 0.01, np.float32))
    plan = (((x @ w).sum(0, keepdims=True) + x) @ w).prepare(threads=1)
    result = plan(x=np.ones((7, 96), np.float32))
    report = plan.execute_profiled()
    assert np.array_equal(plan.output_buffer.numpy(), result)
    assert report.run.variables == {"n": 7}
    assert all(any(__file__ in o for o in p.origins) for p in report)
    assert report.run.arena and report.run.arena_bytes == plan.memory.arena_bytes
    for block in report.run.arena:
        assert block.used_bytes <= block.reserved_bytes
        assert 0 <= block.first <= block.last < len(report)
    shares = [p.share_of_limit for p in report]
    assert all(share is not None and share > 0 for share in shares)
    assert report.run.limits is not None and report.run.limits.flops_per_s > 1e8
    report.html(tmp_path / "plan.html")
    assert '"assembly"' in (tmp_path / "plan.html").read_text()


def test_the_command_writes_table_page_and_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, trace = tmp_path / "p.html", tmp_path / "t.json"
    options = ["--quick", "--runs", "1", "--threads", "1", "--set", "seq=5"]
    code = main(["profile", "demo", *options, "--html", str(page), "--trace", str(trace)])
    assert code == 0
    assert "seq=5" in capsys.readouterr().out
    check_nesting(json.loads(trace.read_text()))
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "must be a .onnx or .plan file, MODULE:FUNCTION or 'demo'"),
        (["no_such_module_here:f"], "there must be a module"),
        (["json:no_such_function"], "must have a function"),
        (["demo", "--quick", "--set", "m=5"], "has no variable 'm'"),
        (["demo", "--quick", "--set", "seq"], "must look like n=37"),
    ],
)
def test_the_command_refuses_what_it_cannot_profile(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_time_is_no_rate() -> None:
    """A clock may stand still over a short operation."""
    s = Sketch(1024)
    s.op("double", "x", "y")
    (profile,) = s.build("y").execute_profiled(limits=False)
    second = replace(profile, elapsed=1.0)
    assert (second.gb_per_s, second.gflop_per_s) == (profile.bytes / 1e9, profile.flops / 1e9)
    still = replace(profile, elapsed=0.0)
    assert (still.gb_per_s, still.gflop_per_s) == (0.0, 0.0)
