"""Quantised numbers, with the meaning that ONNX gives them.

    q = saturate(round(x / scale) + zero_point)        x = (q - zero_point) * scale

Rounding is to the nearest, halves to even. Scales and zero points are one number, one per
element of an axis, or one per block of an axis; what is quantised to a narrow float has no zero
point but 0. Products of bytes are written in 32 bits,
`(a - zero) @ (b - zero)`; the compiler finds them there and reads the bytes
(`semel.passes.quantise`), so that whoever writes the same by hand gets the same kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import ceildiv
from semel.ir.narrow import FLOATS
from semel.ir.types import FLOAT32, FLOAT64, INT8, INT32, UINT8, DType, as_dtype
from semel.tensor.handle import (
    DTypeLike,
    TensorLike,
    convert,
    known_value,
    lift,
    normalize_axis,
    weak_kind,
    weak_scalar,
)
from semel.tensor.movement import agreeing, fill_value, may_agree, may_stretch, reach, stretch
from semel.tensor.unary import unary
from semel.tensor.window import Padding, PerAxis, windows

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


# ------------------------------------------------------------ numbers


def quantize_linear(
    x: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike | None = None,
    axis: int = 1,
    block_size: int = 0,
    dtype: DTypeLike | None = None,
    saturate: bool = True,
    precision: DTypeLike | None = None,
) -> Tensor:
    """saturate(round(x / scale) + zero_point), as an integer or narrow float of its dtype.

    Without a zero point the dtype is `dtype`, or uint8. `scale` is one number, one per
    element of `axis`, or with `block_size` one per block of so many elements of it.
    `saturate` is told to the cast to a float8. What is divided in is `precision`, or the dtype of
    x: float32 for integers.

    >>> Tensor([0.0, 0.5, 1.0]).quantize_linear(0.5).tolist()
    [0, 1, 2]
    """
    where = "quantize_linear"
    wanted = _quantised_dtype(where, zero_point, dtype)
    x = as_number(lift(x)) if precision is None else lift(x).cast(precision)
    ratio = x / convert(_along_axis(x, where, scale, axis, block_size), x.dtype)
    if wanted.is_float:
        _check_no_zero_point(where, zero_point)
        return ratio.cast(wanted, saturate)
    whole = unary(ratio, "rint")
    if zero_point is not None:
        work = x.dtype.compute  # a half float has too few bits for a sum with 16-bit integers
        zero = _along_axis(x, where, zero_point, axis, block_size)
        whole = convert(whole, work) + convert(zero, work)
    if wanted.is_narrow:  # a cast to less than 8 bits keeps the low ones
        whole = whole.clip(float(wanted.lowest), float(wanted.highest))
    return convert(whole, wanted)


def as_number(x: Tensor) -> Tensor:
    """What is divided: floats as they are, anything else as float32."""
    return x if x.dtype.is_float and not x.dtype.is_narrow else convert(x, FLOAT32)


def _check_no_zero_point(where: str, zero_point: TensorLike | None) -> None:
    """The zero point of floats is 0, where it is known."""
    known = None if zero_point is None else known_value(lift(zero_point))
    if known is not None and known.array.astype(np.float32).any():
        raise GraphError(where, f"the zero point of narrow floats must be 0, got {known.array}.")


def dequantize_linear(
    x: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike | None = None,
    axis: int = 1,
    block_size: int = 0,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """(q - zero_point) * scale, as `dtype`: if none is told, the scale's.

    It is computed in float32, or float64 if that is the result's, and rounded once.
    """
    x = lift(x)
    where = "dequantize_linear"
    if not x.dtype.is_integer and not x.dtype.is_narrow:
        raise GraphError(where, f"needs integers or narrow floats, got {x.type}.")
    factors = _along_axis(x, where, scale, axis, block_size)
    kind = as_number(factors).dtype if dtype is None else as_dtype(dtype, where)
    numbers = convert(x, FLOAT32 if x.dtype.bits <= 16 else x.dtype)
    if x.dtype.is_float:
        _check_no_zero_point(where, zero_point)
    elif zero_point is not None:
        zero = _along_axis(x, where, zero_point, axis, block_size)
        numbers = numbers - convert(zero, numbers.dtype)
    work = FLOAT64 if kind == FLOAT64 else FLOAT32
    return convert(convert(numbers, work) * convert(factors, work), kind)


def dynamic_quantize_linear(x: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """x as uint8 with the scale and the zero point that its own range asks for."""
    x = convert(lift(x), FLOAT32)
    low, high = x.min().minimum(0.0), x.max().maximum(0.0)
    span = (high - low) / 255.0
    scale = span.eq(0.0).where(1.0, span)
    zero = convert(unary(-low / scale, "rint"), UINT8)
    return x.quantize_linear(scale, zero), scale, zero


def _along_axis(x: Tensor, where: str, value: TensorLike, axis: int, block_size: int) -> Tensor:
    """Scales or zero points in a shape that broadcasts against this tensor."""
    given = weak_scalar(value, FLOAT32) if weak_kind(value) else lift(value)
    if given.ndim == 0 or given.shape == (1,):
        return given.reshape(())
    place = normalize_axis(axis, x.ndim, where)
    if block_size:
        return _blocked(x, where, given, place, block_size)
    if given.ndim != 1 or not may_stretch(given.shape[0], x.shape[place]):
        raise GraphError(
            where,
            f"needs one number or one for each of {x.shape[place]} along axis {axis}, "
            f"got {given.type}.",
        )
    each = reach(given, (x.shape[place],), where)
    return each.reshape(*each.shape, *[1] * (x.ndim - 1 - place))


def _blocked(x: Tensor, where: str, given: Tensor, axis: int, block_size: int) -> Tensor:
    """One number per block, repeated for the block's elements; the last block may be shorter."""
    size = x.shape[axis]
    count = ceildiv(size, block_size) if block_size > 0 else size
    shape = tuple(count if d == axis else n for d, n in enumerate(x.shape))
    if block_size <= 0 or not may_agree(given.shape, shape):
        dims = ", ".join(map(str, shape))
        raise GraphError(
            where,
            f"blocks of {block_size} along axis {axis} of {x.type} need numbers of shape "
            f"[{dims}], got {given.type}.",
            hint="Blocks are parts of an axis.",
        )
    spread = (*shape[: axis + 1], block_size, *shape[axis + 1 :])
    repeated = stretch(agreeing(given, shape).unsqueeze(axis + 1), spread)
    whole = tuple(count * block_size if d == axis else n for d, n in enumerate(shape))
    return repeated.reshape(whole).narrow(axis, 0, size)


