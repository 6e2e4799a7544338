"""max and min of 0 and -0: the first operand, however the numbers come."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import semel
from semel import Tensor

ZEROS = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
FIRST, SECOND = (
    np.array(v, np.float32) for v in zip(*itertools.product(ZEROS, ZEROS), strict=True)
)


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("ways", list(itertools.product(["input", "number", "constant"], repeat=2)))
def test_equal_zeros_give_the_first(op: str, fusion: bool, ways: tuple[str, str]) -> None:
    for a, b in zip(FIRST, SECOND, strict=True):
        given, operands = {}, []
        for name, value, way in zip("ab", (a, b), ways, strict=True):
            data = np.full(5, value, np.float32)
            if way == "input":
                given[name] = data
                operands.append(Tensor.input(name, (5,)))
            else:
                operands.append(Tensor(data) if way == "constant" else Tensor(value).expand((5,)))
        plan = semel.prepare(getattr(operands[0], op)(operands[1]), fusion=fusion, threads=1)
        is_second = b != b or (b > a if op == "maximum" else b < a)
        wanted = np.full(5, b if is_second else a, np.float32)
        found = plan(**given)
        np.testing.assert_array_equal(found, wanted)
        assert (np.signbit(found) == np.signbit(wanted)).all() or np.isnan(wanted).all(), (a, b)
