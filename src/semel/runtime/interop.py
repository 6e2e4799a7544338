"""Arrays of other libraries, in and out: the array protocols, and DLPack by a capsule.

    anything array-like     --read_array-->  a NumPy array, over the same memory if it can be
    object with __dlpack__  --read_dlpack-->  a fresh NumPy array
    object with __dlpack__  --borrow_dlpack-->  a NumPy array over the memory that it shows
    NumPy array             --write_dlpack-->  capsule "dltensor_versioned" (or "dltensor")

What cannot be read is refused with an error of the caller's kind, whatever the other library
raised: `refuse` makes it of a sentence. A masked array is refused, because its mask would be lost.

NumPy makes the capsules, and owns the memory behind them: its deleter is native code, which
may run at any moment, even while an exception is on its way. It does not know bfloat16 and float8,
so such an array goes out as unsigned integers with the type code put right, and reading is done
here, for every dtype alike, by the structures of the specification. That packs elements of less
than a byte: they go neither out nor in.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from semel.errors import GraphError, SemelError, UserError
from semel.ir.types import (
    BFLOAT16,
    DTYPES,
    FLOAT8_E4M3FN,
    FLOAT8_E4M3FNUZ,
    FLOAT8_E5M2,
    FLOAT8_E5M2FNUZ,
    FLOAT8_E8M0FNU,
    DType,
    as_dtype,
)

Refuse = Callable[[str], UserError]
#: How an object says that NumPy can read it.
NUMPY_PROTOCOLS = ("__array__", "__array_interface__")
CPU = (1, 0)
VERSION = (1, 0)
_IS_COPIED = 2  #: a flag of versioned capsules
#: NumPy reads no deeper lists.
MOST_AXES = 64
_KIND_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
#: Those that NumPy has not, by the codes of the specification.
_OWN_CODES = {
    BFLOAT16: 4,
    FLOAT8_E4M3FN: 10,
    FLOAT8_E4M3FNUZ: 11,
    FLOAT8_E5M2: 12,
    FLOAT8_E5M2FNUZ: 13,
    FLOAT8_E8M0FNU: 14,
}


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


def is_immutable(array: np.ndarray[Any, Any]) -> bool:
    """Whether no Python code can change the elements, and a kernel can read them as they lie."""
    return isinstance(_immutable_owner(array), bytes | mmap.mmap)


def is_mapped(array: np.ndarray[Any, Any]) -> bool:
    """Whether the elements are those of a file that is mapped for reading: they take no memory."""
    return isinstance(_immutable_owner(array), mmap.mmap)


def _immutable_owner(array: np.ndarray[Any, Any]) -> Any:
    """What holds the elements, if nobody can write there."""
    if array.flags.writeable or not (array.flags.c_contiguous and array.flags.aligned):
        return None
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return None
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    # A view for reading of a mapping for writing can change behind our back.
    is_sealed = isinstance(owner, bytes | mmap.mmap) and memoryview(owner).readonly
    return owner if is_sealed else None


def write_dlpack(
    array: np.ndarray[Any, Any], *, versioned: bool, is_copied: bool = False
) -> object:
    """A capsule over `array`, which stays alive until the consumer lets go.

    A versioned one tells whether it may be written to, and whether it is a copy.
    """
    dtype = as_dtype(array.dtype, "dlpack")
    if dtype.bits < 8 and dtype.kind != "b":
        raise BufferError(f"[dlpack] {dtype} has no form of a byte an element; use numpy().")
    own = _OWN_CODES.get(dtype)
    known = array if own is None else array.view(f"u{dtype.size_bytes}")
    capsule: object = known.__dlpack__(max_version=VERSION) if versioned else known.__dlpack__()
    managed = _opened(capsule, _from_dlpack)[1]
    if own is not None:
        managed.tensor.dtype.code = own
    if is_copied and versioned:
        managed.flags |= _IS_COPIED
    return capsule


def _opened(capsule: Any, refuse: Refuse) -> tuple[bytes, Any]:
    """The form's name of an unused capsule, and its structure."""
    name = next((n for n in _FORMS if _is_valid(capsule, n)), None)
    if name is None:
        raise refuse(f"must be an unused DLPack capsule, got {capsule!r}.")
    return name, _FORMS[name].from_address(_get_pointer(capsule, name))


def _from_dlpack(sentence: str) -> UserError:
    return GraphError("from_dlpack", f"data {sentence}")


