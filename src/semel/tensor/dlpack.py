"""DLPack in and out: arrays shared with other libraries by a capsule.

    object with __dlpack__  --read_dlpack-->  a fresh NumPy array
    NumPy array             --write_dlpack-->  capsule "dltensor_versioned" (or "dltensor")

NumPy makes the capsules, and owns the memory behind them: its deleter is native code, which
may run at any moment, even while an exception is on its way. It does not know bfloat16, so
such an array goes out as uint16 with the type code put right, and reading is done here, for
every dtype alike, by the structures of the specification.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.types import BFLOAT16, DTYPES, DType, as_dtype

CPU = (1, 0)
VERSION = (1, 0)
_KIND_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_FORMS: dict[bytes, type[_Managed | _Versioned]] = {
    b"dltensor": _Managed,
    b"dltensor_versioned": _Versioned,
}
_USED = {name: b"used_" + name for name in _FORMS}  # a capsule keeps the pointer, not a copy
_api = ctypes.pythonapi
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


def write_dlpack(array: np.ndarray[Any, Any], *, versioned: bool) -> object:
    """A capsule over `array`, which stays alive until the consumer lets go."""
    dtype = as_dtype(array.dtype, "dlpack")
    known = array.view(np.uint16) if dtype == BFLOAT16 else array
    capsule: object = known.__dlpack__(max_version=VERSION) if versioned else known.__dlpack__()
    if dtype == BFLOAT16:
        _opened(capsule)[1].tensor.dtype.code = _BFLOAT
    return capsule


def _opened(capsule: Any) -> tuple[bytes, Any]:
    """The form's name of an unused capsule, and its structure."""
    name = next((n for n in _FORMS if _is_valid(capsule, n)), None)
    if name is None:
        raise GraphError("from_dlpack", f"needs an unused DLPack capsule, got {capsule!r}.")
    return name, _FORMS[name].from_address(_get_pointer(capsule, name))


def read_dlpack(source: Any) -> np.ndarray[Any, Any]:
    """A copy of what `source.__dlpack__()` shows; it must lie in CPU memory."""
    device = tuple(int(v) for v in source.__dlpack_device__())
    if device[0] != CPU[0]:
        raise GraphError("from_dlpack", f"data must be in CPU memory, got device {device}.")
    capsule = _capsule_of(source)
    name, managed = _opened(capsule)
    try:
        result = _copy_of(managed.tensor)
    finally:
        # Renaming tells the capsule's own destructor that its memory is gone.
        _set_name(capsule, _USED[name])
        if managed.deleter:
            managed.deleter(ctypes.addressof(managed))
    return result


def _capsule_of(source: Any) -> Any:
    try:
        return source.__dlpack__(max_version=VERSION)
    except TypeError:  # a producer from before version 1.0 takes no such argument
        return source.__dlpack__()


def _copy_of(tensor: _Tensor) -> np.ndarray[Any, Any]:
    dtype = _dtype_of(tensor.dtype)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, dtype.numpy)
    item = dtype.size_bytes
    if tensor.strides:
        strides = tuple(tensor.strides[i] * item for i in range(tensor.ndim))
    else:
        strides = tuple(np.empty(shape, np.uint8).strides[i] * item for i in range(tensor.ndim))
    reach = [s * (n - 1) for s, n in zip(strides, shape, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    block = (ctypes.c_uint8 * (high - low + item)).from_address(
        tensor.data + tensor.byte_offset + low
    )
    view = np.ndarray(shape, dtype.numpy, buffer=block, offset=-low, strides=strides)
    return view.copy()


def _code(dtype: DType) -> int:
    return _BFLOAT if dtype == BFLOAT16 else _KIND_CODES[dtype.kind]


def _dtype_of(form: _DataType) -> DType:
    for dtype in DTYPES:
        if (form.code, form.bits, form.lanes) == (_code(dtype), max(dtype.bits, 8), 1):
            return dtype
    raise GraphError(
        "from_dlpack",
        f"type code {form.code} with {form.bits} bits and {form.lanes} lanes has no dtype here.",
    )
