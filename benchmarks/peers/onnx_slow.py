"""The slow paths as ONNX graphs, the way exporters write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.peers.onnx_models import OnnxGraph
from benchmarks.permuted import JOINED
from benchmarks.row import Inputs
from benchmarks.slow_paths import (
    ACTIVATIONS,
    CHANNELS,
    EPSILON,
    GROUPS,
    NUMBERS,
    PLACES,
    SCALE,
    STRIDED,
    TOPKS,
    WIDE,
    ZERO,
    expand_weights,
    norm_numbers,
    strided_weight,
)
from semel.cli.onnx_file import OnnxNode


def _topk(arrays: Inputs, name: str) -> OnnxGraph:
    rows, _, k = TOPKS[name]
    g = OnnxGraph(arrays, shape=(rows, k))
    g.nodes.append(OnnxNode("TopK", ("x", g.constant(np.array([k]))), "best", others=("places",)))
    return g


def _expand(arrays: Inputs, name: str) -> OnnxGraph:
    g = OnnxGraph(arrays, shape=(1, WIDE, *arrays["x"].shape[2:]))
    first, second = expand_weights()
    op = {"relu": "Relu", "hardswish": "HardSwish"}[ACTIVATIONS[name]]
    g("Conv", g(op, g("Conv", "x", first)), second, pads=[2] * 4, group=WIDE)
    return g


def _strided(arrays: Inputs, name: str) -> OnnxGraph:
    half, options = PLACES // 2, {"pads": [1] * 4, "strides": [2, 2], "group": CHANNELS}
    if not STRIDED[name]:
        g = OnnxGraph(arrays, shape=(1, CHANNELS, half, half))
        g("Conv", "x", strided_weight(), **options)
        return g
    g = OnnxGraph(arrays, shape=(1, half, half, CHANNELS))
    y = g("Conv", g("Transpose", "x", perm=[0, 3, 1, 2]), strided_weight(), **options)
    g("Transpose", y, perm=[0, 2, 3, 1])
    return g


def _group_norm(arrays: Inputs) -> OnnxGraph:
    x = arrays["x"]
    g = OnnxGraph(arrays, shape=x.shape)
    ones, zeros = np.ones(GROUPS, np.float32), np.zeros(GROUPS, np.float32)
    rows = g("Reshape", "x", np.array([0, GROUPS, -1]))
    rows = g("InstanceNormalization", rows, ones, zeros, epsilon=EPSILON)
    scale, shift = (a[:, None, None] for a in norm_numbers())
    g("Add", g("Mul", g("Reshape", rows, np.array(x.shape)), scale), shift)
    return g


def _steps(arrays: Inputs, op: str, dtype: str) -> OnnxGraph:
    g = OnnxGraph(arrays, shape=(NUMBERS,), dtype=dtype)
    g(op, "x", np.array(SCALE, np.float32), np.array(ZERO, np.uint8))
    return g


def _joined(arrays: Inputs, name: str) -> OnnxGraph:
    _, order, joined = JOINED[name]
    g = OnnxGraph(arrays, shape=joined)
    g("Reshape", g("Transpose", "x", perm=list(order)), np.array(joined))
    return g


SLOW_GRAPHS: dict[str, Callable[[Inputs], OnnxGraph]] = {
    **{name: partial(_topk, name=name) for name in TOPKS},
    **{name: partial(_expand, name=name) for name in ACTIVATIONS},
    **{name: partial(_joined, name=name) for name in JOINED},
    **{name: partial(_strided, name=name) for name in STRIDED},
    "group_norm": _group_norm,
    "quantise": partial(_steps, op="QuantizeLinear", dtype="uint8"),
    "dequantise": partial(_steps, op="DequantizeLinear", dtype="float32"),
}
