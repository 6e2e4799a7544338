"""Operators that make values of shapes, and constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper

from semel.frontends.onnx.arithmetic import MOST_NUMBERS
from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.values import AnyValue, Text, Value
from semel.ir.expr import product
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
    raise node.refuse("sparse constants are not supported.")


def _constant_of_shape(node: Node) -> Any:
    given = node.attr("value")
    number = np.zeros(1, np.float32) if given is None else numpy_helper.to_array(given)
    dims = node.dims(0)
    fixed = [dim for dim in dims if isinstance(dim, int)]
    if len(fixed) == len(dims) and math.prod(fixed) <= MOST_NUMBERS:
        return Value.of_array(np.full(fixed, number.reshape(())))
    return Tensor(number.reshape(())).broadcast_to(tuple(dims))


CONVERTERS: dict[str, Converter] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": _size,
}
