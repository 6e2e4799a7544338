"""The HTML report in a real browser, where one is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.plan.profiles import sample_report

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
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)


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
