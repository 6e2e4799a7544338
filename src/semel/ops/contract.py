"""Contraction: matmul.

    a [*batch, M, K], b [*batch, K, N] --> [*batch, M, N]

The operands have one dtype and equal batch dims; a frontend expands and reshapes. Half
types accumulate in float32 and round once; integers wrap in their dtype; bool is the or
of ands. The reference multiplies floats in float64 and rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim
from semel.ir.graph import Node
from semel.ir.opdef import Contraction, Indices, OpDef, register
from semel.ir.types import TensorType
from semel.ops.index_maps import Fresh, contraction_index
from semel.ops.numerics import Array
from semel.ops.shapes import (
    Requirement,
    check,
    check_count,
    check_same_dtype,
    check_same_rank,
    equal,
)

#: How many columns of a matmul a kernel takes at once: by how many there are, and the bits
#: of an accumulator.
PanelWidth = Callable[[Dim, int], int]


def one_width(lanes: int) -> PanelWidth:
    """Panels of the same width for every matmul."""
    return lambda columns, bits: lanes


def require_product(attrs: None, a: TensorType, b: TensorType) -> Iterator[Requirement]:
    """Batch dims and the contracted dims agree."""
    for axis, (m, n) in enumerate(zip(a.shape[:-2], b.shape[:-2], strict=True)):
        if m != n:
            yield equal(m, n, f"batch dims {axis} must agree, got {m} in {a} and {n} in {b}.")
    k_a, k_b = a.shape[-1], b.shape[-2]
    if k_a != k_b:
        yield equal(k_a, k_b, _inner_dims(a, b))


def _inner_dims(a: TensorType, b: TensorType) -> str:
    found = f"got {a.shape[-1]}, the last of {a}, and {b.shape[-2]}, the last but one of {b}"
    meant = ": did you mean x @ y.mT?" if a.shape[-1] == b.shape[-1] else "."
    return f"inner dims must agree, {found}{meant}"


def infer_product(op: str, attrs: None, *types: TensorType) -> TensorType:
    """The type of a contraction of a's last axis with b's last but one."""
    check_count(op, types, 2)
    a, b = types
    check_same_dtype(op, types)
    check_same_rank(op, types)
    if a.rank < 2:
        raise GraphError(op, f"operands must have rank >= 2, got {a} and {b}.")
    check(op, attrs, a, b)
    return TensorType((*a.shape[:-1], b.shape[-1]), a.dtype)


def wanted_product(node: Node, at: Indices, fresh: Fresh) -> tuple[Dim, tuple[Indices, ...]]:
    """A row of a and a column of b, along the loop that they share."""
    inner = contraction_index(node, fresh)
    return inner, ((*at[:-1], inner), (*at[:-2], inner, at[-1]))


def _reference_matmul(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    a, b = arrays
    dtype = node.type.dtype
    if dtype.is_float:
        wide: Array = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return wide.astype(dtype.compute.numpy).astype(dtype.numpy)
    result: Array = np.matmul(a, b)
    return result


register(
    OpDef(
        "matmul",
        "contract",
        None,
        partial(infer_product, "matmul"),
        _reference_matmul,
        cost=2,
        require=require_product,
        contraction=Contraction(
            wanted_product, stages="narrow", makes_scores=True, widens=True, tiles=True
        ),
    )
)
