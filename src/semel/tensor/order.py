"""Along an axis, in order.

    cumsum cumprod cummax cummin sort argsort partition topk

Running results come from `scan`, orders from `argsort`, which is stable: equal elements keep
their order, ascending or descending, and NaN stands last in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.expr import Dim, is_positive
from semel.ops.attrs import ArgsortAttrs, ScanAttrs
from semel.tensor.handle import (
    DTypeLike,
    TensorLike,
    apply,
    convert,
    lift,
    normalize_axis,
    whole_dims,
    whole_numbers,
)
from semel.tensor.reduce import accumulator
from semel.tensor.select import along_order, first_places, order_of
from semel.tensor.spelling import AXIS, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def _scan(
    x: Tensor, combine: str, axis: int | None, where: str, *, exclusive: bool = False
) -> Tensor:
    if axis is None:
        return _scan(x.flatten(), combine, 0, where, exclusive=exclusive)
    if x.ndim == 0:
        return _scan(x.flatten(), combine, axis, where, exclusive=exclusive).reshape(())
    i = normalize_axis(axis, x.ndim, where)
    return apply("scan", x, attrs=ScanAttrs(i, combine, exclusive))


@spelled(dim="axis")
def cumsum(
    x: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    *,
    exclusive: bool = False,
    dim: int | None = AXIS,
) -> Tensor:
    """Running sums; exclusive ones leave the element itself out. Integers widen to int64.

    >>> x = Tensor([1, 2, 3])
    >>> x.cumsum().tolist(), x.cumsum(exclusive=True).tolist()
    ([1, 3, 6], [0, 1, 3])
    """
    x = lift(x)
    return _scan(
        convert(x, accumulator(x.dtype, dtype)), "sum", axis, "cumsum", exclusive=exclusive
    )


@spelled(dim="axis")
def cumprod(
    x: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    *,
    exclusive: bool = False,
    dim: int | None = AXIS,
) -> Tensor:
    """Running products; exclusive ones leave the element itself out. Integers widen to int64."""
    x = lift(x)
    return _scan(
        convert(x, accumulator(x.dtype, dtype)), "prod", axis, "cumprod", exclusive=exclusive
    )


@spelled(dim="axis")
def cummax(x: TensorLike, axis: int | None = None, *, dim: int | None = AXIS) -> Tensor:
    """Running maxima; NaN from the first NaN on."""
    return _scan(lift(x), "max", axis, "cummax")


@spelled(dim="axis")
def cummin(x: TensorLike, axis: int | None = None, *, dim: int | None = AXIS) -> Tensor:
    """Running minima; NaN from the first NaN on."""
    return _scan(lift(x), "min", axis, "cummin")


@spelled(dim="axis")
def argsort(
    x: TensorLike,
    axis: int | None = -1,
    descending: bool = False,
    *,
    stable: bool = True,
    kind: str | None = None,
    dim: int | None = AXIS,
) -> Tensor:
    """The indices (int64) that sort the axis; of the flat tensor if None.

    The order is stable, whether that is asked for or not, and whatever `kind` of sort is named.
    """
    _check_kind(kind, "argsort")
    x = lift(x)
    if axis is None or x.ndim == 0:
        return order_of(x.flatten(), 0, descending)
    return order_of(x, normalize_axis(axis, x.ndim, "argsort"), descending)


def _check_kind(kind: str | None, where: str) -> None:
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise GraphError(where, f"kind must be a kind of np.sort, got {kind!r}.")


@spelled(dim="axis")
def sort(
    x: TensorLike,
    axis: int | None = -1,
    descending: bool = False,
    *,
    stable: bool = True,
    kind: str | None = None,
    dim: int | None = AXIS,
) -> Tensor:
    """The elements in order along the axis; of the flat tensor if None.

    >>> Tensor([3, 1, 2]).sort(descending=True).tolist()
    [3, 2, 1]
    """
    _check_kind(kind, "sort")
    x = lift(x)
    if axis is None or x.ndim == 0:
        return x.flatten().sort(0, descending).reshape(x.shape if x.ndim == 0 else -1)
    i = normalize_axis(axis, x.ndim, "sort")
    if x.dtype.is_narrow:  # a cast back would saturate
        return along_order(x, order_of(x, i, descending), i)
    return apply("sort", x, attrs=ArgsortAttrs(i, descending))


@spelled(dim="axis")
def partition(
    x: TensorLike, kth: int | Sequence[int], axis: int | None = -1, *, dim: int | None = AXIS
) -> Tensor:
    """The axis with its `kth` element in its place in order: all of it is sorted."""
    x = lift(x)
    _check_kth(x, kth, axis, "partition")
    return x.sort(axis)


@spelled(dim="axis")
def argpartition(
    x: TensorLike, kth: int | Sequence[int], axis: int | None = -1, *, dim: int | None = AXIS
) -> Tensor:
    """The indices (int64) of `partition`."""
    x = lift(x)
    _check_kth(x, kth, axis, "argpartition")
    return x.argsort(axis)


def _check_kth(x: Tensor, kth: int | Sequence[int], axis: int | None, where: str) -> None:
    length = x.size if axis is None else x.shape[normalize_axis(axis, x.ndim, where)]
    for k in whole_numbers(kth, "kth", where):
        if is_positive(k + 1 - length) or is_positive(-k - length):
            raise GraphError(where, f"kth must lie in [{-length}, {length}), got {k}.")


@spelled(dim="axis")
def topk(
    x: TensorLike,
    k: Dim,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    dim: int = AXIS,
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements in order, and their indices.

    They are in order, whether that is asked for or not.

    >>> values, indices = Tensor([3, 9, 4]).topk(2)
    >>> values.tolist(), indices.tolist()
    ([9, 4], [1, 2])
    """
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "topk")
    length = x.shape[i]
    (count,) = whole_dims(k, "k", "topk")
    if is_positive(-count) or is_positive(count - length):
        raise GraphError("topk", f"k must lie in [0, {length}] for {x.type}, got {k}.")
    indices = first_places(x, i, largest, count)
    return along_order(x, indices, i), indices
