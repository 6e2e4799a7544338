"""Tensor, layer 4: many elements become one.

    x, axes, keepdims  -->  reduce node (axes stay with size 1)  -->  reshape if keepdims is False

`axis` is None (all), an int or several, negative ones from the end. Sums, means and
variances of float16 and bfloat16 are taken in float32 and rounded once; integer sums and
products widen to int64 (uint64 stays), integer means and variances are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypeAlias

from semel.errors import GraphError
from semel.ir.expr import Dim, product
from semel.ir.types import BOOL, FLOAT32, INT64, UINT64, DType, as_dtype
from semel.ops.attrs import ReduceAttrs, ReshapeAttrs
from semel.tensor.activations import Activations
from semel.tensor.handle import DTypeLike, normalize_axes, normalize_axis

Axis: TypeAlias = "int | Sequence[int] | None"


class Reduce(Activations):
    """Sums, extremes, means and what is made of them."""

    __slots__ = ()

    def _reduce(self, op: str, axis: Axis, keepdims: bool, *, propagate_nan: bool = True) -> Self:
        axes = tuple(sorted(normalize_axes(axis, self.ndim, op)))
        if not axes:
            return self
        result = self._apply(op, self, attrs=ReduceAttrs(axes, propagate_nan))
        return result if keepdims else result._drop(axes)

    def _drop(self, axes: Sequence[int]) -> Self:
        kept = tuple([d for i, d in enumerate(self.shape) if i not in axes])
        if len(kept) == self.ndim:
            return self
        return self._apply("reshape", self, attrs=ReshapeAttrs(kept))

    def _count(self, axis: Axis, where: str) -> Dim:
        """How many elements one result element stands for."""
        return product(self.shape[i] for i in normalize_axes(axis, self.ndim, where))

    # ------------------------------------------------------------ plain reductions

    def sum(
        self, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None
    ) -> Self:
        return self._cast(accumulator(self.dtype, dtype))._reduce("reduce_sum", axis, keepdims)

    def prod(
        self, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None
    ) -> Self:
        return self._cast(accumulator(self.dtype, dtype))._reduce("reduce_prod", axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The largest element; NaN if there is one."""
        return self._reduce("reduce_or" if self.dtype == BOOL else "reduce_max", axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The smallest element; NaN if there is one."""
        return self._reduce("reduce_and" if self.dtype == BOOL else "reduce_min", axis, keepdims)

    amax = max
    amin = min

    def any(self, axis: Axis = None, keepdims: bool = False) -> Self:
        return self._cast(BOOL)._reduce("reduce_or", axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Self:
        return self._cast(BOOL)._reduce("reduce_and", axis, keepdims)

    def count_nonzero(self, axis: Axis = None, keepdims: bool = False) -> Self:
        return self.ne(0).sum(axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The index of the first largest element (int64); of the flat tensor without axis."""
        return self._arg("reduce_argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The index of the first smallest element (int64); of the flat tensor without axis."""
        return self._arg("reduce_argmin", axis, keepdims)

    def _arg(self, op: str, axis: int | None, keepdims: bool) -> Self:
        x = self._cast(as_dtype("uint8")) if self.dtype == BOOL else self
        if axis is None:
            flat = x.flatten()._reduce(op, 0, False)
            return flat.reshape((1,) * self.ndim) if keepdims else flat
        if self.ndim == 0:
            normalize_axis(axis, max(self.ndim, 1), op)
            return x.flatten()._reduce(op, 0, False)
        return x._reduce(op, normalize_axis(axis, self.ndim, op), keepdims)

    # ------------------------------------------------------------ means and what follows

    def _as_float(self) -> Self:
        """Integers and half floats as float32: the dtype that means are taken in."""
        return self if self.dtype.is_float and not self.dtype.is_half else self._cast(FLOAT32)

    def _back(self, dtype: DType) -> Self:
        """Round a result to the dtype the user gave, if that was a float."""
        return self._cast(dtype) if dtype.is_float else self

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Self:
        total = self._as_float().sum(axis, keepdims)
        return (total / self._count(axis, "mean"))._back(self.dtype)

    def var(
        self,
        axis: Axis = None,
        keepdims: bool = False,
        *,
        correction: int = 0,
        ddof: int | None = None,
    ) -> Self:
        """Mean squared distance from the mean, in two passes; divided by count - correction."""
        variance = self._variance(axis, keepdims, correction if ddof is None else ddof)
        return variance._back(self.dtype)

    def std(
        self,
        axis: Axis = None,
        keepdims: bool = False,
        *,
        correction: int = 0,
        ddof: int | None = None,
    ) -> Self:
        variance = self._variance(axis, keepdims, correction if ddof is None else ddof)
        return variance.sqrt()._back(self.dtype)

    def _variance(self, axis: Axis, keepdims: bool, correction: int) -> Self:
        x = self._as_float()
        distance = x - x.mean(axis, keepdims=True)
        total = (distance * distance).sum(axis, keepdims)
        count = self._count(axis, "var") - correction
        if isinstance(count, int):
            return total / max(count, 0)
        return total / self._dim(count, x.dtype).maximum(0)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """log(sum(exp(x))) without overflow; rows of -inf give -inf."""
        x = self._as_float()
        top = x._reduce("reduce_max", axis, True, propagate_nan=False)
        top = self._choose(top.isfinite(), top, 0)
        result = (x - top).exp().sum(axis, True).log() + top
        axes = normalize_axes(axis, self.ndim, "logsumexp")
        return (result if keepdims else result._drop(axes))._back(self.dtype)

    def norm(
        self, order: float | str | None = None, axis: Axis = None, keepdims: bool = False
    ) -> Self:
        """The vector norm of the given order over the axes; order 2 if None."""
        x = self._as_float()
        size = x.abs()
        match 2 if order in (None, "fro") else order:
            case 2:
                result = (x * x).sum(axis, keepdims).sqrt()
            case 1:
                result = size.sum(axis, keepdims)
            case 0:
                result = x.ne(0).sum(axis, keepdims)._cast(x.dtype)
            case int() | float() as p if p == float("inf"):
                result = size.max(axis, keepdims)
            case int() | float() as p if p == -float("inf"):
                result = size.min(axis, keepdims)
            case int() | float() as p:
                result = (size**p).sum(axis, keepdims) ** (1 / p)
            case other:
                raise GraphError("norm", f"order must be a number, got {other!r}.")
        return result._back(self.dtype)


def accumulator(dtype: DType, wanted: DTypeLike | None = None) -> DType:
    """The dtype of a sum of `dtype`: integers and bool widen to int64."""
    if wanted is not None:
        return as_dtype(wanted, "sum")
    return dtype if dtype.is_float or dtype == UINT64 else INT64
