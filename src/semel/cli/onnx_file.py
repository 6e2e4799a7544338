"""Just enough of the ONNX file format to hand a graph to onnxruntime.

    nodes, inputs, constants  --model-->  bytes of a ModelProto

The format is protocol buffers: a message is a list of (field number, value), an integer is a
varint, text, bytes and messages carry their length. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_FLOAT = 1
_DTYPES = {"float32": _FLOAT, "uint8": 2, "int8": 3, "int32": 6, "int64": 7}  # TensorProto.DataType
#: AttributeProto.AttributeType
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_STRING, _ATTRIBUTE_INTS = 1, 2, 3, 7


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operator by its ONNX name."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, int | float | str | Sequence[int]] = field(default_factory=dict)
    #: Outputs beside the first; whose op it is, if not ONNX's own.
    others: tuple[str, ...] = ()
    domain: str = ""


def model(
    nodes: Sequence[OnnxNode],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, np.ndarray[Any, Any]],
    opset: int = 20,
    dtypes: Mapping[str, str] | None = None,
) -> bytes:
    """A model as the bytes of its file; what `dtypes` does not name is float32."""
    known = dtypes or {}
    graph = b"".join(_bytes(1, _node(node)) for node in nodes)
    graph += _bytes(2, b"row")
    graph += b"".join(_bytes(5, _tensor(name, array)) for name, array in constants.items())
    graph += b"".join(
        _bytes(field, _value(name, shape, known.get(name, "float32")))
        for field, values in ((11, inputs), (12, outputs))
        for name, shape in values.items()
    )
    opsets = {"": opset, **{node.domain: 1 for node in nodes if node.domain}}
    domains = (_bytes(1, name.encode()) + _int(2, number) for name, number in opsets.items())
    return _int(1, 9) + _bytes(7, graph) + b"".join(_bytes(8, domain) for domain in domains)


def _node(node: OnnxNode) -> bytes:
    data = b"".join(_bytes(1, name.encode()) for name in node.inputs)
    data += b"".join(_bytes(2, name.encode()) for name in (node.output, *node.others))
    data += _bytes(4, node.op.encode()) + _bytes(7, node.domain.encode())
    return data + b"".join(_bytes(5, _attribute(*item)) for item in node.attributes.items())


def _attribute(name: str, value: int | float | str | Sequence[int]) -> bytes:
    data = _bytes(1, name.encode())
    if isinstance(value, str):
        return data + _bytes(4, value.encode()) + _int(20, _ATTRIBUTE_STRING)
    if isinstance(value, float):
        return data + _tag(2, 5) + struct.pack("<f", value) + _int(20, _ATTRIBUTE_FLOAT)
    if isinstance(value, int):
        return data + _int(3, value) + _int(20, _ATTRIBUTE_INT)
    return data + b"".join(_int(8, v) for v in value) + _int(20, _ATTRIBUTE_INTS)


def _tensor(name: str, array: np.ndarray[Any, Any]) -> bytes:
    kind = _DTYPES[array.dtype.name]
    data = b"".join(_int(1, size) for size in array.shape) + _int(2, kind)
    return data + _bytes(8, name.encode()) + _bytes(9, array.tobytes())


def _value(name: str, shape: Sequence[int], dtype: str = "float32") -> bytes:
    dims = b"".join(_bytes(1, _int(1, size)) for size in shape)
    tensor = _int(1, _DTYPES[dtype]) + _bytes(2, dims)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _int(number: int, value: int) -> bytes:
    return _tag(number, 0) + _varint(value & (1 << 64) - 1)


def _bytes(number: int, data: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
