"""Reads and writes .safetensors files: named arrays in one file, without running any code.

    path  --load_safetensors-->  {name: array}  --save_safetensors-->  path

A file is the length of its header (8 bytes, little-endian), the header (JSON: dtype, shape
and byte range per name), and the data. The arrays are read-only. Each large one is a mapping of
its part of the file: nothing is read before it is used, and its pages go back when the array is
dropped, whatever happens to the others. A `Tensor` made of one reads the file's pages too, so
replace such a file (as `save_safetensors` does) and never write into it. Every range is checked
against the file before it becomes an array.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

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
#: A mapping of its own is worth its page tables from here on; less is read at once.
_MAPPED_FROM_BYTES = 64 << 10


def load_safetensors(path: str | PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of a file by name; InputError if it is not what it says it is."""
    where = f"safetensors {Path(path).name}"
    with open(path, "rb") as file:
        size_bytes = file.seek(0, 2)
        if size_bytes < 8:
            raise InputError(where, f"a file has at least 8 bytes, got {size_bytes}.")
        header, start = _read_header(where, file, size_bytes)
        body = _Body(file, start, size_bytes - start)
        return {name: _array(f"{where}: {name}", row, body) for name, row in header.items()}


def save_safetensors(path: str | PathLike[str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write the arrays by name; what is there is replaced only when all is written."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        dtype = _dtype_name(f"safetensors {Path(path).name}: {name}", array)
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    part = Path(f"{path}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _dtype_name(where: str, array: np.ndarray[Any, Any]) -> str:
    for name, dtype in _DTYPES.items():
        if array.dtype == dtype:
            return name
    raise InputError(where, f"dtype must be one of {', '.join(_DTYPES)}, got {array.dtype}.")


def _read_header(where: str, file: BinaryIO, size_bytes: int) -> tuple[dict[str, Any], int]:
    """The rows by name, and where the data begins."""
    file.seek(0)
    end = 8 + int.from_bytes(file.read(8), "little")
    if end > min(size_bytes, _MAX_HEADER_BYTES):
        raise InputError(where, f"the header must end inside the file, got byte {end}.")
    try:
        header = json.loads(file.read(end - 8))
    except ValueError as error:
        raise InputError(where, f"the header must be JSON: {error}.") from None
    if not isinstance(header, dict):
        raise InputError(where, f"the header must be an object, got {type(header).__name__}.")
    header.pop("__metadata__", None)
    return header, end


@dataclass(frozen=True, slots=True)
class _Body:
    """The data of an open file: `size_bytes` from byte `start` on."""

    file: BinaryIO
    start: int
    size_bytes: int

    def read(self, begin: int, end: int) -> memoryview:
        """These bytes; nobody can write to them."""
        begin, length = self.start + begin, end - begin
        if length < _MAPPED_FROM_BYTES:
            self.file.seek(begin)
            return memoryview(self.file.read(length))
        skip = begin % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(
            self.file.fileno(), length + skip, access=mmap.ACCESS_READ, offset=begin - skip
        )
        return memoryview(mapped)[skip:]


def _array(where: str, row: Any, body: _Body) -> np.ndarray[Any, Any]:
    try:
        name, shape = row["dtype"], tuple(int(d) for d in row["shape"])
        start, stop = (int(n) for n in row["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise InputError(where, f"needs dtype, shape and data_offsets, got {row!r}.") from None
    if name not in _DTYPES:
        raise InputError(where, f"dtype must be one of {', '.join(_DTYPES)}, got {name!r}.")
    dtype = np.dtype(_DTYPES[name])
    count = int(np.prod(shape, dtype=object))
    if min((*shape, start), default=0) < 0 or stop > body.size_bytes:
        raise InputError(
            where, f"bytes {start} to {stop} must lie in the file's {body.size_bytes}."
        )
    if stop - start != count * dtype.itemsize:
        raise InputError(
            where, f"{name}{list(shape)} takes {count * dtype.itemsize} bytes, got {stop - start}."
        )
    return np.frombuffer(body.read(start, stop), dtype).reshape(shape)
