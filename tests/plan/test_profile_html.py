"""The HTML report in a real browser, where one is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.plan.profiles import sample_report

from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import ArenaBlock, PlacedValue, ProfiledOp, RunInfo, merge_runs
from semel.runtime.measured import Event, Span

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def _open(page: Path, query: str, *options: str) -> subprocess.CompletedProcess[str]:
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser is installed; looked for {', '.join(_BROWSERS)}")
    command = [
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'browser'}",
        "--window-size=1280,1700",
        "--virtual-time-budget=3000",
        *options,
        f"file://{page}{query}",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_the_page_refers_to_nothing_outside(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    sample_report().html(page)
    text = page.read_text()
    outside = set(re.findall(r"https?://[^\s\"'<>)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not outside
    assert not re.search(r"<(link|img|iframe)|\bsrc=|@import|url\(", text)


def test_data_cannot_end_its_script_element(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    sample_report().html(page)
    (data,) = re.findall(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    sources = json.loads(data)["sources"]
    assert sources[0]["kernel"] == "text of matmul with </script> & <b>"


def _many(repeats: int = 300) -> ProfileReport:
    """Layers of three ops, run three times; one op was preempted in the run that is shown."""
    ops = [
        ProfiledOp(
            kernel=None, device="cpu", num_buffers=1, name=name, kind="kernel", op_index=i, row=i,
            step=i, tiles=1, bytes=1000, flops=100,
        )
        for i, name in enumerate(["embed", *["attend", "norm", "feed"] * repeats])
    ]  # fmt: skip
    runs = []
    for run in range(3):
        at, events = 0, []
        for op in ops:
            took = 90_000 if (run, op.op_index) == (1, 2) else 1_000
            events.append(Event(op.op_index, Span(0, at, at + took, 1)))
            at += took + run
        runs.append(events)
    arena = tuple(ArenaBlock(f"v{i}", i % 2 * 64, 64, 64, i, i + 1) for i in range(len(ops) - 1))
    places = (PlacedValue("w: f32[9]", "constant", 36), PlacedValue("x: f32[1]", "input", 4))
    info = RunInfo(
        "cpu", 1, arena_bytes=128, arena=arena, runs=3, makespans=(1e-3,) * 3, shown=1,
        places=places,
    )  # fmt: skip
    return ProfileReport(merge_runs(ops, runs), info)


def test_a_page_of_many_ops_folds_and_says_what_lies_where(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    _many().html(page)
    done = _open(page, "?selftest", "--dump-dom")
    verdict = re.search(r'id="selftest">([^<]*)<', done.stdout)
    assert verdict is not None, done.stderr[-2000:]
    assert verdict.group(1).startswith("selftest passed: "), verdict.group(1)
    for text in (
        "300 x attend, norm, feed",
        "1 constant: 36 B",
        "1 input: 4 B",
        "medians of 3 runs",
    ):
        assert text in done.stdout
    assert 'class="bytes preempted hit"' in done.stdout


def test_the_page_renders_and_its_clicks_work(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    sample_report().html(page)
    done = _open(page, "?selftest", "--dump-dom")
    verdict = re.search(r'id="selftest">([^<]*)<', done.stdout)
    assert verdict is not None, done.stderr[-2000:]
    assert verdict.group(1).startswith("selftest passed: "), verdict.group(1)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console, console
    assert done.stdout.count('class="step"') == 4
    assert "lane 1" in done.stdout
