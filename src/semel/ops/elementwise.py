"""Elementwise ops: one result element from the operands' elements at the same index.

    operands of one dtype and one shape --> a tensor of that shape

No op here broadcasts or converts: a frontend inserts `reshape`, `expand` and `cast`.
Two dims that differ but may agree at run time are accepted: the result has the first
operand's dim and the pair becomes a guard. What integers and half types do at the edges
(division by zero, shifts past the width, saturating casts) is defined in
`semel.ops.numerics`. `max` and `min` give NaN if either operand is NaN.

Most ops are rows of the table at the end; those that read attrs have their own rules.
A row is the whole op: its dtypes, its meaning in NumPy, its cost and its value in the kernel IR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import evaluate
from semel.ir.graph import Node
from semel.ir.opdef import Indices, OpDef, register
from semel.ir.signature import CheckInfo
from semel.ir.types import BOOL, INT64, UINT32, UINT64, DType, TensorType
from semel.kernel import values as kernel
from semel.kernel.values import Value
from semel.ops import numerics, scalars
from semel.ops.attrs import CastAttrs, CheckIndexAttrs, IotaAttrs, RandomBitsAttrs
from semel.ops.elements import Elements
from semel.ops.index_maps import Gathered, flat_index
from semel.ops.numerics import Array, Function, approximate, exact
from semel.ops.philox import philox_value, random_words
from semel.ops.shapes import (
    Requirement,
    check,
    check_axis,
    check_count,
    check_dims,
    check_domain,
    check_dtype,
    check_same_dtype,
    check_same_rank,
    equal,
    same_dims,
)

Env = Mapping[str, int]


def _pairwise(attrs: Any, *types: TensorType) -> Iterator[Requirement]:
    for other in types[1:]:
        yield from same_dims(types[0], other)


def _check_operands(op: str, types: tuple[TensorType, ...], arity: int) -> None:
    check_count(op, types, arity)
    check_same_rank(op, types)
    check(op, None, *types)


@dataclass(frozen=True, slots=True)
class Scalar:
    """An op that is one function of scalars, and what it means for tensors.

    `domain` is a key of `shapes.DOMAINS`; `numeric` is `exact` (rounded correctly), `approximate`
    (computed in float64) or `compared`, and says how `function`, which is NumPy's, is applied.
    `value` makes the result of kernel values; an op with a kernel op of its name needs none.
    `result` is the dtype if it is not the operands'. `specials` are as `OpDef` says.
    """

    name: str
    arity: int
    domain: str
    numeric: Callable[[Function], Function]
    function: Function
    cost: int
    value: Callable[..., Value] | None = None
    result: DType | None = None
    is_product: bool = False
    specials: tuple[float, ...] = ()

    @property
    def op(self) -> OpDef:
        """The op's record."""
        return OpDef(
            self.name,
            "elementwise",
            None,
            self.infer,
            partial(_reference, self.numeric(self.function)),
            self.cost,
            _pairwise,
            value=self.value or partial(kernel.op, self.name),
            is_approximate=self.numeric is approximate,
            is_exact=True,
            specials=self.specials,
            is_product=self.is_product,
        )

    def infer(self, attrs: None, *types: TensorType) -> TensorType:
        _check_operands(self.name, types, self.arity)
        check_same_dtype(self.name, types)
        check_domain(self.name, types[0], self.domain)
        return TensorType(types[0].shape, self.result or types[0].dtype)


