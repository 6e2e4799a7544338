"""The command line: arguments, exit codes, and what the small commands say."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.plan import far

import semel
from semel import Tensor, config
from semel.cache.kernels import default_cache
from semel.cli import doctor, links, report
from semel.cli.cache import describe, inspect_cache
from semel.cli.main import main
from semel.cli.report import Section, format_bytes, format_seconds, plain, show
from semel.devices.cpu.toolchain import host_target
from semel.runtime import device
from semel.runtime.registry import DeviceRegistry
from semel.runtime.spec import DeviceSpec


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"semel {semel.__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [[], ["fly"], ["demo", "--threads", "0"], ["demo", "--threads", "two"], ["cache", "eat"]],
)
def test_wrong_arguments_are_refused_with_usage(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert "usage: semel" in capsys.readouterr().err


def test_a_semel_error_is_one_line_and_code_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise semel.UserError("config", "SEMEL_THREADS must be an integer, got 'x'.")

    monkeypatch.setattr(doctor, "diagnose", refuse)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err.startswith("semel: [config] SEMEL_THREADS must be")


def test_ctrl_c_gives_the_shells_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "diagnose", interrupt)
    assert main(["doctor"]) == 130


def test_cache_counts_kernels_and_clears_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.override(cache=True, cache_dir=tmp_path):
        assert main(["cache", "--json"]) == 0
        empty = json.loads(capsys.readouterr().out)
        assert (empty["entries"], empty["bytes"], empty["reason"]) == (0, 0, "")
        # A constant that no other test uses, so that its kernel is not already loaded.
        (Tensor([1.0, 2.0]) * 0.8171923).numpy()
        main(["cache", "--json"])
        full = json.loads(capsys.readouterr().out)
        assert full["entries"] >= 1
        assert full["bytes"] > 0
        assert main(["cache", "clear"]) == 0
        assert capsys.readouterr().out.startswith(f"Removed {full['entries']} entries")
        main(["cache"])
        assert str(tmp_path) in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.kernel"))


def test_a_cache_that_others_may_change_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with config.override(cache=True, cache_dir=tmp_path / "shared" / "semel"):
        assert main(["cache", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["cache", "clear"]) == 0
        assert "Removed 0 entries" in capsys.readouterr().out
        info = inspect_cache(default_cache())
    assert "shared must not be writable by others, got mode 777" in found["reason"]
    assert ("state", info.reason) in describe(info)  # the rows of `semel doctor` too
    assert "must not be writable by others" in info.reason


def test_cache_says_why_it_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(cache=False):
        assert main(["cache"]) == 0
    assert "turned off" in capsys.readouterr().out


def test_doctor_finds_that_plans_work_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["works"] is True
    assert found["versions"]["semel"] == semel.__version__
    assert found["versions"]["numpy"]
    assert found["cores"] >= 1
    assert all(limit["flops_per_s"] > 1e8 for limit in found["limits"])
    assert {"cpu", "cpu:0", "cpu:1"} <= {device["name"] for device in found["devices"]}
    links = {(link["source"], link["target"]): link for link in found["links"]}
    assert {("cpu:0", "cpu:1"), ("cpu:1", "cpu:0"), ("disk", "cpu:0"), ("cpu:0", "disk")} == set(
        links
    )
    assert all(link["bytes_per_s"] > 1e6 for link in links.values())
    assert links["disk", "cpu:0"]["strategy"] == "peer to peer"
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("machine", "versions", "cache", "measured limits", "works", "links"):
        assert word in text


def test_doctor_has_no_links_where_no_file_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert doctor.find_links(links.list_devices()) == ()


def test_doctor_goes_on_though_a_package_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "MODULES", dict(device.MODULES))
    monkeypatch.setattr(device, "_imported", dict(device._imported))
    monkeypatch.setattr(device, "_open", dict(device._open))

    def fail(spec: DeviceSpec) -> Any:
        raise ZeroDivisionError("division by zero")

    registry, shut = DeviceRegistry(), ModuleType("shut")
    shut.BACKEND = replace(far.BACKEND, open=fail)  # type: ignore[attr-defined]
    registry.register("brk", "brk_missing.backend")
    registry.register("shut", shut)
    registry.register("far", far)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    problems = {each["name"]: each["problem"] for each in found["devices"] if each["problem"]}
    assert set(problems) == {"brk", "shut"}
    assert "brk_missing.backend cannot be imported" in problems["brk"]
    assert "division" in problems["shut"]
    links = {(each["source"], each["target"]): each for each in found["links"]}
    assert links["cpu:0", "far"]["strategy"] == "through the host"
    assert ("far", "cpu:1") in links
    assert not {"null", "cpu", "brk", "shut"} & {name for pair in links for name in pair}
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "devices that cannot be used" in text


def test_links_are_measured_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_CPU_PARTITIONS", "2")
    copies: list[tuple[str, str]] = []

    def note(source: str, target: str, seconds: float) -> float:
        copies.append((source, target))
        assert seconds * (4 * 3 + 2) <= 1
        return 0.001

    monkeypatch.setattr(links, "_time_copy", note)
    links.measure_links(["cpu:0", "cpu:1", "cpu", "null", "more", "and more"])
    assert len(copies) == 4 * 3 + 2


def test_doctor_shows_what_is_compiled_for(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x86-64-v2" if host_target().arch == "x86_64" else "aarch64"
    with config.override(target=name):
        assert main(["doctor"]) == 0
        text = capsys.readouterr().out
        assert f"SEMEL_TARGET={name}, the machine is {host_target().cpu}" in text
        found = doctor.diagnose()
    assert found.target["name"] == name
    assert found.machine["name"] == host_target().name


def test_doctor_fails_where_numbers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "try_plan", lambda: (0.1, 1e-6, False))
    assert main(["doctor"]) == 1


def test_columns_line_up() -> None:
    section = Section("title", (("a", "1"), ("long", "1000")), ("name", "us"), ("a note",))
    assert plain(section) == ("title\n-----\nname    us\na        1\nlong  1000\na note")
    assert plain(Section("t", (("a", "left"), ("bb", "x")))) == "t\n-\na   left\nbb  x"


def test_rich_output_has_the_same_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(report, "_is_rich", lambda: True)
    show([Section("title", (("a", "1"),), ("name", "us"), ("[note]",)), Section("empty")])
    said = capsys.readouterr().out
    for word in ("title", "name", "us", "[note]", "empty"):
        assert word in said


def test_rich_is_for_wide_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    assert not report._is_rich()
    monkeypatch.setenv("COLUMNS", "100")
    assert report._is_rich()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert not report._is_rich()


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB")]
)
def test_sizes_read_well(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us"), (8e-8, "80 ns")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
