"""Convolutions and pools of imported models, at sizes that runs bind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import UnsupportedError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.onnx.nodes import one_node, runtime  # noqa: E402


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agree(model: Any, feeds: list[dict[str, Any]], tolerance: float = 2e-5) -> None:
    """One compile, and ONNX Runtime's results at each of these inputs."""
    compiled: Any = semel.load(model, threads=1)
    for feed in feeds:
        found = compiled.run(feed)
        for (name, ours), theirs in zip(found.items(), runtime(model, feed), strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


CONVOLUTIONS: dict[str, tuple[str, tuple[int, ...], dict[str, Any], list[tuple[int, ...]]]] = {
    "groups": ("Conv", (6, 2, 3, 3), {"group": 2, "strides": [2, 1]}, [(1, 4, 9, 7), (2, 4, 6, 6)]),
    "conv3d": ("Conv", (2, 2, 2, 2, 2), {"dilations": [1, 2, 1]},
               [(1, 2, 3, 4, 3), (1, 2, 4, 5, 6)]),
    "transposed_same": ("ConvTranspose", (2, 3, 3), {"strides": [2], "auto_pad": "SAME_UPPER"},
                        [(1, 2, 4), (2, 2, 7)]),
    "transposed_to_a_shape": ("ConvTranspose", (2, 3, 3), {"strides": [2], "output_shape": [9]},
                              [(1, 2, 4), (2, 2, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_at_two_sizes(name: str) -> None:
    op, weight, attributes, shapes = CONVOLUTIONS[name]
    outputs = weight[0] if op == "Conv" else weight[1]
    weights = {"w": numbers(*weight, seed=1), "b": numbers(outputs, seed=2)}
    model = one_node(op, {"x": numbers(*shapes[0])}, weights=weights, **attributes)
    agree(model, [{"x": numbers(*shape)} for shape in shapes])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_weights_whose_sizes_runs_bind(op: str) -> None:
    attributes: dict[str, Any] = {"group": 2, "pads": [1, 0, 0, 1], "strides": [2, 1]}
    attributes["dilations"] = [1, 2]
    x, w, b = numbers(1, 4, 7, 8), numbers(4, 2, 3, 2, seed=1), numbers(4, seed=2)
    model = one_node(op, {"x": x, "w": w, "b": b}, **attributes)
    larger = {"x": numbers(2, 4, 6, 6), "w": numbers(4, 2, 2, 3, seed=3), "b": b}
    agree(model, [{"x": x, "w": w, "b": b}, larger])


def test_windows_that_a_run_sizes_cannot_be_padded_to_the_same_size() -> None:
    inputs = {"x": numbers(1, 2, 5), "w": numbers(3, 2, 2)}
    with pytest.raises(UnsupportedError, match="auto_pad needs a kernel of fixed size"):
        semel.load(one_node("Conv", inputs, auto_pad="SAME_UPPER"))


POOLS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ceil": ("AveragePool", 1, {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    "dilated": ("MaxPool", 2, {"kernel_shape": [2, 2], "dilations": [2, 1], "storage_order": 1}),
    "whole": ("GlobalLpPool", 1, {"p": 3}),
    "neighbours": ("LRN", 1, {"size": 3, "alpha": 0.3, "beta": 0.6, "bias": 2.0}),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_at_two_sizes(name: str) -> None:
    op, outputs, attributes = POOLS[name]
    shapes = [(1, 5, 7, 8), (2, 5, 9, 6)]
    feeds = [{"x": np.abs(numbers(*shape))} for shape in shapes]
    agree(one_node(op, feeds[0], outputs, opset=21, **attributes), feeds)


def test_quantised_convolution_with_a_scale_for_each_output() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "xs": np.float32(0.02),
        "xz": np.uint8(120),
        "w": rng.integers(-60, 60, (4, 3, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.01, 0.02, 4).astype(np.float32),
        "wz": np.zeros(4, np.int8),
        "ys": np.float32(0.3),
        "yz": np.uint8(100),
        "b": rng.integers(-1000, 1000, 4).astype(np.int32),
    }
    sizes = [(1, 3, 5, 6), (2, 3, 8, 4)]
    feeds = [{"x": rng.integers(0, 255, size).astype(np.uint8)} for size in sizes]
    model = one_node(
        "QLinearConv",
        feeds[0],
        weights={k: np.asarray(v) for k, v in weights.items()},
        pads=[1] * 4,
    )
    agree(model, feeds, 0)
