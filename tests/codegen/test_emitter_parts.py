"""The seams of the emitter: its parts know what lies below them, and can be put together anew."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import Array, Native
from tests.codegen.scalar_emitter import emit_scalar
from tests.codegen.test_dots import block
from tests.ops.case import Case
from tests.ops.cases import CASES

import semel.codegen
from semel import Tensor
from semel.devices.cpu.toolchain import host_target
from semel.errors import InternalError
from semel.ir.target import named_target
from semel.kernel.ir import Kernel

CODEGEN = Path(semel.codegen.__file__).parent
#: Whose parts a package may import besides its own.
BELOW = {"scalar": set(), "vector": {"scalar"}, "cpu": {"scalar", "vector"}}


def _imports(file: Path) -> set[str]:
    """The packages of codegen that a file imports."""
    nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
    names = [(n.module or "").split(".") for n in nodes]
    return {n[2] for n in names if n[:2] == ["semel", "codegen"] and len(n) > 2}


@pytest.mark.parametrize("package", BELOW)
def test_parts_know_only_what_lies_below(package: str) -> None:
    for file in (CODEGEN / package).glob("*.py"):
        stray = _imports(file) - BELOW[package] - {package}
        assert not stray, f"{package}/{file.name} imports {sorted(stray)}"


@pytest.mark.parametrize("package", BELOW)
def test_no_part_inherits_from_another(package: str) -> None:
    for file in (CODEGEN / package).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in node.bases]
                assert bases in ([], ["Protocol"]), f"{node.name} of {file.name} inherits {bases}"


def _run_scalar(kernel: Kernel, buffers: list[Array], values: Mapping[str, int]) -> Any:
    target = host_target()
    text = emit_scalar(kernel, target, "kernel_under_test")
    assert not any(f"<{n} x " in text for n in (2, 4, 8, 16, 32, 64))
    return Native(kernel, target, emit_scalar).run(buffers, values)


@pytest.mark.parametrize("case", CASES[::29], ids=str)
def test_the_scalar_parts_are_an_emitter(case: Case) -> None:
    """Lanes, masks and shuffles gone, the numbers are right: the seam is a real one."""
    arrays = case.arrays()
    graph, kernels = lower_graph([case.run(*case.symbols())])
    data = {f"x{i}": array for i, array in enumerate(arrays)}
    (found,) = run_kernels(graph, kernels, data, {}, _run_scalar)
    case.check(found, arrays)


def test_scalar_code_of_reductions_checks_and_products() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((33, 70)).astype(np.float32)
    w = rng.standard_normal((70, 17)).astype(np.float32)
    at = np.array([5, 0, 32, 7], np.int64)
    a, b = Tensor.input("x", x.shape), Tensor.input("w", w.shape)
    places = Tensor.input("at", at.shape, "int64")
    outputs = [a.softmax(-1), (a @ b).relu(), a.argmax(-1), a[places]]
    graph, kernels = lower_graph(outputs)
    found = run_kernels(graph, kernels, {"x": x, "w": w, "at": at}, {}, _run_scalar)
    exact = np.exp(x - x.max(-1, keepdims=True).astype(np.float64))
    np.testing.assert_allclose(found[0], exact / exact.sum(-1, keepdims=True), rtol=2e-6)
    np.testing.assert_allclose(found[1], np.maximum(x @ w, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[2], x.argmax(-1))
    np.testing.assert_array_equal(found[3], x[at])


def test_a_statement_without_a_rule_is_refused() -> None:
    """The scalar emitter knows no blocks of tile registers."""
    with pytest.raises(InternalError, match="has no rule for BlockDot"):
        emit_scalar(block(16, 256), named_target("x86-64-v4+amx-int8+amx-tile"), "k")
