"""Many elements become one.

    x, axes, keepdims  -->  reduce node (axes stay with size 1)  -->  reshape if keepdims is False

`axis` is None (all), an int or several, negative ones from the end. `where` says which elements
take part, `initial` what is there before them. Sums, means and
variances of float16 and bfloat16 are taken in float32 and rounded once; integer sums and
products widen to int64 (uint64 stays), integer means and variances are float32.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from semel.errors import GraphError
from semel.ir.expr import Dim, is_positive, product
from semel.ir.types import BOOL, FLOAT32, INT64, UINT64, DType, as_dtype
from semel.ops.attrs import ReduceAttrs, ReshapeAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    DTypeLike,
    TensorLike,
    apply,
    convert,
    dim_value,
    lift,
    normalize_axes,
    normalize_axis,
)
from semel.tensor.movement import fill_value, reach
from semel.tensor.spelling import AXIS, KEEPDIMS, same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

Axis: TypeAlias = "int | Sequence[int] | None"


def reduce_axes(
    x: Tensor, op: str, axis: Axis, keepdims: bool, *, propagate_nan: bool = True
) -> Tensor:
    """`op` along the axes, which stay with size 1 or go."""
    axes = tuple(sorted(normalize_axes(axis, x.ndim, op)))
    if not axes:
        return x
    result = apply(op, x, attrs=ReduceAttrs(axes, propagate_nan))
    return result if keepdims else drop_axes(result, axes)


def drop_axes(x: Tensor, axes: Sequence[int]) -> Tensor:
    """x without these axes, which have size 1."""
    kept = tuple([d for i, d in enumerate(x.shape) if i not in axes])
    if len(kept) == x.ndim:
        return x
    return apply("reshape", x, attrs=ReshapeAttrs(kept))


def _count(x: Tensor, axis: Axis, where: str) -> Dim:
    """How many elements one result element stands for."""
    return product(x.shape[i] for i in normalize_axes(axis, x.ndim, where))


# ------------------------------------------------------------ some of the elements


def _mask(x: Tensor, where: TensorLike, name: str) -> Tensor:
    """Which elements take part: a bool for each."""
    mask = lift(where)
    if mask.dtype != BOOL:
        raise GraphError(name, f"where must be bool, got {mask.type}.")
    return reach(mask, x.shape, name)


def _only_where(x: Tensor, where: TensorLike | None, unit: TensorLike, name: str) -> Tensor:
    """The elements that take part, and `unit` in the places of the others."""
    if where is None:
        return x
    return choose(_mask(x, where, name), x, fill_value(x, unit, name))


def _never_empty(x: Tensor, axis: Axis, initial: TensorLike, name: str) -> Tensor:
    """With one element more along the axes, if there may be none."""
    axes = normalize_axes(axis, x.ndim, name)
    if is_positive(product(x.shape[i] for i in axes)):
        return x
    return x.pad([(0, 1 if i in axes else 0) for i in range(x.ndim)], initial)


def _needed(initial: TensorLike | None, name: str) -> TensorLike:
    """What is there before any element, where there may be none."""
    if initial is None:
        raise GraphError(
            name, "of no elements there is none.", hint="With where=, give initial= as well."
        )
    return initial


# ------------------------------------------------------------ plain reductions


@spelled(dim="axis", keepdim="keepdims")
def sum(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: DTypeLike | None = None,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The sum along the axes; integers and bool widen to int64.

    >>> x = Tensor([[1, 2], [3, 4]])
    >>> x.sum().item(), x.sum(0).tolist(), x.sum(1, keepdims=True).tolist()
    (10, [4, 6], [[3], [7]])
    """
    x = _only_where(lift(x), where, 0, "sum")
    result = reduce_axes(convert(x, accumulator(x.dtype, dtype)), "reduce_sum", axis, keepdims)
    return result if initial is None else result.add(fill_value(result, initial, "sum"))


