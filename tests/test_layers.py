"""The import direction, as a table. A new edge is a decision: change it here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "semel"

#: What each layer may import: what it uses, and no more.
MAY_IMPORT: dict[str, set[str]] = {
    layer: set(granted.split())
    for layer, granted in {
        "version": "",
        "written": "",
        "errors": "written",
        "locks": "",
        "config": "errors locks",
        "topics": "config",
        "ir": "errors locks config",
        "cache": "errors locks config topics ir",
        "kernel": "errors ir",
        "ops": "errors ir kernel written",
        "passes": "errors ir kernel ops",
        "schedule": "errors ir ops",
        "lower": "errors ir kernel ops passes schedule",
        "codegen": "errors ir kernel",
        "runtime": "errors locks config ir",
        "plan": "version errors locks config topics ir runtime",
        "devices": "errors locks config topics ir cache kernel codegen runtime",
        "compiler": (
            "version errors locks config topics ir cache kernel ops passes schedule lower "
            "runtime plan devices"
        ),
        "linalg": "tensor",
        "fft": "errors ir tensor",
        "tensor": "errors locks config ir ops runtime plan compiler written",
        "tracing": "errors locks topics ir ops plan compiler runtime tensor",
        "graph": "errors locks ir ops runtime plan compiler tensor",
        "executor": "errors locks ir runtime plan",
        "session": "errors locks ir runtime plan graph loading",
        "loading": "errors locks topics ir kernel runtime plan devices compiler",
        "models": "graph ir tensor",
        "frontends": "errors graph ir locks runtime session tensor",
        "onnx_backend": "frontends",
        "compat": "errors frontends locks runtime session version",
        "cli": (
            "errors config ir cache runtime plan devices compiler loading models tensor session "
            "frontends"
        ),
        "__main__": "cli",
    }.items()
}

#: What importing a file may do beyond defining names, by the start of the file's name: the ops
#: are the rows of one table, and a fork must find its handlers there.
MAY_CALL = {
    "register": "semel.ops.",
    "os.register_at_fork": "semel.",
    "spelled": "semel.tensor.",  # which makes a function of a function
    "sys.modules[__name__].__class__": "semel.tensor.__init__",  # to say what it is when called
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


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when the module is imported, one statement at a time."""
    for node in body:
        yield node
        is_later = isinstance(node, ast.FunctionDef | ast.ClassDef)
        is_program = isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        if not is_later and not is_program:
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, name, []))


def _root(node: ast.expr) -> str:
    """`a` of `a.b[c](d)`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _foreign(tree: ast.Module, *, ours: bool) -> set[str]:
    """Names that a module has from elsewhere; with `ours`, from other modules of semel only."""
    found: set[str] = set()
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom) and (not ours or str(node.module).startswith("semel")):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
            found |= {name for name in names if not ours or name == "semel"}
    return found


def _effects(tree: ast.Module) -> set[str]:
    """Calls and assignments that change what belongs to another module, at import."""
    foreign, ours = _foreign(tree, ours=False), _foreign(tree, ours=True)
    found: set[str] = set()
    for node in _statements(tree.body):
        match node:
            case ast.Expr(value=ast.Call() as call) if _root(call) in foreign:
                found.add(ast.unparse(call.func))
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                changed = [t for t in targets if not isinstance(t, ast.Name)]
                found |= {ast.unparse(t) for t in changed if _root(t) in foreign}
            case ast.FunctionDef(decorator_list=marks) | ast.ClassDef(decorator_list=marks):
                found |= {ast.unparse(mark) for mark in marks if _root(mark) in ours}
    return found


def test_the_sources_are_found() -> None:
    assert len(FILES) > 10, f"no sources under {SRC}"


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_imports_point_down(path: Path) -> None:
    layer = path.relative_to(SRC).parts[0].removesuffix(".py")
    if layer != "__init__":
        stray = _imports(path) - MAY_IMPORT[layer] - {layer}
        assert not stray, f"{_module(path)} imports {sorted(stray)}"


def _unused(granted: dict[str, set[str]], files: dict[str, set[str]]) -> set[str]:
    """The grants that no file uses; `files` are what each file imports, by the file's layer."""
    used: dict[str, set[str]] = {}
    for file, imported in files.items():
        used.setdefault(file.split(".")[1], set()).update(imported)
    return {f"{a} -> {b}" for a, grants in granted.items() for b in grants - used.get(a, set())}


def test_every_grant_is_used() -> None:
    assert not _unused(MAY_IMPORT, {_module(path): _imports(path) for path in FILES})


