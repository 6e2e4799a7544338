"""The key of a kernel: everything that its machine code depends on, and nothing else."""

from __future__ import annotations

import ast
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from semel.cache import key as key_module
from semel.cache.kernels import KernelCache
from semel.cache.key import CODE_SOURCES, running_fingerprint, source_fingerprint
from semel.devices.cpu import compiler as compiler_module
from semel.devices.cpu.compiler import SOURCES, CpuCompiler
from semel.devices.cpu.toolchain import toolchain_version
from semel.ir.target import Target, target_for

TARGET = target_for("x86_64", ("avx2", "fma"))
PACKAGE = Path(key_module.__file__).parent.parent
#: What turns the text of a kernel, or of the runner, into machine code.
COMPILERS = ("codegen/emit.py", "codegen/runner.py", "devices/cpu/toolchain.py")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources that keys are made from, as if it had been imported."""
    root = tmp_path / "semel"
    shutil.copytree(PACKAGE, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(key_module, "_PACKAGE", root)
    monkeypatch.setattr(key_module, "_IMPORTED_NS", 1 << 62)
    return root


def _key(text: str, target: Target = TARGET, extra: Iterable[str] = ()) -> str:
    return CpuCompiler(target).key(text, extra)


def _new_process() -> None:
    """Forget what a process finds out once."""
    running_fingerprint.cache_clear()
    key_module._running_part.cache_clear()


def test_equal_kernels_have_equal_keys() -> None:
    assert _key("kernel") == _key("kernel")
    assert len(_key("kernel")) == 64


def test_the_key_covers_text_target_extra_and_their_borders() -> None:
    keys = {
        _key("kernel"),
        _key("kernels", TARGET),
        _key("kernel", target_for("x86_64", ())),
        _key("kernel", TARGET, ["s"]),
        _key("kernel", TARGET, ["s", ""]),
        _key("kernel", TARGET, ["a", "b"]),
        _key("kernel", TARGET, ["ab"]),
    }
    assert len(keys) == 7


def test_the_key_covers_abi_and_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _key("kernel")
    monkeypatch.setattr(key_module, "ABI_VERSION", -1)
    other_abi = _key("kernel")
    monkeypatch.setattr(compiler_module, "toolchain_version", lambda: "llvmlite 99")
    assert len({before, other_abi, _key("kernel")}) == 3


def test_the_toolchain_is_identified() -> None:
    assert "llvmlite" in toolchain_version()


# ----------------------------------------------------------------------------- sources


@pytest.mark.parametrize(
    "source", [*CODE_SOURCES, *SOURCES, "kernel/math", "ir/expr.py", "ir/signature.py"]
)
def test_editing_one_line_is_a_miss(source: str, copy: Path, tmp_path: Path) -> None:
    kernels = KernelCache(tmp_path / "cache")
    kernels.put(_key("kernel"), b"code")
    assert kernels.get(_key("kernel")) == b"code"
    place = copy / source
    with (place if place.suffix else place / "__init__.py").open("a") as file:
        file.write("COEFFICIENT = 0.5\n")
    _new_process()
    assert kernels.get(_key("kernel")) is None


def test_adding_and_renaming_a_file_are_misses(copy: Path) -> None:
    before = source_fingerprint(copy, SOURCES)
    (copy / "ir" / "more.py").write_text("")
    more = source_fingerprint(copy, SOURCES)
    (copy / "ir" / "more.py").rename(copy / "ir" / "most.py")
    assert len({before, more, source_fingerprint(copy, SOURCES)}) == 3


@pytest.mark.parametrize("source", ["cli/main.py", "tensor/tensor.py", "cache/kernels.py"])
def test_editing_another_source_is_not(source: str, copy: Path) -> None:
    before = source_fingerprint(copy, SOURCES)
    (copy / source).write_text("")
    assert source_fingerprint(copy, SOURCES) == before


def _imports(path: Path) -> set[Path]:
    """The files of ours that a file imports, wherever the statement stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    found = set()
    for name in names:
        place = PACKAGE.parent / name.replace(".", "/")
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if name.startswith("semel.") and file.is_file():
                found.add(file)
    return found


def test_all_that_the_code_generator_imports_is_covered() -> None:
    reached, new = set(), {PACKAGE / name for name in COMPILERS}
    while new:
        reached |= new
        new = {file for path in new for file in _imports(path)} - reached
    assert len(reached) > 20
    places = [str(PACKAGE / source) for source in (*CODE_SOURCES, *SOURCES)]
    covered = {Path(path) for place in places for path in key_module._files(place)}
    assert not sorted(str(file) for file in reached - covered)


def test_every_source_on_the_list_is_there() -> None:
    assert all((PACKAGE / source).exists() for source in (*CODE_SOURCES, *SOURCES))


# ----------------------------------------------------------------------- what is running


def test_two_processes_that_run_the_same_sources_share_a_key(copy: Path) -> None:
    first = _key("kernel")
    _new_process()
    assert _key("kernel") == first


def test_a_source_that_changed_after_its_import_makes_no_shared_key(
    copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared = _key("kernel")
    changed = copy / "ir" / "expr.py"
    monkeypatch.setattr(key_module, "_IMPORTED_NS", changed.stat().st_ctime_ns - 1)
    os.utime(changed, (0, 0))  # as an installer does
    _new_process()
    with caplog.at_level(logging.WARNING, "semel.cache"):
        own = _key("kernel")
    assert "was changed after it was imported" in caplog.text
    assert _key("kernel") == own
    _new_process()
    assert len({shared, own, _key("kernel")}) == 3


@pytest.mark.parametrize("missing", ["ir", "errors.py"])
def test_without_sources_there_is_no_shared_key(
    missing: str, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = copy / missing
    for file in [place] if place.suffix else list(place.rglob("*.py")):
        file.rename(file.with_suffix(".pyc"))
    first = _key("kernel")
    _new_process()
    assert _key("kernel") != first
    assert "are not kept" in caplog.text