@spelled(dim="axis", keepdim="keepdims")
def prod(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: DTypeLike | None = None,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The product along the axes; integers and bool widen to int64."""
    x = _only_where(lift(x), where, 1, "prod")
    result = reduce_axes(convert(x, accumulator(x.dtype, dtype)), "reduce_prod", axis, keepdims)
    return result if initial is None else result.mul(fill_value(result, initial, "prod"))


@spelled(dim="axis", keepdim="keepdims")
def max(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The largest element; NaN if there is one."""
    x = lift(x)
    if where is not None:
        x = _only_where(x, where, _needed(initial, "max"), "max")
    if initial is not None:
        x = _never_empty(x, axis, initial, "max")
    result = reduce_axes(x, "reduce_or" if x.dtype == BOOL else "reduce_max", axis, keepdims)
    return result if initial is None else result.maximum(fill_value(x, initial, "max"))


@spelled(dim="axis", keepdim="keepdims")
def min(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The smallest element; NaN if there is one."""
    x = lift(x)
    if where is not None:
        x = _only_where(x, where, _needed(initial, "min"), "min")
    if initial is not None:
        x = _never_empty(x, axis, initial, "min")
    result = reduce_axes(x, "reduce_and" if x.dtype == BOOL else "reduce_min", axis, keepdims)
    return result if initial is None else result.minimum(fill_value(x, initial, "min"))


@spelled(dim="axis", keepdim="keepdims")
def any(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    where: TensorLike | None = None,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """Whether some element is not 0."""
    x = _only_where(convert(lift(x), BOOL), where, False, "any")
    return reduce_axes(x, "reduce_or", axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def all(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    where: TensorLike | None = None,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """Whether no element is 0."""
    x = _only_where(convert(lift(x), BOOL), where, True, "all")
    return reduce_axes(x, "reduce_and", axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def count_nonzero(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """How many elements are not 0."""
    return lift(x).ne(0).sum(axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def argmax(
    x: TensorLike,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    dim: int | None = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The index of the first largest element (int64); of the flat tensor without axis.

    >>> Tensor([[1, 7, 7], [5, 2, 1]]).argmax(axis=1).tolist()
    [1, 0]
    """
    return _arg(lift(x), "reduce_argmax", axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def argmin(
    x: TensorLike,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    dim: int | None = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The index of the first smallest element (int64); of the flat tensor without axis."""
    return _arg(lift(x), "reduce_argmin", axis, keepdims)


def _arg(given: Tensor, op: str, axis: int | None, keepdims: bool) -> Tensor:
    x = convert(given, as_dtype("uint8")) if given.dtype == BOOL else given
    if axis is None:
        flat = reduce_axes(x.flatten(), op, 0, False)
        return flat.reshape((1,) * given.ndim) if keepdims else flat
    if given.ndim == 0:
        normalize_axis(axis, builtins.max(given.ndim, 1), op)
        return reduce_axes(x.flatten(), op, 0, False)
    return reduce_axes(x, op, normalize_axis(axis, given.ndim, op), keepdims)


# ------------------------------------------------------------ means and what follows


def as_float(x: Tensor) -> Tensor:
    """Integers and floats of less than 32 bits as float32: the dtype that means are taken in."""
    return x if x.dtype.is_float and x.dtype.bits >= 32 else convert(x, FLOAT32)


def rounded_to(x: Tensor, dtype: DType) -> Tensor:
    """Round a result to the dtype the user gave, if that was a float."""
    return convert(x, dtype) if dtype.is_float else x


@spelled(dim="axis", keepdim="keepdims")
def mean(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: DTypeLike | None = None,
    *,
    where: TensorLike | None = None,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The mean along the axes, of the elements where `where` holds if it is given.

    Of integers it is float32, or as `dtype` says.
    """
    x = lift(x) if dtype is None else convert(lift(x), as_dtype(dtype, "mean"))
    if where is not None:
        mask = _mask(x, where, "mean")
        found = _masked_mean(as_float(x), mask, axis, keepdims)
        return rounded_to(found, x.dtype)
    total = as_float(x).sum(axis, keepdims)
    return rounded_to(total / _count(x, axis, "mean"), x.dtype)


def _masked_mean(x: Tensor, mask: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    count = convert(mask, x.dtype).sum(axis, keepdims)
    return choose(mask, x, 0).sum(axis, keepdims) / count


@spelled(dim="axis", keepdim="keepdims", ddof="correction")
def var(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    correction: float = 0,
    unbiased: bool | None = None,
    where: TensorLike | None = None,
    ddof: float = same_as("correction"),
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """Mean squared distance from the mean, in two passes; divided by count - correction.

    `unbiased=True` is a correction of 1. With `where` it is that of the elements where it holds.

    >>> x = Tensor([1.0, 2.0, 3.0])
    >>> x.var().item(), x.var(correction=1).item()
    (0.6666666865348816, 1.0)
    """
    x = lift(x)
    less = _correction(correction, unbiased, "var")
    variance = _variance(x, axis, keepdims, less, where)
    return rounded_to(variance, x.dtype)


@spelled(dim="axis", keepdim="keepdims", ddof="correction")
def std(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    correction: float = 0,
    unbiased: bool | None = None,
    where: TensorLike | None = None,
    ddof: float = same_as("correction"),
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The square root of `var`."""
    x = lift(x)
    less = _correction(correction, unbiased, "std")
    variance = _variance(x, axis, keepdims, less, where)
    return rounded_to(variance.sqrt(), x.dtype)


def _correction(correction: float, unbiased: bool | None, where: str) -> float:
    if unbiased is None:
        return correction
    if correction != 0:
        raise GraphError(where, "unbiased says what correction is: give one, not both.")
    return 1 if unbiased else 0


def _variance(
    given: Tensor, axis: Axis, keepdims: bool, correction: float, where: TensorLike | None
) -> Tensor:
    x = as_float(given)
    if where is not None:
        mask = _mask(given, where, "var")
        distance = choose(mask, x - _masked_mean(x, mask, axis, True), 0)
        number = convert(mask, x.dtype).sum(axis, keepdims)
        return (distance * distance).sum(axis, keepdims) / (number - correction).maximum(0)
    distance = x - x.mean(axis, keepdims=True)
    total = (distance * distance).sum(axis, keepdims)
    count = _count(given, axis, "var")
    if isinstance(count, int):
        return total / builtins.max(count - correction, 0)
    return total / (dim_value(count, x.dtype) - correction).maximum(0)


@spelled(dim="axis", keepdim="keepdims")
def logsumexp(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """log(sum(exp(x))) without overflow; rows of -inf give -inf.

    >>> Tensor([1000.0, 1000.0]).logsumexp().item()
    1000.6931762695312
    """
    given = lift(x)
    x = as_float(given)
    top = reduce_axes(x, "reduce_max", axis, True, propagate_nan=False)
    top = choose(top.isfinite(), top, 0)
    result = (x - top).exp().sum(axis, True).log() + top
    axes = normalize_axes(axis, given.ndim, "logsumexp")
    return rounded_to(result if keepdims else drop_axes(result, axes), given.dtype)


@spelled(dim="axis", keepdim="keepdims", ord="order", p="order")
def norm(
    x: TensorLike,
    order: float | str | None = None,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
    ord: float | str | None = same_as("order"),
    p: float | str | None = same_as("order"),
) -> Tensor:
    """The vector norm of the given order over the axes; order 2 if None."""
    given = lift(x)
    x = as_float(given)
    size = x.abs()
    match 2 if order in (None, "fro") else order:
        case 2:
            result = (x * x).sum(axis, keepdims).sqrt()
        case 1:
            result = size.sum(axis, keepdims)
        case 0:
            result = convert(x.ne(0).sum(axis, keepdims), x.dtype)
        case int() | float() as p if p == float("inf"):
            result = size.max(axis, keepdims)
        case int() | float() as p if p == -float("inf"):
            result = size.min(axis, keepdims)
        case int() | float() as p:
            result = (size**p).sum(axis, keepdims) ** (1 / p)
        case other:
            raise GraphError("norm", f"order must be a number, got {other!r}.")
    return rounded_to(result, given.dtype)


def accumulator(dtype: DType, wanted: DTypeLike | None = None) -> DType:
    """The dtype of a sum of `dtype`: integers and bool widen to int64."""
    if wanted is not None:
        return as_dtype(wanted, "sum")
    return dtype if dtype.is_float or dtype == UINT64 else INT64


# Second names.
amax = max
amin = min
