"""What `import semel` gives, and what it must not do."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import pytest

import semel
from semel import Tensor

_PROBE = """
import json, os, sys, threading

def threads():
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return threading.active_count()

opened = []
#: What making tensors takes no part of. A new entry of `sys.modules` that starts like one of
#: these costs every program that imports semel.
NOT_NEEDED = (
    "llvmlite", "asyncio", "concurrent", "logging", "subprocess", "fractions", "hashlib",
    "semel.cache", "semel.codegen", "semel.compiler", "semel.devices", "semel.frontends",
    "semel.kernel.", "semel.loading", "semel.lower", "semel.models", "semel.passes",
    "semel.plan", "semel.schedule", "semel.topics",
)
NEEDED = {"semel.kernel.values"}  # what the rules of ops are written with
ALLOWED = (".py", ".pyc", ".so", ".pth", ".dylib")

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and "semel" in arguments[0]:
        if not arguments[0].endswith(ALLOWED) and ".pyc." not in arguments[0]:
            opened.append(arguments[0])

import numpy, ml_dtypes  # third parties may start what they like
before = threads()
sys.addaudithook(watch)
import semel
print(json.dumps({
    "loaded": sorted(m for m in set(sys.modules) - NEEDED if m.startswith(NOT_NEEDED)),
    "threads": threads() - before,
    "opened": opened,
}))
"""


def _probe() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], check=True, capture_output=True, text=True, timeout=240
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_all_is_sorted_and_without_repeats() -> None:
    assert list(semel.__all__) == sorted(set(semel.__all__))


def test_every_public_name_is_importable() -> None:
    missing = [name for name in semel.__all__ if not hasattr(semel, name)]
    assert not missing


def test_no_public_name_is_that_of_a_module() -> None:
    """Whoever imports `semel.x` sets `semel.x`: a function of that name would be gone."""
    modules = {path.stem for path in Path(semel.__file__).parent.iterdir()}
    shared = modules & set(semel.__all__)
    assert [name for name in shared if not isinstance(getattr(semel, name), ModuleType)] == []


def test_every_public_name_is_listed() -> None:
    hidden = [
        name
        for name, value in vars(semel).items()
        if not name.startswith("_")
        and name not in semel.__all__
        and name != "TYPE_CHECKING"
        and getattr(value, "__name__", "") != f"semel.{name}"  # a submodule
    ]
    assert not hidden


def test_importing_is_light() -> None:
    """No compiler, no plan, no thread, no file but its own modules."""
    assert _probe() == {"loaded": [], "threads": 0, "opened": []}


_LOAD = """
import sys
import numpy as np
from semel import load_plan

plan = load_plan(sys.argv[1])
assert plan(x=np.ones(3, np.float32)).tolist() == [3, 3, 3]
plan.set_param("w", np.full(3, 5, np.float32))
assert plan(x=np.ones(3, np.float32)).tolist() == [5, 5, 5]
compiler = ("llvmlite", "semel.lower", "semel.passes", "semel.schedule", "semel.compiler.pipeline")
print(sorted(m for m in sys.modules if m.startswith(compiler)))
"""


def test_a_plan_from_a_file_needs_no_compiler(tmp_path: Path) -> None:
    w = Tensor.param("w", [3.0, 3.0, 3.0])
    (Tensor.input("x", (3,)) * w).prepare().save(tmp_path / "plan")
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(tmp_path / "plan")],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout == "[]\n"


def _checker_imports() -> dict[str, str]:
    """The names that `semel` imports for type checkers alone, and from where."""
    tree = ast.parse(Path(semel.__file__).read_text())
    blocks = (n for n in tree.body if isinstance(n, ast.If))
    block = next(n for n in blocks if ast.unparse(n.test) == "TYPE_CHECKING")
    statements = [n for n in block.body if isinstance(n, ast.ImportFrom)]
    return {alias.name: str(n.module) for n in statements for alias in n.names}


def test_what_is_imported_later_is_what_type_checkers_see() -> None:
    rows = {"*": vars(semel)["_ROWS"]}  # whose names plan/rows.py lists
    assert vars(semel)["_LATER"] | rows == _checker_imports()


def test_a_name_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match="'semel' has no attribute 'sofmax'"):
        getattr(semel, "sofmax")  # noqa: B009  (a checker would see it)
    assert set(semel.__all__) <= set(dir(semel))


def _methods() -> dict[str, FunctionType]:
    """The public methods of `Tensor`, as the functions they are."""
    found = {name: getattr(Tensor, name) for name in dir(Tensor) if not name.startswith("_")}
    return {name: value for name, value in found.items() if isinstance(value, FunctionType)}


def test_a_function_is_the_method_of_its_name() -> None:
    methods = _methods()
    shared = (set(semel.__all__) & set(methods)) - {"bfloat16", "bool"}  # functions are dtypes
    assert len(shared) > 250
    assert [n for n in sorted(shared) if getattr(semel, n) is not methods[n]] == []


#: Methods without a function: of plans and values, and words that a function says otherwise.
_METHODS_ALONE = set(
    """input param numpy realize item tolist to to_device cpu contiguous detach dim view view_as
    float double half long int short char byte bool bfloat16""".split()  # noqa: SIM905
)


def test_methods_and_functions_agree() -> None:
    """What can be said of a tensor can be said as a function of `semel`, and the other way."""
    functions = {n for n in semel.__all__ if isinstance(getattr(semel, n), FunctionType)}
    of_tensors = {n for n in functions if next(iter(_parameters(getattr(semel, n))), "") == "x"}
    methods = set(_methods())
    assert methods - functions == _METHODS_ALONE
    assert of_tensors - methods == {"append"}  # which is a method of states


def _parameters(function: FunctionType) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_tensor_is_the_first_argument_of_a_method() -> None:
    """So that `x.f(y)` and `semel.f(x, y)` are one call, and static methods take none."""
    wrong = []
    for name, function in _methods().items():
        is_static = isinstance(inspect.getattr_static(Tensor, name), staticmethod)
        first = next(iter(inspect.signature(function).parameters))
        if is_static == (first in ("x", "condition", "outputs")):
            wrong.append(name)
    assert not wrong


if TYPE_CHECKING:  # an error that a checker does not find is an unused `ignore`, which is one

    def _what_checkers_refuse(x: Tensor) -> None:
        x.softmax(axis="rows")  # type: ignore[arg-type]
        semel.softmax(x, axis="rows")  # type: ignore[arg-type]
        semel.softmax([1.0, 2.0], axes=0)  # type: ignore[call-arg]
        Tensor.full((2, 3))  # type: ignore[call-arg]
        semel.full((2, 3), 0, dtype=1)  # type: ignore[arg-type]
        x.topk(2)[2]  # type: ignore[misc]
        _ = x + None  # type: ignore[operator]
        semel.sofmax(x)  # type: ignore[attr-defined]
        semel.load_plan(file=3).executes()  # type: ignore[attr-defined, call-arg]


def test_methods_are_documented_and_typed() -> None:
    bare = [
        name
        for name, function in _methods().items()
        if not function.__doc__
        or inspect.signature(function).return_annotation is inspect.Signature.empty
        or any(
            p.annotation is inspect.Parameter.empty
            for p in inspect.signature(function).parameters.values()
        )
    ]
    assert not bare


def test_completion_shows_the_public_names_alone() -> None:
    shown = {name for name in dir(semel) if not name.startswith("__")}
    assert shown == {name for name in semel.__all__ if not name.startswith("__")}