def test_an_unused_grant_is_seen() -> None:
    granted = {"ir": {"errors", "locks"}, "ops": {"ir"}}
    files = {"semel.ir.a": {"errors"}, "semel.ir.b": {"errors"}, "semel.ops.c": {"ir"}}
    assert _unused(granted, files) == {"ir -> locks"}


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_llvmlite_is_imported_late_and_in_one_file(path: Path) -> None:
    assert "llvmlite" not in _third_party(path)
    if "import llvmlite" in path.read_text() or "from llvmlite" in path.read_text():
        assert _module(path) == "semel.devices.cpu.toolchain"


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_only_config_reads_the_environment(path: Path) -> None:
    if _module(path) != "semel.config":
        assert not _reads_environment(path), f"{_module(path)} reads the environment"


def test_effects_of_imports_are_seen() -> None:
    source = """
import os
from semel.a import TABLE, mark, register
OWN = {}
OWN["x"] = 1
OWN.setdefault("x", 2)
TABLE["x"] = 1
for name in ("y", "z"):
    TABLE.setdefault(name, 1)
register(1)
os.environ["X"] = "1"
@mark("name")
def f(): TABLE["inside"] = 2
"""
    expected = {"TABLE['x']", "TABLE.setdefault", "register", "os.environ['X']", "mark('name')"}
    assert _effects(ast.parse(source)) == expected


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_no_import_changes_another_module(path: Path) -> None:
    module = _module(path)
    found = _effects(ast.parse(path.read_text()))
    stray = {name for name in found if not module.startswith(MAY_CALL.get(name.split("(")[0], "?"))}
    assert not stray, f"importing {module} does {sorted(stray)}"


#: Files outside of devices/ and cli/ that may name the CPU: the table of devices, and the name of
#: the host's memory.
NAMING_THE_CPU = {"semel.runtime.device", "semel.runtime.free"}


def _strings(path: Path) -> set[str]:
    """String constants that are no docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {c.value for c in constants if isinstance(c.value, str) and id(c) not in docs}


def _names_the_cpu(path: Path) -> bool:
    imports = {
        name
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    strings = _strings(path)
    is_named = any(s == "cpu" or s.startswith("cpu:") for s in strings)
    is_reached = any("devices.cpu" in s or "devices/cpu" in s for s in strings | imports)
    return is_named or is_reached


def test_few_files_name_the_cpu() -> None:
    outside = (path for path in FILES if path.relative_to(SRC).parts[0] not in ("devices", "cli"))
    assert {_module(path) for path in outside if _names_the_cpu(path)} == NAMING_THE_CPU


NATIVE_MODULES = ("semel.ir.abi", "semel.runtime.optable", "semel.runtime.pool")
#: Names of the native table that plans and the compiler have no business with.
NATIVE = {"Header", "Lane", "OpTable", "Segment", "Step", "Worker", "WorkerPool", "make_lanes"}


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_only_runtime_and_devices_know_the_native_table(path: Path) -> None:
    if path.relative_to(SRC).parts[0] in ("runtime", "devices", "codegen", "ir"):
        return
    imported = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in NATIVE_MODULES
        for alias in node.names
    }
    assert not imported & NATIVE, f"{_module(path)} imports {sorted(imported & NATIVE)}"


#: A file of more lines, or a class with more methods, holds one idea; its docstring says which, and
#: so why it is long, in a paragraph that begins like this.
MOST_LINES, MOST_METHODS, REASON = 600, 40, "One idea: "


def _says_why(node: ast.Module | ast.ClassDef) -> bool:
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    return any(paragraph.startswith(REASON) for paragraph in paragraphs)


def _unexplained(source: str, name: str) -> set[str]:
    """What is long here and does not say why; and what says why and is not long."""
    tree = ast.parse(source)
    found = set()
    if (len(source.splitlines()) > MOST_LINES) != _says_why(tree):
        found.add(f"{name}: {len(source.splitlines())} lines")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(member, ast.FunctionDef) for member in node.body)
            if (methods > MOST_METHODS) != _says_why(node):
                found.add(f"{name}.{node.name}: {methods} methods")
    return found


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_what_is_long_holds_one_idea_and_says_so(path: Path) -> None:
    assert not _unexplained(path.read_text(), _module(path))


def test_what_is_long_is_seen() -> None:
    methods = "".join(f"    def f{i}(self): ...\n" for i in range(MOST_METHODS + 1))
    said = '    """A face.\n\n    One idea: of faces.\n    """\n'
    assert _unexplained(f"class A:\n{methods}", "m") == {"m.A: 41 methods"}
    assert _unexplained(f"class A:\n{said}{methods}", "m") == set()
    assert _unexplained(f"class A:\n{said}", "m") == {"m.A: 0 methods"}
    assert _unexplained("x = 1\n" * (MOST_LINES + 1), "m") == {"m: 601 lines"}
