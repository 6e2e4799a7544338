"""What an ONNX value is while a model is imported.

A value is a tensor that runs compute, or it is known now: numbers, sizes that runs bind, text.
Shape arithmetic needs the second kind, and everything else the first, so that a value is both as
soon as somebody asks: a known one becomes a constant, or a tensor that reads the sizes at each run.

    Value{known}  --.tensor-->  Tensor         Value{tensor of constants}  --numbers_of-->  array
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from semel.errors import GraphError
from semel.frontends.onnx.ratio import OPEN, SYMBOLIC, Ratio
from semel.ir.expr import Dim
from semel.ir.types import FLOAT64, INT64, DType, as_dtype
from semel.runtime.buffer import Array
from semel.tensor.handle import dim_value, scalar
from semel.tensor.tensor import Tensor


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of numbers: computed by runs, or known at import.

    `known` holds numbers of the dtype or, as objects, dims: numbers, expressions of sizes and,
    where the dtype has fractions, ratios of these. A bool is 0 or 1 there.
    """

    dtype: DType
    known: Array | None = None
    made: Tensor | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        """A value that runs compute."""
        return cls(tensor.dtype, None, tensor)

    @classmethod
    def of_array(cls, array: Any) -> Value:
        """A value of these numbers."""
        found = np.asarray(array)
        return cls(as_dtype(found.dtype, "constant"), found)

    @classmethod
    def of_dims(cls, dims: Any, dtype: DType = INT64) -> Value:
        """A value of these dims, an array or a sequence of them."""
        found = dims if isinstance(dims, np.ndarray) else object_array(dims)
        if not any(isinstance(dim, OPEN) for dim in found.flat):
            return cls(dtype, np.asarray(found, dtype.numpy).reshape(found.shape))
        return cls(dtype, found)

    @property
    def is_symbolic(self) -> bool:
        """Whether it is known, and some of it are sizes that runs bind."""
        return self.known is not None and self.known.dtype == object

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.known.shape if self.known is not None else self.tensor.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def tensor(self) -> Tensor:
        """The same value as a tensor."""
        if self.made is None:
            assert self.known is not None
            self.made = _as_tensor(self.known, self.dtype)
        return self.made


@dataclass(eq=False, slots=True)
class Text:
    """Strings; `known` are objects, or None where only a run knows them."""

    known: Array | None = None


@dataclass(eq=False, slots=True)
class Items:
    """A sequence: its items, which are known one by one at import."""

    items: list[AnyValue]


@dataclass(eq=False, slots=True)
class Rows:
    """A sequence that a loop built: its items are the rows of one tensor, so many as there are."""

    tensor: Tensor


@dataclass(eq=False, slots=True)
class Nothing:
    """An optional that is empty."""


AnyValue: TypeAlias = "Value | Text | Items | Rows | Nothing"


def object_array(items: Sequence[Any]) -> Array:
    """A vector of these objects, whatever NumPy would make of them."""
    made = np.empty(len(items), object)
    made[:] = list(items)
    return made


def as_value(given: Any) -> AnyValue:
    """What a converter returned, or a caller gave, as a value."""
    if isinstance(given, (Value, Text, Items, Rows, Nothing)):
        return given
    if isinstance(given, Tensor):
        return Value.of(given)
    if given is None:
        return Nothing()
    if isinstance(given, (list, tuple)):
        return Items([as_value(item) for item in given])
    array = np.asarray(given)
    if array.dtype.kind in "OSU":
        return Text(np.asarray(array, object))
    return Value.of_array(array)


def _as_tensor(known: Array, dtype: DType) -> Tensor:
    if known.dtype != object:
        return Tensor(np.ascontiguousarray(known).reshape(known.shape))
    if not known.size:
        raise GraphError("onnx", "an array of no dims has no values to compute.")
    numbers = [_number(dim, dtype) for dim in known.flat]
    return numbers[0].reshape(known.shape) if known.size == 1 else _stacked(numbers, known.shape)


def _number(given: Any, dtype: DType) -> Tensor:
    if isinstance(given, Ratio):
        return (dim_value(given.top, FLOAT64) / dim_value(given.bottom, FLOAT64)).cast(dtype)
    return dim_value(given, dtype) if isinstance(given, SYMBOLIC) else scalar(given, dtype)


def _stacked(numbers: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    return Tensor.stack(numbers, 0).reshape(shape)
