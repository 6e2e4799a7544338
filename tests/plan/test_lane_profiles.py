"""What reports say of runs on several lanes: who was busy, waited, and copied beside whom."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.plan.profiles import op, sample_report

from semel import Tensor
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import RunInfo, merge_events
from semel.plan.report.trace import chrome_trace
from semel.runtime.measured import Event, Span, Wait

DISK = "disk:/w"


def streamed_report() -> ProfileReport:
    """Two kernels on two participants; a copy from a file, half of it beside the first kernel."""
    ops = [
        op(0, "matmul", row=0, step=0, tiles=2, flops=1000),
        op(1, "copy", "copy", row=2, step=1, bytes=8000, lane="copy"),
        op(2, "relu", row=1, step=2),
    ]
    events = [
        Event(0, Span(0, 1_000, 5_000, 1)),
        Event(0, Span(1, 2_000, 6_000, 1)),
        Event(1, Span(0, 9_000, 10_000, 1)),
        Event(2, Span(2, 4_000, 8_000, 1)),
    ]
    run = RunInfo(
        "cpu:0",
        2,
        waits=(
            Wait(Span(0, 5_000, 9_000, 1), f"{DISK}/copy"),
            Wait(Span(2, 0, 3_000, 1), "cpu:0/compute"),
        ),
        tracks=("cpu:0/compute", "cpu:0/compute", f"{DISK}/copy"),
    )
    return ProfileReport(merge_events(ops, events), run)


def test_lanes_say_how_long_they_were_busy_and_waited_and_beside_whom() -> None:
    compute, copy = streamed_report().lanes
    assert (compute.name, compute.device, compute.participants) == (
        "cpu:0/compute",
        "cpu:0",
        (0, 1),
    )
    assert (compute.num_ops, compute.busy_ns, compute.num_copies) == (2, 6_000, 0)
    assert (compute.num_waits, compute.waited_ns) == (1, 4_000)
    assert (copy.device, copy.participants, copy.num_copies) == (DISK, (2,), 1)
    assert (copy.moved_bytes, copy.busy_ns, copy.beside_ns) == (4_000, 4_000, 2_000)
    assert copy.waited_ns == 2_000  # from the first operation on
    assert compute.beside_ns == copy.beside_ns


def test_the_table_ends_with_the_lanes() -> None:
    lines = streamed_report().table().splitlines()
    assert lines[-2] == (
        "cpu:0/compute: 2 ops, busy 6.00 us, 33% of it beside other lanes, 1 waits of 4.00 us"
    )
    assert lines[-1] == (
        "disk:/w/copy: 1 ops, busy 4.00 us, 50% of it beside other lanes, "
        "1 copies of 4000 bytes, 2.00 GB/s, 1 waits of 2.00 us"
    )
    assert "beside" not in sample_report().table()


def test_the_trace_has_a_process_for_each_device_and_shows_waits() -> None:
    report = streamed_report()
    events = chrome_trace(report, report.run)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "semel plan on cpu:0", 2: DISK}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {
        (1, 1000): "steps",
        (1, 0): "lane 0 (caller)",
        (1, 1): "lane 1",
        (2, 2): f"lane 2 ({DISK}/copy)",
    }
    waits = [e for e in events if e.get("cat") == "wait"]
    assert [(e["pid"], e["tid"], e["ts"], e["dur"]) for e in waits] == [
        (1, 0, 4.0, 4.0),
        (2, 2, 0.0, 2.0),
    ]
    assert waits[0]["name"] == f"wait for {DISK}/copy"
    (copy,) = [e for e in events if e["ph"] == "X" and e["name"] == "copy"]
    assert (copy["pid"], copy["tid"], copy["args"]["bytes"]) == (2, 2, 8000)


def test_json_and_page_have_lanes_and_waits(tmp_path: Path) -> None:
    report = streamed_report()
    data = json.loads(json.dumps(report.json()))
    assert [lane["name"] for lane in data["lanes"]] == ["cpu:0/compute", f"{DISK}/copy"]
    assert data["run"]["waits"][0]["signal"] == f"{DISK}/copy"
    assert data["run"]["waits"][0]["span"]["start_ns"] == 5_000
    report.html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "drawWaits" in page and f"{DISK}/copy" in page


@pytest.mark.parametrize("runs", [1, 3])
def test_a_real_run_over_two_devices(tmp_path: Path, runs: int) -> None:
    disk = f"disk:{tmp_path / 'w'}"
    x = Tensor.input("x", (16, 64))
    for k in range(3):
        x = (x @ Tensor.input(f"w{k}", (64, 64), device=disk).to("cpu:0")).relu()
    plan = x.prepare(device="cpu:0")
    plan(
        x=np.ones((16, 64), np.float32), **{f"w{k}": np.eye(64, dtype=np.float32) for k in range(3)}
    )
    report = plan.execute_profiled(runs=runs)
    compute, copy = report.lanes
    assert (compute.name, copy.name) == ("cpu:0/compute", f"{disk}/copy")
    assert (copy.num_copies, copy.moved_bytes) == (3, 3 * 64 * 64 * 4)
    assert compute.num_waits == 3 + 1  # for each copy, and for the end of the other lane
    assert {wait.signal for wait in report.run.waits} == {
        f"{disk}/copy",
        "cpu:0/compute",
        "the other lanes",
    }
    starts = {p.op_index: p.start_ns for p in report}
    ends = {p.op_index: p.end_ns for p in report}
    assert ends[0] <= starts[2]  # the first product begins behind its copy


def test_one_lane_is_one_lane() -> None:
    plan = (Tensor.input("x", (4,)) + 1).prepare(threads=1)
    plan(x=np.zeros(4, np.float32))
    report = plan.execute_profiled()
    assert report.run.tracks == () and report.run.waits == ()
    (lane,) = report.lanes
    assert (lane.name, lane.beside_ns, lane.num_waits) == ("cpu/compute", 0, 0)
