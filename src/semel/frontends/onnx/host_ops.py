"""Operators of the host that `onnx.reference` has not, or not in all their forms.

    ZipMap            a row of scores  -->  {label: score}
    TfIdfVectorizer   words            -->  how often n-grams of a vocabulary occur

They are given to the evaluator beside its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from semel.runtime.buffer import Array


class ZipMap(OpRun):  # type: ignore[misc]
    """One dictionary for each row: scores by their labels."""

    op_domain = "ai.onnx.ml"

    def _run(self, scores: Array, **attributes: Any) -> tuple[list[dict[Any, float]]]:
        labels = attributes.get("classlabels_int64s") or attributes.get("classlabels_strings") or []
        rows = scores.reshape(-1, scores.shape[-1]).tolist()
        if rows and len(rows[0]) != len(labels):
            raise ValueError(f"a row has {len(rows[0])} scores for {len(labels)} labels")
        return ([dict(zip(labels, row, strict=True)) for row in rows],)


class TfIdfVectorizer(OpRun):  # type: ignore[misc]
    """How often n-grams occur in each row; elements between those of an n-gram may be skipped."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        rows = x if x.ndim == 2 else x.reshape(1, -1)
        grams = _vocabulary(attributes)
        found = np.zeros((len(rows), max(attributes["ngram_indexes"]) + 1), np.float32)
        for row, counts in zip(rows.tolist(), found, strict=True):
            for words in _windows(row, attributes):
                position = grams.get(words)
                if position is not None:
                    counts[position] += 1
        found = _weighted(found, attributes)
        return (found if x.ndim == 2 else found[0],)


def _vocabulary(attributes: Mapping[str, Any]) -> dict[tuple[Any, ...], int]:
    """Positions in the result by n-gram; the pool has the shorter ones first."""
    pool = attributes.get("pool_strings") or attributes["pool_int64s"]
    starts, positions = attributes["ngram_counts"], iter(attributes["ngram_indexes"])
    found: dict[tuple[Any, ...], int] = {}
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        for at in range(start, end - length + 1, length):
            found[tuple(pool[at : at + length])] = next(positions)
    return found


def _windows(row: Sequence[Any], attributes: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """All sequences of a row that may be an n-gram."""
    for length in range(attributes["min_gram_length"], attributes["max_gram_length"] + 1):
        most_skipped = attributes["max_skip_count"] if length > 1 else 0
        for step in range(1, most_skipped + 2):
            columns = [row[i * step :] for i in range(length)]
            yield from zip(*columns, strict=False)


def _weighted(counts: Array, attributes: Mapping[str, Any]) -> Array:
    """Weights are in the order of the pool, as in the compiled operator."""
    weights = np.ones(counts.shape[1], np.float32)
    if attributes.get("weights"):
        weights[list(attributes["ngram_indexes"])] = attributes["weights"]
    match attributes["mode"]:
        case "TF":
            return counts
        case "IDF":
            return np.asarray((counts > 0) * weights, np.float32)
        case _:
            return counts * weights


HOST_OPS = [ZipMap, TfIdfVectorizer]
