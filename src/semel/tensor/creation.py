"""Tensors from numbers, or from nothing.

    asarray zeros ones full empty arange linspace eye tri meshgrid

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
from semel.ir.types import BOOL, FLOAT32, FLOAT64, INT64, as_dtype, as_shape
from semel.runtime.interop import is_immutable
from semel.tensor import place
from semel.tensor.elementwise import binary, choose
from semel.tensor.handle import (
    SYMBOLIC,
    Dims,
    DTypeLike,
    Number,
    TensorLike,
    as_array,
    constant,
    convert,
    dim_value,
    lift,
    scalar,
    tensor_class,
    weak_kind,
    weak_scalar,
    whole_dims,
    wrap,
)
from semel.tensor.indexing import iota
from semel.tensor.movement import is_negative

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: Beside symbolic bounds, floats are counted in one of these fractions: 0.1 is 1 of 10.
UNITS = (1, *(10**k for k in range(1, 7)), *(2**k for k in range(2, 21)))


def asarray(
    obj: Any,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
    copy: bool | None = None,
) -> Tensor:
    """A tensor of anything NumPy or DLPack reads; a tensor is itself unless something must change.

    `copy=False` refuses to copy: it takes tensors, and what nobody can write to. What another
    library holds is used where it lies by `from_dlpack(x, copy=False)`.
    """
    if isinstance(obj, tensor_class()):
        made = obj if dtype is None else obj.cast(dtype)
        if copy is False and made is not obj and made.node is not obj.node:
            raise _must_copy(f"{obj.type} as {made.dtype}")
        return _on(wrap(made.node) if copy else made, device, "asarray")
    if copy is False and not (isinstance(obj, np.ndarray) and is_immutable(obj)):
        raise _must_copy(f"a {type(obj).__name__} that can change")
    wanted = None if dtype is None else as_dtype(dtype, "asarray")
    if copy is False and wanted not in (None, obj.dtype):
        raise _must_copy(f"{obj.dtype} as {wanted}")
    if weak_kind(obj) and not isinstance(obj, np.generic):
        return _on(lift(obj) if wanted is None else weak_scalar(obj, wanted), device, "asarray")
    return _on(constant(as_array(obj, wanted)), device, "asarray")


def _must_copy(what: str) -> ValueError:
    return ValueError(f"[asarray] {what} needs a copy: leave copy=False out.")


def _on(x: Tensor, device: Any, where: str) -> Tensor:
    """The tensor on a device, if one is named that it is not on."""
    if device is None or place.take_device(where, device) == place.device_of(x):
        return x
    return place.to(x, device)


def full(
    shape: Dims, fill_value: TensorLike, dtype: DTypeLike | None = None, *, device: Any = None
) -> Tensor:
    """Every element is `fill_value`; Python numbers give float32, int64 or bool."""
    return _full(shape, fill_value, dtype, device, "full")


def _full(
    shape: Any, value: TensorLike, dtype: DTypeLike | None, device: Any, where: str
) -> Tensor:
    dims = as_shape(shape, where)
    fill = lift(value)
    if dtype is not None:
        wanted = as_dtype(dtype, where)
        fill = weak_scalar(value, wanted) if weak_kind(value) else convert(fill, wanted)
    return _on(fill.broadcast_to(dims), device, where)


def zeros(
    shape: Dims = (), *more: Any, dtype: DTypeLike | None = None, device: Any = None
) -> Tensor:
    """Every element is 0. Sizes are a tuple or several arguments; the default is float32."""
    return _filled(0, shape, more, dtype, device, "zeros")


def ones(
    shape: Dims = (), *more: Any, dtype: DTypeLike | None = None, device: Any = None
) -> Tensor:
    """Every element is 1. Sizes are a tuple or several arguments; the default is float32."""
    return _filled(1, shape, more, dtype, device, "ones")


def empty(
    shape: Dims = (), *more: Any, dtype: DTypeLike | None = None, device: Any = None
) -> Tensor:
    """Zeros: a lazy tensor has no memory to leave unset."""
    return _filled(0, shape, more, dtype, device, "empty")


def _filled(
    value: int, shape: Any, more: tuple[Any, ...], dtype: Any, device: Any, where: str
) -> Tensor:
    """`f(2, 3)`, `f((2, 3))` and, as NumPy has it, `f((2, 3), dtype)`."""
    if len(more) == 1 and dtype is None and isinstance(shape, (tuple, list)):
        dtype, more = more[0], ()
    dims = (shape, *more) if more else shape
    return _full(dims, value, FLOAT32 if dtype is None else dtype, device, where)


def full_like(
    x: TensorLike, fill_value: TensorLike, dtype: DTypeLike | None = None, *, device: Any = None
) -> Tensor:
    """`full` in the shape of x, and in its dtype."""
    x = lift(x)
    return _full(x.shape, fill_value, x.dtype if dtype is None else dtype, device, "full_like")


def zeros_like(x: TensorLike, dtype: DTypeLike | None = None, *, device: Any = None) -> Tensor:
    """Zeros in the shape of x."""
    return full_like(x, 0, dtype, device=device)


def ones_like(x: TensorLike, dtype: DTypeLike | None = None, *, device: Any = None) -> Tensor:
    """Ones in the shape of x."""
    return full_like(x, 1, dtype, device=device)


def empty_like(x: TensorLike, dtype: DTypeLike | None = None, *, device: Any = None) -> Tensor:
    """Zeros in the shape of x: a lazy tensor has no memory to leave unset."""
    return full_like(x, 0, dtype, device=device)


def arange(
    start: Number,
    stop: Number | None = None,
    step: Number = 1,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
) -> Tensor:
    """start, start+step, ... before stop; one argument counts from 0. int64, or float32.

    >>> semel.arange(3).tolist(), semel.arange(1, 2, 0.5).tolist()
    ([0, 1, 2], [1.0, 1.5])
    """
    first, end = (0, start) if stop is None else (start, stop)
    for bound in (first, end, step):
        if not weak_kind(bound) or isinstance(bound, bool):
            raise GraphError("arange", f"bounds must be numbers or Variables, got {bound!r}.")
        if isinstance(bound, (float, np.floating)) and not math.isfinite(bound):
            raise GraphError("arange", f"bounds must be finite, got {bound}.")
    floats = any(isinstance(v, (float, np.floating)) for v in (first, end, step))
    wanted = as_dtype(dtype or (FLOAT32 if floats else INT64), "arange")
    made = iota((_arange_length(first, end, step, floats),), 0)
    if wanted.is_float:
        made = convert(made, wanted)
    for op, number, nothing in (("mul", step, 1), ("add", first, 0)):
        if type(number) is not int or number != nothing:
            given = weak_scalar(number, wanted) if wanted.is_float else number
            made = binary(made, op, given)
    return _on(convert(made, wanted), device, "arange")


def linspace(
    start: Number,
    stop: Number,
    num: Dim = 50,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` even steps from start to stop, both included exactly; without `endpoint` not stop."""
    ends: tuple[Any, Any] = (start, stop)
    for end in ends:
        if not weak_kind(end):
            raise GraphError(
                "linspace", f"start and stop must be numbers or Variables, got {end!r}."
            )
    (count,) = whole_dims(num, "num", "linspace")
    if is_negative(count):
        raise GraphError("linspace", f"num must be an int >= 0, got {num}.")
    wanted = FLOAT32 if dtype is None else as_dtype(dtype, "linspace")
    work = wanted if wanted.is_float else FLOAT32
    steps, last = iota((count,), 0), maximum(count - 1 if endpoint else count, 1)
    if isinstance(last, int) and not any(isinstance(end, SYMBOLIC) for end in ends):
        step: Any = (ends[1] - ends[0]) / last
    else:
        step = (weak_scalar(stop, work) - weak_scalar(start, work)) / weak_scalar(last, work)
    values = convert(steps, work) * step + ends[0]
    # The only one of one element is the start.
    exact = choose(steps.eq(last), weak_scalar(stop, work), values)
    return _on(convert(exact, wanted), device, "linspace")


