"""cross_entropy: classes, classes to ignore, and what is no class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel import GraphError, IndexRangeError, Tensor

LOGITS = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


def losses(target: Any, ignored: int = -100) -> np.ndarray:
    """The loss of each row in float64, 0 where its class is ignored."""
    wide = LOGITS.astype(np.float64)
    logs = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return np.array([0 if c == ignored else -row[c] for row, c in zip(logs, target, strict=True)])


def cross_entropy(target: np.ndarray, **options: Any) -> np.ndarray:
    x, t = Tensor.input("x", LOGITS.shape), Tensor.input("t", target.shape, target.dtype)
    result: np.ndarray = x.cross_entropy(t, **options).prepare()(x=LOGITS, t=target)
    return result


@pytest.mark.parametrize(("ignored", "dtype"), [(-100, "int64"), (-1, "int8"), (2, "uint8")])
def test_ignored_classes_give_zero_and_do_not_count(ignored: int, dtype: str) -> None:
    target = np.array([0, ignored, 4, 3, ignored, 1]).astype(dtype)
    want = losses(target, ignored)
    options = {} if ignored == -100 else {"ignore_index": ignored}
    got = cross_entropy(target, reduction="none", **options)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert got[1] == got[4] == 0
    total = cross_entropy(target, reduction="sum", **options)
    np.testing.assert_allclose(total, want.sum(), rtol=1e-5)
    np.testing.assert_allclose(cross_entropy(target, **options), want.sum() / 4, rtol=1e-5)


def test_the_mean_over_no_class_is_nan() -> None:
    target = np.full(6, -100)
    assert np.isnan(cross_entropy(target))
    assert cross_entropy(target, reduction="sum") == 0


@pytest.mark.parametrize("bad", [-1, -5, 5, -99])
def test_what_is_no_class_is_reported(bad: int) -> None:
    target = np.array([0, 1, 2, bad, 4, 0])
    place = rf"\[cross_entropy\] class must lie in \[0, 5\), got {bad} \(.*test_losses.py:"
    with pytest.raises(IndexRangeError, match=place):
        cross_entropy(target)


def test_classes_along_another_axis() -> None:
    logits = Tensor.input("x", (5, 6))
    target = np.array([0, 1, 2, 3, 4, 0])
    got = logits.cross_entropy(target, axis=0, reduction="none").prepare()(x=LOGITS.T.copy())
    np.testing.assert_allclose(got, losses(target), rtol=1e-5)


def test_targets_have_one_class_per_row() -> None:
    x = Tensor.input("x", (6, 5))
    with pytest.raises(GraphError, match=r"target must have shape \[6\], got i64\[6,5\]"):
        x.cross_entropy(np.zeros((6, 5), np.int64))
    with pytest.raises(GraphError, match="every class must be an integer"):
        x.cross_entropy(np.zeros(6, np.float32))
