"""The tables of `docs/coming-from` are true: both columns run, and say the same.

A table whose second head is `Semel` is checked row by row: the first piece of code of the second
cell is computed with tensors, by the NumPy definitions of the ops, so that nothing compiles; the
first piece of the first cell with that page's library, where it is installed. Results must agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.ops.evaluate import evaluate
from semel.tensor.realize import build_graph

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
#: What the first column of a page is written in.
LIBRARY = {"numpy": "numpy", "pytorch": "torch", "jax": "jax", "onnxruntime": "onnxruntime"}
_CODE = re.compile(r"`([^`]+)`")


def rows(page: Path) -> Iterator[tuple[str, str]]:
    """(there, here) of every row of the tables that are checked."""
    is_checked = False
    for line in page.read_text().splitlines():
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) < 2:
            is_checked = False
        elif cells[1] == "Semel":
            is_checked = True
        elif is_checked and not set(cells[1]) <= set("-: "):
            yield cells[0].replace("\\|", "|"), cells[1].replace("\\|", "|")


def arrays() -> dict[str, Any]:
    """What the rows compute with."""
    rng = np.random.default_rng(0)
    square = rng.standard_normal((4, 4), dtype=np.float32)
    return {
        "x": rng.standard_normal((3, 4), dtype=np.float32),
        "y": rng.standard_normal((3, 4), dtype=np.float32),
        "v": rng.standard_normal(4, dtype=np.float32),
        "a": square @ square.T + 4 * np.eye(4, dtype=np.float32),
        "b": square,
        "q": rng.standard_normal((2, 2, 5, 8), dtype=np.float32),
        "image": rng.standard_normal((1, 3, 8, 8), dtype=np.float32),
        "kernel": rng.standard_normal((4, 3, 3, 3), dtype=np.float32),
        "table": rng.standard_normal((10, 4), dtype=np.float32),
        "i": np.array([2, 0, 1]),
        "index": np.array([[0, 2, 1, 0]]),
        "classes": np.array([3, 0, 2]),
        "mask": np.array([[True, False, True, False]] * 3),
        "order": np.array([0, 1, 1, 2, 3]),
    }


def names_here() -> dict[str, Any]:
    made = {name: Tensor(array) for name, array in arrays().items()}
    return {**made, "semel": semel, "Tensor": Tensor, "np": np}


def names_there(library: str) -> dict[str, Any]:
    module = import_module(library)
    if library == "torch":
        made = {name: module.from_numpy(array.copy()) for name, array in arrays().items()}
        return {**made, "torch": module, "F": import_module("torch.nn.functional")}
    return {**arrays(), "np": np}


def flat(value: Any) -> list[Any]:
    """The arrays of a result, one after the other."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [a for part in value for a in flat(part)]
    return [value]


def computed(tensors: list[Tensor]) -> list[Any]:
    """Their values by the definitions of the ops."""
    return evaluate(build_graph(tensors), {}) if tensors else []


def run(code: str, names: dict[str, Any]) -> Any:
    """The value of an expression, or of the last name that statements give."""
    try:
        return eval(compile(code, code, "eval"), names)
    except SyntaxError:
        scope = dict(names)
        exec(compile(code, code, "exec"), scope)
        return scope.get("r", scope.get("x"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_both_columns_say_the_same(page: Path) -> None:
    library = LIBRARY[page.stem]
    found, wrong = list(rows(page)), list[str]()
    here: list[tuple[str, str, list[Any]]] = []
    for there, ours in found:
        for cell in (there, ours):
            assert _CODE.search(cell), f"{page.name}: '{cell}' has no code"
        code = _CODE.findall(ours)[0]
        try:
            here.append((_CODE.findall(there)[0], code, flat(run(code, names_here()))))
        except Exception as error:
            wrong.append(f"{code}: {type(error).__name__}: {error}")
    tensors = [t for _, _, values in here for t in values if isinstance(t, Tensor)]
    results = iter(computed(tensors))
    values = [[next(results) if isinstance(t, Tensor) else t for t in ts] for _, _, ts in here]
    if page.stem in ("numpy", "pytorch") and find_spec(library):
        for (there, ours, _), got in zip(here, values, strict=True):
            wrong += differences(there, ours, got, names_there(library))
    assert not wrong, "\n" + "\n".join(wrong)
    assert len(found) > 5 or page.stem == "onnxruntime"


def differences(there: str, here: str, got: list[Any], names: dict[str, Any]) -> list[str]:
    """What is not the same on both sides."""
    try:
        wanted = [as_numpy(a) for a in flat(run(there, names))]
    except Exception as error:
        return [f"{there}: {type(error).__name__}: {error}"]
    if len(wanted) != len(got):
        return [f"{there} gives {len(wanted)} arrays, {here} {len(got)}"]
    return [
        f"{there} is {w!r}, {here} is {g!r}"
        for w, g in zip(wanted, map(as_numpy, got), strict=True)
        if w.shape != g.shape or not np.allclose(w, g, rtol=1e-4, atol=1e-5, equal_nan=True)
    ]


def as_numpy(value: Any) -> Any:
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


def test_a_row_that_is_wrong_is_found(tmp_path: Path) -> None:
    page = tmp_path / "numpy.md"
    page.write_text("| NumPy | Semel |\n|---|---|\n| `np.sum(x)` | `x.max()` |\n\n| a | b |\n")
    assert list(rows(page)) == [("`np.sum(x)`", "`x.max()`")]
    value = computed([run("x.max()", names_here())])
    assert differences("np.sum(x)", "x.max()", value, names_there("numpy"))
    assert not differences("np.max(x)", "x.max()", value, names_there("numpy"))
