"""Which devices there are: listed, opened late, and brought along by others."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.plan import far

import semel
from semel.config import override
from semel.errors import DeviceError, PlanError, UnsupportedError
from semel.runtime import device as table
from semel.runtime.device import find_device
from semel.runtime.links import SyncStrategy, choose_strategy
from semel.runtime.registry import DeviceRegistry
from semel.runtime.spec import DeviceSpec


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> DeviceRegistry:
    """What is registered in a test is gone after it."""
    monkeypatch.setattr(table, "MODULES", dict(table.MODULES))
    monkeypatch.setattr(table, "_imported", dict(table._imported))
    monkeypatch.setattr(table, "_open", dict(table._open))
    return DeviceRegistry()


def test_what_is_here_is_listed(registry: DeviceRegistry) -> None:
    assert {"cpu", "null"} <= set(registry.kinds)
    names = [str(spec) for spec in registry]
    assert names[:3] == ["cpu", "cpu:0", "cpu:1"]
    assert "null" in names
    assert registry.devices("null") == (DeviceSpec("null"),)
    with override(cpu_partitions=3):
        assert [str(spec) for spec in registry.devices("cpu")] == ["cpu", "cpu:0", "cpu:1", "cpu:2"]


@pytest.mark.parametrize("name", ["cpu", "cpu:1", "null:0", DeviceSpec("cpu")])
def test_it_knows_what_is_here(registry: DeviceRegistry, name: Any) -> None:
    assert name in registry


@pytest.mark.parametrize("name", ["cpu:2", "null:1", "cuda:0", "no device", 7])
def test_it_knows_what_is_not(registry: DeviceRegistry, name: Any) -> None:
    assert name not in registry


def test_a_device_is_opened_once(registry: DeviceRegistry) -> None:
    table._open.clear()
    assert registry.opened == ()
    opened = registry.open("cpu:1")
    assert opened is registry.open(DeviceSpec("cpu:1")) is find_device("cpu:1")
    assert DeviceSpec("cpu:1") in registry.opened
    assert "open: cpu" in repr(registry)


def test_a_module_is_registered_by_name_or_itself(registry: DeviceRegistry) -> None:
    registry.register("far", "tests.plan.far")
    registry.register("far", "tests.plan.far")
    registry.register("far", far)
    assert "far" in registry
    assert semel.Buffer.empty((2,), "float32", "far").device == "far"
    with pytest.raises(
        PlanError, match=r"'far' is tests.plan.far already, and must stay so, got x"
    ):
        registry.register("far", "x")
    with pytest.raises(PlanError, match=r"'cpu' is semel.devices.cpu.backend already"):
        registry.register("cpu", "tests.plan.far")


@pytest.mark.parametrize(
    ("kind", "module", "message"),
    [
        ("far:1", "tests.plan.far", "kind must be a name without an index"),
        ("FAR", "tests.plan.far", "device must be written kind"),
        ("far", ModuleType("empty"), "module must have a BACKEND"),
        ("far", "", "module must have a BACKEND"),
    ],
)
def test_what_cannot_be_registered(
    registry: DeviceRegistry, kind: str, module: Any, message: str
) -> None:
    with pytest.raises((PlanError, UnsupportedError), match=message):
        registry.register(kind, module)
    assert "far" not in registry.kinds


def test_a_module_that_fails_is_a_device_error(registry: DeviceRegistry) -> None:
    registry.register("lost", "tests.no_such_module")
    with pytest.raises(DeviceError, match=r"tests.no_such_module cannot be imported"):
        registry.open("lost")
    registry.register("bare", "tests.plan.kernels")
    with pytest.raises(DeviceError, match=r"tests.plan.kernels has no BACKEND"):
        registry.open("bare")


def _declare(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> list[str]:
    asked: list[str] = []

    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        asked.append(group)
        return [metadata.EntryPoint(name, value, group) for name, value in points]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return asked


def test_installed_packages_bring_devices(
    registry: DeviceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _declare(monkeypatch, ("far", "tests.plan.far"), ("cpu", "tests.plan.far"))
    find_device("cpu:0")
    assert asked == [], "packages are asked for unknown names alone"
    assert semel.Buffer.empty((2,), "float32", "far").device == "far"
    assert asked == ["semel.devices"]
    find_device("far")
    assert len(asked) == 1
    assert table.MODULES["cpu"] == "semel.devices.cpu.backend", "what is known stays what it is"
    assert DeviceSpec("far") in registry.devices()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([("far", "tests.plan.far:BACKEND")], "'far' must name a module"),
        ([("far", "tests.plan.far"), ("far", "tests.other")], "'far' must be declared once"),
    ],
)
def test_what_packages_declare_must_make_sense(
    registry: DeviceRegistry, monkeypatch: pytest.MonkeyPatch, points: Any, message: str
) -> None:
    _declare(monkeypatch, *points)
    with pytest.raises(DeviceError, match=message):
        registry.open("far")


def test_one_broken_package_hides_nothing_else(
    registry: DeviceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise ZeroDivisionError

    cannot_list = ModuleType("cannot_list")
    cannot_list.BACKEND = replace(far.BACKEND, listed=fail)  # type: ignore[attr-defined]
    registry.register("torn", cannot_list)
    registry.register("lost", "tests.no_such_module")
    _declare(
        monkeypatch,
        ("brk", "brk_missing.backend"),
        ("odd", "tests.plan.far:X"),
        ("far", far.__name__),
    )
    names = [str(spec) for spec in registry]
    assert {"cpu", "cpu:0", "null", "far"} <= set(names)
    assert not {"brk", "odd", "lost", "torn"} & set(names)
    reasons = {
        "brk": r"brk_missing.backend cannot be imported: ModuleNotFoundError",
        "lost": r"tests.no_such_module cannot be imported",
        "torn": r"cannot_list cannot list what is here: ZeroDivisionError",
        "odd": r"'odd' must name a module",
    }
    broken = registry.broken
    assert set(broken) == set(reasons)
    for kind, reason in reasons.items():
        assert re.search(reason, str(broken[kind]))
        assert kind not in registry
        with pytest.raises(DeviceError, match=reason):
            registry.devices(kind)
    with pytest.raises(UnsupportedError, match="device must be one of"):
        registry.devices("nobody")


_PACKAGE = """
import semel
plan = (semel.Tensor.input("x", (2,), "float32") + 1).prepare(device="mirror")
assert plan.device == "mirror" and plan(x=[1, 2]).tolist() == [2, 3]
assert "mirror" in semel.DeviceRegistry()
"""
_BACKEND = """
from semel.devices import Backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.runtime import CpuDevice
from semel.devices.cpu.toolchain import host_target

