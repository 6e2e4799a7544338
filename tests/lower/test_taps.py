"""Taps that meet nothing but padding are left out, and no number changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.windows_reference import np_conv

from semel import Tensor, Variable
from semel.devices import choose_target
from semel.ir.expr import Index
from semel.ir.graph import Graph
from semel.lower.contract import _Lowering
from semel.lower.taps import Taps
from semel.passes import run_passes
from semel.schedule.groups import build_schedule

RNG = np.random.default_rng(12)


def whole(*shape: int) -> np.ndarray[Any, Any]:
    """Small integers, whose sums of products are exact in any order."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def check(plan: Any, x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], **options: Any) -> None:
    wanted = np_conv(x.astype(np.float64), w.astype(np.float64), **options)
    np.testing.assert_array_equal(plan(x=x), wanted)


PADS: list[Any] = [1, 2, [(2, 0), (1, 1)], [(0, 2), (0, 1)], [(3, 3), (1, 1)]]


@pytest.mark.parametrize("padding", PADS, ids=str)
@pytest.mark.parametrize("stride", [1, 2, (1, 2)], ids=str)
@pytest.mark.parametrize("dilation", [1, (2, 1)], ids=str)
def test_edges_of_images_of_any_size(padding: Any, stride: Any, dilation: Any) -> None:
    n, h, w = (Variable(name, 1, 12) for name in "nhw")
    filters = whole(20, 48, 3, 3)
    options = {"padding": padding, "stride": stride, "dilation": dilation}
    x = Tensor.input("x", (n, 48, h, w))
    plan = x.conv2d(Tensor(filters), **options).prepare(threads=1)
    least = 3 if dilation == 1 else 5
    for shape in [(1, 7, 7), (2, 5, 3), (3, 4, 6), (1, 12, 12), (2, 3, 1), (4, 2, 2), (1, 1, 9)]:
        pads = padding if isinstance(padding, list) else [(padding, padding)] * 2
        if shape[1] + sum(pads[0]) < least or shape[2] + sum(pads[1]) < 3:
            continue
        check(plan, whole(shape[0], 48, *shape[1:]), filters, **options)


@pytest.mark.parametrize("shape", [(1, 256, 14, 14), (2, 256, 7, 5), (3, 320, 2, 2)], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_deep_sums_leave_out_whole_parts(shape: tuple[int, ...], threads: int) -> None:
    filters = whole(96, shape[1], 3, 3)
    x = Tensor.input("x", shape)
    plan = x.conv2d(Tensor(filters), padding=1).relu().prepare(threads=threads)
    data = whole(*shape)
    wanted = np_conv(data.astype(np.float64), filters.astype(np.float64), padding=1)
    np.testing.assert_array_equal(plan(x=data), np.maximum(wanted, 0))


def test_sums_have_the_bits_of_those_over_all_taps() -> None:
    filters = RNG.standard_normal((32, 64, 3, 3)).astype(np.float32)
    data = RNG.standard_normal((2, 64, 9, 8)).astype(np.float32)
    x = Tensor.input("x", data.shape)
    padded = x.conv2d(Tensor(filters), padding=1).prepare()(x=data)
    edge = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = Tensor.input("x", edge.shape).conv2d(Tensor(filters)).prepare()(x=edge)
    np.testing.assert_array_equal(padded, y)


def test_what_is_padded_with_other_numbers_is_added() -> None:
    filters, data = whole(8, 48, 3, 3), whole(1, 48, 6, 6)
    x = Tensor.input("x", data.shape)
    padded = x.pad([(0, 0), (0, 0), (1, 1), (1, 1)], 2.0)
    plan = padded.conv2d(Tensor(filters)).prepare()
    edge = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=2)
    check_against = np_conv(edge.astype(np.float64), filters.astype(np.float64))
    np.testing.assert_array_equal(plan(x=data), check_against)


def test_lines_at_the_edges_need_fewer_taps() -> None:
    """Rows of the first line skip the first tap, rows of the last line the last; and no others."""
    row, line = Index("w", 7), Index("h", 7)
    taps = Taps(3, 1, 7, 1, 1, 7, 7)
    assert [taps.needed(base, 7) for base in range(0, 49, 7)] == [
        (1, 3), (0, 3), (0, 3), (0, 3), (0, 3), (0, 3), (0, 2)
    ]  # fmt: skip
    assert taps.needed(5, 4) == (0, 3)  # of the first and the second line
    assert taps.needed(45, 6) == (0, 3)  # of one image's last line, and the next one's first
    assert taps.needed(49 + 0, 6) == (1, 3)
    x = Tensor.input("x", (1, 512, 7, 7))
    y = x.conv2d(Tensor(whole(32, 512, 3, 3)), padding=1)
    (group,) = (g for g in build_schedule(run_passes(Graph((y.node,)))).groups if g.contract)
    found = _Lowering(group, choose_target("cpu", "x86-64-v3")).taps
    assert found == Taps(3, 1, 7, 1, 1, line.extent, row.extent)
