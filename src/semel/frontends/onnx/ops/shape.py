"""Operators that make values of shapes, and constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper

from semel.frontends.onnx import ratio
from semel.frontends.onnx.arithmetic import MOST_NUMBERS
from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.values import AnyValue, Text, Value
from semel.ir.dims import maximum
from semel.ir.expr import Dim, product
from semel.ir.types import FLOAT32, FLOAT64, INT64
from semel.tensor.tensor import Tensor


def _shape(node: Node) -> Value:
    dims = node.value().shape
    return Value.of_dims(dims[slice(node.attr("start", 0), node.attr("end", len(dims)))])


def _size(node: Node) -> Value:
    count = np.empty((), object)
    count[()] = product(node.value().shape)
    return Value.of_dims(count)


def _constant(node: Node) -> AnyValue:
    if "value" in node.attrs:
        array = numpy_helper.to_array(node.attrs["value"])
        return (
            Text(np.asarray(array, object)) if array.dtype.kind in "OSU" else Value.of_array(array)
        )
    for name, dtype in (("float", np.float32), ("int", np.int64)):
        for found in (node.attr(f"value_{name}"), node.attr(f"value_{name}s")):
            if found is not None:
                return Value.of_array(np.asarray(found, dtype))
    for text in (node.attr("value_string"), node.attr("value_strings")):
        if text is not None:
            return Text(np.asarray(text, object))
    raise node.refuse("must have a value.")


def _constant_of_shape(node: Node) -> Any:
    given = node.attr("value")
    number = np.zeros(1, np.float32) if given is None else numpy_helper.to_array(given)
    dims = node.dims(0)
    fixed = [dim for dim in dims if isinstance(dim, int)]
    if len(fixed) == len(dims) and math.prod(fixed) <= MOST_NUMBERS:
        return Value.of_array(np.full(fixed, number.reshape(())))
    return Tensor(number.reshape(())).broadcast_to(tuple(dims))


def _eye_like(node: Node) -> Tensor:
    rows, columns = node.value().shape
    dtype = node.dtype_attr("dtype", node.value().dtype)
    return Tensor.eye(rows, columns, node.attr("k", 0), dtype)


def _range(node: Node) -> Any:
    """From a number up to another one; where they are sizes or data, so is how many there are."""
    dtype = node.value(0).dtype
    if not dtype.is_float:
        return Tensor.arange(node.dim(0), node.dim(1), node.ints(2)[0]).cast(dtype)
    work = FLOAT64 if dtype == FLOAT64 else FLOAT32
    start, _, step = (node.tensor(i).reshape(()).cast(work) for i in range(3))
    return (Tensor.arange(_count(node)).cast(work) * step + start).cast(dtype)


def _count(node: Node) -> Dim:
    """How many fractions a Range has."""
    known = [node.value(i).known for i in range(3)]
    if all(array is not None for array in known):
        start, limit, step = (array.item() for array in known if array is not None)
        try:
            count = ratio.ceil(ratio.over(ratio.plus(limit, ratio.negative(start)), step))
            return maximum(count, 0)
        except ratio.NoRatio:  # a step whose sign sizes decide
            pass
    ends = [node.tensor(i).reshape(()).cast(FLOAT64) for i in range(3)]
    return node.walk.size_of(((ends[1] - ends[0]) / ends[2]).ceil().maximum(0).cast(INT64))


CONVERTERS: dict[str, Converter] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
}
