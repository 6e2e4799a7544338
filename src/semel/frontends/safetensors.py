"""Reads and writes .safetensors files: named arrays in one file, without running any code.

    path  --load_safetensors-->  {name: array}  --save_safetensors-->  path

A file is the length of its header (8 bytes, little-endian), the header (JSON: dtype, shape
and byte range per name), and the data. The arrays are read-only. Each large one is a mapping of
its part of the file: nothing is read before it is used, and its pages go back when the array is
dropped, whatever happens to the others. A `Tensor` made of one reads the file's pages too, so
replace such a file (as `save_safetensors` does) and never write into it.

Nothing in a file is trusted. Accepted is what the reference library accepts: strict JSON, one row
per array with exactly its fields at least once and at most once, ranges that cover the data from
end to end without gap or overlap. Refused beyond that is what has two readings or no array: a name
that stands twice, a row that is a list, a dtype or a size that NumPy has not.
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
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
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
_MAX_DEPTH = 127
_FIELDS = ("dtype", "shape", "data_offsets")
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
        rows = {name: _read_row(f"{where}: {name}", row) for name, row in header.items()}
        _check_cover(where, rows, body.size_bytes)
        return {name: _array(f"{where}: {name}", row, body) for name, row in rows.items()}


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
        header = _parse(file.read(end - 8).decode())
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(where, f"the header must be JSON: {error}.") from None
    if not isinstance(header, _Object):
        raise InputError(where, f"the header must be an object, got {type(header).__name__}.")
    if header.repeated:
        raise InputError(where, f"names must be distinct, got {header.repeated[0]!r} twice.")
    notes = header.pop("__metadata__", None)
    if not (notes is None or isinstance(notes, _Object)) or not all(
        isinstance(text, str) for text in (notes or {}).values()
    ):
        raise InputError(where, f"__metadata__ must map strings to strings, got {notes!r:.80}.")
    return header, end


class _Object(dict[str, Any]):
    """A JSON object that knows which of its keys stand in it more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        self.repeated = [name for name, _ in pairs if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


def _parse(text: str) -> Any:
    """JSON as the standard has it: Python's reader also takes NaN, lone surrogates and 1e999."""
    found = json.loads(
        text,
        object_pairs_hook=_Object,
        parse_int=_integer,
        parse_float=_finite,
        parse_constant=_no_constant,
    )
    _check_texts(found)
    return found


def _integer(digits: str) -> int | float:
    number = int(digits)
    is_word = -(1 << 63) <= number < 1 << 64 and digits != "-0"
    return number if is_word else _finite(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"a number must be finite, got {digits:.40}")
    return number


def _no_constant(name: str) -> None:
    raise ValueError(f"a value must not be {name}")


def _check_texts(value: Any, depth: int = 1) -> None:
    """Strings must be Unicode, and nesting limited."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, (dict, list)):
        if depth > _MAX_DEPTH:
            raise ValueError(f"values must be nested at most {_MAX_DEPTH} deep")
        items = value if isinstance(value, list) else (*value, *value.values())
        for item in items:
            _check_texts(item, depth + 1)


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


@dataclass(frozen=True, slots=True)
class _Row:
    """One array: bytes [start, stop) of the data."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def _read_row(where: str, row: Any) -> _Row:
    if not isinstance(row, _Object) or any(name not in row for name in _FIELDS):
        raise InputError(where, f"needs dtype, shape and data_offsets, got {row!r:.80}.")
    twice = [name for name in row.repeated if name in _FIELDS]
    if twice:
        raise InputError(where, f"must have {twice[0]} once.")
    name, shape, offsets = (row[field] for field in _FIELDS)
    if not isinstance(name, str) or name not in _DTYPES:
        raise InputError(where, f"dtype must be one of {', '.join(_DTYPES)}, got {name!r:.40}.")
    for what, sizes in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(sizes, list) or any(type(n) is not int or n < 0 for n in sizes):
            raise InputError(where, f"{what} must be a list of sizes, got {sizes!r:.80}.")
    if len(offsets) != 2:
        raise InputError(where, f"data_offsets must be two, got {len(offsets)}.")
    dtype = np.dtype(_DTYPES[name])
    size_bytes = _size_bytes(where, shape, dtype.itemsize)
    if offsets[1] - offsets[0] != size_bytes:
        raise InputError(
            where, f"{name}{shape} takes {size_bytes} bytes, got {offsets[1] - offsets[0]}."
        )
    return _Row(dtype, tuple(shape), *offsets)


def _size_bytes(where: str, shape: list[int], itemsize: int) -> int:
    """The bytes of an array; a product that leaves 64 bits is refused even if a 0 follows."""
    total = 1
    for factor in (*shape, itemsize):
        total *= factor
        if total >= 1 << 64:
            raise InputError(where, f"the size of {shape} must fit 64 bits.")
    return total


def _check_cover(where: str, rows: Mapping[str, _Row], size_bytes: int) -> None:
    """The arrays must follow each other from the first byte of the data to the last."""
    end = 0
    for name, row in sorted(rows.items(), key=lambda item: (item[1].start, item[1].stop)):
        if row.start != end:
            raise InputError(
                f"{where}: {name}", f"must begin where another ends, at {end}, got {row.start}."
            )
        end = row.stop
    if end != size_bytes:
        raise InputError(where, f"arrays must cover the {size_bytes} bytes of data, got {end}.")


def _array(where: str, row: _Row, body: _Body) -> np.ndarray[Any, Any]:
    data = np.frombuffer(body.read(row.start, row.stop), row.dtype)
    try:
        return data.reshape(row.shape)
    except ValueError:  # it has no elements, but sizes that NumPy cannot count with
        raise InputError(where, f"shape must be one that an array has, got {row.shape}.") from None
