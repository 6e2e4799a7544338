"""Rows that real models showed to be slow: orders, loops of their own, odd convolutions.

    name  --SLOW_ROWS-->  Row

Peers get the same numbers in the same order of axes. A loop of its own may take what its body
takes when it is called, step by step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.ops.windows_reference import np_conv

from benchmarks.row import Array, Bar, Inputs, Row, any_row

_AS_BEST = Bar("as the best peer", (("best", "", 1.0),))
#: NumPy's sort is not stable, and none of the others is vectorised.
_SORTED = Bar("2x the best peer", (("best", "", 2.0),))
#: A step of a loop against a call of the same plan.
_STEP = 1.1

# ---------------------------------------------------------------- orders

#: name: shape, dtype
SORTS: dict[str, tuple[tuple[int, ...], str]] = {
    "sort_rows": ((64, 512), "float32"),
    "sort_long_rows": ((16, 4096), "float32"),
    "sort_integers": ((100_000,), "int32"),
    "sort_million": ((1_000_000,), "float32"),
}
#: name: rows, columns, how many of them
TOPKS = {
    "topk_5": (1, 32_000, 5),
    "topk_5_of_rows": (64, 1000, 5),
    "topk_50": (1, 128_256, 50),
}


def _numbers(shape: tuple[int, ...], dtype: str) -> Callable[[np.random.Generator], Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        if dtype == "float32":
            return {"x": rng.standard_normal(shape, dtype=np.float32)}
        return {"x": rng.integers(-(2**20), 2**20, shape).astype(dtype)}

    return make


def _sort_row(name: str) -> Row:
    shape, dtype = SORTS[name]
    title = f"sort [{','.join(map(str, shape))}] {dtype}"
    inputs = _numbers(shape, dtype)
    return _row(name, title, inputs, lambda i: np.sort(i["x"], -1), 0.0, bar=_SORTED)


def _topk_row(name: str) -> Row:
    rows, columns, k = TOPKS[name]

    def best(inputs: Inputs) -> Array:
        return np.asarray(-np.sort(-inputs["x"], -1)[:, :k])

    title = f"the {k} largest of [{rows},{columns}]"
    return _row(name, title, _numbers((rows, columns), "float32"), best, 0.0)


def _row(
    name: str,
    title: str,
    inputs: Callable[[np.random.Generator], Inputs],
    reference: Callable[[Inputs], Array],
    tolerance: float = 1e-5,
    *,
    group: str = "elementwise",
    bar: Bar = _AS_BEST,
) -> Row:
    return Row(name, title, group, inputs, reference, bar, tolerance, statistic="p10")


# ---------------------------------------------------------------- loops

SIDE, STEPS = 256, 50


def _cells(rng: np.random.Generator) -> Inputs:
    return {"x": rng.integers(0, 2, (SIDE, SIDE)).astype(np.uint8)}


def life(x: Array) -> Array:
    """A step of the game of life on a torus."""
    turns = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    around = sum(np.roll(x, turn, (0, 1)).astype(np.uint8) for turn in turns)
    return np.asarray((around == 3) | ((x == 1) & (around == 2)), np.uint8)


def rolls(x: Array) -> Array:
    """Each cell and what lies before it, along both axes."""
    return np.roll(x, 1, 0) + np.roll(x, 1, 1)


def _again(step: Callable[[Array], Array]) -> Callable[[Inputs], Array]:
    def run(inputs: Inputs) -> Array:
        x = inputs["x"]
        for _ in range(STEPS):
            x = step(x)
        return x

    return run


def _loop_rows(name: str, title: str, step: Callable[[Array], Array]) -> tuple[Row, Row]:
    bar = Bar(f"{_STEP}x {STEPS} calls", (("times", name, _STEP * STEPS),))
    alone = _row(name, title, _cells, lambda i: step(i["x"]))
    return alone, _row(f"{name}_loop", f"{title}, {STEPS} times", _cells, _again(step), bar=bar)


# ---------------------------------------------------------------- convolutions and norms

#: The activation between a pointwise and a depthwise convolution, 32 -> 200 channels of 28x28.
ACTIVATIONS = {"expand_relu": "relu", "expand_hardswish": "hardswish"}
NARROW, WIDE, IMAGE = 32, 200, 28
#: Where the channels of a depthwise convolution with a stride of 2 are.
STRIDED = {"depthwise_stride_first": False, "depthwise_stride_last": True}
CHANNELS, PLACES = 96, 56
#: Those with channels first, whose height and width may be any.
OF_ANY_SIZE = (*ACTIVATIONS, "depthwise_stride_first")
#: Groups of a norm as exporters write it, of [1, 64, 56, 56].
GROUPS, NORM_SHAPE, EPSILON = 8, (1, 64, 56, 56), 1e-5


def expand_weights() -> tuple[Array, Array]:
    """Those of the pointwise convolution and of the depthwise one, 5x5."""
    rng = np.random.default_rng(21)
    first = rng.standard_normal((WIDE, NARROW, 1, 1), dtype=np.float32) * np.float32(NARROW**-0.5)
    return first, rng.standard_normal((WIDE, 1, 5, 5), dtype=np.float32) * np.float32(0.2)


def strided_weight() -> Array:
    """3x3."""
    return np.random.default_rng(22).standard_normal((CHANNELS, 1, 3, 3), dtype=np.float32)


def norm_numbers() -> tuple[Array, Array]:
    """Scale and shift of each channel."""
    rng = np.random.default_rng(23)
    scale, shift = rng.standard_normal((2, NORM_SHAPE[1]), dtype=np.float32)
    return scale, shift


def _expand_row(name: str) -> Row:
    kind = ACTIVATIONS[name]

    def compute(inputs: Inputs) -> Array:
        first, second = expand_weights()
        y = np_conv(inputs["x"], first, None, 1, 0, 1, 1)
        y = np.maximum(y, 0) if kind == "relu" else y * np.clip(y / 6 + 0.5, 0, 1)
        return np_conv(y, second, None, 1, 2, 1, WIDE)

    title = f"1x1 {NARROW}->{WIDE}, {kind}, depthwise 5x5, {IMAGE}x{IMAGE}"
    inputs = _numbers((1, NARROW, IMAGE, IMAGE), "float32")
    return _row(name, title, inputs, compute, 1e-4, group="conv")


def _strided_row(name: str) -> Row:
    is_last = STRIDED[name]
    shape = (1, PLACES, PLACES, CHANNELS) if is_last else (1, CHANNELS, PLACES, PLACES)

    def compute(inputs: Inputs) -> Array:
        x = inputs["x"].transpose(0, 3, 1, 2) if is_last else inputs["x"]
        y = np_conv(x, strided_weight(), None, 2, 1, 1, CHANNELS)
        return y.transpose(0, 2, 3, 1) if is_last else y

    order = "last" if is_last else "first"
    title = f"3x3 depthwise, stride 2, {CHANNELS}, {PLACES}x{PLACES}, channels {order}"
    return _row(name, title, _numbers(shape, "float32"), compute, 1e-4, group="conv")


def _group_norm(inputs: Inputs) -> Array:
    x = inputs["x"].astype(np.float64)
    rows = x.reshape(1, GROUPS, -1)
    distance = rows - rows.mean(-1, keepdims=True)
    rows = distance / np.sqrt(np.square(distance).mean(-1, keepdims=True) + EPSILON)
    scale, shift = (a[:, None, None] for a in norm_numbers())
    return np.asarray(rows.reshape(NORM_SHAPE) * scale + shift)


# ---------------------------------------------------------------- steps

SCALE, ZERO, NUMBERS = 0.03, 128, 4 << 20


def quantised(x: Array) -> Array:
    """The number of each step, as ONNX rounds it."""
    return np.asarray(np.clip(np.rint(x / np.float32(SCALE)) + ZERO, 0, 255), np.uint8)


def dequantised(x: Array) -> Array:
    """The float of each step."""
    return np.asarray((x.astype(np.float32) - np.float32(ZERO)) * np.float32(SCALE))


def _near_steps(rng: np.random.Generator) -> Inputs:
    """Not half between two steps, where runtimes that multiply by 1 / SCALE find another one."""
    steps = rng.integers(-160, 160, NUMBERS) + rng.uniform(-0.4, 0.4, NUMBERS)
    return {"x": (steps * SCALE).astype(np.float32)}


def _bytes(rng: np.random.Generator) -> Inputs:
    return {"x": rng.integers(0, 256, NUMBERS).astype(np.uint8)}


def _steps_row(
    name: str, inputs: Callable[[np.random.Generator], Inputs], step: Callable[[Array], Array]
) -> Row:
    return Row(
        name, f"{name}, 4M", "elementwise", inputs, lambda i: step(i["x"]), _AS_BEST,
        traffic=5 * NUMBERS, bound="copy", statistic="p10",
    )  # fmt: skip


SLOW_ROWS: tuple[Row, ...] = (
    *map(_sort_row, SORTS),
    *map(_topk_row, TOPKS),
    *_loop_rows("life", f"game of life, {SIDE}x{SIDE}", life),
    *_loop_rows("rolls", f"two rolls of bytes, {SIDE}x{SIDE}", rolls),
    *map(_expand_row, ACTIVATIONS),
    *map(_strided_row, STRIDED),
    *map(any_row, map(_expand_row, ACTIVATIONS)),
    any_row(_strided_row("depthwise_stride_first")),
    _row(
        "group_norm",
        f"group norm as exporters write it, {GROUPS} of 64x56x56",
        _numbers(NORM_SHAPE, "float32"),
        _group_norm,
        1e-4,
    ),
    _steps_row("quantise", _near_steps, quantised),
    _steps_row("dequantise", _bytes, dequantised),
)
