"""The quantised rows in Semel's tensors."""

from __future__ import annotations

import numpy as np

from benchmarks.quantised import STEP, ZERO, integer_weights, narrow, whole_bias
from benchmarks.row import Array
from semel import Tensor


class TensorOps:
    """`QuantisedOps` on tensors."""

    def steps(self, x: Tensor, zero: int = ZERO) -> Tensor:
        step, origin = np.float32(STEP), np.uint8(zero)
        return x.quantize_linear(step, origin).dequantize_linear(step, origin)

    def conv(self, x: Tensor, weight: Array, bias: Array, stride: int, groups: int) -> Tensor:
        data, scales = narrow(weight, 0)
        wide = Tensor(data).dequantize_linear(scales, axis=0)
        whole, steps = whole_bias(bias, scales)
        start = Tensor(whole).dequantize_linear(steps, axis=0)
        return x.conv(wide, start, stride, weight.shape[-1] // 2, groups=groups)

    def linear(self, x: Tensor, weight: Array, bias: Array) -> Tensor:
        data, scales = narrow(weight, 1)
        return x @ Tensor(data).dequantize_linear(scales, axis=1) + bias

    def relu(self, x: Tensor) -> Tensor:
        return x.relu()

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def integer_product(x: Tensor) -> Tensor:
    """The product of integers."""
    return x.matmul_integer(integer_weights(), ZERO)
