"""Reductions over windows: blocks of places and edges with tests, at every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lowering import lower_graph
from tests.ops.windows_reference import np_conv, np_pool

import semel
from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import host_target
from semel.ir.expr import Dim, atoms, substitute
from semel.ir.graph import Graph
from semel.ir.target import named_target
from semel.kernel import ir
from semel.kernel.ir import statement_values, walk_statements, walk_values
from semel.kernel.text import format_kernel
from semel.lower import lower_schedule
from semel.passes import run_passes
from semel.schedule.groups import build_schedule

RARELY = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def data(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@st.composite
def windows(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """The sizes of space and window, and how the window slides; some have no inside at all."""
    count = draw(st.integers(1, 3))
    largest = (40, 14, 9)[count - 1]

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    kernel, dilation, stride = numbers(1, 5 if count < 3 else 3), numbers(1, 2), numbers(1, 3)
    most = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple((draw(st.integers(0, m)), draw(st.integers(0, m))) for m in most)
    space = tuple(
        max(m + 1 - before - after, 1) + draw(st.integers(0, largest))
        for m, (before, after) in zip(most, padding, strict=True)
    )
    return space, kernel, {"stride": stride, "padding": padding, "dilation": dilation}


@RARELY
@given(windows(), st.sampled_from([1, 3, 16, 21]))
def test_a_depthwise_convolution_at_any_size(case: Any, channels: int) -> None:
    space, kernel, options = case
    x, w = data(1, 2, channels, *space), data(2, channels, 1, *kernel)
    n = Variable("n", 1, 3)
    sizes = [Variable(f"s{i}", 1, 64) for i in range(len(space))]

    def run(shape: Any, threads: int) -> np.ndarray:
        y = Tensor.input("x", shape).conv(w, groups=channels, **options).relu()
        return np.asarray(y.prepare(threads=threads)(x=x))

    got = run(x.shape, 1)
    want = np_conv(x.astype(np.float64), w.astype(np.float64), groups=channels, **options)
    np.testing.assert_allclose(got, np.maximum(want, 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(run(x.shape, 2), got)
    if channels > 1 and min(space) > 1:  # a size fixed at 1 is no axis, and adds in lanes
        np.testing.assert_array_equal(run((n, channels, *sizes), 2), got)


@RARELY
@given(windows(), st.sampled_from(["max", "avg", "lp"]), st.booleans())
def test_a_pool_at_any_size(case: Any, how: str, ceil_mode: bool) -> None:
    space, kernel, options = case
    # More padding than half a window leaves windows with nothing in them.
    pads = tuple(
        tuple(min(p, (k - 1) * d // 2) for p in pair)
        for pair, k, d in zip(options["padding"], kernel, options["dilation"], strict=True)
    )
    grown = tuple(n + k * 2 for n, k in zip(space, kernel, strict=True))
    options = {**options, "padding": pads, "ceil_mode": ceil_mode}
    x = data(3, 2, 5, *grown)
    sizes = [Variable(f"s{i}", 1, 99) for i in range(len(grown))]

    def run(shape: Any, threads: int) -> np.ndarray:
        t = Tensor.input("x", shape)
        y = getattr(t, f"{how}_pool")(kernel, **options)
        return np.asarray(y.prepare(threads=threads)(x=x))

    got = run(x.shape, 1)
    np.testing.assert_allclose(got, np_pool(how, x, kernel, **options), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(run(x.shape, 2), got)
    np.testing.assert_allclose(run((2, 5, *sizes), 1), got, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 6, 7, 9, 20])
def test_an_image_may_be_all_edge(side: int) -> None:
    x, w = data(1, 1, 19, side, side), data(2, 19, 1, 5, 5)
    y = Tensor.input("x", x.shape).conv(w, padding=2, groups=19)
    want = np_conv(x.astype(np.float64), w.astype(np.float64), padding=2, groups=19)
    with semel.config.override(debug=frozenset({"poison"})):
        np.testing.assert_allclose(y.prepare()(x=x), want, rtol=1e-5, atol=1e-5)


def kernel_text(y: Tensor) -> str:
    schedule = build_schedule(run_passes(Graph((y.node,))))
    (lowered,) = lower_schedule(schedule, host_target())
    return format_kernel(lowered.kernel)


def test_nothing_is_tested_in_rows_of_a_known_length() -> None:
    """Four places at a time, of which those at the ends are known to meet padding."""
    x = Tensor.input("x", (1, 9, 9, 32)).permute(0, 3, 1, 2)
    conv = x.conv(data(1, 32, 1, 3, 3), padding=1, groups=32).permute(0, 2, 3, 1)
    pool = x.max_pool(3, 2, 1).permute(0, 2, 3, 1)
    for y in (conv, pool):
        assert " where " not in kernel_text(y)


def test_without_padding_there_is_no_edge() -> None:
    x = Tensor.input("x", (1, 9, 9, 32)).permute(0, 3, 1, 2)
    text = kernel_text(x.avg_pool(3, 1).permute(0, 2, 3, 1))
    assert "where" not in text and "bind" not in text


def test_a_long_line_is_cut_for_threads() -> None:
    x = data(1, 1, 9000, 8)
    y = Tensor.input("x", x.shape).permute(0, 2, 1).max_pool(3, 1, 1).permute(0, 2, 1)
    tiles = int(kernel_text(y).split("tiles i0:")[1].split(" ")[0])
    assert tiles >= 4
    want = np_pool("max", x.transpose(0, 2, 1), 3, 1, 1).transpose(0, 2, 1)
    np.testing.assert_array_equal(y.prepare(threads=2)(x=x), want)


#: size, kernel, stride, padding and dilation of a row
AXES = [
    (9, 3, 1, (1, 1), 1),
    (17, 5, 1, (2, 2), 1),
    (18, 5, 2, (2, 2), 1),
    (20, 3, 3, (2, 2), 2),
    (21, 4, 1, (3, 2), 1),
    (15, 3, 2, (1, 2), 2),
]


@pytest.mark.parametrize("row", AXES)
@pytest.mark.parametrize("column", AXES[:2])
def test_no_tap_outside_is_loaded(row: Any, column: Any) -> None:
    """No tap outside is loaded for its row, and none is tested for that, nor for its place."""
    (height, width), kernel, stride, pads, dilation = zip(column, row, strict=True)
    x = Tensor.input("x", (1, height, width, 32)).permute(0, 3, 1, 2)
    y = x.conv(data(1, 32, 1, *kernel), None, stride, pads, dilation, 32).permute(0, 2, 3, 1)
    _, (lowered,) = lower_graph([y])
    assert " where " not in format_kernel(lowered.kernel)
    binds = [s for s in walk_statements(lowered.kernel.body) if isinstance(s, ir.Bind)]
    size, taps, step, (before, _), apart = column
    for place in range((size + sum(column[3]) - (taps - 1) * apart - 1) // step + 1):
        known: dict[Any, Dim] = {}
        for bind in binds:
            end = bind.value.data
            known[bind.index] = substitute(end, {a: known.get(a, place) for a in atoms(end)})
        first, last = (int(end) for end in known.values())  # type: ignore[arg-type]
        rows = [place * step + t * apart - before for t in range(taps)]
        assert [0 <= r < size for r in rows] == [first <= t < last for t in range(taps)]


@pytest.mark.parametrize("side", [28, Variable("n", 1, 99)])
@pytest.mark.parametrize("channels", [200, 256])
def test_lines_stay_in_the_cache(side: Dim, channels: int) -> None:
    """A tile takes some of many channels, for several rows that look at the same lines."""
    x = Tensor.input("x", (1, side, side, channels)).permute(0, 3, 1, 2)
    y = x.conv(data(1, channels, 1, 5, 5), padding=2, groups=channels).permute(0, 2, 3, 1)
    target = host_target()
    _, (lowered,) = lower_graph([y], target)
    vectors = [s for s in walk_statements(lowered.kernel.body) if isinstance(s, ir.Loop)]
    stripes = [s for s in vectors if s.index.name.startswith("g")]
    assert stripes
    most = max(4, target.l1_bytes // (5 * 28 * 4 * target.lanes(32)))
    for stripe in stripes:
        for tile in range(7):
            first, last = (
                int(substitute(end, {lowered.kernel.tile: tile}))  # type: ignore[arg-type]
                for end in (stripe.start, stripe.stop)
            )
            assert 0 < last - first <= most


@pytest.mark.parametrize("width", [4, 5, 7, 8, 9, 11, 12, 30, 300])
@pytest.mark.parametrize("channels", [40, 200])
def test_stripes_and_ends_are_right_at_any_size(width: int, channels: int) -> None:
    x, w = data(1, 2, 9, width, channels), data(2, channels, 1, 5, 5)
    want = np_conv(
        x.transpose(0, 3, 1, 2).astype(np.float64), w.astype(np.float64), padding=2, groups=channels
    ).transpose(0, 2, 3, 1)

    def run(shape: Any, threads: int) -> np.ndarray:
        y = Tensor.input("x", shape).permute(0, 3, 1, 2).conv(w, padding=2, groups=channels)
        return np.asarray(y.permute(0, 2, 3, 1).prepare(threads=threads)(x=x))

    with semel.config.override(debug=frozenset({"poison"})):
        got = run(x.shape, 1)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(run(x.shape, 2), got)
        sizes = (Variable("h", 1, 64), Variable("w", 1, 512))
        np.testing.assert_array_equal(run((2, *sizes, channels), 2), got)


# ---------------------------------------------------------------- pads


@pytest.mark.parametrize("width", [40, Variable("w", 1, 60)])
def test_a_pad_of_few_channels_asks_nothing_lane_by_lane(width: Dim) -> None:
    """Pixels and channels are one loop, inside the image and in the padding at both ends."""
    x = Tensor.input("x", (1, 9, width, 3))
    _, (lowered,) = lower_graph([x.pad([(0, 0), (1, 1), (2, 1), (0, 0)])])
    loops = [s for s in walk_statements(lowered.kernel.body) if isinstance(s, ir.Loop)]
    vectors = [s for s in loops if s.lanes > 1]
    tests = [
        sum(
            loop.index in atoms(v.data)
            for s in loop.body
            for v in walk_values(statement_values(s))
            if v.op == "index"
        )
        for loop in vectors
    ]
    assert len(vectors) == 3 and not any(tests)


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 2, 31, 64])
def test_pads_of_few_channels_are_right(channels: int, width: int) -> None:
    image = data(1, 2, 3, width, channels)
    rows, columns = Variable("h", 0, 8), Variable("w", 0, 99)
    x = Tensor.input("x", (2, rows, columns, channels))
    widths = [(0, 0), (1, 0), (2, 1), (0, 0)]
    plan = (x.pad(widths, 0.5) * 2 + x.pad([(0, 0), (0, 1), (0, 3), (0, 0)])).prepare()
    other = np.pad(image, [(0, 0), (0, 1), (0, 3), (0, 0)])
    wanted = np.pad(image, widths, constant_values=0.5) * 2 + other
    np.testing.assert_array_equal(plan(x=image), wanted)


# ---------------------------------------------------------------- windows that step


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("window", "stride"), [(2, 2), (3, 3), (4, 4), (3, 2)])
def test_windows_that_step_pick_their_elements(level: str, window: int, stride: int) -> None:
    """Elements two to four apart are picked from whole vectors, none is gathered."""
    x = Tensor.input("x", (1, 8, 4 * stride + window, 64 * stride + window - stride))
    graph = run_passes(Graph((x.max_pool(window, stride).node,)))
    (lowered,) = lower_schedule(build_schedule(graph), named_target(level))
    code = emit_kernel(lowered.kernel, named_target(level), "pool")
    assert "shufflevector" in code and "gather" not in code


def test_a_row_asks_at_its_ends_only() -> None:
    """Vectors along a row of places: padding is asked for before and behind, not inside."""
    x = Tensor.input("x", (1, 8, 112, 112))
    graph = run_passes(Graph((x.max_pool(3, 2, 1).node,)))
    (lowered,) = lower_schedule(build_schedule(graph), host_target())
    bare = [
        s
        for s in walk_statements(lowered.kernel.body)
        if isinstance(s, ir.Loop)
        and s.lanes > 1
        and not any(
            v.args for v in walk_values([w for t in walk_statements(s.body) for w in
                                         statement_values(t)]) if v.op == "load"
        )
    ]  # fmt: skip
    spans = {(loop.start, loop.stop) for loop in bare}
    lanes = host_target().vector_bits // 32
    whole = 1 + 55 // lanes * lanes
    assert {(1, whole), (56 - lanes, 56)} <= spans  # the last vector is a whole one
