"""Norms: what is refused is refused in the name of who was called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel import GraphError, Tensor

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 4, 3)
WRONG = np.ones(5, np.float32)


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (
            lambda x: x.layer_norm(WRONG),
            r"layer_norm\] weight must broadcast with \[2,4,3\], got f32",
        ),
        (lambda x: x.layer_norm(None, WRONG), r"layer_norm\] bias must broadcast"),
        (lambda x: x.rms_norm(WRONG), r"rms_norm\] weight must broadcast with"),
        (lambda x: x.group_norm(2, WRONG), r"group_norm\] weight must broadcast with"),
        (lambda x: x.instance_norm(None, WRONG), r"instance_norm\] bias must broadcast with"),
        (lambda x: x.batch_norm(WRONG, 1.0), r"batch_norm\] mean must broadcast with \[4\], got"),
        (lambda x: x.batch_norm(0.0, WRONG), r"batch_norm\] variance must broadcast with"),
        (lambda x: x.batch_norm(0.0, 1.0, WRONG), r"batch_norm\] weight must broadcast with"),
        (lambda x: x.batch_norm(0.0, 1.0, None, WRONG), r"batch_norm\] bias must broadcast with"),
    ],
)
def test_a_wrong_shape_is_named(norm: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        norm(Tensor(X))


def test_numbers_keep_the_dtype() -> None:
    x = Tensor(X.astype(np.float64))
    got = x.layer_norm(2.0, 1.0)
    assert got.dtype == "float64"
    mean, var = X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
    np.testing.assert_allclose(got.numpy(), (X - mean) / np.sqrt(var + 1e-5) * 2 + 1, rtol=1e-4)
