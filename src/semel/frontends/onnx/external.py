"""Numbers of initializers, where they lie: in the message, or in files beside the model.

    TensorProto  --Weights.array-->  array        in the message: decoded
                                                  in a file: a view of its mapping, nothing is read
    SparseTensorProto  --Weights.dense-->  array  with its zeros

A model is not trusted: it names files, and says where in them something is. So only regular files
below the model's own folder are opened, wherever links lead, and only what lies inside of them is
looked at. Caches keep a model and its data as links into one folder of blobs: where the model's
file is itself a link, the folder that it leads to counts as well.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from semel.errors import ModelError
from semel.frontends.onnx.node import dtype_of
from semel.runtime.buffer import Array

#: Bits per element of types that share bytes in files.
_PACKED = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


@dataclass(eq=False)
class Weights:
    """What the tensors of one model hold; `path` is its file, None if it has none."""

    name: str
    path: Path | None
    _files: dict[str, Array] = field(default_factory=dict)

    def array(self, tensor: TensorProto) -> Array | None:
        """The numbers of a tensor; None for text."""
        if any(dim < 0 for dim in tensor.dims):
            raise self._error(tensor, f"must have no negative dims, got {list(tensor.dims)}.")
        is_external = tensor.data_location == TensorProto.EXTERNAL
        if tensor.data_type == TensorProto.STRING:
            if is_external:
                raise self._error(tensor, "must not be text in an external file.")
            return None
        dtype = dtype_of(tensor.data_type, f"{self.name}: initializer '{tensor.name}'").numpy
        if is_external:
            return self._external(tensor, dtype)
        try:
            array: Array = numpy_helper.to_array(tensor)
            return array
        except (ValueError, TypeError) as error:
            raise self._error(tensor, f"must hold what its type says: {error}.") from error

    def dense(self, sparse: SparseTensorProto) -> Array:
        """A sparse tensor with its zeros: no kernel here leaves them out."""
        values, places = self.array(sparse.values), self.array(sparse.indices)
        dims = tuple(sparse.dims)
        if values is None or values.ndim != 1 or places is None or any(n < 0 for n in dims):
            raise self._error(sparse.values, "must have a list of values, indices, and dims.")
        shape = (len(values),) if places.ndim == 1 else (len(values), len(dims))
        if places.dtype != np.int64 or places.shape != shape:
            message = f"must have int64 indices of shape {list(shape)}, got {list(places.shape)}."
            raise self._error(sparse.values, message)
        try:
            found = np.zeros(dims, values.dtype)
            if places.ndim == 1:
                places = np.stack(np.unravel_index(places, dims), 1)
            if (places < 0).any():
                raise IndexError("an index is negative")
            found[tuple(places.T)] = values
        except (ValueError, IndexError, MemoryError) as error:
            message = f"must have indices and dims that fit: {error}."
            raise self._error(sparse.values, message) from error
        return found

    def _external(self, tensor: TensorProto, dtype: np.dtype[Any]) -> Array:
        where = {entry.key: entry.value for entry in tensor.external_data}
        bits = _PACKED.get(TensorProto.DataType.Name(tensor.data_type))
        size = (math.prod(tensor.dims) * (bits or 8 * dtype.itemsize) + 7) // 8
        raw = self._bytes(tensor, where, size)
        if bits:
            whole = TensorProto(dims=tensor.dims, raw_data=raw.tobytes())
            whole.data_type = tensor.data_type
            array: Array = numpy_helper.to_array(whole)
            return array
        if raw.ctypes.data % dtype.itemsize:
            raw = raw.copy()
        return raw.view(dtype).reshape(tuple(tensor.dims))

    def _bytes(self, tensor: TensorProto, where: dict[str, str], size: int) -> Array:
        """What lies where a tensor says, which must be its size."""
        location = where.get("location", "")
        data = self._files.get(location)
        if data is None:
            data = self._files[location] = self._mapped(self._found(tensor, location))
        try:
            offset, length = int(where.get("offset", 0)), int(where.get("length", size))
        except ValueError as error:
            raise self._error(tensor, "must say offset and length as numbers.") from error
        if offset < 0 or length != size or offset + length > data.nbytes:
            raise self._error(
                tensor,
                f"must be {size} bytes inside of {location} ({data.nbytes} bytes), "
                f"got {length} at {offset}.",
            )
        return data[offset : offset + length]

    def _found(self, tensor: TensorProto, location: Any) -> str:
        """The file that a location leads to, which must be one that the model may read."""
        if self.path is None:
            message = f"lies in the file {location!r}; a model from memory has no folder."
            raise self._error(tensor, message, "Load the model from its path.")
        is_text = isinstance(location, str) and bool(location) and "\0" not in location
        if is_text and not os.path.isabs(location) and ".." not in Path(location).parts:
            folders = list(
                dict.fromkeys((self.path.parent, Path(os.path.realpath(self.path)).parent))
            )
            allowed = [os.path.realpath(folder) for folder in folders]
            paths = [folder / location for folder in folders]
            chosen = next((path for path in paths if os.path.lexists(path)), paths[0])
            real: str = os.path.realpath(chosen)
            if any(Path(real).is_relative_to(folder) for folder in allowed):
                return real
        raise self._error(tensor, f"must lie in a file beside the model, got {location!r}.")

    def _mapped(self, path: str) -> Array:
        """A file's bytes. Whoever opens a pipe waits for its other end, unless told not to."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode):
                    raise ModelError(self.name, f"its external data must be a file, got {path}.")
                if not found.st_size:
                    return np.empty(0, np.uint8)
                return np.frombuffer(mmap.mmap(file, 0, access=mmap.ACCESS_READ), np.uint8)
            finally:
                os.close(file)
        except OSError as error:
            message = f"its external data must be readable: {error}."
            raise ModelError(self.name, message, path=path) from error

    def _error(self, tensor: TensorProto, message: str, hint: str = "") -> ModelError:
        return ModelError(self.name, f"initializer '{tensor.name}' {message}", hint=hint)