def eye(
    rows: Dim,
    columns: Dim | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere; float32 unless a dtype is given."""
    shape = as_shape((rows, rows if columns is None else columns), "eye")
    made = (iota(shape, 1) - iota(shape, 0)).eq(k).cast(dtype or FLOAT32)
    return _on(made, device, "eye")


def logspace(
    start: Number,
    stop: Number,
    num: Dim = 50,
    endpoint: bool = True,
    base: float = 10.0,
    *,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """`num` numbers from base**start to base**stop, the logarithms in even steps."""
    wanted = as_dtype(dtype, "logspace")
    powers = _even(start, stop, num, endpoint, "logspace")
    return convert(scalar(float(base), FLOAT64) ** powers, wanted)


def geomspace(
    start: float, stop: float, num: Dim = 50, endpoint: bool = True, *, dtype: DTypeLike = "float32"
) -> Tensor:
    """`num` numbers from start to stop, each as many times the one before; both of one sign."""
    wanted = as_dtype(dtype, "geomspace")
    if not start * stop > 0:
        raise GraphError(
            "geomspace", f"start and stop must be numbers of one sign, got {start} and {stop}."
        )
    sign_of = 1.0 if start > 0 else -1.0
    powers = _even(math.log10(abs(start)), math.log10(abs(stop)), num, endpoint, "geomspace")
    values = scalar(10.0, FLOAT64) ** powers * sign_of
    steps = iota((powers.shape[0],), 0)
    if endpoint:
        last = dim_value(maximum(powers.shape[0] - 1, 1))
        values = choose(steps.eq(last), float(stop), values)
    return convert(choose(steps.eq(0), float(start), values), wanted)


def _even(start: Number, stop: Number, num: Dim, endpoint: bool, where: str) -> Tensor:
    """`linspace` in float64, which may leave its end out."""
    (count,) = whole_dims(num, "num", where)
    if is_negative(count):
        raise GraphError(where, f"num must be an int >= 0, got {num}.")
    if endpoint:
        return linspace(start, stop, count, dtype="float64")
    return linspace(start, stop, count + 1, dtype="float64").narrow(0, 0, count)


def identity(n: Dim, dtype: DTypeLike = "float32") -> Tensor:
    """A square matrix with ones on its diagonal."""
    return eye(n, dtype=dtype)


def tril_indices(n: Dim, k: int = 0, m: Dim | None = None) -> tuple[Tensor, Tensor]:
    """The rows and columns of the lower triangle of a matrix n x m, from the k-th diagonal on.

    If a size is symbolic, a run finds out how many there are.
    """
    rows, columns = tri(n, m, k, "bool").nonzero()
    return rows, columns


def triu_indices(n: Dim, k: int = 0, m: Dim | None = None) -> tuple[Tensor, Tensor]:
    """The rows and columns of the upper triangle of a matrix n x m, from the k-th diagonal on."""
    rows, columns = (~tri(n, m, k - 1, "bool")).nonzero()
    return rows, columns


def tri(rows: Dim, columns: Dim | None = None, k: int = 0, dtype: DTypeLike = "float32") -> Tensor:
    """Ones on and below the k-th diagonal."""
    shape = as_shape((rows, rows if columns is None else columns), "tri")
    return scalar(True, BOOL).broadcast_to(shape).tril(k).cast(dtype)


def meshgrid(*arrays: TensorLike, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Each vector stretched over the grid of all; "xy" swaps the first two axes, as NumPy.

    >>> rows, columns = semel.meshgrid([0, 1], [5, 6], indexing="ij")
    >>> rows.tolist(), columns.tolist()
    ([[0, 0], [1, 1]], [[5, 6], [5, 6]])
    """
    if indexing not in ("xy", "ij"):
        raise GraphError("meshgrid", f"indexing must be 'xy' or 'ij', got {indexing!r}.")
    lines = [lift(v).flatten() for v in arrays]
    shape = tuple(line.shape[0] for line in lines)
    grids = []
    for i, line in enumerate(lines):
        column = line.reshape((1,) * i + (line.shape[0],) + (1,) * (len(lines) - i - 1))
        grid = column.broadcast_to(shape)
        grids.append(grid.swapaxes(0, 1) if indexing == "xy" and len(lines) > 1 else grid)
    return tuple(grids)


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
