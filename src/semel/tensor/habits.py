"""Short words that programs for PyTorch are full of.

    x.float()  x.long()  x.numel()  x.dim()  x.t()  x.clone()  x.contiguous()  x.view_as(y) ...

Each says something in the terms of this package. Tensors here have no gradient, no strides and no
memory that another tensor could write to, so that some have nothing to do, and say so.

`x.size` is how many elements there are, as in NumPy, and `x.size()`, `x.size(0)` the shape or one
of its dims, as in PyTorch: it is an int that can be called, or an expression that can. Of a size
that only a run finds out, `x.shape[0]` is what to write.
"""

from __future__ import annotations

import builtins
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from semel.errors import GraphError
from semel.ir.expr import Dim, Symbolic, answering
from semel.ir.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    Shape,
)
from semel.runtime.free import HOST_DEVICE
from semel.tensor.handle import TensorLike, convert, lift, normalize_axis, wrap
from semel.tensor.place import to

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


class Size(builtins.int):
    """How many elements a tensor has; called, its shape or the size of one axis."""

    _shape: Shape

    @classmethod
    def of(cls, count: Dim, shape: Shape) -> Size | Symbolic:
        """The number of elements of a shape."""
        if not isinstance(count, builtins.int):
            return answering(count, partial(_asked, shape))
        made = cls(count)
        made._shape = shape
        return made

    @overload
    def __call__(self) -> Shape: ...

    @overload
    def __call__(self, dim: builtins.int) -> Dim: ...

    def __call__(self, dim: builtins.int | None = None) -> Shape | Dim:
        """The shape, or the size of axis `dim`."""
        return _asked(self._shape, dim)

    def __reduce__(self) -> tuple[Any, ...]:
        return builtins.int, (builtins.int(self),)


def _asked(shape: Shape, dim: builtins.int | None = None) -> Shape | Dim:
    """The shape, or the size of axis `dim`."""
    return shape if dim is None else shape[normalize_axis(dim, len(shape), "size")]


# ------------------------------------------------------------ casts


def float(x: TensorLike) -> Tensor:
    """The elements as float32."""
    return convert(lift(x), FLOAT32)


def double(x: TensorLike) -> Tensor:
    """The elements as float64."""
    return convert(lift(x), FLOAT64)


def half(x: TensorLike) -> Tensor:
    """The elements as float16."""
    return convert(lift(x), FLOAT16)


def bfloat16(x: TensorLike) -> Tensor:
    """The elements as bfloat16."""
    return convert(lift(x), BFLOAT16)


def long(x: TensorLike) -> Tensor:
    """The elements as int64: truncated, and brought into its range."""
    return convert(lift(x), INT64)


def int(x: TensorLike) -> Tensor:
    """The elements as int32: truncated, and brought into its range."""
    return convert(lift(x), INT32)


def short(x: TensorLike) -> Tensor:
    """The elements as int16: truncated, and brought into its range."""
    return convert(lift(x), INT16)


def char(x: TensorLike) -> Tensor:
    """The elements as int8: truncated, and brought into its range."""
    return convert(lift(x), INT8)


def byte(x: TensorLike) -> Tensor:
    """The elements as uint8: truncated, and brought into its range."""
    return convert(lift(x), UINT8)


def bool(x: TensorLike) -> Tensor:
    """Where the elements are not 0."""
    return convert(lift(x), BOOL)


def type_as(x: TensorLike, other: TensorLike) -> Tensor:
    """The elements in the dtype of another tensor."""
    return convert(lift(x), lift(other).dtype)


# ------------------------------------------------------------ shapes


def numel(x: TensorLike) -> Dim:
    """How many elements there are: `x.size`."""
    return lift(x).size


def dim(x: TensorLike) -> builtins.int:
    """How many axes there are: `x.ndim`."""
    axes: builtins.int = lift(x).ndim
    return axes


def t(x: TensorLike) -> Tensor:
    """A matrix with its two axes swapped; what has less than two stays as it is."""
    x = lift(x)
    if x.ndim > 2:
        raise GraphError(
            "t", f"needs at most 2 axes, got {x.type}.", hint="x.mT swaps the last two."
        )
    return x.transpose()


def expand_as(x: TensorLike, other: TensorLike) -> Tensor:
    """Stretched to the shape of another tensor: `x.broadcast_to(other.shape)`."""
    return lift(x).broadcast_to(lift(other).shape)


def reshape_as(x: TensorLike, other: TensorLike) -> Tensor:
    """In the shape of another tensor: `x.reshape(other.shape)`."""
    return lift(x).reshape(lift(other).shape)


# ------------------------------------------------------------ memory and gradients


def clone(x: TensorLike) -> Tensor:
    """Another tensor of the same value: writing to either leaves the other as it is."""
    return wrap(lift(x)._node)


def contiguous(x: TensorLike) -> Tensor:
    """The tensor itself: tensors have no strides, and arrays of results are contiguous."""
    return lift(x)


def detach(x: TensorLike) -> Tensor:
    """The tensor itself: there are no gradients to detach it from."""
    return lift(x)


def cpu(x: TensorLike) -> Tensor:
    """On the device `cpu`: `x.to("cpu")`."""
    return to(x, HOST_DEVICE)


# Second names.
copy = clone
view_as = reshape_as
