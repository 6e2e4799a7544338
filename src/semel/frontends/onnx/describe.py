"""What a model says of itself, without compiling it.

path | bytes | ModelProto  --describe_model-->  Description{inputs, outputs, operators, weights}
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, ValueInfoProto, helper

from semel.frontends.onnx.build import dim_name, input_names, is_open
from semel.frontends.onnx.file import read_model, walk_nodes
from semel.ir.expr import Variable
from semel.ir.types import Shape

_STANDARD = "ai.onnx"


@dataclass(frozen=True, slots=True)
class Described:
    """An input or output; `dtype` is None for text, `shape` None where only a run tells it."""

    name: str
    dtype: np.dtype[Any] | None
    shape: Shape | None
    kind: str


@dataclass(frozen=True, slots=True)
class Description:
    """A model in numbers and names; `operators` are counted with those of sub-graphs."""

    name: str
    producer: str
    opsets: dict[str, int]
    inputs: tuple[Described, ...]
    outputs: tuple[Described, ...]
    operators: dict[str, int]
    weights: int
    weights_bytes: int


def describe_model(source: Any) -> Description:
    """Read a model and tell what it has; weights beside it are mapped, not read."""
    model = read_model(source)
    proto = model.proto
    wanted = set(input_names(model))
    counted = Counter(
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for node in walk_nodes(proto.graph)
    )
    small = list(proto.graph.initializer)
    return Description(
        name=proto.graph.name or model.name,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        opsets={domain or _STANDARD: version for domain, version in model.versions.items()},
        inputs=tuple(_described(v) for v in proto.graph.input if v.name in wanted),
        outputs=tuple(_described(v) for v in proto.graph.output),
        operators=dict(sorted(counted.items(), key=lambda item: (-item[1], item[0]))),
        weights=len(small) + len(model.weights),
        weights_bytes=sum(w.nbytes for w in model.weights.values())
        + sum(tensor.ByteSize() for tensor in small),
    )


def _described(info: ValueInfoProto) -> Described:
    kind: TypeProto = info.type
    if not kind.HasField("tensor_type"):
        named = (kind.WhichOneof("value") or "unknown").removesuffix("_type")
        return Described(info.name, None, None, named)
    code = kind.tensor_type.elem_type
    shape = None if is_open(kind) else _shape(info)
    if code == TensorProto.STRING:
        return Described(info.name, None, shape, "text")
    if code == TensorProto.UNDEFINED:
        return Described(info.name, None, shape, "unknown")
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    return Described(info.name, dtype, shape, dtype.name)


def _shape(info: ValueInfoProto) -> Shape:
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else Variable(dim_name(dim.dim_param, info.name, axis), 0)
        for axis, dim in enumerate(info.type.tensor_type.shape.dim)
    )
