"""Models of one node, and what ONNX's own evaluator or ONNX Runtime makes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]


def one_node(
    op: str,
    inputs: Mapping[str, Array | None],
    outputs: int = 1,
    *,
    opset: int = 23,
    symbolic: bool = True,
    weights: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A node with these inputs (None: left out) and these weights after them.

    Every dim of an input is a variable of its own, or as in the arrays if not `symbolic`.
    """
    given = {name: array for name, array in inputs.items() if array is not None}
    names = [
        name if inputs.get(name, 0) is not None else "" for name in [*inputs, *(weights or {})]
    ]
    results = [f"out{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, name="it", **attributes)
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}_{i}" for i in range(array.ndim)] if symbolic else array.shape,
        )
        for name, array in given.items()
    ]
    graph = helper.make_graph(
        [node],
        re.sub(r"\W", "_", op),
        infos,
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def expected(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    """What the standard's own evaluator computes."""
    return ReferenceEvaluator(model).run(None, dict(feed))


def runtime(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes: shapes and types of the outputs are inferred for it."""
    import onnxruntime

    known = onnx.shape_inference.infer_shapes(model)
    known.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        known.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(feed))
