"""Elementwise ops: one result element from the operands' elements at the same index.

    operands of one dtype and one shape --> a tensor of that shape

No op here broadcasts or converts: a frontend inserts `reshape`, `expand` and `cast`.
Two dims that differ but may agree at run time are accepted: the result has the first
operand's dim and the pair becomes a guard. What integers and half types do at the edges
(division by zero, shifts past the width, saturating casts) is defined in
`semel.ops.numerics`. `max` and `min` give NaN if either operand is NaN.

Most ops are rows of the tables at the end; those that read attrs have their own rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import evaluate
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.signature import CheckInfo
from semel.ir.types import BOOL, INT64, UINT32, DType, TensorType
from semel.ops import numerics
from semel.ops.attrs import CastAttrs, CheckIndexAttrs, IotaAttrs, RandomBitsAttrs
from semel.ops.numerics import Array, Function, approximate, exact
from semel.ops.philox import random_words
from semel.ops.shapes import (
    Requirement,
    check,
    check_axis,
    check_count,
    check_dims,
    check_dtype,
    check_same_dtype,
    check_same_rank,
    equal,
    same_dims,
)

Env = Mapping[str, int]

_KINDS = {
    "any": ("biuf", "any dtype"),
    "number": ("iuf", "an integer or a float dtype"),
    "integer": ("iu", "an integer dtype"),
    "bits": ("biu", "a bool or an integer dtype"),
    "float": ("f", "a float dtype"),
}


def _pairwise(attrs: Any, *types: TensorType) -> Iterator[Requirement]:
    for other in types[1:]:
        yield from same_dims(types[0], other)


def _check_operands(op: str, types: tuple[TensorType, ...], arity: int) -> None:
    check_count(op, types, arity)
    check_same_rank(op, types)
    check(op, None, *types)


@dataclass(frozen=True, slots=True)
class _Row:
    """One scalar function: `domain` is a key of _KINDS, `result` the dtype if not the operands'."""

    name: str
    arity: int
    domain: str
    function: Function
    cost: int
    result: DType | None = None

    def infer(self, attrs: None, *types: TensorType) -> TensorType:
        _check_operands(self.name, types, self.arity)
        check_same_dtype(self.name, types)
        check_dtype(self.name, types[0], *_KINDS[self.domain])
        return TensorType(types[0].shape, self.result or types[0].dtype)

    def reference(self, node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
        value = self.function(node.inputs[0].type.dtype, *arrays)
        return np.asarray(value).astype(node.type.dtype.numpy)


def _infer_where(attrs: None, *types: TensorType) -> TensorType:
    _check_operands("where", types, 3)
    check_dtype("where", types[0], "b", "a bool condition")
    check_same_dtype("where", types[1:])
    return TensorType(types[0].shape, types[1].dtype)


def _reference_where(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return np.where(*arrays).astype(node.type.dtype.numpy)


def _infer_cast(attrs: CastAttrs, *types: TensorType) -> TensorType:
    check_count("cast", types, 1)
    return TensorType(types[0].shape, attrs.dtype)


def _reference_cast(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return numerics.convert(arrays[0], node.inputs[0].type.dtype, node.attrs.dtype)


def _infer_bitcast(attrs: CastAttrs, *types: TensorType) -> TensorType:
    check_count("bitcast", types, 1)
    if types[0].dtype.bits != attrs.dtype.bits:
        raise GraphError(
            "bitcast", f"dtypes must have one width, got {types[0]} and {attrs.dtype}."
        )
    return TensorType(types[0].shape, attrs.dtype)


def _reference_bitcast(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return np.ascontiguousarray(arrays[0]).view(node.type.dtype.numpy).reshape(arrays[0].shape)


def _infer_iota(attrs: IotaAttrs, *types: TensorType) -> TensorType:
    check_count("iota", types, 0)
    check_dims("iota", attrs.shape)
    result = TensorType(attrs.shape, attrs.dtype)
    check_axis("iota", attrs.axis, result)
    return result


def _reference_iota(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    shape = tuple(evaluate(d, env) for d in node.attrs.shape)
    column = [1] * len(shape)
    column[node.attrs.axis] = shape[node.attrs.axis]
    counting = np.arange(shape[node.attrs.axis], dtype=np.int64)
    values = (evaluate(node.attrs.start, env) + counting).reshape(column)
    return np.broadcast_to(numerics.convert(values, INT64, node.type.dtype), shape)


def _infer_random_bits(attrs: RandomBitsAttrs, *types: TensorType) -> TensorType:
    check_count("random_bits", types, 1)
    if types[0].dtype != UINT32 or types[0].rank != 1:
        raise GraphError("random_bits", f"key must be u32[2], got {types[0]}.")
    check("random_bits", attrs, *types)
    check_dims("random_bits", attrs.shape)
    return TensorType(attrs.shape, UINT32)


def _require_key(attrs: RandomBitsAttrs, key: TensorType) -> Iterator[Requirement]:
    yield equal(key.shape[0], 2, f"key must be u32[2], got {key}.")


def _reference_random_bits(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    shape = tuple(evaluate(d, env) for d in node.attrs.shape)
    return random_words(int(np.prod(shape, dtype=np.int64)), arrays[0]).reshape(shape)


def _infer_check_index(attrs: CheckIndexAttrs, *types: TensorType) -> TensorType:
    check_count("check_index", types, 1)
    check_dtype("check_index", types[0], *_KINDS["integer"])
    return TensorType(types[0].shape, INT64)


def _reference_check_index(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    indices, size = arrays[0], evaluate(node.attrs.size, env)
    check = index_check(node)
    check_indices(indices, size, check)
    found = indices.astype(np.int64)
    return np.where(found < 0, found + size, found)


def index_check(node: Node) -> CheckInfo:
    """What it means that a `check_index` node fails."""
    unsigned = node.inputs[0].type.dtype.kind == "u"
    origin = node.origins[0] if node.origins else ""
    return CheckInfo(node.attrs.where, node.attrs.what, node.attrs.size, unsigned, origin)


def check_indices(indices: Array, size: int, check: CheckInfo) -> None:
    """Raise IndexRangeError for the first index out of range."""
    # A uint64 past int64 must not wrap into the range: it is compared as what it is.
    outside = np.asarray(indices >= size)
    if indices.dtype.kind == "i":
        outside |= indices < (-size if check.what == "index" else 0)
    if outside.any():
        raise check.refusal(size, int(indices[outside].flat[0]), check.origin)


def _comparison(function: Function) -> Function:
    return lambda dtype, a, b: function(numerics.widen(a, dtype), numerics.widen(b, dtype))


_ROWS = (
    _Row("neg", 1, "number", exact(np.negative), 1),
    _Row("abs", 1, "number", exact(np.abs), 1),
    _Row("sign", 1, "number", exact(np.sign), 3),
    _Row("not", 1, "bits", exact(np.invert), 1),
    _Row("sqrt", 1, "float", exact(np.sqrt), 6),
    _Row("floor", 1, "float", exact(np.floor), 1),
    _Row("ceil", 1, "float", exact(np.ceil), 1),
    _Row("trunc", 1, "float", exact(np.trunc), 1),
    _Row("rint", 1, "float", exact(np.rint), 1),
    _Row("exp", 1, "float", approximate(np.exp), 14),
    _Row("exp2", 1, "float", approximate(np.exp2), 12),
    _Row("expm1", 1, "float", approximate(np.expm1), 20),
    _Row("log", 1, "float", approximate(np.log), 20),
    _Row("log2", 1, "float", approximate(np.log2), 22),
    _Row("log10", 1, "float", approximate(np.log10), 22),
    _Row("log1p", 1, "float", approximate(np.log1p), 26),
    _Row("sin", 1, "float", approximate(np.sin), 24),
    _Row("cos", 1, "float", approximate(np.cos), 24),
    _Row("tan", 1, "float", approximate(np.tan), 36),
    _Row("asin", 1, "float", approximate(np.arcsin), 24),
    _Row("acos", 1, "float", approximate(np.arccos), 24),
    _Row("atan", 1, "float", approximate(np.arctan), 22),
    _Row("sinh", 1, "float", approximate(np.sinh), 30),
    _Row("cosh", 1, "float", approximate(np.cosh), 30),
    _Row("tanh", 1, "float", approximate(np.tanh), 20),
    _Row("asinh", 1, "float", approximate(np.arcsinh), 34),
    _Row("acosh", 1, "float", approximate(np.arccosh), 34),
    _Row("atanh", 1, "float", approximate(np.arctanh), 34),
    _Row("erf", 1, "float", approximate(numerics.erf), 24),
    _Row("gelu", 1, "float", approximate(numerics.gelu), 28),
    _Row("sigmoid", 1, "float", approximate(numerics.sigmoid), 18),
    _Row("isnan", 1, "float", exact(np.isnan), 1, BOOL),
    _Row("isinf", 1, "float", exact(np.isinf), 2, BOOL),
    _Row("add", 2, "number", exact(np.add), 1),
    _Row("sub", 2, "number", exact(np.subtract), 1),
    _Row("mul", 2, "number", exact(np.multiply), 1),
    _Row("div", 2, "float", exact(np.divide), 4),
    _Row("idiv", 2, "number", exact(numerics.floor_divide), 20),
    _Row("imod", 2, "number", exact(numerics.floor_mod), 20),
    _Row("fmod", 2, "float", exact(np.fmod), 30),
    _Row("pow", 2, "float", approximate(np.power), 50),
    _Row("atan2", 2, "float", approximate(np.arctan2), 30),
    _Row("max", 2, "any", exact(np.maximum), 2),
    _Row("min", 2, "any", exact(np.minimum), 2),
    _Row("and", 2, "bits", exact(np.bitwise_and), 1),
    _Row("or", 2, "bits", exact(np.bitwise_or), 1),
    _Row("xor", 2, "bits", exact(np.bitwise_xor), 1),
    _Row("shl", 2, "integer", exact(numerics.shift_left), 3),
    _Row("shr", 2, "integer", exact(numerics.shift_right), 3),
    _Row("eq", 2, "any", _comparison(np.equal), 1, BOOL),
    _Row("ne", 2, "any", _comparison(np.not_equal), 1, BOOL),
    _Row("lt", 2, "any", _comparison(np.less), 1, BOOL),
    _Row("le", 2, "any", _comparison(np.less_equal), 1, BOOL),
    _Row("gt", 2, "any", _comparison(np.greater), 1, BOOL),
    _Row("ge", 2, "any", _comparison(np.greater_equal), 1, BOOL),
)

for _row in _ROWS:
    register(
        OpDef(_row.name, "elementwise", None, _row.infer, _row.reference, _row.cost, _pairwise)
    )

_RULES: tuple[tuple[str, type | None, Function, Function, int, Function | None], ...] = (
    ("where", None, _infer_where, _reference_where, 1, _pairwise),
    ("cast", CastAttrs, _infer_cast, _reference_cast, 2, None),
    ("bitcast", CastAttrs, _infer_bitcast, _reference_bitcast, 0, None),
    ("iota", IotaAttrs, _infer_iota, _reference_iota, 1, None),
    ("random_bits", RandomBitsAttrs, _infer_random_bits, _reference_random_bits, 70, _require_key),
    ("check_index", CheckIndexAttrs, _infer_check_index, _reference_check_index, 4, None),
)

for _name, _attrs, _infer, _reference, _cost, _require in _RULES:
    register(OpDef(_name, "elementwise", _attrs, _infer, _reference, _cost, _require))

#: Ops of one operand and one result without attrs, two, and the comparisons among them.
UNARY = tuple(r.name for r in _ROWS if r.arity == 1)
BINARY = tuple(r.name for r in _ROWS if r.arity == 2)
COMPARISONS = tuple(r.name for r in _ROWS if r.arity == 2 and r.result is BOOL)
