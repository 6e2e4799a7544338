"""RNN, GRU and LSTM."""

from __future__ import annotations

from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.tensor.movement import of_shape
from semel.tensor.recurrent import ACTIVATIONS
from semel.tensor.tensor import Tensor

_NAMES = {name.lower(): name for name in ACTIVATIONS}
#: How many numbers an activation has, where it has any.
_NUMBERS = {
    "Affine": 2, "Elu": 1, "HardSigmoid": 2, "LeakyRelu": 1, "ScaledTanh": 2,
    "ThresholdedRelu": 1,
}  # fmt: skip


def _activations(node: Node) -> list[tuple[str, float, float]] | None:
    """Names with their numbers, which are listed only for those activations that have some."""
    names = node.attr("activations")
    if not names:
        return None
    alphas = iter(node.attr("activation_alpha") or ())
    betas = iter(node.attr("activation_beta") or ())
    found: list[tuple[str, float, float]] = []
    for given in names:
        name = _NAMES.get(given.lower())
        if name is None:
            raise node.refuse(f"activation {given} is not one of {', '.join(ACTIVATIONS)}.")
        _, alpha, beta = ACTIVATIONS[name]
        count = _NUMBERS.get(name, 0)
        alpha = next(alphas, alpha) if count > 0 else alpha
        beta = next(betas, beta) if count > 1 else beta
        found.append((name, alpha, beta))
    return found


def _weights(node: Node, gates: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """W, R and B, in the sizes that the attributes say."""
    w, r, b = node.tensor(1), node.tensor(2), node.optional(3)
    hidden = node.attr("hidden_size") or r.shape[2]
    count = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    rows, where = gates * hidden, repr(node)
    return (
        of_shape(w, (count, rows, node.value().shape[2]), where, "W"),
        of_shape(r, (count, rows, hidden), where, "R"),
        None if b is None else of_shape(b, (count, 2 * rows), where, "B"),
    )


def _options(node: Node) -> dict[str, Any]:
    return {
        "activations": _activations(node),
        "batch_first": node.flag("layout"),
        "clip": node.attr("clip") or None,
        "direction": node.attr("direction", "forward"),
        "initial_h": node.optional(5),
        "sequence_lens": node.optional(4),
    }


def _rnn(node: Node) -> Any:
    return node.tensor().rnn(*_weights(node, 1), **_options(node))


def _gru(node: Node) -> Any:
    linear = node.flag("linear_before_reset")
    return node.tensor().gru(*_weights(node, 3), **_options(node), linear_before_reset=linear)


def _lstm(node: Node) -> Any:
    return node.tensor().lstm(
        *_weights(node, 4),
        **_options(node),
        initial_c=node.optional(6),
        peepholes=node.optional(7),
        input_forget=node.flag("input_forget"),
    )


CONVERTERS: dict[str, Converter] = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}
