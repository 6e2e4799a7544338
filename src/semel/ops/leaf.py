"""Leaves: where values come from. input, constant, param, stored, state, frame, scalar.

    attrs --> a value with no operands

An `input` comes with every run. A `constant` is sealed data that passes may fold. A
`param` is data that its owner may replace, so nothing is ever computed from its content
at compile time. What is `stored` follows from constants and params alone: it is made once, when
the graph is prepared, and again when a param is replaced, and lies in memory as its type says.
A `state` is what the run before has left, of a fixed shape. A `frame` is the memory of an output,
of which a run may write a part: then an `update` of it is that output. A `scalar` is one number,
equal by its bits, of shape () or for all elements of a shape of numbers (ops/filled.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from semel.errors import GraphError, InternalError, ParamError
from semel.ir.expr import Variable, is_nonnegative
from semel.ir.graph import Node
from semel.ir.opdef import Indices, OpDef, register
from semel.ir.types import TensorType
from semel.kernel.values import Value, const
from semel.ops.attrs import (
    ConstantAttrs,
    FrameAttrs,
    InputAttrs,
    ParamAttrs,
    ScalarAttrs,
    StateAttrs,
    StoredAttrs,
)
from semel.ops.elements import Elements
from semel.ops.shapes import check_dims

Array = np.ndarray[Any, Any]


def _infer_input(attrs: InputAttrs) -> TensorType:
    if not attrs.name:
        raise GraphError("input", f"needs a name, got {attrs.name!r} for {attrs.type}.")
    check_dims("input", attrs.type.shape)
    if attrs.default is not None:
        _check_default(attrs.name, attrs.type, attrs.default.array)
    if attrs.part:
        if len(attrs.part) != attrs.type.rank:
            raise GraphError("input", f"a part of {attrs.type} has its rank, got {attrs.part}.")
        for size, room in zip(attrs.part, attrs.type.shape, strict=True):
            if not is_nonnegative(room - size):
                raise GraphError("input", f"a part of {attrs.type} lies inside, got {attrs.part}.")
    return attrs.type


def _infer_frame(attrs: FrameAttrs) -> TensorType:
    if not attrs.name:
        raise GraphError("frame", f"needs a name, got {attrs.name!r} for {attrs.type}.")
    check_dims("frame", attrs.type.shape)
    return attrs.type


def _check_default(name: str, kind: TensorType, array: Array) -> None:
    """A default is of the input's type, for some values of the variables."""
    found = f"{array.dtype} of shape {array.shape}"
    if array.dtype != kind.dtype.numpy or array.ndim != kind.rank:
        raise GraphError("input", f"the default of '{name}' must be {kind}, got {found}.")
    values: dict[str, int] = {}
    for dim, size in zip(kind.shape, array.shape, strict=True):
        is_good = dim == size if isinstance(dim, int) else True
        if isinstance(dim, Variable):
            is_inside = dim.min <= size and (dim.max is None or size <= dim.max)
            is_good = is_inside and values.setdefault(dim.name, size) == size
        if not is_good:
            raise GraphError(
                "input",
                f"the default of '{name}' must fit {kind}, got {found}: {dim} is not {size}.",
            )


def _infer_stored(attrs: ConstantAttrs | ParamAttrs) -> TensorType:
    array, declared = attrs.storage.array, attrs.type
    if array.dtype != declared.dtype.numpy or array.shape != declared.shape:
        op = "param" if isinstance(attrs, ParamAttrs) else "constant"
        raise GraphError(
            op, f"data must match its type {declared}, got {array.dtype} of shape {array.shape}."
        )
    return declared


def _infer_state(attrs: StateAttrs) -> TensorType:
    kind = attrs.type
    if not attrs.name:
        raise GraphError("state", f"needs a name, got {attrs.name!r} for {kind}.")
    if not all(isinstance(dim, int) for dim in kind.shape):
        raise GraphError(
            "state",
            f"the shape of '{attrs.name}' must be numbers, got {kind}.",
            hint="Give it the largest shape; append() keeps track of how much of it is valid.",
        )
    check_dims("state", kind.shape)
    if attrs.init is not None:
        array = attrs.init.array
        if array.dtype != kind.dtype.numpy or array.shape != kind.shape:
            found = f"{array.dtype} of shape {array.shape}"
            raise GraphError("state", f"the first value must be {kind}, got {found}.")
    return kind


def _reference_input(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    raise InternalError(node.op.name, f"'{node.attrs.name}' has no value of its own.")


def _reference_stored(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    if node.attrs.storage.is_missing:
        raise ParamError("evaluate", f"param '{node.attrs.name}' has no data yet.")
    array: Array = node.attrs.storage.array
    return array


def _reference_scalar(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    return np.full(node.attrs.shape, node.attrs.value, node.type.dtype.numpy)


def _infer_stored_value(attrs: StoredAttrs) -> TensorType:
    kind = attrs.value.outputs[0].type
    is_static = all(isinstance(d, int) for d in kind.shape)
    if len(attrs.value.outputs) != 1 or attrs.value.inputs or not is_static:
        raise GraphError("stored", f"must be one value of fixed size, of no inputs, got {kind}.")
    return kind


def _reference_stored_value(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    values: dict[Node, Array] = {}
    for each in node.attrs.value.nodes:
        values[each] = np.asarray(
            each.op.reference(each, tuple(values[n] for n in each.inputs), env)
        )
    return values[node.attrs.value.outputs[0]]


def _infer_scalar(attrs: ScalarAttrs) -> TensorType:
    if any(type(dim) is not int for dim in attrs.shape):
        raise GraphError("scalar", f"the shape must be numbers, got {attrs.shape}.")
    check_dims("scalar", attrs.shape)
    return TensorType(attrs.shape, attrs.dtype)


def _element_scalar(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    return const(node.type.dtype, node.attrs.value)


for _each in (
    OpDef("input", "leaf", InputAttrs, _infer_input, _reference_input, cost=0),
    OpDef("constant", "leaf", ConstantAttrs, _infer_stored, _reference_stored, cost=0),
    OpDef("param", "leaf", ParamAttrs, _infer_stored, _reference_stored, cost=0),
    OpDef("stored", "leaf", StoredAttrs, _infer_stored_value, _reference_stored_value, cost=0),
    OpDef("state", "leaf", StateAttrs, _infer_state, _reference_input, cost=0),
    OpDef("frame", "leaf", FrameAttrs, _infer_frame, _reference_input, cost=0),
    OpDef(
        "scalar",
        "leaf",
        ScalarAttrs,
        _infer_scalar,
        _reference_scalar,
        cost=0,
        element=_element_scalar,
        repeats=True,
    ),
):
    register(_each)
