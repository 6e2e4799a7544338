"""The quantised rows as ONNX graphs: floats between QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.peers.onnx_models import OnnxGraph
from benchmarks.quantised import (
    INTEGERS,
    QUANTISED,
    STEP,
    ZERO,
    integer_weights,
    narrow,
    whole_bias,
)
from benchmarks.row import Array, Inputs


class OnnxOps:
    """`QuantisedOps` that add nodes to a graph and give names."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph

    def steps(self, x: str, zero: int = ZERO) -> str:
        step, origin = np.asarray(STEP, np.float32), np.asarray(zero, np.uint8)
        quantised = self.graph("QuantizeLinear", x, step, origin)
        return self.graph("DequantizeLinear", quantised, step, origin)

    def conv(self, x: str, weight: Array, bias: Array, stride: int, groups: int) -> str:
        data, scales = narrow(weight, 0)
        whole, steps = whole_bias(bias, scales)
        return self.graph(
            "Conv", x, self._wide(data, scales, 0), self._wide(whole, steps, 0),
            strides=[stride] * 2, pads=[weight.shape[-1] // 2] * 4, group=groups,
        )  # fmt: skip

    def linear(self, x: str, weight: Array, bias: Array) -> str:
        product = self.graph("MatMul", x, self._wide(*narrow(weight, 1), 1))
        return self.graph("Add", product, bias)

    def relu(self, x: str) -> str:
        return self.graph("Relu", x)

    def add(self, x: str, y: str) -> str:
        return self.graph("Add", x, y)

    def _wide(self, data: Array, scales: Array, axis: int) -> str:
        zeros = np.zeros(scales.shape, data.dtype)
        return self.graph("DequantizeLinear", data, scales, zeros, axis=axis)


def _graph(arrays: Inputs, name: str) -> OnnxGraph:
    model, shape = QUANTISED[name]
    graph = OnnxGraph(arrays, shape=shape)
    model(OnnxOps(graph), "x")
    return graph


def integer_graph(arrays: Inputs) -> OnnxGraph:
    """MatMulInteger."""
    graph = OnnxGraph(arrays, shape=(INTEGERS[0], INTEGERS[2]), dtype="int32")
    graph("MatMulInteger", "x", integer_weights(), np.asarray(ZERO, np.uint8))
    return graph


QUANTISED_GRAPHS: dict[str, Callable[[Inputs], OnnxGraph]] = {
    **{name: partial(_graph, name=name) for name in QUANTISED},
    "matmul_integer": integer_graph,
}
