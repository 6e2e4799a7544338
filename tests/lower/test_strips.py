"""What walks down a strip of rows takes two lines of the cache of each."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_by_interpreter, run_by_machine, run_kernels
from tests.codegen.machine import every_target

from semel import Tensor
from semel.ir.target import named_target
from semel.kernel.ir import Loop, walk_statements

TARGETS = every_target()
LINE_BYTES = 64


def spread(x: Tensor) -> Tensor:
    """The mean square of what is left of each column without its mean."""
    distance = x - x.mean(0, keepdims=True)
    return (distance * distance).mean(0)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_a_strip_is_two_lines_wide(level: str) -> None:
    _, lowered = lower_graph([spread(Tensor.input("x", (1000, 256)))], named_target(level))
    loops = [s for it in lowered for s in walk_statements(it.kernel.body) if isinstance(s, Loop)]
    strips = [s for s in loops if s.lanes > 1 and any(isinstance(b, Loop) for b in s.body)]
    assert strips and all(strip.lanes * 4 >= 2 * LINE_BYTES for strip in strips)


@pytest.mark.parametrize("columns", [1, 8, 31, 32, 33, 100])
def test_no_bit_depends_on_its_width(columns: int) -> None:
    x = np.random.default_rng(columns).standard_normal((57, columns), np.float32)
    found = []
    for target in (None, *TARGETS.values()):
        graph, kernels = lower_graph([spread(Tensor.input("x", x.shape))], target)
        run = run_by_machine(target) if target else run_by_interpreter
        found.append(run_kernels(graph, kernels, {"x": x}, {}, run)[0])
    assert len({np.asarray(each).tobytes() for each in found}) == 1
