"""Signals: Fourier transforms, windows, mel weights.

Transforms are those of tensor/fourier.py. Tables are arithmetic on indices, so that their sizes may
be those of a run; where they are fixed, the table is made before any run.
"""

from __future__ import annotations

import math

from semel.frontends.onnx.node import Converter, Node
from semel.ir.types import FLOAT32, FLOAT64, DType
from semel.tensor.fourier import of_length, real_signal, transformed
from semel.tensor.handle import dim_value
from semel.tensor.tensor import Tensor
from semel.tensor.window import slid

# ---------------------------------------------------------------- Fourier transforms


def _dft(node: Node) -> Tensor:
    x, inverse, onesided = node.tensor(), node.flag("inverse"), node.flag("onesided")
    axes = node.axes(2, "axis") or [1 if node.version < 20 else -2]
    x = _with_parts(node, x.moveaxis(axes[0], -2))
    length = x.shape[-2]
    if inverse and onesided:
        size = node.dim(1) if node.has(1) else (length - 1) * 2
        found = real_signal(of_length(x, size // 2 + 1), size).unsqueeze(-1)
    else:
        size = node.dim(1) if node.has(1) else length
        found = transformed(of_length(x, size), size, inverse, onesided)
    return found.moveaxis(-2, axes[0])


def _with_parts(node: Node, x: Tensor) -> Tensor:
    """A signal whose last axis holds real numbers, or both parts of complex ones.

    Where only a run knows which, both parts are there.
    """
    parts = x.shape[-1]
    if not isinstance(parts, int):
        return x.pad([(0, 0)] * (x.ndim - 1) + [(0, 2 - parts)])
    if parts not in (1, 2):
        raise node.refuse(f"the last axis must have size 1 or 2, got {x.type}.")
    return x


def _stft(node: Node) -> Tensor:
    x, window, step = node.tensor(), node.optional(2), node.dim(1)
    x = _with_parts(node, x.unsqueeze(-1) if x.ndim == 2 else x)
    size = x.shape[1]
    if node.has(3):
        size = node.dim(3)
    elif window is not None:
        size = window.shape[0]
    frames = slid(x, 1, size, step).swapaxes(2, 3)  # [batch, frames, size, parts]
    if window is not None:
        frames = frames * window.reshape(size, 1)
    return transformed(frames, size, False, node.flag("onesided", True))


# ---------------------------------------------------------------- windows


def _window(*factors: float) -> Converter:
    """A sum of cosines of whole numbers of turns, with these factors."""

    def convert(node: Node) -> Tensor:
        size = node.dim(0)
        period = dim_value(size if node.flag("periodic", True) else size - 1, FLOAT64)
        turn = Tensor.arange(size).cast(FLOAT64) * (2 * math.pi) / period
        found = Tensor(factors[0]).cast(FLOAT64).broadcast_to(size)
        for count, factor in enumerate(factors[1:], 1):
            found = found + (turn * count).cos() * factor
        return found.cast(_output(node))

    return convert


def _output(node: Node) -> DType:
    return node.dtype_attr("output_datatype", FLOAT32)


# ---------------------------------------------------------------- mel weights


def _mel_weights(node: Node) -> Tensor:
    """Triangles over the bins of a spectrum, whose corners are even steps of the mel scale."""
    bins, length = node.dim(0), node.dim(1)
    rate, low, high = (node.tensor(i).reshape(()).cast(FLOAT64) for i in (2, 3, 4))
    first, last = (_mel(edge) for edge in (low, high))
    step = (last - first) / dim_value(bins + 2, FLOAT64)
    corners = Tensor.arange(bins + 2).cast(FLOAT64) * step + first
    hertz = (corners * (math.log(10) / 2595)).expm1() * 700
    place = (hertz * dim_value(length + 1, FLOAT64) / rate).floor()
    left, centre, right = (place.narrow(0, i, bins) for i in range(3))
    here = Tensor.arange(length // 2 + 1).cast(FLOAT64).unsqueeze(1)
    rising = ((here >= left) & (here < centre)).where((here - left) / (centre - left), 0.0)
    falling = ((here > centre) & (here < right)).where((right - here) / (right - centre), 0.0)
    return here.eq(centre).where(1.0, rising + falling).cast(_output(node))


def _mel(hertz: Tensor) -> Tensor:
    return (hertz / 700).log1p() * (2595 / math.log(10))


CONVERTERS: dict[str, Converter] = {
    "BlackmanWindow": _window(0.42, -0.5, 0.08),
    "DFT": _dft,
    "HammingWindow": _window(25 / 46, -21 / 46),
    "HannWindow": _window(0.5, -0.5),
    "MelWeightMatrix": _mel_weights,
    "STFT": _stft,
}
