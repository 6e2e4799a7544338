"""Lengths of vectors and of matrices, of every order that NumPy knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from semel.errors import GraphError
from semel.tensor.handle import TensorLike, lift, normalize_axes
from semel.tensor.matrices.rotations import svdvals
from semel.tensor.reduce import Axis, as_float, rounded_to
from semel.tensor.spelling import AXIS, KEEPDIMS, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

Order: TypeAlias = "float | str | None"
_INFINITY = float("inf")


@spelled(dim="axis", keepdim="keepdims")
def norm(
    x: TensorLike,
    ord: Order = None,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """np.linalg.norm: of vectors along one axis, or of matrices along two.

    Without an order it is the root of the sum of squares, along the axes or of all elements.
    With an order and no axis, x is a vector or a matrix.
    """
    given = lift(x)
    if ord is None:
        return given.norm(2, axis, keepdims)
    if axis is None:
        if given.ndim not in (1, 2):
            raise GraphError("norm", f"needs a vector or a matrix, or an axis, got {given.type}.")
        axis = tuple(range(given.ndim))
    axes = normalize_axes(axis, given.ndim, "norm")
    if len(axes) == 1:
        return vector_norm(given, axes[0], keepdims, ord=ord)
    return matrix_norm(given, ord, axis=axes, keepdims=keepdims)


@spelled(dim="axis", keepdim="keepdims")
def vector_norm(
    x: TensorLike,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    ord: Order = 2,
    dim: Axis = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The length of vectors along the axes, of all elements without: any number, inf or -inf."""
    if isinstance(ord, str) or ord is None:
        raise GraphError("vector_norm", f"ord must be a number, inf or -inf, got {ord!r}.")
    return lift(x).norm(ord, axis, keepdims)


@spelled(dim="axis", keepdim="keepdims")
def matrix_norm(
    x: TensorLike,
    ord: Order = "fro",
    *,
    axis: Sequence[int] = (-2, -1),
    keepdims: bool = False,
    dim: Sequence[int] = AXIS,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The norm of matrices: "fro", "nuc", 1, -1, inf, -inf, 2 or -2."""
    given, where = lift(x), "matrix_norm"
    axes = normalize_axes(tuple(axis), given.ndim, where)
    if len(axes) != 2:
        raise GraphError(where, f"needs two axes, got {tuple(axis)}.")
    wide = as_float(given).moveaxis(axes, (-2, -1))
    found = _of_last_axes(wide, ord, where)
    if keepdims:
        found = found.unsqueeze(axes)
    return rounded_to(found, given.dtype)


def _of_last_axes(x: Tensor, ord: Order, where: str) -> Tensor:
    match ord:
        case "fro":
            return x.square().sum((-2, -1)).sqrt()
        case "nuc":
            return svdvals(x).sum(-1)
        case 2:
            return svdvals(x).max(-1)
        case -2:
            return svdvals(x).min(-1)
        case 1 | -1:
            sums = x.abs().sum(-2)
            return sums.max(-1) if ord == 1 else sums.min(-1)
        case _ if ord in (_INFINITY, -_INFINITY):
            sums = x.abs().sum(-1)
            return sums.max(-1) if ord == _INFINITY else sums.min(-1)
    known = "'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
    raise GraphError(where, f"ord must be {known} for matrices, got {ord!r}.")
