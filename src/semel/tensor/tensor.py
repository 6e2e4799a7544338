"""The lazy tensor: what users write programs with.

    Tensor(data) | Tensor.input(...) | Tensor.param(...)  --methods-->  Tensor  --prepare-->  plan

A tensor is a handle on a graph node; operations are methods from the layers below. Data is
copied when a tensor is made and sealed from then on, so that no array of the caller's can
change a result behind anybody's back. Only what lies in bytes or in a file mapped for reading
is used where it lies: weights of a safetensors file are not held twice.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import LateVariable, variables
from semel.ir.graph import Storage
from semel.ir.types import TensorType, as_dtype, as_shape
from semel.ops.attrs import InputAttrs, ParamAttrs
from semel.tensor.handle import DTypeLike, Handle, as_array
from semel.tensor.realize import Realize

_SHOWN_ELEMENTS = 64


class Tensor(Realize):
    """A tensor that is computed when it is asked for.

    >>> a = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (a @ a).sum(0).numpy()
    array([17., 32.], dtype=float32)

    `data` is anything NumPy or DLPack reads. Python floats give float32, integers int64;
    arrays keep their dtype unless `dtype` says otherwise.
    """

    __slots__ = ()

    def __init__(self, data: Any, dtype: DTypeLike | None = None) -> None:
        wanted = None if dtype is None else as_dtype(dtype, "Tensor")
        if isinstance(data, Handle):
            made: Handle = data if wanted is None else data.cast(wanted)
        else:
            made = self._constant(as_array(data, wanted))
        self._node, self._value = made._node, made._value

    @classmethod
    def input(cls, name: str, shape: Any, dtype: DTypeLike = "float32") -> Self:
        """A tensor that the caller passes at every run, by name."""
        _check_name(name, "input")
        kind = TensorType(as_shape(shape, "input"), as_dtype(dtype, "input"))
        _check_known(name, kind)
        return cls._apply("input", attrs=InputAttrs(name, kind))

    @classmethod
    def param(cls, name: str, data: Any, dtype: DTypeLike | None = None) -> Self:
        """Data that may be replaced later, by name: it is copied now, and never folded."""
        _check_name(name, "param")
        array = as_array(data, None if dtype is None else as_dtype(dtype, "param"))
        kind = TensorType(array.shape, as_dtype(array.dtype, "param"))
        return cls._apply("param", attrs=ParamAttrs(name, Storage(array), kind))

    def __repr__(self) -> str:
        """Type and op; the value too if it is known and small. Never computes."""
        dims = ", ".join(str(d) for d in self.shape)
        storage = self._value or self._given()
        if storage is None or storage.array.size > _SHOWN_ELEMENTS:
            return f"<Tensor {self.dtype}[{dims}] {self._node.op.name}>"
        values = np.array2string(storage.array, separator=", ", prefix="Tensor(")
        return f"Tensor({values}, dtype={self.dtype})"

    def __copy__(self) -> Self:
        return self._wrap(self._node)

    def __deepcopy__(self, memo: Any) -> Self:
        return self._wrap(self._node)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle holds the value: graphs are rebuilt by the program that made them.
        return type(self), (self._array("pickle"),)


def _check_known(name: str, kind: TensorType) -> None:
    late = [v.name for d in kind.shape for v in variables(d) if isinstance(v, LateVariable)]
    if late:
        raise GraphError(
            "input",
            f"the shape of '{name}' must be known before a run, got {kind}: {late[0]} is the size "
            "of what a run computes.",
        )


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name:
        raise GraphError(where, f"name must be a non-empty string, got {name!r}.")
