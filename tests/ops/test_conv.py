"""Convolutions and pools at random, at symbolic sizes, and in as few kernels as they need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops.windows_reference import np_conv, np_conv_transpose, np_pool

import semel
from semel import Tensor, Variable
from semel.ir.graph import Graph
from semel.plan.plan import ExecutionPlan

try:
    torch: Any = import_module("torch")
except ImportError:
    torch = None


def close(got: np.ndarray, want: np.ndarray, depth: int = 64) -> None:
    """Within the rounding of a sum of `depth` products."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=4e-7 * depth)


def data(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@st.composite
def convolutions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of x and weight, and options, such that a window fits."""
    count = draw(st.integers(1, 3))

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    depth = draw(st.sampled_from([1, 2, 5, 16]))
    outputs = groups * draw(st.sampled_from([1, 2, 7, 33]))
    kernel, dilation, stride = numbers(1, 3), numbers(1, 2), numbers(1, 3)
    before, after = numbers(0, 2), numbers(0, 2)
    space = tuple(
        max((k - 1) * d + 1 - b - a, 1) + draw(st.integers(0, 4))
        for k, d, b, a in zip(kernel, dilation, before, after, strict=True)
    )
    padding = tuple(zip(before, after, strict=True))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    batch = draw(st.integers(1, 2))
    return (batch, groups * depth, *space), (outputs, depth, *kernel), options


RARELY = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]


def on_every_plan(x: np.ndarray, build: Any) -> np.ndarray:
    """The result of one plan; two threads and a plan for all sizes give the same bits."""
    got = np.asarray(build(Tensor.input("x", x.shape)).prepare(threads=1)(x=x))
    sizes = [Variable(f"s{i}", 1, 64) for i in range(x.ndim - 2)]
    shapes: list[Any] = [x.shape, (Variable("n", 1, 4), x.shape[1], *sizes)]
    for shape in shapes:
        again = build(Tensor.input("x", shape)).prepare(threads=2)(x=x)
        if shape is x.shape or min(x.shape) > 1:  # a size fixed at 1 is no axis
            np.testing.assert_array_equal(again, got)
        else:
            np.testing.assert_allclose(again, got, rtol=1e-5, atol=1e-4)
    return got


def torch_says(name: str, *arrays: np.ndarray, **options: Any) -> np.ndarray | None:
    """What PyTorch computes, where it is installed and knows such padding."""
    padding = options["padding"]
    if torch is None or any(before != after for before, after in padding):
        return None
    options = {**options, "padding": tuple(before for before, _ in padding)}
    function = getattr(torch.nn.functional, name)
    return np.asarray(function(*(torch.from_numpy(a) for a in arrays), **options).numpy())


@RARELY
@given(convolutions())
def test_any_convolution_is_numpys_and_torchs(case: Case) -> None:
    x_shape, w_shape, options = case
    x, w, b = data(1, *x_shape), data(2, *w_shape), data(3, w_shape[0])
    got = on_every_plan(x, lambda t: t.conv(w, b, **options).relu())
    wide = [a.astype(np.float64) for a in (x, w, b)]
    want = np_conv(wide[0], wide[1], wide[2], **options)
    depth = int(np.prod(w_shape[1:]))
    close(got, np.maximum(want, 0), depth)
    peer = torch_says(f"conv{x.ndim - 2}d", x, w, b, **options)
    if peer is not None:
        close(got, np.maximum(peer, 0), 2 * depth)


@RARELY
@given(convolutions())
def test_any_transposed_convolution_is_numpys_and_torchs(case: Case) -> None:
    (batch, _, *space), (outputs, depth, *kernel), options = case
    groups = options["groups"]
    grown = [n + 4 for n in space]  # a padding never takes all of the result
    x, w = data(1, batch, outputs, *grown), data(2, outputs, depth, *kernel)
    got = on_every_plan(x, lambda t: t.conv_transpose(w, **options))
    want = np_conv_transpose(x.astype(np.float64), w.astype(np.float64), **options)
    length = outputs // groups * int(np.prod(kernel))
    close(got, want, length)
    peer = torch_says(f"conv_transpose{x.ndim - 2}d", x, w, **options)
    if peer is not None:
        close(got, peer, 2 * length)


@pytest.mark.parametrize("size, stride", [(4, 2), (3, 2), (5, 3), (8, 4)])
def test_a_transposed_convolution_multiplies_no_zeros(size: int, stride: int) -> None:
    x = Tensor.input("x", (1, 16, 40, 40))
    y = x.conv_transpose(Tensor(data(1, 16, 8, size, size)), stride=stride, padding=1)
    (product,) = (n for n in Graph((y.node,)).nodes if n.op.name == "matmul")
    *places, outputs = (int(d) for d in product.type.shape if isinstance(d, int))
    depth = product.inputs[0].type.shape[-1]
    taps = -(-size // stride)
    assert (outputs, depth) == (8 * stride**2, 16 * taps**2)
    assert np.prod(places) <= 42**2, "a place for each element of x, and the edges"


def test_torch_takes_part() -> None:
    pytest.importorskip("torch", reason="torch is not installed: compared with NumPy only")


N, H, W = Variable("n", 0, 4), Variable("h", 3, 20), Variable("w", 3, 20)
SYMBOLIC: list[tuple[str, Any, Any]] = [
    ("plain", lambda x, w: x.conv(w, padding=1), lambda x, w: np_conv(x, w, padding=1)),
    ("strided", lambda x, w: x.conv(w, stride=2, padding=1),
     lambda x, w: np_conv(x, w, stride=2, padding=1)),
    ("same", lambda x, w: x.conv(w, stride=2, padding="same"),
     lambda x, w: np_conv(x, w, stride=2, padding="same")),
    ("pointwise", lambda x, w: x.conv(w[:, :, :1, :1], stride=2),
     lambda x, w: np_conv(x, w[:, :, :1, :1], stride=2)),
    ("depthwise", lambda x, w: x.conv(w[:4, :1], groups=4),
     lambda x, w: np_conv(x, w[:4, :1], groups=4)),
    ("groups", lambda x, w: x.conv(w[:, :2], groups=2),
     lambda x, w: np_conv(x, w[:, :2], groups=2)),
    ("transposed", lambda x, w: x.conv_transpose(w[:4], stride=2, padding=1),
     lambda x, w: np_conv_transpose(x, w[:4], stride=2, padding=1)),
    ("scattered", lambda x, w: x.conv_transpose(w[:4, :, :2, :2], stride=2),
     lambda x, w: np_conv_transpose(x, w[:4, :, :2, :2], stride=2)),
    ("max_pool", lambda x, w: x.max_pool(3, 2, 1), lambda x, w: np_pool("max", x, 3, 2, 1)),
    ("max_pool_ceil", lambda x, w: x.max_pool(3, 2, 0, ceil_mode=True),
     lambda x, w: np_pool("max", x, 3, 2, 0, ceil_mode=True)),
    ("avg_pool", lambda x, w: x.avg_pool(3, 2, 1, count_include_pad=False),
     lambda x, w: np_pool("avg", x, 3, 2, 1, count_include_pad=False)),
    ("avg_pool_ceil", lambda x, w: x.avg_pool(2, 2, 0, ceil_mode=True),
     lambda x, w: np_pool("avg", x, 2, 2, 0, ceil_mode=True)),
    ("two_layers",
     lambda x, w: x.conv(w, padding=1).relu()[:, :4].conv(w, stride=2).global_avg_pool(),
     lambda x, w: np_conv(np.maximum(np_conv(x, w, padding=1), 0)[:, :4], w, stride=2)
     .mean((2, 3), keepdims=True)),
]  # fmt: skip


@pytest.mark.parametrize("row", SYMBOLIC, ids=lambda row: row[0])
def test_one_plan_serves_every_batch_and_image_size(row: tuple[str, Any, Any]) -> None:
    _, run, reference = row
    w = data(2, 6, 4, 3, 3)
    plan = run(Tensor.input("x", (N, 4, H, W)), Tensor(w)).prepare()
    for shape in ((2, 4, 5, 7), (1, 4, 20, 3), (1, 4, 8, 8)):
        x = data(1, *shape)
        close(plan(x=x), reference(x.astype(np.float64), w.astype(np.float64)), 100)
    assert plan.compile_count == 1


def test_threads_do_not_change_a_bit() -> None:
    x, w = data(1, 2, 16, 21, 21), data(2, 48, 16, 3, 3)
    y = Tensor.input("x", x.shape).conv(w, padding=1).relu().max_pool(2)
    np.testing.assert_array_equal(y.prepare(threads=1)(x=x), y.prepare(threads=2)(x=x))


@pytest.mark.parametrize("width", [7, 13, 28, 49, 56])
def test_a_fixed_width_gives_the_bits_of_a_symbolic_one(width: int) -> None:
    """Rows that blocks divide run in other blocks than those that leave a rest."""
    x, w = data(1, 1, 8, 4, width), data(2, 40, 8, 3, 3)
    plans = [
        Tensor.input("x", (1, 8, 4, size)).conv(w, padding=1).prepare()
        for size in (width, Variable("width", 1, 64))
    ]
    np.testing.assert_array_equal(plans[0](x=x), plans[1](x=x))


# ---------------------------------------------------------------- kernels


def ops(plan: ExecutionPlan) -> list[str]:
    """The kinds of kernels in order: matmuls, whatever they end with, or what one ends with."""
    computed = [[n.split()[1] for n in op.notes.nodes] for op in plan.prepared_kernels]
    return ["matmul" if "matmul" in ops else ops[-1].split("_")[0] for ops in computed]


def _bottleneck(x: Tensor, seed: int, outputs: int) -> Tensor:
    def norm(y: Tensor, k: int) -> Tensor:
        c = int(y.shape[1])  # type: ignore[arg-type]
        return y.batch_norm(data(k, c), np.abs(data(k + 1, c)) + 1, data(k + 2, c), data(k + 3, c))

    middle, inputs = outputs // 4, int(x.shape[1])  # type: ignore[arg-type]
    y = norm(x.conv(data(seed, middle, inputs, 1, 1) * 0.1), 10).relu()
    y = norm(y.conv(data(seed + 1, middle, middle, 3, 3) * 0.1, padding=1), 20).relu()
    y = norm(y.conv(data(seed + 2, outputs, middle, 1, 1) * 0.1), 30)
    return (y + x).relu()


@pytest.mark.parametrize("batch", [1, 2, Variable("n", 1, 4)], ids=str)
def test_a_bottleneck_is_three_matmuls_and_a_pad(batch: Any) -> None:
    x = Tensor.input("x", (batch, 64, 6, 6))
    y = x.conv(data(1, 160, 64, 1, 1) * 0.1)
    y = _bottleneck(_bottleneck(y, 2, 160), 5, 160).global_avg_pool()
    block = ["matmul", "pad", "matmul", "matmul"]
    names = [name for name in ops(y.prepare()) if name in ("matmul", "pad", "max", "add")]
    assert names == ["matmul", *block, *block]


def test_channels_stay_last_through_a_chain() -> None:
    """What stands between convolutions is never transposed in memory."""
    x = Tensor.input("x", (1, 3, 16, 16))
    y = x.conv(data(1, 40, 3, 3, 3), padding=1).relu().max_pool(2)
    y = Tensor.concat([y.conv(data(2, 40, 40, 3, 3)), y[:, :, 1:-1, 1:-1]], 1).sigmoid()
    y = y.conv(data(3, 8, 80, 1, 1)).mean((2, 3))
    assert "permute" not in ops(y.prepare())


def test_windows_are_read_along_what_lies_side_by_side() -> None:
    """A channels-first image is turned once, not at every tap; a pool alone needs no turning."""
    x = Tensor.input("x", (1, 32, 20, 20))
    y = x
    for seed in (1, 2):
        y = y.conv(data(seed, 32, 1, 3, 3), padding=1, groups=32)
    assert ops(y.prepare()) == ["pad", "reduce", "reduce", "permute"]
    assert len(ops(x.max_pool(3, 2, 1).prepare())) == 1


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_weights_are_moved_while_preparing_not_while_running(groups: int) -> None:
    x = Tensor.input("x", (1, 8, 6, 6))
    plan = x.conv(data(1, 8, 8 // groups, 3, 3), padding=1, groups=groups).mean((2, 3)).prepare()
    written = [op.name for op in plan.prepared_kernels]
    assert len(written) <= 3, written  # pad, product, mean


# ---------------------------------------------------------------- where the largest stand

POOLED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9, 8), {"kernel": 3, "stride": 2, "padding": 1}),
    ((1, 5, 7, 11), {"kernel": (2, 3), "stride": (3, 1), "ceil_mode": True}),
    ((1, 2, 9, 9), {"kernel": 2, "stride": 1, "dilation": 3}),
    ((2, 4, 17), {"kernel": 4, "stride": 3, "padding": 2}),
    ((1, 3, 5, 6, 7), {"kernel": (2, 3, 2), "stride": 2, "padding": 1}),
]


@pytest.mark.parametrize(("shape", "options"), POOLED, ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
def test_the_largest_of_every_window_is_where_its_index_says(
    shape: tuple[int, ...], options: dict[str, Any], symbolic: bool
) -> None:
    # Few values, so that several are the largest and the first one counts.
    x = np.random.default_rng(4).integers(-3, 4, shape).astype(np.float32)
    sizes = [Variable(f"s{i}", 1, 32) for i in range(len(shape) - 2)]
    t = Tensor.input("x", (*shape[:2], *sizes) if symbolic else shape)
    values, indices = semel.prepare(list(t.max_pool_with_indices(**options)))(x=x)
    want = np_pool("max", x, **options)
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(x.reshape(-1)[indices], want)
    rows = np.arange(shape[0] * shape[1]).reshape(*shape[:2], *(1,) * (len(shape) - 2))
    np.testing.assert_array_equal(
        indices // int(np.prod(shape[2:])), np.broadcast_to(rows, want.shape)
    )
    assert indices.dtype == np.int64


@pytest.mark.parametrize(("shape", "options"), POOLED, ids=str)
def test_torch_finds_the_largest_at_the_same_places(
    shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    x = np.random.default_rng(5).integers(-3, 4, shape).astype(np.float32)
    pool = getattr(torch.nn.functional, f"max_pool{len(shape) - 2}d")
    given = {"kernel_size" if k == "kernel" else k: v for k, v in options.items()}
    want = pool(torch.from_numpy(x), return_indices=True, **given)
    values, indices = (t.numpy() for t in Tensor(x).max_pool_with_indices(**options))
    np.testing.assert_array_equal(values, want[0].numpy())
    # PyTorch counts within a channel.
    np.testing.assert_array_equal(indices % int(np.prod(shape[2:])), want[1].numpy())


def test_the_index_of_a_largest_element_is_never_padding() -> None:
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    x[0, 0, 3, 3] = np.nan
    values, indices = Tensor(x).max_pool_with_indices(3, 2, 1)
    np.testing.assert_array_equal(indices.numpy()[0, 0], [[0, 1], [4, 15]])
    np.testing.assert_array_equal(np.isnan(values.numpy()[0, 0]), [[False, False], [False, True]])
    least = np.full((1, 1, 2, 2), -128, np.int8)
    assert Tensor(least).max_pool_with_indices(2, 2, 1)[1].numpy().ravel().tolist() == [0, 1, 2, 3]


def test_torch_agrees() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    x, w, b = data(1, 2, 6, 9, 8), data(2, 12, 3, 3, 3), data(3, 12)
    options: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
    tensors = [torch.from_numpy(a) for a in (x, w, b)]
    close(Tensor(x).conv2d(w, b, **options).numpy(), torch.conv2d(*tensors, **options).numpy())
    wt = data(4, 6, 4, 3, 3)
    options = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 3}
    want = torch.conv_transpose2d(tensors[0], torch.from_numpy(wt), **options).numpy()
    close(Tensor(x).conv_transpose(wt, **options).numpy(), want)
    want = torch.nn.functional.avg_pool2d(tensors[0], 3, 2, 1, True, False).numpy()
    close(Tensor(x).avg_pool(3, 2, 1, 1, True, False).numpy(), want)
