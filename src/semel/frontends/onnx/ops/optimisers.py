"""Steps of optimisers, over any number of tensors at once."""

from __future__ import annotations

from collections.abc import Callable

from semel.errors import UnsupportedError
from semel.frontends.onnx.node import Converter, Node
from semel.ir.types import FLOAT64
from semel.tensor.tensor import Tensor

DOMAIN = "ai.onnx.preview.training"


def _for_each(kinds: int, step: Callable[..., tuple[Tensor, ...]]) -> Converter:
    """One step for each tensor.

    Inputs are the learning rate, the number of steps before, and then all tensors of one kind
    after the other; outputs are all kinds but the gradient.
    """

    def convert(node: Node) -> list[Tensor]:
        rate, count, rest = node.tensor(0), node.tensor(1), node.tensors(2)
        each = len(rest) // kinds
        made = [step(node, rate, count, *rest[i::each]) for i in range(each)]
        return [
            found.cast(rest[i].dtype)
            for kind in zip(*made, strict=True)
            for i, found in enumerate(kind)
        ]

    return convert


def _with_decay(node: Node, x: Tensor, gradient: Tensor) -> Tensor:
    return gradient + x * node.number("norm_coefficient", 0.0)


def _momentum(
    node: Node, rate: Tensor, count: Tensor, x: Tensor, gradient: Tensor, velocity: Tensor
) -> tuple[Tensor, ...]:
    alpha, beta = node.number("alpha", 0.0), node.number("beta", 0.0)
    slope = _with_decay(node, x, gradient)
    after = velocity * alpha + slope * (count > 0).where(beta, 1.0)
    step = after if node.attr("mode") == "standard" else slope + after * alpha
    return x - rate * step, after


def _adagrad(
    node: Node, rate: Tensor, count: Tensor, x: Tensor, gradient: Tensor, squares: Tensor
) -> tuple[Tensor, ...]:
    now = rate / (count.cast(rate.dtype) * node.number("decay_factor", 0.0) + 1)
    slope = _with_decay(node, x, gradient)
    after = squares + slope * slope
    return x - now * slope / (after.sqrt() + node.number("epsilon", 1e-6)), after


def _adam(
    node: Node,
    rate: Tensor,
    count: Tensor,
    x: Tensor,
    gradient: Tensor,
    mean: Tensor,
    squares: Tensor,
) -> tuple[Tensor, ...]:
    alpha, beta = node.number("alpha", 0.9), node.number("beta", 0.999)
    slope = _with_decay(node, x, gradient)
    first = mean * alpha + slope * (1 - alpha)
    second = squares * beta + slope * slope * (1 - beta)
    steps = count.cast(FLOAT64)
    share = (1 - Tensor(beta).cast(FLOAT64).pow(steps)).sqrt()
    share = share / (1 - Tensor(alpha).cast(FLOAT64).pow(steps))
    now = rate * (count > 0).where(share, 1.0).cast(rate.dtype)
    moved = x - now * first / (second.sqrt() + node.number("epsilon", 1e-6))
    return moved * (1 - node.number("norm_coefficient_post", 0.0)), first, second


def _gradient(node: Node) -> UnsupportedError:
    raise node.refuse(
        "gradients are not computed.", "Export the model after its gradients are written out."
    )


CONVERTERS: dict[str, Converter] = {
    "Adagrad": _for_each(3, _adagrad),
    "Adam": _for_each(4, _adam),
    "Gradient": _gradient,
    "Momentum": _for_each(3, _momentum),
}
