"""Models whose constants are inputs, so that nothing is known of them before a run.

    model  --with_inputs_only-->  the model without initializers and Constants, and what these hold

What nothing but attributes says at import cannot be folded. Numbers that decide what is computed
(axes, shapes, pads) are then what inputs hold, and the importer finds out that it must ask: sizes
are bound at each run, and others make a form. What stays is text, which no input of a compiled
graph holds, and what sub-graphs and functions have of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


def with_inputs_only(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The same function of more inputs, and the values of those that were constants."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    outputs = {output.name for output in graph.output}
    found: dict[str, Any] = {}
    for tensor in list(graph.initializer):
        if tensor.data_type != onnx.TensorProto.STRING and tensor.name not in outputs:
            found[tensor.name] = numpy_helper.to_array(tensor)
            graph.initializer.remove(tensor)
    for node in list(graph.node):
        if node.op_type == "Constant" and node.output[0] not in outputs:
            value = next(_numbers(node), None)
            if value is not None:
                found[node.output[0]] = value
                graph.node.remove(node)
    listed = {given.name for given in graph.input}
    for name, array in found.items():
        if name not in listed:
            code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, code, array.shape))
    return made, found


def _numbers(constant: onnx.NodeProto) -> Iterator[Any]:
    for attribute in constant.attribute:
        match attribute.name:
            case "value" if attribute.t.data_type != onnx.TensorProto.STRING:
                yield numpy_helper.to_array(attribute.t)
            case "value_float" | "value_floats":
                found = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                yield np.asarray(found, np.float32)
            case "value_int" | "value_ints":
                found = attribute.i if attribute.name == "value_int" else list(attribute.ints)
                yield np.asarray(found, np.int64)
