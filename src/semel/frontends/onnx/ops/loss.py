"""Losses: classes stand along axis 1, and no class is ignored unless the node says which."""

from __future__ import annotations

from semel.frontends.onnx.node import Converter, Node
from semel.tensor.tensor import Tensor


def _negative_log(node: Node, logs: Tensor) -> Tensor:
    """What `logs` [N, C, ...] say of the classes, negative, weighted and reduced."""
    return logs.nll_loss(
        node.tensor(1),
        weight=node.optional(2),
        axis=1,
        reduction=node.attr("reduction", "mean"),
        ignore_index=node.attr("ignore_index"),
    )


def _cross_entropy(node: Node) -> list[Tensor]:
    logs = node.tensor().log_softmax(1)
    return [_negative_log(node, logs), logs]


CONVERTERS: dict[str, Converter] = {
    "NegativeLogLikelihoodLoss": lambda node: _negative_log(node, node.tensor()),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
