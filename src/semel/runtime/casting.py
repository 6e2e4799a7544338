"""Arrays of another dtype, and bytes, as arrays of the dtype that is wanted.

array x dtype    --cast-->            converted within its kind, or refused
bytes x dtype    --array_of_bytes-->  exactly these bytes
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from semel.errors import GraphError, InputError
from semel.ir.narrow import as_dtype_array
from semel.ir.types import DType, as_dtype
from semel.runtime.buffer import Array, as_array
from semel.runtime.interop import NUMPY_PROTOCOLS, read_array

#: How an array of another dtype is treated: refused, or converted within its kind.
CASTINGS = ("exact", "same_kind")


def check_casting(where: str, casting: Any) -> str:
    """A rule that there is."""
    if casting not in CASTINGS:
        choices = " or ".join(map(repr, CASTINGS))
        raise InputError(where, f"casting must be {choices}, got {casting!r}.")
    return str(casting)


def cast_value(value: Any, dtype: DType, where: str, casting: str) -> Array:
    """One value as an array of that dtype; numbers and lists become what they must."""
    is_array = any(hasattr(value, name) for name in (*NUMPY_PROTOCOLS, "__dlpack__"))
    if casting == "exact" or not is_array:
        return as_array(value, dtype, where)
    return cast(read_array(value, lambda text: InputError(where, text)), dtype, where)


def cast(array: Array, dtype: DType, where: str, casting: str = "same_kind") -> Array:
    """The array in another dtype of the same kind, or of a wider one, as NumPy judges."""
    if array.dtype == dtype.numpy:
        return array
    if casting == "exact":
        raise InputError(where, f"dtype must be {dtype}, got {array.dtype}.")
    if not _is_same_kind(array.dtype, dtype):
        raise InputError(where, f"must be castable to {dtype} within its kind, got {array.dtype}.")
    return as_dtype_array(array, dtype)


def _is_same_kind(given: np.dtype[Any], wanted: DType) -> bool:
    order = {"b": 0, "u": 1, "i": 2, "f": 3}
    try:
        return order[as_dtype(given).kind] <= order[wanted.kind]
    except GraphError:  # none of ours
        return False


def flat_bytes(data: Any, where: str) -> Array:
    """The bytes behind anything with the buffer protocol."""
    try:
        return np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(where, f"must be contiguous bytes: {error}.") from None


def array_of_bytes(data: Any, dtype: DType, shape: tuple[int, ...], where: str) -> Array:
    """These bytes, little-endian and in row-major order, as an array: neither more nor less."""
    flat = flat_bytes(data, where)
    wanted = prod(shape) * dtype.size_bytes
    if flat.size != wanted:
        raise InputError(
            where, f"must have {wanted} bytes as {dtype}{list(shape)}, got {flat.size}."
        )
    array: Array = np.ndarray(shape, dtype.numpy, flat.data)
    return array if array.flags.aligned else array.copy()
