"""Concatenations cut at their boundaries: every element is stored, whatever surrounds them."""

from __future__ import annotations

import numpy as np
import pytest

import semel
from semel import Tensor, Variable

A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = -np.arange(8, dtype=np.float32).reshape(2, 4)
JOINED = np.concatenate([A, B])
AFTER, AROUND = ((0, 1), (0, 0)), ((2, 1), (1, 1))


def parts() -> Tensor:
    a = Tensor.input("a", (3, 4), "float32")
    b = Tensor.input("b", (2, 4), "float32")
    return semel.concat([a, b], 0)


@pytest.mark.parametrize("fusion", [True, False])
def test_what_surrounds_a_concatenation_may_be_longer_or_shorter(fusion: bool) -> None:
    cases = {
        "alone": (parts(), JOINED),
        "padded": (parts().pad(AFTER, 3), np.pad(JOINED, AFTER, constant_values=3)),
        "padded before": (parts().pad(AROUND, 3), np.pad(JOINED, AROUND, constant_values=3)),
        "sliced": (parts()[:4] + 1, JOINED[:4] + 1),
        "sliced inside": (parts()[1:4], JOINED[1:4]),
        "flipped": (parts().flip(0) * 2, JOINED[::-1] * 2),
        "transposed": (parts().T.relu(), np.maximum(JOINED.T, 0)),
        "joined again": (semel.concat([parts(), parts()], 1), np.concatenate([JOINED, JOINED], 1)),
    }  # fmt: skip
    for name, (tensor, expected) in cases.items():
        with semel.config.override(debug=frozenset({"poison"})):
            got = tensor.prepare(fusion=fusion)(a=A, b=B)
        np.testing.assert_array_equal(got, expected, err_msg=name)


def test_parts_of_variable_size() -> None:
    n = Variable("n", 0, 9)
    x = Tensor.input("x", (n, 3), "float32")
    plan = semel.concat([x, x * 2, x[:0]], 0).prepare()
    for size in (0, 1, 4, 9):
        data = np.full((size, 3), 2.0, np.float32)
        np.testing.assert_array_equal(plan(x=data), np.concatenate([data, data * 2]))