def _reference(function: Function, node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    value = function(node.inputs[0].type.dtype, *arrays)
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


def _element_cast(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    return kernel.cast(elements(node.inputs[0], at, guard), node.type.dtype)


def _infer_bitcast(attrs: CastAttrs, *types: TensorType) -> TensorType:
    check_count("bitcast", types, 1)
    if types[0].dtype.pattern_bits != attrs.dtype.pattern_bits:
        raise GraphError(
            "bitcast", f"dtypes must have one width, got {types[0]} and {attrs.dtype}."
        )
    return TensorType(types[0].shape, attrs.dtype)


def _reference_bitcast(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return np.ascontiguousarray(arrays[0]).view(node.type.dtype.numpy).reshape(arrays[0].shape)


def _element_bitcast(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    return kernel.bitcast(elements(node.inputs[0], at, guard), node.type.dtype)


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


def _element_iota(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    return kernel.cast(kernel.index(node.attrs.start + at[node.attrs.axis]), node.type.dtype)


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


def _element_random_bits(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    key = [elements(node.inputs[0], (k,), guard) for k in (0, 1)]
    position = kernel.cast(kernel.index(flat_index(at, node.type.shape)), UINT64)
    return philox_value(position, key[0], key[1])


def _index_of_key(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    return (0,)


def _infer_check_index(attrs: CheckIndexAttrs, *types: TensorType) -> TensorType:
    check_count("check_index", types, 1)
    check_domain("check_index", types[0], "integer")
    return TensorType(types[0].shape, INT64)


def _reference_check_index(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    indices, size = arrays[0], evaluate(node.attrs.size, env)
    check = index_check(node)
    check_indices(indices, size, check)
    found = indices.astype(np.int64)
    return np.where(found < 0, found + size, found)


def _element_check_index(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    value = kernel.cast(elements(node.inputs[0], at, guard), INT64)
    size, zero = kernel.index(node.attrs.size), kernel.const(INT64, 0)
    wrapped = value
    if node.inputs[0].type.dtype.kind == "i" and node.attrs.what == "index":
        # Of unsigned integers only the largest uint64 look negative here: out of range.
        wrapped = kernel.select(value < zero, value + size, value)
    ok = (wrapped >= zero) & (wrapped < size)
    elements.check(index_check(node), ok, value, guard)
    return kernel.select(ok, wrapped, zero)


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


def compared(function: Function) -> Function:
    """A comparison: exact, of the operands as arithmetic sees them."""
    return lambda dtype, a, b: function(numerics.widen(a, dtype), numerics.widen(b, dtype))


_SCALARS = (
    Scalar("neg", 1, "number", exact, np.negative, 1),
    Scalar("abs", 1, "number", exact, np.abs, 1),
    Scalar("sign", 1, "number", exact, np.sign, 3, scalars.sign),
    Scalar("not", 1, "bits", exact, np.invert, 1),
    Scalar("sqrt", 1, "float", exact, np.sqrt, 6),
    Scalar("floor", 1, "float", exact, np.floor, 1),
    Scalar("ceil", 1, "float", exact, np.ceil, 1),
    Scalar("trunc", 1, "float", exact, np.trunc, 1),
    Scalar("rint", 1, "float", exact, np.rint, 1),
    Scalar("exp", 1, "float", approximate, np.exp, 14),
    # exp of what is known not to be positive (`passes.decays`).
    Scalar("decay", 1, "float", approximate, np.exp, 14),
    Scalar("exp2", 1, "float", approximate, np.exp2, 12),
    Scalar("expm1", 1, "float", approximate, np.expm1, 20),
    Scalar("log", 1, "float", approximate, np.log, 20),
    Scalar("log2", 1, "float", approximate, np.log2, 22),
    Scalar("log10", 1, "float", approximate, np.log10, 22),
    Scalar("log1p", 1, "float", approximate, np.log1p, 26),
    Scalar("sin", 1, "float", approximate, np.sin, 24),
    Scalar("cos", 1, "float", approximate, np.cos, 24),
    Scalar("tan", 1, "float", approximate, np.tan, 36),
    Scalar("asin", 1, "float", approximate, np.arcsin, 24),
    Scalar("acos", 1, "float", approximate, np.arccos, 24),
    Scalar("atan", 1, "float", approximate, np.arctan, 22),
    Scalar("sinh", 1, "float", approximate, np.sinh, 30),
    Scalar("cosh", 1, "float", approximate, np.cosh, 30),
    Scalar("tanh", 1, "float", approximate, np.tanh, 20),
    Scalar("asinh", 1, "float", approximate, np.arcsinh, 34),
    Scalar("acosh", 1, "float", approximate, np.arccosh, 34),
    Scalar("atanh", 1, "float", approximate, np.arctanh, 34),
    Scalar("erf", 1, "float", approximate, numerics.erf, 24),
    Scalar("gelu", 1, "float", approximate, numerics.gelu, 28),
    Scalar("sigmoid", 1, "float", approximate, numerics.sigmoid, 18),
    Scalar("isnan", 1, "float", exact, np.isnan, 1, scalars.isnan, BOOL),
    Scalar("isinf", 1, "float", exact, np.isinf, 2, scalars.isinf, BOOL),
    Scalar("add", 2, "number", exact, np.add, 1),
    Scalar("sub", 2, "number", exact, np.subtract, 1),
    Scalar("mul", 2, "number", exact, np.multiply, 1, is_product=True),
    Scalar("div", 2, "float", exact, np.divide, 4),
    Scalar("idiv", 2, "number", exact, numerics.floor_divide, 20, scalars.idiv),
    Scalar("imod", 2, "number", exact, numerics.floor_mod, 20, scalars.imod),
    Scalar("fmod", 2, "float", exact, np.fmod, 30),
    # One, the operand, and a product of it, which a sum does not round.
    Scalar("pow", 2, "float", approximate, np.power, 50, specials=(0.0, 1.0, 2.0)),
    Scalar("atan2", 2, "float", approximate, np.arctan2, 30),
    Scalar("max", 2, "any", exact, kernel.larger, 2),
    Scalar("min", 2, "any", exact, kernel.smaller, 2),
    Scalar("and", 2, "bits", exact, np.bitwise_and, 1),
    Scalar("or", 2, "bits", exact, np.bitwise_or, 1),
    Scalar("xor", 2, "bits", exact, np.bitwise_xor, 1),
    Scalar("shl", 2, "integer", exact, numerics.shift_left, 3),
    Scalar("shr", 2, "integer", exact, numerics.shift_right, 3),
    Scalar("eq", 2, "any", compared, np.equal, 1, result=BOOL),
    Scalar("ne", 2, "any", compared, np.not_equal, 1, result=BOOL),
    Scalar("lt", 2, "any", compared, np.less, 1, result=BOOL),
    Scalar("le", 2, "any", compared, np.less_equal, 1, result=BOOL),
    Scalar("gt", 2, "any", compared, np.greater, 1, result=BOOL),
    Scalar("ge", 2, "any", compared, np.greater_equal, 1, result=BOOL),
)

for _scalar in _SCALARS:
    register(_scalar.op)

_op = partial(OpDef, kind="elementwise", is_exact=True)

for _each in (
    _op(
        "where",
        attrs=None,
        infer=_infer_where,
        reference=_reference_where,
        cost=1,
        require=_pairwise,
        value=kernel.select,
        carries=True,
    ),
    _op(
        "cast",
        attrs=CastAttrs,
        infer=_infer_cast,
        reference=_reference_cast,
        cost=2,
        element=_element_cast,
        converts=True,
        carries=True,
    ),
    _op(
        "bitcast",
        attrs=CastAttrs,
        infer=_infer_bitcast,
        reference=_reference_bitcast,
        cost=0,
        element=_element_bitcast,
        carries=True,
    ),
    _op(
        "iota",
        attrs=IotaAttrs,
        infer=_infer_iota,
        reference=_reference_iota,
        cost=1,
        element=_element_iota,
    ),
    _op(
        "random_bits",
        attrs=RandomBitsAttrs,
        infer=_infer_random_bits,
        reference=_reference_random_bits,
        cost=70,
        require=_require_key,
        element=_element_random_bits,
        index=_index_of_key,
    ),
    _op(
        "check_index",
        attrs=CheckIndexAttrs,
        infer=_infer_check_index,
        reference=_reference_check_index,
        cost=4,
        element=_element_check_index,
        may_fail=True,
    ),
):
    register(_each)

#: Ops of one operand and one result without attrs, two, and the comparisons among them.
UNARY = tuple(s.name for s in _SCALARS if s.arity == 1)
BINARY = tuple(s.name for s in _SCALARS if s.arity == 2)
COMPARISONS = tuple(s.name for s in _SCALARS if s.arity == 2 and s.result is BOOL)
