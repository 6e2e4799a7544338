"""A rest of one element is stored alone: its neighbour keeps its value."""

from __future__ import annotations

import numpy as np
import pytest

import semel
from semel import Tensor


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "int8", "uint16", "float32"])
@pytest.mark.parametrize("columns", [1, 15, 17, 33, 65])
def test_the_element_behind_the_rest_is_not_overwritten(dtype: str, columns: int) -> None:
    """The parts of a row are stored one after the other, the long one last."""
    a = Tensor.input("a", (19, 2), "int32")
    b = Tensor.input("b", (19, columns), "int32")
    plan = semel.concat([a.cast(dtype), b.cast(dtype)], 1).prepare(threads=1)
    rng = np.random.default_rng(columns)
    arrays = {
        n: rng.integers(1, 7, (19, c)).astype(np.int32) for n, c in (("a", 2), ("b", columns))
    }
    expected = np.concatenate([arrays["a"], arrays["b"]], 1)
    got = plan(**arrays).astype(np.int32)
    np.testing.assert_array_equal(got, expected.astype(bool) if dtype == "bool" else expected)
