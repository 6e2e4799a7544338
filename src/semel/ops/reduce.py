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
from semel.ir.opdef import Combiner, OpDef, register
from semel.ir.types import INT64, DType, TensorType
from semel.kernel.values import start_value
from semel.ops.attrs import ReduceAttrs, ReducePartialAttrs, ScanAttrs
from semel.ops.numerics import Array
from semel.ops.shapes import Requirement, check, check_axis, check_count, check_domain

Env = Mapping[str, int]


#: By name: `combine` of reduce_partial and scan, and the end of a reduce op's name.
COMBINERS: dict[str, Combiner] = {
    combiner.name: combiner
    for combiner in (
        Combiner("sum", np.add, "number", "add", rounds=True),
        Combiner("prod", np.multiply, "number", "mul", rounds=True),
        Combiner("max", np.maximum, "any", "max", "fastmax", needs_elements=True),
        Combiner("min", np.minimum, "any", "min", "fastmin", needs_elements=True),
        Combiner("or", np.logical_or, "bool", "or"),
        Combiner("and", np.logical_and, "bool", "and"),
    )
}
_ARGS = (
    Combiner("argmax", np.argmax, "any", "argmax", needs_elements=True, splits=False),
    Combiner("argmin", np.argmin, "any", "argmin", needs_elements=True, splits=False),
)


def named_combiner(attrs: ReducePartialAttrs | ScanAttrs) -> Combiner:
    """The combiner of an op whose attributes name it."""
    return COMBINERS[attrs.combine]


def accumulator(combiner: Combiner, dtype: DType) -> np.dtype[Any]:
    """The dtype the reference accumulates in: float64 for sums and products of floats."""
    if dtype.is_float and combiner.rounds:
        return np.dtype(np.float64)
    return dtype.compute.numpy


def of_nothing(combiner: Combiner, dtype: DType) -> Any:
    """What combining no elements gives: the number that kernels start from."""
    return start_value(combiner.kernel, dtype).data


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


def _require_unless_steadying(attrs: ReduceAttrs, x: TensorType) -> Iterator[Requirement]:
    if attrs.propagate_nan:
        yield from _require_elements(attrs, x)


@dataclass(frozen=True, slots=True)
class Reduction:
    """reduce_<combiner>: all share a shape rule and differ in the combiner."""

    combiner: Combiner

    @property
    def name(self) -> str:
        return f"reduce_{self.combiner.name}"

    @property
    def op(self) -> OpDef:
        """The op's record."""
        return OpDef(
            self.name,
            "reduce",
            ReduceAttrs,
            self.infer,
            self.reference,
            1,
            _require_unless_steadying if self.combiner.needs_elements else None,
            combiner=lambda attrs: self.combiner,
        )

    def infer(self, attrs: ReduceAttrs, *types: TensorType) -> TensorType:
        check_count(self.name, types, 1)
        x = types[0]
        check_domain(self.name, x, self.combiner.domain)
        _check_axes(self.name, attrs.axes, x)
        check(self.name, attrs, x)
        return TensorType(_reduced_shape(attrs.axes, x), x.dtype)

    def reference(self, node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
        return _reduce(self.combiner, arrays[0], node.type.dtype, node.attrs.axes)


def _reduced_shape(axes: tuple[int, ...], x: TensorType) -> tuple[Any, ...]:
    return tuple(1 if i in axes else d for i, d in enumerate(x.shape))


def _reduce(combiner: Combiner, x: Array, dtype: DType, axes: tuple[int, ...]) -> Array:
    wide = x.astype(accumulator(combiner, dtype))
    initial = wide.dtype.type(of_nothing(combiner, dtype))
    result = combiner.ufunc.reduce(wide, axis=axes, keepdims=True, initial=initial)
    return np.asarray(result).astype(dtype.compute.numpy).astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class _Arg:
    """reduce_argmax, reduce_argmin: the first index of the extreme, NaN counting as extreme."""

    combiner: Combiner

    @property
    def name(self) -> str:
        return f"reduce_{self.combiner.name}"

    @property
    def op(self) -> OpDef:
        """The op's record."""
        return OpDef(
            self.name,
            "reduce",
            ReduceAttrs,
            self.infer,
            self.reference,
            3,
            _require_elements,
            combiner=lambda attrs: self.combiner,
        )

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
        found = self.combiner.ufunc(x, axis=node.attrs.axes[0], keepdims=True)
        return np.asarray(found).astype(np.int64)


def _infer_partial(attrs: ReducePartialAttrs, *types: TensorType) -> TensorType:
    check_count("reduce_partial", types, 1)
    x = types[0]
    if attrs.combine not in COMBINERS:
        raise GraphError(
            "reduce_partial", f"combine must be one of {tuple(COMBINERS)}, got {attrs.combine!r}."
        )
    check_domain("reduce_partial", x, COMBINERS[attrs.combine].domain)
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
    reduced = [_reduce(COMBINERS[attrs.combine], run, node.type.dtype, (axis,)) for run in runs]
    return np.concatenate(reduced, axis)


for _combiner in COMBINERS.values():
    register(Reduction(_combiner).op)

for _combiner in _ARGS:
    register(_Arg(_combiner).op)

register(
    OpDef(
        "reduce_partial",
        "reduce",
        ReducePartialAttrs,
        _infer_partial,
        _reference_partial,
        1,
        combiner=named_combiner,
    )
)
