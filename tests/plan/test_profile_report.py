"""Profiled runs: the records, their rendering, and what the native runner writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from semel.runtime.profile import ProfileReport, RunInfo
from semel.runtime.report.records import Span, covered_ns
from semel.runtime.report.trace import chrome_trace
from tests.plan.profiles import LIMITS, sample_report

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
    try:
        trace = processor.TraceProcessor(trace=str(path))
    except Exception as error:
        # The package fetches its native part at first use.
        pytest.skip(f"the trace processor does not start here: {type(error).__name__}: {error}")
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
