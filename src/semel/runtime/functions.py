"""The custom functions that every process has; `FUNCTIONS` has them by name.

    all_reduce  combine buffers element by element; every one of them gets the result
    encode      compress a buffer into a byte buffer that says how long it is
    decode      the reverse; damaged bytes are a CodecError
    top_k       the k largest or smallest of the last axis, with their indices
    random_fill random numbers as a pure function of a key (Philox)

All run on the host with NumPy. Each checks its attributes and buffers at build, so that only
data can be wrong at run time. Results depend on nothing but the arguments.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from semel.errors import CodecError, PlanError
from semel.ir.narrow import as_dtype_array
from semel.ir.types import INT64, UINT8, TensorType, as_dtype
from semel.runtime.buffer import Array, Buffer
from semel.runtime.custom import CheckFunction, CustomFunction, Positions, PythonFunction


def _require(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise PlanError(where, message)


def _attr(where: str, attrs: Any, name: str, default: Any = None) -> Any:
    _require(
        attrs is None or isinstance(attrs, Mapping), where, f"attrs must be a mapping, got {attrs}."
    )
    return default if attrs is None else attrs.get(name, default)


def _choice(where: str, attrs: Any, name: str, default: Any, known: Sequence[Any]) -> Any:
    found = _attr(where, attrs, name, default)
    _require(found in known, where, f"{name} must be one of {list(known)}, got {found!r}.")
    return found


# ---------------------------------------------------------------- all_reduce

_COMBINE: dict[str, Any] = {
    "sum": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


def _check_all_reduce(attrs: Any, types: Sequence[TensorType], names: Sequence[str]) -> None:
    where = "all_reduce"
    op = _choice(where, attrs, "op", "sum", list(_COMBINE))
    _require(len(types) > 0, where, "needs at least one buffer.")
    _require(len(set(types)) == 1, where, f"buffers must have one type, got {list(types)}.")
    dtype = types[0].dtype
    if op in ("sum", "mean"):
        _require(dtype.kind != "b", where, f"op {op} needs numbers, got {dtype}.")
    _require(op != "mean" or dtype.is_float, where, f"op mean needs floats, got {dtype}.")


def all_reduce(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
    """Combine all buffers in their order and write the result to each; `op` says how."""
    op = _attr("all_reduce", attrs, "op", "sum")
    arrays = [b.array() for b in buffers]
    # Sums of narrower floats go through float32, or they would be rounded at every buffer.
    dtype = buffers[0].dtype
    wide = dtype.compute.numpy
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        _COMBINE[op](total, array.astype(wide, copy=False), out=total)
    if op == "mean":
        total /= len(arrays)
    result = as_dtype_array(total, dtype)
    for array in arrays:
        array[...] = result


# ---------------------------------------------------------------- encode, decode

_MAGIC = b"SEMZ"
_HEADER = struct.Struct("<4sIQQ")  # magic, codec, raw bytes, encoded bytes


def encoded_bytes_at_most(raw_bytes: int) -> int:
    """How large a byte buffer `encode` needs for so many bytes, whatever they are."""
    # zlib's own bound for incompressible data.
    return _HEADER.size + raw_bytes + (raw_bytes >> 12) + (raw_bytes >> 14) + (raw_bytes >> 25) + 13


def _static_bytes(where: str, kind: TensorType) -> int:
    size = kind.max_bytes
    if size is None:
        raise PlanError(where, f"{kind} must have a largest size.")
    return size


def _check_encode(attrs: Any, types: Sequence[TensorType], names: Sequence[str]) -> None:
    where = "encode"
    _choice(where, attrs, "codec", "zlib", ["zlib"])
    _choice(where, attrs, "level", 6, range(10))
    _require(len(types) == 2, where, f"needs buffers (src, dst), got {len(types)}.")
    _require(types[1].dtype == UINT8, where, f"dst must be uint8, got {types[1].dtype}.")
    needed = encoded_bytes_at_most(_static_bytes(where, types[0]))
    held = _static_bytes(where, types[1])
    _require(held >= needed, where, f"dst must hold {needed} bytes for {types[0]}, got {held}.")


def encode(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
    """Compress buffer 0 into buffer 1, behind a header with both lengths."""
    raw = buffers[0].array().tobytes()
    packed = zlib.compress(raw, _attr("encode", attrs, "level", 6))
    data = _HEADER.pack(_MAGIC, 0, len(raw), len(packed)) + packed
    buffers[1].array().reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)


def _check_decode(attrs: Any, types: Sequence[TensorType], names: Sequence[str]) -> None:
    where = "decode"
    _require(len(types) == 2, where, f"needs buffers (src, dst), got {len(types)}.")
    _require(types[0].dtype == UINT8, where, f"src must be uint8, got {types[0].dtype}.")
    held = _static_bytes(where, types[0])
    _require(held >= _HEADER.size, where, f"src must hold a header of {_HEADER.size} bytes.")


def decode(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
    """Write what `encode` compressed into buffer 0 to buffer 1, which must have its size."""
    data = buffers[0].array().tobytes()
    magic, codec, raw_bytes, packed_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or codec != 0:
        raise CodecError("decode", f"src must start with {_MAGIC!r} and codec 0, got {data[:8]!r}.")
    if raw_bytes != buffers[1].nbytes:
        raise CodecError(
            "decode", f"src holds {raw_bytes} bytes, dst must be as large, got {buffers[1].nbytes}."
        )
    if packed_bytes > len(data) - _HEADER.size:
        raise CodecError("decode", f"src must hold {packed_bytes} encoded bytes, it is cut short.")
    raw = _decompress(data[_HEADER.size : _HEADER.size + packed_bytes], raw_bytes)
    target = buffers[1].array()
    target[...] = np.frombuffer(raw, target.dtype).reshape(target.shape)


def _decompress(data: bytes, raw_bytes: int) -> bytes:
    """At most `raw_bytes`, so that damaged lengths cannot fill the memory."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data, raw_bytes + 1)
    except zlib.error as error:
        raise CodecError("decode", f"src must be zlib data: {error}.") from error
    if len(raw) != raw_bytes or not stream.eof:
        raise CodecError("decode", f"src must give {raw_bytes} bytes, it is cut short or too long.")
    return raw


