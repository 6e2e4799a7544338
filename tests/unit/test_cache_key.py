"""The key of a kernel: everything that its machine code depends on, and nothing else."""

from __future__ import annotations

import ast
import logging
import os
import shutil
from pathlib import Path

import pytest

from semel.compiler import key as key_module
from semel.compiler.cache import KernelCache
from semel.compiler.key import (
    CODE_SOURCES,
    cache_key,
    running_fingerprint,
    source_fingerprint,
    toolchain_version,
)
from semel.ir.target import target_for

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


def _new_process() -> None:
    """Forget what a process finds out once."""
    running_fingerprint.cache_clear()


def test_equal_kernels_have_equal_keys() -> None:
    assert cache_key("kernel", TARGET) == cache_key("kernel", TARGET)
    assert len(cache_key("kernel", TARGET)) == 64


def test_the_key_covers_text_target_extra_and_their_borders() -> None:
    keys = {
        cache_key("kernel", TARGET),
        cache_key("kernels", TARGET),
        cache_key("kernel", target_for("x86_64", ())),
        cache_key("kernel", TARGET, ["s"]),
        cache_key("kernel", TARGET, ["s", ""]),
        cache_key("kernel", TARGET, ["a", "b"]),
        cache_key("kernel", TARGET, ["ab"]),
    }
    assert len(keys) == 7


def test_the_key_covers_abi_and_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key("kernel", TARGET)
    monkeypatch.setattr(key_module, "ABI_VERSION", -1)
    other_abi = cache_key("kernel", TARGET)
    monkeypatch.setattr(key_module, "toolchain_version", lambda: "llvmlite 99")
    assert len({before, other_abi, cache_key("kernel", TARGET)}) == 3


def test_the_toolchain_is_identified() -> None:
    assert "llvmlite" in toolchain_version()


# ----------------------------------------------------------------------------- sources


@pytest.mark.parametrize("source", [*CODE_SOURCES, "lower/math", "ir/expr.py", "ir/signature.py"])
def test_editing_one_line_is_a_miss(source: str, copy: Path, tmp_path: Path) -> None:
    kernels = KernelCache(tmp_path / "cache")
    kernels.put(cache_key("kernel", TARGET), b"code")
    assert kernels.get(cache_key("kernel", TARGET)) == b"code"
    place = copy / source
    with (place if place.suffix else place / "__init__.py").open("a") as file:
        file.write("COEFFICIENT = 0.5\n")
    _new_process()
    assert kernels.get(cache_key("kernel", TARGET)) is None


def test_adding_and_renaming_a_file_are_misses(copy: Path) -> None:
    before = source_fingerprint(copy)
    (copy / "ir" / "more.py").write_text("")
    more = source_fingerprint(copy)
    (copy / "ir" / "more.py").rename(copy / "ir" / "most.py")
    assert len({before, more, source_fingerprint(copy)}) == 3


@pytest.mark.parametrize("source", ["cli/main.py", "tensor/tensor.py", "compiler/cache.py"])
def test_editing_another_source_is_not(source: str, copy: Path) -> None:
    before = source_fingerprint(copy)
    (copy / source).write_text("")
    assert source_fingerprint(copy) == before


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
    covered = set(key_module._sources(PACKAGE))
    assert not sorted(str(file) for file in reached - covered)


def test_every_source_on_the_list_is_there() -> None:
    assert all((PACKAGE / source).exists() for source in CODE_SOURCES)


# ----------------------------------------------------------------------- what is running


def test_two_processes_that_run_the_same_sources_share_a_key(copy: Path) -> None:
    first = cache_key("kernel", TARGET)
    _new_process()
    assert cache_key("kernel", TARGET) == first


def test_a_source_that_changed_after_its_import_makes_no_shared_key(
    copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared = cache_key("kernel", TARGET)
    changed = copy / "ir" / "expr.py"
    monkeypatch.setattr(key_module, "_IMPORTED_NS", changed.stat().st_ctime_ns - 1)
    os.utime(changed, (0, 0))  # as an installer does
    _new_process()
    with caplog.at_level(logging.WARNING, "semel.cache"):
        own = cache_key("kernel", TARGET)
    assert "was changed after it was imported" in caplog.text
    assert cache_key("kernel", TARGET) == own
    _new_process()
    assert len({shared, own, cache_key("kernel", TARGET)}) == 3


@pytest.mark.parametrize("missing", ["ir", "errors.py"])
def test_without_sources_there_is_no_shared_key(
    missing: str, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = copy / missing
    for file in [place] if place.suffix else list(place.rglob("*.py")):
        file.rename(file.with_suffix(".pyc"))
    first = cache_key("kernel", TARGET)
    _new_process()
    assert cache_key("kernel", TARGET) != first
    assert "are not kept" in caplog.text
