"""The nonlinear functions of neural networks, element by element.

    relu gelu silu softplus mish hardswish elu ... softcap

Compositions of the layer below, written so that neither side of a choice overflows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.tensor.elementwise import binary, choose
from semel.tensor.handle import SYMBOLIC, TensorLike, lift, weak_kind
from semel.tensor.movement import fill_value, of_shape
from semel.tensor.unary import unary

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def relu(x: TensorLike) -> Tensor:
    """The larger of x and 0."""
    return lift(x).maximum(0)


def relu6(x: TensorLike) -> Tensor:
    """x brought into [0, 6]."""
    return lift(x).clip(0, 6)


def leaky_relu(x: TensorLike, slope: float = 0.01) -> Tensor:
    """x, or slope * x below 0."""
    x = lift(x)
    return choose(x >= 0, x, x * slope)


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x, or alpha * (exp(x) - 1) below 0."""
    x = lift(x)
    # The unused side must not overflow into inf * 0: clip it.
    return choose(x > 0, x, x.minimum(0).expm1() * alpha)


def selu(x: TensorLike) -> Tensor:
    """`elu` with the constants that keep mean 0 and variance 1."""
    return lift(x).elu(1.6732632423543772) * 1.0507009873554805


def gelu(x: TensorLike, approximate: str = "none") -> Tensor:
    """x * Phi(x), exact by erf, or with `approximate="tanh"`."""
    x = lift(x)
    if approximate == "none":
        return unary(x, "gelu")
    if approximate != "tanh":
        raise GraphError("gelu", f"approximate must be 'none' or 'tanh', got {approximate!r}.")
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.tanh() + 1)


def quick_gelu(x: TensorLike) -> Tensor:
    """x * sigmoid(1.702 * x)."""
    x = lift(x)
    return x * (x * 1.702).sigmoid()


def silu(x: TensorLike) -> Tensor:
    """x * sigmoid(x)."""
    x = lift(x)
    return x * x.sigmoid()


def softplus(x: TensorLike, beta: float = 1.0, threshold: float | None = None) -> Tensor:
    """log(1 + exp(beta*x)) / beta, without overflow; x itself where beta*x is above `threshold`."""
    x = lift(x)
    scaled = x * beta
    smooth = ((-scaled.abs()).exp().log1p() + scaled.relu()) * (1 / beta)
    return smooth if threshold is None else choose(scaled > threshold, x, smooth)


def mish(x: TensorLike) -> Tensor:
    """x * tanh(softplus(x))."""
    x = lift(x)
    return x * x.softplus().tanh()


def hard_sigmoid(x: TensorLike) -> Tensor:
    """(x + 3) / 6, brought into [0, 1]."""
    return (lift(x) + 3).clip(0, 6) * (1 / 6)


def hardswish(x: TensorLike) -> Tensor:
    """x * hard_sigmoid(x)."""
    x = lift(x)
    return x * x.hard_sigmoid()


def hardtanh(x: TensorLike, low: float = -1.0, high: float = 1.0) -> Tensor:
    """x brought into [low, high]."""
    return lift(x).clip(low, high)


def softsign(x: TensorLike) -> Tensor:
    """x / (1 + |x|)."""
    x = lift(x)
    return x / (x.abs() + 1)


def logsigmoid(x: TensorLike) -> Tensor:
    """log(sigmoid(x)), without overflow."""
    return -(-lift(x)).softplus()


def softshrink(x: TensorLike, lambd: float = 0.5) -> Tensor:
    """x brought `lambd` nearer to 0, and 0 where it is nearer than that."""
    x = lift(x)
    return choose(x > lambd, x - lambd, choose(x < -lambd, x + lambd, x * 0))


def hardshrink(x: TensorLike, lambd: float = 0.5) -> Tensor:
    """x, and 0 where it is not further than `lambd` from 0."""
    x = lift(x)
    return choose(x.abs() <= lambd, 0, x)


def tanhshrink(x: TensorLike) -> Tensor:
    """x - tanh(x)."""
    x = lift(x)
    return x - x.tanh()


def softcap(x: TensorLike, cap: float) -> Tensor:
    """cap * tanh(x / cap): nearly x near 0, never beyond the cap."""
    x = lift(x)
    if not _is_number(cap) or not cap > 0:
        raise GraphError("softcap", f"cap must be a number > 0, got {cap!r}.")
    inner: Tensor = x * (1 / cap)
    return binary(inner.tanh(), "mul", cap)


def _is_number(value: Any) -> bool:
    return weak_kind(value) in ("i", "f") and not isinstance(value, SYMBOLIC)


def prelu(x: TensorLike, weight: TensorLike) -> Tensor:
    """x, or weight * x below 0; `weight` is one number, or one for each channel (axis 1)."""
    x, slope = lift(x), lift(weight)
    if slope.ndim > 1:
        raise GraphError("prelu", f"weight must be a number or a vector, got {slope.type}.")
    if slope.ndim == 1 and slope.shape != (1,):
        if x.ndim < 2:
            raise GraphError("prelu", f"x must have channels along axis 1, got {x.type}.")
        slope = of_shape(slope, x.shape[1:2], "prelu", "weight")
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    return choose(x >= 0, x, x * slope)


def celu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x, or alpha * (exp(x / alpha) - 1) below 0."""
    x = lift(x)
    if not _is_number(alpha) or alpha == 0:
        raise GraphError("celu", f"alpha must be a number other than 0, got {alpha!r}.")
    return x.maximum(0) + ((x * (1 / alpha)).expm1() * alpha).minimum(0)


def threshold(x: TensorLike, threshold: float, value: float) -> Tensor:
    """x where it is above the threshold, else `value`; NaN stays."""
    x = lift(x)
    return choose(x <= threshold, fill_value(x, value, "threshold"), x)


# Second names.
hardsigmoid = hard_sigmoid
swish = silu
