"""Losses."""

from __future__ import annotations

from semel.frontends.onnx.node import Converter, Node
from semel.ir.types import INT64
from semel.tensor.tensor import Tensor


def _negative_log(node: Node, logs: Tensor) -> Tensor:
    """What `logs` [N, C, ...] say of the classes, negative, weighted and reduced."""
    target, weight = node.tensor(1).cast(INT64), node.optional(2)
    ignored = node.attr("ignore_index")
    skipped = None if ignored is None else target.eq(ignored)
    classes = target if skipped is None else skipped.where(0, target)
    losses = -logs.take_along_axis(classes.unsqueeze(1), 1).squeeze(1)
    factors = None if weight is None else weight.take(classes, 0)
    if skipped is not None:
        factors = skipped.where(0.0, 1.0 if factors is None else factors).cast(logs.dtype)
    weighted = losses if factors is None else losses * factors
    match node.attr("reduction", "mean"):
        case "none":
            return weighted
        case "sum":
            return weighted.sum()
    return weighted.mean() if factors is None else weighted.sum() / factors.sum()


def _cross_entropy(node: Node) -> list[Tensor]:
    logs = node.tensor().log_softmax(1)
    return [_negative_log(node, logs), logs]


CONVERTERS: dict[str, Converter] = {
    "NegativeLogLikelihoodLoss": lambda node: _negative_log(node, node.tensor()),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