# ------------------------------------------------------------ products


def matmul_integer(
    x: TensorLike,
    other: TensorLike,
    x_zero_point: TensorLike | None = None,
    w_zero_point: TensorLike | None = None,
) -> Tensor:
    """(x - x_zero_point) @ (w - w_zero_point) of 8-bit integers, exactly, as int32.

    A zero point is one number, or one per row of x and per column of w.
    """
    x = lift(x)
    where = "matmul_integer"
    right = lift(other)
    left = _less(_bytes(where, x), where, x_zero_point, -2)
    return left @ _less(_bytes(where, right), where, w_zero_point, -1)


def _less(x: Tensor, where: str, zero_point: TensorLike | None, axis: int) -> Tensor:
    """This tensor in 32 bits, less a zero point for all or for each along an axis."""
    wide = convert(x, INT32)
    if zero_point is None:
        return wide
    zero = weak_scalar(zero_point, INT32) if weak_kind(zero_point) else lift(zero_point)
    if not zero.dtype.is_integer:
        raise GraphError(where, f"a zero point must be an integer, got {zero.type}.")
    if zero.ndim == 1 and zero.shape != (1,):
        place = axis if x.ndim > 1 else -1
        if not may_stretch(zero.shape[0], x.shape[place]):
            raise GraphError(
                where,
                f"needs one zero point or {x.shape[place]} of them for {x.type}, got {zero.type}.",
            )
        zero = reach(zero, (x.shape[place],), where)
        zero = zero if place == -1 else zero.unsqueeze(-1)
    return wide - convert(zero, INT32)


