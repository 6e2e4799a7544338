"""Support vector machines of `ai.onnx.ml`.

    x  --kernel with every support vector-->  (rows, vectors)  --product-->  a score for each pair

Each pair of classes has a score and gives a vote. Where a model has the two numbers of a sigmoid
for each pair, chances of classes are what fits those of all pairs best; they are found by
iterations that stop where the others' do, because one more is seen in the third digit.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.ops.ml import label_of, transformed
from semel.ir.types import FLOAT32
from semel.runtime.buffer import Array
from semel.tensor.tensor import Tensor

DOMAIN = "ai.onnx.ml"
_MOST_ROUNDS = 100
_LEAST_CHANCE = 1e-7


def _kernel(node: Node, x: Tensor, vectors: Array, kind: str) -> Tensor:
    """How alike each row is to each vector."""
    gamma, offset, degree = node.attr("kernel_params") or (0.0, 0.0, 0.0)
    if kind == "RBF":
        apart = x.unsqueeze(1) - Tensor(vectors)
        return ((apart * apart).sum(-1) * -gamma).exp()
    found = x @ Tensor(np.ascontiguousarray(vectors.T))
    match kind:
        case "LINEAR":
            return found
        case "POLY":
            return (found * gamma + offset) ** int(degree)
        case "SIGMOID":
            return (found * gamma + offset).tanh()
    raise node.refuse(f"kernel_type {kind} is not supported.")


def _floats(node: Node, name: str) -> Array:
    return np.asarray(node.attr(name) or [], np.float32)


def _regressor(node: Node) -> Tensor:
    x, count = node.tensor().cast(FLOAT32), node.attr("n_supports", 0)
    weights = _floats(node, "coefficients")
    if count:
        vectors = _floats(node, "support_vectors").reshape(count, -1)
        alike = _kernel(node, x, vectors, node.attr("kernel_type", "LINEAR"))
        found = alike @ Tensor(weights.reshape(count, 1))
    else:
        found = _kernel(node, x, weights.reshape(1, -1), "LINEAR")
    found = found + float(_floats(node, "rho")[0])
    if not node.attr("one_class", 0):
        return found
    return (found > 0).where(Tensor(np.float32(1)), Tensor(np.float32(-1)))


def _classifier(node: Node) -> list[Tensor]:
    labels = node.attr("classlabels_ints") or [0]
    x, sizes = node.tensor().cast(FLOAT32), node.attr("vectors_per_class") or []
    if not sum(sizes):
        weights = _floats(node, "coefficients").reshape(len(labels), -1)
        scores = _kernel(node, x, weights, "LINEAR") + float(_floats(node, "rho")[0])
        return [label_of(labels, scores), transformed(node, scores)]
    pairs = list(combinations(range(len(sizes)), 2))
    scores = _pair_scores(node, x, sizes, pairs)
    best = label_of(labels, _votes(scores, len(sizes), pairs))
    if node.attr("prob_a"):
        return [best, transformed(node, _chances(node, scores, len(sizes), pairs))]
    if len(pairs) == 1:
        scores = Tensor.concat([-scores, scores], -1)
    return [best, transformed(node, scores)]


def _pair_scores(node: Node, x: Tensor, sizes: list[int], pairs: list[tuple[int, int]]) -> Tensor:
    """For each pair of classes, how far a row is on the side of the first one."""
    count = sum(sizes)
    vectors = _floats(node, "support_vectors").reshape(count, -1)
    given = _floats(node, "coefficients").reshape(-1, count)
    ends = np.cumsum(sizes)
    own = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    weights = np.zeros((count, len(pairs)), np.float32)
    for k, (i, j) in enumerate(pairs):
        weights[own[i], k] = given[j - 1, own[i]]
        weights[own[j], k] = given[i, own[j]]
    alike = _kernel(node, x, vectors, node.attr("kernel_type", "LINEAR"))
    return alike @ Tensor(weights) + Tensor(_floats(node, "rho")[: len(pairs)])


def _votes(scores: Tensor, count: int, pairs: list[tuple[int, int]]) -> Tensor:
    """How many pairs each class wins."""
    won = (scores > 0).cast(FLOAT32)
    first, second = (np.zeros((len(pairs), count), np.float32) for _ in range(2))
    for k, (i, j) in enumerate(pairs):
        first[k, i] = second[k, j] = 1
    return won @ Tensor(first) + (1 - won) @ Tensor(second)


def _chances(node: Node, scores: Tensor, count: int, pairs: list[tuple[int, int]]) -> Tensor:
    """The chance of each class, from those of one in each pair."""
    slope, offset = (Tensor(_floats(node, name)) for name in ("prob_a", "prob_b"))
    one = 1 - (scores * slope + offset).sigmoid()
    one = one.maximum(_LEAST_CHANCE).minimum(1 - _LEAST_CHANCE)
    zero = one.narrow(1, 0, 1) * 0
    beats = [[zero for _ in range(count)] for _ in range(count)]  # [i][j]: i, of i and j
    for k, (i, j) in enumerate(pairs):
        beats[i][j] = one.narrow(1, k, 1)
        beats[j][i] = 1 - beats[i][j]
    table: list[list[Any]] = [
        [-beats[j][i] * beats[i][j] for j in range(count)] for i in range(count)
    ]
    for i in range(count):
        table[i][i] = sum((beats[j][i] * beats[j][i] for j in range(count) if j != i), zero)
    rows = [Tensor.concat(row, 1) for row in table]  # the matrix of a quadratic form, by rows
    return _least(rows, zero, count)


def _least(rows: list[Tensor], zero: Tensor, count: int) -> Tensor:
    """Chances p, which add up to 1, where the quadratic form is least; coordinate by coordinate."""
    near = 0.005 / count

    def product(p: Tensor) -> tuple[Tensor, Tensor]:
        found = Tensor.concat([(row * p).sum(1, keepdims=True) for row in rows], 1)
        return found, (p * found).sum(1, keepdims=True)

    def is_far(p: Tensor) -> Tensor:
        found, least = product(p)
        return ((found - least).abs().max(1, keepdims=True) < near).logical_not()

    def body(states: list[Tensor]) -> list[Tensor]:
        before, far = states
        p = before
        found, least = product(p)
        for t, row in enumerate(rows):
            own = row.narrow(1, t, 1)
            step = (least - found.narrow(1, t, 1)) / own
            after = 1 + step
            least = (least + step * (step * own + 2 * found.narrow(1, t, 1))) / (after * after)
            unit = np.eye(count, dtype=np.float32)[t : t + 1]
            p = (p + step * Tensor(unit)) / after
            found = (found + step * row) / after
        p = far.where(p, before)
        return [p, is_far(p)]

    begin = Tensor.concat([zero + 1.0 / count] * count, 1)
    states = [begin, is_far(begin)]
    found: Tensor = Tensor.while_loop(lambda s: s[1].any(), body, states, _MOST_ROUNDS)[0]
    return found


CONVERTERS: dict[str, Converter] = {"SVMClassifier": _classifier, "SVMRegressor": _regressor}
