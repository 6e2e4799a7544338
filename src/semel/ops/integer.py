"""Contractions of bytes: what quantised models multiply.

    matmul_integer   a [*batch, M, K], b [*batch, K, N] of 8-bit integers --> int32
    matmul_words     a [*batch, M, K] bytes, b [*batch, >= K / 4, N] words --> int32
    matmul_small_words   the same, for bytes b in [-64, 64]

Sums are exact until they wrap in int32. Zero points are no part of the ops: they are sums of
rows and columns, computed beside (`passes.quantise`). A word holds four signed bytes of one
column, those of k = 4g, 4g + 1, ... from the lowest bits up; what it holds past K does not
count. `passes.pack_bytes` makes the second form of the first, for targets with dot products, and
the third for those whose sums of two products of bytes saturate 16 bits, which small ones cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, ceildiv
from semel.ir.graph import Node
from semel.ir.opdef import Contraction, Indices, OpDef, register
from semel.ir.types import INT32, TensorType
from semel.ops.contract import require_product, wanted_product
from semel.ops.index_maps import Fresh, contraction_index
from semel.ops.numerics import Array
from semel.ops.shapes import (
    Requirement,
    at_most,
    check,
    check_count,
    check_same_rank,
    equal,
)


def _infer(op: str, b_bits: int, attrs: None, types: tuple[TensorType, ...]) -> TensorType:
    check_count(op, types, 2)
    a, b = types
    check_same_rank(op, types)
    for operand, bits in ((a, 8), (b, b_bits)):
        if not operand.dtype.is_integer or operand.dtype.bits != bits:
            raise GraphError(op, f"needs a {bits}-bit integer operand, got {operand}.")
    if a.rank < 2:
        raise GraphError(op, f"operands must have rank >= 2, got {a} and {b}.")
    check(op, attrs, a, b)
    return TensorType((*a.shape[:-1], b.shape[-1]), INT32)


def _infer_bytes(attrs: None, *types: TensorType) -> TensorType:
    return _infer("matmul_integer", 8, attrs, types)


def _infer_words(op: str, attrs: None, *types: TensorType) -> TensorType:
    return _infer(op, 32, attrs, types)


def _require_words(attrs: None, a: TensorType, b: TensorType) -> Iterator[Requirement]:
    for axis, (m, n) in enumerate(zip(a.shape[:-2], b.shape[:-2], strict=True)):
        yield equal(m, n, f"batch dims {axis} must agree, got {m} in {a} and {n} in {b}.")
    words, got = ceildiv(a.shape[-1], 4), b.shape[-2]
    yield at_most(words, got, f"{a} needs {words} words of k, got {got} in {b}.")


def _wanted_words(node: Node, at: Indices, fresh: Fresh) -> tuple[Dim, tuple[Indices, ...]]:
    inner = contraction_index(node, fresh)
    word = fresh(node.inputs[1].type.shape[-2])
    return inner, ((*at[:-1], inner), (*at[:-2], word, at[-1]))


def _reference(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    a, b = (x.astype(np.int64) for x in arrays)
    result: Array = np.matmul(a, b).astype(np.int32)
    return result


def _reference_words(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    a, words = arrays
    parts = [((words >> (8 * j)) & 0xFF).astype(np.uint8).view(np.int8) for j in range(4)]
    right = np.stack(parts, axis=-2)  # [*batch, words, 4, N]
    right = right.reshape(*words.shape[:-2], 4 * words.shape[-2], words.shape[-1])
    depth = a.shape[-1]
    result: Array = np.matmul(a.astype(np.int64), right[..., :depth, :].astype(np.int64)).astype(
        np.int32
    )
    return result


register(
    OpDef(
        "matmul_integer",
        "contract",
        None,
        _infer_bytes,
        _reference,
        cost=2,
        require=require_product,
        contraction=Contraction(wanted_product),
    )
)
for _name in ("matmul_words", "matmul_small_words"):
    register(
        OpDef(
            _name,
            "contract",
            None,
            partial(_infer_words, _name),
            _reference_words,
            cost=2,
            require=_require_words,
            contraction=Contraction(_wanted_words, stages="always", column_bits=8),
        )
    )