def qlinear_matmul(
    x: TensorLike,
    x_scale: TensorLike,
    x_zero_point: TensorLike,
    other: TensorLike,
    w_scale: TensorLike,
    w_zero_point: TensorLike,
    y_scale: TensorLike,
    y_zero_point: TensorLike,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """The product of two quantised matrices, quantised: ONNX's QLinearMatMul.

    The result has the dtype of `y_zero_point` if that is an array, else `dtype` or uint8.
    """
    x = lift(x)
    total = x.matmul_integer(other, x_zero_point, w_zero_point)
    rows = lift(x_scale)
    rows = rows.unsqueeze(-1) if rows.ndim == 1 and rows.shape != (1,) else rows
    factor = rows * w_scale / y_scale
    wanted = _integer_dtype("qlinear_matmul", y_zero_point, dtype)
    whole = unary(convert(total, FLOAT32) * convert(factor, FLOAT32), "rint")
    return convert(whole + convert(lift(y_zero_point), FLOAT32), wanted)


def conv_integer(
    x: TensorLike,
    weight: TensorLike,
    x_zero_point: TensorLike | None = None,
    w_zero_point: TensorLike | None = None,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """The convolution of 8-bit integers, less their zero points, exactly, as int32.

    Padding counts as zero, so that it is the zero point of x. The zero point of x is one
    number; that of the weight one number or one per output.
    """
    where = "conv_integer"
    x, w = _bytes(where, lift(x)), _bytes(where, lift(weight))
    zero: TensorLike = 0 if x_zero_point is None else x_zero_point
    fill = fill_value(x, zero if weak_kind(zero) else lift(zero).reshape(()), where)
    found = windows(where, x.shape[2:], tuple(w.shape[2:]), stride, padding, dilation)  # type: ignore[arg-type]
    sides = zip(found.before, found.after, strict=True)
    padded = x.pad([(0, 0), (0, 0), *sides], fill)
    filters = convert(w, INT32)
    if w_zero_point is not None:
        per_output = lift(w_zero_point)
        if per_output.ndim:
            per_output = per_output.reshape(*per_output.shape, *[1] * (w.ndim - 1))
        filters = filters - convert(per_output, INT32)
    numbers = convert(padded, INT32) - convert(fill, INT32)
    return numbers.conv(filters, None, stride, 0, dilation, groups)


def _bytes(where: str, x: Tensor) -> Tensor:
    if x.dtype not in (INT8, UINT8):
        raise GraphError(where, f"needs int8 or uint8 operands, got {x.type}.")
    return x


def _integer_dtype(where: str, zero_point: TensorLike | None, dtype: DTypeLike | None) -> DType:
    """The dtype of a quantised result that must be an integer."""
    wanted = _quantised_dtype(where, zero_point, dtype)
    if not wanted.is_integer:
        raise GraphError(where, f"a quantised dtype must be an integer, got {wanted}.")
    return wanted


def _quantised_dtype(where: str, zero_point: TensorLike | None, dtype: DTypeLike | None) -> DType:
    """The dtype of a quantised result: what is asked for, or the zero point's own."""
    wanted = UINT8 if dtype is None else as_dtype(dtype, where)
    known = getattr(zero_point, "dtype", None)
    if dtype is None and known is not None:
        wanted = as_dtype(known, where)
    if not wanted.is_integer and wanted not in FLOATS:
        raise GraphError(
            where, f"a quantised dtype must be an integer or a narrow float, got {wanted}."
        )
    return wanted
