"""The places of extremes: one comparison a step; ties, NaN and infinities as in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from semel import Tensor, prepare
from semel.codegen.emit import emit_kernel
from semel.ir.target import named_target
from semel.lower import lower_schedule
from semel.passes import run_passes
from semel.schedule.groups import build_schedule
from semel.tensor.realize import build_graph


@pytest.mark.parametrize("axis", [0, 1])
def test_places_are_as_wide_as_the_values(axis: int) -> None:
    """Of equals the first stays: a step asks neither for ties nor for places of 64 bits."""
    target = named_target("x86-64-v3")
    y = Tensor.input("x", (512, 512)).argmax(axis)
    (lowered,) = lower_schedule(build_schedule(run_passes(build_graph(y))), target)
    text = emit_kernel(lowered.kernel, target, "places")
    lanes = max(
        int(line.split("<")[1].split(" ")[0]) for line in text.splitlines() if "ugt <" in line
    )
    steps = [line for line in text.splitlines() if f"<{lanes} x" in line]
    assert sum("ugt" in line for line in steps) == 1
    assert not any("oeq" in line or "icmp s" in line for line in steps)
    assert not any("add" in line and "i64" in line for line in steps)


ROWS = {
    "ties": [1, 3, 3, 2, 3],
    "all are equal": [2] * 5,
    "the least there is": [-np.inf] * 5,
    "the greatest": [np.inf, np.inf, 0, np.inf, 0],
    "a NaN": [1, np.nan, 5, np.nan, 2],
    "a NaN behind infinities": [np.inf, -np.inf, np.inf, np.nan, np.inf],
    "only NaN": [np.nan] * 5,
    "zeros of both signs": [-0.0, 0.0, -0.0, 0.0, -0.0],
}


def test_what_wins_and_where() -> None:
    """Rows as they are and repeated to several vectors with a rest, along both axes."""
    rows = np.array(list(ROWS.values()), np.float32)
    for times, dtype in ((1, np.float32), (41, np.float32), (41, np.float64), (41, np.float16)):
        data = np.tile(rows, (1, times)).astype(dtype)
        x = Tensor.input("x", data.shape, data.dtype)
        y = Tensor.input("y", data.T.shape, data.dtype)
        plan = prepare([x.argmax(1), x.argmin(1), y.argmax(0), y.argmin(0)])
        for found, exact in zip(
            plan(x=data, y=data.T.copy()), [data.argmax(1), data.argmin(1)] * 2, strict=True
        ):
            np.testing.assert_array_equal(found, exact)


def test_integers_at_their_ends() -> None:
    for dtype in (np.int8, np.uint8, np.int32, np.int64, np.uint64):
        info = np.iinfo(dtype)
        data = np.full((3, 150), info.min, dtype)
        data[1, 77:] = info.max
        data[2] = info.max
        x = Tensor.input("x", data.shape, data.dtype)
        for threads in (1, 2):
            high, low = prepare([x.argmax(1), x.argmin(1)], threads=threads)(x=data)
            np.testing.assert_array_equal(high, data.argmax(1))
            np.testing.assert_array_equal(low, data.argmin(1))
