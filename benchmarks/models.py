"""Rows for matrix products, convolution layers and whole models.

    MODEL_ROWS: (c) and (e) of the list of peers and bars

Inputs are data only: weights come from the models' seeds, the same in every process, and
are constants to every runtime. Lengths (tokens in a sentence, tokens in the cache) are
symbolic for Semel. The references are NumPy in float32, written apart from the builders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.models import reference
from tests.ops.windows_reference import np_conv

from benchmarks.checkpoints import bench_minilm_weights
from benchmarks.row import Array, Bar, Inputs, Row, any_row
from semel.models.decoder import DECODER, decoder_weights
from semel.models.minilm import MINILM
from semel.models.resnet import RESNET50, resnet_weights

PAST = 256  # tokens in the decoder's cache

# ---------------------------------------------------------------- matrix products

#: rows, depth, columns: share of peak wanted; columns that fill no register leave some of it idle
GEMMS: dict[tuple[int, int, int], float] = {
    (128, 384, 384): 0.95,
    (128, 384, 1536): 0.95,
    (512, 512, 512): 0.95,
    (1024, 1024, 1024): 0.95,
    (2048, 2048, 2048): 0.95,
    (128, 384, 257): 0.85,
    (128, 384, 514): 0.90,
    (400, 576, 24): 0.85,
}
#: Share of reading that is wanted of what a row must read.
_OF_READING = 0.9
GEMV = (1, 4096, 4096)


def gemm_name(size: tuple[int, int, int], gelu: bool) -> str:
    """The row of a product."""
    return f"gemm_{'x'.join(map(str, size))}{'_gelu' if gelu else ''}"


def gemm_weights(size: tuple[int, int, int]) -> tuple[Array, Array]:
    """The right operand and the bias."""
    _, depth, columns = size
    rng = np.random.default_rng(11)
    matrix = rng.standard_normal((depth, columns), dtype=np.float32) * np.float32(depth**-0.5)
    return matrix, rng.standard_normal(columns, dtype=np.float32)


def _bar(factor: float = 1.0, share: float = 0.0) -> Bar:
    """A part of the best peer's time, and of what the machine gives."""
    text, limits = f"{factor:g}x the best peer", [("best", "", factor)]
    if share:
        text, limits = f"{text}, {share:.0%} of limit", [*limits, ("share", "", share)]
    return Bar(text, tuple(limits))


def _gemm_row(size: tuple[int, int, int], gelu: bool) -> Row:
    rows, depth, columns = size

    def compute(inputs: Inputs) -> Array:
        matrix, bias = gemm_weights(size)
        y = inputs["x"] @ matrix
        return y if not gelu else _gelu(y + bias)

    if size == GEMV:
        bar, traffic, bound = _bar(share=_OF_READING), 4 * depth * columns, "read"
    else:
        bar, traffic, bound = _bar(share=GEMMS[size]), 2 * rows * depth * columns, "fma"
    title = f"{rows}x{depth}x{columns}{' + bias, gelu' if gelu else ''}"
    return Row(
        gemm_name(size, gelu), title, "gemm", _normal(x=(rows, depth)), compute, bar,
        tolerance=1e-4, traffic=traffic, bound=bound, statistic="p10",
    )  # fmt: skip


def _gelu(x: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[np.float32])
    return np.asarray(x * 0.5 * (1 + erf(x / math.sqrt(2))))


# ---------------------------------------------------------------- convolution layers

#: name: channels, outputs, side, kernel, groups. Images have their channels last in memory, as
#: between the layers of a network, but for those named "first".
CONVS: dict[str, tuple[int, int, int, int, int]] = {
    "conv_3x3_64": (64, 64, 56, 3, 1),
    "conv_3x3_256": (256, 256, 14, 3, 1),
    "conv_1x1_256": (256, 64, 56, 1, 1),
    "conv_depthwise": (96, 96, 112, 3, 96),
    "conv_3x3_48_96": (48, 96, 40, 3, 1),
    "conv_3x3_128_256": (128, 256, 10, 3, 1),
    "conv_3x3_24": (24, 24, 56, 3, 1),
    "conv_3x3_16": (16, 16, 112, 3, 1),
    "conv_3x3_stem": (3, 32, 112, 3, 1),
    "conv_3x3_groups": (64, 64, 56, 3, 4),
    "conv_7x7_first": (3, 32, 112, 7, 1),
    "conv_3x3_groups_first": (64, 64, 56, 3, 4),
}
#: Those that have work enough to come near the peak.
_DENSE_CONVS, _OF_PEAK = ("conv_3x3_64", "conv_3x3_256", "conv_1x1_256"), 0.95


