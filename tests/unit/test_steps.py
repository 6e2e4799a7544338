"""Rounded floats as small integers: the same numbers, without a division where none is needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.lowering import lower_graph

from semel import Tensor
from semel.kernel.math import steps
from semel.kernel.text import format_kernel

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, -1e-45, 2.0**31, -(2.0**31)]
#: A scale of each kind: with an inverse of one and of two floats, odd, tiny, huge.
SCALES = [1.0, 0.25, 0.03, 0.1, 1 / 127, 7.0, 2.0**-40, 1.7e-13, 3.1e12]


def beside_steps(scale: np.float32, low: int, high: int) -> np.ndarray:
    """The floats around every place where a step begins, and what lies far from all of them."""
    begins = (np.arange(low - 3, high + 3) + 0.5).astype(np.float64) * float(scale)
    around = np.arange(-6, 7, dtype=np.int32)
    near = (begins.astype(np.float32).view(np.int32)[:, None] + around).view(np.float32).ravel()
    rng = np.random.default_rng(1)
    anywhere = rng.integers(-(1 << 31), (1 << 31) - 1, 5000).astype(np.int32).view(np.float32)
    return np.concatenate([near, anywhere, np.array(SPECIAL, np.float32)])


def as_written(x: np.ndarray, scale: np.float32, zero: int, dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        steps = np.rint(x / scale) + np.float32(zero)
        return np.nan_to_num(np.clip(steps, info.min, info.max), nan=0).astype(dtype)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("dtype", "zero"),
    [("uint8", 0), ("uint8", 128), ("uint8", 255), ("uint8", 77), ("int8", 0), ("int8", -11),
     ("uint16", 1000), ("int16", 0)],
)  # fmt: skip
def test_every_step_begins_where_it_did(scale: float, dtype: str, zero: int) -> None:
    divisor, info = np.float32(scale), np.iinfo(dtype)
    x = beside_steps(divisor, info.min - zero, info.max - zero)
    y = Tensor.input("x", x.shape).quantize_linear(divisor, np.dtype(dtype).type(zero))
    np.testing.assert_array_equal(y.prepare()(x=x), as_written(x, divisor, zero, dtype))


@given(st.floats(2.0**-55, 2.0**55, width=32), st.integers(0, 255))
@settings(max_examples=15, deadline=None)
def test_any_scale(scale: float, zero: int) -> None:
    divisor = np.float32(scale)
    x = beside_steps(divisor, -zero, 255 - zero)
    y = Tensor.input("x", x.shape).quantize_linear(divisor, np.uint8(zero))
    np.testing.assert_array_equal(y.prepare()(x=x), as_written(x, divisor, zero, "uint8"))


def kernel_text(scale: float) -> str:
    y = Tensor.input("x", (64,)).quantize_linear(np.float32(scale), np.uint8(128))
    _, (lowered,) = lower_graph([y])
    return format_kernel(lowered.kernel)


def test_a_constant_scale_is_not_divided_by() -> None:
    for scale in (0.03, 0.1, 0.25):
        text = kernel_text(scale)
        assert "div" not in text and "rint" not in text


def test_it_is_where_a_step_would_begin_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiplication alone finds other steps than the division, which then stays."""
    divisor = float(np.float32(0.03))
    inverse = steps._inverse(divisor, -128, 127)
    assert inverse is not None
    assert steps.finds_every_step(divisor, *inverse, -128, 127)
    assert not steps.finds_every_step(divisor, inverse[0], 0.0, -128, 127)
    monkeypatch.setattr(steps, "_inverse", lambda *_: None)
    assert "div" in kernel_text(0.03)
