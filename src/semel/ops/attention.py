"""softmax(scores) @ values in one op, so that the scores never need memory.

    scores [*batch, S, T], values [*batch, T, N] --> [*batch, S, N]

What makes the scores (q @ k.T, scale, masks, caps) stays ordinary ops in front of it,
so that any score function is fused the same way. `passes.attention` finds the pattern.
A row of scores that is all -inf gives NaN, as the softmax of it does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from semel.errors import GraphError
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import TensorType
from semel.ops.contract import infer_product, require_product
from semel.ops.numerics import Array
from semel.ops.shapes import REQUIREMENTS


def _infer(attrs: None, *types: TensorType) -> TensorType:
    result = infer_product("softmax_matmul", attrs, *types)
    if not result.dtype.is_float:
        raise GraphError("softmax_matmul", f"operands must be floats, got {types[0]}.")
    return result


def _reference(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    scores, values = (a.astype(np.float64) for a in arrays)
    dtype = node.type.dtype
    with np.errstate(all="ignore"):
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - top)
        result: Array = (weights @ values) / weights.sum(axis=-1, keepdims=True)
    return result.astype(dtype.compute.numpy).astype(dtype.numpy)


register(OpDef("softmax_matmul", "contract", None, _infer, _reference, cost=20))
REQUIREMENTS["softmax_matmul"] = require_product
