"""Reads .safetensors files: named arrays in one file, without running any code.

    path  --load_safetensors-->  {name: array}

A file is the length of its header (8 bytes, little-endian), the header (JSON: dtype, shape
and byte range per name), and the data. The arrays are read-only views of the mapped file:
nothing is read before it is used, and the mapping lives as long as one of them does.
Every range is checked against the header before it becomes an array.
"""

from __future__ import annotations

import json
import mmap
from os import PathLike
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from semel.errors import InputError

_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
    "BOOL": np.bool_,
}
_MAX_HEADER_BYTES = 100_000_000


def load_safetensors(path: str | PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of a file by name; InputError if it is not what it says it is."""
    where = f"safetensors {Path(path).name}"
    with open(path, "rb") as file:
        size_bytes = file.seek(0, 2)
        if size_bytes < 8:
            raise InputError(where, f"a file has at least 8 bytes, got {size_bytes}.")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    header, body = _split(where, data)
    return {name: _array(f"{where}: {name}", row, body) for name, row in header.items()}


def _split(where: str, data: memoryview) -> tuple[dict[str, Any], memoryview]:
    end = 8 + int.from_bytes(data[:8], "little")
    if end > min(len(data), _MAX_HEADER_BYTES):
        raise InputError(where, f"the header must end inside the file, got byte {end}.")
    try:
        header = json.loads(bytes(data[8:end]))
    except ValueError as error:
        raise InputError(where, f"the header must be JSON: {error}.") from None
    if not isinstance(header, dict):
        raise InputError(where, f"the header must be an object, got {type(header).__name__}.")
    header.pop("__metadata__", None)
    return header, data[end:]


def _array(where: str, row: Any, body: memoryview) -> np.ndarray[Any, Any]:
    try:
        name, shape = row["dtype"], tuple(int(d) for d in row["shape"])
        start, stop = (int(n) for n in row["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise InputError(where, f"needs dtype, shape and data_offsets, got {row!r}.") from None
    if name not in _DTYPES:
        raise InputError(where, f"dtype must be one of {', '.join(_DTYPES)}, got {name!r}.")
    dtype = np.dtype(_DTYPES[name])
    count = int(np.prod(shape, dtype=object))
    if min((*shape, start), default=0) < 0 or stop > len(body):
        raise InputError(where, f"bytes {start} to {stop} must lie in the file's {len(body)}.")
    if stop - start != count * dtype.itemsize:
        raise InputError(
            where, f"{name}{list(shape)} takes {count * dtype.itemsize} bytes, got {stop - start}."
        )
    return np.frombuffer(body[start:stop], dtype).reshape(shape)
