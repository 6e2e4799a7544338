"""What plans and their parts say of themselves: one line, tables in notebooks, and `dir`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel import CompiledGraph, ExecutionPlan, Graph, Tensor, Variable

N = Variable("n", 1, 64)


@pytest.fixture(scope="module")
def plan() -> ExecutionPlan:
    """Five equal layers, run once."""
    y = Tensor.input("x", (N, 8))
    for i in range(5):
        y = (y @ np.full((8, 8), 0.1 * (i + 1), np.float32)).relu()
    made = y.prepare()
    made(x=np.ones((5, 8), np.float32))
    return made


def _parts(plan: ExecutionPlan) -> list[Any]:
    report = plan.execute_profiled(limits=False)
    kernel = plan.prepared_kernels[0].kernel
    program = plan.program
    return [plan, *plan.buffers, plan.explain(), report, report[0], plan.memory, program, kernel]


def test_every_part_says_in_a_line_what_it_is(plan: ExecutionPlan) -> None:
    for part in [*_parts(plan), N, Graph("g"), CompiledGraph(plan)]:
        text = repr(part)
        assert text.startswith(type(part).__name__ + "(")
        assert len(text) < 300 and "\n" not in text
        assert " object at 0x" not in text
    assert "float32[n, 8]" in repr(plan.buffers[0]) and "bytes, cpu" in repr(plan.buffers[0])
    assert "ops" in repr(plan.explain()) and "distinct kernels" in repr(plan.program)


def test_tab_completion_offers_public_names_alone(plan: ExecutionPlan) -> None:
    graph = CompiledGraph(plan)
    for part in (plan, plan.buffers[0], Graph("g"), graph):
        listed = dir(part)
        assert all(not name.startswith("_") or name.endswith("__") for name in listed)
        assert all(hasattr(part, name) for name in listed)
    assert {"execute", "explain", "buffer", "save", "set_param"} <= set(dir(plan))
    assert not {"calls", "engine", "replicate"} & set(dir(plan))
    assert {"run", "run_slots", "plan"} <= set(dir(graph))


def test_an_explanation_folds_equal_layers(plan: ExecutionPlan) -> None:
    explanation = plan.explain()
    (layers,) = [each for each in explanation.layers if each.count > 1]
    assert layers.count == 5
    whole, folded = str(explanation), explanation.folded()
    assert "5 x " in whole and "5 x " in folded
    assert whole.count("  computes ") == 5 * folded.count("  computes ")
    assert f"... the same 4 more times, to op {layers.end - 1}" in folded
    assert "more, of the layers that are left out" in folded
    page = explanation._repr_html_()
    assert "layers" in page and "not fused further" in page and "<table>" in page


def test_a_plan_without_layers_is_not_folded() -> None:
    explanation = (Tensor.input("x", (4,)) + 1).prepare().explain()
    assert explanation.folded() == str(explanation)
