"""The import direction, as a table. A new edge is a decision: change it here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "semel"

BASE = {"version", "errors", "locks", "config", "ir"}
COMPILE = BASE | {"kernel", "ops", "passes", "schedule", "lower", "codegen"}
RUN = {"runtime", "plan", "devices"}

MAY_IMPORT: dict[str, set[str]] = {
    "version": set(),
    "errors": set(),
    "locks": set(),
    "config": {"errors", "locks"},
    "ir": {"errors", "locks", "config"},
    "kernel": BASE,
    "ops": BASE | {"kernel"},
    "passes": BASE | {"kernel", "ops"},
    "schedule": BASE | {"kernel", "ops"},
    "lower": BASE | {"kernel", "ops", "passes", "schedule"},
    "codegen": BASE | {"kernel"},
    "runtime": BASE,
    "plan": BASE | {"runtime"},
    "devices": BASE | {"kernel", "codegen", "runtime"},
    "compiler": COMPILE | RUN,
    "tensor": COMPILE | RUN | {"compiler"},
    "load": COMPILE | RUN | {"compiler", "tensor"},
    "models": COMPILE | RUN | {"compiler", "tensor"},
    "frontends": COMPILE | RUN | {"compiler", "tensor"},
    "cli": COMPILE | RUN | {"compiler", "tensor", "load"},
}

FILES = sorted(SRC.rglob("*.py"))


def _module(path: Path) -> str:
    return ".".join(["semel", *path.relative_to(SRC).with_suffix("").parts])


def _imports(path: Path) -> set[str]:
    """The members of semel that a file imports, wherever the statement stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "semel":
            names = [f"semel.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("semel.")}
    return found


def _third_party(path: Path) -> set[str]:
    """Top-level names of absolute imports that run when the module is imported."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


def _reads_environment(path: Path) -> bool:
    names = {"environ", "environb", "getenv"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and any(alias.name in names for alias in node.names))
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_the_sources_are_found() -> None:
    assert len(FILES) > 10, f"no sources under {SRC}"


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_imports_point_down(path: Path) -> None:
    layer = path.relative_to(SRC).parts[0].removesuffix(".py")
    if layer != "__init__":
        stray = _imports(path) - MAY_IMPORT[layer] - {layer}
        assert not stray, f"{_module(path)} imports {sorted(stray)}"


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_llvmlite_is_imported_late_and_in_one_file(path: Path) -> None:
    assert "llvmlite" not in _third_party(path)
    if "import llvmlite" in path.read_text() or "from llvmlite" in path.read_text():
        assert _module(path) == "semel.devices.cpu.toolchain"


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_only_config_reads_the_environment(path: Path) -> None:
    if _module(path) != "semel.config":
        assert not _reads_environment(path), f"{_module(path)} reads the environment"
