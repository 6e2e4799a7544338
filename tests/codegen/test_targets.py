"""The table of operations as machine code for every level: here, or under an emulator."""

from __future__ import annotations

import pytest
from tests.codegen.lowering import lower_graph, run_by_machine, run_kernels
from tests.ops.case import Case
from tests.ops.cases import CASES

from semel.ir.target import named_target

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "aarch64+dotprod+i8mm")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES[7::71], ids=str)
def test_every_level_computes_the_operations(case: Case, level: str) -> None:
    target = named_target(level)
    arrays = case.arrays()
    graph, kernels = lower_graph([case.run(*case.symbols())], target)
    data = {f"x{i}": array for i, array in enumerate(arrays)}
    (found,) = run_kernels(graph, kernels, data, {}, run_by_machine(target))
    case.check(found, arrays)
