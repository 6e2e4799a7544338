"""Tensor, layer 12: quantised numbers, with the meaning that ONNX gives them.

    q = saturate(round(x / scale) + zero_point)        x = (q - zero_point) * scale

Rounding is to the nearest, halves to even. Scales and zero points are one number, one per
element of an axis, or one per block of an axis. Products of bytes are written in 32 bits,
`(a - zero) @ (b - zero)`; the compiler finds them there and reads the bytes
(`semel.passes.quantise`), so that whoever writes the same by hand gets the same kernel.
"""

from __future__ import annotations

from typing import Self, TypeVar

from semel.errors import GraphError
from semel.ir.types import FLOAT32, INT8, INT32, UINT8, DType, as_dtype
from semel.tensor.handle import DTypeLike, Handle, TensorLike, normalize_axis, weak_kind
from semel.tensor.pool import Pool
from semel.tensor.window import Padding, PerAxis, windows

T = TypeVar("T", bound=Handle)


class Quantise(Pool):
    """Quantisation, and products of quantised tensors."""

    __slots__ = ()

    # ------------------------------------------------------------ numbers

    def quantize_linear(
        self,
        scale: TensorLike,
        zero_point: TensorLike | None = None,
        axis: int = 1,
        block_size: int = 0,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """saturate(round(x / scale) + zero_point), as an integer of the zero point's dtype.

        Without a zero point the dtype is `dtype`, or uint8. `scale` is one number, one per
        element of `axis`, or with `block_size` one per block of so many elements of it.
        """
        where = "quantize_linear"
        wanted = _integer_dtype(where, zero_point, dtype)
        x = self if self.dtype.is_float else self._cast(FLOAT32)
        factors = x._along_axis(where, scale, axis, block_size)._cast(x.dtype)
        whole = (x / factors)._unary("rint")
        if zero_point is not None:
            whole = whole + x._along_axis(where, zero_point, axis, block_size)._cast(x.dtype)
        return whole._cast(wanted)

    def dequantize_linear(
        self,
        scale: TensorLike,
        zero_point: TensorLike | None = None,
        axis: int = 1,
        block_size: int = 0,
    ) -> Self:
        """(q - zero_point) * scale, in the scale's dtype."""
        where = "dequantize_linear"
        if not self.dtype.is_integer:
            raise GraphError(where, f"needs integers, got {self.type}.")
        factors = self._along_axis(where, scale, axis, block_size)
        kind = factors.dtype if factors.dtype.is_float else FLOAT32
        narrow = self.dtype.bits <= 16
        numbers = self._cast(FLOAT32 if narrow else self.dtype)
        if zero_point is not None:
            zero = self._along_axis(where, zero_point, axis, block_size)
            numbers = numbers - zero._cast(numbers.dtype)
        return numbers._cast(kind) * factors._cast(kind)

    def dynamic_quantize_linear(self) -> tuple[Self, Self, Self]:
        """x as uint8 with the scale and the zero point that its own range asks for."""
        x = self if self.dtype == FLOAT32 else self._cast(FLOAT32)
        low, high = x.min().minimum(0.0), x.max().maximum(0.0)
        span = (high - low) / 255.0
        scale = span.eq(0.0).where(1.0, span)
        zero = (-low / scale)._unary("rint")._cast(UINT8)
        return x.quantize_linear(scale, zero), scale, zero

    def _along_axis(self, where: str, value: TensorLike, axis: int, block_size: int) -> Self:
        """Scales or zero points in a shape that broadcasts against this tensor."""
        given = self._weak(value, FLOAT32) if weak_kind(value) else self._lift(value)
        if given.ndim == 0 or given.shape == (1,):
            return given.reshape(())
        place = normalize_axis(axis, self.ndim, where)
        if block_size:
            return self._blocked(where, given, place, block_size)
        if given.ndim != 1 or given.shape[0] != self.shape[place]:
            raise GraphError(
                where,
                f"needs one number or one for each of {self.shape[place]} along axis {axis}, "
                f"got {given.type}.",
            )
        return given.reshape(*given.shape, *[1] * (self.ndim - 1 - place))

    def _blocked(self, where: str, given: Self, axis: int, block_size: int) -> Self:
        """One number per block, repeated for the block's elements."""
        size = self.shape[axis]
        whole = isinstance(size, int) and block_size > 0 and size % block_size == 0
        shape = tuple(
            size // block_size if d == axis and whole else n for d, n in enumerate(self.shape)
        )
        if not whole or given.shape != shape:
            raise GraphError(
                where,
                f"blocks of {block_size} along axis {axis} of {self.type} need numbers of shape "
                f"{list(shape)}, got {given.type}.",
                hint="Blocks must divide a fixed size.",
            )
        spread = (*shape[: axis + 1], block_size, *shape[axis + 1 :])
        return given.unsqueeze(axis + 1)._stretch(spread).reshape(self.shape)

    # ------------------------------------------------------------ products

    def matmul_integer(
        self,
        other: TensorLike,
        x_zero_point: TensorLike | None = None,
        w_zero_point: TensorLike | None = None,
    ) -> Self:
        """(x - x_zero_point) @ (w - w_zero_point) of 8-bit integers, exactly, as int32.

        A zero point is one number, or one per row of x and per column of w.
        """
        where = "matmul_integer"
        right = self._lift(other)
        left = _bytes(where, self)._less(where, x_zero_point, -2)
        return left @ _bytes(where, right)._less(where, w_zero_point, -1)

    def _less(self, where: str, zero_point: TensorLike | None, axis: int) -> Self:
        """This tensor in 32 bits, less a zero point for all or for each along an axis."""
        wide = self._cast(INT32)
        if zero_point is None:
            return wide
        zero = self._weak(zero_point, INT32) if weak_kind(zero_point) else self._lift(zero_point)
        if not zero.dtype.is_integer:
            raise GraphError(where, f"a zero point must be an integer, got {zero.type}.")
        if zero.ndim == 1 and zero.shape != (1,):
            place = axis if self.ndim > 1 else -1
            if zero.shape[0] != self.shape[place]:
                raise GraphError(
                    where,
                    f"needs one zero point or {self.shape[place]} of them for {self.type}, "
                    f"got {zero.type}.",
                )
            zero = zero if place == -1 else zero.unsqueeze(-1)
        return wide - zero._cast(INT32)

    def qlinear_matmul(
        self,
        x_scale: TensorLike,
        x_zero_point: TensorLike,
        other: TensorLike,
        w_scale: TensorLike,
        w_zero_point: TensorLike,
        y_scale: TensorLike,
        y_zero_point: TensorLike,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """The product of two quantised matrices, quantised: ONNX's QLinearMatMul.

        The result has the dtype of `y_zero_point` if that is an array, else `dtype` or uint8.
        """
        total = self.matmul_integer(other, x_zero_point, w_zero_point)
        rows = self._lift(x_scale)
        rows = rows.unsqueeze(-1) if rows.ndim == 1 and rows.shape != (1,) else rows
        factor = rows * w_scale / y_scale
        wanted = _integer_dtype("qlinear_matmul", y_zero_point, dtype)
        whole = (total._cast(FLOAT32) * factor._cast(FLOAT32))._unary("rint")
        return (whole + self._lift(y_zero_point)._cast(FLOAT32))._cast(wanted)

    def conv_integer(
        self,
        weight: TensorLike,
        x_zero_point: TensorLike | None = None,
        w_zero_point: TensorLike | None = None,
        stride: PerAxis = 1,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
    ) -> Self:
        """The convolution of 8-bit integers, less their zero points, exactly, as int32.

        Padding counts as zero, so that it is the zero point of x. The zero point of x is one
        number; that of the weight one number or one per output.
        """
        where = "conv_integer"
        x, w = _bytes(where, self), _bytes(where, self._lift(weight))
        zero: TensorLike = 0 if x_zero_point is None else x_zero_point
        fill = x._fill(zero if weak_kind(zero) else self._lift(zero).reshape(()), where)
        found = windows(where, x.shape[2:], tuple(w.shape[2:]), stride, padding, dilation)  # type: ignore[arg-type]
        sides = zip(found.before, found.after, strict=True)
        padded = x.pad([(0, 0), (0, 0), *sides], fill)
        filters = w._cast(INT32)
        if w_zero_point is not None:
            per_output = self._lift(w_zero_point)
            if per_output.ndim:
                per_output = per_output.reshape(*per_output.shape, *[1] * (w.ndim - 1))
            filters = filters - per_output._cast(INT32)
        numbers = padded._cast(INT32) - fill._cast(INT32)
        return numbers.conv(filters, None, stride, 0, dilation, groups)


def _bytes(where: str, x: T) -> T:
    if x.dtype not in (INT8, UINT8):
        raise GraphError(where, f"needs int8 or uint8 operands, got {x.type}.")
    return x


def _integer_dtype(where: str, zero_point: TensorLike | None, dtype: DTypeLike | None) -> DType:
    """The dtype of a quantised result: what is asked for, or the zero point's own."""
    wanted = UINT8 if dtype is None else as_dtype(dtype, where)
    known = getattr(zero_point, "dtype", None)
    if dtype is None and known is not None:
        wanted = as_dtype(known, where)
    if not wanted.is_integer:
        raise GraphError(where, f"a quantised dtype must be an integer, got {wanted}.")
    return wanted