def conv_weight(name: str) -> Array:
    """The kernel of a layer."""
    channels, outputs, _, kernel, groups = CONVS[name]
    shape = (outputs, channels // groups, kernel, kernel)
    rng = np.random.default_rng(12)
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(math.prod(shape[1:]) ** -0.5)


def _conv_row(name: str) -> Row:
    channels, outputs, side, kernel, groups = CONVS[name]
    shape = (1, channels, side, side)
    bar = _bar(share=_OF_PEAK if name in _DENSE_CONVS else 0.0)

    def compute(inputs: Inputs) -> Array:
        return np_conv(inputs["x"], conv_weight(name), None, 1, kernel // 2, 1, groups)

    grouped = " depthwise" if groups == channels else f", {groups} groups" if groups > 1 else ""
    grouped += ", channels first," if name.endswith("first") else ""
    kind = f"{kernel}x{kernel}{grouped}"
    return Row(
        name, f"{kind} {channels}->{outputs}, {side}x{side}", "conv", _normal(x=shape), compute,
        bar,
        tolerance=1e-4, traffic=2 * side**2 * outputs * kernel**2 * channels // groups,
        bound="fma", statistic="p10",
    )  # fmt: skip


# ---------------------------------------------------------------- recurrent cells

#: name: steps, batch, input size, hidden size
LSTMS = {"lstm_100x1": (100, 1, 128, 128), "lstm_100x16": (100, 16, 128, 128)}


def lstm_weights(name: str) -> tuple[Array, Array, Array]:
    """w, r and b of a cell, as ONNX has them."""
    _, _, size, hidden = LSTMS[name]
    rng = np.random.default_rng(13)
    shapes = (1, 4 * hidden, size), (1, 4 * hidden, hidden), (1, 8 * hidden)
    w, r, b = (rng.standard_normal(s, dtype=np.float32) * np.float32(0.1) for s in shapes)
    return w, r, b


def _lstm(name: str) -> Callable[[Inputs], Array]:
    def compute(inputs: Inputs) -> Array:
        x, (w, r, b) = inputs["x"], (a[0].astype(np.float64) for a in lstm_weights(name))
        steps, batch, _, hidden = LSTMS[name]
        h, c = np.zeros((batch, hidden)), np.zeros((batch, hidden))
        result = np.zeros((steps, 1, batch, hidden))
        for t in range(steps):
            gates = x[t] @ w.T + h @ r.T + b[: 4 * hidden] + b[4 * hidden :]
            i, o, f = (1 / (1 + np.exp(-g)) for g in np.split(gates[:, : 3 * hidden], 3, 1))
            c = f * c + i * np.tanh(gates[:, 3 * hidden :])
            h = o * np.tanh(c)
            result[t, 0] = h
        return result.astype(np.float32)

    return compute


def _lstm_row(name: str) -> Row:
    steps, batch, size, hidden = LSTMS[name]
    work = 2 * steps * batch * 4 * hidden * (size + hidden)
    return Row(
        name, f"LSTM {hidden}, {steps} steps, b{batch}", "models", _normal(x=(steps, batch, size)),
        _lstm(name), _bar(0.9),
        tolerance=1e-4, traffic=work, bound="fma",
    )  # fmt: skip


# ---------------------------------------------------------------- models


def _normal(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        return {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}

    return make


def _tokens(batch: int, length: int) -> Callable[[np.random.Generator], Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        ids = rng.integers(0, MINILM.vocabulary, (batch, length))
        return {"ids": ids, "mask": np.ones_like(ids)}

    return make


def _cache(rng: np.random.Generator) -> Inputs:
    shape = (DECODER.layers, DECODER.heads, PAST, DECODER.depth)
    keys, values = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    return {"token": np.array([17]), "keys": keys, "values": values}


def _minilm(inputs: Inputs) -> Array:
    ids, mask = inputs["ids"], inputs["mask"]
    return reference.minilm(ids, mask, np.zeros_like(ids), bench_minilm_weights(), MINILM)


def _resnet(inputs: Inputs) -> Array:
    return reference.resnet(inputs["x"], resnet_weights(), RESNET50)


def _decoder(inputs: Inputs) -> Array:
    keys, values = inputs["keys"], inputs["values"]
    return reference.decoder_step(17, keys, values, decoder_weights(), DECODER)


def _model(
    name: str, title: str, inputs: Any, compute: Any, bar: Bar, traffic: int = 0, bound: str = ""
) -> Row:
    return Row(name, title, "models", inputs, compute, bar, 2e-3, traffic, bound)


def _minilm_row(name: str) -> Row:
    batch, length = SENTENCES[name]
    width, hidden = MINILM.width, MINILM.hidden
    linear = length * (4 * width * width + 2 * width * hidden)
    work = 2 * batch * MINILM.layers * (linear + 2 * length * length * width)
    title, inputs = f"MiniLM b{batch} s{length}", _tokens(batch, length)
    return _model(name, title, inputs, _minilm, _bar(0.95, 0.93), work, "fma")


def _decoder_row() -> Row:
    """It reads all weights but the table of embeddings, and the caches."""
    size = DECODER
    layer = 4 * size.width * size.width + 3 * size.width * size.hidden
    cached = 2 * size.layers * size.heads * PAST * size.depth
    traffic = 4 * (size.layers * layer + size.vocabulary * size.width + cached)
    title, bar = f"decoder step, {PAST} in cache", _bar(share=_OF_READING)
    return _model("decoder", title, _cache, _decoder, bar, traffic, "read")


#: name: sentences, tokens each
SENTENCES = {"minilm_16": (1, 16), "minilm_128": (1, 128), "minilm_8x128": (8, 128)}

_GEMM_ROWS = [_gemm_row(size, gelu) for size in (*GEMMS, GEMV) for gelu in (False, True)]
_CONV_ROWS = [_conv_row(name) for name in CONVS]

MODEL_ROWS: tuple[Row, ...] = (
    *_GEMM_ROWS,
    *(any_row(_gemm_row(size, gelu=False)) for size in GEMMS),
    *_CONV_ROWS,
    *map(any_row, _CONV_ROWS),
    *(_lstm_row(name) for name in LSTMS),
    *map(_minilm_row, SENTENCES),
    _model("resnet50", "ResNet-50 b1", _normal(x=(1, 3, 224, 224)), _resnet, _bar()),
    _decoder_row(),
)
