"""Products of tensors that are no matrix product by name, and equality as one number.

    inner vdot tensordot cross kron   allclose array_equal

All come down to `matmul`, or to elementwise products where nothing is added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.expr import product
from semel.ir.types import BOOL
from semel.tensor.elementwise import isclose
from semel.tensor.handle import (
    TensorLike,
    convert,
    lift,
    normalize_axes,
    normalize_axis,
    promote,
    scalar,
    whole_number,
)
from semel.tensor.movement import agreeing, broadcast, may_agree, stack
from semel.tensor.spelling import AXIS, same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def inner(x: TensorLike, other: TensorLike) -> Tensor:
    """The sum of products along the last axes of both: rows with rows."""
    a, b = promote((lift(x), other))
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    return _contracted(a, b, [a.ndim - 1], [b.ndim - 1], "inner")


def vdot(x: TensorLike, other: TensorLike) -> Tensor:
    """The sum of the products of all elements."""
    return lift(x).flatten() @ lift(other).flatten()


@spelled(dims="axes")
def tensordot(
    x: TensorLike,
    other: TensorLike,
    axes: int | Sequence[int | Sequence[int]] = 2,
    *,
    dims: int | Sequence[int | Sequence[int]] = same_as("axes"),
) -> Tensor:
    """The sums of products over `axes`: so many, the last of x with the first of the other, or
    those of x and those of the other, in pairs.
    """
    a, b = promote((lift(x), other))
    return _contracted(a, b, *_summed_axes(a, b, axes), "tensordot")


def _contracted(
    a: Tensor, b: Tensor, left: Sequence[int], right: Sequence[int], where: str
) -> Tensor:
    """One matrix product over the axes `left` of a and `right` of b, pair by pair."""
    _check_summed(a, b, left, right, where)
    rows = [i for i in range(a.ndim) if i not in left]
    columns = [i for i in range(b.ndim) if i not in right]
    lead, tail = [a.shape[i] for i in rows], [b.shape[i] for i in columns]
    deep = product(a.shape[i] for i in left)
    tall = a.permute([*rows, *left]).reshape(product(lead), deep)
    b = agreeing(b, tuple(a.shape[left[right.index(i)]] if i in right else b.shape[i]
                          for i in range(b.ndim)))  # fmt: skip
    wide = b.permute([*right, *columns]).reshape(deep, product(tail))
    return (tall @ wide).reshape((*lead, *tail))


def _summed_axes(a: Tensor, b: Tensor, axes: object) -> tuple[list[int], list[int]]:
    if not isinstance(axes, Sequence):
        count = whole_number(axes, "axes", "tensordot")
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise GraphError(
                "tensordot", f"axes must lie in [0, {min(a.ndim, b.ndim)}], got {count}."
            )
        return list(range(a.ndim - count, a.ndim)), list(range(count))
    if len(axes) != 2:
        raise GraphError("tensordot", f"axes must be a number or a pair, got {axes}.")
    left = normalize_axes(axes[0], a.ndim, "tensordot")
    right = normalize_axes(axes[1], b.ndim, "tensordot")
    if len(left) != len(right):
        raise GraphError("tensordot", f"axes must come in pairs, got {axes}.")
    return list(left), list(right)


def _check_summed(
    a: Tensor, b: Tensor, left: Sequence[int], right: Sequence[int], where: str
) -> None:
    for i, j in zip(left, right, strict=True):
        if not may_agree((a.shape[i],), (b.shape[j],)):
            raise GraphError(
                where,
                f"summed dims must agree, got {a.shape[i]} and {b.shape[j]} of {a.type} and "
                f"{b.type}.",
            )


@spelled(dim="axis")
def cross(x: TensorLike, other: TensorLike, axis: int = -1, *, dim: int = AXIS) -> Tensor:
    """The vectors at right angles to those of both, which have 3 elements along the axis."""
    a, b = broadcast(promote((lift(x), other)), "cross")
    i = normalize_axis(axis, a.ndim, "cross")
    if a.shape[i] != 3:
        raise GraphError("cross", f"axis {i} must have size 3, got {a.type} and {b.type}.")
    (a0, a1, a2), (b0, b1, b2) = a.unbind(i), b.unbind(i)
    return stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], i)


def kron(x: TensorLike, other: TensorLike) -> Tensor:
    """Each element of x times all of the other: blocks side by side along every axis."""
    a, b = promote((lift(x), other))
    ndim = max(a.ndim, b.ndim)
    a, b = (t.reshape((1,) * (ndim - t.ndim) + t.shape) for t in (a, b))
    outer = a.reshape(tuple(d for n in a.shape for d in (n, 1))) * b.reshape(
        tuple(d for n in b.shape for d in (1, n))
    )
    return outer.reshape(tuple(m * n for m, n in zip(a.shape, b.shape, strict=True)))


def addmm(
    x: TensorLike, a: TensorLike, b: TensorLike, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * x + alpha * (a @ b): a product with what is added to it."""
    product_of = lift(a) @ lift(b)
    scaled = product_of if alpha == 1 else product_of * alpha
    return scaled + (lift(x) if beta == 1 else lift(x) * beta)


def addcmul(x: TensorLike, a: TensorLike, b: TensorLike, *, value: float = 1) -> Tensor:
    """x + value * a * b."""
    scaled = lift(a) * lift(b)
    return lift(x) + (scaled if value == 1 else scaled * value)


def addcdiv(x: TensorLike, a: TensorLike, b: TensorLike, *, value: float = 1) -> Tensor:
    """x + value * a / b."""
    scaled = lift(a) / lift(b)
    return lift(x) + (scaled if value == 1 else scaled * value)


# ------------------------------------------------------------ equality of all


def allclose(
    x: TensorLike,
    other: TensorLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Whether all elements are close to the others, as `isclose` says: one bool."""
    return isclose(x, other, rtol, atol, equal_nan).all()


def array_equal(x: TensorLike, other: TensorLike, equal_nan: bool = False) -> Tensor:
    """Whether both have one shape and all elements are equal: one bool.

    Symbolic dims that may agree are held to it by a guard.
    """
    a, b = promote((lift(x), lift(other)))
    if not may_agree(a.shape, b.shape):
        return scalar(False, BOOL)
    same = a.eq(agreeing(b, a.shape))
    if equal_nan and a.dtype.is_float:
        same = same | (a.isnan() & b.isnan())
    return convert(same, BOOL).all()


# Second names.
baddbmm = addmm
