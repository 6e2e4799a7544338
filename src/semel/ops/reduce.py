"""Reductions: the reduced axes stay, with size 1, so that shapes broadcast back.

    x [a, b, c] --axes (1,)--> [a, 1, c]

Dropping an axis is the job of `reshape`. The dtype stays: a frontend that wants a wider
sum casts first. float16 and bfloat16 accumulate in float32 and round once. The sum of
nothing is 0, the product 1; the greatest of nothing is an error, except where
`propagate_nan=False` says that the result only steadies what follows (softmax): then it
is the identity, lowest or highest.

`reduce_partial` reduces runs of a long axis, so that a reduction to few elements can use
several cores in a fixed order; only passes make it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import ceildiv, maximum, product
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import INT64, DType, TensorType
from semel.ops.attrs import ReduceAttrs, ReducePartialAttrs
from semel.ops.numerics import Array, Function
from semel.ops.shapes import Requirement, check, check_axis, check_count, check_dtype

Env = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Combiner:
    """How two elements become one: the ufunc, the operand kinds, the value of nothing."""

    ufunc: Any
    kinds: str
    words: str
    identity: Function


#: `combine` of reduce_partial and scan, and the end of a reduce op's name.
COMBINERS: dict[str, Combiner] = {
    "sum": Combiner(np.add, "iuf", "an integer or a float dtype", lambda dtype: 0),
    "prod": Combiner(np.multiply, "iuf", "an integer or a float dtype", lambda dtype: 1),
    "max": Combiner(np.maximum, "biuf", "any dtype", lambda dtype: dtype.lowest),
    "min": Combiner(np.minimum, "biuf", "any dtype", lambda dtype: dtype.highest),
    "or": Combiner(np.logical_or, "b", "a bool dtype", lambda dtype: False),
    "and": Combiner(np.logical_and, "b", "a bool dtype", lambda dtype: True),
}


def accumulator(combine: str, dtype: DType) -> np.dtype[Any]:
    """The dtype the reference accumulates in: float64 for sums and products of floats."""
    if dtype.is_float and combine in ("sum", "prod"):
        return np.dtype(np.float64)
    return dtype.compute.numpy


def _check_axes(op: str, axes: tuple[int, ...], x: TensorType) -> None:
    for axis in axes:
        check_axis(op, axis, x)
    if list(axes) != sorted(set(axes)):
        raise GraphError(op, f"axes must ascend without repeats, got axes={axes} for {x}.")


def _require_elements(attrs: ReduceAttrs, x: TensorType) -> Iterator[Requirement]:
    reduced = product(x.shape[a] for a in attrs.axes)
    kept = product(d for a, d in enumerate(x.shape) if a not in attrs.axes)
    yield Requirement(
        maximum(1 - reduced, 0) * kept,
        f"cannot reduce no elements: axes {attrs.axes} of {x} have {reduced}.",
    )


def _require_max(attrs: ReduceAttrs, x: TensorType) -> Iterator[Requirement]:
    if attrs.propagate_nan:
        yield from _require_elements(attrs, x)


@dataclass(frozen=True, slots=True)
class _Reduction:
    """reduce_<combine>: all share a shape rule and differ in the combiner."""

    combine: str

    @property
    def name(self) -> str:
        return f"reduce_{self.combine}"

    def infer(self, attrs: ReduceAttrs, *types: TensorType) -> TensorType:
        check_count(self.name, types, 1)
        x, combiner = types[0], COMBINERS[self.combine]
        check_dtype(self.name, x, combiner.kinds, combiner.words)
        _check_axes(self.name, attrs.axes, x)
        check(self.name, attrs, x)
        return TensorType(_reduced_shape(attrs.axes, x), x.dtype)

    def reference(self, node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
        return _reduce(self.combine, arrays[0], node.type.dtype, node.attrs.axes)


def _reduced_shape(axes: tuple[int, ...], x: TensorType) -> tuple[Any, ...]:
    return tuple(1 if i in axes else d for i, d in enumerate(x.shape))


def _reduce(combine: str, x: Array, dtype: DType, axes: tuple[int, ...]) -> Array:
    combiner = COMBINERS[combine]
    wide = x.astype(accumulator(combine, dtype))
    initial = wide.dtype.type(combiner.identity(dtype))
    result = combiner.ufunc.reduce(wide, axis=axes, keepdims=True, initial=initial)
    return np.asarray(result).astype(dtype.compute.numpy).astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class _Arg:
    """reduce_argmax, reduce_argmin: the first index of the extreme, NaN counting as extreme."""

    name: str
    function: Function

    def infer(self, attrs: ReduceAttrs, *types: TensorType) -> TensorType:
        check_count(self.name, types, 1)
        x = types[0]
        _check_axes(self.name, attrs.axes, x)
        if len(attrs.axes) != 1:
            raise GraphError(self.name, f"needs exactly one axis, got axes={attrs.axes} for {x}.")
        check(self.name, attrs, x)
        return TensorType(_reduced_shape(attrs.axes, x), INT64)

    def reference(self, node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
        x = arrays[0].astype(node.inputs[0].type.dtype.compute.numpy)
        if not x.size:
            shape = tuple(1 if i in node.attrs.axes else d for i, d in enumerate(x.shape))
            return np.zeros(shape, np.int64)
        found = self.function(x, axis=node.attrs.axes[0], keepdims=True)
        return np.asarray(found).astype(np.int64)


def _infer_partial(attrs: ReducePartialAttrs, *types: TensorType) -> TensorType:
    check_count("reduce_partial", types, 1)
    x = types[0]
    if attrs.combine not in COMBINERS:
        raise GraphError(
            "reduce_partial", f"combine must be one of {tuple(COMBINERS)}, got {attrs.combine!r}."
        )
    check_dtype("reduce_partial", x, COMBINERS[attrs.combine].kinds, COMBINERS[attrs.combine].words)
    check_axis("reduce_partial", attrs.axis, x)
    if attrs.chunk < 1:
        raise GraphError("reduce_partial", f"chunk must be >= 1, got {attrs.chunk} for {x}.")
    shape = list(x.shape)
    shape[attrs.axis] = ceildiv(shape[attrs.axis], attrs.chunk)
    return TensorType(tuple(shape), x.dtype)


def _reference_partial(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    x, attrs, axis = arrays[0], node.attrs, node.attrs.axis
    cuts = range(attrs.chunk, x.shape[axis], attrs.chunk)
    if not x.shape[axis]:
        return x
    runs = np.split(x, cuts, axis)
    reduced = [_reduce(attrs.combine, run, node.type.dtype, (axis,)) for run in runs]
    return np.concatenate(reduced, axis)


for _combine in COMBINERS:
    _op = _Reduction(_combine)
    _needed = _require_max if _combine in ("max", "min") else None
    register(OpDef(_op.name, "reduce", ReduceAttrs, _op.infer, _op.reference, 1, _needed))

for _name, _function in (("reduce_argmax", np.argmax), ("reduce_argmin", np.argmin)):
    _arg = _Arg(_name, _function)
    register(OpDef(_name, "reduce", ReduceAttrs, _arg.infer, _arg.reference, 3, _require_elements))

register(
    OpDef("reduce_partial", "reduce", ReducePartialAttrs, _infer_partial, _reference_partial, 1)
)
