"""Values, and what is told of inputs, outputs and models."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from semel.compat.onnxruntime.errors import InvalidArgument
from semel.runtime.free import HOST_DEVICE

_TYPES = {
    "FLOAT": "float", "DOUBLE": "double", "FLOAT16": "float16", "BFLOAT16": "bfloat16",
    "BOOL": "bool", "STRING": "string",
}  # fmt: skip


@dataclass(frozen=True)
class NodeArg:
    """An input or an output: its name, `tensor(float)`, and a shape of numbers, names and None."""

    name: str
    type: str
    shape: list[Any]


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class OrtDevice:
    """A device by its name: there is the CPU."""

    name: str = HOST_DEVICE
    number: int = 0

    @staticmethod
    def make(ort_device_name: str, device_id: int) -> OrtDevice:
        """The device with this name."""
        check_device(ort_device_name)
        return OrtDevice(HOST_DEVICE, device_id)

    def device_id(self) -> int:
        """Its number."""
        return self.number

    def device_type(self) -> str:
        """Its kind."""
        return self.name


class OrtValue:
    """An array under the name that ONNX Runtime has for one."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(
        array: Any, device_type: str = HOST_DEVICE, device_id: int = 0
    ) -> OrtValue:
        """An array as a value; on the CPU there is nothing to copy."""
        check_device(device_type)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = HOST_DEVICE, device_id: int = 0
    ) -> OrtValue:
        """A new array."""
        check_device(device_type)
        return OrtValue(np.zeros(shape, element_type))

    def numpy(self) -> Any:
        """The array."""
        return self._value

    def shape(self) -> list[int]:
        """Its shape."""
        return list(self._value.shape)

    def data_type(self) -> str:
        """`tensor(float)` and the like."""
        return type_name(onnx.helper.np_dtype_to_tensor_dtype(self._value.dtype))

    def element_type(self) -> int:
        """The ONNX number of its dtype."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(self._value.dtype))

    def device_name(self) -> str:
        """Where it lies."""
        return HOST_DEVICE

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self._value, np.ndarray)

    def has_value(self) -> bool:
        """Whether there is one."""
        return self._value is not None

    def data_ptr(self) -> int:
        """Its address."""
        return int(self._value.ctypes.data)

    def update_inplace(self, array: Any) -> None:
        """Copy an array into this one."""
        np.copyto(self._value, array)


def node_arg(value: Any) -> NodeArg:
    """What a `ValueInfoProto` says."""
    kind = value.type
    if kind.HasField("sequence_type") and kind.sequence_type.elem_type.HasField("map_type"):
        rows = kind.sequence_type.elem_type.map_type
        key = type_name(rows.key_type)[len("tensor(") : -1]
        item = type_name(rows.value_type.tensor_type.elem_type)
        return NodeArg(value.name, f"seq(map({key},{item}))", [])
    if kind.HasField("sequence_type"):
        inner = type_name(kind.sequence_type.elem_type.tensor_type.elem_type)
        return NodeArg(value.name, f"seq({inner})", [])
    if kind.HasField("optional_type"):
        inner = type_name(kind.optional_type.elem_type.tensor_type.elem_type)
        return NodeArg(value.name, f"optional({inner})", [])
    dims = kind.tensor_type.shape.dim
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]
    return NodeArg(value.name, type_name(kind.tensor_type.elem_type), shape)


def type_name(code: int) -> str:
    """`tensor(float)` and the like, for a number of ONNX's."""
    name = onnx.TensorProto.DataType.Name(code)
    return f"tensor({_TYPES.get(name, name.lower())})"


def check_device(name: str) -> None:
    """Refuse devices that are not there."""
    if name.lower() != HOST_DEVICE:
        raise InvalidArgument("device", f"must be '{HOST_DEVICE}', got {name!r}.")


def at_address(address: Any, shape: Any, element_type: Any) -> Any:
    """The array that lies at an address of this process."""
    dtype = np.dtype(element_type)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = (ctypes.c_ubyte * count).from_address(address)
    return np.frombuffer(raw, dtype).reshape(shape)
