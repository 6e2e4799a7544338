"""softmax(scores) @ values in one op, so that the scores never need memory.

    scores [*batch, S, T], values [*batch, T, N] --> [*batch, S, N]

What makes the scores (q @ k.T, scale, masks, caps) stays ordinary ops in front of it,
so that any score function is fused the same way. `passes.attention` finds the pattern.
A row of scores that is all -inf gives NaN, as the softmax of it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from semel.errors import GraphError
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import TensorType
from semel.ops.numerics import Array
from semel.ops.shapes import (
    REQUIREMENTS,
    Requirement,
    check,
    check_count,
    check_same_dtype,
    check_same_rank,
    equal,
)


def _require(attrs: None, scores: TensorType, values: TensorType) -> Iterator[Requirement]:
    for axis, (m, n) in enumerate(zip(scores.shape[:-2], values.shape[:-2], strict=True)):
        yield equal(m, n, f"batch dims {axis} must agree, got {m} in {scores} and {n} in {values}.")
    keys, rows = scores.shape[-1], values.shape[-2]
    yield equal(keys, rows, f"keys must agree, got {keys} in {scores} and {rows} in {values}.")


def _infer(attrs: None, *types: TensorType) -> TensorType:
    check_count("softmax_matmul", types, 2)
    scores, values = types
    check_same_dtype("softmax_matmul", types)
    check_same_rank("softmax_matmul", types)
    if scores.rank < 2 or not scores.dtype.is_float:
        raise GraphError(
            "softmax_matmul", f"operands must be floats of rank >= 2, got {scores} and {values}."
        )
    check("softmax_matmul", attrs, scores, values)
    return TensorType((*scores.shape[:-1], values.shape[-1]), scores.dtype)


def _reference(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    scores, values = (a.astype(np.float64) for a in arrays)
    dtype = node.type.dtype
    with np.errstate(all="ignore"):
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - top)
        result: Array = (weights @ values) / weights.sum(axis=-1, keepdims=True)
    return result.astype(dtype.compute.numpy).astype(dtype.numpy)


register(OpDef("softmax_matmul", "contract", None, _infer, _reference, cost=20))
REQUIREMENTS["softmax_matmul"] = _require
