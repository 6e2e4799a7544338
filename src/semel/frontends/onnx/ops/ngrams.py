"""TfIdfVectorizer of integers: how often sequences of them occur in each row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np

from semel.frontends.onnx.node import Converter, Node
from semel.ir.dims import maximum
from semel.ir.types import FLOAT32, INT64
from semel.tensor.tensor import Tensor


def _tf_idf(node: Node) -> Tensor:
    x = node.tensor().cast(INT64)
    rows = x if x.ndim == 2 else x.reshape(1, -1)
    indexes = list(node.attr("ngram_indexes"))
    counts = {k: Tensor.zeros(rows.shape[0]) for k in range(max(indexes) + 1)}
    for gram, position in zip(_grams(node), indexes, strict=True):
        if node.attr("min_gram_length") <= len(gram) <= node.attr("max_gram_length"):
            counts[position] = counts[position] + _occurrences(node, rows, gram)
    found = Tensor.stack([counts[k] for k in sorted(counts)], 1)
    weighted = _weighted(node, found, indexes)
    return weighted if x.ndim == 2 else weighted.reshape(-1)


def _grams(node: Node) -> Iterator[list[int]]:
    """All n-grams of the pool, the shorter ones first, as their indexes count them."""
    pool, starts = node.attr("pool_int64s"), list(node.attr("ngram_counts"))
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        for at in range(start, end - length + 1, length):
            yield list(pool[at : at + length])


def _occurrences(node: Node, rows: Tensor, gram: list[int]) -> Tensor:
    """How often it occurs in each row, with every number of elements left out between."""
    total = Tensor.zeros(rows.shape[0])
    skips = range(node.attr("max_skip_count") + 1) if len(gram) > 1 else range(1)
    for distance in (skip + 1 for skip in skips):
        places = maximum(rows.shape[1] - (len(gram) - 1) * distance, 0)
        if places == 0:
            continue
        padded = rows.pad(((0, 0), (0, (len(gram) - 1) * distance)))
        hits = [
            padded.narrow(1, k * distance, rows.shape[1]).eq(item) for k, item in enumerate(gram)
        ]
        inside = Tensor.arange(rows.shape[1]) < places
        total = total + (reduce(Tensor.__and__, hits) & inside).cast(FLOAT32).sum(1)
    return total


def _weighted(node: Node, counts: Tensor, indexes: list[int]) -> Tensor:
    weights = np.ones(max(indexes) + 1, np.float32)
    if node.attr("weights") is not None:  # in the order of the pool, as in ONNX Runtime
        weights[indexes] = node.attr("weights")
    match node.attr("mode"):
        case "TF":
            return counts
        case "IDF":
            return (counts > 0).cast(FLOAT32) * weights
        case _:
            return counts * weights


CONVERTERS: dict[str, Converter] = {"TfIdfVectorizer": _tf_idf}
