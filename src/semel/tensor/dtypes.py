"""The dtypes under the names users write, and what can be asked of them.

    semel.ir.types.FLOAT32  -->  float32
    can_cast finfo iinfo isdtype result_type

Anything that takes a dtype takes these, their names as strings and NumPy's dtypes alike. What is
asked has the names of the array API standard, which are mostly NumPy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from semel.errors import GraphError
from semel.ir import types
from semel.ir.types import DType, as_dtype, is_lossless
from semel.tensor.handle import Array, DTypeLike, TensorLike, common_dtype, tensor_class, weak_kind

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

bool_ = types.BOOL
int8, int16, int32, int64 = types.INT8, types.INT16, types.INT32, types.INT64
uint8, uint16, uint32, uint64 = types.UINT8, types.UINT16, types.UINT32, types.UINT64
float16, bfloat16 = types.FLOAT16, types.BFLOAT16
float32, float64 = types.FLOAT32, types.FLOAT64
float8_e4m3fn, float8_e4m3fnuz = types.FLOAT8_E4M3FN, types.FLOAT8_E4M3FNUZ
float8_e5m2, float8_e5m2fnuz = types.FLOAT8_E5M2, types.FLOAT8_E5M2FNUZ
float8_e8m0fnu, float4_e2m1fn = types.FLOAT8_E8M0FNU, types.FLOAT4_E2M1FN
int4, uint4, int2, uint2 = types.INT4, types.UINT4, types.INT2, types.UINT2

#: The kinds of `isdtype`, by the letters of `DType.kind`. There are no complex dtypes.
KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "",
    "numeric": "iuf",
}


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """What a float dtype can hold. `eps` is the step from 1 to the next number."""

    dtype: DType
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float

    @property
    def tiny(self) -> float:
        """NumPy's other name of `smallest_normal`."""
        return self.smallest_normal


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """What an integer dtype can hold."""

    dtype: DType
    bits: int
    max: int
    min: int


def finfo(type: DTypeLike | Tensor | Array, /) -> FloatInfo:
    """The limits of a float dtype, or of that of a tensor.

    >>> semel.finfo("float16").max
    65504.0
    """
    dtype = _dtype_of(type, "finfo")
    if not dtype.is_float:
        raise GraphError("finfo", f"needs a float dtype, got {dtype}.", hint="Use iinfo.")
    return _float_info(dtype)


@cache
def _float_info(dtype: DType) -> FloatInfo:
    of_numpy: Any = ml_dtypes.finfo
    found = of_numpy(dtype.numpy)
    numbers = (found.eps, found.max, found.min, found.smallest_normal)
    return FloatInfo(dtype, dtype.bits, *map(float, numbers))


def iinfo(type: DTypeLike | Tensor | Array, /) -> IntegerInfo:
    """The limits of an integer dtype, or of that of a tensor.

    >>> semel.iinfo("uint8").max
    255
    """
    dtype = _dtype_of(type, "iinfo")
    if not dtype.is_integer:
        raise GraphError("iinfo", f"needs an integer dtype, got {dtype}.", hint="Use finfo.")
    return IntegerInfo(dtype, dtype.bits, int(dtype.highest), int(dtype.lowest))


def can_cast(from_: DTypeLike | Tensor | Array, to: DTypeLike, /) -> bool:
    """Whether every value of one dtype is one of the other.

    >>> semel.can_cast("int16", "int32"), semel.can_cast("int32", "float32")
    (True, False)
    """
    return is_lossless(_dtype_of(from_, "can_cast"), as_dtype(to, "can_cast"))


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Whether a dtype is of a kind, or of one of several: a word of `KINDS`, or a dtype.

    >>> semel.isdtype("int8", "integral"), semel.isdtype("int8", ("bool", "float32"))
    (True, False)
    """
    own = as_dtype(dtype, "isdtype")
    if isinstance(kind, tuple):
        return any(isdtype(own, each) for each in kind)
    if isinstance(kind, str) and kind in KINDS:
        return own.kind in KINDS[kind]
    try:
        return own == as_dtype(kind, "isdtype")
    except GraphError as error:
        words = ", ".join(KINDS)
        raise GraphError(
            "isdtype", f"kind must be one of {words}, or a dtype, got {kind!r}."
        ) from error


def result_type(*arrays_and_dtypes: TensorLike | DTypeLike) -> DType:
    """The dtype of an operation on these tensors, dtypes and numbers.

    >>> semel.result_type("int8", "float16"), semel.result_type("float16", 1.0)
    (semel.float16, semel.float16)
    """
    if not arrays_and_dtypes:
        raise GraphError("result_type", "needs at least one tensor or dtype.")
    kinds = [_weak(value) for value in arrays_and_dtypes]
    strong = [
        _dtype_of(v, "result_type") for v, k in zip(arrays_and_dtypes, kinds, strict=True) if not k
    ]
    return common_dtype(strong, kinds)


def _weak(value: Any) -> str:
    # A class is a dtype here, and NumPy's scalars have one.
    return "" if isinstance(value, (DType, str, type, np.dtype)) else weak_kind(value)


def _dtype_of(value: Any, where: str) -> DType:
    is_array = isinstance(value, (tensor_class(), np.ndarray, np.generic))
    return as_dtype(value.dtype if is_array else value, where)
