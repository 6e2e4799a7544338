"""Tensors from nothing.

    zeros ones full empty arange linspace eye tri meshgrid

None of these holds memory: a fill is a stretched scalar, a range is index arithmetic, both
computed where they are used. Sizes and bounds may be Variables.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.dims import absolute, sign
from semel.ir.expr import Dim, ceildiv, is_nonnegative, maximum
from semel.ir.types import BOOL, FLOAT32, INT64, as_dtype, as_shape
from semel.tensor.elementwise import binary, choose
from semel.tensor.handle import (
    SYMBOLIC,
    Dims,
    DTypeLike,
    Number,
    TensorLike,
    convert,
    lift,
    scalar,
    weak_kind,
    weak_scalar,
    whole_dims,
)
from semel.tensor.indexing import iota
from semel.tensor.movement import given_dims, is_negative

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: Beside symbolic bounds, floats are counted in one of these fractions: 0.1 is 1 of 10.
UNITS = (1, *(10**k for k in range(1, 7)), *(2**k for k in range(2, 21)))


def full(shape: Dims, value: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Every element is `value`; Python numbers give float32, int64 or bool."""
    dims = as_shape(shape, "full")
    fill = lift(value)
    if dtype is not None:
        wanted = as_dtype(dtype, "full")
        fill = weak_scalar(value, wanted) if weak_kind(value) else convert(fill, wanted)
    return fill.broadcast_to(dims)


def zeros(*dims: Dims, dtype: DTypeLike | None = "float32", shape: Dims | None = None) -> Tensor:
    """Every element is 0."""
    return full(given_dims(dims, shape, "zeros"), 0, dtype or FLOAT32)


def ones(*dims: Dims, dtype: DTypeLike | None = "float32", shape: Dims | None = None) -> Tensor:
    """Every element is 1."""
    return full(given_dims(dims, shape, "ones"), 1, dtype or FLOAT32)


def empty(*dims: Dims, dtype: DTypeLike | None = "float32", shape: Dims | None = None) -> Tensor:
    """Zeros: a lazy tensor has no memory to leave unset."""
    return zeros(*dims, dtype=dtype, shape=shape)


def full_like(x: TensorLike, value: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """`full` in the shape of x, and in its dtype."""
    x = lift(x)
    return full(x.shape, value, x.dtype if dtype is None else dtype)


def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Zeros in the shape of x."""
    return lift(x).full_like(0, dtype)


def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Ones in the shape of x."""
    return lift(x).full_like(1, dtype)


def arange(
    start: Number, stop: Number | None = None, step: Number = 1, dtype: DTypeLike | None = None
) -> Tensor:
    """start, start+step, ... before stop; one argument counts from 0. int64, or float32."""
    first, end = (0, start) if stop is None else (start, stop)
    for bound in (first, end, step):
        if not weak_kind(bound) or isinstance(bound, bool):
            raise GraphError("arange", f"bounds must be numbers or Variables, got {bound!r}.")
        if isinstance(bound, (float, np.floating)) and not math.isfinite(bound):
            raise GraphError("arange", f"bounds must be finite, got {bound}.")
    floats = any(isinstance(v, (float, np.floating)) for v in (first, end, step))
    wanted = as_dtype(dtype or (FLOAT32 if floats else INT64), "arange")
    steps = iota((_arange_length(first, end, step, floats),), 0)
    if wanted.is_float:
        return convert(steps, wanted) * weak_scalar(step, wanted) + weak_scalar(first, wanted)
    return convert(binary(binary(steps, "mul", step), "add", first), wanted)


def linspace(start: Number, stop: Number, num: Dim = 50, *, dtype: DTypeLike = "float32") -> Tensor:
    """`num` even steps from start to stop, both included exactly."""
    ends: tuple[Any, Any] = (start, stop)
    (count,) = whole_dims(num, "num", "linspace")
    if is_negative(count):
        raise GraphError("linspace", f"num must be an int >= 0, got {num}.")
    wanted = as_dtype(dtype, "linspace")
    work = wanted if wanted.is_float else FLOAT32
    steps, last = iota((count,), 0), maximum(count - 1, 1)
    if isinstance(last, int) and not any(isinstance(end, SYMBOLIC) for end in ends):
        step: Any = (ends[1] - ends[0]) / last
    else:
        step = (weak_scalar(stop, work) - weak_scalar(start, work)) / weak_scalar(last, work)
    values = convert(steps, work) * step + ends[0]
    # The only one of one element is the start.
    return convert(choose(steps.eq(last), weak_scalar(stop, work), values), wanted)


def eye(rows: Dim, columns: Dim | None = None, k: int = 0, dtype: DTypeLike = "float32") -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere."""
    shape = as_shape((rows, rows if columns is None else columns), "eye")
    return (iota(shape, 1) - iota(shape, 0)).eq(k).cast(dtype)


def tri(rows: Dim, columns: Dim | None = None, k: int = 0, dtype: DTypeLike = "float32") -> Tensor:
    """Ones on and below the k-th diagonal."""
    shape = as_shape((rows, rows if columns is None else columns), "tri")
    return scalar(True, BOOL).broadcast_to(shape).tril(k).cast(dtype)


def meshgrid(*vectors: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """Each vector stretched over the grid of all; "xy" swaps the first two axes, as NumPy."""
    if indexing not in ("xy", "ij"):
        raise GraphError("meshgrid", f"indexing must be 'xy' or 'ij', got {indexing!r}.")
    lines = [lift(v).flatten() for v in vectors]
    shape = tuple(line.shape[0] for line in lines)
    grids = []
    for i, line in enumerate(lines):
        column = line.reshape((1,) * i + (line.shape[0],) + (1,) * (len(lines) - i - 1))
        grid = column.broadcast_to(shape)
        grids.append(grid.swapaxes(0, 1) if indexing == "xy" and len(lines) > 1 else grid)
    return grids


def _arange_length(first: Any, end: Any, step: Any, floats: bool) -> Dim:
    if step == 0:
        raise GraphError("arange", "step must not be 0.")
    if floats and not any(isinstance(v, SYMBOLIC) for v in (first, end, step)):
        return int(max(math.ceil((end - first) / step), 0))
    if floats:
        first, end, step = _in_common_units(first, end, step)
    # Without a sign that is known the divisor has no minimum; a step of 0 then gives nothing.
    length = ceildiv((end - first) * sign(step), maximum(absolute(step), 1))
    return length if is_nonnegative(length) else maximum(length, 0)


def _in_common_units(*values: Any) -> list[Dim]:
    """Symbolic ints, and floats as the numbers they are written as, times one factor."""
    floats = [float(v) for v in values if not isinstance(v, SYMBOLIC)]
    for factor in UNITS:
        if all(round(v * factor) / factor == v for v in floats):
            return [
                v * factor if isinstance(v, SYMBOLIC) else round(float(v) * factor) for v in values
            ]
    raise GraphError(
        "arange",
        "beside symbolic bounds, numbers must be multiples of 1/1,000,000 or of 1/1,048,576, "
        f"got {', '.join(str(v) for v in values)}.",
    )
