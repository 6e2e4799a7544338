"""Windows along the places of a row: staged once, padded, in bands that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph
from tests.ops.windows_reference import np_conv, np_pool

from semel import Tensor, Variable
from semel.ir.expr import Dim, Index, evaluate
from semel.ir.target import named_target
from semel.kernel import ir
from semel.kernel.ir import Kernel, Loop, statement_values, walk_statements, walk_values
from semel.lower.lowered import Names
from semel.lower.planes import BAND_BYTES, SCRATCH_BYTES, find_planes

Net = Callable[[Tensor], Tensor]


def data(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def depthwise(side: int, stride: int, padding: int) -> Net:
    weight = Tensor(data(1, 6, 1, side, side))
    return lambda x: x.conv2d(weight, stride=stride, padding=padding, groups=6)


NETS: dict[str, Net] = {
    "depthwise": depthwise(3, 1, 1),
    "depthwise of stride 2": depthwise(3, 2, 1),
    "depthwise 5x5": depthwise(5, 1, 2),
    "depthwise 7x7": depthwise(7, 3, 3),
    "max pool": lambda x: x.max_pool(3, 2, 1),
    "average pool": lambda x: x.avg_pool(3, 1, 1),
    "of an activation": lambda x: depthwise(3, 2, 1)(x.hardswish()).relu(),
}


def kernel_of(y: Tensor, target: str = "x86-64-v3") -> Kernel:
    _, lowered = lower_graph([y], named_target(target))
    return lowered[-1].kernel


def image(height: Dim = 32, width: Dim = 40) -> Tensor:
    return Tensor.input("x", (2, 6, height, width))


def read_in(loop: Loop) -> set[str]:
    """The buffers that a loop loads from, by how they are used: r, w, s."""
    values = [v for s in walk_statements(loop.body) for v in statement_values(s)]
    return {v.data[0].access for v in walk_values(values) if v.op == "load"}


@pytest.mark.parametrize("name", NETS)
def test_no_tap_is_tested_or_picked_lane_by_lane(name: str) -> None:
    kernel = kernel_of(NETS[name](image()))
    assert kernel.scratch
    summing = [
        s
        for s in walk_statements(kernel.body)
        if isinstance(s, Loop) and s.lanes > 1 and "s" in read_in(s)
    ]
    assert summing
    for loop in summing:
        values = [v for s in walk_statements(loop.body) for v in statement_values(s)]
        loads = [v for v in walk_values(values) if v.op == "load"]
        assert not any(v.args for v in loads), "a tap is loaded under a condition"
        assert not any(
            v.op in ir.COMPARISONS and v.args[0].op == "index" for v in walk_values(values)
        )


def test_what_comes_before_windows_is_computed_once_an_element() -> None:
    kernel = kernel_of(NETS["of an activation"](image()))
    stores = [s for s in walk_statements(kernel.body) if isinstance(s, ir.Store)]
    into_result = [s for s in stores if s.buffer.access != "s"]
    assert len(into_result) < len(stores)
    for loop in (s for s in walk_statements(kernel.body) if isinstance(s, Loop)):
        inner = list(walk_statements(loop.body))
        if loop.lanes > 1 and any(isinstance(s, ir.Reduce) for s in inner):
            dividing = [v for s in inner for v in walk_values(statement_values(s)) if v.op == "div"]
            assert not dividing


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("width", [40, 3000, Variable("w", 8, None)])
def test_a_band_has_a_size_that_the_cache_holds(name: str, width: Dim) -> None:
    kernel = kernel_of(NETS[name](image(Variable("h", 8, None), width)))
    (scratch,) = kernel.scratch
    assert isinstance(scratch.size, int)
    assert scratch.size * 4 <= SCRATCH_BYTES


@pytest.mark.parametrize(("side", "stride"), [(3, 1), (3, 2), (5, 1), (5, 3), (7, 2), (7, 4)])
@pytest.mark.parametrize("width", [1, 7, 33, 120, 5000])
def test_rows_of_any_length_fill_a_band(side: int, stride: int, width: int) -> None:
    variable = Variable("w", 1, None)
    y, x = Index("y", Variable("h", 1, None)), Index("x", variable)
    dy, dx = Index("dy", side), Index("dx", side)
    node = (image(Variable("a", 1, None), Variable("b", 1, None)) + 1).node
    asked = (Index("n", 2), Index("c", 6), stride * y + dy, stride * x + dx)
    planes = find_planes(node, asked, [y, x], [dy, dx], node.inputs, Names())
    assert planes is not None
    rows, pitch = evaluate(planes.rows, {variable: width}), planes.pitch
    assert rows % 4 == 0
    lines, columns = (rows - 1) * stride + side, min(width, planes.columns)
    # Four rows at least, whatever they take.
    assert rows == 4 or lines * stride * (columns + side // stride) * 4 <= BAND_BYTES * 5 // 4
    assert lines * stride * pitch <= evaluate(planes.scratch.size, {})


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("shape", [(8, 8), (9, 31), (32, 40), (7, 1500), (60, 16)])
def test_any_size_gives_the_bits_of_fixed_sizes_and_of_channels_last(
    name: str, shape: tuple[int, int]
) -> None:
    x = data(2, 2, 6, *shape)
    fixed = NETS[name](image(*shape)).prepare(threads=1)(x=x)
    symbolic = NETS[name](image(Variable("h", 1, None), Variable("w", 1, None))).prepare(threads=2)
    np.testing.assert_array_equal(symbolic(x=x), fixed)
    last = Tensor.input("x", (2, *shape, 6)).permute(0, 3, 1, 2)
    turned = NETS[name](last).permute(0, 2, 3, 1).prepare(threads=1)
    got = turned(x=np.ascontiguousarray(x.transpose(0, 2, 3, 1)))
    np.testing.assert_array_equal(got.transpose(0, 3, 1, 2), fixed)


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("padding", [0, 2])
def test_strides_dilations_and_one_axis(stride: int, dilation: int, padding: int) -> None:
    for space in [(37,), (17, 29)]:
        x, w = data(3, 2, 6, *space), data(4, 6, 1, *[4] * len(space))
        options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
        options["groups"] = 6
        got = Tensor.input("x", x.shape).conv(w, **options).prepare(threads=2)(x=x)
        want = np_conv(x.astype(np.float64), w.astype(np.float64), **options)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int32"])
def test_pools_of_other_dtypes(dtype: str) -> None:
    x = (data(5, 2, 6, 19, 23) * 50).astype(np.int8).astype(dtype)
    got = Tensor.input("x", x.shape, dtype).max_pool(3, 2, 1).prepare()(x=x)
    np.testing.assert_array_equal(got, np_pool("max", x, 3, 2, 1))


def test_only_what_windows_ask_for_is_looked_for_in_the_band() -> None:
    node = (image() + 1).node
    y, x = Index("y", 16), Index("x", 20)
    dy, dx = Index("dy", 3), Index("dx", 3)
    asked = (Index("n", 2), Index("c", 6), 2 * y + dy, 2 * x + dx)
    planes = find_planes(node, asked, [y, x], [dy, dx], node.inputs, Names())
    assert planes is not None
    assert planes.element(node, asked) is not None
    assert planes.element(node, (*asked[:2], y, x)) is None
    assert planes.element(node.inputs[0], asked) is None


def test_few_taps_are_read_where_they_are() -> None:
    """Windows that read an element once have nothing to gain."""
    assert not kernel_of(image().max_pool(2)).scratch
    assert not kernel_of(image().avg_pool(3, 1)).scratch  # no padding, no stride