# ---------------------------------------------------------------- top_k


def _check_top_k(attrs: Any, types: Sequence[TensorType], names: Sequence[str]) -> None:
    where = "top_k"
    _choice(where, attrs, "largest", True, [True, False])
    _require(len(types) == 3, where, f"needs buffers (x, values, indices), got {len(types)}.")
    x, values, indices = types
    _require(x.rank >= 1, where, f"x must have an axis, got {x}.")
    _require(values.dtype == x.dtype, where, f"values must be {x.dtype}, got {values.dtype}.")
    _require(indices.dtype == INT64, where, f"indices must be int64, got {indices.dtype}.")
    k = _attr(where, attrs, "k")
    _require(isinstance(k, int) and k >= 0, where, f"k must be an int >= 0, got {k!r}.")
    wanted = (*x.shape[:-1], k)
    for name, kind in (("values", values), ("indices", indices)):
        _require(kind.shape == wanted, where, f"{name} must have shape {wanted}, got {kind.shape}.")
    size = x.shape[-1]
    _require(not isinstance(size, int) or k <= size, where, f"k must be <= {size}, got {k}.")


def top_k(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
    """The best `k` along the last axis, best first; equal ones by index, NaN is largest."""
    x, values, indices = (b.array() for b in buffers)
    keys = x.astype(buffers[0].dtype.compute.numpy, copy=False)  # that NumPy can sort
    k, size = attrs["k"], x.shape[-1]
    if k > size:
        raise PlanError("top_k", f"k must be <= {size} at these variables, got {k}.")
    if _attr("top_k", attrs, "largest", True):
        # Reversed twice, so that a stable ascending sort puts the lower of two equals first.
        order = size - 1 - np.argsort(keys[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(keys, axis=-1, kind="stable")
    indices[...] = order[..., :k]
    values[...] = np.take_along_axis(x, indices, axis=-1)


# ---------------------------------------------------------------- random_fill


def _uniform(words: Array, attrs: Any) -> Array:
    low, high = _attr("random_fill", attrs, "low", 0.0), _attr("random_fill", attrs, "high", 1.0)
    unit = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.asarray(low + (high - low) * unit)


def _normal(words: Array, attrs: Any) -> Array:
    """Box-Muller on the halves of each word: one number per word, in one fixed way."""
    first = ((words >> np.uint64(32)).astype(np.float64) + 1) * 2.0**-32  # in (0, 1]
    second = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
    return np.asarray(np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second))


_DISTRIBUTIONS: dict[str, Callable[[Array, Any], Array]] = {
    "uniform": _uniform,
    "normal": _normal,
    "bits": lambda words, attrs: words,
}


def _check_random_fill(attrs: Any, types: Sequence[TensorType], names: Sequence[str]) -> None:
    where = "random_fill"
    name = _choice(where, attrs, "distribution", "uniform", list(_DISTRIBUTIONS))
    key = _attr(where, attrs, "key")
    _require(
        isinstance(key, int) and 0 <= key < 1 << 128, where, f"key must be 128 bits, got {key!r}."
    )
    stream = _attr(where, attrs, "stream")
    _require(
        stream is None or stream in names,
        where,
        f"stream must be a variable of the operation, one of {list(names)}, got {stream!r}.",
    )
    _require(len(types) == 1, where, f"needs one buffer, got {len(types)}.")
    dtype = types[0].dtype
    if name == "bits":
        _require(dtype.kind in "ui", where, f"bits need integers, got {dtype}.")
    else:
        _require(dtype.is_float, where, f"{name} needs floats, got {dtype}.")


def random_fill(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
    """Fill buffer 0 from Philox4x64 with `key`; the variable named by `stream` picks the stream."""
    target = buffers[0].array()
    stream = attrs.get("stream")
    number = 0 if stream is None else variables[stream] & ((1 << 64) - 1)
    words = np.random.Philox(key=attrs["key"], counter=number << 192).random_raw(target.size)
    made = _DISTRIBUTIONS[attrs.get("distribution", "uniform")](np.asarray(words), attrs)
    target[...] = made.astype(as_dtype(target.dtype).numpy).reshape(target.shape)


# ---------------------------------------------------------------- the table

_ROWS: tuple[tuple[PythonFunction, Positions, Positions, CheckFunction], ...] = (
    (all_reduce, None, None, _check_all_reduce),
    (encode, (0,), (1,), _check_encode),
    (decode, (0,), (1,), _check_decode),
    (top_k, (0,), (1, 2), _check_top_k),
    (random_fill, (), (0,), _check_random_fill),
)

FUNCTIONS = {
    function.__name__: CustomFunction(
        function.__name__, "python", function, 0, reads, writes, check
    )
    for function, reads, writes, check in _ROWS
}
