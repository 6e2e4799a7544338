"""Tensor, layer 3: the nonlinear functions of neural networks, element by element.

    relu gelu silu softplus mish hardswish elu ... softcap

Compositions of the layer below, written so that neither side of a choice overflows.
"""

from __future__ import annotations

import math
from typing import Any, Self

from semel.errors import GraphError
from semel.tensor.elementwise import Elementwise
from semel.tensor.handle import SYMBOLIC, weak_kind


class Activations(Elementwise):
    """Activation functions."""

    __slots__ = ()

    def relu(self) -> Self:
        return self.maximum(0)

    def relu6(self) -> Self:
        return self.clip(0, 6)

    def leaky_relu(self, slope: float = 0.01) -> Self:
        return self._choose(self >= 0, self, self * slope)

    def elu(self, alpha: float = 1.0) -> Self:
        # The unused side must not overflow into inf * 0: clip it.
        return self._choose(self > 0, self, self.minimum(0).expm1() * alpha)

    def selu(self) -> Self:
        return self.elu(1.6732632423543772) * 1.0507009873554805

    def gelu(self, approximate: str = "none") -> Self:
        """x * Phi(x), exact by erf, or with `approximate="tanh"`."""
        if approximate == "none":
            return self._unary("gelu")
        if approximate != "tanh":
            raise GraphError("gelu", f"approximate must be 'none' or 'tanh', got {approximate!r}.")
        inner = (self + self * self * self * 0.044715) * math.sqrt(2 / math.pi)
        return self * 0.5 * (inner.tanh() + 1)

    def quick_gelu(self) -> Self:
        return self * (self * 1.702).sigmoid()

    def silu(self) -> Self:
        return self * self.sigmoid()

    swish = silu

    def softplus(self, beta: float = 1.0) -> Self:
        """log(1 + exp(beta*x)) / beta, without overflow."""
        scaled = self * beta
        return ((-scaled.abs()).exp().log1p() + scaled.relu()) * (1 / beta)

    def mish(self) -> Self:
        return self * self.softplus().tanh()

    def hard_sigmoid(self) -> Self:
        return (self + 3).clip(0, 6) * (1 / 6)

    def hardswish(self) -> Self:
        return self * self.hard_sigmoid()

    def hardtanh(self, low: float = -1.0, high: float = 1.0) -> Self:
        return self.clip(low, high)

    def softsign(self) -> Self:
        return self / (self.abs() + 1)

    def logsigmoid(self) -> Self:
        return -(-self).softplus()

    def softcap(self, cap: Any) -> Self:
        """cap * tanh(x / cap): nearly x near 0, never beyond the cap."""
        if weak_kind(cap) not in ("i", "f") or isinstance(cap, SYMBOLIC) or not cap > 0:
            raise GraphError("softcap", f"cap must be a number > 0, got {cap!r}.")
        inner: Self = self * (1 / cap)
        return inner.tanh()._binary("mul", cap)