class Mirror(CpuDevice):
    name = "mirror"

BACKEND = Backend("mirror", host_target, CpuCompiler, lambda spec: Mirror())
"""


def test_a_package_that_is_installed_needs_no_line_of_code(tmp_path: Path) -> None:
    (tmp_path / "mirrored.py").write_text(_BACKEND)
    info = tmp_path / "mirrored-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mirrored\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[semel.devices]\nmirror = mirrored\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r})\n{_PACKAGE}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_strategies_are_found_by_asking(registry: DeviceRegistry) -> None:
    registry.register("far", far)
    whole, first, second, away = map(registry.open, ("cpu", "cpu:0", "cpu:1", "far"))
    assert choose_strategy(first, first) is SyncStrategy.NONE
    assert choose_strategy(first, second) is SyncStrategy.PEER_TO_PEER
    assert choose_strategy(whole, registry.open("null")) is SyncStrategy.PEER_TO_PEER
    assert choose_strategy(first, away) is choose_strategy(away, first) is SyncStrategy.THROUGH_HOST


def test_one_device_that_reaches_the_other_is_enough(
    registry: DeviceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("far", far)
    away, here = registry.open("far"), registry.open("cpu:0")
    monkeypatch.setattr(type(away), "reaches", lambda self, other: other is here)
    assert choose_strategy(here, away) is choose_strategy(away, here) is SyncStrategy.PEER_TO_PEER
    assert choose_strategy(registry.open("cpu:1"), away) is SyncStrategy.THROUGH_HOST
