"""`semel demo` does what it says, and its exit code says whether it did."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.models import reference

from semel import config
from semel.cli.demo import command, peers, screen
from semel.cli.demo import race as racing
from semel.cli.demo.race import Limit, Timing, limit_of
from semel.cli.demo.report import Contender, DemoReport, contenders_table, limit_lines
from semel.cli.demo.vocabulary import make_words
from semel.cli.main import main
from semel.cli.report import Section, plain
from semel.models.gpt2 import gpt2_weights

SRC = Path(__file__).parent.parent.parent / "src"
PARTS = (
    "1. Prepare",
    "2. Read",
    "3. The same step",
    "4. Start again",
    "5. Check",
    "Written",
    "Next",
)


@cache
def report(folder: Path) -> DemoReport:
    with config.override(cache=True, cache_dir=folder):
        return command.run_demo(threads=1, quick=True, peers=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> DemoReport:
    return report(tmp_path_factory.mktemp("demo"))


def test_every_check_of_the_demo_holds(found: DemoReport) -> None:
    assert all(found.checks.values()), found.checks
    assert len(found.checks) == 5
    assert (found.compile_count, found.allocated_bytes, found.is_same) == (1, 0, True)
    assert set(found.errors) == {1, 7, 16, 37, 64}


def test_it_says_what_was_prepared_and_written(found: DemoReport) -> None:
    assert found.ready.distinct_kernels < found.ready.kernels
    assert found.ready.arena_bytes < found.ready.naive_bytes
    assert len(found.generated.text.split()) == found.generated.written_tokens
    assert all(Path(path).stat().st_size > 1000 for path in found.files.values())


def test_shares_of_limits_cannot_exceed_one(found: DemoReport) -> None:
    for limit in (found.raced.reading, found.raced.arithmetic):
        assert 0 < limit.share <= 1
        assert limit.rate <= limit.best_rate
    # Even if we are faster than the loop that we are compared with.
    assert limit_of(8, [2.0, 1.0, 2.0], [4.0]) == Limit(8, 2.0, 1.0)


def test_where_bytes_come_from_is_measured(found: DemoReport) -> None:
    fast = dataclasses.replace(found.raced, memory_rate=found.raced.reading.best_rate / 2)
    slow = dataclasses.replace(found.raced, memory_rate=found.raced.reading.best_rate)
    assert "the same bytes from cache" in limit_lines(fast)[1]
    assert "the same bytes from memory" in limit_lines(slow)[1]


@pytest.mark.parametrize(
    "wrong", [{"errors": {7: 0.5}}, {"errors": {7: float("nan")}}, {"is_same": False}]
)
def test_a_wrong_number_fails_the_demo(
    found: DemoReport,
    wrong: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = dataclasses.replace(found, **wrong)
    monkeypatch.setattr(command._Demo, "tell", lambda _: bad)
    assert main(["demo", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "semel demo: a check failed: " in err
    assert sum(not holds for holds in json.loads(out)["checks"].values()) == 1


def test_a_peer_that_computes_something_else_fails_and_one_that_is_broken_is_told(
    found: DemoReport,
) -> None:
    ours, *others = found.raced.contenders
    timing = Timing(1e-3, 1e-3, 1e-3, 8)
    wrong = (ours, *others, Contender("Other", "1", timing, error=0.1))
    raced = dataclasses.replace(found.raced, contenders=wrong)
    assert not all(dataclasses.replace(found, raced=raced).checks.values())
    broken = (ours, *others, Contender("Other", "", failure="ImportError: no"))
    raced = dataclasses.replace(found.raced, contenders=broken)
    assert all(dataclasses.replace(found, raced=raced).checks.values())
    assert "Other has no numbers: ImportError: no" in plain(contenders_table(raced))


@pytest.mark.parametrize("package", ["numpy", *peers.installed()])
def test_peers_are_the_decoder_that_we_know(package: str) -> None:
    size = command.QUICK
    weights = gpt2_weights(size, 3)
    rng = np.random.default_rng(0)
    shape = (size.layers, size.heads, 5, size.depth)
    keys, values = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    peer = peers.open_peer(package, peers.Moment(weights, size, keys, values, 17), 1)
    expected = reference.gpt2_step(17, keys, values, weights, size.heads)
    for _ in range(2):  # the second is the same step, not the next one
        np.testing.assert_allclose(peer.step(), expected, rtol=1e-3, atol=2e-4)


def test_words_are_different_and_always_the_same() -> None:
    words = make_words(512, 20)
    assert len(set(words)) == 512
    assert words == make_words(512, 20)
    assert all(word.isascii() for word in words)


def _environment(folder: Path, **more: str) -> dict[str, str]:
    return {"PYTHONPATH": str(SRC), "SEMEL_CACHE_DIR": str(folder), "LC_ALL": "C", **more}


def test_the_demo_runs_as_a_program_in_a_dumb_narrow_terminal(tmp_path: Path) -> None:
    argv = ["-W", "error", "-m", "semel", "demo", "--quick", "--threads", "2", "--no-peers"]
    done = subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=_environment(tmp_path, TERM="dumb", COLUMNS="10"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if str(tmp_path) not in line) <= 80
    places = [done.stdout.index(part) for part in PARTS]
    assert places == sorted(places)
    for word in ("2 threads", "different ones", "ms a step", "to load the plan", str(tmp_path)):
        assert word in done.stdout
    assert "FAIL" not in done.stdout
    # The kernels are where the next demo finds them.
    assert list(tmp_path.rglob("*.kernel"))


@pytest.mark.parametrize("colours", [{}, {"NO_COLOR": "1"}])
def test_a_terminal_gets_colours_unless_it_wants_none(tmp_path: Path, colours: Any) -> None:
    pytest.importorskip("rich")
    code = (
        "from semel.cli.demo.screen import open_screen\n"
        "s = open_screen()\n"
        "s.part('Title')\n"
        "with s.stream() as word: word('one'); word('two')\n"
    )
    master, slave = pty.openpty()
    env = _environment(tmp_path, TERM="xterm-256color", COLUMNS="80", **colours)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=slave, env=env)
    os.close(slave)
    assert process.wait(100) == 0
    written = os.read(master, 4096).decode()
    os.close(master)
    assert "Title" in written
    assert "one two" in written
    assert ("\x1b[1;36m" in written) is not bool(colours)


def test_plain_lines_say_that_something_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_BEAT_S", 0.02)
    text = io.StringIO()
    with screen.Screen(text).working("digging") as say:
        assert text.getvalue() == "  digging ..."  # at once
        say("half way")
        time.sleep(0.2)
    assert text.getvalue().startswith("  digging ...\n    half way, 0 s ")
    assert text.getvalue().endswith("\n")


def test_a_line_that_would_be_said_again_grows_a_dot_instead() -> None:
    written: list[str] = []
    beat = screen._Dots(written.append, 30, len("measuring"))
    for text in ("", "", "NumPy 1.20 ms", "NumPy 1.30 ms", "torch 2 ms", *["torch 3 ms"] * 99):
        beat(text, 2.0)
    first, second, third = "".join(written).split("\n")
    assert (first, second) == ("..", "    NumPy 1.20 ms, 2 s .")
    assert third == "    torch 2 ms, 2 s ".ljust(30, ".")


def test_a_slow_peer_spends_its_share_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 0.0, {"fast": 0, "slow": 0}

    def work(name: str, seconds: float) -> Callable[[], None]:
        def once() -> None:
            nonlocal now
            now, calls[name] = now + seconds, calls[name] + 1

        return once

    clock = SimpleNamespace(perf_counter=lambda: now, sleep=lambda _: None)
    monkeypatch.setattr(racing, "time", clock)
    told: list[Any] = []
    runners = {"fast": work("fast", 1e-3), "slow": work("slow", 0.6)}
    found = racing.race(runners, {"loop": lambda: 0.5}, 1.0, told.append)  # type: ignore[dict-item]
    assert calls["slow"] == 3  # the first is not timed, and then its half second is over
    assert len(found["slow"]) == 2
    assert calls["fast"] == 13 * 4
    assert len(found["loop"]) == len(told) == 4


def test_allocations_are_counted_while_nothing_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "_BEAT_S", 0.01)
    with config.override(cache=True, cache_dir=tmp_path):
        told = command._Demo(screen.Screen(io.StringIO()), 1, quick=True, peers=False).tell()
    assert told.allocated_bytes == 0


def test_streams_wrap_at_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    text = io.StringIO()
    small = screen.Screen(text, 30)
    with small.stream() as word:
        for _ in range(12):
            word("lorem")
    assert max(len(line) for line in text.getvalue().splitlines()) <= 30
    assert text.getvalue().split() == ["lorem"] * 12
    quiet = io.StringIO()
    silent = screen.QuietScreen(quiet)
    silent.part("a")
    silent.line("b")
    silent.table(Section("c"))
    with silent.working("d"):
        pass
    assert quiet.getvalue() == "semel: d ...\n"
