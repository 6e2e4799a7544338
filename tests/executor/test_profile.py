"""What an executor's report says of the work that was submitted while it was made."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.executor.rig import PATIENCE, Gate, buffer_of, executor_of, fail, numbers, scaled

from semel import TimelineSignal, UnifiedExecutor
from semel.errors import PlanError, TimedOutError
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import KernelProfile
from semel.plan.report.trace import chrome_trace


def named(report: ProfileReport, name: str) -> list[KernelProfile]:
    return [record for record in report if record.name == name]


def test_two_devices_that_work_at_the_same_time_overlap(executor: UnifiedExecutor) -> None:
    meeting = threading.Barrier(2)
    with executor.profile(PATIENCE) as report:
        for device in ("cpu:0", "cpu:1"):  # neither ends before both have begun
            executor.execute_kernel(device, partial(meeting.wait, PATIENCE))
        assert report == []
    first, second = report
    assert {first.runs_on, second.runs_on} == {"cpu:0/compute", "cpu:1/compute"}
    assert max(first.start_ns, second.start_ns) < min(first.end_ns, second.end_ns)
    assert [lane.name for lane in report.lanes] == ["cpu:0/compute", "cpu:1/compute"]
    assert all(lane.beside_ns > 0 for lane in report.lanes)


def test_every_submission_has_a_record(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    row = scaled(3, "cpu:1")[0].prepared_ops[0]
    given = [buffer_of([1, 2, 3, 4], "cpu:1"), buffer_of([1, 2, 3, 4], "cpu:1")]
    executor.submit(plan).wait(PATIENCE)  # before: in no report
    with executor.profile(PATIENCE) as report:
        for _ in range(600):  # more than a lane has room for
            executor.submit(plan)
        value = executor.execute_kernel("cpu:1", row.kernel, buffers=given)  # type: ignore[union-attr]
        executor.submit(plan, inputs={"x": numbers(1, 1, 1, 1)})
        executor.execute_kernel("cpu:0", fail, reads=[given[0]], writes=[x])
    after = executor.submit(plan)
    kinds = [(r.kind, r.runs_on) for r in report]
    assert kinds.count(("plan", "cpu:0/compute")) == 601
    assert kinds.count(("kernel", "cpu:1/compute")) == 1
    (failed,) = named(report, "fail")
    assert (failed.kind, failed.bytes, failed.origins) == ("function", 32, ("failed: ValueError",))
    assert [r.op_id for r in report if r.device == "cpu:0"] == list(range(2, 604))
    assert [r.op_id for r in report if r.device == "cpu:1"] == [value]
    assert {r.bytes for r in report if r.kind == "plan"} == {32}
    assert all(r.elapsed > 0 and r.spans for r in report)
    with pytest.raises(ValueError, match="on purpose"):
        executor.synchronize_all(PATIENCE)  # a report is not somebody who sees a failure
    assert isinstance(after.exception(PATIENCE), ValueError)


def test_waits_are_named_and_as_long_as_what_they_are_for(executor: UnifiedExecutor) -> None:
    gate, signal, a = Gate(), TimelineSignal("outside"), buffer_of([1, 2])
    with executor.profile(PATIENCE) as report:
        opened = executor.execute_kernel("cpu:0", gate, writes=[a])
        executor.execute_transfer(a, buffer_of([0, 0], "cpu:1"))
        executor.execute_kernel("cpu:1", int, reads=[], writes=[], after=[(signal, 3), opened])
        assert gate.has_begun.wait(PATIENCE)
        for lane in ("compute", "copy"):
            context = executor.context("cpu:1")
            assert context is not None
            with pytest.raises(TimedOutError, match="which waits for"):
                context.wait_for(1, 0.01, lane)
        signal.set(3)
        gate.open()
    waits = {report.run.tracks[wait.span.lane]: wait for wait in report.run.waits}
    assert waits["cpu:1/copy"].signal == "cpu:0/compute 1"
    assert waits["cpu:1/compute"].signal == "outside 3 and cpu:0/compute 1"
    assert set(waits) == {"cpu:1/copy", "cpu:1/compute"}
    (gated,) = named(report, "Gate")
    for wait in waits.values():
        assert wait.span.end_ns >= gated.end_ns
        assert wait.span.end_ns - wait.span.start_ns >= 10_000_000


def test_bytes_of_transfers_are_those_that_were_copied(executor: UnifiedExecutor) -> None:
    plan, x = scaled(2, "cpu:1", 1000)
    source = buffer_of(np.ones(1000))
    with executor.profile(PATIENCE) as report:
        executor.execute_transfer(source, x)
        executor.submit(plan)
        executor.execute_transfer(plan.output_buffer, buffer_of(np.zeros(1000)))
    lanes = {lane.name: lane for lane in report.lanes}
    for name in ("cpu:0/copy", "cpu:1/copy"):
        assert (lanes[name].num_copies, lanes[name].moved_bytes) == (1, 4000)
    assert sum(record.num_bytes for record in executor.transfers) == 8000
    assert [record.kind for record in report] == ["copy", "plan", "copy"]


def test_trace_table_and_page_show_lanes(executor: UnifiedExecutor, tmp_path: Path) -> None:
    a = buffer_of([1, 2])
    with executor.profile(PATIENCE) as report:
        executor.execute_kernel("cpu:0", int, reads=[], writes=[a])
        copied = executor.execute_transfer(a, buffer_of([0, 0], "cpu:1"))
    report.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events == chrome_trace(report, report.run)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {1: "cpu:0", 2: "cpu:1"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {(1, 0): "cpu:0/compute", (2, 1): "cpu:1/copy"}
    slices = {e["name"]: e for e in events if e["ph"] == "X" and e["cat"] != "wait"}
    assert set(slices) == {"int", "copy f32[2] cpu:0 -> cpu:1"}
    copy = slices["copy f32[2] cpu:0 -> cpu:1"]
    assert (copy["args"]["bytes"], copy["args"]["value"]) == (16, copied)
    text = report.table()
    assert "2 submissions to 2 lanes" in text and "steps" not in text
    assert "cpu:1/copy: 1 ops" in text and "1 copies of 8 bytes" in text
    report.html(tmp_path / "page.html")
    assert '"subject":"executor"' in (tmp_path / "page.html").read_text()
    assert json.loads(json.dumps(report.json()))["lanes"][1]["moved_bytes"] == 8


def test_a_device_that_is_added_meanwhile_is_in_it() -> None:
    executor = executor_of("cpu:0")
    with executor.profile(PATIENCE) as report:
        executor.add_device("cpu:1")
        executor.execute_kernel("cpu:1", int)
    assert [record.runs_on for record in report] == ["cpu:1/compute"]
    with executor.profile(PATIENCE) as report:
        pass
    assert report == [] and "0 submissions to 0 lanes" in report.table()
    executor.close()


def test_what_is_late_is_named_and_what_is_over_is_there(executor: UnifiedExecutor) -> None:
    gate = Gate()
    with pytest.raises(TimedOutError, match=r"\[profile\].*'Gate'"), executor.profile(0) as report:
        executor.execute_kernel("cpu:1", int).wait(PATIENCE)
        executor.execute_kernel("cpu:0", gate)
        with pytest.raises(PlanError, match="one report at a time"), executor.profile():
            pass
    assert [record.name for record in report] == ["int"]
    with executor.profile(PATIENCE) as second:
        gate.open()
        executor.execute_kernel("cpu:0", int)
    assert [record.op_id for record in second] == [2], "what was begun before is not in it"


def test_profiles_begin_and_end_while_others_submit(executor: UnifiedExecutor) -> None:
    plans = [scaled(2, device) for device in ("cpu:0", "cpu:1")]
    for _, x in plans:
        x.copyin(numbers(1, 2, 3, 4))
    is_over = threading.Event()

    def submit() -> None:
        while not is_over.is_set():
            for plan, _ in plans:
                executor.submit(plan)
            executor.execute_kernel("cpu:1", int, reads=[], writes=[])

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    reports = []
    try:
        for _ in range(30):
            with executor.profile(PATIENCE) as report:
                executor.submit(plans[0][0]).wait(PATIENCE)
            reports.append(report)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(PATIENCE)
    last = {"cpu:0": 0, "cpu:1": 0}
    for report in reports:
        ends = {"cpu:0": 0, "cpu:1": 0}
        for record in report:
            assert record.op_id > last[record.device], "in the order of the lane, and once"
            assert ends[record.device] <= record.start_ns <= record.end_ns
            last[record.device], ends[record.device] = record.op_id, record.end_ns
    assert all(report for report in reports)


def test_an_error_in_the_block_is_the_error(executor: UnifiedExecutor) -> None:
    gate = Gate()
    executor.execute_kernel("cpu:0", gate)
    with pytest.raises(KeyError, match="mine"), executor.profile(PATIENCE):
        raise KeyError("mine")
    gate.open()
