"""Kernels of our own pass as a stranger's would, and give the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.ops.case import Case
from tests.ops.cases import CASES
from tests.ops.test_against_reference import SYMBOLIC, K, N, named

import semel
from semel import Tensor
from semel.ir.graph import Graph

#: Different operations, and a different sample of dtypes and shapes of each.
SAMPLE = [case for i, case in enumerate(CASES) if i % 11 == 0]


def same_bits(tensor: Tensor, arrays: dict[str, np.ndarray], path: Path) -> None:
    used = {node.attrs.name for node in Graph((tensor.node,)).inputs}
    data = {name: array for name, array in arrays.items() if name in used}
    trusted = tensor.prepare(threads=1)
    trusted.save(path)
    confined = semel.load_plan(path, trust=False, threads=1)
    for got, want in zip(_run(confined, data), _run(trusted, data), strict=True):
        assert got.tobytes() == want.tobytes()


def _run(plan: semel.ExecutionPlan, data: dict[str, np.ndarray]) -> list[np.ndarray]:
    result = plan(**data)
    return [np.array(r) for r in (result.values() if isinstance(result, dict) else [result])]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_cases_are_the_same_without_trust(case: Case, tmp_path: Path) -> None:
    same_bits(case.run(*case.symbols()), named(case.arrays()), tmp_path / "a.plan")


@pytest.mark.parametrize("case", SYMBOLIC, ids=str)
def test_symbolic_cases_are_the_same_without_trust(case: Case, tmp_path: Path) -> None:
    x = Tensor.input("x0", (N, K), "float32")
    same_bits(case.run(x), named(case.arrays()), tmp_path / "a.plan")