def check_unmasked(value: Any, refuse: Refuse) -> None:
    """Refuse a masked array, or nested lists of some: the elements would lose their mask."""
    # `np.ma` would import it: half of it is there if another thread forks meanwhile.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and _holds(value, masked, MOST_AXES):
        raise refuse("must not be a masked array: call .filled(value), or pass the mask apart.")


def _holds(value: Any, kind: type, depth: int) -> bool:
    """Whether the value is of a kind, or nested lists that hold such a one."""
    if not isinstance(value, (list, tuple)):
        return isinstance(value, kind)
    return depth > 0 and any(_holds(item, kind, depth - 1) for item in value)


def read_array(value: Any, refuse: Refuse) -> np.ndarray[Any, Any]:
    """What NumPy makes of `value`, or what its DLPack capsule holds if NumPy cannot read it."""
    check_unmasked(value, refuse)
    has_capsule = hasattr(value, "__dlpack__")
    if not has_capsule or any(hasattr(value, name) for name in NUMPY_PROTOCOLS):
        try:
            return np.asarray(value)
        except SemelError:
            raise
        except Exception as error:  # other libraries raise what they like
            if not has_capsule:
                raise refuse(f"must be an array or nested lists of one shape: {error}.") from error
    return read_dlpack(value, refuse)


def read_dlpack(source: Any, refuse: Refuse = _from_dlpack) -> np.ndarray[Any, Any]:
    """A copy of what `source.__dlpack__()` shows; it must lie in CPU memory."""
    capsule = _capsule_of(source, refuse)
    name, managed = _opened(capsule, refuse)
    try:
        return _view_of(managed.tensor, refuse)[0].copy()
    finally:
        _release(capsule, name, managed)


def borrow_dlpack(source: Any, refuse: Refuse = _from_dlpack) -> np.ndarray[Any, Any]:
    """An array over what `source.__dlpack__()` shows: no copy, or a BufferError.

    The owner's memory is given back when the last array over it is gone.
    """
    capsule = _capsule_of(source, refuse, copy=False)
    name, managed = _opened(capsule, refuse)
    try:
        view, block = _view_of(managed.tensor, refuse)
        if not (view.flags.c_contiguous and view.flags.aligned):
            raise BufferError(
                f"[from_dlpack] only elements in C order and aligned are used where they lie, got "
                f"shape {view.shape} with strides {view.strides}: leave copy=False out."
            )
    except BaseException:
        _release(capsule, name, managed)
        raise
    weakref.finalize(block, _release, capsule, name, managed).atexit = False
    return view


def _release(capsule: Any, name: bytes, managed: Any) -> None:
    """Let the producer have its memory back."""
    # Renaming tells the capsule's own destructor that its memory is gone.
    _set_name(capsule, _USED[name])
    if managed.deleter:
        managed.deleter(ctypes.addressof(managed))


def _capsule_of(source: Any, refuse: Refuse, **options: Any) -> Any:
    try:
        device = tuple(int(v) for v in source.__dlpack_device__())
        if device[0] != CPU[0]:
            raise refuse(f"must be in CPU memory, got device {device}.")
        try:
            return source.__dlpack__(max_version=VERSION, **options)
        except TypeError:  # a producer from before version 1.0 takes no such argument
            return source.__dlpack__()
    except SemelError:
        raise
    except Exception as error:  # other libraries raise what they like
        kind = type(source).__name__
        raise refuse(f"must be readable, but a {kind} says: {error}") from error


def _view_of(tensor: _Tensor, refuse: Refuse) -> tuple[np.ndarray[Any, Any], Any]:
    """An array over the memory of a capsule, and what is alive as long as such arrays are."""
    dtype = _dtype_of(tensor.dtype, refuse)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        block: Any = (ctypes.c_uint8 * 1)()
        return np.ndarray(shape, dtype.numpy, buffer=block), block
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
    return np.ndarray(shape, dtype.numpy, buffer=block, offset=-low, strides=strides), block


def _code(dtype: DType) -> int:
    return _OWN_CODES.get(dtype, _KIND_CODES[dtype.kind])


def _dtype_of(form: _DataType, refuse: Refuse) -> DType:
    for dtype in DTYPES:
        bits = 8 if dtype.kind == "b" else dtype.bits
        if bits >= 8 and (form.code, form.bits, form.lanes) == (_code(dtype), bits, 1):
            return dtype
    raise refuse(
        f"must have a dtype that is known here, got type code {form.code} with {form.bits} bits "
        f"and {form.lanes} lanes."
    )
