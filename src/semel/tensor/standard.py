"""Functions of the array API standard that NumPy has under no such name, or not alike.

    cumulative_sum unique_all unstack real ...

Each is a line or two of functions of this package. What the standard and NumPy name alike is with
its family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.errors import GraphError
from semel.ir.expr import Dim
from semel.ir.types import Shape, as_dtype, as_shape
from semel.tensor import movement, order, pieces
from semel.tensor.handle import (
    DTypeLike,
    TensorLike,
    convert,
    lift,
    normalize_axis,
    promote,
    scalar,
)
from semel.tensor.late import unique
from semel.tensor.unary import full_bool

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


# ------------------------------------------------------------ running sums


def cumulative_sum(
    x: TensorLike,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """`cumsum`, of one axis only; with `include_initial` a 0 stands in front."""
    return _cumulative(x, order.cumsum, 0, axis, dtype, include_initial, "cumulative_sum")


def cumulative_prod(
    x: TensorLike,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """`cumprod`, of one axis only; with `include_initial` a 1 stands in front."""
    return _cumulative(x, order.cumprod, 1, axis, dtype, include_initial, "cumulative_prod")


def _cumulative(
    given: TensorLike,
    scan: Any,
    first: int,
    axis: int | None,
    dtype: Any,
    initial: bool,
    where: str,
) -> Tensor:
    x = lift(given)
    if x.ndim != 1 and axis is None:
        raise GraphError(where, f"axis must be given for {x.type}.")
    i = normalize_axis(0 if axis is None else axis, x.ndim, where)
    wanted = None if dtype is None else as_dtype(dtype, where)
    result: Tensor = scan(x if wanted is None else convert(x, wanted), i)
    if wanted is not None:
        result = convert(result, wanted)
    if not initial:
        return result
    shape = (*x.shape[:i], 1, *x.shape[i + 1 :])
    return movement.concat([scalar(first, result.dtype, ()).broadcast_to(shape), result], i)


# ------------------------------------------------------------ sets


class UniqueAll(NamedTuple):
    """Distinct elements, where each first stands, which of them each element is, how often."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Distinct elements, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Distinct elements, and which of them each element is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: TensorLike) -> UniqueAll:
    """`unique` with everything it can tell, by name; each NaN stands for itself."""
    return UniqueAll(*unique(x, True, True, True, equal_nan=False))


def unique_counts(x: TensorLike) -> UniqueCounts:
    """`unique` and how often each element occurs, by name; each NaN stands for itself."""
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False))


def unique_inverse(x: TensorLike) -> UniqueInverse:
    """`unique` and which of them each element is, by name; each NaN stands for itself."""
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False))


def unique_values(x: TensorLike) -> Tensor:
    """`unique`, where each NaN stands for itself."""
    values: Tensor = unique(x, equal_nan=False)
    return values


# ------------------------------------------------------------ shapes


def broadcast_shapes(*shapes: Sequence[Dim]) -> Shape:
    """The common shape of these: `broadcast_shapes((2, 1), (3,))` is (2, 3)."""
    given = [as_shape(shape, "broadcast_shapes") for shape in shapes]
    return movement.broadcast_shapes(given, "broadcast_shapes") if given else ()


def unstack(x: TensorLike, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along one axis, which is dropped: `unbind`, as a tuple."""
    return tuple(pieces.unbind(x, axis))


# ------------------------------------------------------------ vectors


def vecdot(x: TensorLike, other: TensorLike, *, axis: int = -1) -> Tensor:
    """The dot product along one axis of both, where all other axes broadcast.

    `axis` counts from the end, unless both have as many axes. Integers keep their dtype.
    """
    x, y = promote((x, other))
    if axis >= 0 and x.ndim != y.ndim:
        raise GraphError(
            "vecdot", f"axis must be negative for {x.type} and {y.type}, got axis={axis}."
        )
    ends = [normalize_axis(axis, t.ndim, "vecdot") for t in (x, y)]
    sizes = [t.shape[i] for t, i in zip((x, y), ends, strict=True)]
    if not movement.may_agree((sizes[0],), (sizes[1],)):
        found = f"{sizes[0]} and {sizes[1]}"
        raise GraphError("vecdot", f"axis {axis} must have one size in both, got {found}.")
    x, y = movement.broadcast([x, y], "vecdot")
    return convert((x * y).sum(axis), x.dtype)


# ------------------------------------------------------------ real numbers


def real(x: TensorLike) -> Tensor:
    """The tensor itself: there are no complex dtypes."""
    return lift(x)


def imag(x: TensorLike) -> Tensor:
    """Zeros: there are no complex dtypes."""
    return lift(x).zeros_like()


def isreal(x: TensorLike) -> Tensor:
    """True everywhere: there are no complex dtypes."""
    return full_bool(lift(x), True)


conj = real
