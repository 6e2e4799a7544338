"""Loops may share an index, also where one of them runs once and its index is a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.codegen.machine import Native, runnable_targets

from semel.ir.expr import Index
from semel.ir.types import INT64
from semel.kernel import ir
from semel.kernel.interpret import interpret
from semel.kernel.ir import Buffer, Kernel

SIZE = 64
#: start, stop and lanes of loops one after the other
RUNS: dict[str, Sequence[tuple[int, int, int]]] = {
    "once and once": [(0, 1, 1), (5, 6, 1)],
    "once and often": [(0, 1, 1), (5, 9, 1)],
    "often and once": [(5, 9, 1), (0, 1, 1)],
    "once and a vector": [(3, 4, 1), (8, 40, 16)],
    "a vector and once": [(8, 24, 16), (24, 40, 16), (3, 4, 1), (40, 41, 1)],
}


def squares(runs: Sequence[tuple[int, int, int]]) -> Kernel:
    """b[i] = 7 * i * i + 1 where some loop has i."""
    i, tile = Index("i", SIZE), Index("tile", 1)
    buffer = Buffer("b0", INT64, SIZE, "w")
    value = ir.index(i) * ir.index(i) * 7 + 1
    body = tuple(ir.Loop(i, a, b, (ir.Store(buffer, i, value),), lanes) for a, b, lanes in runs)
    return Kernel("squares", (buffer,), (), (), tile, 1, body)


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("name", RUNS)
def test_each_loop_has_numbers_of_its_own(name: str, target: str) -> None:
    kernel = squares(RUNS[name])
    expected = np.zeros(SIZE, np.int64)
    for start, stop, _ in RUNS[name]:
        expected[start:stop] = 7 * np.arange(start, stop) ** 2 + 1
    found = np.zeros(SIZE, np.int64)
    Native(kernel, runnable_targets()[target]).run([found])
    np.testing.assert_array_equal(found, expected)
    found[:] = 0
    interpret(kernel, [found], {})
    np.testing.assert_array_equal(found, expected)
